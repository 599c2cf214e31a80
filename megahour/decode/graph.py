"""The decoding graph: HMM or CTC topology, context and lexicon, grammar, composed into one transducer.

    HCLG = H ∘ min(det(L ∘ G))        (Mohri, Pereira & Riley 2008, with `#` symbols that keep L ∘ G determinizable)

L reads labels (senones, or CTC tokens) and writes words. Context is inside words, so L maps a word to its labels and
there is no separate C; `cross_word` has an L with contexts across words. After every word, and before the first,
silence and noises may follow. G is `grammar.grammar`. A graph's input label is label + 1: 0 is epsilon. Its costs are
in nats; determinization is in the tropical semiring, so the cheapest path is that of L ∘ G, up to DELTA per arc.

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
from typing import Any, Literal, TypeVar

import kaldifst
import numpy as np

from megahour.core.errors import MegahourError
from megahour.decode.grammar import grammar
from megahour.decode.lexicon_fst import Pauses, lexicon_fst
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

Ways = TypeVar("Ways")

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
    noises: Sequence[int] = (),
    noise_probability: float = 0.05,
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
    noises: labels that may come wherever silence may, in any number; `noise_probability` is that of one more of any.
    separator: label that must come between words instead, such as the space of character models.
    word_cost: added for each word, in nats (an insertion penalty).
    costs: added for a word with these labels, in nats: how rare the pronunciation is.

    Raises
    ------
    MegahourError: no word is in both the model and the lexicon, a label is out of range, or probabilities of silence
        and noise sum to 1 or more.
    """
    lexicon = known_words(pronunciations, model)
    _check_labels(lexicon, labels, blank=topology == "ctc")
    words = ["<eps>", *lexicon]
    numbers = {word: number for number, word in enumerate(words) if number}
    read = lexicon_fst(
        [(numbers[word], tuple(labels_)) for word, all_ in lexicon.items() for labels_ in all_],
        backoff=(labels + 1, len(words)),
        pauses=Pauses(silence, silence_probability, tuple(noises), noise_probability),
        separator=separator,
        word_cost=word_cost,
        costs={(numbers[word], way): cost for (word, way), cost in (costs or {}).items() if word in numbers},
    )
    composed = with_grammar(read, model, words, labels)
    return Graph(hmm(composed, self_loop) if topology == "hmm" else _ctc(composed, labels), words)


def known_words(pronunciations: Mapping[str, Ways], model: NgramModel) -> dict[str, Ways]:
    """The words that have a pronunciation and a unigram, sorted. Raises MegahourError: there is none."""
    lexicon = {word: pronunciations[word] for word in sorted(pronunciations) if word in model.vocabulary.ids}
    if not lexicon:
        raise MegahourError(
            f"none of the lexicon's {len(pronunciations)} words is in the language model",
            remedy="make both from the same text, in the same case",
        )
    return lexicon


def with_grammar(lexicon: FstArrays, model: NgramModel, words: Sequence[str], labels: int) -> FstArrays:
    """min(det(L ∘ G)), without the symbols above `labels` that keep it determinizable.

    L reads label + 1 and writes numbers of `words`; it reads `labels` + 1 and writes `len(words)` for a back-off.
    """
    numbers = {word: number for number, word in enumerate(words) if number}
    return _without_disambiguation(_compose(lexicon, grammar(model, numbers, len(words))), labels)


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
