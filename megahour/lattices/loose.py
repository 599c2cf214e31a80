"""Lattices from states and links that other tools wrote, in any order, with one or several final states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from megahour.lattices.lattice import Lattice
from megahour.lattices.table import misfit


class WeightedLink(NamedTuple):
    """An arc with costs in nats; `string`: transition ids, one per frame; word 0: none; final weights: target -1."""

    source: int
    target: int
    word: int
    graph: float
    acoustic: float
    string: tuple[int, ...] = ()


def from_links(
    links: Sequence[WeightedLink],
    finals: Mapping[int, WeightedLink],
    words: Sequence[str],
    frames: Mapping[int, int] | None = None,
) -> Lattice:
    """A lattice that begins in state 0; states not on a path from there to an end are left out.

    frames: the frame of each state, with key -1 for the end; None to count the strings' labels. Raises ValueError: no
    path, a cycle, words without spelling, costs that are not finite, or two ways to a state that differ in frames.
    """
    every = [*links, *finals.values()]
    order = _order(every)
    number = {state: place for place, state in enumerate(order)}
    every = [link for link in every if link.source in number and link.target in number]
    every.sort(key=lambda link: (number[link.source], link.target == -1, link.word, number[link.target]))
    if any(not 0 <= link.word < len(words) for link in every):
        raise ValueError("a word number is not in the list of words, which belongs to another graph")
    times = _times(every, order) if frames is None else {state: frames[state] for state in order}
    columns = ([number[link.source], number[link.target], link.word] for link in every)
    source, target, word = np.array(list(columns), np.int32).T
    graph, acoustic = np.array([(link.graph, link.acoustic) for link in every], np.float64).T
    labels = np.array([label - 1 for link in every for label in link.string], np.int32)
    frame = np.array([times[state] for state in order], np.int32)
    lattice = Lattice(source, target, word, graph, acoustic, frame, labels, words)
    if what := misfit(lattice):
        raise ValueError(what)
    return lattice


def _order(links: Sequence[WeightedLink]) -> list[int]:
    """States between 0 and the end, -1, in topological order."""
    after: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    for link in links:
        after.setdefault(link.source, []).append(link.target)
        before.setdefault(link.target, []).append(link.source)
    used = _reached(0, after) & _reached(-1, before)
    if not {0, -1} <= used:
        raise ValueError("no path leads to a final state")
    waiting = {state: sum(other in used for other in before.get(state, ())) for state in used}
    order, ready = [], [0]
    while ready:
        order.append(state := ready.pop())
        for other in after.get(state, ()):
            if other in used:
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
    if len(order) != len(used) or order[-1] != -1:
        raise ValueError("its states form a cycle")
    return order


def _reached(start: int, ways: Mapping[int, Sequence[int]]) -> set[int]:
    seen, waiting = {start}, [start]
    while waiting:
        for other in ways.get(waiting.pop(), ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def _times(links: Sequence[WeightedLink], order: Sequence[int]) -> dict[int, int]:
    times = {order[0]: 0}
    for link in links:
        frame = times[link.source] + len(link.string)
        if times.setdefault(link.target, frame) != frame:
            raise ValueError("two paths to a state differ in frames")
    return times
