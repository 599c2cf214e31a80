"""ARPA files: KenLM reads ours and gives our scores, and reading back gives the same model."""

from __future__ import annotations

import bz2
import gzip
import io
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kenlm_package import kenlm_or_skip
from models import SMALL, entries, estimate_text
from scorer import Scorer

from megahour.core.errors import MegahourError
from megahour.lm.arpa import read as arpa_read
from megahour.lm.arpa.model import NEVER, NgramModel, read_arpa, write_arpa
from megahour.lm.query.batch import TextScore
from megahour.lm.query.model_files import pack
from megahour.lm.query.scorer import NgramScorer
from megahour.lm.sharded.models import sections
from megahour.lm.text.vocabulary import SPECIALS, Vocabulary

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
    kenlm = kenlm_or_skip()
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
    assert np.isnan(TextScore().perplexity)


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["boat", "the", "old", "zzz"]), max_size=6))
def test_a_longer_sentence_is_the_product_of_its_words(words: list[str]) -> None:
    scorer = Scorer(estimate_text(SMALL).model)
    ids = [1, *scorer.vocabulary.encode(words), 2]
    product = sum(scorer.log10_prob(ids[i], ids[:i]) for i in range(1, len(ids)))
    assert scorer.sentence(words).log10_prob == pytest.approx(product)


def test_a_file_without_specials_gets_them_as_words_that_hardly_occur(tmp_path: Path) -> None:
    """`<unk>` as KenLM's binaries have it."""
    path = tmp_path / "bare.arpa"
    path.write_text("\\data\\\nngram 1=1\n\n\\1-grams:\n-0.5 moby\n\n\\end\\\n", "utf-8")
    found = entries(read_arpa(path))
    assert (found[("<unk>",)], found[("<s>",)], found[("</s>",)]) == ((-100.0, 0.0), (NEVER, 0.0), (NEVER, 0.0))
    assert found[("moby",)] == (-0.5, 0.0)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 400])
def test_numbers_that_are_not_finite_are_none(number: str, tmp_path: Path) -> None:
    (tmp_path / "a.arpa").write_text(f"\\data\\\nngram 1=1\n\n\\1-grams:\n-0.5\tmoby\t{number}\n\n\\end\\\n")
    with pytest.raises(MegahourError, match=r"a\.arpa:5: not a number in"):
        read_arpa(tmp_path / "a.arpa")


CAPITALS = (
    "\\data\\\nngram 1=4\nngram 2=1\n\n\\1-grams:\n-99\t<s>\t-0.3\n-0.7\t<UNK>\t-0.5\n-0.9\ta\t-0.2\n-0.1\t</s>\n\n"
    "\\2-grams:\n-0.1\t<UNK> a\n\n\\end\\\n"
)


def test_unknown_words_in_capitals_are_unknown_words_as_in_kenlm(tmp_path: Path) -> None:
    path = tmp_path / "capitals.arpa"
    path.write_text(CAPITALS, "utf-8")
    ours = Scorer(read_arpa(path))
    assert ours.sentence(["zzz", "a"]).log10_prob == pytest.approx((-0.7 - 0.3) - 0.1 + (-0.1 - 0.2))
    kenlm = kenlm_or_skip()
    assert kenlm.Model(str(path)).score("zzz a") == pytest.approx(-1.4)
    found = NgramScorer.open(path).full_scores("<UNK> a a <UNK>")
    for own, theirs in zip(found, kenlm.Model(str(path)).full_scores("<UNK> a a <UNK>"), strict=True):
        assert own == (pytest.approx(theirs[0], abs=1e-5), *theirs[1:])


def test_unknown_words_in_capitals_have_their_probability_once(tmp_path: Path) -> None:
    """Pruning and mixing sum over all words."""
    path = tmp_path / "capitals.arpa"
    path.write_text(CAPITALS, "utf-8")
    alone = read_arpa(path)
    assert alone.vocabulary.words == ("<unk>", "<s>", "</s>", "a")
    assert alone.grams[1].tolist() == [[0, 3]]
    assert alone.log10_prob[0].tolist() == [-0.7, -99.0, -0.1, -0.9]
    path.write_text(CAPITALS.replace("1=4", "1=5").replace("-0.9\ta", "-1.7\t<unk>\n-0.9\ta"), "utf-8")
    both = entries(read_arpa(path))
    assert (both[("<unk>",)][0], both[("<UNK>",)][0], both[("<UNK>", "a")][0]) == (-1.7, -0.7, -0.1), "two words"


@pytest.mark.parametrize("blanks", [0, 3, arpa_read.BLOCK_BYTES // 3])
def test_only_blank_lines_may_follow_the_end(blanks: int, tmp_path: Path) -> None:
    path = tmp_path / "two.arpa"
    text = "\\data\\\nngram 1=1\n\n\\1-grams:\n-0.5 moby\n\n\\end\\\n" + " \r\n" * blanks
    path.write_text(text, "utf-8", newline="")
    assert len(read_arpa(path).vocabulary.words) == 4
    path.write_text(text + "  \\data\\\nngram 1=1\n", "utf-8", newline="")
    with pytest.raises(MegahourError, match=f"two.arpa:{blanks + 8}: text after .*data"):
        read_arpa(path)


def arpa_of(*lines: str, counts: tuple[int, ...] = (3, 2)) -> str:
    """A bigram model of words a, b, with the given lines in the place of its bigrams."""
    header = "".join(f"ngram {k}={n}\n" for k, n in enumerate(counts, 1))
    unigrams = "-99\t<s>\t-0.5\n-0.5\ta\t-0.25\n-0.5\tb\t0.125\n"
    return f"\\data\\\n{header}\n\\1-grams:\n{unigrams}\n\\2-grams:\n" + "\n".join(lines) + "\n\n\\end\\\n"


def read_text(text: str | bytes, folder: Path) -> dict[tuple[str, ...], tuple[float, float]]:
    path = folder / "model.arpa"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return entries(read_arpa(path))


def test_blanks_line_ends_exponents_and_order_do_not_matter(tmp_path: Path) -> None:
    tidy = read_text(arpa_of("-0.25\ta b", "-1.5\tb a"), tmp_path)
    assert tidy[("a", "b")] == (-0.25, 0.0)
    odd = arpa_of("  -15.00e-1   b\ta  ", "", "-.25 a  b\t-7").replace("\n", "\r\n")
    assert read_text("a comment\n" + odd.removesuffix("\r\n"), tmp_path) == tidy


def test_back_offs_may_be_above_zero_and_minus_infinity_is_never(tmp_path: Path) -> None:
    found = read_text(arpa_of("-inf\ta b", "-0.5\tb a"), tmp_path)
    assert found[("b",)] == (-0.5, 0.125)
    assert found[("a", "b")][0] == NEVER


@pytest.mark.parametrize("suffix", ["gz", "xz", "zst"])
def test_compression_is_detected_by_the_first_bytes_and_damage_is_named(
    suffix: str, arpa: Path, tmp_path: Path
) -> None:
    pack(arpa, tmp_path / "packed", f"a.{suffix}", threads=2)
    assert entries(read_arpa(tmp_path / "packed")) == entries(read_arpa(arpa))
    (tmp_path / "cut").write_bytes((tmp_path / "packed").read_bytes()[:-40])
    with pytest.raises(MegahourError, match=r"cut: .*(damaged or end early|ends early)"):
        read_arpa(tmp_path / "cut")


def test_bzip2_is_read_too(arpa: Path, tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(bz2.compress(arpa.read_bytes()))
    assert entries(read_arpa(tmp_path / "packed")) == entries(read_arpa(arpa))
    (tmp_path / "cut").write_bytes((tmp_path / "packed").read_bytes()[:-40])
    with pytest.raises(MegahourError, match=r"cut: .*(damaged or end early|ends early)"):
        read_arpa(tmp_path / "cut")


def test_words_are_bytes_of_any_encoding(tmp_path: Path) -> None:
    text = arpa_of("-0.25\ta é", "-1.5\té a").replace("\tb\t", "\té\t").encode("latin-1")
    found = read_text(text, tmp_path)
    buffer = io.BytesIO()
    write_arpa(read_arpa(tmp_path / "model.arpa"), buffer)
    assert b"\ta \xe9\n" in buffer.getvalue()
    assert read_text(buffer.getvalue(), tmp_path) == found


numbers = st.floats(-99, 0, allow_subnormal=False)


@given(st.lists(st.tuples(numbers, st.sampled_from(["{!r}", "{:.3e}", "{:.25f}", "{:+.6g}", "{:g}"])), min_size=1))
def test_numbers_are_those_that_python_reads(values: list[tuple[float, str]]) -> None:
    texts = [form.format(value) for value, form in values]
    lines = "".join(f"{text}\tw{i}\n" for i, text in enumerate(texts))
    with TemporaryDirectory() as folder:
        head = f"\\data\\\nngram 1={len(texts)}\n\n\\1-grams:\n"
        found = read_text(f"{head}{lines}\n\\end\\\n", Path(folder))
    for i, text in enumerate(texts):
        assert found[(f"w{i}",)][0] == pytest.approx(float(text), rel=1e-14, abs=1e-300)


def test_numbers_are_written_to_six_decimals() -> None:
    values = np.array([0.0, -0.5, -1.2345678, -12.3, -99.0, 0.25, 123.456, -1e-7])
    vocabulary = Vocabulary([*SPECIALS, "a", "b", "c", "d", "e"])
    unigrams = np.arange(8, dtype=np.int32)[:, None]
    bigram = np.zeros((0, 2), np.int32)
    model = NgramModel(vocabulary, [unigrams, bigram], [values, np.zeros(0)], [values[::-1], np.zeros(0)])
    buffer = io.BytesIO()
    write_arpa(model, buffer)
    lines = [line.split("\t") for line in buffer.getvalue().decode().splitlines() if "\t" in line]
    assert [float(line[0]) for line in lines] == pytest.approx(values.tolist(), abs=5.1e-7)
    assert [float(line[2]) for line in lines] == pytest.approx(values[::-1].tolist(), abs=5.1e-7)
    assert lines[2][0] == "-1.234568"


def test_a_file_of_many_blocks_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that go over the ends of blocks, arrays that grow."""
    monkeypatch.setattr(arpa_read, "BLOCK_BYTES", 97)
    monkeypatch.setattr(arpa_read, "LINE_BYTES", 200)
    whole = entries(estimate_text(SMALL).model)
    assert read_text(arpa_bytes(), tmp_path).keys() == whole.keys()
    with pytest.raises(MegahourError, match="a line of more than 200 bytes"):
        read_text(arpa_of("-1\ta " + "b" * 1000), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (arpa_of("nan\ta b", "-1\tb a"), "11: not a number in 'nan"),
        (arpa_of("inf\ta b", "-1\tb a"), "11: not a number in 'inf"),
        (arpa_of("-1\ta b", "0.5\tb a"), "12: a log10 probability above 0"),
        (arpa_of("-1\ta b", "-1.5\ta b"), "12: the 2-gram 'a b' occurs twice"),
        (arpa_of("-1\ta b", "-1.5\tb a").replace("\tb\t", "\ta\t"), "8: the word of .* occurs twice"),
        (arpa_of("-1\ta b"), "the header has 2 2-grams, but only 1 come before"),
        (arpa_of("-1\ta b", "-1\tb a", "-1\ta a"), r"13: expected '\\\\end\\\\', found"),
        (arpa_of("-1\ta", "-1\tb a"), "11: expected a 2-gram with its probability"),
        (arpa_of("-1\ta b c d", "-1\tb a"), "11: not a number in"),
        (arpa_of("-1\ta b -1 c", "-1\tb a"), "11: expected a 2-gram"),
        (arpa_of("-1\ta b", "-1\tb a", counts=(3, 10**11)), "the header has 100,000,000,000 2-grams"),
        (arpa_of("-1\ta b", "-1\tb a", counts=(3, 2, 1)), r"expected '\\\\3-grams:', found"),
        (arpa_of("-1\ta b", "-1\tb a", counts=(10**13, 2)), "expected 'ngram 1=COUNT'"),
        (arpa_of(counts=(0, 0)), "it has no words"),
        (arpa_of("-1\ta b", "-1\tb a").replace("2-grams:", "3-grams:"), r"expected '\\\\2-grams:', found"),
        (arpa_of("-1\ta b", "-1\tb a").replace("ngram 2=2", "ngram 2=x"), "expected 'ngram 2=COUNT'"),
        (arpa_of("-1\ta b", "-1\tb a").replace("ngram 2=", "ngram 7="), "expected 'ngram 2=COUNT'"),
        (arpa_of("-1\ta b", "-1\tb c"), "'c' is not among the unigrams"),
        (arpa_of("-1\ta b", "-1\tb a").replace("\\2-grams:", "-1\tc\t0\n\\2-grams:"), r"expected '\\\\2-grams:'"),
        (arpa_of("-1\ta b", "-1\tb a").removesuffix("\\end\\\n"), "ends early"),
        ("", "no line"),
        ("hello\n", "no line"),
    ],
)
def test_hostile_files_are_refused_with_line_and_reason(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(MegahourError, match=message) as caught:
        read_text(text, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/model.arpa:")


def test_a_byte_order_mark_before_the_header_is_no_text(tmp_path: Path) -> None:
    text = arpa_of("-1\ta b", "-1\tb a")
    assert read_text(f"\ufeff{text}", tmp_path) == read_text(text, tmp_path)
    marked = [(order, lines) for order, _, lines in sections(BytesIO(f"\ufeff{text}".encode()), "lm.arpa")]
    assert marked == [(order, lines) for order, _, lines in sections(BytesIO(text.encode()), "lm.arpa")]
