"""Runs a model on batches, with padding and shapes chosen for bit-exact results; shared by workers and `local`.

Why exact mode exists. A float sum depends on its order, and a BLAS chooses the order by the product's shape: the
same sequence gives results that differ in the last bits if its batch has other rows. Megahour promises equal bytes
for any number of workers, but which sequences share a batch depends on timing. So results must not depend on the batch.

Measurements (torch 2.13 with MKL 2024.2 and oneDNN 3.12 on an AVX-512 EPYC; float32 LSTM, GRU, Conv1d, Linear and
multi-head attention; F 64 and 192; 100, 256 and 320 units; T 9 to 512; B 1 to 64; one and two threads):

- with (B, T) fixed, neither the contents and lengths of the other rows nor zero rows change a row's bits;
- with (B, T) fixed, the row's position does not matter either, with one exception: a GRU with 5 rows on 2 threads,
  where threads get 3 and 2 rows and fewer than 4 rows use another kernel;
- B = 1 differs from B >= 2 for every recurrent and convolutional layer; GRU also differs below 4 rows. B = 4, 8, 16,
  32, 64 gave the same bits in every case; T mattered only for convolutions with B below 4;
- packed sequences (`pack_padded_sequence`) break all this: the number of active rows changes from step to step. A
  bidirectional model must reverse the valid part of each row by an index instead.

Therefore the padded length is a function of the sequence's length alone (`spec.bucket_frames`), B is a function of the
padded length alone and a multiple of 8 (`ModelSpec.rows`), and unused rows are zero. That needs no assumption beyond
the first two findings, which `Runner` checks on the real model before its first batch.

The price: an unfinished batch costs as much as a full one. Batches of 16 rows keep it small, and a CPU core computes
an LSTM no faster with more (`ModelSpec.exact_rows`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from megahour.serve.spec import ROW_QUANTUM, AcceleratorError, ModelSpec, bucket_frames
from megahour.serve.wire import Keyed, Outputs

PROBE_FRAMES = 64


class Runner:
    """A loaded model with its batch shapes. Not thread-safe."""

    def __init__(self, spec: ModelSpec, *, threads: int, device: str) -> None:
        self.spec, self.threads = spec, threads
        with torch_threads(threads):
            self.model = spec.load(threads=threads, device=device)
        self._checked = not spec.exact

    def __call__(self, sequences: Sequence[Keyed]) -> tuple[list[Outputs], int]:
        """Outputs of each sequence of one bucket, trimmed to its length, and the number of frames computed (B * T).

        Raises
        ------
        AcceleratorError: outputs have wrong shapes, or the model is not exact. Errors of the model pass through.
        """
        with torch_threads(self.threads):
            dim = sequences[0].features.shape[1]
            longest = max(s.frames for s in sequences)
            padded = bucket_frames(longest) if self.spec.exact else longest
            rows = self.spec.rows(padded) if self.spec.exact else len(sequences)
            if not self._checked:
                self._check_neighbours(2 * ROW_QUANTUM, min(padded, PROBE_FRAMES), dim)
            features, lengths = pad(sequences, rows, padded)
            outputs, out_lengths = self._call(features, lengths)
        trimmed = [{n: a[row, : out_lengths[row]] for n, a in outputs.items()} for row in range(len(sequences))]
        return trimmed, rows * padded

    def _call(self, features: np.ndarray, lengths: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        outputs, out_lengths = self.model(features, lengths)
        arrays = {name: np.asarray(array) for name, array in outputs.items()}
        for name, array in arrays.items():
            if array.ndim < 2 or array.shape[0] != len(lengths) or array.shape[1] < int(np.max(out_lengths)):
                expected = f"expected {len(lengths)} rows of at least {np.max(out_lengths)} frames"
                raise AcceleratorError(
                    f"output {name!r} has the shape {array.shape}; {expected}",
                    where=self.spec.loader,
                    remedy="return arrays (B, T', ...) with T' >= max(out_lengths)",
                )
        return arrays, np.asarray(out_lengths)

    def _check_neighbours(self, rows: int, padded: int, dim: int) -> None:
        """Check the first two measured properties (module docstring) on this model; AcceleratorError if they fail."""
        length = max(padded - 1, 1)
        probe = _noise(1, padded, dim, seed=0)
        probe[:, length:] = 0
        everywhere, out_lengths = self._call(np.repeat(probe, rows, axis=0), np.full(rows, length, np.int64))
        others = _noise(rows, padded, dim, seed=1)
        lengths = np.random.default_rng(2).integers(1, padded + 1, rows)
        others[np.arange(padded)[None] >= lengths[:, None]] = 0
        for row in (0, rows - 1):
            mixed, mixed_lengths = others.copy(), lengths.copy()
            mixed[row], mixed_lengths[row] = probe[0], length
            outputs, _ = self._call(mixed, mixed_lengths)
            for name, array in outputs.items():
                valid = slice(0, int(out_lengths[0]))
                if not _equal_rows(everywhere[name][:, valid], array[row, valid]):
                    raise AcceleratorError(
                        f"output {name!r} of a sequence depends on the other rows of its batch (B={rows}, T={padded})",
                        where=self.spec.loader,
                        remedy="do not pack sequences or normalise over the batch, or use exact=False",
                    )
        self._checked = True


def pad(sequences: Sequence[Keyed], rows: int, padded: int) -> tuple[np.ndarray, np.ndarray]:
    """features float32 (rows, padded, F), zero beyond each length, and lengths int64 (rows,), 1 for unused rows."""
    features = np.zeros((rows, padded, sequences[0].features.shape[1]), np.float32)
    lengths = np.ones(rows, np.int64)
    for row, sequence in enumerate(sequences):
        features[row, : sequence.frames] = sequence.features
        lengths[row] = sequence.frames
    return features, lengths


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set torch's number of threads within the block, if torch is loaded."""
    before = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else threads
    try:
        if before != threads:
            sys.modules["torch"].set_num_threads(threads)
        yield
    finally:
        if before != threads:
            sys.modules["torch"].set_num_threads(before)


def _noise(rows: int, padded: int, dim: int, *, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, padded, dim), np.float32)


def _equal_rows(rows: np.ndarray, one: np.ndarray) -> bool:
    # Compared as bytes: NaN equals NaN, and 0.0 differs from -0.0.
    reference = np.ascontiguousarray(one).tobytes()
    return all(np.ascontiguousarray(row).tobytes() == reference for row in rows)
