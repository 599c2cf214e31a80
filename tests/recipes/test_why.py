"""Why a step runs again, in the words of its parameters."""

from __future__ import annotations

from megahour.core.receipts import Counts
from megahour.core.store import Manifest
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
