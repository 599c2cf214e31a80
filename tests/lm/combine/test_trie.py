"""Tries have the model's entries, and walking them gives the probabilities by the definition of back-off."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SMALL, entries, estimate_text
from reference import Backoff, model_of, random_model

from megahour.core.errors import MegahourError
from megahour.lm.combine.trie import build, sort_rows, unpack
from megahour.lm.combine.walk import encode_sentences, own_walker

models = st.builds(random_model, st.integers(0, 10_000), st.just("abcd"), st.integers(1, 4), st.floats(0.2, 0.7))


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), max_size=40))
def test_rows_are_sorted_and_have_their_origin(rows: list[tuple[int, int, int]]) -> None:
    given = np.array(rows, np.int32).reshape(-1, 3)
    found, origin = sort_rows(given, 6)
    assert found.tolist() == sorted(map(list, rows))
    assert given[origin].tolist() == found.tolist()


def test_a_model_comes_back_from_its_trie() -> None:
    model = estimate_text(SMALL, 4).model
    trie = build(model)
    assert trie.sizes == model.sizes
    assert trie.words == len(model.vocabulary)
    assert entries(unpack(trie, model.vocabulary)) == entries(model)


@settings(max_examples=40)
@given(models, st.lists(st.sampled_from("abcdx"), max_size=6))
def test_sentences_are_scored_as_backing_off_is_defined(model, words) -> None:  # type: ignore[no-untyped-def]
    reference = Backoff.of(model)
    known = [word if (word,) in reference.p else "<unk>" for word in words]
    heard = ("<s>", *known, "</s>")
    expected = [np.log10(reference.prob(heard[i], heard[:i])) for i in range(1, len(heard))]
    found = own_walker(build(model)).tokens(encode_sentences([words], model.vocabulary))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@settings(max_examples=30)
@given(models, st.lists(st.sampled_from("abcd"), max_size=4))
def test_a_state_predicts_every_word_as_the_definition_does(model, words) -> None:  # type: ignore[no-untyped-def]
    walker, reference = own_walker(build(model)), Backoff.of(model)
    state = 2  # after <s>
    for number in model.vocabulary.encode(words):
        state = walker.advance(state, number)
    expected = [reference.prob(word, ("<s>", *words)) for word in model.vocabulary.words]
    np.testing.assert_allclose(10.0 ** walker.distribution(state), expected, rtol=1e-9, atol=1e-98)


@pytest.mark.parametrize(
    ("extra", "message"),
    [([["a", "b", "a"]], "'a b a' is listed, but not its context"), ([["b", "a", "b"]] * 2, "is listed twice")],
)
def test_models_that_are_no_tries_are_refused(extra: list[list[str]], message: str) -> None:
    p = {("<unk>",): 0.1, ("<s>",): 0.0, ("</s>",): 0.2, ("a",): 0.3, ("b",): 0.4, ("b", "a"): 0.5}
    model = model_of(p, {})
    rows = np.array([model.vocabulary.encode(words) for words in extra], np.int32)
    for level, values in (
        (model.grams, rows),
        (model.log10_prob, -np.ones(len(rows))),
        (model.log10_backoff, rows[:, 0]),
    ):
        level.append(values)  # type: ignore[arg-type]
    with pytest.raises(MegahourError, match=message):
        build(model)
