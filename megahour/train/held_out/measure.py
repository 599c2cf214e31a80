"""Measures held-out data for a row of the curves: loss, error rates, and a voice's distance from recordings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from megahour.batches.ahead import Ahead, Request
from megahour.batches.loader import Batch, Loader
from megahour.train.held_out.misspellings import Misspellings, misspelled
from megahour.train.held_out.speech import HeldOutSpeech
from megahour.train.job import TrainingJob
from megahour.train.meters import RunMeters, Sums
from megahour.train.step import Trainer
from megahour.units.tokens import MARK

Summed = Callable[[Sequence[float]], Sequence[float]]
"""Sums one worker's numbers over all workers that measure together."""


class HeldOut:
    """The held-out part of `job`, split over `size` workers."""

    def __init__(self, job: TrainingJob, trainer: Trainer, meters: RunMeters) -> None:
        self._job, self._trainer, self._meters = job, trainer, meters
        in_one_piece = job.params.parallel.shard == 1
        speaks = in_one_piece and job.params.criterion == "speech" and job.held_out is not None
        self._speech = HeldOutSpeech(job.config) if speaks else None
        self._tokens: Sequence[str] = job.config.get("tokens", ()) if in_one_piece else ()

    def columns(self, rank: int, size: int, summed: Summed, step: int) -> dict[str, float | None]:
        """The held-out columns after `step`; error rates and a voice's distances only for models that are not split."""
        if self._job.held_out is None:
            return {"held_out_loss": None, "held_out_accuracy": None}
        share = partial(_share, self._job.held_out, rank, size, self._job.params.prefetch)
        more: dict[str, float | None] = {}
        with self._meters.aside("evaluation_s"):
            loss, weight, correct = summed(self._trainer.evaluate(self._meters.alive(share())))
            if self._tokens:
                more.update(self._misspellings(share(), summed))
            if self._speech is not None:
                more = self._spoken(self._speech, self._job.held_out, rank, summed, step)
        held = Sums(loss, round(weight), round(correct))
        return {"held_out_loss": held.mean_loss, "held_out_accuracy": held.accuracy, **more}

    def _misspellings(self, share: Iterator[Batch], summed: Summed) -> dict[str, float]:
        config, tokens = self._job.config, self._tokens
        phones, mark = config.get("phones", False), MARK if config.get("marks") else ""
        if phones:  # each counts as a word
            tokens, mark = [MARK + phone for phone in tokens], MARK
        own = misspelled(self._trainer.module, tokens, mark, self._meters.alive(share))
        return Misspellings(*map(round, summed(own))).rates(phones=phones)

    def _spoken(
        self, speech: HeldOutSpeech, held_out: Loader, rank: int, summed: Summed, step: int
    ) -> dict[str, float | None]:
        """A voice's distances; worker 0 speaks for all."""
        means = [0.0] * len(speech.columns)
        if rank == 0:
            whole = _share(held_out, 0, 1, self._job.params.prefetch)
            means, sounds = speech.spoken(self._trainer.module, self._meters.alive(whole))
            self._meters.sounds(sounds, speech.rate_hz, step)
        found = zip(speech.columns, summed(means), strict=True)
        return {name: value if math.isfinite(value) else None for name, value in found}


def _share(loader: Loader, rank: int, size: int, prefetch: int) -> Iterator[Batch]:
    """Every `size`-th batch of a pass, starting at `rank`, with `prefetch` batches loaded ahead."""
    numbers = range(rank, len(loader.plan(0)), size)
    with Ahead(lambda number: Request(loader, 0, number, 0, 0), prefetch=prefetch, numbers=numbers) as ahead:
        yield from map(ahead.batch, numbers)
