"""`cut` on hand-made alignments: what each utterance carries, and where everything else is listed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tones import RATE_HZ, write, write_recordings

from megahour.align.tables import keyed, refusal
from megahour.core.schemas import ALIGNED_SEGMENTS, ALIGNED_WORDS, CUES, HEARD, RECORDINGS
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.media.tar import ShardAudio, tar_writer
from megahour.cut.params import CutParams
from megahour.cut.stage import Cut

WORD_S, GAP_S = 0.4, 0.2
Cue = tuple[str, str, str]  # raw, speaker, reason why it is left out ("" kept)
FIXED = {"rate_hz": RATE_HZ, "language": "en", "licence": "CC-BY-4.0", "attribution": "A. Author", "source": "radio"}
P = CutParams(min_s=1.0, max_s=7.0, min_snr_db=5)


def corpus(
    folder: Path, recordings: Sequence[Sequence[Cue]], *, heard: str = "", level: int = 5000, speaker: str = "host"
) -> dict[str, Artifact]:
    """Recordings of noise where words are, 0.4 s each with 0.2 s between; `heard` instead of the first one."""
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in ("index", "cues", "words", "segments", "heard")}

    def fill_recordings(out: ShardWriter) -> None:
        rng = np.random.default_rng(0)
        with out.open(".tar") as file, tar_writer(file) as tar:
            for key, made in enumerate(recordings, start=1):
                words = sum(len(raw.split()) for raw, _, _ in made)
                length = round((words * (WORD_S + GAP_S) + 1) * RATE_HZ)
                sound = rng.normal(0, 5, length)
                for i in range(words):
                    start = at(i)
                    sound[start : start + round(WORD_S * RATE_HZ)] += rng.normal(0, level, round(WORD_S * RATE_HZ))
                samples = sound.clip(-32768, 32767).astype(np.int16)
                offset, size = tar.add(f"{key}.flac", encode_flac(samples, RATE_HZ))
                row = {"key": key, "name": f"talk{key}", "offset": offset, "size": size, "samples": length, **FIXED}
                tables["index"].append({**row, "channel": 1, "speaker": speaker, "condition": "", "created_s": 7})
                add_cues(tables, key, made, heard if key == 1 else "")
        out.table(pa.Table.from_pylist(tables["index"], RECORDINGS))
        out.table(pa.Table.from_pylist(tables["cues"], CUES), ".cues.parquet")

    def fill_alignment(out: ShardWriter) -> None:
        out.table(pa.Table.from_pylist(tables["words"], ALIGNED_WORDS))
        out.table(pa.Table.from_pylist(tables["segments"], ALIGNED_SEGMENTS), ".segments.parquet")
        out.table(pa.Table.from_pylist(tables["heard"], HEARD), ".heard.parquet")

    made = write(folder / "recordings", fill_recordings)
    return {"recordings": made, "alignment": write(folder / "alignment", fill_alignment)}


def at(word: int) -> int:
    return round((0.5 + word * (WORD_S + GAP_S)) * RATE_HZ)


def add_cues(tables: dict[str, list[dict[str, Any]]], key: int, made: Sequence[Cue], heard: str) -> None:
    first, said = 0, []
    for number, (raw, speaker, reason) in enumerate(made):
        tokens = raw.split()
        offsets = [raw.index(token) for token in tokens]
        ends = [offset + len(token.rstrip(".,!")) for offset, token in zip(offsets, tokens, strict=True)]
        texts = [raw[a:b].lower() for a, b in zip(offsets, ends, strict=True)]
        cue = {"key": key, "cue": number, "raw": raw, "text": " ".join(texts), "offsets": offsets, "ends": ends}
        tables["cues"].append({**cue, "start_samples": -1, "end_samples": -1, "speaker": speaker, "transcript": 0})
        start, end = at(first), at(first + len(tokens)) - round(GAP_S * RATE_HZ)
        place = {"key": key, "cue": number, "start_samples": start, "end_samples": end, "confidence": 0.9}
        tables["segments"].append({**place, "kept": not reason, "reason": reason, "loss": 0.1 * (number + 1)})
        for i, text in enumerate(texts):
            said.append((at(first + i), text))
            if not reason:
                when = {"start_samples": at(first + i), "end_samples": at(first + i) + round(WORD_S * RATE_HZ)}
                tables["words"].append({**place, **when, "word": i, "text": text})
        first += len(tokens)
    letters = [(start + 100 * i, letter) for start, text in said for i, letter in enumerate(f"{text} ")]
    if heard:
        letters = [(start, heard[i] if i < len(heard) else "") for i, (start, _) in enumerate(letters)]
    row = {"key": key, "tokens": [letter for _, letter in letters], "start_samples": [start for start, _ in letters]}
    tables["heard"].append(row)


def cut(
    folder: Path, inputs: dict[str, Artifact], p: CutParams = P
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Artifact]:
    """Utterances, what was dropped, and the artifact."""
    (task,) = Cut().plan(p, inputs)
    made = write(folder, lambda out: Cut().run(p, inputs, task, out, Context(folder)))
    return made.read_table(0).to_pylist(), made.read_table(0, ".dropped.parquet").to_pylist(), made


TALK: list[Cue] = [
    ("Good morning, all of you.", "ann", ""),
    ("We begin with the news.", "ann", ""),
    ("Thank you, dear Ann.", "bob", ""),
    ("This was never said.", "bob", "unspoken"),
    ("Here is the weather, finally.", "", ""),
]


def test_each_utterance_carries_where_it_is_from(tmp_path: Path) -> None:
    inputs = corpus(tmp_path, [TALK])
    rows, dropped, made = cut(tmp_path / "cut", inputs)
    assert [row["speaker"] for row in rows] == ["ann", "bob", "host"], (
        "speakers are parted; the recording's where unknown"
    )
    for row in rows:
        assert {name: row[name] for name in FIXED} == FIXED
        assert (row["recording"], row["name"], row["channel"], row["created_s"]) == (1, "talk1", 1, 7)
        assert row["samples"] == row["end_samples"] - row["start_samples"]
        words = [row["raw"][a:b].lower() for a, b in zip(row["word_offset"], row["word_end"], strict=True)]
        assert words == row["words"] == row["text"].split()
        assert row["heard"] == row["text"]
        assert (row["cer"], row["edge_cer"], row["wildcard_share"], row["clipped_share"]) == (0, 0, 0, 0)
        assert 40 < row["snr_db"] < 70
        assert (row["tier"], row["split"]) == ("clean", "train")
    assert rows[0]["raw"] == "Good morning, all of you. We begin with the news."
    assert rows[0]["loss"] == pytest.approx(0.15), "five words of 0.1 nats, five of 0.2"
    (lost,) = dropped
    assert (lost["reason"], lost["cue"], lost["text"], lost["name"]) == ("unspoken", 3, "this was never said", "talk1")
    assert (lost["start_samples"], lost["end_samples"]) == (at(14), at(18) - round(GAP_S * RATE_HZ))
    with ShardAudio(made, 0) as audio:
        assert [len(audio.read(row["offset"], row["size"])) for row in rows] == [row["samples"] for row in rows]


def test_all_that_is_dropped_is_counted_and_listed_with_its_reason(tmp_path: Path) -> None:
    """A wrong reading, a single cue that is too short, an unspoken cue, a recording without a transcript."""
    wrong = [("Quite other words than these.", "", ""), *TALK[3:4], ("No.", "", "")]
    inputs = corpus(tmp_path, [wrong, [], TALK[:2]], heard="zzzzzzzzzz zzzzzzzz zzzzzzzz zzzz")
    rows, dropped, made = cut(tmp_path / "cut", inputs)
    counts = made.receipts()[0].counts
    assert counts.dropped == Counter(row["reason"] for row in dropped)
    assert counts.dropped == {"high-cer": 1, "unspoken": 1, "too-short": 1, "no-transcript": 1}
    assert counts.came_in == counts.kept + sum(counts.dropped.values())
    assert counts.kept == len(rows) == 1
    assert {row["recording"] for row in rows} == {3}
    details = {row["reason"]: row["detail"] for row in dropped}
    assert details["high-cer"].endswith("the limit is 0.36: the speech has another text, or is in another language")
    assert {row["reason"]: row["cue"] >= 0 for row in dropped} == {
        **{"high-cer": True, "unspoken": True, "too-short": True, "no-transcript": False}
    }
    assert "the limits are 1 to 7 s" in details["too-short"]
    assert all(row["detail"] and row["start_samples"] < row["end_samples"] for row in dropped)


def test_recordings_that_the_aligner_refused_are_listed(tmp_path: Path) -> None:
    inputs = corpus(tmp_path, [TALK])
    nothing = {
        ".parquet": ALIGNED_WORDS,
        ".segments.parquet": ALIGNED_SEGMENTS,
        ".heard.parquet": HEARD,
    }

    def fill(out: ShardWriter) -> None:
        for suffix, schema in nothing.items():
            out.table(schema.empty_table(), suffix)

    rows, dropped, _ = cut(tmp_path / "cut", {**inputs, "alignment": write(tmp_path / "refused", fill)})
    assert not rows
    assert [row["reason"] for row in dropped] == ["not-aligned"]
    (key,) = inputs["recordings"].read_table(0, columns=["key"])["key"].to_pylist()
    segment = keyed(key, refusal("wrong-transcript", 5000), ALIGNED_SEGMENTS)

    def refuse(out: ShardWriter) -> None:
        for suffix, schema in nothing.items():
            out.table(segment if suffix == ".segments.parquet" else schema.empty_table(), suffix)

    rows, dropped, _ = cut(tmp_path / "again", {**inputs, "alignment": write(tmp_path / "told", refuse)})
    assert not rows
    assert [(row["reason"], row["start_samples"], row["end_samples"]) for row in dropped] == [
        ("wrong-transcript", 0, 5000)
    ]
    assert dropped[0]["detail"].startswith("align refused the whole recording")


def speakers(folder: Path, labels: Sequence[str], own: str = "host", p: CutParams = P) -> list[tuple[str, str]]:
    """(speaker, split) of the utterances of a recording whose cues have these labels."""
    texts = ["Good morning, all of you.", "We begin with the news.", "Here is the weather, finally."]
    talk = [(text, label, "") for text, label in zip(texts, labels, strict=False)]
    rows, _, _ = cut(folder / "cut", corpus(folder, [talk], speaker=own), p)
    return [(row["speaker"], row["split"]) for row in rows]


def test_a_recordings_speaker_wins_over_the_label_in_its_text(tmp_path: Path) -> None:
    """Test speakers were in the demo's training data as "VOICE 001", and "voice-001" in the test."""
    assert {who for who, _ in speakers(tmp_path / "1", ["VOICE 001", "", "Voice 001"], "voice-001")} == {"voice-001"}
    assert {who for who, _ in speakers(tmp_path / "2", ["ANN", ""])} == {"host"}, "one label is no second speaker"
    assert {who for who, _ in speakers(tmp_path / "3", ["ANN", "Ann"])} == {"host"}, "nor are two spellings of it"


def test_labels_are_the_speakers_where_a_recording_has_several(tmp_path: Path) -> None:
    assert [who for who, _ in speakers(tmp_path / "1", ["ANN", "BOB", "HOST"])] == ["ANN", "BOB", "host"]
    both = [who for who, _ in speakers(tmp_path / "2", ["SPEAKER_01", "SPEAKER_02"])]
    assert both == ["host/SPEAKER_01", "host/SPEAKER_02"], "numbered speakers are their recording's own"


@pytest.mark.parametrize("own", ["https://example.org/talk.mp3", "talks/a.wav", "shards/1.tar!a.flac/1", "radio", ""])
def test_a_label_names_the_speaker_whom_only_an_address_stands_for(tmp_path: Path, own: str) -> None:
    assert speakers(tmp_path, ["ANN", "ANN"], own)[0][0] == "ANN"


def test_nothing_of_a_recording_is_in_two_splits(tmp_path: Path) -> None:
    """A speaker who is not held out gets no split in a recording that a held-out speaker shares."""
    found = set()
    for number in range(12):
        p = P.model_copy(update={"test_share": 0.4, "dev_share": 0.3})
        splits = [
            split for _, split in speakers(tmp_path / str(number), [f"A{number}", f"B{number}", f"C{number}"], p=p)
        ]
        assert len(set(splits) - {""}) == 1
        found.add((splits.count(""), *set(splits) - {""}))
    assert {split for _, split in found} >= {"test", "dev"}
    assert {left_out for left_out, _ in found} >= {0, 1}


def test_noise_is_dropped_for_its_ratio(tmp_path: Path) -> None:
    rows, dropped, _ = cut(tmp_path / "cut", corpus(tmp_path, [TALK[:2]], level=6))
    assert not rows
    assert {row["reason"] for row in dropped} == {"low-snr"}


def test_a_second_reading_that_differs_a_little_makes_an_utterance_dirty(tmp_path: Path) -> None:
    text = "we begin with the news "
    rows, _, _ = cut(tmp_path / "cut", corpus(tmp_path, [TALK[1:2]], heard=text.replace("with the", "biff dee")))
    assert [row["tier"] for row in rows] == ["dirty"]
    assert 0.2 < rows[0]["cer"] < 0.36


def test_utterances_without_an_alignment_have_offsets_and_no_tier(tmp_path: Path) -> None:
    inputs = corpus(tmp_path, [TALK[:1], []])
    rows, dropped, _ = cut(tmp_path / "cut", {"recordings": inputs["recordings"]}, CutParams(min_s=1))
    (row,) = rows
    assert [row["raw"][a:b].lower() for a, b in zip(row["word_offset"], row["word_end"], strict=True)] == row["words"]
    assert (row["speaker"], row["tier"], row["heard"]) == ("host", "", "")
    assert math.isnan(row["cer"])
    assert row["snr_db"] > 40
    assert [(lost["reason"], lost["name"]) for lost in dropped] == [("no-transcript", "talk2")]


def test_held_out_recordings_are_whole_and_the_same_in_a_larger_corpus(tmp_path: Path) -> None:
    p = P.model_copy(update={"test_share": 0.4, "dev_share": 0.2, "split_by": "recording"})
    small, _, _ = cut(tmp_path / "a", corpus(tmp_path / "small", [TALK] * 4), p)
    large, _, _ = cut(tmp_path / "b", corpus(tmp_path / "large", [TALK] * 9), p)
    splits = {row["name"]: row["split"] for row in large}
    assert {row["split"] for row in large} == {"train", "dev", "test"}
    assert all(splits[row["name"]] == row["split"] for row in [*small, *large])


def test_without_an_alignment_the_first_transcript_counts_and_a_recognisers_last(tmp_path: Path) -> None:
    both = [(-1, 1, "another one"), (-1, 0, "good morning"), (-1, -1, "good mourning")]
    sound = np.random.default_rng(0).normal(0, 3000, 3 * RATE_HZ).astype(np.int16)
    made = [("both", sound, both, []), ("machine", sound, [(-1, -1, "good mourning")], [])]
    kept, _, artifact = cut(tmp_path, {"recordings": write_recordings(tmp_path, made)[0]}, CutParams(min_snr_db=-100))
    assert [(row["text"], row["transcript"]) for row in kept] == [("good morning", 0), ("good mourning", -1)]
    assert artifact.receipts()[0].stats["texts_of_recogniser"] == 1
