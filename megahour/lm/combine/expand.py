"""A class n-gram model as one of words (SRILM's -expand-classes): what other tools and `graph` can read.

Its n-grams are the words that the class model's n-grams spell, cut to the order, from any word of the first class to
any of the last. Each has its P(w|h) by the class model (`query.classes`), where nothing is known of what was before h;
back-off weights make contexts sum to one. With classes of single words, each word in one class at most, that is the
class model itself, word for word; else a history that says more than the n-gram does helps the class model alone.
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
    """The model of words. model: of classes and words, which `scorer` scores; order: of the new one, 0 for the same.

    Raises MegahourError: more than `most` n-grams would be spelled.
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
    """By number in the model: the words that it may be."""
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
            f"{total:,.0f} n-grams of words would be spelled, at most {most:,}",
            remedy="prune the class model; `lm score --classes` needs no expansion",
        )


def _spelled(ways: Sequence[Sequence[Gram]], order: int) -> Iterator[Gram]:
    """n-grams from each word of the first to each of the last, at most `order` words, the last ones."""
    for choice in product(*ways):
        words = tuple(word for each in choice for word in each)
        for begin in range(len(choice[0])):
            for end in range(len(words) - len(choice[-1]) + 1, len(words) + 1):
                if begin < end:
                    yield words[max(begin, end - order) : end]


def _close(gram: Gram, listed: set[Gram]) -> None:
    """Add an n-gram, and all n-grams in it."""
    if gram not in listed:
        listed.add(gram)
        _close(gram[:-1], listed)
        _close(gram[1:], listed)


def _estimated(scorer: ClassScorer, listed: Iterable[Gram], order: int) -> NgramModel:
    """listed: sorted, so that an n-gram comes after its first words."""
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
    """Where nothing is known: a class or word begins, or one of several words goes on; the sum is that of words."""
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
