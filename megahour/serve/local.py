"""The client API without a service, for small jobs: the model runs in this process with the same batch shapes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Self, Unpack

from megahour.serve import wire
from megahour.serve.client import InferOptions, SendWindow, Sequences, as_sequence
from megahour.serve.compute import Runner
from megahour.serve.metrics import ServiceMeter
from megahour.serve.spec import ModelSpec, bucket_frames, explain, too_long

Result = tuple[wire.Keyed, wire.Outputs | str]


def serve_in_process(spec: ModelSpec, *, threads: int = 1, device: str = "cpu") -> LocalSession:
    """Load the model in this process. In exact mode the results equal the service's, bit for bit."""
    return LocalSession(spec, threads=threads, device=device)


class LocalSession:
    """A `client.Session` in this process, for one thread."""

    def __init__(self, spec: ModelSpec, *, threads: int, device: str) -> None:
        self._spec, self._meter = spec, ServiceMeter()
        self._runner = Runner(spec, threads=threads, device=device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def infer(self, sequences: Sequences, **options: Unpack[InferOptions]) -> Iterator[tuple[int, wire.Outputs]]:
        """See `client.Session.infer`."""
        window = SendWindow(**options)
        buckets: dict[tuple[int, int], list[wire.Keyed]] = {}
        for key, features in sequences:
            sequence = as_sequence(key, features)
            while buckets and not window.has_room(sequence.frames):
                yield from self._run(buckets.pop(self._fullest(buckets)), window)
            window.depart(sequence)
            if sequence.frames > self._spec.max_batch_frames:
                yield from window.arrive(key, too_long(sequence.frames, self._spec.max_batch_frames))
                continue
            shape = (bucket_frames(sequence.frames), sequence.features.shape[1])
            buckets.setdefault(shape, []).append(sequence)
            if len(buckets[shape]) == self._full_rows(shape):
                yield from self._run(buckets.pop(shape), window)
        for shape in sorted(buckets):
            yield from self._run(buckets[shape], window)

    def metrics(self) -> dict[str, float]:
        """See `client.Session.metrics`."""
        return self._meter.snapshot()

    def _full_rows(self, shape: tuple[int, int]) -> int:
        return self._spec.rows(shape[0])

    def _fullest(self, buckets: dict[tuple[int, int], list[wire.Keyed]]) -> tuple[int, int]:
        return max(buckets, key=lambda shape: len(buckets[shape]) / self._full_rows(shape))

    def _run(self, batch: list[wire.Keyed], window: SendWindow) -> Iterator[tuple[int, wire.Outputs]]:
        for sequence, result in self._compute(batch):
            yield from window.arrive(sequence.key, result)

    def _compute(self, batch: list[wire.Keyed]) -> list[Result]:
        started_s = time.monotonic()
        try:
            outputs, computed_frames = self._runner(batch)
        except Exception as error:  # the model's: the result of a single sequence; several are retried one by one
            if len(batch) > 1:
                return [result for sequence in batch for result in self._compute([sequence])]
            self._meter.failure(1)
            return [(batch[0], f"the model raised: {explain(error)}")]
        frames = sum(sequence.frames for sequence in batch)
        seconds = time.monotonic() - started_s
        rows = max(self._spec.rows(bucket_frames(max(sequence.frames for sequence in batch))), len(batch))
        self._meter.batch(
            sequences=len(batch), rows=rows, frames=frames, computed_frames=computed_frames, seconds=seconds
        )
        return list(zip(batch, outputs, strict=True))
