"""Runs the streaming graph of a bundle chunk by chunk, passing its state from one chunk to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError, StoreError
from megahour.features.params import UNIT
from megahour.foreign.onnx_session import in_a_line, limited_run, open_session
from megahour.transcribe.bundle import Bundle

Float32 = NDArray[np.float32]
MOST_STATE = 1 << 26  # values: 100 times more than any stream exported here has
CACHES = {"ctc": ("attn_cache", "conv_cache"), "transducer": ("attn_cache", "cnn_cache")}
LSTM_STATE = {"hidden": 3, "cell": 3, "heard": 2}  # and their dimensions
INT16 = -2 * math.log(UNIT)  # from log energies of samples in ±1 to those of int16, for CTC graphs


class ExportedEncoder:
    """The streaming graph, opened once for all streams.

    chunk, left: the exported chunk length in output frames, and left context in chunks. any_chunk: whether the graph
    also takes others. any_length: whether the last chunk may be shorter; only in old bundles it may not. ahead: output
    frames that come later than their own chunk.

    Raises
    ------
    ConfigError: the bundle has no such graph, or onnxruntime is missing. StoreError: the graph cannot be read.
    """

    def __init__(self, bundle: Bundle, precision: str, *, threads: int = 1) -> None:
        self.manifest, self.where = bundle.manifest, f"{bundle.url}: streaming, {precision}"
        data, settings = bundle.graph("streaming", precision), bundle.manifest.streaming
        try:
            self.lstm = settings is not None and settings.kind == "lstm"
            self.session = open_session(data, threads=threads, bounded=True)
            self._shapes = {each.name: each.shape for each in self.session.get_inputs()}
            self.any_length = not isinstance(self._shapes[self.main][1], int)
            fixed = [len(self._shapes[name]) for name in self.caches]
        except ConfigError:
            raise
        except KeyError as error:
            raise self.broken(f"it has no input {error}, which a stream of its kind takes") from None
        except Exception as error:  # onnxruntime's own classes share no base
            raise self.broken(f"it cannot be read: {in_a_line(error)}") from None
        if settings is None or fixed != (list(LSTM_STATE.values()) if self.lstm else [4, 4]):
            raise self.broken("it has no state")
        self.chunk, self.left, self.ahead = settings.chunk, settings.left, self.manifest.ahead
        self.any_chunk = self.lstm or self.manifest.criterion == "ctc"

    @property
    def main(self) -> str:
        """Name of the input for frames."""
        return "chunk" if self.manifest.streams_int16 else "x"

    @property
    def caches(self) -> Sequence[str]:
        return tuple(LSTM_STATE) if self.lstm else CACHES[self.manifest.criterion]

    def nothing(self, length: int) -> dict[str, Float32]:
        """The initial state of a stream whose attention sees `length` output frames before a chunk."""
        shapes = [list(self._shapes[name]) for name in self.caches]
        if self.manifest.streams_int16:
            shapes[0][2] = length
        elif not self.lstm:
            shapes[0][2] = shapes[1][2] = 1  # streams
        made = {}
        for name, shape in zip(self.caches, shapes, strict=True):
            if not all(isinstance(size, int) and size >= 0 for size in shape) or math.prod(shape) > MOST_STATE:
                raise self.broken(f"its {name} has the shape {shape}")
            made[name] = np.zeros(shape, np.float32)
        return made

    def broken(self, what: str) -> StoreError:
        return StoreError(
            f"the streaming graph: {what}", where=self.where, remedy="copy the bundle, or export it again"
        )


class ExportedStream:
    """One stream, with chunks of `chunk` output frames (the last may be shorter) and `left` chunks of left context.

    Raises StoreError if the graph fails to run or its output does not fit the bundle.
    """

    def __init__(self, encoder: ExportedEncoder, chunk: int, left: int) -> None:
        self._encoder, self._length, self._heard = encoder, chunk * left, 0
        self._state = encoder.nothing(self._length)
        self._skip = encoder.ahead

    def __call__(self, rows: Float32, *, last: bool = False) -> Float32:
        """Log posteriors (T', V), or a transducer's encoder output (T', D), for the next log-mel frames (T, F).

        With a look-ahead T' is less at first; the rest comes with the `last` frames.
        """
        manifest, ahead = self._encoder.manifest, self._encoder.ahead if last else 0
        if len(rows) < manifest.frames and not ahead:
            return np.zeros((0, manifest.columns), np.float32)
        scaled = manifest.streams_int16 and manifest.front_end.scale == "unit"
        output = self.run(self.feed(rows + np.float32(INT16) if scaled else rows, ahead))
        skipped = min(self._skip, len(output))
        self._skip -= skipped
        return output[skipped:]

    def feed(self, rows: Float32, ahead: int = 0) -> dict[str, Any]:
        """The graph's inputs for frames that are already in its scale. ahead: output frames past the end to add."""
        frames = self._encoder.manifest.frames
        chunk, rows = len(rows) // frames, rows[None, : len(rows) // frames * frames]
        if self._encoder.lstm:
            place: dict[str, Any] = {"given": np.array([chunk * frames])}
            rows = np.pad(rows, ((0, 0), (0, ahead * frames), (0, 0)))
        elif self._encoder.manifest.criterion == "transducer":
            place = {"processed_lens": np.array([self._heard * frames])}
        else:
            place = {"offset": np.array([self._length + self._heard])}
            place |= {"required_cache_size": np.array([self._length])}
            place |= {"attn_mask": np.ones((1, 1, self._length + chunk), bool)}
        return {self._encoder.main: np.ascontiguousarray(rows, np.float32), **place, **self._state}

    def run(self, feed: Mapping[str, Any]) -> Float32:
        """Run the graph on the inputs from `feed`, and advance the stream by one chunk."""
        encoder = self._encoder
        frames = feed[encoder.main].shape[1]
        try:
            with limited_run(frames / 100) as options:
                values, *after = encoder.session.run(None, dict(feed), options)
        except Exception as error:  # as above
            raise encoder.broken(f"it does not run: {in_a_line(error)}") from None
        rows = frames // encoder.manifest.frames
        wanted = [(1, rows, encoder.manifest.columns), *(each.shape for each in self._state.values())]
        if [each.shape for each in (values, *after)] != wanted:
            raise encoder.broken(
                f"its outputs have the shapes {[each.shape for each in (values, *after)]}, not {wanted}"
            )
        self._state, self._heard = dict(zip(self._state, after, strict=True)), self._heard + rows
        output: Float32 = values[0]
        return output
