"""Generated recordings: reproducible audio, true times, and transcripts with the requested errors."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from megahour.core.store import Artifact
from megahour.corpus.generate.espeak import RATE_HZ, speak
from megahour.corpus.generate.params import SentencesParams, SynthesiseParams
from megahour.corpus.generate.sentences_stage import Sentences, even_parts
from megahour.corpus.generate.synthesise import synthesise, word_times
from megahour.corpus.generate.transcript_errors import NONE, Line, Mistakes, make_cues, to_srt, to_text, to_vtt
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage
from megahour.tts.synthesise_stage import Synthesise, recording


def made(engine: LocalEngine, tmp_path: Path, **values: object) -> Artifact:
    p = SynthesiseParams.model_validate({"hours": 0.02, "recording_minutes": 0.4, "shards": 2, "voices": 40, **values})
    output = Artifact(tmp_path / "raw")
    run_stage(Synthesise(), p, {}, output, engine, work=tmp_path / "work")
    return output


def members(artifact: Artifact, shard: int) -> dict[str, bytes]:
    with artifact.open(shard, ".tar") as file, tarfile.open(fileobj=file) as tar:
        return {item.name: tar.extractfile(item).read() for item in tar if item.isfile()}  # type: ignore[union-attr]


def test_every_spoken_word_has_a_time() -> None:
    said = "well, the head of the school said that it is in the middle of the week at seven p m."
    times = word_times(speak(said, "en-us", "m3"), said)
    assert [word for word, _, _ in times] == said.replace(",", "").replace(".", "").split()
    edges = [edge for _, start, end in times for edge in (start, end)]
    assert edges == sorted(edges)
    assert min(end - start for _, start, end in times) > 0.015 * RATE_HZ
    gaps = [after[1] - before[2] for before, after in itertools.pairwise(times)]
    assert gaps[0] > 0.05 * RATE_HZ  # the comma's pause belongs to no word
    assert sum(gap == 0 for gap in gaps) > len(gaps) / 2


def test_word_times_are_where_the_sound_is() -> None:
    recording = synthesise(5, minutes=0.3, conditions=["clean"])
    power = recording.samples.astype(np.float64) ** 2
    inside = np.zeros(len(power), bool)
    for word in recording.words:
        inside[word.start_samples : word.end_samples] = True
    assert power[inside].mean() > 100 * power[~inside].mean()
    for word in recording.words:
        assert power[word.start_samples : word.end_samples].mean() > power[~inside].mean(), word


@pytest.mark.parametrize(
    ("hours", "recordings", "minutes"), [(0.3, 90, 0.2), (1.9, 90, 1.9 / 1.5), (2.0, 48, 2.5), (5.6, 135, 2.5)]
)
def test_few_hours_are_of_all_voices_not_of_test_voices_alone(hours: float, recordings: int, minutes: float) -> None:
    """As in the recipe `demo`, where a run with `raw.hours=0.6` had no training speakers."""
    values = {"hours": hours, "recording_minutes": 2.5, "voices": 58, "test_voices": 8}
    p = SynthesiseParams.model_validate(values)
    assert (p.recordings(), p.minutes()) == (recordings, pytest.approx(minutes))
    spoken = [recording(p, number) for number in range(p.recordings())]
    assert sum(each["split"] == "test" for each in spoken) == 40
    assert sum(each["split"] == "train" for each in spoken) == recordings - 40


def test_a_recording_is_a_function_of_its_number() -> None:
    first, other = (synthesise(n, minutes=0.2, mistakes=Mistakes(), conditions=["far"]) for n in (3, 4))
    again = synthesise(3, minutes=0.2, mistakes=Mistakes(), conditions=["far"])
    assert np.array_equal(first.samples, again.samples)
    assert (first.transcript, first.words, first.info) == (again.transcript, again.words, again.info)
    assert first.info["speaker"] != other.info["speaker"]


def test_prompts_are_short_and_right() -> None:
    for index in range(4):
        prompt = synthesise(index, style="prompts", mistakes=Mistakes(missing=1.0), forms=["txt"])
        assert 2.0 <= len(prompt.samples) / prompt.rate_hz <= 7.0
        assert prompt.transcript.strip() == prompt.sentences[0].raw
        assert " ".join(word.text for word in prompt.words) == prompt.sentences[0].spoken


def test_the_raw_artifact(engine: LocalEngine, tmp_path: Path) -> None:
    artifact = made(engine, tmp_path, recording_minutes=0.2)
    assert artifact.summary["recordings"] == 6
    for stats in (receipt.stats for receipt in artifact.receipts()):
        assert stats["audio_s"] == pytest.approx(stats["audio_samples"] / 16_000, abs=0.01)
    for receipt in artifact.receipts():
        files = members(artifact, receipt.shard)
        truth = artifact.read_table(receipt.shard, ".truth.parquet").to_pylist()
        sentences = artifact.read_table(receipt.shard, ".sentences.parquet").to_pylist()
        for name in (entry.removesuffix(".flac") for entry in files if entry.endswith(".flac")):
            samples, rate_hz = soundfile.read(io.BytesIO(files[f"{name}.flac"]), dtype="int16")
            assert rate_hz == 16_000
            info = json.loads(files[f"{name}.json"])
            assert {"speaker", "language", "licence", "attribution", "condition", "created_s", "source"} == set(info)
            assert sum(f"{name}.{form}" in files for form in ("srt", "vtt", "txt")) == 1
            words = [row for row in truth if row["name"] == name]
            assert [row["word"] for row in words] == list(range(len(words)))
            assert 0 < words[0]["start_samples"] < words[-1]["end_samples"] <= len(samples)
            spoken = [row["spoken"] for row in sentences if row["name"] == name]
            assert " ".join(row["text"] for row in words) == " ".join(spoken)


def test_the_same_job_gives_the_same_bytes(engine: LocalEngine, tmp_path: Path) -> None:
    one, two = (made(engine, tmp_path / name, recording_minutes=0.2, hours=0.01) for name in ("one", "two"))
    assert [receipt.files for receipt in one.receipts()] == [receipt.files for receipt in two.receipts()]
    other = made(engine, tmp_path / "three", recording_minutes=0.2, hours=0.01, seed=1)
    assert one.manifest.digest != other.manifest.digest


def test_speakers_conditions_and_times_vary() -> None:
    infos = [synthesise(n, voices=4, minutes=0.05, conditions=["clean", "far"]).info for n in range(8)]
    assert len({info["speaker"] for info in infos}) == 4
    assert {(info["speaker"], info["condition"]) for info in infos} == {
        (f"voice-00{k}", condition) for k in range(4) for condition in ("clean", "far")
    }
    assert all(
        int(later["created_s"]) > int(first["created_s"]) for first, later in zip(infos[:4], infos[4:], strict=True)
    )


def lines(count: int) -> list[Line]:
    return [Line(f"Sentence number {i} has seven words here.", 5.0 * i, 5.0 * i + 4.0) for i in range(count)]


def test_no_mistakes_means_none() -> None:
    cues, present = make_cues(lines(20), iter(()), NONE, np.random.default_rng(0))
    assert [(cue.start_s, cue.end_s, cue.text) for cue in cues] == [(a, b, raw) for raw, a, b in lines(20)]
    assert all(present)


def test_mistakes_come_in_the_shares_asked_for() -> None:
    wrong = Mistakes(drift_s=4.0, jitter_s=0.2, missing=0.1, extra=0.1, misheard=0.05, markup=False)
    cues, present = make_cues(lines(1000), itertools.repeat("Never said."), wrong, np.random.default_rng(1))
    texts = [cue.text for cue in cues]
    assert 60 < texts.count("Never said.") < 140
    assert 60 < present.count(False) < 140
    kept = [line for line, there in zip(lines(1000), present, strict=True) if there]
    written = [cue for cue in cues if cue.text != "Never said."]
    changed = sum(cue.text != line.raw for cue, line in zip(written, kept, strict=True))
    assert 150 < changed < 450  # 1 - 0.95^7 = 30 %
    off_s = [cue.start_s - line.start_s for cue, line in zip(written, kept, strict=True)]
    assert 0.15 < np.std(np.diff(off_s)) / np.sqrt(2) < 0.25
    assert abs(np.mean(off_s[-50:])) <= 4.0 + 0.4
    assert [cue.start_s for cue in cues] == sorted(cue.start_s for cue in cues)


def test_forms_of_transcripts() -> None:
    cues, _ = make_cues(lines(8), iter(()), NONE, np.random.default_rng(0))
    srt, vtt, text = to_srt(cues, "Anna"), to_vtt(cues, "Anna"), to_text(cues, "Anna")
    assert srt.startswith("1\n00:00:00,000 --> 00:00:04,000\nANNA: Sentence number\n0 has")
    assert vtt.startswith("WEBVTT\n")
    assert "<v Anna>" in vtt
    assert "<i>" in vtt
    assert "00:00:05.000 --> 00:00:09.000" in vtt
    assert text.count("\n\n") == 1
    assert "-->" not in text


def test_sentence_shards(engine: LocalEngine, tmp_path: Path) -> None:
    output = Artifact(tmp_path / "text")
    p = SentencesParams(count=301, shards=3)
    run_stage(Sentences(), p, {}, output, engine, work=tmp_path / "work")
    shards = [output.read_bytes(shard, ".txt").decode().splitlines() for shard in range(3)]
    assert [len(shard) for shard in shards] == [100, 100, 101]
    assert shards[0] != shards[1]
    assert all(line == line.lower().strip() for shard in shards for line in shard)


@pytest.mark.parametrize(("count", "parts"), [(10, 3), (2, 5), (1, 1), (7, 7)])
def test_even_parts_cover_everything_once(count: int, parts: int) -> None:
    runs = even_parts(count, parts)
    assert [n for first, stop in runs for n in range(first, stop)] == list(range(count))
    assert all(stop > first for first, stop in runs)


def test_test_speakers_come_first_and_speak_in_every_condition() -> None:
    p = SynthesiseParams(voices=6, test_voices=2, conditions=["clean", "room", "far"], hours=1)
    test = [recording(p, number) for number in range(6)]
    assert {(who["index"] % 2, who["conditions"][0]) for who in test} == {
        (v, c) for v in (0, 1) for c in ("clean", "room", "far")
    }
    assert {who["split"] for who in test} == {"test"}
    later = [recording(p, number) for number in range(6, 20)]
    assert {who["first_voice"] + who["index"] % who["voices"] for who in later} == {2, 3, 4, 5}
    assert {who["split"] for who in later} == {"train"}
