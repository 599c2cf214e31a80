"""`duplicates`: copies of sound are found whatever their codec, gain and start; the same words by others are not."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
import soxr
from engine_here import EngineHere
from hypothesis import given
from hypothesis import strategies as st
from made_utterances import utterance, write_utterances
from numpy.typing import NDArray

from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import UTTERANCES
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.corpus.generate.espeak import speaker
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.media.tar import tar_writer
from megahour.engine.local import LocalEngine
from megahour.runner.progress import closing_line
from megahour.runner.runner import run_stage
from megahour.select.duplicates_stage import Duplicates
from megahour.select.fingerprints import Fingerprint, common_share, fingerprint, scattered
from megahour.select.params import DuplicatesParams, SelectParams
from megahour.select.prints import SENT, jaccard, shingles, to_places
from megahour.select.stage import Select

RATE_HZ = 16_000
TEXTS = (
    "the harbour master wrote down every ship that came in before the storm",
    "nobody expected the old bridge to hold another winter of heavy traffic",
)
VOICES = (("en-us", ""), ("en-us", "f2"), ("en-gb-scotland", "m1"))
Sound = NDArray[np.float64]


@pytest.fixture(scope="module")
def spoken() -> dict[str, tuple[Sound, str]]:
    """Sound and text by name: each text by each voice."""
    rng, made = np.random.default_rng(1), {}
    for number, (voice, variant) in enumerate(VOICES):
        with speaker(voice, variant) as say:
            for i, text in enumerate(TEXTS):
                speech = say(text)
                sound = soxr.resample(speech.samples.astype(np.float64), speech.rate_hz, RATE_HZ)
                made[f"v{number}t{i}"] = (9000 * sound / np.abs(sound).max() + rng.normal(0, 20, len(sound)), text)
    return made


def coded(sound: Sound, kind: str, subtype: str) -> Sound:
    """A sound after encoding and decoding."""
    target = io.BytesIO()
    soundfile.write(target, sound / 32768, RATE_HZ, format=kind, subtype=subtype)
    target.seek(0)
    return np.asarray(soundfile.read(target)[0] * 32768)


def written(folder: Path, shards: Sequence[Sequence[tuple[str, Sound, int, str]]]) -> Artifact:
    """Utterances (name, sound, rate, text) with their audio; the speaker is the name's first two characters."""
    artifact, receipts = Artifact(folder), []
    for shard, made in enumerate(shards):
        with ShardWriter(artifact, shard, "made") as out:
            rows = []
            with out.open(".tar") as file, tar_writer(file) as tar:
                for name, sound, rate_hz, text in made:
                    samples = np.clip(np.rint(sound), -32768, 32767).astype(np.int16)
                    row = utterance(name, name[:2], text=text, rate_hz=rate_hz, samples=len(samples))
                    offset, size = tar.add(f"{row['key']}.flac", encode_flac(samples, rate_hz))
                    rows.append({**row, "offset": offset, "size": size})
            out.table(pa.Table.from_pylist(rows, UTTERANCES))
            receipts.append(out.commit())
    digest = content_digest(receipts, {})
    finish(artifact, receipts, Manifest("made", 1, "made", digest, {}, {}, len(shards), Counts(), {}))
    return artifact


def listed(artifact: Artifact) -> list[dict[str, Any]]:
    return [row for receipt in artifact.receipts() for row in artifact.read_table(receipt.shard).to_pylist()]


@pytest.fixture(scope="module")
def corpus(spoken: dict[str, tuple[Sound, str]], tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Six utterances and, in another shard, four copies that begin half a second later."""
    late = RATE_HZ // 2 + 77
    first, second, third = (spoken[name][0][late:] for name in ("v0t0", "v1t1", "v2t0"))
    copies = [
        ("x0mp3", 0.4 * coded(first, "MP3", "MPEG_LAYER_III"), RATE_HZ, "other words altogether, of an early draft"),
        ("x1opus", 1.7 * coded(second, "OGG", "OPUS"), RATE_HZ, ""),
        ("x2telephone", soxr.resample(third, RATE_HZ, 8000), 8000, ""),
    ]
    originals = [(name, sound, RATE_HZ, text) for name, (sound, text) in spoken.items()]
    return written(tmp_path_factory.mktemp("copies") / "utterances", [originals, copies])


def test_copies_are_found_and_the_same_words_by_other_voices_are_not(
    corpus: Artifact, tmp_path: Path, engine: LocalEngine
) -> None:
    output = Artifact(tmp_path / "duplicates")
    manifest = run_stage(Duplicates(), DuplicatesParams(), {"utterances": corpus}, output, engine)
    counts = manifest.counts
    assert (counts.came_in, counts.kept) == (9, 9), "of several partitions none knows what the others list"
    assert "those that several partitions list count in each" in closing_line("duplicates", manifest, 1.0, 0.0)
    keys = {utterance(name, "")["key"]: name for name in ("v0t0", "v1t1", "v2t0", "x0mp3", "x1opus", "x2telephone")}
    rows = listed(output)
    pairs = {frozenset((keys[row["key"]], keys[row["duplicate_of"]])) for row in rows}
    assert pairs == {frozenset(pair) for pair in (("v0t0", "x0mp3"), ("v1t1", "x1opus"), ("v2t0", "x2telephone"))}
    assert {row["kind"] for row in rows} == {"audio"}
    assert all(row["key"] > row["duplicate_of"] and 0.75 <= row["similarity"] <= 1 for row in rows)


def test_one_partition_counts_what_it_lists(corpus: Artifact, tmp_path: Path, engine: LocalEngine) -> None:
    output, p = Artifact(tmp_path / "duplicates"), DuplicatesParams(partitions=1)
    manifest = run_stage(Duplicates(), p, {"utterances": corpus}, output, engine)
    counts = manifest.counts
    assert (counts.came_in, counts.kept, counts.dropped) == (9, 6, {"same-audio": 3})
    assert "listed by sound 3, by text 0: give" in closing_line("duplicates", manifest, 1.0, 0.0)


def test_the_same_bytes_for_one_and_two_workers(corpus: Artifact, tmp_path: Path, engine: LocalEngine) -> None:
    p, outputs = DuplicatesParams(partitions=3), [Artifact(tmp_path / name) for name in ("two", "one")]
    run_stage(Duplicates(), p, {"utterances": corpus}, outputs[0], engine)
    with LocalEngine(1) as single:
        run_stage(Duplicates(), p, {"utterances": corpus}, outputs[1], single)
    assert outputs[0].manifest.digest == outputs[1].manifest.digest
    assert [r.files for r in outputs[0].receipts()] == [r.files for r in outputs[1].receipts()]


def test_what_is_found_does_not_depend_on_the_number_of_partitions(
    corpus: Artifact, tmp_path: Path, engine: LocalEngine
) -> None:
    found = []
    for partitions in (1, 5):
        output = Artifact(tmp_path / str(partitions))
        run_stage(Duplicates(), DuplicatesParams(partitions=partitions), {"utterances": corpus}, output, engine)
        found.append({(row["key"], row["duplicate_of"], row["kind"]) for row in listed(output)})
    assert found[0] == found[1] != set()


LONG = "it was the best of times and it was the worst of times, the age of wisdom and of foolishness"
SPEAKERS = {"a": "s1", "b": "s1", "c": "s2", "d": "s1", "e": "s1", "f": "s1"}
SAID = {"a": LONG, "b": LONG.replace("foolishness", "folly"), "c": LONG, "d": LONG[::-1], "e": "yes", "f": "yes"}


def test_rows_that_go_by_way_of_groups_give_the_same_bytes(
    corpus: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of two partitions; a group's file has several parts, and one task sends those of several shards."""
    p = DuplicatesParams(partitions=7, min_text_chars=20, text="any-speaker")
    digests, rows = [], []
    for few in (1024, 1):
        monkeypatch.setattr("megahour.select.duplicates_stage.FEW_BLOCKS", few)
        for size in (1, 1 << 20):
            monkeypatch.setattr("megahour.select.duplicates_stage.PRINTED_TOGETHER", 2 * size)
            monkeypatch.setattr("megahour.select.grouped.TOGETHER_BYTES", 20 * size)
            output = Artifact(tmp_path / f"{few}-{size}")
            run_stage(Duplicates(), p, {"utterances": corpus}, output, EngineHere(), work=tmp_path / "work")
            digests.append(output.manifest.digest)
            rows.append(listed(output))
    assert len(set(digests)) == 1
    assert {row["kind"] for row in rows[0]} == {"audio", "text"}


def test_a_row_takes_the_buckets_of_its_place_alone() -> None:
    """Sound where no bucket of it is, and texts likewise, would be read for nothing."""
    whole = {"loss": 0.5, "home": True, "bits": b"1234", "sounding": b"1", "text": "words"}
    buckets = {"audio_buckets": [3, 1, 2], "text_buckets": [7, 7]}
    table = pa.Table.from_pylist([{**whole, **buckets, "key": key} for key in (1, 2)], SENT)
    places = dict(to_places(table, 5))
    assert [sum(batch["home"].to_pylist()) for batch in places.values()].count(1) == 2
    for kind, named, blank in (("audio_buckets", ["bits", "sounding"], b""), ("text_buckets", ["text"], "")):
        sent = [row for batch in places.values() for row in batch.to_pylist()]
        for key in (1, 2):
            assert sorted(value for row in sent if row["key"] == key for value in row[kind]) == sorted(buckets[kind])
        assert all((row[name] == blank) == (not row[kind]) for row in sent for name in named)
    for size in (2, 5):  # the groups' rows give those of their partitions
        own: dict[int, list[Any]] = {}
        for _, batch in to_places(table, 5, size):
            for partition, rows in to_places(pa.Table.from_batches([batch]), 5):
                own.setdefault(partition, []).extend(rows.to_pylist())
        assert own == {partition: rows.to_pylist() for partition, rows in places.items()}


def test_many_shards_send_to_groups_and_groups_to_partitions(tmp_path: Path) -> None:
    """Blocks that are sent: 40 shards that each send to 40 partitions would be 1,600."""
    made = [utterance(f"u{i}", f"s{i}", text=f"text number {i} and {i * i} alone") for i in range(1600)]
    utterances = write_utterances(tmp_path / "utterances", [made[i::40] for i in range(40)])
    before, p = EngineHere.blocks, DuplicatesParams(audio=False, text="any-speaker", min_text_chars=1)
    output = Artifact(tmp_path / "duplicates")
    manifest = run_stage(Duplicates(), p, {"utterances": utterances}, output, EngineHere(), work=tmp_path / "work")
    assert (manifest.shards, manifest.counts.kept) == (40, 1600)
    assert EngineHere.blocks - before == 7 + 40


def test_fingerprints_of_a_killed_run_are_not_made_again(
    corpus: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    run = (DuplicatesParams(partitions=2), {"utterances": corpus}, Artifact(tmp_path / "duplicates"), EngineHere())
    monkeypatch.setattr("megahour.select.duplicates.merge_partition", fails)
    with pytest.raises(KeyboardInterrupt):
        run_stage(Duplicates(), *run, work=tmp_path / "work")
    monkeypatch.undo()
    monkeypatch.setattr("megahour.select.prints.fingerprint", fails)
    assert run_stage(Duplicates(), *run, work=tmp_path / "work").summary["listed_audio"] >= 3


@pytest.mark.parametrize(("whose", "alike"), [("never", ""), ("same-speaker", "ab"), ("any-speaker", "abc")])
def test_texts_are_compared_within_or_across_speakers(
    whose: str, alike: str, tmp_path: Path, engine: LocalEngine
) -> None:
    rows = [utterance(name, SPEAKERS[name], text=text, loss=float(ord(name))) for name, text in SAID.items()]
    utterances = write_utterances(tmp_path / "utterances", [rows[:2], rows[2:]])
    p = DuplicatesParams.model_validate({"audio": False, "text": whose, "keep": "best"})
    output = Artifact(tmp_path / "duplicates")
    run_stage(Duplicates(), p, {"utterances": utterances}, output, engine)
    keys = {row["key"]: name for row, name in zip(rows, SAID, strict=True)}
    assert {keys[row["key"]] for row in listed(output)} == set(alike[1:]), "the one with the lowest loss stays"
    assert {row["kind"] for row in listed(output)} <= {"text"}


def test_select_leaves_listed_duplicates_out_and_counts_them(tmp_path: Path, engine: LocalEngine) -> None:
    rows = [utterance(name, SPEAKERS[name], text=text) for name, text in SAID.items()]
    utterances = write_utterances(tmp_path / "utterances", [rows])
    duplicates, selection = Artifact(tmp_path / "duplicates"), Artifact(tmp_path / "selection")
    run_stage(Duplicates(), DuplicatesParams(audio=False), {"utterances": utterances}, duplicates, engine)
    inputs = {"utterances": utterances, "duplicates": duplicates}
    p = SelectParams.model_validate({"sets": [{"name": "all"}]})
    counts = run_stage(Select(), p, inputs, selection, engine).counts
    assert (counts.kept, counts.dropped) == (5, {"duplicate": 1})
    twice = {row["key"] for row in listed(duplicates)}
    assert {row["key"] for row in listed(selection)} == {row["key"] for row in rows} - twice


def test_a_list_of_other_utterances_is_named(
    tmp_path: Path, engine: LocalEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """It would leave out none, without a word."""
    rows = [utterance(name, SPEAKERS[name], text=text) for name, text in SAID.items()]
    others = [utterance(f"other-{name}", SPEAKERS[name], text=text) for name, text in SAID.items()]
    duplicates, selection = Artifact(tmp_path / "duplicates"), Artifact(tmp_path / "selection")
    heard = {"utterances": write_utterances(tmp_path / "utterances", [rows])}
    run_stage(Duplicates(), DuplicatesParams(audio=False), heard, duplicates, engine)
    p = SelectParams.model_validate({"sets": [{"name": "all"}]})
    run_stage(Select(), p, {**heard, "duplicates": duplicates}, selection, engine)
    assert "is among these" not in caplog.text
    inputs = {"utterances": write_utterances(tmp_path / "others", [others]), "duplicates": duplicates}
    run_stage(Select(), p, inputs, selection, engine)
    assert "select: none of the 1 utterances" in caplog.text
    assert "give the list that was made of them" in caplog.text


def test_of_copies_with_one_key_and_of_spellings_of_one_speaker_one_stays(tmp_path: Path) -> None:
    """`combine` of artifacts that overlap makes such copies. A list of keys would leave out all of them."""
    rows = [utterance(name, "Voice 001", text=text) for name, text in SAID.items() if name in "ad"]
    again = [utterance(name, "voice-001", text=SAID[name]) for name in "ab"]
    utterances = write_utterances(tmp_path / "utterances", [rows, again])
    duplicates, selection = Artifact(tmp_path / "duplicates"), Artifact(tmp_path / "selection")
    run_stage(Duplicates(), DuplicatesParams(audio=False), {"utterances": utterances}, duplicates, EngineHere())
    assert {row["key"] == row["duplicate_of"] for row in listed(duplicates)} == {False}
    inputs = {"utterances": utterances, "duplicates": duplicates}
    p = SelectParams.model_validate({"sets": [{"name": "all"}]})
    counts = run_stage(Select(), p, inputs, selection, EngineHere()).counts
    kept = [row["key"] for row in listed(selection)]
    assert len(set(kept)) == len(kept) == counts.kept == 2
    assert rows[1]["key"] in kept


def test_select_filters_by_split_and_tier(tmp_path: Path, engine: LocalEngine) -> None:
    places = [("train", "clean"), ("train", "dirty"), ("dev", "clean"), ("train", "clean")]
    rows = [utterance(f"u{i}", f"s{i}", split=split, tier=tier) for i, (split, tier) in enumerate(places)]
    utterances, selection = write_utterances(tmp_path / "utterances", [rows]), Artifact(tmp_path / "selection")
    p = SelectParams.model_validate({"sets": [{"name": "all"}], "splits": ["train"], "tiers": ["clean"]})
    run_stage(Select(), p, {"utterances": utterances}, selection, engine)
    assert {row["key"] for row in listed(selection)} == {rows[0]["key"], rows[3]["key"]}


def test_of_a_chain_of_alike_utterances_one_always_stays(tmp_path: Path, engine: LocalEngine) -> None:
    """Each text is near the next one, the last far from the first."""
    words = [f"{a}{b}{a}{b}" for a in "bcdfg" for b in "aeiou"]
    texts = [" ".join(words[i : i + 18]) for i in range(8)]
    rows = [utterance(f"u{i}", "s", text=text) for i, text in enumerate(texts)]
    assert jaccard(shingles(texts[0]), shingles(texts[-1])) < 0.8 < jaccard(shingles(texts[0]), shingles(texts[1]))
    output = Artifact(tmp_path / "duplicates")
    utterances = write_utterances(tmp_path / "utterances", [rows[:4], rows[4:]])
    run_stage(Duplicates(), DuplicatesParams(audio=False, partitions=4), {"utterances": utterances}, output, engine)
    gone = {row["key"] for row in listed(output)}
    assert gone
    assert min(row["key"] for row in rows) not in gone


@given(st.text(max_size=60), st.text(max_size=60))
def test_similarity_of_texts_is_that_of_their_shingles(one: str, other: str) -> None:
    """Of any script. Texts of fewer than five characters are one shingle."""

    def plain(text: str) -> set[str]:
        return {text[i : i + 5] for i in range(max(1, len(text) - 4))}

    def padded(text: str) -> set[str]:
        return plain(text if len(text) >= 5 else text.ljust(5, "\0"))

    a, b = padded(one), padded(other)
    assert jaccard(shingles(one), shingles(other)) == pytest.approx(len(a & b) / len(a | b))


def test_unrelated_sound_differs_in_half_of_the_bits(spoken: dict[str, tuple[Sound, str]]) -> None:
    rng = np.random.default_rng(4)
    one, other = (fingerprint((3000 * rng.standard_normal(64_000)).astype(np.int16), RATE_HZ) for _ in range(2))
    share = 1 - np.bitwise_count(one.bits ^ other.bits).mean() / 32
    assert 0.45 < share < 0.55
    assert common_share(one, one, int(one.bits[50]), least=20)[0] == 1


def test_only_frames_that_sound_in_both_are_compared() -> None:
    """Of frames 1 to 3 of the one, which are 0 to 2 of the other, the last is quiet in one and has other bits."""
    one = Fingerprint(np.array([9, 5, 6, 7], np.uint32), np.array([True, True, True, False]))
    other = Fingerprint(np.array([5, 6, 0], np.uint32), np.array([True, True, True]))
    assert common_share(one, other, 5, least=2) == (1.0, 2)
    assert common_share(one, other, 5, least=3) == (0.0, 0)


def test_values_are_scattered_as_splitmix64_does() -> None:
    """The first numbers that it draws from the seed 0."""
    seeds = np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(z) for z in scattered(seeds)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


@pytest.mark.parametrize("samples", [0, 100, 1920, 2019])
def test_sound_below_two_frames_and_silence_have_nothing_to_meet_by(samples: int) -> None:
    assert not len(fingerprint(np.full(samples, 9, np.int16), 5000).bits)
    assert not fingerprint(np.zeros(80_000, np.int16), RATE_HZ).sounding.any()
