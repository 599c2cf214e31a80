"""The inputs of an alignment: transcripts, the model's windows and posteriors, and stored files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from megahour.align.choice import LEAST_LINKS, Evidence, choose, evidence
from megahour.align.document import spell
from megahour.align.posteriors import PIECE_FRAMES, Heard, PosteriorWriter, in_bursts, listen, open_posteriors, spans
from megahour.align.shard import Recordings
from megahour.align.tables import Clock
from megahour.align.transcripts import COLUMNS, LATE_SHARE, LONGEST_WORD, Speller, by_recording, why_nothing
from megahour.core.errors import ConfigError, StoreError
from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import ALIGNED_SEGMENTS, ALIGNED_WORDS, CUES, HEARD
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.cut.aligned import Tables
from megahour.features.fbank import log_mel, with_mirrored_ends
from megahour.features.frontend import FrontEnd, Source
from megahour.serve.spec import bucket_frames

TOKENS = ["<blank>", " ", *"abcdefghijklmnopqrstuvwxyz'"]
RATE_HZ = 1000
Row = dict[str, Any]


def table(schema: pa.Schema, rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


# -- transcripts -----------------------------------------------------------------------------------------------------


def cue(number: int, text: str, start: int = -1, **values: Any) -> Row:
    return {"key": 1, "cue": number, "start_samples": start, "text": text, "transcript": 0, **values}


def read(*rows: Row, samples: int = 100_000, late_s: float = 0.0) -> Any:
    return Speller({"tokens": TOKENS}).read(table(CUES, list(rows)), RATE_HZ, samples, late_s)


def test_cues_are_sorted_into_recordings_and_candidates() -> None:
    rows = [cue(1, "b"), cue(0, "a"), cue(0, "c", key=3), cue(0, "d", transcript=1), cue(2, "e", transcript=None)]
    found = by_recording(table(CUES, rows).select(COLUMNS))
    assert {key: part["text"].to_pylist() for key, part in found.items()} == {1: ["a", "b", "e", "d"], 3: ["c"]}
    first, second = Speller({"tokens": TOKENS}).read(found[1], RATE_HZ, 100_000, 0.0)
    assert (first.number, first.document.words, second.number, second.document.words) == (0, ["a", "b", "e"], 1, ["d"])


@pytest.mark.parametrize("longest_first", [True, False])
def test_words_are_cut_as_the_model_says(longest_first: bool) -> None:
    """WordPiece takes ▁the first; the merges of this list come to ▁t and here."""
    tokens = ["<blank>", *"\u2581ther", "re", "he", "here", "\u2581t", "\u2581the"]
    config = {"tokens": tokens, "marks": True} | ({"longest_first": True} if longest_first else {})
    (read,) = Speller(config).read(table(CUES, [cue(0, "there")]), RATE_HZ, 100_000, 0.0)
    cut = [tokens[token] for token in read.document.tokens]
    assert cut == (["\u2581the", "re"] if longest_first else ["\u2581t", "here"])


def test_cues_far_beyond_the_end_are_left_out_and_drifting_ones_are_not() -> None:
    end = int(100_000 * (1 + LATE_SHARE))
    (found,) = read(cue(0, "a", 0), cue(1, "b", end), cue(2, "c", end + 1), cue(3, "d"))
    assert found.left_out == {2: "past-end"}
    assert found.document.words == ["a", "b", "d"]
    np.testing.assert_array_equal(found.document.hint_s, [0.0, end / RATE_HZ, np.nan])
    (patient,) = read(cue(0, "a", 120_000), cue(1, "b", 120_001), late_s=20.0)
    assert patient.left_out == {1: "past-end"}


def test_cues_that_cannot_be_spelled_are_named() -> None:
    longest = "a" * LONGEST_WORD
    (found,) = read(cue(0, longest), cue(1, longest + "a"), cue(2, "хлеб"), cue(3, "a хлеб 42"))
    assert found.left_out == {1: "endless-word", 2: "unspellable"}
    letters = LONGEST_WORD + 4 + 7
    assert found.known == pytest.approx((LONGEST_WORD + 1) / letters)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["abc"], ""),
        (["ab xx", "хлеб"], ""),
        (["abхл"], ""),  # half of it
        (["aхл"], "other-script"),
        (["хлеб"], "unspellable"),
        (["a" * 101, "b" * 101, "хлеб"], "endless-word"),
        ([""], "no-transcript"),
        ([], "no-transcript"),
    ],
)
def test_why_a_recording_has_nothing_to_align(texts: list[str], reason: str) -> None:
    assert why_nothing(read(*(cue(i, text) for i, text in enumerate(texts)))) == reason


def test_the_right_transcript_is_the_one_that_rises_in_the_reading() -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdefghij"), 200)) for _ in range(3)]
    documents = [spell([(0, np.nan, text)], TOKENS) for text in texts]
    heard = np.array([TOKENS.index(letter) for letter in texts[1]], np.int32)
    best, found = choose(documents, heard, 6)
    assert (best, found.kmers, found.rising, found.falling) == (1, 195, 195, 1)
    assert found.sure
    assert not evidence(documents[0], heard, 6).sure
    assert choose([documents[1], documents[1]], heard, 6)[0] == 0
    assert evidence(documents[0], heard[:0], 6) == Evidence(195, 0, 0)
    assert Evidence(0, 0, 0).score == 0.0
    assert [Evidence(100, LEAST_LINKS + 1, falling).sure for falling in (1, 2)] == [True, False]
    assert [Evidence(kmers, 4, 0).sure for kmers in (4000, 4001)] == [True, False]


# -- windows ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 300), st.integers(1, 20), st.integers(0, 9))
def test_windows_cover_every_frame_once_with_their_margins(frames: int, inner: int, margin: int) -> None:
    window = inner + 2 * margin
    found = list(spans(frames, window, margin))
    assert [left + at for left, first, last in found for at in range(first, last)] == list(range(frames))
    for left, first, last in found:
        assert left >= 0
        assert last <= min(window, frames)
        assert left + min(window, frames) <= frames
        assert first >= margin or left + first == 0
        assert min(window, frames) - last >= margin or left + last == frames
    assert all(a[0] < b[0] for a, b in pairwise(found))


def test_windows_are_made_a_burst_before_the_first_of_it_leaves() -> None:
    made: list[int] = []

    def windows() -> Iterator[tuple[int, np.ndarray]]:
        for key in range(5):
            made.append(key)
            yield key, np.zeros(1, np.float32)

    left = [(key, len(made)) for key, _ in in_bursts(windows(), 2)]
    assert left == [(0, 2), (1, 2), (2, 4), (3, 4), (4, 5)]


CONFIG = {
    **{"tokens": TOKENS, "outputs": len(TOKENS), "stack": 3, "stats": {"mean": [0.0] * 8, "inv_std": [1.0] * 8}},
    "audio": {"input": "stacked", "rate_hz": 16_000, "low_hz": 20.0, "high_hz": 0.0, "prior": 14.0},
}
WAVE = {"input": "waveform", "rate_hz": 16_000, "frame_shift_samples": 320, "mels": 64, "low_hz": 20.0, "high_hz": 0.0}
WAVES = {**CONFIG, "audio": {**WAVE, "scale": "float", "normalise": False}}


def test_a_front_end_is_what_the_model_says_of_itself() -> None:
    own = FrontEnd.of(CONFIG, window_s=30.72, margin_s=0.99)
    assert (own.rows, own.margin, own.units, own.mels, own.prior, own.scale) == (3, 33, len(TOKENS), 8, 14.0, 1.0)
    assert own.shift_s == pytest.approx(0.03)
    assert own.window <= 1024
    assert bucket_frames(own.window) == own.window
    wave = FrontEnd.of(WAVES, window_s=2.0, margin_s=0.5)
    assert (wave.rows, wave.shift_s, wave.margin, wave.scale, wave.normalise) == (1, 0.02, 25, 1 / 32768, False)
    assert (own.outputs(16_000, 16_000), wave.outputs(16_000, 16_000)) == (98 // 3, 50)  # of 98 frames of 10 ms
    assert (wave.outputs(16_000, 8_000), wave.outputs(319, 16_000)) == (100, 0)
    assert FrontEnd.of(WAVES, window_s=1.04, margin_s=0.5).window > 50
    with pytest.raises(ConfigError, match="leaves nothing"):
        FrontEnd.of(WAVES, window_s=1.0, margin_s=0.5)
    with pytest.raises(ConfigError):
        FrontEnd.of({**CONFIG, "outputs": 3}, window_s=30.0, margin_s=1.0)
    for lacking in ({**CONFIG, "audio": None}, {**CONFIG, "audio": {**WAVE, "rate_hz": 0}}, {"audio": WAVE}):
        with pytest.raises(ConfigError, match="does not describe its input"):
            FrontEnd.of(lacking, window_s=30.0, margin_s=1.0)
    with pytest.raises(ConfigError, match="ingest with rate_hz: 16000"):
        own.check_rate(8000)
    own.check_rate(16_000)
    wave.check_rate(8000)


@pytest.mark.parametrize("rate_hz", [8000, 11_025, 16_000, 22_050])
def test_times_do_not_drift_at_any_rate(rate_hz: int) -> None:
    """A frame is 220 samples at 22,050 Hz, not 220.5: at 10 ms each, an hour ended 8 s late."""
    audio = {**CONFIG["audio"], "rate_hz": rate_hz}
    hour = 3600 * rate_hz
    for config in ({**CONFIG, "audio": audio}, {**CONFIG, "audio": {**audio, "edges": "mirrored"}}):
        front = FrontEnd.of(config, tokens=False)
        clock, outputs = Clock(front.shift_s, rate_hz, 2 * hour, front.frame_s), front.outputs(hour, rate_hz)
        (end,) = clock.of_frames(np.array([outputs], np.int32))
        assert abs(end - hour) < 0.06 * rate_hz
        (frame,) = clock.energy_frames(np.array([outputs], np.int32))
        assert frame == outputs * front.rows
        assert clock.of_energy_frames(np.array([frame]))[0] == end


MIRRORED = {**CONFIG, "audio": {**CONFIG["audio"], "edges": "mirrored", "scale": "unit", "high_hz": -400.0}}


@pytest.mark.parametrize("samples", [0, 79, 90, 250, 16_037])
def test_a_stream_with_mirrored_ends_gives_what_the_whole_does(samples: int) -> None:
    front, rng = FrontEnd.of(MIRRORED, tokens=False), np.random.default_rng(samples)
    signal = rng.normal(0, 3000, samples).astype(np.int16).astype(np.float32)
    blocks = iter(np.split(signal, np.sort(rng.integers(0, samples + 1, 5))))
    rows = np.concatenate([np.zeros((0, 8)), *front.rows_of(blocks, [], mean=False)])
    whole = log_mel(with_mirrored_ends(signal / 32768, 16_000), 16_000, 8, 20.0, -400.0)
    np.testing.assert_allclose(rows, whole, atol=1e-5)
    assert len(rows) // 3 == front.outputs(samples, 16_000)


def test_each_window_has_its_own_mean_and_range_if_the_model_is_of_such() -> None:
    """All but the features' own scale is the same whatever the level of a window, and nothing is softer than 10 dB."""
    own = {**CONFIG, "audio": {**CONFIG["audio"], "mean": "utterance", "range_db": 10.0}}
    front, rng, windows = FrontEnd.of(own, window_s=2.0, margin_s=0.1), np.random.default_rng(1), []
    noise = (rng.normal(0, 300, 16_000 * 7) * np.repeat([1, 20, 1, 9, 1, 90, 1], 16_000)).astype(np.int16)

    class Listening(Counter):
        def infer(self, sequences: Any, **options: Any) -> Iterator[Any]:
            for key, features in sequences:
                windows.append(np.reshape(features, (-1, 8)))
                yield from super().infer([(key, features)], **options)

    (heard,) = listen([Source(len(noise), 16_000, lambda start, stop: noise[start:stop])], front, Listening())  # type: ignore[arg-type]
    assert len(windows) == len(list(spans(len(heard.posteriors), front.window, front.margin))) > 3
    for window in windows:
        np.testing.assert_allclose(window.mean(axis=0), 0, atol=0.02)
        below = np.percentile(window, 95, axis=0) - window.min(axis=0)
        np.testing.assert_allclose(below, np.log(10), atol=0.02)


class Counter:
    """A session whose model returns only the number of frames of each window, less `short`."""

    def __init__(self, units: int = len(TOKENS), short: int = 0, fails: tuple[int, ...] = ()) -> None:
        self.units, self.short, self.fails = units, short, fails

    def infer(self, sequences: Any, *, ordered: bool, window_frames: int, on_failure: Any) -> Iterator[Any]:
        for number, (key, features) in enumerate(sequences):
            if number in self.fails:
                on_failure(key, "boom")
                continue
            frames = np.arange(len(features) - self.short)[:, None] % 200
            yield key, {"costs": np.repeat(frames, self.units, axis=1).astype(np.uint8)}


def source(samples: int) -> Source:
    values = np.arange(samples, dtype=np.int64).astype(np.int16)
    return Source(samples, 16_000, lambda start, stop: values[start:stop])


def test_posteriors_of_windows_lie_where_their_frames_do() -> None:
    front = FrontEnd.of(WAVES, window_s=1.0, margin_s=0.1)
    frames = [3 * front.window, 7, 0]
    heard = list(listen([source(320 * n) for n in frames], front, Counter()))  # type: ignore[arg-type]
    assert [len(each.posteriors) for each in heard] == frames
    expected = np.concatenate([np.arange(first, last) for _, first, last in spans(frames[0], front.window, 5)])
    np.testing.assert_array_equal(heard[0].posteriors[:, 3], expected)
    np.testing.assert_array_equal(heard[1].posteriors[:, 0], np.arange(7))
    assert [each.failed for each in heard] == ["", "", ""]


def test_a_frame_less_at_the_end_is_silence_and_more_is_a_wrong_model() -> None:
    front = FrontEnd.of(WAVES, window_s=1.0, margin_s=0.1)
    (heard,) = listen([source(320 * 20)], front, Counter(short=2))  # type: ignore[arg-type]
    assert heard.posteriors[17].tolist() == [17] * len(TOKENS)
    assert heard.posteriors[18:].tolist() == [[0, *[255] * (len(TOKENS) - 1)]] * 2
    for frames, short in ((20, 6), (3 * front.window, 7)):
        with pytest.raises(ConfigError, match="are expected"):
            list(listen([source(320 * frames)], front, Counter(short=short)))  # type: ignore[arg-type]
    list(listen([source(320 * 3 * front.window)], front, Counter(short=2)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        list(listen([source(6400)], front, Counter(units=3)))  # type: ignore[arg-type]


def test_a_recording_that_fails_does_not_take_the_next_one_with_it() -> None:
    front = FrontEnd.of(WAVES, window_s=1.0, margin_s=0.1)
    heard = list(listen([source(6400), source(3200)], front, Counter(fails=(0,))))  # type: ignore[arg-type]
    assert [(each.failed, len(each.posteriors)) for each in heard] == [("boom", 0), ("", 10)]


# -- on disk ---------------------------------------------------------------------------------------------------------


def close(artifact: Artifact, out: ShardWriter) -> None:
    receipts = [out.commit()]
    finish(artifact, receipts, Manifest("made", 1, "f", content_digest(receipts, {}), {}, {}, 1, Counts(), {}))


def test_stored_posteriors_are_those_that_were_heard(tmp_path: Path) -> None:
    front, rng = FrontEnd.of(WAVES, window_s=1.0, margin_s=0.1), np.random.default_rng(0)
    made = {
        key: Heard(
            rng.integers(0, 256, (frames, front.units)).astype(np.uint8), np.arange(2 * frames, dtype=np.float32)
        )
        for key, frames in ((5, 2 * PIECE_FRAMES + 10), (2, 30), (9, 0))
    }
    artifact = Artifact(tmp_path / "alignment")
    with ShardWriter(artifact, 0, "f") as out:
        writer = PosteriorWriter(out.path(".posteriors.arrow"), front, "digest")
        for key, heard in made.items():
            writer.add(key, heard)
        writer.close()
        close(artifact, out)
    with open_posteriors(artifact, 0, front, "digest") as stored:
        assert stored(7) is None
        for key, heard in made.items():
            again = stored(key)
            assert again is not None
            np.testing.assert_array_equal(again.posteriors, heard.posteriors)
            np.testing.assert_array_equal(again.level, heard.level.astype(np.float16))
    pieces = pa.ipc.open_file(pa.memory_map(artifact.shard_path(0, ".posteriors.arrow"))).get_batch(0)
    assert pieces.column("frames").to_pylist() == [PIECE_FRAMES, PIECE_FRAMES, 10]
    assert [len(level) for level in pieces.column("level")] == [2 * PIECE_FRAMES, 2 * PIECE_FRAMES, 20]
    with (
        pytest.raises(ConfigError, match="aligner is digest for the posteriors, but other for the aligner"),
        open_posteriors(artifact, 0, front, "other"),
    ):
        pass
    with pytest.raises(ConfigError, match="write_posteriors: true"), open_posteriors(artifact, 1, front, "digest"):
        pass


def test_a_recording_is_read_from_where_it_lies_in_its_shard(tmp_path: Path) -> None:
    samples, artifact = np.arange(5000, dtype=np.int16), Artifact(tmp_path / "recordings")
    sound = io.BytesIO()
    soundfile.write(sound, samples, 16_000, format="FLAC")
    data = sound.getvalue()
    with ShardWriter(artifact, 0, "f") as out:
        with out.open(".tar") as file:
            file.write(b"x" * 100 + data + data)
        close(artifact, out)
    row = {"offset": 100, "size": len(data), "samples": 5000, "rate_hz": 16_000}
    with Recordings(artifact, 0) as recordings:
        one, other = recordings.source(row), recordings.source({**row, "offset": 100 + len(data)})
        assert (one.samples, one.rate_hz) == (5000, 16_000)
        for start, stop in ((0, 1000), (1000, 3000), (500, 700), (4000, 5000)):
            np.testing.assert_array_equal(one.read(start, stop), samples[start:stop])
            np.testing.assert_array_equal(other.read(start, stop), samples[start:stop])
        with pytest.raises(StoreError, match="ends after sample 5000, not 5001"):
            one.read(4000, 5001)
        with pytest.raises(StoreError, match="no FLAC at byte 0"):
            recordings.source({**row, "offset": 0}).read(0, 10)


def test_the_tables_of_a_shard_are_asked_for_one_recording_after_the_other() -> None:
    words = [
        {"key": key, "cue": c, "word": 0, "text": text, "start_samples": 10 * c, "end_samples": 9, "confidence": 0.5}
        for key, c, text in ((4, 0, "a"), (4, 2, "b"), (4, 2, "c"), (7, 0, "d"))
    ]
    segments = [
        {"key": 4, "cue": 0, "kept": True, "loss": 1.0},
        {"key": 4, "cue": 2, "kept": True, "loss": 4.0},
        {"key": 4, "cue": -1, "kept": False, "loss": 9.0},
        {"key": 8, "cue": 0, "kept": True, "loss": None},
    ]
    heard = [{"key": 4, "tokens": ["a", " ", "b"], "start_samples": [0, 5, 20]}]
    tables = Tables(
        table(ALIGNED_WORDS, words).select(
            ["key", "cue", "word", "text", "start_samples", "end_samples", "confidence"]
        ),
        table(ALIGNED_SEGMENTS, segments),
        table(HEARD, heard),
    )
    cues = [{"cue": 0, "speaker": "ann"}, {"cue": 2, "speaker": None}]
    four = tables.of(4, cues)
    assert (four.text.to_pylist(), four.cue.tolist(), four.start.tolist()) == (["a", "b", "c"], [0, 2, 2], [0, 20, 20])
    assert four.loss(0, 3) == 3.0  # the cue of two words counts twice
    assert four.loss(0, 1) == 1.0
    assert (four.speakers(0, 3), four.speakers(0, 1)) == ({"ann", ""}, {"ann"})
    assert [s["cue"] for s in four.segments] == [0, 2, -1]
    assert (four.reading.between(0, 6), four.reading.between(0, 21), four.reading.spaced) == ("a", "a b", True)
    assert tables.of(7, cues).text.to_pylist() == ["d"]
    nobody = tables.of(5, [])
    assert (len(nobody.cue), nobody.segments, nobody.reading.between(0, 99)) == (0, [], "")
    assert np.isnan(tables.of(7, cues).loss(0, 1))
