"""When each word of a path was spoken, from the path's labels, one a frame, and the pronunciations of its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Span = tuple[int, int]


def word_spans(
    words: Sequence[str], labels: Sequence[int], ways: Mapping[str, Sequence[Sequence[int]]], silence: int | None
) -> list[Span] | None:
    """First frame of each word and the frame behind its last; None where the labels do not spell the words.

    ways: pronunciations as labels, each of which lasts a frame or more. silence: label that may lie around words.
    """
    ends: dict[int, Any] = {0: ()}  # where the words so far may end, with their spans: ((begin, end), those before)
    for word in words:
        after: dict[int, Any] = {}
        for end, before in ends.items():
            for begin in _behind_silence(labels, end, silence):
                for way in ways.get(word, ()):
                    for stop in _stops(labels, begin, way):
                        after.setdefault(stop, ((begin, stop), before))
        ends = after
    for end, spans in ends.items():
        if all(label == silence for label in labels[end:]):
            found = []
            while spans:
                span, spans = spans
                found.append(span)
            return found[::-1]
    return None


def _behind_silence(labels: Sequence[int], frame: int, silence: int | None) -> list[int]:
    """The frame, and those that silence leads to; most of it first, so that words are short where both fit."""
    stop = frame
    while stop < len(labels) and labels[stop] == silence:
        stop += 1
    return list(range(stop, frame - 1, -1))


def _stops(labels: Sequence[int], frame: int, way: Sequence[int]) -> list[int]:
    """Where a pronunciation that begins at a frame may end."""
    stops = {frame}
    for label in way:
        after = set()
        for stop in stops:
            while stop < len(labels) and labels[stop] == label:
                stop += 1
                after.add(stop)
        stops = after
    return sorted(stops, reverse=True)
