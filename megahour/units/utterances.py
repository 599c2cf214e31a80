"""Reads the labelled utterances of a features shard with their pronunciations and, where known, word times."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.units.gmm import cepstra, with_differences
from megahour.units.hmm import SILENCE
from megahour.units.lexicon import Lexicon

EDGE = 0.08  # share of an utterance taken as silence at each end where no word times are known
FRAMES_PER_HOUR = 360_000
LARGEST = 1e4  # limit of a feature value: log energies and cepstra are far below; larger ones could overflow the sums
Times = Mapping[int, tuple[NDArray[np.int64], NDArray[np.int64]]]  # key → start and end frames of its words


@dataclass(frozen=True)
class Utterance:
    """Features (T, F), words, and the pronunciations of each word."""

    key: int
    features: NDArray[np.floating[Any]]
    words: list[str]
    pronunciations: list[list[list[str]]]

    @cached_property
    def cepstra(self) -> NDArray[np.float32]:
        """(T, D), with the mean removed."""
        return cepstra(self.features)

    @cached_property
    def with_differences(self) -> NDArray[np.float32]:
        """(T, 3 · D): cepstra with deltas and delta-deltas."""
        return with_differences(self.cepstra)


@dataclass
class Dropped:
    """Counts of utterances that cannot be aligned, by reason, and of words missing from the lexicon."""

    reasons: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class LabelledCorpus:
    """The features and lexicon to read from. `unknown`: the phone for words missing from the lexicon, or ""."""

    features: Artifact
    lexicon: Lexicon
    unknown: str = ""

    def utterances(
        self, shard: int, share: float, dropped: Dropped, texts: Mapping[int, str] | None = None
    ) -> Iterator[Utterance]:
        """The usable utterances of a shard, in order. With `share` < 1, a sample chosen by a hash of the key.

        texts: by key, to use instead of the texts of the features.
        """
        dims = int(self.features.summary["mels"])  # the mean may be missing, as where only test sets have features
        table = self.features.read_table(shard, ".arrow", columns=["key", "text", "features"])
        columns = table["key"].to_pylist(), table["text"].to_pylist(), table["features"]
        for key, text, values in zip(*columns, strict=True):
            if share < 1 and zlib.crc32(key.to_bytes(8, "little", signed=True)) >= share * 2**32:
                continue
            words = ((text if texts is None else texts.get(key)) or "").split()
            flat = values.values.to_numpy()
            if reason := self._unfit(words, flat, dims, dropped):
                dropped.reasons[reason] += 1
                continue
            spoken = [self.lexicon.get(word) or [[self.unknown]] for word in words]
            yield Utterance(key, flat.reshape(-1, dims), words, spoken)

    def _unfit(self, words: Sequence[str], flat: NDArray[np.float16], dims: int, dropped: Dropped) -> str:
        """Why an utterance cannot be used; "" if it can."""
        if not words:
            return "no-text"
        missing = [word for word in words if word not in self.lexicon]
        dropped.missing.update(missing)
        if missing and not self.unknown:
            return "no-pronunciation"
        if not flat.size or flat.size % dims:
            return "no-frames" if not flat.size else "wrong-dims"
        if not np.abs(flat).max() < LARGEST:  # also true for NaN
            return "not-finite"
        return ""


def labelled_frames(features: Artifact, sets: Sequence[str]) -> int:
    """The number of frames in the sets; 0 if they were not counted."""
    return sum(int(r.stats.get("frames", 0)) for r in features.each_receipt() if r.tags.get("set") in sets)


def share_of(frames: int, hours: float) -> float:
    """`hours` as a share of the labelled frames, at most 1; 1 if `hours` is 0 or frames were not counted."""
    return min(1.0, hours * FRAMES_PER_HOUR / frames) if hours and frames else 1.0


def first_labels(utterance: Utterance, times: Times, column: dict[str, int]) -> NDArray[np.int32]:
    """(T,) phone columns of a flat start.

    The phones of a word share its time equally if word times are known; otherwise all phones share the utterance, less
    `EDGE` at each end. The rest is silence.
    """
    frames = len(utterance.features)
    labels = np.full(frames, column[SILENCE], np.int32)
    words = [variants[0] for variants in utterance.pronunciations]
    if utterance.key in times and len(times[utterance.key][0]) == len(words):
        spans = [(int(a), int(b), word) for a, b, word in zip(*times[utterance.key], words, strict=True)]
    else:
        edge = int(frames * EDGE)
        spans = [(edge, frames - edge, [phone for word in words for phone in word])]
    for start, stop, word in spans:
        bounds = np.linspace(start, max(stop, start + 1), len(word) + 1).round().astype(int)
        for phone, a, b in zip(word, bounds[:-1], bounds[1:], strict=True):
            labels[max(a, 0) : max(b, 0)] = column[phone]
    return labels


def word_times(selection: Artifact, beside: int | None) -> Times:
    """The start and end of each word in 10 ms frames, by utterance key, where known.

    beside: the matching shard of the selection; None if there is none.
    """
    if beside is None:
        return {}
    times = {}
    columns = ["key", "rate_hz", "word_start_samples", "word_end_samples"]
    for row in selection.read_table(beside, columns=columns).to_pylist():
        shift = row["rate_hz"] // 100
        starts = np.array(row["word_start_samples"], np.int64)
        if (starts >= 0).all():  # -1: no word times, because the utterance was cut without an alignment
            ends = np.array(row["word_end_samples"], np.int64)
            times[row["key"]] = (starts // shift, ends // shift)
    return times
