"""Recognises a piece of speech while it arrives, with a model that carries its state from chunk to chunk.

Nothing is computed twice: the encoder keeps its state and the search its hypotheses, and both continue with the next
chunk. The final words are the same as for the whole piece in the same chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megahour.core.errors import ConfigError
from megahour.features.frontend import Rows
from megahour.models.conformer import STREAMED, AttentionContext
from megahour.models.inference import Model
from megahour.models.streaming import ModelStream, encoder_of, look_ahead
from megahour.transcribe.exported_stream import ExportedEncoder, ExportedStream
from megahour.transcribe.pieces import SpeechPiece
from megahour.transcribe.recogniser import Float32, Recogniser, TimedWord

CHUNK_MS = {"conformer": 640, "lstm": 160}
"""Default chunk lengths. An LSTM gives the same output for any length: short chunks cost calls, not accuracy."""
WINDOW_MS, SHIFT_MS = 25, 10
UPDATE_S = 0.5  # audio between two partial results of a model that carries no state


@dataclass(frozen=True)
class ChunkLengths:
    """Chunks of a stream: `ms` of audio each (0: `CHUNK_MS`); a conformer also attends to `left` chunks before (None:
    4). For a bundle, 0 and None mean those of its export.
    """

    ms: int = 0
    left: int | None = None


USUAL = ChunkLengths()


@dataclass(frozen=True)
class StreamPlan:
    """`ChunkLengths` for one recogniser.

    rows: front-end rows per chunk. context: output frames per chunk, and the earlier chunks that attention sees.
    latency_ms: the longest time from a sound until all audio that its words need has arrived.
    """

    rows: int
    context: AttentionContext
    latency_ms: int


def plan_of(recogniser: Recogniser, chunks: ChunkLengths) -> StreamPlan | None:
    """The plan for `chunks`; None if the model carries no state, or needs the mean of whole utterances.

    Raises ConfigError if `chunks.ms` is given for a model without state, or is less than an output frame.
    """
    model = recogniser.model
    if (exported := recogniser.exported) is not None:
        return _plan_of_export(recogniser, exported, chunks)
    encoder = encoder_of(model.module) if isinstance(model, Model) else None
    kind = str(model.config.get("kind"))
    is_whole = recogniser.front.mean == "utterance"
    if encoder is None or is_whole:
        if not chunks.ms:
            return None
        which = f"of kind {kind}"
        remedy = "use an lstm or a conformer trained by megahour, or its bundle, exported by this version"
        if is_whole:
            which = "that subtracts the mean of whole utterances"
            remedy = (
                "leave them out: the current piece is recognised again every half second. Or train on `mean: causal`"
            )
        what = f"chunks of {chunks.ms} ms: a model {which} does not work in chunks"
        raise ConfigError(what, where=recogniser.parts.model, remedy=remedy)
    frame_ms = recogniser.front.shift_s * 1000
    frames = _frames(recogniser, chunks.ms) or max(1, round(CHUNK_MS[kind] / frame_ms))
    ahead = look_ahead(encoder) * frame_ms
    latency_ms = round(frames * frame_ms + ahead) + WINDOW_MS - SHIFT_MS
    left = STREAMED.left if chunks.left is None else chunks.left
    return StreamPlan(frames * recogniser.joined, AttentionContext(frames, left), latency_ms)


def latency_of(plan: StreamPlan | None) -> int:
    """That of a plan; without one the current piece is recognised again every `UPDATE_S`.

    >>> latency_of(None)
    500
    """
    return round(UPDATE_S * 1000) if plan is None else plan.latency_ms


def _frames(recogniser: Recogniser, ms: int) -> int:
    """Output frames in a chunk of `ms`; 0 for 0 ms. Raises ConfigError if `ms` is less than a frame."""
    frame_ms = recogniser.front.shift_s * 1000
    frames = round(ms / frame_ms)
    if ms and not frames:
        what, remedy = f"chunks of {ms} ms", f"use at least {frame_ms:.0f} ms, an output frame of the model"
        raise ConfigError(what, where=recogniser.parts.model, remedy=remedy)
    return frames


def _plan_of_export(recogniser: Recogniser, exported: ExportedEncoder, chunks: ChunkLengths) -> StreamPlan:
    """The export's own chunks or, for CTC, any others. Raises ConfigError for others with a transducer."""
    frame_ms = recogniser.front.shift_s * 1000
    frames = _frames(recogniser, chunks.ms) or exported.chunk
    if not exported.any_chunk and frames != exported.chunk:
        what = f"chunks of {chunks.ms} ms: the bundle's stream has chunks of {exported.chunk * frame_ms:.0f} ms"
        raise ConfigError(what, where=recogniser.parts.model, remedy=f"export it with --chunk {frames}")
    left = exported.left if chunks.left is None else chunks.left
    if not exported.any_chunk and left != exported.left:
        what = f"attention to {left} previous chunks: the bundle's stream sees {exported.left}"
        raise ConfigError(what, where=recogniser.parts.model, remedy=f"leave it out, or export with --left {left}")
    latency_ms = round((frames + exported.ahead) * frame_ms) + WINDOW_MS - SHIFT_MS
    return StreamPlan(frames * recogniser.joined, AttentionContext(frames, left), latency_ms)


class PieceStream:
    """One piece as it arrives: call `grow` with all its rows so far whenever there are more, then `ended`."""

    def __init__(self, recogniser: Recogniser, plan: StreamPlan) -> None:
        self._recogniser, self._plan = recogniser, plan
        self._model = _begun(recogniser, plan.context)
        self._graph = None if recogniser.searcher is None else recogniser.searcher.begin()
        self._tokens = recogniser.speller.begin()
        self._heard = 0
        self._outputs: list[Float32] = []  # kept for confidences, if there is a graph

    @property
    def heard(self) -> int:
        """Rows that the model has taken."""
        return self._heard

    def grow(self, piece: SpeechPiece) -> bool:
        """Process the new complete chunks of `piece`; returns whether there were any."""
        end = len(piece.rows) // self._plan.rows * self._plan.rows
        if end <= self._heard:
            return False
        for first in range(self._heard, end, self._plan.rows):
            self._take(piece.rows[first : first + self._plan.rows], last=False)
        return True

    def ended(self, piece: SpeechPiece) -> list[TimedWord]:
        """Process the rest of the finished `piece` and return its words. Raises like `words`."""
        self.grow(piece)
        self._take(piece.rows[self._heard :], last=True)
        return self.words(piece.start_s)

    def words(self, start_s: float) -> list[TimedWord]:
        """All words so far. Raises ValueError if no path survives the search."""
        if self._graph is None:
            return self._recogniser.words_of_tokens(self._tokens.path, start_s)
        if not self._outputs:
            return []
        return self._recogniser.words_of_graph(self._graph.best, np.concatenate(self._outputs), start_s)

    def _take(self, rows: Rows, *, last: bool) -> None:
        output = self._model(self._recogniser.features(rows), last=last)
        self._heard += len(rows)
        if not len(output):
            return
        if self._graph is None:
            self._tokens.advance(output)
        else:
            self._graph.advance(output)
            self._outputs.append(output)


def _begun(recogniser: Recogniser, context: AttentionContext) -> ModelStream | ExportedStream:
    if recogniser.exported is not None:
        return ExportedStream(recogniser.exported, context.chunk, context.left)
    assert isinstance(recogniser.model, Model)
    return ModelStream(recogniser.model, context)
