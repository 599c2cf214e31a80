"""The data of trainings that lose workers."""

from __future__ import annotations

import pytest
from coordinated import SMALL
from made_artifacts import utterances
from trainings import seen, trained, training_data

from megahour.core.store import Artifact


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return training_data(tmp_path_factory.mktemp("data"), utterances(60, speakers=6), shards=2)


@pytest.fixture(scope="module")
def an_epoch(data: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int]:
    """Number and key sum of an epoch's pieces."""
    _, rows = trained(tmp_path_factory.mktemp("alone"), data, {**SMALL, "workers": 1, "epochs": 1})
    return seen(rows)
