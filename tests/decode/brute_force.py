"""Decoding by brute force, without a graph: every word sequence, every pronunciation, every alignment.

Costs in nats. It is slow, and only for tiny vocabularies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from megahour.lm.arpa.model import NgramModel, read_arpa
from megahour.lm.estimate.estimate import estimate
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.text.sources import line_blocks

LN10 = math.log(10.0)
TEXT = ["a b c", "a c", "b b a", "c a b", "a b a", "b", "a a c b", "c"]
LEXICON = {"a": [[1, 2]], "b": [[1, 2], [3]], "c": [[1, 2, 3]]}  # homophones, a prefix, two variants
Pronunciations = Mapping[str, Sequence[Sequence[int]]]


def language_model(lines: list[str] = TEXT, order: int = 3) -> NgramModel:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.arpa"
        estimate(read_corpus(line_blocks(lines, "lines")).corpus, order, path)
        return read_arpa(path)


def random_posteriors(seed: int, frames: int, labels: int) -> np.ndarray:
    logits = 2.0 * np.random.Generator(np.random.PCG64(seed)).normal(size=(frames, labels))
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)


def language_cost(model: NgramModel, words: Sequence[str]) -> float:
    """Least cost of a sentence when each word may use its n-gram or back off, as in the acceptor G."""
    tables = [
        {tuple(g): (p, b) for g, p, b in zip(*(column.tolist() for column in level), strict=True)}
        for level in zip(model.grams, model.log10_prob, model.log10_backoff, strict=True)
    ]
    histories: dict[tuple[int, ...], float] = {(1,)[: model.order - 1]: 0.0}
    for word in [*model.vocabulary.encode(words), 2]:
        after: dict[tuple[int, ...], float] = {}
        for start, start_cost in histories.items():
            history, cost = start, start_cost
            while True:
                if (entry := tables[len(history)].get((*history, word))) is not None:
                    target = (*history, word)[-(model.order - 1) :] if model.order > 1 else ()
                    total = cost - LN10 * entry[0]
                    after[target] = min(after.get(target, math.inf), total)
                if not history:
                    break
                cost -= LN10 * tables[len(history) - 1].get(history, (0.0, 0.0))[1]
                history = history[1:]
        histories = after
    return min(histories.values())


def sentence_cost(model: NgramModel, words: Sequence[str]) -> float:
    """-ln p of a sentence: each word by its longest n-gram, after the back-off weights of the longer histories."""
    tables = [
        {tuple(g): (p, b) for g, p, b in zip(*(column.tolist() for column in level), strict=True)}
        for level in zip(model.grams, model.log10_prob, model.log10_backoff, strict=True)
    ]
    history, total = (1,), 0.0
    for word in [*model.vocabulary.encode(words), 2]:
        context = history[1 - model.order :] if model.order > 1 else ()
        while (*context, word) not in tables[len(context)]:
            total += tables[len(context) - 1].get(context, (0.0, 0.0))[1]
            context = context[1:]
        total += tables[len(context)][*context, word][0]
        history = (*history, word)
    return -LN10 * total


def hmm_cost(frames: npt.NDArray[np.float32], labels: Sequence[int], self_loop: float) -> float:
    """Least cost of (T, S) log likelihoods with each label of the sequence lasting at least one frame."""
    best = [0.0] + [math.inf] * len(labels)
    stay, leave = -math.log(self_loop), -math.log(1 - self_loop)
    for frame in frames.tolist():
        steps = zip(pairwise(best), labels, strict=True)
        best = [math.inf, *(min(at + stay, before + leave) - frame[label] for (before, at), label in steps)]
    return best[-1]


def hmm_costs(
    frames: npt.NDArray[np.float32], silence: int | None, words_cost: Callable[[Sequence[str]], float]
) -> dict[tuple[str, ...], float]:
    """Least cost of each sentence that the frames have room for, with `LEXICON`, self-loops of 0.6, silences of 0.3.

    words_cost: cost of a sentence's words, without their sounds.
    """
    found = {}
    for words, ways in _with_room(len(frames), silence):
        sounds = min(extra + hmm_cost(frames, labels, 0.6) for labels, extra in ways)
        found[words] = words_cost(words) + sounds
    return found


@cache
def _with_room(frames: int, silence: int | None) -> list[tuple[tuple[str, ...], list[tuple[list[int], float]]]]:
    """Sentences of `LEXICON`, each with its label sequences that fit into `frames`, if any."""
    found = []
    for words in word_sequences("abc", frames):
        ways = [way for way in label_sequences(words, LEXICON, silence, 0.3) if 0 < len(way[0]) <= frames]
        if ways:
            found.append((words, ways))
    return found


def ctc_cost(frames: npt.NDArray[np.float32], labels: Sequence[int]) -> float:
    """Least cost of a CTC path that collapses to the labels; label 0 is blank."""
    states = [0]
    for label in labels:
        states += [label, 0]
    best = np.full(len(states), np.inf)
    for t, frame in enumerate(frames):
        new = np.full_like(best, np.inf)
        for i, label in enumerate(states):
            ways = [best[i]] if t else [0.0 if i < 2 else np.inf]
            if t and i >= 1:
                ways.append(best[i - 1])
            if t and i >= 2 and label and label != states[i - 2]:
                ways.append(best[i - 2])
            new[i] = min(ways) - frame[label]
        best = new
    return float(min(best[-1], best[-2] if len(states) > 1 else np.inf))


def label_sequences(
    words: Sequence[str], lexicon: Pronunciations, silence: int | None, probability: float
) -> Iterator[tuple[list[int], float]]:
    """All label sequences of a word sequence with optional silence around words, and the silences' cost."""
    gaps = len(words) + 1
    choices = [[False]] * gaps if silence is None else [[False, True]] * gaps
    for variants in product(*(lexicon[word] for word in words)):
        for silent in product(*choices):
            labels = [silence] if silent[0] else []
            for variant, follows in zip(variants, silent[1:], strict=True):
                labels += [*variant, *([silence] if follows else [])]
            cost = 0.0
            if silence is not None:
                cost = sum(-math.log(probability if follows else 1 - probability) for follows in silent)
            yield labels, cost


def word_sequences(words: Sequence[str], longest: int) -> Iterator[tuple[str, ...]]:
    for length in range(longest + 1):
        yield from product(words, repeat=length)
