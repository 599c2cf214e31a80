"""Measures held-out data for a row of the curves: loss, error rates, and a voice's distance from recordings.

Character and word error rates are of greedy decoding, without a graph. A voice's sound (`speech`) also goes to
TensorBoard.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from megahour.batches.ahead import Ahead, Request
from megahour.batches.loader import Batch, Loader
from megahour.corpus.text.edit_distance import align
from megahour.learn.job import TrainingJob
from megahour.learn.step import Trainer
from megahour.models.build import build
from megahour.models.end_to_end import EndToEnd
from megahour.models.paths import TokenPath, best_path
from megahour.models.token_search import TransducerSearcher
from megahour.train.held_out.scores import SpeechScorer, columns_of, texts_of
from megahour.train.held_out.speech import DISTANCES, HeldOutSpeech
from megahour.train.meters import RunMeters, Sums
from megahour.units.tokens import MARK, spelled_words

LOG = logging.getLogger(__name__)


class Misspellings(NamedTuple):
    """Edits and reference lengths in characters and in words; correct and known tags."""

    characters: int = 0
    of_characters: int = 0
    words: int = 0
    of_words: int = 0
    tags: int = 0
    of_tags: int = 0

    def rates(self, *, phones: bool = False) -> dict[str, float]:
        """Columns of the curve. phones: whether the words are phones."""
        words = self.words / max(1, self.of_words)
        tags = {"held_out_tag_accuracy": self.tags / self.of_tags} if self.of_tags else {}
        if phones:
            return {"held_out_per": words, **tags}
        return {"held_out_cer": self.characters / max(1, self.of_characters), "held_out_wer": words, **tags}


def misspelled(module: nn.Module, tokens: Sequence[str], mark: str, batches: Iterable[Batch]) -> Misspellings:
    """Compare what `module` recognises in `batches` with their tokens. mark: the prefix of tokens that begin a word."""
    total = np.zeros(len(Misspellings._fields), dtype=np.int64)
    transducer = isinstance(module, EndToEnd) and "transducer" in module.weights
    for batch in batches:
        paths, tags = _decoded(module, batch)
        total[4:] += tags
        for path, text in zip(paths, _texts(batch, tokens, mark), strict=True):
            found = " ".join(word.text for word in spelled_words(path.labels, tokens, mark, merge=not transducer))
            characters, words = align(list(text), list(found)).errors, align(text.split(), found.split()).errors
            total[:4] += (characters, len(text), words, len(text.split()))
    return Misspellings(*total.tolist())


def _decoded(module: nn.Module, batch: Batch) -> tuple[list[TokenPath], tuple[int, int]]:
    """The best path of each utterance; the numbers of correct and of known tags."""
    device = next(module.parameters()).device
    features, lengths = (torch.from_numpy(array).to(device) for array in (batch.features, batch.lengths))
    rows = (batch.lengths // getattr(module, "subsample", 1)).tolist()
    with torch.inference_mode():
        if not isinstance(module, EndToEnd):
            return _best_paths(module(features, lengths), rows), (0, 0)
        encoded = module.encode(features, lengths).float()
        tags = _right_tags(module, encoded, batch) if module.tags else (0, 0)
        if "transducer" not in module.weights:
            return _best_paths(module.ctc(encoded), rows), tags
        each = [row[:n].cpu().numpy() for row, n in zip(encoded, rows, strict=True)]
        return TransducerSearcher(module, beams=1)(each), tags


def _best_paths(logits: Tensor, rows: Sequence[int]) -> list[TokenPath]:
    log_probs = logits.float().log_softmax(2).cpu().numpy()
    return [best_path(row[:n]) for row, n in zip(log_probs, rows, strict=True)]


def _right_tags(module: EndToEnd, encoded: Tensor, batch: Batch) -> tuple[int, int]:
    frames = torch.from_numpy(batch.lengths // module.subsample).to(encoded.device)
    found, wanted = module.tagged(encoded, frames).argmax(1).cpu().numpy(), batch.targets["tags"]
    return int((found == wanted).sum()), int((wanted >= 0).sum())


def _texts(batch: Batch, tokens: Sequence[str], mark: str) -> list[str]:
    spelled = zip(batch.targets["tokens"].tolist(), batch.targets["token_lengths"].tolist(), strict=True)
    return ["".join(tokens[token] for token in row[:n]).replace(mark or " ", " ").strip() for row, n in spelled]


Summed = Callable[[Sequence[float]], Sequence[float]]
"""Sums one worker's numbers over all workers that measure together."""


class HeldOut:
    """The held-out part of `job`, split over workers. rank: this worker's; 0 speaks for all.

    Raises ConfigError: the vocoder, the recogniser or a package that judges speech is missing (on worker 0).
    """

    def __init__(self, job: TrainingJob, trainer: Trainer, meters: RunMeters, rank: int) -> None:
        self._job, self._trainer, self._meters = job, trainer, meters
        p, self._in_one_piece = job.params, job.params.parallel.shard == 1
        self._always = p.criterion == "speech" and self._in_one_piece
        self._tokens: Sequence[str] = job.config.get("tokens", ()) if self._in_one_piece else ()
        self._speech: HeldOutSpeech | None = None
        if (p.criterion == "speech" or p.score_speech.every) and job.held_out is not None and rank == 0:
            wanted, texts = p.score_speech, partial(texts_of, job.held_out)
            scorer = SpeechScorer(wanted, texts, meters.alive) if wanted.every else None
            self._speech = HeldOutSpeech(job.config, job.vocoder, scorer, wanted.utterances)
        if p.score_speech.every and job.held_out is None and rank == 0:
            LOG.warning("no speech is scored: no utterance is held out by held_out %g", p.held_out)

    def columns(
        self, rank: int, size: int, summed: Summed, step: int, *, row: int = 0, last: bool = False
    ) -> dict[str, float | None]:
        """The held-out columns after `step`, for row number `row` of the curves, from 1 on, and for the `last` one.

        Error rates are only for models that are not split, and so is the speech of rows that are not scored.
        """
        if self._job.held_out is None:
            return {"held_out_loss": None, "held_out_accuracy": None}
        share = partial(_share, self._job.held_out, rank, size, self._job.params.prefetch)
        more: dict[str, float | None] = {}
        with self._meters.aside("evaluation_s"):
            loss, weight, correct = summed(self._trainer.evaluate(self._meters.alive(share())))
            if self._tokens:
                more.update(self._misspellings(share(), summed))
            every = self._job.params.score_speech.every
            scored = every > 0 and (last or row % every == 0)
            if scored or self._always:
                more = self._spoken(self._job.held_out, summed, step, scored)
        held = Sums(loss, round(weight), round(correct))
        return {"held_out_loss": held.mean_loss, "held_out_accuracy": held.accuracy, **more}

    def scored(self) -> bytes:
        """The table of what the voice said when it was scored last (`core.schemas.HELD_OUT_SPEECH`); b"" if never, or
        not by this worker."""
        return b"" if self._speech is None else self._speech.table

    def _misspellings(self, share: Iterator[Batch], summed: Summed) -> dict[str, float]:
        config, tokens = self._job.config, self._tokens
        phones, mark = config.get("phones", False), MARK if config.get("marks") else ""
        if phones:  # each counts as a word
            tokens, mark = [MARK + phone for phone in tokens], MARK
        own = misspelled(self._trainer.module, tokens, mark, self._meters.alive(share))
        return Misspellings(*map(round, summed(own))).rates(phones=phones)

    def _spoken(self, held_out: Loader, summed: Summed, step: int, scored: bool) -> dict[str, float | None]:
        """A voice's distances and, if it is `scored`, its scores; worker 0 speaks for all."""
        columns = [*DISTANCES, *(columns_of(self._job.params.score_speech) if scored else ())]
        module = self._trainer.module if self._in_one_piece else self._whole()
        means = [0.0] * len(columns)
        if self._speech is not None and module is not None:
            whole = _share(held_out, 0, 1, self._job.params.prefetch)
            means, sounds = self._speech.spoken(module, self._meters.alive(whole), scored=scored)
            self._meters.sounds(sounds, self._speech.rate_hz, step)
        found = zip(columns, summed(means), strict=True)
        return {name: value if math.isfinite(value) else None for name, value in found}

    def _whole(self) -> nn.Module | None:
        """A copy of a model that workers hold in parts, on the CPU, on worker 0. A collective call."""
        weights = self._trainer.model()
        if self._speech is None:
            return None
        module = build(self._job.config, seed=0)
        module.load_state_dict(weights)
        return module.eval()


def _share(loader: Loader, rank: int, size: int, prefetch: int) -> Iterator[Batch]:
    """Every `size`-th batch of a pass, starting at `rank`, with `prefetch` batches loaded ahead."""
    numbers = range(rank, len(loader.plan(0)), size)
    with Ahead(lambda number: Request(loader, 0, number, 0, 0), prefetch=prefetch, numbers=numbers) as ahead:
        yield from map(ahead.batch, numbers)
