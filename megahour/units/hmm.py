"""Hidden Markov units: senones of triphones, and exact Viterbi alignment of a transcript.

One state per phone in its context (Amazon paper, II-B: "low frame rate single state triphone units"). A word's first
and last phones have the context `#`, so that a lexicon maps words to senones without looking at neighbouring words; or,
with `cross_word`, the phones of the words beside them, and `#` next to pauses.
Alignment at 10 ms uses three tied states per phone: a phone lasts at least 30 ms, one frame of the low-rate model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled
from megahour.core.errors import StageError

if TYPE_CHECKING:
    from megahour.core.store import Artifact

BOUNDARY = "#"
SILENCE = "SIL"
MIN_FRAMES = 3  # shortest phone, in 10 ms frames
NO_PATH = -1e30
MOST_POINTERS = 2**24  # of states times frames, that `viterbi` keeps at a time
PRIOR_FLOOR = 1e-5
"""Floor of the priors. Without it a rare senone would win wherever the model is unsure, since scores are divided by
priors."""


@dataclass(frozen=True)
class Units:
    """The phones, a decision tree for each, and the senones at its leaves.

    `trees[phone]` is nested: ``{"leaf": senone}`` or ``{"side": "left"|"right", "phones": [...], "yes": …, "no": …}``.
    `priors` are the senones' shares of the aligned frames. `noises` has the phone of each tag for noise: like
    silence, these phones lie between words. `cross_word`: contexts reach across words.
    """

    phones: tuple[str, ...]
    senones: tuple[str, ...]
    silence: int
    priors: tuple[float, ...]
    trees: dict[str, dict[str, Any]]
    noises: dict[str, str] = field(default_factory=dict)
    cross_word: bool = False

    @property
    def size(self) -> int:
        return len(self.senones)

    @property
    def noise_phones(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.noises.values())))

    @property
    def pauses(self) -> tuple[int, ...]:
        """The senones between words: silence, then each noise."""
        return (self.silence, *(self.senone_of(BOUNDARY, noise, BOUNDARY) for noise in self.noise_phones))

    def senone_of(self, left: str, phone: str, right: str) -> int:
        """The senone of a phone in its context. Raises KeyError for an unknown phone."""
        if phone == SILENCE:
            return self.silence
        node = self.trees[phone]
        while "leaf" not in node:
            context = left if node["side"] == "left" else right
            node = node["yes"] if context in node["phones"] else node["no"]
        return int(node["leaf"])

    def senones_of(self, pronunciation: Sequence[str]) -> list[int]:
        """One senone for each phone of a word between pauses."""
        padded = [BOUNDARY, *pronunciation, BOUNDARY]
        return [self.senone_of(*padded[i : i + 3]) for i in range(len(pronunciation))]

    def spellings(self, pronunciation: Sequence[str]) -> list[list[int]]:
        """The `senones_of` a word; with `cross_word` one spelling for each that neighbouring words can cause."""
        within = self.senones_of(pronunciation)
        if not self.cross_word:
            return [within]
        around = [BOUNDARY, *(phone for phone in self.phones if phone not in self.noise_phones)]
        if len(pronunciation) == 1:
            alone = (self.senone_of(left, pronunciation[0], right) for left in around for right in around)
            return [[senone] for senone in dict.fromkeys(alone)]
        firsts = dict.fromkeys(self.senone_of(left, pronunciation[0], pronunciation[1]) for left in around)
        lasts = dict.fromkeys(self.senone_of(pronunciation[-2], pronunciation[-1], right) for right in around)
        return [[first, *within[1:-1], last] for first in firsts for last in lasts]

    def with_frames(self, frames: NDArray[Any]) -> Units:
        """A copy with priors from the frame counts (senones,) of an alignment."""
        shares = np.maximum(np.asarray(frames, np.float64), 1.0)
        return replace(self, priors=tuple(float(value) for value in shares / shares.sum()))

    def to_json(self) -> str:
        fields = {name: value for name, value in vars(self).items() if name not in ("noises", "cross_word") or value}
        return json.dumps({"format": 1, **fields}, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Units:
        data = json.loads(text)
        return Units(
            phones=tuple(data["phones"]),
            senones=tuple(data["senones"]),
            silence=int(data["silence"]),
            priors=tuple(data["priors"]),
            trees=data["trees"],
            noises=data.get("noises", {}),
            cross_word=data.get("cross_word", False),
        )


def read_units(artifact: Artifact) -> Units:
    """The units of a *units* artifact, with priors over its whole alignment.

    Raises
    ------
    StageError: the priors are not one finite share for each senone.
    """
    units = Units.from_json(artifact.read_bytes(0, ".units.json").decode())
    if priors := artifact.summary.get("priors"):  # artifacts of version 2 of the stage keep them in the file instead
        units = replace(units, priors=tuple(priors))
    if not all(math.isfinite(prior) and prior >= 0 for prior in units.priors) or len(units.priors) != units.size:
        what = f"{len(units.priors)} priors, {units.size} senones in the units"
        raise StageError(what, where=artifact.url, remedy="make them again")
    return units


@dataclass(frozen=True)
class StatePath:
    """A transcript as a graph of HMM states, made by `paths.transcript_path`.

    For each state, `emission` (S,) is its column in the scores, `loops` (S,) tells whether it has a self-loop, and
    `slot` (S,) is its phone slot. The predecessors of state s are `before[first[s]:first[s+1]]`, where −1 is the start.
    The path may end in a `final` state. For each slot, `slots` has the triple (left, phone, right), and `variants` the
    indices of the word and of its pronunciation; (−1, −1) for silence and for noise that no tag asks for. `shortest` is
    the smallest number of frames that a path needs.
    """

    emission: NDArray[np.int32]
    loops: NDArray[np.bool_]
    slot: NDArray[np.int32]
    first: NDArray[np.int32]
    before: NDArray[np.int32]
    final: NDArray[np.int32]
    slots: tuple[tuple[str, str, str], ...]
    variants: tuple[tuple[int, int], ...]
    shortest: int


def viterbi(scores: NDArray[np.float32], path: StatePath) -> tuple[NDArray[np.int32], float] | None:
    """The best state sequence, as the slot of each frame (T,), and its score. None if no path fits into T frames.

    `scores` (T, columns) are log-likelihoods. The search is exact: there is no pruning. Of long utterances it keeps
    back-pointers for one block of frames at a time, 64 MB, and searches each block twice.
    """
    states, score = _viterbi(
        np.ascontiguousarray(scores, dtype=np.float32),
        _Arcs(path.emission, path.loops, path.first, path.before),
        path.final,
        max(1, MOST_POINTERS // path.emission.size),
    )
    return None if score <= NO_PATH / 2 else (path.slot[states], float(score))


class _Arcs(NamedTuple):
    """The fields of a `StatePath` that its search follows."""

    emission: NDArray[np.int32]
    loops: NDArray[np.bool_]
    first: NDArray[np.int32]
    before: NDArray[np.int32]


@compiled
def _viterbi(
    scores: NDArray[np.float32],
    arcs: _Arcs,
    final: NDArray[np.int32],
    block: int,
) -> tuple[NDArray[np.int32], float]:
    frames, states = scores.shape[0], arcs.emission.size
    blocks = (frames + block - 1) // block
    back = np.empty((min(block, frames), states), np.int32)
    entries = np.full((blocks + 1, states), NO_PATH)  # what a path scores before each block
    for k in range(blocks):
        _search_block(scores, arcs, k * block, entries[k], entries[k + 1], back)
    answer = np.empty(frames, np.int32)
    state, score = -1, NO_PATH
    for s in final:
        if entries[blocks, s] > score:
            state, score = s, entries[blocks, s]
    if state >= 0:
        for k in range(blocks - 1, -1, -1):
            if k < blocks - 1:
                _search_block(scores, arcs, k * block, entries[k], entries[k + 1], back)
            for t in range(min(frames, (k + 1) * block) - 1, k * block - 1, -1):
                answer[t] = state
                state = back[t - k * block, state]
    return answer, score


@compiled
def _search_block(
    scores: NDArray[np.float32],
    arcs: _Arcs,
    start: int,
    entry: NDArray[np.float64],
    leave: NDArray[np.float64],
    back: NDArray[np.int32],
) -> None:
    """Search the frames from `start` that `back` has rows for. Writes `leave`, the scores after them, and `back`."""
    emission, loops, first, before = arcs
    old, new = entry.copy(), np.empty_like(entry)
    for t in range(start, min(scores.shape[0], start + back.shape[0])):
        for s in range(emission.size):
            best, source = NO_PATH, -1
            if t > 0 and loops[s]:
                best, source = old[s], s
            for i in range(first[s], first[s + 1]):
                b = before[i]
                value = NO_PATH
                if b >= 0:
                    if t > 0:
                        value = old[b]
                elif t == 0:
                    value = 0.0
                if value > best:
                    best, source = value, b
            new[s] = best + scores[t, emission[s]] if best > NO_PATH / 2 else NO_PATH
            back[t - start, s] = source
        old, new = new, old
    leave[:] = old
