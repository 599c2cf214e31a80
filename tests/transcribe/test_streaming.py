"""Streams of models that carry their state: the words of the whole, chunk by chunk, nothing computed twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import psutil
import pytest
from exported import model, voice
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.decode.params import DecodeParams
from megahour.export.model import TrainedModel
from megahour.models.conformer import AttentionContext, Conformer
from megahour.models.inference import Model
from megahour.models.paths import NOT_FINITE
from megahour.models.streaming import encoder_of
from megahour.transcribe.latency import StreamMeter
from megahour.transcribe.parts import RecogniserParts
from megahour.transcribe.pieces import EndRules
from megahour.transcribe.recogniser import Recogniser, TimedWord
from megahour.transcribe.session import Update, stream, transcribe
from megahour.transcribe.streaming import ChunkLengths, plan_of

TRANSDUCER = {"heads": {"transducer": 1.0}, "join": 24, "predictor": "lstm", "context": 2, "decoder_layers": 1}
SEARCH = DecodeParams(beams=2)
CHUNKS = ChunkLengths(ms=320, left=2)


def recogniser(
    folder: Path, kind: str, heads: Mapping[str, Any] = MappingProxyType({}), *, stack: int = 1
) -> Recogniser:
    return Recogniser(RecogniserParts(model(folder / "model", kind, heads=heads, stack=stack).url, search=SEARCH))


@pytest.fixture(
    params=[("conformer", {}), ("lstm", {}), ("conformer", TRANSDUCER), ("lstm", TRANSDUCER)],
    ids=["conformer", "lstm", "conformer-transducer", "lstm-transducer"],
)
def streaming(request: pytest.FixtureRequest, tmp_path: Path) -> Recogniser:
    return recogniser(tmp_path, *request.param)


def sound() -> NDArray[np.float32]:
    """Two stretches of speech: the first is longer than the longest piece of these tests."""
    return np.concatenate([voice(3.0, 1), np.zeros(8_000, np.int16), voice(1.0, 2)]).astype(np.float32)


def updates(heard: Recogniser, samples: NDArray[np.float32], block: int, **how: Any) -> list[Update]:
    blocks = (samples[start : start + block] for start in range(0, len(samples), block))
    return list(stream(heard, blocks, **how))


def texts(found: list[Update]) -> list[str]:
    return [" ".join(word.text for word in update.words) for update in found if update.final]


@pytest.mark.parametrize("longest_s", [20.0, 1.5])
def test_finals_are_the_offline_words_of_the_same_chunk_mask(streaming: Recogniser, longest_s: float) -> None:
    """Offline: whole pieces at once, a conformer's attention masked. Also where a piece is cut before its end."""
    assert isinstance(streaming.model, Model)
    encoder = encoder_of(streaming.model.module)
    plan = plan_of(streaming, CHUNKS)
    assert plan is not None
    if isinstance(encoder, Conformer):
        encoder.context = plan.context
    samples = sound()
    ends = EndRules(longest=longest_s)
    offline = transcribe(samples.astype(np.int16), streaming, rate_hz=8000, ends=ends, settled=False)
    found = updates(streaming, samples, 800, ends=ends, chunks=CHUNKS)
    words = [word for update in found if update.final for word in update.words]
    assert [word.text for word in words] == [word.text for word in offline.words]
    assert [(word.start_s, word.end_s) for word in words] == [(word.start_s, word.end_s) for word in offline.words]
    confidences = [word.confidence for word in offline.words]
    assert [word.confidence for word in words] == pytest.approx(confidences, abs=2e-3)
    assert len(offline.text) > 10
    in_chunks = transcribe(
        samples.astype(np.int16), streaming, rate_hz=8000, ends=EndRules(longest=longest_s), chunks=CHUNKS
    )
    assert in_chunks.text == offline.text


def test_the_model_hears_every_row_once(streaming: Recogniser, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way is kept and extended: rows of all steps together are those of the pieces."""
    assert isinstance(streaming.model, Model)
    encoder = encoder_of(streaming.model.module)
    assert encoder is not None
    steps, step = [], encoder.step

    def counted(features: Any, *given: Any, **how: Any) -> Any:
        steps.append(features.shape[1])
        return step(features, *given, **how)

    monkeypatch.setattr(encoder, "step", counted)
    samples = sound()
    found = updates(streaming, samples, 800, chunks=CHUNKS)
    assert sum(update.final for update in found) == 2
    assert sum(steps) <= len(samples) // 80
    assert max(steps) == 32
    partial, whole = sum(not update.final for update in found), sum(rows == 32 for rows in steps)
    assert 8 < partial <= whole <= partial + 2, "words after every chunk"


def test_words_that_are_there_stay_until_the_end_of_a_greedy_piece(tmp_path: Path) -> None:
    """Greedy CTC: partial results only grow, but for the last word, which may not be whole."""
    heard: list[str] = []
    for update in updates(recogniser(tmp_path, "conformer"), sound(), 400, chunks=CHUNKS):
        words = [word.text for word in update.words]
        assert words[: max(0, len(heard) - 1)] == heard[:-1]
        heard = [] if update.final else words


@pytest.mark.parametrize("block", [80, 3001, 10**6])
def test_finals_do_not_depend_on_blocks(tmp_path: Path, block: int) -> None:
    heard = recogniser(tmp_path, "conformer")
    assert texts(updates(heard, sound(), block)) == texts(updates(heard, sound(), 800))


def test_chunks_are_rounded_and_their_latency_is_stated(tmp_path: Path) -> None:
    conformer, lstm = recogniser(tmp_path / "a", "conformer"), recogniser(tmp_path / "b", "lstm")
    default, short, odd = (
        plan_of(conformer, ChunkLengths()),
        plan_of(lstm, ChunkLengths()),
        plan_of(conformer, ChunkLengths(90, 3)),
    )
    assert default is not None
    assert short is not None
    assert odd is not None
    assert (default.rows, default.context, default.latency_ms) == (64, AttentionContext(16, 4), 640 + 15)
    assert (short.rows, short.latency_ms) == (16, 160 + 3 * 10 + 15)  # three frames of look-ahead
    assert (odd.rows, odd.context) == (8, AttentionContext(2, 3))
    with pytest.raises(ConfigError, match=r"chunks of 15 ms\s.*use at least 40 ms, an output frame"):
        plan_of(conformer, ChunkLengths(15))


def test_delay_counts_from_when_the_audio_came_and_work_from_when_it_was_taken(tmp_path: Path) -> None:
    meter = StreamMeter(came=lambda: time.monotonic() - 5.0)  # blocks wait in a queue
    began_s = time.monotonic()
    found = updates(recogniser(tmp_path, "lstm"), sound(), 800, chunks=CHUNKS, meter=meter)
    took_s = time.monotonic() - began_s
    facts = meter.facts()
    assert len(meter.delays_s) == len(found)
    assert facts["seconds"] == 5.0
    assert 5000 <= facts["delay_ms"] <= facts["delay_p95_ms"] <= 1000 * (5 + took_s)
    assert 0 < facts["rtf"] <= took_s / 5.0
    assert facts["latency_ms"] == 320 + 3 * 10 + 15
    assert "5.0 s of audio, real-time factor 0." in meter.text() or took_s > 5


def test_a_model_that_does_not_stream_is_recognised_again_and_refuses_chunks(tmp_path: Path) -> None:
    heard = recogniser(tmp_path, "blstm")
    found = updates(heard, sound(), 800)
    assert texts(found) == [transcribe(sound().astype(np.int16), heard, rate_hz=8000).text] or len(texts(found)) == 2
    assert any(not update.final for update in found)
    with pytest.raises(ConfigError, match="chunks of 320 ms: a model of kind blstm does not work in chunks"):
        updates(heard, sound(), 800, chunks=CHUNKS)


def test_a_model_of_utterances_own_means_is_recognised_again_too(tmp_path: Path) -> None:
    """It could carry its state, but the mean of the piece is known at its end alone. `whole` has it at once."""
    written = Path(model(tmp_path / "model", "lstm").url) / "shards" / "00000.model.json"
    config = json.loads(written.read_text("utf-8"))
    written.write_text(json.dumps({**config, "audio": {**config["audio"], "mean": "utterance"}}), "utf-8")
    heard = Recogniser(RecogniserParts(str(tmp_path / "model"), search=SEARCH))
    assert plan_of(heard, ChunkLengths()) is None
    assert not all(update.final for update in updates(heard, sound(), 800))
    with pytest.raises(
        ConfigError, match=r"that subtracts the mean of whole utterances does not work in chunks\s.*leave them out"
    ):
        updates(heard, sound(), 800, chunks=CHUNKS)
    hiss = np.random.default_rng(1).normal(0, 0.02, 16_000).astype(np.float32)
    quiet, loud = (transcribe(gain * hiss, heard, rate_hz=8000, whole=True).text for gain in (1, 4))
    assert quiet == loud != ""
    assert not TrainedModel(RecogniserParts(str(tmp_path / "model"), search=SEARCH)).streams


@pytest.mark.parametrize("kind", ["conformer", "lstm"])
def test_memory_does_not_grow_with_the_recording(kind: str, tmp_path: Path) -> None:
    """Four minutes of speech without a pause; benchmarks/stream.md has three hours."""
    heard, minute = recogniser(tmp_path, kind, stack=3), voice(60.0, 4).astype(np.float32)
    minute[minute == 0] = 500.0
    resident: list[float] = []

    def blocks() -> Iterator[NDArray[np.float32]]:
        for _ in range(4):
            yield from np.split(minute, 60)
            resident.append(psutil.Process().memory_info().rss / 2**20)

    finals = sum(
        update.final for update in stream(heard, blocks(), ends=EndRules(longest=5.0), chunks=ChunkLengths(1280))
    )
    assert finals >= 4 * 60 // 5, "no pause ends a piece"
    assert resident[-1] - resident[0] < 3.0, resident


def test_a_piece_ends_in_noise_when_no_word_has_come(streaming: Recogniser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two words at its beginning, as it were, then noise that the level takes for speech."""
    spoken = [TimedWord("ten", 0.1, 0.4, 0.9), TimedWord("four", 0.5, 0.9, 0.9)]
    noise = voice(6.0, 1).astype(np.float32)
    monkeypatch.setattr(Recogniser, "words_of_tokens", lambda self, path, start_s: spoken if start_s < 0.9 else [])
    assert len(texts(updates(streaming, noise, 800, chunks=CHUNKS))) == 1
    found = updates(streaming, noise, 800, chunks=CHUNKS, ends=EndRules(wordless=1.2))
    assert texts(found)[0] == "ten four"
    assert len(texts(found)) == 2, "the rest is another piece, which has no word and ends with the audio"
    shown = next(number for number, update in enumerate(found) if update.final)
    assert shown < len(found) / 2


@pytest.mark.parametrize("kind", ["lstm", "blstm"])
def test_noise_that_no_model_can_read_gives_no_words(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning tells it from silence, once a stream."""
    heard = recogniser(tmp_path, kind)
    heard.front = replace(heard.front, stats=(np.full(16, np.nan, np.float32), np.ones(16, np.float32)))
    assert all(update.words == [] for update in updates(heard, sound(), 800))
    assert caplog.messages == [f"words of the stream are lost: {NOT_FINITE}"]
