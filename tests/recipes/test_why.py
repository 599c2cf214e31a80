"""Why a step runs again, in the words of its parameters."""

from __future__ import annotations

import os
from pathlib import Path

from made_media import encode, murmur, put

from megahour.core.receipts import Counts
from megahour.core.store import Manifest
from megahour.corpus.apply.params import ApplyParams
from megahour.corpus.apply.stage import Apply
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.stage import Ingest
from megahour.recipes.recipe import load_stage
from megahour.recipes.run import difference
from megahour.select.params import SelectParams
from megahour.select.stage import Select


def test_a_changed_rule_is_shown_without_what_it_leaves_out() -> None:
    before = SelectParams.model_validate({"sets": [{"name": "test", "speakers": 1}, {"name": "train"}]})
    after = SelectParams.model_validate({"sets": [{"name": "test", "share": 0.1}, {"name": "train"}]})
    stage = Select()
    made = Manifest(stage.name, stage.version, "f", "d", before.identity(), {}, 1, Counts(), {})
    assert difference(stage, after, made, {}) == (
        "sets [{'name': 'test', 'speakers': 1}, {'name': 'train'}] → "
        "[{'name': 'test', 'share': 0.1}, {'name': 'train'}]"
    )
    assert difference(stage, before, made, {}) == ""


def test_copied_sources_with_other_times_are_not_called_other_contents(tmp_path: Path) -> None:
    talk = put(tmp_path, "talks/one.wav", encode(murmur(1.0)))
    p = IngestParams(source=str(talk.parent))
    made = Manifest("ingest", 1, "f", "d", p.identity(), {}, 1, Counts(), {})
    os.utime(talk, (1, 1))
    assert difference(Ingest(), p, made, {}).startswith("its source files changed in name, size or time")


def test_bundles_are_compared_by_contents(tmp_path: Path) -> None:
    bundle = put(tmp_path, "voice/bundle.json", "{}")
    stage = load_stage("synthesise")
    p = stage.params(bundles=[str(bundle.parent)])
    made = Manifest("synthesise", stage.version, "f", "d", p.identity(), {}, 1, Counts(), {})
    os.utime(bundle, (1, 1))
    assert difference(stage, p, made, {}) == ""
    bundle.write_text('{"other": 1}', "utf-8")
    assert difference(stage, p, made, {}) == "its source files changed"


def test_a_changed_function_is_no_source(tmp_path: Path) -> None:
    mine = put(tmp_path, "mine.py", "def mine(batch): return batch\n")
    p = ApplyParams(function=f"{mine}:mine")
    made = Manifest("apply", Apply.version, "f", "d", p.identity(), {}, 1, Counts(), {})
    mine.write_text("def mine(batch): return batch[:1]\n", "utf-8")
    assert difference(Apply(), p, made, {}) == "its function's file changed"


def test_a_copied_model_with_another_time_is_not_called_other_contents(tmp_path: Path) -> None:
    stage, model = load_stage("import-aligner"), put(tmp_path, "model.onnx", b"graph")
    p = stage.params(model=str(model))
    made = Manifest("import-aligner", stage.version, "f", "d", p.identity(), {}, 1, Counts(), {})
    os.utime(model, (1, 1))
    assert difference(stage, p, made, {}) == "its source files changed in name, size or time"
