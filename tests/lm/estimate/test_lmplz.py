"""Against `lmplz` itself, where it is on the PATH: translated messages of the system's programs, in four languages.

`lmplz` takes one n-gram too many or too few into a lower order's counts of counts (kpu/kenlm#405, #427), which moves
discounts of small texts by more than what is compared here; the texts are as large as the system has them.
"""

from __future__ import annotations

import gettext
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from megahour.lm.estimate.estimate import estimate
from megahour.lm.estimate.reading import read_corpus, vocabulary_of
from megahour.lm.text.sources import blocks
from megahour.lm.text.tokenise import WordTable

LMPLZ = shutil.which("lmplz")
LOCALES = Path("/usr/share/locale")
pytestmark = pytest.mark.skipif(LMPLZ is None, reason="build kpu/kenlm and put lmplz on the PATH to compare with it")


@cache
def messages(language: str) -> list[str]:
    """Sentences of all translations into a language, each once."""
    found: dict[str, None] = {}
    for path in sorted(LOCALES.glob(f"{language}/LC_MESSAGES/*.mo")):
        with path.open("rb") as file:
            try:
                catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
            except UnicodeDecodeError:
                continue  # it is not in the encoding that it names
        found.update(dict.fromkeys(line for text in catalogue.values() for line in text.splitlines() if line.strip()))
    return list(found)


def largest_difference(text: Path, order: int, options: list[str], **ours: object) -> tuple[float, float]:
    """Of log10 p and log10 γ; n-grams must be the same."""
    theirs, mine = text.with_suffix(".lmplz.arpa"), text.with_suffix(".arpa")
    command = [str(LMPLZ), "-o", str(order), "-S", "1G", "--text", str(text), "--arpa", str(theirs), "--skip_symbols"]
    subprocess.run([*command, "--discount_fallback", *options], check=True, capture_output=True)
    estimate(read_corpus(blocks([str(text)]), skip_symbols=True).corpus, order, mine, **ours)  # type: ignore[arg-type]
    expected, found = lines_of(theirs), lines_of(mine)
    assert found.keys() == expected.keys()
    far = np.abs(np.array([found[gram] for gram in expected]) - np.array(list(expected.values()))).max(axis=0)
    return float(far[0]), float(far[1])


def lines_of(arpa: Path) -> dict[bytes, tuple[float, float]]:
    """(log10 p, log10 γ) by n-gram, read without `megahour`."""
    fields = (line.split(b"\t") for line in arpa.read_bytes().split(b"\n"))
    return {one[1]: (float(one[0]), float(one[2]) if len(one) > 2 else 0.0) for one in fields if len(one) > 1}


@pytest.fixture
def text(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    lines = messages(request.param)
    if len(lines) < 5000:
        pytest.skip(f"the system has only {len(lines)} messages in {request.param}")
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "order"), [("de", 3), ("fr", 4), ("ru", 3), ("ru", 1), ("de", 2), ("es", 6), ("fr", 7)], indirect=["text"]
)
def test_languages_and_orders(text: Path, order: int) -> None:
    assert max(largest_difference(text, order, [])) < 1e-5


@pytest.mark.parametrize("text", ["ru"], indirect=True)
@pytest.mark.parametrize("cutoffs", [[0, 1], [0, 0, 1], [0, 1, 2, 4]])
def test_pruning(text: Path, cutoffs: list[int]) -> None:
    options = ["--prune", *map(str, cutoffs)]
    assert max(largest_difference(text, 5, options, cutoffs=cutoffs)) < 1e-5


@pytest.mark.parametrize("text", ["fr"], indirect=True)
@pytest.mark.parametrize("cutoffs", [[0], [0, 0, 1]])
def test_limited_vocabulary(text: Path, cutoffs: list[int]) -> None:
    corpus = read_corpus(blocks([str(text)]), skip_symbols=True).corpus
    counts = np.bincount(corpus.tokens, minlength=corpus.size)
    listed = [corpus.spell(number) for number in np.flatnonzero(counts >= 5).tolist() if number > 2]
    path = text.with_name("words")
    path.write_bytes(b"\n".join(listed) + b"\n")
    options = ["--limit_vocab_file", str(path), "--prune", *map(str, cutoffs)]
    allowed = np.isin([corpus.spell(i) for i in range(corpus.size)], listed).astype(np.uint8)
    assert len(vocabulary_of(blocks([str(path)]))) == len(listed) + len(WordTable())
    assert max(largest_difference(text, 4, options, cutoffs=cutoffs, allowed=allowed)) < 1e-5
