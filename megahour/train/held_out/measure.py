"""Measures held-out data for a row of the curves: loss, error rates, and a voice's distance from recordings.

Character and word error rates are of greedy decoding, without a graph. Speech of a voice also goes to TensorBoard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from megahour.batches.ahead import Ahead, Request
from megahour.batches.loader import Batch, Loader
from megahour.corpus.text.edit_distance import align
from megahour.features.mel_spectrum import MelSpectrum
from megahour.models.end_to_end import EndToEnd
from megahour.models.griffin_lim import GriffinLim
from megahour.models.paths import TokenPath, best_path
from megahour.models.token_search import TransducerSearcher
from megahour.models.voice import VoiceModel
from megahour.train.job import TrainingJob
from megahour.train.meters import RunMeters, Sums
from megahour.train.step import Trainer
from megahour.units.tokens import MARK, spelled_words

if TYPE_CHECKING:
    from megahour.features.distortion import SpeechAnalysis


UTTERANCES = 4
LONGEST_FRAMES = 800
Sound = NDArray[np.float32]


class _Utterance(NamedTuple):
    """phones (1, U), voice and language (1,); sound: the recording through the vocoder; heard: its analysis."""

    key: int
    phones: Tensor
    voice: Tensor
    language: Tensor
    sound: Sound
    heard: SpeechAnalysis


class HeldOutSpeech:
    """Speaks the first held-out utterances of at most `LONGEST_FRAMES`, with predicted durations.

    config: of a model of kind voice. The distances (`features.distortion`) are from the recordings' mels through the
    same vocoder, so that they measure the model alone.
    """

    columns = ("held_out_mcd_db", "held_out_pitch_cents", "held_out_voicing")

    def __init__(self, config: dict[str, Any]) -> None:
        spectrum = MelSpectrum.from_config(config["spectrum"])
        self.rate_hz = spectrum.rate_hz
        self._vocoder = GriffinLim(spectrum)
        self._mean, self._inv_std = (torch.tensor(config["stats"][name]) for name in ("mean", "inv_std"))
        self._utterances: list[_Utterance] = []

    def spoken(self, module: nn.Module, batches: Iterable[Batch]) -> tuple[list[float], dict[str, Sound]]:
        """Means of `columns` over the utterances (NaN if there are none, or none is voiced), and sounds by name.

        batches: the held-out pass; only the first call reads from it.
        """
        from megahour.features.distortion import analyse, distortion

        assert isinstance(module, VoiceModel)
        first = not self._utterances
        if first:
            self._utterances = [each for each, _ in zip(self._chosen(batches), range(UTTERANCES), strict=False)]
        sounds: dict[str, Sound] = {}
        rows = []
        for number, each in enumerate(self._utterances):
            sound = self._sound(self._spoken(module, each, number))
            found = distortion(each.heard, analyse(sound, self.rate_hz))
            rows.append([found.mcd_db, found.pitch_cents, found.voicing])
            sounds[f"spoken/{each.key}"] = sound
            if first:
                sounds[f"natural/{each.key}"] = each.sound
        table = np.ma.masked_invalid(np.array(rows, np.float64).reshape(-1, len(self.columns)))
        means: list[float] = np.ma.filled(table.mean(axis=0).astype(np.float64), np.nan).tolist()
        return means, sounds

    def _spoken(self, module: VoiceModel, each: _Utterance, number: int) -> Tensor:
        """Normalised mels (T, M), with the same random draws each time."""
        device = module.symbol.weight.device
        generator = torch.Generator(device).manual_seed(number)
        given = (tensor.to(device) for tensor in (each.phones, each.voice, each.language))
        mels, _ = module.speak(*given, generator=generator)
        return mels[0].float().cpu()

    def _sound(self, mels: Tensor) -> Sound:
        """Samples in ±1 from normalised mels (T, M)."""
        with torch.no_grad():
            sound: Sound = self._vocoder((mels / self._inv_std + self._mean)[None])[0].numpy()
        return sound.clip(-1, 1)

    def _chosen(self, batches: Iterable[Batch]) -> Iterator[_Utterance]:
        from megahour.features.distortion import analyse

        for batch in batches:
            for b, (key, frames) in enumerate(zip(batch.keys, batch.lengths.tolist(), strict=True)):
                if frames > LONGEST_FRAMES:
                    continue
                phones = batch.targets["phones"][b]
                voice, language = (torch.from_numpy(batch.targets[name][b : b + 1]) for name in ("voices", "languages"))
                sound = self._sound(torch.from_numpy(np.array(batch.features[b, :frames], np.float32)))
                said = torch.from_numpy(phones[phones > 0])[None]
                yield _Utterance(int(key), said, voice, language, sound, analyse(sound, self.rate_hz))


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
