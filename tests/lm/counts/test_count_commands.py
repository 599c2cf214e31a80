"""`megahour lm count`, and `lm train` of counts and by Witten-Bell."""

from __future__ import annotations

from pathlib import Path

import pytest
from lm_command import megahour
from models import SMALL, entries
from test_count_estimates import assert_alike, estimated

from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import read_arpa

TEXT = Path(__file__).parents[1] / "small.txt"


def test_a_model_of_counts_is_that_of_the_text(tmp_path: Path) -> None:
    done = megahour("count", TEXT, "--order", 3, "--out", tmp_path / "counts.gz")
    assert "242 n-grams (31, 87, 124), 201 tokens" in done.output
    megahour("count", tmp_path / "counts.gz", "--counts", "--form", "google", "--out", tmp_path / "folder")
    done = megahour("train", tmp_path / "folder", "--counts", "--order", 3, "--out", tmp_path / "counts.arpa")
    assert "175 words, 29 types" in done.output
    megahour("train", TEXT, "--order", 3, "--out", tmp_path / "text.arpa")
    assert_alike(read_arpa(tmp_path / "counts.arpa"), read_arpa(tmp_path / "text.arpa"))


@pytest.mark.parametrize("smoothing", ["witten-bell", "witten-bell-backoff"])
def test_witten_bell_of_text(tmp_path: Path, smoothing: str) -> None:
    done = megahour(
        "train", TEXT, "--order", 3, "--smoothing", smoothing, "--prune", "0,0,1", "--out", tmp_path / "a.arpa"
    )
    assert "D1" not in done.output
    assert_alike(read_arpa(tmp_path / "a.arpa"), estimated(SMALL, 3, smoothing, (0, 0, 1)).model)  # type: ignore[arg-type]
    # SRILM 1.7.3: ngram-count -order 3 -wbdiscount [-interpolate] -gt3min 2 -unk
    assert entries(read_arpa(tmp_path / "a.arpa"))[("the",)][0] == pytest.approx(
        {"witten-bell": -0.772907, "witten-bell-backoff": -0.783828}[smoothing], abs=1e-6
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "1GB"], "--memory needs text; leave it out with --counts"),
        (["--limit-vocabulary", TEXT], "--limit-vocabulary needs text"),
        (["--smoothing", "stupid"], "--smoothing stupid needs text"),
    ],
)
def test_options_that_want_the_text_are_refused(tmp_path: Path, options: list[object], message: str) -> None:
    with pytest.raises(MegahourError, match=message):
        megahour("train", TEXT, "--counts", *options, "--out", tmp_path / "a.arpa")
    with pytest.raises(MegahourError, match="mlm file needs text"):
        megahour("train", TEXT, "--counts", "--out", tmp_path / "a.mlm")
