"""One export in every format, shared by the tests that open it with other tools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # `datasets` asks nobody: read when it is imported
from corpus import made_rows, run, write_corpus

from megahour.core.store import Artifact
from megahour.corpus.interchange.export_stage import Export
from megahour.corpus.interchange.params import ExportParams

FORMATS = ["webdataset", "shar", "nemo", "parquet", "kaldi", "ctm", "textgrid", "srt", "files"]


@pytest.fixture(scope="session")
def rows() -> list[dict[str, Any]]:
    return made_rows(11)


@pytest.fixture(scope="session")
def utterances(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Two shards and an empty one."""
    return write_corpus(tmp_path_factory.mktemp("utterances"), [rows[:6], [], rows[6:]])


@pytest.fixture(scope="session")
def exported(utterances: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an export whose first shard is split in two."""
    folder = tmp_path_factory.mktemp("out") / "export"
    p = ExportParams(formats=FORMATS, with_text=True, prefix=f"{folder}/", max_tar_mb=0.09)
    run(Export(), p, {"utterances": utterances}, folder)
    return folder
