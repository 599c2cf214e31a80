"""Start and end of each word, from the label of every frame on the best path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megahour.core.errors import MegahourError
from megahour.units.tokens import Span


def word_spans(
    words: Sequence[str],
    labels: Sequence[int],
    pronunciations: Mapping[str, Sequence[Sequence[int]]],
    pauses: Sequence[int],
) -> list[Span]:
    """Spans of `words` on a path of HMM states: the states `pauses` may come before, between and after them.

    Parameters
    ----------
    labels: state of every frame. pronunciations: each word's sequences of states; a state lasts one frame or more.
    If the path is unfinished, words that it has not reached get empty spans at its end.

    Raises
    ------
    MegahourError: the path does not match these words, because model, graph and lexicon are of different runs.
    """
    states, following = _network(words, pronunciations, pauses)
    paths: list[dict[int, int]] = []  # for each frame: its possible states, each with the state before
    alive: dict[int, int] = {-1: -1}
    for label in labels:
        reached: dict[int, int] = {}
        for state in alive:
            for after in (state, *following[state]) if state >= 0 else following[-1]:
                if states[after][0] == label:
                    reached.setdefault(after, state)
        if not reached:
            raise MegahourError(
                f"frame {len(paths)} of the path matches no state of its words {list(words)}",
                remedy="give the lexicon and units that the graph was made of",
            )
        paths.append(reached)
        alive = reached
    return _spans(len(words), states, paths)


def phone_spans(
    words: Sequence[str], labels: Sequence[int], pronunciations: Mapping[str, Sequence[Sequence[int]]]
) -> list[Span]:
    """`word_spans` on a CTC path of phones; blanks (label 0) belong to no word."""
    frames = [frame for frame, label in enumerate(labels) if label]
    spans = word_spans(words, [labels[frame] for frame in frames], pronunciations, pauses=[0])
    ends = [*frames, len(labels)]
    return [(ends[first], ends[last - 1] + 1) if last > first else (len(labels),) * 2 for first, last in spans]


def _network(
    words: Sequence[str], pronunciations: Mapping[str, Sequence[Sequence[int]]], pauses: Sequence[int]
) -> tuple[list[tuple[int, int]], dict[int, list[int]]]:
    """States as (label, word or -1 for a pause), and the states that may follow each; -1 is the start."""
    states: list[tuple[int, int]] = []
    following: dict[int, list[int]] = {-1: []}

    def add(label: int, word: int, before: Sequence[int]) -> int:
        states.append((label, word))
        number = len(states) - 1
        following[number] = []
        for each in before:
            following[each].append(number)
        return number

    def pause(before: Sequence[int]) -> list[int]:
        added = [add(label, -1, before) for label in pauses]
        for one in added:
            following[one] += [other for other in added if other != one]
        return added

    ends = [-1]
    for number, word in enumerate(words):
        begins, ends = [*ends, *pause(ends)], []
        for pronunciation in pronunciations.get(word, ()):
            last = begins
            for label in pronunciation:
                last = [add(label, number, last)]
            ends += last
    pause(ends)
    return states, following


def _spans(count: int, states: Sequence[tuple[int, int]], paths: Sequence[Mapping[int, int]]) -> list[Span]:
    """Trace back from the furthest state reached, and return the span of each of `count` words."""
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}
    state = max(paths[-1]) if paths else -1
    for frame in range(len(paths) - 1, -1, -1):
        word = states[state][1]
        firsts[word] = frame
        ends.setdefault(word, frame + 1)
        state = paths[frame][state]
    return [(firsts.get(word, len(paths)), ends.get(word, len(paths))) for word in range(count)]
