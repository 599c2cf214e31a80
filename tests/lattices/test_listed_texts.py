"""Listed texts become a lattice with a path for each."""

from __future__ import annotations

import numpy as np

from megahour.lattices.lattice import posteriors
from megahour.lattices.listed import ListedText, lattice_of
from megahour.lattices.n_best import best_paths
from megahour.lattices.table import misfit


def test_each_text_is_a_path_with_its_costs_frames_and_labels() -> None:
    ab = ListedText(("a", "b"), [(1, 2), (4, 5)], [0, 1, 0, 0, 2, 0], graph=0.5, acoustic=1.0)
    ba = ListedText(("b", "a"), [(0, 1), (3, 6)], [2, 0, 0, 1, 1, 1], graph=0.25, acoustic=2.0)
    nothing = ListedText((), [], [0] * 6, graph=0.0, acoustic=4.0)
    lattice = lattice_of([ab, ba, nothing])
    assert misfit(lattice) == ""
    assert not (lattice.word[lattice.target < lattice.states - 1] == 0).any(), "a last arc alone may have no word"
    paths = list(best_paths(lattice, 1.0))
    assert [(path.words, path.cost, path.graph) for path in paths] == [
        *((("a", "b"), 1.5, 0.5), (("b", "a"), 2.25, 0.25), ((), 4.0, 0.0))
    ]
    assert [lattice.labels_of(path.arcs).tolist() for path in paths] == [ab.labels, ba.labels, nothing.labels]
    meets = [lattice.frame[lattice.target[list(path.arcs)]].tolist() for path in paths]
    assert meets == [[3, 5, 6], [2, 6, 6], [6]], "words meet in the middle between them"
    assert posteriors(lattice, 1.0).cost == -np.logaddexp.reduce([-1.5, -2.25, -4.0])


def test_an_utterance_without_frames_has_a_lattice_without_words() -> None:
    lattice = lattice_of([ListedText((), [], [], graph=0.0, acoustic=0.0)])
    assert (misfit(lattice), lattice.arcs, lattice.frames) == ("", 1, 0)
