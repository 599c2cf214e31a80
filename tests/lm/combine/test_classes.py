"""Class models: sums over all ways to spell a sentence, by definition; SRILM's numbers; expanded into words."""

from __future__ import annotations

from itertools import pairwise, product
from math import log10
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from models import entries, estimate_text
from scorer import Scorer

from megahour.cli.main import app
from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.arpa.model import NgramModel, read_arpa
from megahour.lm.combine.expand import expand
from megahour.lm.query.batch import score_lines
from megahour.lm.query.classes import ClassScorer, read_classes
from megahour.lm.query.convert import write_model
from megahour.lm.query.mapped_import import from_model
from megahour.lm.query.scorer import NgramScorer

TEXT = [
    "fly to CITY on DAY", "fly to CITY", "york is old", "on DAY we fly to CITY", "CITY is old", "we fly on DAY",
    "new days", "DAY is new", "CITY to CITY on DAY", "we fly to york",
]  # fmt: skip
LINES = "CITY 0.5 new york\nCITY 0.3 york\nCITY 0.2 rome\n\nDAY 0.75 monday\nDAY 0.25 rome\nOTHER x\n"


@pytest.fixture(scope="module")
def model() -> NgramModel:
    return estimate_text(TEXT, 3).model


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    (tmp_path / "classes").write_text(LINES)
    return tmp_path / "classes"


@pytest.fixture
def scorer(model: NgramModel, classes: Path) -> ClassScorer:
    return ClassScorer(NgramScorer(from_model(model)), read_classes(classes))


def by_definition(model: NgramModel, classes: Path, words: list[str]) -> float:
    """P of a sentence: each cut into parts, each part a word or any class that has it."""
    slow, total = Scorer(model), 0.0
    defined = [
        (name, tuple(said), p) for name, each in read_classes(classes).items() for said, p in each if name != "OTHER"
    ]
    for ends in product([False, True], repeat=max(len(words) - 1, 0)):
        cuts = [0, *(i for i, end in enumerate(ends, 1) if end), len(words)]
        parts = [tuple(words[a:b]) for a, b in pairwise(cuts)] if words else []
        ways = []
        for part in parts:
            named = [(name, p) for name, said, p in defined if said == part]
            own = [(part[0], 1.0)] if len(part) == 1 and part[0] in model.vocabulary.ids else []
            if len(part) == 1 and not any(part[0] in said for _, said, _ in defined):
                own = own or [("<unk>", 1.0)]
            ways.append([*own, *named])
        for way in product(*ways):
            total += float(np.prod([p for _, p in way])) * 10.0 ** slow.sentence([name for name, _ in way]).log10_prob
    return log10(total)


@pytest.mark.parametrize(
    "sentence",
    [
        "fly to new york on monday",
        "rome is old",
        "rome to rome on rome",
        "we fly to york",
        "york",
        "new york is new",
        "",
    ],
)
def test_a_sentence_has_the_probability_of_all_ways_to_spell_it(
    model: NgramModel, classes: Path, scorer: ClassScorer, sentence: str
) -> None:
    found = scorer.score_lines(f"{sentence}\n".encode())
    assert found.log10_prob[0] == pytest.approx(by_definition(model, classes, sentence.split()), abs=1e-5)
    assert found.word_log10_prob.sum() == pytest.approx(found.log10_prob[0], abs=1e-5)
    assert found.words.tolist() == [len(sentence.split())]
    assert found.oov.tolist() == [0]
    assert found.ngram_length.max() <= 3


def test_after_an_unknown_word_only_complete_classes_go_on(classes: Path) -> None:
    rare = ["new z1 is old", "fly to CITY z2", "to z3 to york", "york z4 old", "CITY z5 is new"]
    words = {word for line in TEXT for word in line.split()}
    model = estimate_text([*TEXT, *rare], 3, limit=len(words)).model
    scorer = ClassScorer(NgramScorer(from_model(model)), read_classes(classes))
    for line in (
        "fly to new z is old",
        "rome z is old",
        "new z rome z york",
        "york z old z",
        "fly to new york z on rome",
    ):
        found = scorer.score_lines(f"{line}\n".encode()).log10_prob[0]
        assert found == pytest.approx(by_definition(model, classes, line.split()), abs=1e-5), line


def test_a_word_that_no_hypothesis_goes_on_with_is_impossible_and_the_next_ones_have_probabilities(
    scorer: ClassScorer,
) -> None:
    only = {"CITY": [(("los", "angeles"), 0.5), (("los", "alamos"), 0.5)]}
    found = ClassScorer(scorer.scorer, only).score_lines(b"fly to los york is old\n")
    assert found.word_log10_prob[3] == -99.0
    assert (found.word_log10_prob[4:] > -9.0).all()


def test_classes_are_separated_as_texts_are(tmp_path: Path) -> None:
    (tmp_path / "classes").write_bytes("CITY 0.5 new\u00a0york\r\n".encode())
    assert read_classes(tmp_path / "classes") == {"CITY": [(("new\u00a0york",), 0.5)]}


def test_words_that_neither_the_model_nor_a_class_knows_are_unknown(scorer: ClassScorer) -> None:
    found = scorer.score_lines(b"fly to zebra\nrome\n")
    assert found.oov.tolist() == [1, 0]
    assert found.log10_oov[0] == pytest.approx(found.word_log10_prob[2])
    assert found.ngram_length[2] == 0
    lost = scorer.score_lines(b"x\n")
    assert lost.oov.tolist() == [1], "of a class that the model lacks"


SRILM_LM = """
\\data\\
ngram 1=7
ngram 2=9

\\1-grams:
-0.8016323	</s>
-99	<s>	-0.2331298
-0.5797836	<unk>
-0.9777236	HOME	-0.1362197
-0.6766936	WHO	-0.312311
-0.8016323	saw	-0.2331298
-0.9777236	the	-0.4288166

\\2-grams:
-0.39794	<s> WHO
-0.69897	<s> the
-0.60206	HOME </s>
-0.60206	HOME saw
-0.4771213	WHO </s>
-0.4771213	WHO saw
-0.39794	saw WHO
-0.69897	saw the
-0.1760913	the HOME

\\end\\
"""


def test_srilms_numbers(tmp_path: Path) -> None:
    """SRILM 1.7.3: ngram -lm LM -classes FILE -unk -order 2 -ppl TEXT -debug 2."""
    (tmp_path / "lm.arpa").write_text(SRILM_LM)
    (tmp_path / "classes").write_text("WHO 0.4 he\nWHO 0.6 she\nHOME 0.7 old house\nHOME 0.3 little red house\n")
    (tmp_path / "text").write_text("she saw the old house\nthe little red house\n")
    lm, text, classes = (str(tmp_path / name) for name in ("lm.arpa", "text", "classes"))
    words = ["lm", "score", lm, text, "--srilm", "--classes", classes]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    found = [float(line.split("[ ")[1].split(" ]")[0]) for line in done.output.splitlines() if "[ " in line]
    wanted = [-0.6197888, -0.4771212, -0.6989701, -0.3309932, 0, -0.6020601, -0.69897, -0.69897, 0, 0, -0.60206]
    assert found == pytest.approx(wanted, abs=1e-5)
    assert "file" in done.output
    assert "2 sentences, 9 words, 0 OOVs" in done.output


def test_expanded_single_words_of_one_class_are_the_class_model(model: NgramModel, tmp_path: Path) -> None:
    (tmp_path / "classes").write_text("CITY 0.8 paris\nCITY 0.2 rome\nDAY monday\n")
    scorer = ClassScorer(NgramScorer(from_model(model)), read_classes(tmp_path / "classes"))
    words = expand(model, scorer)
    assert {"CITY", "DAY"}.isdisjoint(words.vocabulary.words)
    assert words.sizes[2] > model.sizes[2]
    slow = Scorer(words)
    for line in ("fly to rome on monday", "paris to rome", "monday is new", "we fly fly york", "old paris days"):
        wanted = scorer.score_lines(f"{line}\n".encode()).word_log10_prob
        found = [slow.sentence(line.split()).log10_prob, slow.sentence(line.split()[:-1]).log10_prob]
        assert found[0] == pytest.approx(float(wanted.sum()), abs=1e-5)


def test_an_expanded_model_sums_to_one_and_knows_what_goes_on_within_a_class(
    model: NgramModel, scorer: ClassScorer
) -> None:
    words = expand(model, scorer, order=4)
    assert words.order == 4
    slow, found = Scorer(words), entries(words)
    for history in (["<s>"], ["<s>", "fly", "to", "new"], ["new"], ["rome"], ["to", "new", "york"], ["york", "on"]):
        numbers = words.vocabulary.encode(history)
        total = sum(10.0 ** slow.log10_prob(w, numbers) for w in range(len(words.vocabulary)) if w != 1)
        assert total == pytest.approx(1.0, abs=1e-5)
    assert 10.0 ** found[("to", "new", "york")][0] > 0.5 > 10.0 ** found[("york",)][0]
    assert ("is", "CITY") not in found
    assert ("fly", "to", "new", "york") in found


def test_what_cannot_be_expanded_is_refused(model: NgramModel, scorer: ClassScorer, tmp_path: Path) -> None:
    with pytest.raises(MegahourError, match="n-grams, the limit is 10"):
        expand(model, scorer, most=10)
    (tmp_path / "none").write_text("OTHER 0.5 a b\n")
    with pytest.raises(ConfigError, match="the model has none of the 1 classes"):
        ClassScorer(NgramScorer(from_model(model)), read_classes(tmp_path / "none"))
    for text, message in (
        ("A 0.5 b\nA 0.5\n", "none:2: a class without words"),
        ("A 1.5 b\n", "none:1: 1.5 is not a prob"),
    ):
        (tmp_path / "none").write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_classes(tmp_path / "none")


def test_the_command_writes_the_expanded_model(model: NgramModel, classes: Path, tmp_path: Path) -> None:
    write_model(model, tmp_path / "class.arpa")
    words = [
        "lm",
        "expand",
        str(tmp_path / "class.arpa"),
        "--classes",
        str(classes),
        "--out",
        str(tmp_path / "words.arpa"),
    ]
    assert "n-grams" in CliRunner().invoke(app, words, catch_exceptions=False).output
    assert ("new", "york", "is") in entries(read_arpa(tmp_path / "words.arpa"))
    text = tmp_path / "text"
    text.write_text("we fly to rome\n")
    mixed = ["lm", "score", str(tmp_path / "class.arpa"), str(text), "--classes", str(classes), "--mix", "other.arpa"]
    assert "expand it first" in CliRunner().invoke(app, mixed).output


def test_lines_end_where_they_end_for_other_models(model: NgramModel, scorer: ClassScorer) -> None:
    """Old line ends within a line are blanks; otherwise a mixture with another model has two numbers of sentences."""
    lines = b"fly to\rnew york\r\n\nrome"
    found, other = scorer.score_lines(lines), score_lines(from_model(model), lines)
    assert found.words.tolist() == other.words.tolist() == [4, 0, 1]
