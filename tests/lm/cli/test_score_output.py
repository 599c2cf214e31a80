"""`megahour lm score` as SRILM prints it, and of several models at once."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from scorer import Scorer

from megahour.cli.main import app
from megahour.lm.arpa.model import read_arpa

LMPLZ = Path(__file__).parents[1] / "lmplz"
MODEL, OTHER = LMPLZ / "order3.arpa", LMPLZ / "order2.arpa"


def score(*arguments: object, text: str = "the captain zzz saw\n\nzzz\n") -> Result:
    words = ["lm", "score", *map(str, arguments)]
    return CliRunner().invoke(app, words, input=text, standalone_mode=False, catch_exceptions=False)


def test_srilms_lines() -> None:
    """The format of ngram -ppl -debug 2, which marks unknown words and leaves them out."""
    lines = score(MODEL, "--srilm").stdout.splitlines()
    assert lines[:8] == [
        "the captain zzz saw",
        "\tp( the | <s> ) \t= [2gram] 0.4557227 [ -0.3412993 ]",
        "\tp( captain | the ...) \t= [3gram] 0.1270299 [ -0.896094 ]",
        "\tp( <unk> | captain ...) \t= [OOV] 0 [ -inf ]",
        "\tp( saw | <unk> ...) \t= [1gram] 0.02705625 [ -1.567732 ]",
        "\tp( </s> | saw ...) \t= [1gram] 0.07234621 [ -1.140584 ]",
        "1 sentences, 4 words, 1 OOVs",
        "0 zeroprobs, logprob= -3.94571 ppl= 9.692314 ppl1= 20.66506",
    ]
    assert lines[8:13] == [
        "", "", "\tp( </s> | <s> ) \t= [1gram] 0.0179938 [ -1.744877 ]", "1 sentences, 0 words, 0 OOVs",
        "0 zeroprobs, logprob= -1.744877 ppl= 55.5747 ppl1= undefined",
    ]  # fmt: skip
    total = -3.94571 - 1.744877 - 0.9944562
    assert lines[-2:] == [
        "file -: 3 sentences, 5 words, 2 OOVs",
        f"0 zeroprobs, logprob= {total:.7g} ppl= {10 ** (-total / 6):.7g} ppl1= {10 ** (-total / 3):.7g}",
    ]


def test_a_mixture_is_the_weighted_sum_of_probabilities() -> None:
    found = score(MODEL, "--mix", OTHER, "--weights", "0.3,0.7", "--words").stdout.splitlines()[0]
    words = [field.rpartition("=") for field in found.split("\t")[:-1]]
    scorers = [Scorer(read_arpa(path)) for path in (MODEL, OTHER)]
    history: list[int] = [1]
    for word, _, facts in words:
        each = [scorer.log10_prob(scorer.vocabulary.ids.get(word, 0), history) for scorer in scorers]
        expected = 0.3 * 10 ** each[0] + 0.7 * 10 ** each[1]
        assert 10 ** float(facts.split()[2]) == pytest.approx(expected, rel=1e-4)
        history.append(scorers[0].vocabulary.ids.get(word, 0))
    assert [word for word, _, _ in words] == ["the", "captain", "zzz", "saw", "</s>"]
    assert [int(facts.split()[1]) for _, _, facts in words] == [2, 3, 1, 1, 1]
    assert found.endswith("OOV: 1")


def test_a_word_is_known_if_one_of_the_models_knows_it(tmp_path: Path) -> None:
    (tmp_path / "zzz").write_text("zzz saw zzz\n")
    CliRunner().invoke(app, ["lm", "train", str(tmp_path / "zzz"), "--order", "2", "--out", str(tmp_path / "z.arpa")])
    alone, both = score(MODEL).stdout, score(MODEL, "--mix", tmp_path / "z.arpa").stdout
    assert "OOVs:\t2\nTokens:\t8" in alone
    assert "OOVs:\t0\nTokens:\t8" in both
    assert score(MODEL, "--mix", MODEL).stdout == alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weights", "0.5,0.5"], "--weights goes with --mix"),
        (["--mix", OTHER, "--weights", "0.5"], "--weights needs 2 numbers ≥ 0 that sum to 1"),
        (["--mix", OTHER, "--weights", "1.5,-0.5"], "--weights needs 2 numbers ≥ 0 that sum to 1"),
        (["--mix", OTHER, "--weights", "nan,0.5"], "--weights needs 2 numbers ≥ 0 that sum to 1"),
        (["--mix", OTHER, "--weights", "a,b"], "--weights needs 2 numbers ≥ 0 that sum to 1"),
        (["--srilm", "--words"], "give one of --sentences, --words and --srilm"),
    ],
)
def test_mistakes_in_options(options: list[object], message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        score(MODEL, *options)
