"""Frames of spoken digits for `sync_convergence.py`: features, labels, augmentation and the chunks of every step.

41 classes: each digit is cut into four states of equal length, and what is 30 dB below the loudest frame before and
after the word is silence. Takes 0–4 of each speaker and digit are the test set, as the corpus's authors advise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor

from megahour.features.fbank import log_mel

MELS, STATES, CLASSES = 24, 4, 41
SILENCE = CLASSES - 1
CHUNK = 10  # frames that the network sees at once
TEST_TAKES = 5
COPIES = 8  # noisy copies of each file; gains are drawn anew in every step
DECIBEL = np.log(10) / 10  # in log power
Part = tuple[NDArray[np.float32], NDArray[np.int64]]
"""A file's features (T, 24) and labels (T,)."""
SILENT_DB, NOISE_DB, GAIN_DB = 30.0, (5.0, 30.0), 6.0  # below the peak; range of the signal-to-noise ratio; spread


@dataclass
class Frames:
    """Chunks of the training set (C, 10, 24) with labels (C, 10), and of the test set, normalised alike."""

    train: Tensor
    train_labels: Tensor
    test: Tensor  # (8, C, 10, 24): one noisy copy of all files after the other
    test_labels: Tensor
    spread: Tensor  # (24,) standard deviations that the features were divided by
    _orders: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def batch(self, step: int, workers: int, chunks: int, seed: int) -> tuple[Tensor, Tensor]:
        """(N, M, 10, 24) and (N, M, 10): `chunks` for each worker at `step`.

        One order of all chunks a pass, dealt out in turn: every trainer gets the same samples.
        """
        size = workers * chunks
        picked = torch.cat(list(self._places(step * size, size, seed)))
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        gain = torch.randn(size, 1, 1, generator=generator) * (GAIN_DB * DECIBEL)
        features = self.train[picked] + gain / self.spread
        return features.view(workers, chunks, CHUNK, MELS), self.train_labels[picked].view(workers, chunks, CHUNK)

    def _places(self, first: int, size: int, seed: int) -> Iterator[Tensor]:
        count = self.train.shape[0]
        while size:
            epoch, place = divmod(first, count)
            taken = min(size, count - place)
            yield self._order(seed, epoch)[place : place + taken]
            first, size = first + taken, size - taken

    def _order(self, seed: int, epoch: int) -> Tensor:
        if (seed, epoch) not in self._orders:
            self._orders.clear()
            generator = torch.Generator().manual_seed(seed * 7919 + epoch)
            self._orders[seed, epoch] = torch.randperm(self.train.shape[0], generator=generator)
        return self._orders[seed, epoch]


def load(folder: Path) -> Frames:
    """Frames of the Free Spoken Digit Dataset in `folder`: `{digit}_{speaker}_{take}.wav`."""
    rng, test_rng = np.random.default_rng(0), np.random.default_rng(1)
    training: list[Part] = []
    testing: list[list[Part]] = [[] for _ in range(COPIES)]
    for path in sorted(folder.glob("*.wav")):
        digit, _, take = path.stem.split("_")
        samples, rate_hz = soundfile.read(path, dtype="int16")
        labels = label(log_mel(samples, rate_hz, MELS), int(digit))
        for copy in range(COPIES):
            if int(take) >= TEST_TAKES:
                training.append((log_mel(noisy(samples, rng), rate_hz, MELS), labels))
            else:  # the first from the one generator, as all were when there was one
                drawn = noisy(samples, test_rng if copy else rng)
                testing[copy].append((log_mel(drawn, rate_hz, MELS), labels))
    if not training or not testing[0]:
        raise SystemExit(f"no training or no test files in {folder}: it wants {{digit}}_{{speaker}}_{{take}}.wav")
    train, train_labels = chunks(training)
    test, test_labels = (torch.stack(same) for same in zip(*map(chunks, testing), strict=True))
    mean, spread = train.mean((0, 1)), train.std((0, 1))
    return Frames((train - mean) / spread, train_labels, (test - mean) / spread, test_labels, spread)


def label(features: NDArray[np.float32], digit: int) -> NDArray[np.int64]:
    """(T, 24) of a clean file → (T,) classes: four equal states from the first to the last loud frame, else silence."""
    loudness = np.logaddexp.reduce(features, axis=1)
    loud = np.flatnonzero(loudness > loudness.max() - SILENT_DB * DECIBEL)
    first, last = int(loud[0]), int(loud[-1]) + 1
    classes = np.full(len(features), SILENCE)
    classes[first:last] = digit * STATES + np.arange(last - first) * STATES // (last - first)
    return classes


def noisy(samples: NDArray[np.int16], rng: np.random.Generator) -> NDArray[np.float32]:
    """The file in white noise, at a ratio drawn evenly in dB."""
    power = float(np.mean(samples.astype(np.float64) ** 2))
    noise = rng.normal(0, np.sqrt(power * 10 ** (-rng.uniform(*NOISE_DB) / 10)), samples.size)
    return (samples + noise).astype(np.float32)


def chunks(parts: list[Part]) -> tuple[Tensor, Tensor]:
    """All files in a row, cut into chunks of ten frames: (C, 10, 24), (C, 10)."""
    features = np.concatenate([features for features, _ in parts])
    labels = np.concatenate([labels for _, labels in parts])
    count = len(labels) // CHUNK
    shaped = torch.from_numpy(features[: count * CHUNK]).view(count, CHUNK, MELS)
    return shaped, torch.from_numpy(labels[: count * CHUNK]).view(count, CHUNK)
