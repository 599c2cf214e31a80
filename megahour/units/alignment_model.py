"""The model that aligns speech with its transcript.

It starts with phone Gaussians and gains decision trees, a feature transform and senone Gaussians.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.units.gmm import Mixtures
from megahour.units.hmm import BOUNDARY, SILENCE, StatePath, Units, viterbi
from megahour.units.paths import transcript_path
from megahour.units.sums import pack, unpack
from megahour.units.transforms import spliced
from megahour.units.utterances import Utterance

Triple = tuple[str, str, str]
PARTS = ("weights", "means", "variances")


@dataclass(frozen=True)
class Alignment:
    """The state path of an utterance, the phone slot of each frame (T,), and the log-likelihood as `score`."""

    path: StatePath
    slots: NDArray[np.int32]
    score: float

    def of_frames(self, of_slots: NDArray[Any]) -> NDArray[Any]:
        return of_slots[self.slots]


@dataclass(frozen=True)
class AlignmentModel:
    """The model after `done` passes. It aligns with senone Gaussians once it has them, until then with phone Gaussians.

    phones: without silence, which is the last class of `by_phone`. noises: those that may lie between words.
    cross_word: as in `Units`. transform: (D, S), applied to spliced cepstra; None uses cepstra with deltas.
    """

    done: int
    phones: tuple[str, ...]
    splice: int = 0
    by_phone: Mixtures | None = None
    units: Units | None = None
    transform: NDArray[np.float64] | None = None
    by_senone: Mixtures | None = None
    noises: tuple[str, ...] = ()
    cross_word: bool = False

    @cached_property
    def column(self) -> dict[str, int]:
        return {phone: i for i, phone in enumerate([*self.phones, SILENCE])}

    @cached_property
    def _names(self) -> list[str]:
        return [*self.phones, SILENCE, BOUNDARY]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._names)}

    def code(self, triple: Triple) -> int:
        """A number for (left, phone, right)."""
        left, phone, right = (self._numbers[name] for name in triple)
        return (left * len(self._names) + phone) * len(self._names) + right

    def triple(self, code: int) -> Triple:
        """Inverse of `code`."""
        rest, right = divmod(code, len(self._names))
        left, phone = divmod(rest, len(self._names))
        return self._names[left], self._names[phone], self._names[right]

    def observed(self, utterance: Utterance) -> NDArray[np.float32]:
        """(T, D) features for the trees and the senone Gaussians."""
        if self.transform is None:
            return utterance.with_differences
        return spliced(utterance.cepstra, self.splice) @ self.transform.T.astype(np.float32)

    def align(self, utterance: Utterance) -> Alignment | None:
        """The best alignment, or None if the utterance has too few frames for its words."""
        path = transcript_path(utterance.pronunciations, self.column, noises=self.noises, cross_word=self.cross_word)
        if len(utterance.features) < path.shortest:
            return None
        if self.by_senone is None:
            assert self.by_phone is not None
            model, x, emission = self.by_phone, utterance.with_differences, path.emission
        else:
            model, x, emission = self.by_senone, self.observed(utterance), self.senones(path)[path.slot]
        used, local = np.unique(emission, return_inverse=True)
        found = viterbi(model.scores(x, used), replace(path, emission=local.astype(np.int32)))
        return None if found is None else Alignment(path, *found)

    def senones(self, path: StatePath) -> NDArray[np.int32]:
        """(slots,) the senone of each phone slot."""
        assert self.units is not None
        return np.array([self.units.senone_of(*triple) for triple in path.slots], np.int32)

    def to_bytes(self) -> bytes:
        arrays = {} if self.transform is None else {"transform": self.transform}
        for name in ("by_phone", "by_senone"):
            model: Mixtures | None = getattr(self, name)
            if model is not None:
                arrays |= {f"{name}.{part}": getattr(model, part) for part in PARTS}
        units = self.units.to_json() if self.units else ""
        header: dict[str, Any] = {"done": self.done, "phones": self.phones, "splice": self.splice, "units": units}
        header |= {"noises": self.noises} if self.noises else {}
        return pack(header | ({"cross_word": True} if self.cross_word else {}), arrays)

    @staticmethod
    def from_bytes(data: bytes) -> AlignmentModel:
        header, arrays = unpack(data)
        models = {
            name: Mixtures(*(arrays[f"{name}.{part}"] for part in PARTS))
            for name in ("by_phone", "by_senone")
            if f"{name}.means" in arrays
        }
        units = Units.from_json(header["units"]) if header["units"] else None
        return AlignmentModel(
            done=header["done"],
            phones=tuple(header["phones"]),
            splice=header["splice"],
            by_phone=models.get("by_phone"),
            units=units,
            transform=arrays.get("transform"),
            by_senone=models.get("by_senone"),
            noises=tuple(header.get("noises", ())),
            cross_word=header.get("cross_word", False),
        )
