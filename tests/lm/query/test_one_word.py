"""One word at a time: the numbers of `batch`, whatever the model lacks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from test_batch import sentences
from test_mapped import models

from megahour.lm.arpa.model import NgramModel
from megahour.lm.query.batch import score_sentences
from megahour.lm.query.mapped_import import from_model
from megahour.lm.query.one_word import WordProbabilities, log10_probability, word_number
from megahour.lm.text.tokenise import BOUNDARY, END, PADDING


@settings(max_examples=60, deadline=None)
@given(models(), sentences)
def test_each_word_has_the_probability_that_a_batch_gives_it(model: NgramModel, text: list[str]) -> None:
    mapped = from_model(model)
    lm, expected = WordProbabilities.from_model(mapped), score_sentences(mapped, text)
    context, found = np.full(max(1, mapped.order - 1), BOUNDARY, np.int32), []
    for token in expected.tokens.tolist():
        found.append(log10_probability(lm, context, END if token == BOUNDARY else token))
        context[:] = BOUNDARY if token == BOUNDARY else (token, *context[:-1])
    assert found == pytest.approx(expected.word_log10_prob.tolist(), abs=1e-5)


@settings(max_examples=5, deadline=None)
@given(models())
def test_words_are_numbered_by_their_bytes(model: NgramModel) -> None:
    lm = WordProbabilities.from_model(from_model(model))
    for number, word in enumerate([*model.vocabulary.words, "not there, and longer than eight bytes"]):
        text = np.zeros(len(word.encode()) + PADDING, np.uint8)
        text[: len(word.encode())] = np.frombuffer(word.encode(), np.uint8)
        expected = number if END < number < len(model.vocabulary.words) else 0
        assert word_number(lm, text, len(word.encode())) == expected
