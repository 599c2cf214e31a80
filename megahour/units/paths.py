"""Builds the graph of HMM states that a transcript allows, which `hmm.viterbi` searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from megahour.units.hmm import BOUNDARY, MIN_FRAMES, SILENCE, StatePath, Units


def transcript_path(
    pronunciations: Sequence[Sequence[Sequence[str]]],
    column: dict[str, int],
    min_frames: int = MIN_FRAMES,
    *,
    noises: Sequence[str] = (),
    cross_word: bool = False,
) -> StatePath:
    """The state graph of a transcript: optional silence around every word, alternative pronunciations in parallel.

    `pronunciations` holds the variants of each word; `column[phone]` is the phone's column in the scores. Where silence
    may be, any sequence of silence and of the phones `noises` may be. With `cross_word` the contexts of a word's first
    and last phones are the phones beside them, or `#` next to pauses and at the ends.
    """
    build = _Builder(column, min_frames, noises)
    shortest = sum(min(len(variant) for variant in variants) for variants in pronunciations) * min_frames
    if cross_word:
        return build.path(_across_words(pronunciations, build), shortest)
    ends = build.pause([-1])
    for word, variants in enumerate(pronunciations):
        word_ends: list[int] = []
        for number, variant in enumerate(variants):
            padded = [BOUNDARY, *variant, BOUNDARY]
            last = ends
            for i in range(len(variant)):
                last = [build.phone((padded[i], padded[i + 1], padded[i + 2]), last, (word, number))]
            word_ends += last
        ends = build.pause(word_ends)
    return build.path([state for state in ends if state >= 0], shortest)


class _End(NamedTuple):
    """A state where a word or a pause may end: `left` is the context that it gives the next phone.

    `right` is the context that its own last phone has: the phone that follows, `#` for a pause or the end of the
    transcript, None after a pause, which anything may follow.
    """

    left: str
    right: str | None
    state: int


def _across_words(pronunciations: Sequence[Sequence[Sequence[str]]], build: _Builder) -> list[int]:
    """Add the states of a transcript with contexts across words. Returns those where it may end."""
    ends = _paused([_End(BOUNDARY, None, -1)], build)
    for word, variants in enumerate(pronunciations):
        following = pronunciations[word + 1] if word + 1 < len(pronunciations) else ()
        rights = [BOUNDARY, *sorted({way[0] for way in following} - {*build.noises})]
        after: list[_End] = []
        for number, way in enumerate(variants):
            after += _spoken(way, ends, rights, build, (word, number))
        ends = _paused(after, build)
    return [end.state for end in ends if end.right in (None, BOUNDARY) and end.state >= 0]


def _paused(ends: list[_End], build: _Builder) -> list[_End]:
    """The ends, and those of a pause behind them."""
    before = [end.state for end in ends if end.right in (None, BOUNDARY)]
    return ends + [_End(BOUNDARY, None, state) for state in build.pause(before)[len(before) :]]


def _spoken(
    way: Sequence[str], ends: list[_End], rights: Sequence[str], build: _Builder, variant: tuple[int, int]
) -> list[_End]:
    """Add a pronunciation behind the ends that it may follow, with each of the contexts `rights`. Returns its ends."""
    if way[0] in build.noises:
        before = [end.state for end in ends if end.right in (None, BOUNDARY)]
        return [_End(BOUNDARY, None, build.phone((BOUNDARY, way[0], BOUNDARY), before, variant))]
    before_by_left: dict[str, list[int]] = {}
    for end in ends:
        if end.right in (None, way[0]):
            before_by_left.setdefault(end.left, []).append(end.state)
    if len(way) == 1:
        return [
            _End(way[0], right, build.phone((left, way[0], right), before, variant))
            for left, before in before_by_left.items()
            for right in rights
        ]
    states = [build.phone((left, way[0], way[1]), before, variant) for left, before in before_by_left.items()]
    for i in range(1, len(way) - 1):
        states = [build.phone((way[i - 1], way[i], way[i + 1]), states, variant)]
    return [_End(way[-1], right, build.phone((way[-2], way[-1], right), states, variant)) for right in rights]


class _Builder:
    def __init__(self, column: dict[str, int], min_frames: int, noises: Sequence[str]) -> None:
        self.column, self.min_frames, self.noises = column, min_frames, noises
        self.emission: list[int] = []
        self.loops: list[bool] = []
        self.slot: list[int] = []
        self.before: list[list[int]] = []
        self.slots: list[tuple[str, str, str]] = []
        self.variants: list[tuple[int, int]] = []

    def phone(self, triple: tuple[str, str, str], before: list[int], variant: tuple[int, int] = (-1, -1)) -> int:
        """Add a chain of tied states, of which the last has a self-loop. Returns the last state."""
        for i in range(self.min_frames):
            self.emission.append(self.column[triple[1]])
            self.loops.append(i == self.min_frames - 1)
            self.slot.append(len(self.slots))
            self.before.append(before if i == 0 else [len(self.emission) - 2])
        self.slots.append(triple)
        self.variants.append(variant)
        return len(self.emission) - 1

    def pause(self, before: list[int]) -> list[int]:
        """Add optional silence and noises, in any order. Returns the end states without and with them."""
        lasts = [self.phone((BOUNDARY, sound, BOUNDARY), list(before)) for sound in (SILENCE, *self.noises)]
        for last in lasts:
            self.before[last - self.min_frames + 1] += [other for other in lasts if other != last]
        return [*before, *lasts]

    def path(self, final: list[int], shortest: int) -> StatePath:
        first = np.cumsum([0, *(len(b) for b in self.before)])
        flat = [b for before in self.before for b in before]
        return StatePath(
            np.array(self.emission, np.int32),
            np.array(self.loops, np.bool_),
            np.array(self.slot, np.int32),
            first.astype(np.int32),
            np.array(flat, np.int32),
            np.array(final, np.int32),
            tuple(self.slots),
            tuple(self.variants),
            shortest,
        )


def path_of(units: Units, pronunciations: Sequence[Sequence[Sequence[str]]], column: dict[str, int]) -> StatePath:
    """`transcript_path` with the noises and the contexts of `units`."""
    return transcript_path(pronunciations, column, noises=units.noise_phones, cross_word=units.cross_word)
