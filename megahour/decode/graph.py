"""The decoding graph: HMM or CTC topology, context and lexicon, grammar, composed into one transducer.

    HCLG = H ∘ min(det(L ∘ G))        (Mohri, Pereira & Riley 2008, with `#` symbols that keep L ∘ G determinizable)

L reads labels (senones, or CTC tokens) and writes words. Context is inside words only, so L maps a word directly to its
labels and there is no separate C. After every word, and before the first, silence may follow. G is `grammar.grammar`.
A graph's input label is label + 1: 0 is epsilon. Its costs are in nats; determinization is in the tropical semiring, so
the cheapest path is that of L ∘ G, up to DELTA per arc.

H, topology `hmm`: each label is one state that lasts at least a frame and repeats with probability `self_loop`. The
repeat is a loop on the state *behind* the label's arc. States that several labels enter get one looping state per label
before them. Topology `ctc`: label 0 is blank; a label may repeat, blanks may come between, and must between equal
labels (Graves et al. 2006, section 3.1).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import kaldifst
import numpy as np

from megahour.core.errors import MegahourError
from megahour.decode.grammar import grammar
from megahour.lm.arpa.model import NgramModel
from megahour.units.fst import FstArrays, Int32, from_bytes, from_columns, to_bytes


def to_kaldifst(fst: FstArrays) -> Any:
    """The FST as a kaldifst.StdConstFst."""
    with tempfile.TemporaryDirectory(prefix="megahour-fst-") as folder:
        path = Path(folder) / "fst"
        path.write_bytes(to_bytes(fst))
        return kaldifst.StdConstFst.read(str(path))


def from_kaldifst(fst: Any) -> FstArrays:
    """The arrays of any kaldifst FST with standard arcs."""
    with tempfile.TemporaryDirectory(prefix="megahour-fst-") as folder:
        path = Path(folder) / "fst"
        kaldifst.StdConstFst(fst).write(str(path))
        return from_bytes(path.read_bytes())


Topology = Literal["hmm", "ctc"]
Pronunciations = Mapping[str, Sequence[Sequence[int]]]
"""Words and their pronunciations as label sequences."""

CTC_LIMIT = 2000
DELTA = 1e-4
"""Costs closer than this (nats) count as equal when states are merged."""


@dataclass(frozen=True)
class Graph:
    """`fst` reads label + 1 and writes word numbers; `words[0]` is epsilon."""

    fst: FstArrays
    words: list[str]


def build_graph(
    model: NgramModel,
    pronunciations: Pronunciations,
    labels: int,
    *,
    silence: int | None = None,
    silence_probability: float = 0.5,
    separator: int | None = None,
    topology: Topology = "hmm",
    self_loop: float = 0.5,
    word_cost: float = 0.0,
    costs: Mapping[tuple[str, tuple[int, ...]], float] | None = None,
) -> Graph:
    """Graph of the words that have a pronunciation and a unigram.

    Parameters
    ----------
    labels: how many labels there are (S), blank included.
    silence: label that may come after words and before the first; None for no silence.
    separator: label that must come between words instead, such as the space of character models.
    word_cost: added for each word, in nats (an insertion penalty).
    costs: added for a word with these labels, in nats: how rare the pronunciation is.

    Raises
    ------
    MegahourError: no word is in both the model and the lexicon, or a label is out of range.
    """
    known = model.vocabulary.ids
    lexicon = {word: pronunciations[word] for word in sorted(pronunciations) if word in known}
    if not lexicon:
        raise MegahourError(
            f"none of the lexicon's {len(pronunciations)} words is in the language model",
            remedy="make both from the same text, in the same case",
        )
    _check_labels(lexicon, labels, blank=topology == "ctc")
    words = ["<eps>", *lexicon]
    numbers = {word: number for number, word in enumerate(words) if number}
    backoff_word, backoff_input = len(words), labels + 1
    lexicon_fst = _lexicon(
        [(numbers[word], tuple(labels_)) for word, all_ in lexicon.items() for labels_ in all_],
        backoff=(backoff_input, backoff_word),
        silence=silence,
        silence_probability=silence_probability,
        separator=separator,
        word_cost=word_cost,
        costs={(numbers[word], way): cost for (word, way), cost in (costs or {}).items() if word in numbers},
    )
    composed = _compose(lexicon_fst, grammar(model, numbers, backoff_word))
    composed = _without_disambiguation(composed, labels)
    fst = hmm(composed, self_loop) if topology == "hmm" else _ctc(composed, labels)
    return Graph(fst, words)


def _check_labels(lexicon: Pronunciations, labels: int, *, blank: bool) -> None:
    lowest = 1 if blank else 0
    for word, sequences in lexicon.items():
        for sequence in sequences:
            if not sequence or not all(lowest <= label < labels for label in sequence):
                raise MegahourError(
                    f"the pronunciation {list(sequence)} of {word!r} is empty or has labels outside {lowest} … "
                    f"{labels - 1}",
                    remedy="make the lexicon with the same units as the graph",
                )


def _disambiguated(entries: list[tuple[int, tuple[int, ...]]]) -> list[tuple[int, tuple[int, ...], int]]:
    """(word, labels, j): j > 0 asks for the symbol #j after labels that other words share or begin with."""
    unique = sorted(set(entries))
    prefixes = {labels[:n] for _, labels in unique for n in range(1, len(labels))}
    shared: dict[tuple[int, ...], int] = {}
    for _, labels in unique:
        shared[labels] = shared.get(labels, 0) + 1
    used: dict[tuple[int, ...], int] = {}
    result = []
    for word, labels in unique:
        j = 0
        if shared[labels] > 1 or labels in prefixes:
            j = used[labels] = used.get(labels, 0) + 1
        result.append((word, labels, j))
    return result


def _lexicon(
    entries: list[tuple[int, tuple[int, ...]]],
    *,
    backoff: tuple[int, int],
    silence: int | None,
    silence_probability: float,
    separator: int | None,
    word_cost: float,
    costs: Mapping[tuple[int, tuple[int, ...]], float],
) -> FstArrays:
    """L; `#j` is input label `backoff[0] + j`.

    State 0 lies before optional silence, 1 before words; words end in 0. With a separator, words end in 2, from where
    it leads to 1, or the end is 3. Where words begin or the sentence ends, `#0` passes through.
    """
    arcs: list[tuple[int, int, int, float, int]] = [(1, *backoff, 0.0, 1)]
    skip_cost = 0.0
    if silence is not None:
        skip_cost = -math.log(1 - silence_probability)
        arcs.append((0, silence + 1, 0, -math.log(silence_probability), 1))
    arcs.append((0, 0, 0, skip_cost, 1))
    states, word_end, end = 2, 0, 1
    if separator is not None:
        arcs += [(2, separator + 1, 0, 0.0, 1), (2, 0, 0, 0.0, 3), (3, *backoff, 0.0, 3)]
        states, word_end, end = 4, 2, 3
    for word, labels, j in _disambiguated(entries):
        inputs = [label + 1 for label in labels] + ([backoff[0] + j] if j else [])
        path = [1, *range(states, states + len(inputs) - 1), word_end]
        states += len(inputs) - 1
        rest = len(inputs) - 1
        weights = [word_cost + costs.get((word, labels), 0.0)] + [0.0] * rest
        arcs += zip(path[:-1], inputs, [word] + [0] * rest, weights, path[1:], strict=True)
    final = np.full(states, np.inf, np.float32)
    final[end] = 0.0
    return from_columns(0, final, *zip(*arcs, strict=True))


def _compose(lexicon: FstArrays, language: FstArrays) -> FstArrays:
    """min(det(L ∘ G))."""
    left, right = kaldifst.StdVectorFst(to_kaldifst(lexicon)), kaldifst.StdVectorFst(to_kaldifst(language))
    kaldifst.arcsort(left, "olabel")
    kaldifst.arcsort(right, "ilabel")
    composed: Any = kaldifst.StdVectorFst(kaldifst.compose(left, right))
    if composed.num_states == 0:
        raise MegahourError(
            "the grammar accepts no sentence of words in the lexicon", remedy="compare the vocabularies"
        )
    kaldifst.determinize_star(composed, delta=DELTA)
    kaldifst.minimize_encoded(composed, delta=DELTA)
    return from_kaldifst(composed)


def _without_disambiguation(fst: FstArrays, labels: int) -> FstArrays:
    arcs = fst.arcs.copy()
    arcs["ilabel"][arcs["ilabel"] > labels] = 0
    return FstArrays(fst.start, fst.source, arcs, fst.final)


def hmm(fst: FstArrays, self_loop: float) -> FstArrays:
    """H ∘ fst for one-state HMMs: each label costs -ln(1 - self_loop) to leave and -ln(self_loop) per further frame."""
    ilabel, target = fst.arcs["ilabel"].astype(np.int64), fst.arcs["nextstate"].astype(np.int64)
    emitting = ilabel > 0
    weight = fst.arcs["weight"] + np.where(emitting, -math.log(1 - self_loop), 0.0)

    # A state can hold the loop itself when every way into it reads the same label.
    width = int(ilabel.max(initial=0)) + 1
    entries, entry_of_arc = np.unique(target * width + ilabel, return_inverse=True)
    entered, label = entries // width, entries % width
    ways_in = np.bincount(entered, minlength=fst.states)
    ways_in[fst.start] += 1
    alone = (ways_in[entered] == 1) & (label > 0)
    shared = (ways_in[entered] > 1) & (label > 0)
    holder = entered.copy()  # where the loop of an entry is
    holder[shared] = fst.states + np.arange(np.count_nonzero(shared))
    loops = np.flatnonzero(alone | shared)

    return from_columns(
        fst.start,
        np.concatenate([fst.final, np.full(np.count_nonzero(shared), np.inf, np.float32)]),
        np.concatenate([fst.source, holder[loops], holder[shared]]),
        np.concatenate([ilabel, label[loops], np.zeros(np.count_nonzero(shared), np.int64)]),
        np.concatenate([fst.arcs["olabel"], np.zeros(len(loops) + np.count_nonzero(shared), np.int32)]),
        np.concatenate([weight, np.full(len(loops), -math.log(self_loop)), np.zeros(np.count_nonzero(shared))]),
        np.concatenate([holder[entry_of_arc], holder[loops], entered[shared]]),
    )


def _ctc(fst: FstArrays, labels: int) -> FstArrays:
    """T ∘ fst. State 0 of T: the last frame was blank (or there was none); state l: it was label l."""
    if labels > CTC_LIMIT:
        raise MegahourError(
            f"{labels} CTC tokens, the limit is {CTC_LIMIT}: the topology has a transition for each pair",
            remedy="train with fewer tokens",
        )
    last, now = (grid.ravel() for grid in np.meshgrid(np.arange(labels), np.arange(labels), indexing="ij"))
    written: Int32 = np.where((now == 0) | (now == last), 0, now + 1).astype(np.int32)
    topology = from_columns(0, np.zeros(labels), last, now + 1, written, np.zeros(len(now)), now)
    left, right = kaldifst.StdVectorFst(to_kaldifst(topology)), kaldifst.StdVectorFst(to_kaldifst(fst))
    kaldifst.arcsort(left, "olabel")
    kaldifst.arcsort(right, "ilabel")
    return from_kaldifst(kaldifst.compose(left, right))
