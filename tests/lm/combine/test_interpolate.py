"""Static mixtures: probabilities are the weighted sums, contexts sum to one, and weights fit the held-out text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SMALL, entries, estimate_text
from reference import Backoff, model_of, random_model

from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import NgramModel
from megahour.lm.combine.interpolate import gather, interpolate, tune
from megahour.lm.combine.loglinear import LogLinear
from megahour.lm.combine.mixture import fit
from megahour.lm.combine.trie import unpack

seeds, shares = st.integers(0, 10_000), st.floats(0.2, 0.7)
first = st.builds(random_model, seeds, st.just("abc"), st.integers(1, 4), shares)
second = st.builds(random_model, seeds, st.sampled_from(["abc", "cab", "bcde", "xy"]), st.integers(1, 4), shares)


def merged(models: list[NgramModel], weights: list[float], unknown: str = "zero") -> NgramModel:
    members = gather(models, unknown)  # type: ignore[arg-type]
    return unpack(interpolate(members, weights), members.vocabulary)


def member_prob(reference: Backoff, word: str, history: tuple[str, ...], union: set[str], unknown: str) -> float:
    """What a model says of a word of the union, by the rules of `walk.walker`."""
    own = {gram[0] for gram in reference.p if len(gram) == 1}
    h = tuple(w if w in own else "<unk>" for w in history)
    missing = len(union - own)
    if unknown == "zero":
        return reference.prob(word, h) if word in own else 0.0
    p = reference.prob(word if word in own else "<unk>", h)
    return p / (missing + 1) if word not in own or word == "<unk>" else p


@settings(max_examples=40)
@given(first, second, st.floats(0.05, 0.95), st.sampled_from(["zero", "share"]))
def test_every_listed_ngram_has_the_weighted_sum_of_probabilities(a, b, weight, unknown) -> None:  # type: ignore[no-untyped-def]
    found = entries(merged([a, b], [weight, 1 - weight], unknown))
    assert set(found) == set(entries(a)) | set(entries(b))
    union = {gram[0] for gram in found if len(gram) == 1}
    for gram, (logp, _) in found.items():
        if gram != ("<s>",):
            parts = [member_prob(Backoff.of(m), gram[-1], gram[:-1], union, unknown) for m in (a, b)]
            assert 10**logp == pytest.approx(weight * parts[0] + (1 - weight) * parts[1], rel=1e-9, abs=1e-90)


@settings(max_examples=40)
@given(first, second, st.floats(0.0, 1.0), st.sampled_from(["zero", "share"]))
def test_every_context_of_a_mixture_sums_to_one(a, b, weight, unknown) -> None:  # type: ignore[no-untyped-def]
    mixed = Backoff.of(merged([a, b], [weight, 1 - weight], unknown))
    for h in [(), ("<s>", "a"), ("b", "x"), *mixed.contexts()]:
        assert sum(mixed.prob(word, h) for word in mixed.words) == pytest.approx(1.0, abs=1e-6)


def test_models_of_real_text_with_different_orders_and_words_mix_to_a_proper_model() -> None:
    news, tales = estimate_text([*SMALL[:9], "breaking news"], 2).model, estimate_text(SMALL[6:], 4).model
    mixed = merged([news, tales], [0.3, 0.7])
    reference = Backoff.of(mixed)
    assert mixed.order == 4
    assert len(mixed.vocabulary) > max(len(news.vocabulary), len(tales.vocabulary))
    worst = max(abs(sum(reference.prob(w, h) for w in reference.words) - 1) for h in [(), *reference.contexts()])
    assert worst < 1e-6


def test_a_model_mixed_with_itself_is_itself_and_weight_zero_is_left_out() -> None:
    model, other = estimate_text(SMALL, 3).model, estimate_text(["x y z"] * 2, 3).model
    before = entries(model)
    for mixed in (merged([model, model], [0.25, 0.75]), merged([model, other], [1.0, 0.0])):
        after = {gram: entry for gram, entry in entries(mixed).items() if gram in before and gram != ("<s>",)}
        assert max(abs(after[gram][0] - before[gram][0]) for gram in after) < 1e-9
        assert [len(grams) for grams in mixed.grams[1:]] == model.sizes[1:]


def test_tuned_weights_are_the_best_of_all_weights() -> None:
    members = gather([estimate_text(SMALL[:8], 3).model, estimate_text(SMALL[8:], 3).model])
    heldout = [line.split() for line in SMALL[5:12]]
    tuned = tune(members, heldout)
    assert sum(tuned.weights) == pytest.approx(1.0)
    for weight in np.linspace(0, 1, 41).tolist():
        given = tune(members, heldout, [weight, 1 - weight])
        assert given.perplexity >= tuned.perplexity * (1 - 2e-6)
    assert tuned.tokens + tuned.left_out == sum(len(words) + 1 for words in heldout)


def test_weights_of_a_known_mixture_are_found_again() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    sources = rng.dirichlet(np.ones(50), size=3)
    drawn = rng.choice(50, 60_000, p=np.array([0.6, 0.3, 0.1]) @ sources)
    found = fit(np.log10(sources[:, drawn]))
    np.testing.assert_allclose(found.weights, [0.6, 0.3, 0.1], atol=0.02)
    assert found.gap < 1e-6


def test_words_unknown_to_all_are_left_out_and_counted() -> None:
    members = gather([estimate_text(SMALL[:8], 2).model, estimate_text(SMALL[8:], 2).model])
    found = tune(members, [["zzz", *SMALL[0].split()]])
    assert found.left_out == 1
    with pytest.raises(MegahourError, match="no held-out token"):
        fit(np.full((2, 3), -np.inf))


def test_a_context_that_lists_every_word_is_scaled_to_sum_to_one() -> None:
    p = {("<unk>",): 0.1, ("<s>",): 0.0, ("</s>",): 0.3, ("a",): 0.6}
    full = {("a", "<unk>"): 0.1, ("a", "</s>"): 0.2, ("a", "a"): 0.5}
    mixed = Backoff.of(merged([model_of({**p, **full}, {})], [1.0]))
    assert [mixed.prob(word, ("a",)) for word in ("<unk>", "</s>", "a")] == pytest.approx([0.125, 0.25, 0.625])


@pytest.mark.parametrize("weights", [[1.0], [0.9, 0.9], [1.5, -0.5], [float("nan"), 1.0]])
def test_weights_that_make_no_mixture_are_refused(weights: list[float]) -> None:
    models = [estimate_text(SMALL[:8], 2).model] * 2
    with pytest.raises(MegahourError, match="weights"):
        merged(models, weights)


@settings(max_examples=25)
@given(first, second, st.lists(st.sampled_from("abcdxz"), max_size=4))
def test_loglinear_scores_are_weighted_sums_and_normalised_ones_sum_to_one(a, b, words) -> None:  # type: ignore[no-untyped-def]
    members = gather([a, b], "share")
    mix, union = LogLinear(members, [0.8, 0.5]), set(members.vocabulary.words)

    def score(word: str, h: tuple[str, ...]) -> float:
        parts = [member_prob(Backoff.of(m), word if word in union else "<unk>", h, union, "share") for m in (a, b)]
        return float(np.log10(parts) @ [0.8, 0.5])

    heard = ("<s>", *words, "</s>")
    steps = [score(heard[i], heard[:i]) for i in range(1, len(heard))]
    assert mix.sentence(words) == pytest.approx(sum(steps), abs=1e-8)
    sums = [sum(10 ** score(w, heard[:i]) for w in union - {"<s>"}) for i in range(1, len(heard))]
    assert mix.sentence(words, normalised=True) == pytest.approx(sum(steps) - sum(np.log10(sums)), abs=1e-8)


def test_loglinear_mixes_want_words_that_no_model_rules_out() -> None:
    models = [estimate_text(SMALL[:8], 2).model, estimate_text(SMALL[8:], 2).model]
    with pytest.raises(MegahourError, match="impossible in a model"):
        LogLinear(gather(models, "zero"), [1.0, 1.0])
    with pytest.raises(MegahourError, match="exponents"):
        LogLinear(gather(models, "share"), [1.0])
