"""Expansion of a class n-gram model to a model of words (SRILM's -expand-classes), for other tools and `graph`.

The n-grams are all word sequences of the class model's n-grams, cut to the order, from any word of the first class to
any word of the last. Each gets P(w|h) by the class model (`query.classes`) after an unknown history; back-off weights
make contexts sum to one. If classes have single words, and each word is in at most one class, the result is equal to
the class model. Otherwise the class model can use histories that are longer than the n-gram.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import numpy as np

from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import NEVER, NgramModel
from megahour.lm.combine.renormalise import renormalise
from megahour.lm.combine.trie import build, unpack
from megahour.lm.query.classes import ClassScorer, Hypotheses
from megahour.lm.text.vocabulary import BOS, SPECIALS, Vocabulary

Gram = tuple[str, ...]
MOST = 20_000_000


def expand(model: NgramModel, scorer: ClassScorer, order: int = 0, most: int = MOST) -> NgramModel:
    """Expand a model of classes and words. scorer: of the same model; order: of the result, 0 for the same.

    Raises MegahourError: the result would have more than `most` n-grams.
    """
    order = order or model.order
    ways = _ways(model, scorer)
    _check_size(model, ways, most)
    listed: set[Gram] = {(word,) for word in _words(model, scorer)}
    for grams in model.grams:
        for gram in grams.tolist():
            for spelled in _spelled([ways[number] for number in gram], order):
                _close(spelled, listed)
    return _estimated(scorer, sorted(listed), order)


def _ways(model: NgramModel, scorer: ClassScorer) -> list[list[Gram]]:
    """By number in the model: the word sequences of a class, or the word."""
    ways: list[list[Gram]] = [[(word,)] for word in model.vocabulary.words]
    for number in scorer.names.values():
        ways[number] = []
    for each in scorer.expansions:
        ways[each.number].append(each.words)
    return ways


def _words(model: NgramModel, scorer: ClassScorer) -> list[str]:
    classes = scorer.names.keys()
    words = [word for word in model.vocabulary.words if word not in classes]
    return list(dict.fromkeys([*words, *(word for each in scorer.expansions for word in each.words)]))


def _check_size(model: NgramModel, ways: Sequence[Sequence[Gram]], most: int) -> None:
    many = np.array([len(each) for each in ways], np.float64)
    total = sum(float(many[grams].prod(axis=1).sum()) for grams in model.grams)
    if total > most:
        raise MegahourError(
            f"the expansion would have {total:,.0f} n-grams, the limit is {most:,}",
            remedy="prune the class model; `lm score --classes` needs no expansion",
        )


def _spelled(ways: Sequence[Sequence[Gram]], order: int) -> Iterator[Gram]:
    """The last `order` words of all sequences from a word of the first class to a word of the last."""
    for choice in product(*ways):
        words = tuple(word for each in choice for word in each)
        for begin in range(len(choice[0])):
            for end in range(len(words) - len(choice[-1]) + 1, len(words) + 1):
                if begin < end:
                    yield words[max(begin, end - order) : end]


def _close(gram: Gram, listed: set[Gram]) -> None:
    """Add an n-gram, and all n-grams that it contains."""
    if gram not in listed:
        listed.add(gram)
        _close(gram[:-1], listed)
        _close(gram[1:], listed)


def _estimated(scorer: ClassScorer, listed: Iterable[Gram], order: int) -> NgramModel:
    """Estimate the listed n-grams, which are sorted, so that an n-gram comes after its first words."""
    levels: list[list[tuple[Gram, float]]] = [[] for _ in range(order)]
    start = _anywhere(scorer)
    path: list[tuple[str, Hypotheses]] = []
    for gram in listed:
        del path[len(gram) - 1 :]
        before = path[-1][1] if path else start
        if gram == (SPECIALS[BOS],):
            logp, after = NEVER, scorer.begin()
        else:
            logp, _, after = scorer.step(before, gram[-1])
        path.append((gram[-1], after))
        levels[len(gram) - 1].append((gram, logp))
    return _model([level for level in levels if level])


def _anywhere(scorer: ClassScorer) -> Hypotheses:
    """The hypotheses after an unknown history: a class or word begins, or a class of several words continues."""
    lm = scorer.scorer
    nothing = lm.begin(bos=False)
    found: Hypotheses = {(nothing, ()): (0.0, 0)}
    for each in scorer.expansions:
        logp, _, after = lm.score(nothing, each.number)
        for done in range(1, len(each.words)):
            key = after, each.words[done:]
            p = 10.0 ** (logp + each.log10_prob) + 10.0 ** found.get(key, (NEVER, 0))[0]
            found[key] = math.log10(p), 0
    total = sum(10.0**logp for logp, _ in found.values())
    return {key: (logp - math.log10(total), 0) for key, (logp, _) in found.items()}


def _model(levels: list[list[tuple[Gram, float]]]) -> NgramModel:
    unigrams = sorted(
        levels[0], key=lambda each: SPECIALS.index(each[0][0]) if each[0][0] in SPECIALS else len(SPECIALS)
    )
    vocabulary = Vocabulary(gram[0] for gram, _ in unigrams)
    values = [np.array([logp for _, logp in level]) for level in (unigrams, *levels[1:])]
    p = 10.0 ** values[0]
    p[BOS] = 0.0
    values[0] = np.log10(np.maximum(p / p.sum(), 10.0**NEVER))
    grams = [np.array([vocabulary.encode(gram) for gram, _ in level], np.int32) for level in (unigrams, *levels[1:])]
    trie = build(NgramModel(vocabulary, grams, values, [np.zeros(len(each)) for each in values]))
    renormalise(trie)
    trie.log10_prob[1 + BOS] = NEVER
    return unpack(trie, vocabulary)
