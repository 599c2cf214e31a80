"""Reads the labelled utterances of a features shard with their pronunciations and, where known, word times."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.units.gmm import cepstra, with_differences
from megahour.units.hmm import SILENCE
from megahour.units.lexicon import Lexicon
from megahour.units.noises import Noises

EDGE = 0.08  # share of an utterance taken as silence at each end where no word times are known
FRAMES_PER_HOUR = 360_000
LARGEST = 1e4  # limit of a feature value: log energies and cepstra are far below; larger ones could overflow the sums
Times = Mapping[int, tuple[NDArray[np.int64], NDArray[np.int64]]]  # key → start and end frames of its words


@dataclass(frozen=True)
class Utterance:
    """Features (T, F), words with the tags of noises between them, and the pronunciations of each."""

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
    """The features and lexicon to read from.

    unknown: the phone for words missing from the lexicon, or "". noises: phones of tags. selection: where tags are read
    if the features have none beside them.
    """

    features: Artifact
    lexicon: Lexicon
    unknown: str = ""
    noises: Noises = field(default_factory=Noises)
    selection: Artifact | None = None

    def utterances(
        self,
        shard: int,
        share: float,
        dropped: Dropped,
        texts: Mapping[int, str] | None = None,
        beside: int | None = None,
    ) -> Iterator[Utterance]:
        """The usable utterances of a shard, in order. With `share` < 1, a sample chosen by a hash of the key.

        texts: by key, to use instead of the texts of the features. beside: the matching shard of the selection.
        """
        dims = int(self.features.summary["mels"])  # the mean may be missing, as where only test sets have features
        table = self.features.read_table(shard, ".arrow", columns=["key", "text", "features"])
        tagged = self.noises.tagged(self.features, shard, self.selection, beside)
        columns = table["key"].to_pylist(), table["text"].to_pylist(), table["features"]
        for key, text, values in zip(*columns, strict=True):
            if share < 1 and zlib.crc32(key.to_bytes(8, "little", signed=True)) >= share * 2**32:
                continue
            words = ((text if texts is None else texts.get(key)) or "").split()
            flat = values.values.to_numpy()
            if reason := self._unfit(words, flat, dims, dropped):
                dropped.reasons[reason] += 1
                continue
            words = self.noises.placed(words, tagged.get(key))
            yield Utterance(key, flat.reshape(-1, dims), words, [self._ways(word) for word in words])

    def _ways(self, word: str) -> list[list[str]]:
        noise = self.noises.by_tag.get(word.casefold())
        return [[noise]] if noise else self.lexicon.get(word) or [[self.unknown]]

    def _unfit(self, words: Sequence[str], flat: NDArray[np.float16], dims: int, dropped: Dropped) -> str:
        """Why an utterance cannot be used; "" if it can."""
        if not words:
            return "no-text"
        missing = [w for w in words if w not in self.lexicon and w.casefold() not in self.noises.by_tag]
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


def first_labels(
    utterance: Utterance, times: Times, column: dict[str, int], noises: Collection[str] = ()
) -> NDArray[np.int32]:
    """(T,) phone columns of a flat start.

    The phones of a word share its time equally if word times are known, and the phones `noises` of tags fill the time
    to the words beside them; otherwise all phones share the utterance, less `EDGE` at each end. The rest is silence.
    """
    frames = len(utterance.features)
    labels = np.full(frames, column[SILENCE], np.int32)
    words = [variants[0] for variants in utterance.pronunciations]
    spoken = [index for index, word in enumerate(words) if word[0] not in noises]
    if utterance.key in times and len(times[utterance.key][0]) == len(spoken):
        known = {index: (int(a), int(b)) for index, a, b in zip(spoken, *times[utterance.key], strict=True)}
        spans = [(*_span(index, known, frames), word) for index, word in enumerate(words)]
    else:
        edge = int(frames * EDGE)
        spans = [(edge, frames - edge, [phone for word in words for phone in word])]
    for start, stop, word in spans:
        bounds = np.linspace(start, max(stop, start + 1), len(word) + 1).round().astype(int)
        for phone, a, b in zip(word, bounds[:-1], bounds[1:], strict=True):
            labels[max(a, 0) : max(b, 0)] = column[phone]
    return labels


def _span(index: int, known: Mapping[int, tuple[int, int]], frames: int) -> tuple[int, int]:
    """The frames of a word, or, where it is a tag, those between the words beside it."""
    if index in known:
        return known[index]
    before = [end for other, (_, end) in known.items() if other < index]
    after = [start for other, (start, _) in known.items() if other > index]
    return max(before, default=0), min(after, default=frames)


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
