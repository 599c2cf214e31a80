"""Entropy pruning: scores are the relative entropies of their definition, and smaller models are proper models."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SMALL, entries, estimate_text
from reference import Backoff, random_model

from megahour.core.errors import MegahourError
from megahour.lm.combine.context_probs import from_model, from_text
from megahour.lm.combine.prune import prune, scores
from megahour.lm.combine.trie import Trie, build, unpack
from megahour.lm.combine.walk import encode_sentences, walker
from megahour.lm.text.vocabulary import Vocabulary

models = st.builds(random_model, st.integers(0, 10_000), st.just("abcd"), st.integers(2, 4), st.floats(0.2, 0.7))


def by_words(trie: Trie, vocabulary: Vocabulary, values: np.ndarray) -> dict[tuple[str, ...], float]:
    """Values of nodes by the words of their n-grams."""
    spelled: list[tuple[str, ...]] = [()]
    for node in range(1, len(trie.links.word)):
        spelled.append((*spelled[trie.links.parent[node]], vocabulary.words[trie.links.word[node]]))
    return dict(zip(spelled, values.tolist(), strict=True))


@settings(max_examples=25)
@given(models)
def test_a_score_is_the_relative_entropy_of_leaving_one_ngram_out(model) -> None:  # type: ignore[no-untyped-def]
    trie, reference = build(model), Backoff.of(model)
    found = by_words(trie, model.vocabulary, scores(trie))
    for gram in reference.p:
        if len(gram) > 1:
            assert found[gram] == pytest.approx(reference.loss(gram), rel=1e-6, abs=1e-12)


@settings(max_examples=40)
@given(models, st.floats(1e-5, 0.05))
def test_every_context_of_a_pruned_model_sums_to_one(model, threshold) -> None:  # type: ignore[no-untyped-def]
    pruned = Backoff.of(unpack(prune(build(model), threshold=threshold).trie, model.vocabulary))
    for h in [(), *product(["<s>", "a", "b", "</s>"], repeat=2), *pruned.contexts()]:
        assert sum(pruned.prob(word, h) for word in pruned.words) == pytest.approx(1.0, abs=1e-9)


@settings(max_examples=40)
@given(models, st.floats(1e-5, 0.05))
def test_what_is_kept_is_what_scores_enough_and_the_contexts_of_that(model, threshold) -> None:  # type: ignore[no-untyped-def]
    before, reference = entries(model), Backoff.of(model)
    after = entries(unpack(prune(build(model), threshold=threshold).trie, model.vocabulary))
    losses = {gram: reference.loss(gram) for gram in before if len(gram) > 1}
    wanted = {gram for gram, loss in losses.items() if loss >= threshold}
    contexts = {gram[:k] for gram in wanted for k in range(1, len(gram))}
    assert set(after) == {gram for gram in before if len(gram) == 1} | wanted | contexts
    assert all(after[gram][0] == before[gram][0] for gram in after)  # probabilities stay, weights follow


@settings(max_examples=40)
@given(models, st.data())
def test_a_size_is_reached_exactly_and_smaller_models_lie_in_larger_ones(model, data) -> None:  # type: ignore[no-untyped-def]
    trie = build(model)
    total, words = sum(trie.sizes), trie.sizes[0]
    sizes = sorted(data.draw(st.lists(st.integers(words, total + 3), min_size=2, max_size=2)))
    small, large = (prune(trie, size=size) for size in sizes)
    assert [sum(small.after), sum(large.after)] == [min(size, total) for size in sizes]
    kept = [set(entries(unpack(pruned.trie, model.vocabulary))) for pruned in (small, large)]
    assert kept[0] <= kept[1]
    assert small.before == model.sizes


def test_short_ngrams_stay_where_asked() -> None:
    model = estimate_text(SMALL, 3).model
    pruned = prune(build(model), threshold=1.0, shortest=3)
    assert pruned.after == model.sizes[:2]
    assert prune(build(model), threshold=1.0).after == model.sizes[:1]


def test_another_model_can_say_how_probable_histories_are() -> None:
    lines = SMALL * 3
    model, other = estimate_text(lines, 3).model, estimate_text(SMALL[:8], 2).model
    asked = walker(build(other), other.vocabulary, model.vocabulary, "share")
    trie, reference, history = build(model), Backoff.of(model), Backoff.of(other)
    found = by_words(trie, model.vocabulary, scores(trie, from_model(trie, asked)))
    known = [g for g in reference.p if len(g) == 3 and all((w,) in history.p for w in g[:2])]
    assert len(known) > 20
    for gram in known:
        h = gram[:2]
        first = "</s>" if h[0] == "<s>" else h[0]
        expected = np.log1p(reference.loss(gram)) / reference.history_prob(h)
        expected *= history.prob(first, ()) * history.prob(h[1], h[:1])
        assert np.log1p(found[gram]) == pytest.approx(expected, rel=1e-3, abs=1e-9)  # the file's rounding


def test_contexts_are_counted_in_text() -> None:
    model = estimate_text(SMALL, 4).model
    trie, sentences = build(model), [line.split() for line in SMALL]
    tokens = [encode_sentences(part, model.vocabulary) for part in (sentences[:9], sentences[9:])]
    found = by_words(trie, model.vocabulary, 10.0 ** from_text(trie, tokens))
    heard = [("<s>", *words) for words in sentences]
    total = sum(map(len, heard))  # each word of these is followed by one that is predicted
    for gram in found:
        if gram and "</s>" not in gram:
            places = ((words, i) for words in heard for i in range(len(words) - len(gram) + 1))
            count = sum(words[i : i + len(gram)] == gram for words, i in places)
            assert found[gram] == pytest.approx(count / total, abs=1e-12)


@pytest.mark.parametrize(
    ("asked", "message"),
    [({}, "give one of them"), ({"threshold": 1e-3, "size": 9}, "give one of them"), ({"size": 5}, "must stay")],
)
def test_impossible_requests_are_refused(asked: dict[str, float], message: str) -> None:
    trie = build(estimate_text(SMALL, 2).model)
    with pytest.raises(MegahourError, match=message):
        prune(trie, **asked)  # type: ignore[arg-type]
