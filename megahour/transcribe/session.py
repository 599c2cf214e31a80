"""Transcribes recordings and live streams: splits audio into pieces of speech and recognises their words."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megahour.core.errors import BadRecord
from megahour.decode.nbest import Text
from megahour.models.paths import NOT_FINITE
from megahour.transcribe.decoded import decoded_blocks, sample_blocks
from megahour.transcribe.latency import StreamMeter
from megahour.transcribe.live import checked_blocks, live_blocks
from megahour.transcribe.parts import parts_of
from megahour.transcribe.pieces import USUAL_ENDS, Cutter, EndRules, SpeechPiece
from megahour.transcribe.recogniser import Recogniser, TimedWord
from megahour.transcribe.streaming import (
    UPDATE_S,
    USUAL,
    ChunkLengths,
    PieceStream,
    StreamPlan,
    latency_of,
    plan_of,
)

LOG = logging.getLogger(__name__)
MOST_WHOLE_S = 600.0  # as `longest`; the memory of attention grows with the square of the length: an hour takes 16 GB

TagsOfPiece = tuple[int, NDArray[np.float32]]
"""Number of rows of a piece, and the probabilities of its tags (N,)."""


@dataclass(frozen=True)
class PieceTexts:
    """The most likely texts of a piece of speech, best first: each with its score in nats, and the score's parts.

    channel: as of `TimedWord`.
    """

    start_s: float
    end_s: float
    texts: tuple[Text, ...]
    channel: int = 0


@dataclass
class Transcription:
    """Words of a recording in order of time. lost: pieces for which the search failed, with the reason. remarks: what
    is wrong with audio that was read all the same.

    tag: the most likely tag, such as the `language`: its kind, its value, and its probability averaged over pieces,
    weighted by length. None if the model predicts no tags or hears in chunks. told: the tag given to the model.
    channel: of the file, the one that was heard, from 1; 0: the mix of all. nbest: of each piece, if the search's
    `nbest` asks for them and the model hears without `chunks`.
    """

    name: str
    model: str
    seconds: float = 0.0
    words: list[TimedWord] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    tag: tuple[str, str, float] | None = None
    told: str = ""
    remarks: list[str] = field(default_factory=list)
    channel: int = 0
    nbest: list[PieceTexts] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True)
class Update:
    """New `words` of a stream: of a finished piece if `final`, else of the current piece, which may still change."""

    words: list[TimedWord]
    final: bool


def transcribe(
    audio: str | os.PathLike[str] | BinaryIO | ArrayLike,
    model: str | Recogniser,
    *,
    rate_hz: int = 0,
    name: str = "",
    ends: EndRules = USUAL_ENDS,
    whole: bool = False,
    chunks: ChunkLengths | None = None,
    settled: bool = True,
    channel: int = 0,
    watch: Callable[[float], None] | None = None,
) -> Transcription:
    """Transcribe a recording of any length, in bounded memory.

    Parameters
    ----------
    audio: path of any audio or video file, an open binary file, or mono samples: int16 (T,), or floats in ±1 as
        soundfile and torchaudio return them. rate_hz: sampling rate of samples or of a file of raw 16-bit samples; 0
        for files with a header.
    model: a recogniser, or the address of a model or run from which to make one.
    ends: rules for where pieces of speech end.
    whole: treat the audio as one utterance, pauses included, as stage `decode` does. For at most ten minutes.
    chunks: limit the model's context to these chunks, as in a stream; None: it sees a whole piece.
    settled: start the running mean from the mean of the first piece, as if the speaker had said it before; False: from
        the prior, as in streams. Always False with `whole`, with `chunks`, and for models trained on utterances that
        start from the prior (`restarts` of stage `features`).
    channel: of a file, the number of the channel to transcribe, from 1; 0: the mix of all.
    watch: called with the seconds of audio read so far; an exception that it raises stops the transcription.

    Raises
    ------
    BadRecord: the audio cannot be decoded (with the reason) or has no such `channel`, or samples have several channels
    or an unknown scale.
    ConfigError: see `parts_of` and `Recogniser`; or the model cannot use `chunks` of that many milliseconds.

    Example: `transcribe("talk.mp3", "runs/demo").text`. For many recordings make a `Recogniser` once and pass it.
    """
    recogniser = model if isinstance(model, Recogniser) else Recogniser(parts_of(model))
    if isinstance(audio, str | os.PathLike):
        with Path(audio).open("rb") as file:
            return transcribe(
                file,
                recogniser,
                rate_hz=rate_hz,
                name=name or str(audio),
                ends=ends,
                whole=whole,
                chunks=chunks,
                settled=settled,
                channel=channel,
                watch=watch,
            )
    plan = None if chunks is None else plan_of(recogniser, chunks)
    result = Transcription(name, recogniser.parts.model_name, told=recogniser.told, channel=channel)
    counted = _counted(_blocks(audio, rate_hz, recogniser, result), result, recogniser, watch)
    heard: list[TagsOfPiece] = []
    if whole:
        if rows := list(recogniser.front.rows_of(_short(counted, result), [])):
            utterance = recogniser.front.less_own_mean(np.concatenate(rows))
            _recognise(recogniser, SpeechPiece(utterance, 0.0), plan, result, heard)
        return _tagged(recogniser, result, heard)
    # A model trained with the running means of speakers has hardly seen speech without one.
    settled = settled and chunks is None and not recogniser.front.restarts
    cutter = Cutter(recogniser.front, ends, settled=settled)
    for some in cutter.rows(counted):
        for piece in cutter.add(some):
            _recognise(recogniser, piece, plan, result, heard)
    if (held := cutter.rest()) is not None:
        _recognise(recogniser, held, plan, result, heard)
    return _tagged(recogniser, result, heard)


def stream(
    recogniser: Recogniser,
    blocks: Iterable[NDArray[np.float32]],
    *,
    ends: EndRules = USUAL_ENDS,
    chunks: ChunkLengths = USUAL,
    meter: StreamMeter | None = None,
) -> Iterator[Update]:
    """Yield the words of a stream as `blocks` of float32 samples arrive, in the int16 scale and at the model's rate.

    A model that carries its state (lstm, conformer) takes the audio in `chunks` and continues from its state. With any
    other model the current piece is recognised again every half second. Words that are not `final` may change. `meter`
    measures latency. Multiply samples in ±1 by 32,768: a stream cannot tell them from silence.

    Raises
    ------
    ConfigError: the model cannot use `chunks` of that many milliseconds.
    BadRecord: a block is no array (T,), or has a sample that is NaN or infinite.
    """
    cutter, plan = Cutter(recogniser.front, ends), plan_of(recogniser, chunks)
    under_way: _Carried | _Repeated = _Repeated(recogniser) if plan is None else _Carried(recogniser, plan)
    meter = meter or StreamMeter()
    meter.latency_ms = latency_of(plan)
    rate_hz = recogniser.front.rate_hz
    for rows in cutter.rows(meter.watch(checked_blocks(blocks, rate_hz), rate_hz)):
        for piece in cutter.add(rows):
            yield Update(under_way.ended(piece, meter.heard_s), final=True)
            meter.shown()
        if (words := under_way.grown(cutter, meter.heard_s)) is not None:
            now = cutter.end() if _wordless(words, cutter.certain, recogniser, ends) else None
            if now is None:
                yield Update(words, final=False)
            else:
                yield Update(under_way.ended(now, meter.heard_s), final=True)
            meter.shown()
    if (held := cutter.rest()) is not None:
        yield Update(under_way.ended(held, meter.heard_s), final=True)
        meter.shown()


def _wordless(words: list[TimedWord], piece: SpeechPiece | None, recogniser: Recogniser, ends: EndRules) -> bool:
    """Whether the current piece has `words`, but none in the last `ends.wordless` seconds."""
    if not (ends.wordless and words and piece is not None) or words[-1].end_s is None:
        return False
    return _end_s(recogniser, piece) - words[-1].end_s >= ends.wordless


def _end_s(recogniser: Recogniser, piece: SpeechPiece) -> float:
    return piece.start_s + len(piece.rows) * recogniser.front.shift_s / recogniser.joined


class _LostWords:
    """The words where a search fails: none. Once a stream, it warns of a model that gives no numbers."""

    def __init__(self) -> None:
        self._warned = False

    def words(self, error: ValueError) -> list[TimedWord]:
        """No words. Other errors are of paths that do not survive, as for noise that resembles no word."""
        if str(error) == NOT_FINITE and not self._warned:
            self._warned = True
            LOG.warning("words of the stream are lost: %s", error)
        return []


class _Repeated:
    """The current piece of a model without state: all of it is recognised again for every update."""

    def __init__(self, recogniser: Recogniser) -> None:
        self._recogniser, self._next_s, self._lost = recogniser, UPDATE_S, _LostWords()

    def grown(self, cutter: Cutter, heard_s: float) -> list[TimedWord] | None:
        """The piece's words, if half a second of audio has arrived since the last update."""
        if heard_s < self._next_s:
            return None
        self._next_s = heard_s + UPDATE_S
        held = cutter.held
        return None if held is None else self._words(held)

    def ended(self, piece: SpeechPiece, heard_s: float) -> list[TimedWord]:
        """The words of the finished piece."""
        self._next_s = heard_s + UPDATE_S
        return self._words(piece)

    def _words(self, piece: SpeechPiece) -> list[TimedWord]:
        try:
            return self._recogniser.words(piece.rows, piece.start_s)
        except ValueError as error:
            return self._lost.words(error)


class _Carried:
    """The current piece of a model that carries its state: nothing is computed twice."""

    def __init__(self, recogniser: Recogniser, plan: StreamPlan) -> None:
        self._recogniser, self._plan, self._lost = recogniser, plan, _LostWords()
        self._piece = PieceStream(recogniser, plan)

    def grown(self, cutter: Cutter, heard_s: float) -> list[TimedWord] | None:
        """The piece's words, if another chunk is complete."""
        certain = cutter.certain
        try:
            grew = certain is not None and self._piece.grow(certain)
            return self._piece.words(certain.start_s) if grew and certain is not None else None
        except ValueError as error:
            return self._lost.words(error)

    def ended(self, piece: SpeechPiece, heard_s: float) -> list[TimedWord]:
        """The words of the finished piece."""
        under_way, self._piece = self._piece, PieceStream(self._recogniser, self._plan)
        if under_way.heard > len(piece.rows):  # too long, so cut at its quietest place
            under_way = PieceStream(self._recogniser, self._plan)
        try:
            return under_way.ended(piece)
        except ValueError as error:
            return self._lost.words(error)


def _recognise(
    recogniser: Recogniser,
    piece: SpeechPiece,
    plan: StreamPlan | None,
    result: Transcription,
    heard: list[TagsOfPiece],
) -> None:
    """Add the piece's words and texts to `result` and, if the model predicts tags, their probabilities to `heard`."""
    try:
        if plan is None:
            words, tags, texts = recogniser.recognise(piece.rows, piece.start_s)
            result.words += words
            if tags is not None:
                heard.append((len(piece.rows), tags))
            if texts:
                result.nbest.append(PieceTexts(piece.start_s, _end_s(recogniser, piece), texts))
        else:
            result.words += PieceStream(recogniser, plan).ended(piece)
    except ValueError as error:
        result.lost.append(f"{piece.start_s:.2f} s: {error}")


def _tagged(recogniser: Recogniser, result: Transcription, heard: Sequence[TagsOfPiece]) -> Transcription:
    """`result` with the tag that is most likely over all pieces."""
    if heard:
        rows, tags = zip(*heard, strict=True)
        mean = np.average(tags, axis=0, weights=rows)
        result.tag = (recogniser.tag, recogniser.tags[int(mean.argmax())], round(float(mean.max()), 4))
    return result


def _blocks(
    audio: BinaryIO | ArrayLike, rate_hz: int, recogniser: Recogniser, into: Transcription
) -> Iterator[NDArray[np.float32]]:
    if not hasattr(audio, "read"):
        return sample_blocks(np.asarray(audio), rate_hz, recogniser.front.rate_hz)
    file = cast(BinaryIO, audio)
    if rate_hz:
        return live_blocks(file, recogniser.front.rate_hz, rate_hz, into.name or "samples")
    return decoded_blocks(file, recogniser.front.rate_hz, into.remarks, into.channel)


def _short(blocks: Iterator[NDArray[np.float32]], result: Transcription) -> Iterator[NDArray[np.float32]]:
    """`blocks`, unless they become too many for one utterance."""
    for block in blocks:
        if result.seconds > MOST_WHOLE_S:
            what = f"more than {MOST_WHOLE_S:g} s, the limit of one utterance; without --whole any length will do"
            raise BadRecord("too-long", what)
        yield block


def _counted(
    blocks: Iterator[NDArray[np.float32]],
    result: Transcription,
    recogniser: Recogniser,
    watch: Callable[[float], None] | None,
) -> Iterator[NDArray[np.float32]]:
    samples = 0
    for block in blocks:
        samples += len(block)
        result.seconds = round(samples / recogniser.front.rate_hz, 3)
        if watch is not None:
            watch(result.seconds)
        yield block
