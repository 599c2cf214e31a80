"""A lattice of listed texts: each is a path of its own, so that what reads lattices reads n-best lists, too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from megahour.lattices.lattice import Lattice


class ListedText(NamedTuple):
    """A text with the frames (first, end) of its words, a label for each frame, and its costs in nats."""

    words: tuple[str, ...]
    spans: Sequence[tuple[int, int]]
    labels: Sequence[int]
    graph: float
    acoustic: float


def lattice_of(texts: Sequence[ListedText]) -> Lattice:
    """The lattice whose paths are these different `texts` of one utterance, best first.

    The first arc of a path has its costs, rounded as the table does, so that its readers find the same best path. Words
    meet in the middle between their spans, as only the last arc of a path may have no word.
    """
    words = ["<eps>", *dict.fromkeys(word for text in texts for word in text.words)]
    number = {word: place for place, word in enumerate(words)}
    frames, last = [0], 1 + sum(len(text.words) for text in texts)
    arcs: list[tuple[int, int, int, float, float, Sequence[int]]] = []
    for text in texts:
        meets = [(end + begin) // 2 for (_, end), (begin, _) in pairwise(text.spans)]
        ends = [*meets, *(end for _, end in text.spans[-1:]), len(text.labels)]
        costs, state, at = (text.graph, text.acoustic), 0, 0
        for place, end in zip([*(number[word] for word in text.words), 0], ends, strict=True):
            to = len(frames) if place else last
            arcs.append((state, to, place, *costs, text.labels[at:end]))
            frames += [end] * bool(place)
            costs, state, at = (0.0, 0.0), to, end
    arcs.sort(key=lambda arc: (arc[0], arc[2], arc[1]))
    source, target, word, graph, acoustic = (
        np.array(column) for column in zip(*(arc[:5] for arc in arcs), strict=True)
    )
    return Lattice(
        source.astype(np.int32),
        target.astype(np.int32),
        word.astype(np.int32),
        graph.astype(np.float32).astype(np.float64),
        acoustic.astype(np.float32).astype(np.float64),
        np.array([*frames, len(texts[0].labels)], np.int32),
        np.array([label for *_, labels in arcs for label in labels], np.int32),
        words,
    )
