"""ARPA files: what we write, KenLM reads and scores as we do; what we read back is what we wrote."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from models import SMALL, entries, estimate_text

from megahour.core.errors import MegahourError
from megahour.lm.arpa import NEVER, read_arpa, write_arpa
from megahour.lm.score import Score, Scorer

QUESTIONS = ["the captain saw the old house", "a whale sang", "dawn", "the the the", "he left the boat by the river"]


def arpa_bytes(order: int = 3) -> bytes:
    buffer = io.BytesIO()
    write_arpa(estimate_text(SMALL, order).model, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def arpa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arpa") / "small.arpa"
    path.write_bytes(arpa_bytes())
    return path


def test_reading_gives_what_was_written_and_gzip_is_the_same(arpa: Path, tmp_path: Path) -> None:
    packed = tmp_path / "small.arpa.gz"
    packed.write_bytes(gzip.compress(arpa.read_bytes()))
    written, read = entries(estimate_text(SMALL).model), entries(read_arpa(arpa))
    assert read.keys() == written.keys()
    assert max(abs(np.subtract(read[gram], written[gram])).max() for gram in written) < 1e-6
    assert entries(read_arpa(packed)) == read


def test_kenlm_loads_the_file_and_gives_the_same_scores(arpa: Path) -> None:
    kenlm = pytest.importorskip("kenlm", reason="pip install kenlm to compare scores with it")
    theirs, ours = kenlm.Model(str(arpa)), Scorer(read_arpa(arpa))
    assert theirs.order == 3
    for line in [*QUESTIONS, *SMALL]:
        score = ours.sentence(line.split())
        assert score.log10_prob == pytest.approx(theirs.score(line), abs=1e-5)
        assert score.oov == sum(oov for _, _, oov in theirs.full_scores(line))
        assert score.perplexity == pytest.approx(theirs.perplexity(line), rel=1e-5)


def test_unknown_words_are_counted_and_can_be_left_out_of_perplexity(arpa: Path) -> None:
    scorer = Scorer(read_arpa(arpa))
    score = scorer.text(["a whale sang", "", "dawn"])
    assert (score.tokens, score.oov) == (6, 1)
    assert score.perplexity > score.perplexity_known > 1.0
    assert score == scorer.sentence(["a", "whale", "sang"]) + scorer.sentence(["dawn"])
    assert np.isnan(Score().perplexity)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["boat", "the", "old", "zzz"]), max_size=6))
def test_a_longer_sentence_is_the_product_of_its_words(words: list[str]) -> None:
    scorer = Scorer(estimate_text(SMALL).model)
    ids = [1, *scorer.vocabulary.encode(words), 2]
    product = sum(scorer.log10_prob(ids[i], ids[:i]) for i in range(1, len(ids)))
    assert scorer.sentence(words).log10_prob == pytest.approx(product)


def test_a_file_without_specials_gets_them_as_impossible_words(tmp_path: Path) -> None:
    path = tmp_path / "bare.arpa"
    path.write_text("\\data\\\nngram 1=1\n\n\\1-grams:\n-0.5 moby\n\n\\end\\\n", "utf-8")
    assert entries(read_arpa(path))[("<unk>",)] == (NEVER, 0.0)
    assert entries(read_arpa(path))[("moby",)] == (-0.5, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.removesuffix("\\end\\\n"), "ends early"),
        (lambda text: text.replace("ngram 2=", "ngram 7="), "expected 'ngram 2=COUNT'"),
        (lambda text: text.replace("\tthe boat\t", "\tthe whale\t"), "'whale' is not among the unigrams"),
        (lambda text: text.replace("\\2-grams:", "-1.5\textra\t0\n\\2-grams:"), r"expected '\\\\2-grams:'"),
        (lambda text: text.replace("\\3-grams:\n", "\\3-grams:\nhalf\tthe old boat\n"), "not a number in"),
        (lambda text: "hello\n", "ends early"),
    ],
)
def test_damaged_files_are_refused_with_the_line(change: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.arpa"
    path.write_text(change(arpa_bytes().decode()), "utf-8")  # type: ignore[operator]
    with pytest.raises(MegahourError, match=message) as caught:
        read_arpa(path)
    assert str(caught.value).startswith(f"{path}:")
