"""A model whose configuration does not fit it is refused by everything that loads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exported import TOKENS, model

from megahour.core.errors import StoreError
from megahour.core.store import Artifact
from megahour.models.configuration import read_config
from megahour.transcribe.parts import parts_of
from megahour.transcribe.recogniser import Recogniser

SWAPPED = [TOKENS[1], TOKENS[0], *TOKENS[2:]]


def changed(folder: Path, values: dict[str, Any]) -> str:
    """A model artifact whose configuration has other `values` than it was trained with."""
    trained = model(folder, "conformer")
    file = folder / "shards" / "00000.model.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **values}), "utf-8")
    return trained.url


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"tokens": TOKENS[:-1]}, "the model has 10 outputs, but 9 tokens"),
        ({"tokens": [*TOKENS[:-1], 7]}, "are not names"),
        ({"tokens": SWAPPED}, "token 0 of the model is ' ', not the blank"),
        ({"tokens": [*TOKENS[:-1], TOKENS[1]]}, "the token ' ' of the model occurs twice"),
        ({"tokens": [*TOKENS[:-1], "▁a"]}, "tokens of the model begin with ▁"),
        ({"tags": ["de", "en"]}, "heads '{}' of the model"),
    ],
)
def test_tokens_that_would_spell_other_texts_are_refused(values: dict[str, Any], why: str, tmp_path: Path) -> None:
    """With the blank in another place, texts were full of `<blank>`."""
    with pytest.raises(StoreError, match=why):
        read_config(Artifact(changed(tmp_path / "model", values)))


@pytest.mark.parametrize("mean", [[0.3] * 15, [float("nan")] * 16, "none"])
def test_statistics_that_would_leave_no_words_are_refused(mean: Any, tmp_path: Path) -> None:
    url = changed(tmp_path / "model", {"stats": {"mean": mean, "inv_std": [0.4] * 16}})
    with pytest.raises(StoreError, match=r"statistics|are not numbers"):
        Recogniser(parts_of(url))
