"""Batches of sentences: the numbers of the slow reference and of KenLM, whatever the batch and the threads."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kenlm_package import kenlm_or_skip
from models import SMALL
from scorer import Scorer
from test_mapped import models

from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import NgramModel, read_arpa
from megahour.lm.query import batch
from megahour.lm.query.batch import score_lines, score_sentences
from megahour.lm.query.kenlm_model import KenlmModel
from megahour.lm.query.mapped import MappedModel
from megahour.lm.query.mapped_import import from_model, load_arpa
from megahour.lm.query.mixed import mixed
from megahour.lm.text.sources import file_blocks
from megahour.lm.text.tokenise import BOUNDARY, UNKNOWN

EXPECTED = Path(__file__).parents[1] / "lmplz"
sentences = st.lists(
    st.lists(st.sampled_from(["a", "b", "c", "d", "zzz", "<unk>"]), max_size=9).map(" ".join), max_size=12
)


@pytest.fixture(scope="module", params=["order1", "order2", "order3", "order5", "order4-prune01"])
def arpa(request: pytest.FixtureRequest) -> Path:
    return EXPECTED / f"{request.param}.arpa"


@settings(max_examples=60)
@given(models(), sentences)
def test_scores_are_those_of_the_reference(model: NgramModel, text: list[str]) -> None:
    """Also of models that lack suffixes and contexts of their n-grams."""
    reference = Scorer(model)
    found = score_sentences(from_model(model), text)
    each = [reference.sentence(sentence.split()) for sentence in text]
    assert found.log10_prob == pytest.approx([score.log10_prob for score in each], abs=1e-4)
    assert found.log10_oov == pytest.approx([score.log10_oov for score in each], abs=1e-4)
    assert found.oov.tolist() == [score.oov for score in each]
    assert (found.words + 1).tolist() == [score.tokens for score in each]


def test_kenlm_gives_the_same_for_every_word(arpa: Path) -> None:
    kenlm = kenlm_or_skip()
    if "order1" in arpa.name:
        pytest.skip("KenLM does not read unigram models")
    theirs, ours = kenlm.Model(str(arpa)), load_arpa(arpa)
    text = ["the captain saw the old house", "", "a whale sang", "the the the", *SMALL]
    found = score_sentences(ours, text)
    words = [word for sentence in text for word in theirs.full_scores(sentence)]
    assert found.word_log10_prob == pytest.approx([word[0] for word in words], abs=1e-6)
    assert found.ngram_length.tolist() == [word[1] for word in words]
    assert (found.tokens == 0).tolist() == [word[2] for word in words]
    assert found.log10_prob == pytest.approx([theirs.score(sentence) for sentence in text], abs=1e-5)
    assert found.total.perplexity == pytest.approx(
        10 ** -(sum(map(theirs.score, text)) / (sum(len(sentence.split()) + 1 for sentence in text)))
    )


def test_kenlm_models_are_scored_through_its_package(arpa: Path) -> None:
    kenlm_or_skip()
    if "order1" in arpa.name:
        pytest.skip("KenLM does not read unigram models")
    lines = (
        "the boat\n\nzzz saw the old house\n<s> na\u00efve the\u00a0boat \n".encode()
        + b"the\0boat the\x0bhouse\n"
        + b"caf\xe9 the boat\n"
    )
    theirs, ours = KenlmModel(arpa).score_lines(lines), score_lines(load_arpa(arpa), lines)
    assert theirs.log10_prob == pytest.approx(ours.log10_prob, abs=1e-5)
    assert theirs.log10_oov == pytest.approx(ours.log10_oov, abs=1e-5)
    assert (theirs.words.tolist(), theirs.oov.tolist()) == (ours.words.tolist(), ours.oov.tolist())
    assert ((theirs.tokens == BOUNDARY) == (ours.tokens == BOUNDARY)).all()
    assert theirs.ngram_length.tolist() == ours.ngram_length.tolist()


def test_words_that_only_a_model_of_kenlm_knows_are_known_in_a_mixture(arpa: Path, tmp_path: Path) -> None:
    kenlm_or_skip()
    if "order1" in arpa.name:
        pytest.skip("KenLM does not read unigram models")
    text = "\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-1\t</s>\n-1\tzzz\n\n\\end\\\n"
    (tmp_path / "other.arpa").write_text(text)
    other = load_arpa(tmp_path / "other.arpa")
    found = mixed([lambda lines: score_lines(other, lines), KenlmModel(arpa).score_lines], [0.5, 0.5])(b"the zzz qqq\n")
    assert (found.oov.tolist(), (found.tokens == UNKNOWN).tolist()) == ([1], [False, False, True, False])


def test_what_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    kenlm_or_skip()
    path = tmp_path / "model.bin"
    path.write_bytes(b"mmap lm http://kheafield.com/code format version 5\n" + bytes(100))
    with pytest.raises(MegahourError, match=r"(?s)model\.bin: KenLM cannot read it.*Remedy: copy it whole"):
        KenlmModel(path)


@pytest.fixture(scope="module")
def model() -> MappedModel:
    return load_arpa(EXPECTED / "order3.arpa")


def test_neither_threads_nor_batches_change_a_bit(model: MappedModel) -> None:
    text = [" ".join(SMALL[i % 26].split()[i % 3 :]) for i in range(9000)]  # more than one piece, and many blocks
    whole = score_sentences(model, text)
    threads = score_sentences(model, text, threads=3)
    parts = [score_sentences(model, text[i : i + 77]) for i in range(0, len(text), 77)]
    for key in ("log10_prob", "words", "oov", "log10_oov", "tokens", "word_log10_prob", "ngram_length"):
        expected = getattr(whole, key)
        np.testing.assert_array_equal(getattr(threads, key), expected)
        np.testing.assert_array_equal(np.concatenate([getattr(part, key) for part in parts]), expected)


def test_a_sentence_longer_than_a_block_is_the_sum_of_its_words(model: MappedModel) -> None:
    words = " ".join(SMALL).split() * 5
    found = score_sentences(model, [" ".join(words)])
    reference = Scorer(read_arpa(EXPECTED / "order3.arpa")).sentence(words)
    assert found.words.tolist() == [len(words)]
    assert found.log10_prob[0] == pytest.approx(reference.log10_prob, abs=1e-3)


def test_lines_are_sentences_as_in_kenlm(model: MappedModel) -> None:
    """White space of any kind parts words; empty lines count; marks are left out; `<unk>` is an unknown word."""
    plain = score_lines(model, b"the old boat\n\na whale\n")
    odd = score_lines(model, b" the\told  boat \r\n\n<s> a whale </s>")
    assert plain.log10_prob.tolist() == odd.log10_prob.tolist()
    assert score_lines(model, b"<unk> boat").oov.tolist() == [1]
    assert score_lines(model, b"\xff\xfe boat").oov.tolist() == [1]
    assert len(score_lines(model, b"")) == 0


def test_lines_are_tokenised_by_the_code_that_training_uses(
    model: MappedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only array would have all of the tokeniser compiled once more."""
    encode, writable = batch.encode, list[bool]()

    def noted(text: Any, *arguments: Any, **named: Any) -> Any:
        writable.append(text.flags.writeable)
        return encode(text, *arguments, **named)

    monkeypatch.setattr(batch, "encode", noted)
    score_lines(model, b"the boat\n")
    (block,) = file_blocks(io.BytesIO(b"the boat\n"), "text", 64)
    assert writable == [block.text.flags.writeable]


def test_a_string_is_not_a_list_of_sentences(model: MappedModel) -> None:
    with pytest.raises(TypeError, match="a list of sentences is needed, not the string 'a boat'"):
        score_sentences(model, "a boat")


def test_a_line_break_within_a_sentence_is_an_error(model: MappedModel) -> None:
    with pytest.raises(ValueError, match="sentence 1 contains a line break: 'a\\\\nb'"):
        score_sentences(model, ["the boat", "a\nb"])
