"""A damaged manifest, or other record of an artifact, is named; other steps continue, and a run repairs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_stages import TOY_STAGES, write_recipe

from megahour.core.errors import DamagedError, StoreError
from megahour.core.receipts import Counts, Manifest
from megahour.core.store import Artifact
from megahour.recipes import stage_table
from megahour.recipes.recipe import Recipe, load_recipe
from megahour.recipes.run import execute, plan
from megahour.runner.monitor import Monitor

THREE = """
run: {run}
seed: 10
engine: {{workers: 1}}
steps:
  first: {{stage: toy-count, shards: 2}}
  second: {{stage: toy-count, shards: 2, seed: 20}}
  grouped: {{stage: toy-parity, inputs: {{numbers: first}}}}
"""


def without(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda manifest: {name: value for name, value in manifest.items() if name != key}


# What happens to the manifest, and what is said of it.
DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "empty file": (lambda manifest: b"", "Expecting value"),
    "truncated": (lambda manifest: json.dumps(manifest)[:99].encode(), "damaged manifest"),
    "binary junk": (lambda manifest: bytes(range(128, 256)) * 9, "codec can't decode"),
    "zeros": (lambda manifest: bytes(512), "damaged manifest"),
    "another file": (lambda manifest: b"<html>404</html>", "Expecting value"),
    "deep nesting": (lambda manifest: b"[" * 100_000, "it nests too deeply"),
    "a list": (lambda manifest: [manifest], "not a mapping"),
    "a string": (lambda manifest: "manifest", "it is 'manifest', not a mapping"),
    "null": (lambda manifest: None, "it is None, not a mapping"),
    "a key is missing": (without("digest"), "it has no digest"),
    "no format": (without("format"), "it has no format"),
    "an unknown key": (lambda manifest: manifest | {"flavour": "mint"}, "unknown key flavour"),
    "shards is text": (lambda manifest: manifest | {"shards": "two"}, "shards of it is 'two', not int"),
    "shards is yes": (lambda manifest: manifest | {"shards": True}, "shards of it is True, not int"),
    "inputs is a list": (lambda manifest: manifest | {"inputs": []}, "inputs of it is [], not dict"),
    "counts is a number": (lambda manifest: manifest | {"counts": 3}, "counts of it is 3, not dict"),
    "a count is text": (
        lambda manifest: manifest | {"counts": manifest["counts"] | {"kept": "all"}},
        "kept of counts is 'all', not int",
    ),
    "a reason is no number": (
        lambda manifest: manifest | {"counts": manifest["counts"] | {"dropped": {"short": None}}},
        "short of dropped is None, not int",
    ),
    "an old format": (lambda manifest: manifest | {"format": 0}, "unknown format 0"),
}


@pytest.fixture(autouse=True)
def toy_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in TOY_STAGES.items():
        monkeypatch.setitem(stage_table.STAGES, name, entry)


@pytest.fixture
def made(tmp_path: Path) -> Recipe:
    recipe = load_recipe(write_recipe(tmp_path, THREE))
    assert len(list(execute(recipe, lambda step: Monitor()))) == 3
    return recipe


def damage(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    changed = change(json.loads(path.read_bytes()))
    path.write_bytes(changed if isinstance(changed, bytes) else json.dumps(changed).encode())


def states(recipe: Recipe) -> dict[str, str]:
    return {p.step.name: p.state for p in plan(recipe)}


@pytest.mark.parametrize(("change", "said"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_manifest_is_named(tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str) -> None:
    manifest = Manifest("toy", 1, "f", "d", {}, {}, 2, Counts(), {})
    damage_text = change(json.loads(manifest.to_json()))
    (tmp_path / "manifest.json").write_bytes(
        damage_text if isinstance(damage_text, bytes) else json.dumps(damage_text).encode()
    )
    with pytest.raises(DamagedError, match="damaged manifest") as caught:
        _ = Artifact(tmp_path).manifest
    assert said in str(caught.value)


def test_a_manifest_that_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DamagedError, match="it cannot be read: Is a directory"):
        _ = Artifact(tmp_path).manifest


def test_a_manifest_of_a_later_megahour_is_not_taken_for_damage(made: Recipe) -> None:
    """It is intact: making it again would discard the result of a newer version."""
    path = Path(made.run) / "first" / "manifest.json"
    damage(path, lambda manifest: manifest | {"format": 2, "colour": "red"})
    with pytest.raises(StoreError, match="has format 2, this version reads 1") as caught:
        _ = Artifact(path.parent).manifest
    assert "first" in str(caught.value)
    assert "a newer one" in str(caught.value)
    assert states(made) == {"first": "damaged", "second": "done", "grouped": "stale"}
    with pytest.raises(StoreError, match="has format 2"):
        list(execute(made, lambda step: Monitor()))


@pytest.mark.parametrize("step", ["first", "second", "grouped"])
def test_one_damaged_manifest_stops_no_plan_and_the_run_mends_it_from_the_shards(made: Recipe, step: str) -> None:
    home = Path(made.run)
    before = {path: path.stat().st_ino for path in home.glob("*/shards/*")}
    manifests = {path: path.read_bytes() for path in home.glob("*/manifest.json")}
    damage(home / step / "manifest.json", lambda manifest: b'{"format": 1,')
    found = states(made)
    assert found.pop(step) == "damaged"
    assert set(found.values()) == ({"done", "stale"} if step == "first" else {"done"})
    (why,) = (p.why for p in plan(made) if p.step.name == step)
    assert "run the recipe" in why

    list(execute(made, lambda name: Monitor()))
    assert {path: path.read_bytes() for path in home.glob("*/manifest.json")} == manifests
    assert {path: path.stat().st_ino for path in home.glob("*/shards/*")} == before, "no shard was made again"
    assert set(states(made).values()) == {"done"}


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"first": "long"}', "\x00"])
def test_figures_that_nothing_depends_on_may_be_damaged(made: Recipe, text: str) -> None:
    home = Path(made.run)
    for path in (home / "history.json", home / "first/timings/total.json", home / "first/timings/00000.json"):
        path.write_text(text)
    assert set(states(made).values()) == {"done"}
    assert all(p.seconds is None for p in plan(made) if p.step.name == "first")
    (home / "first" / "manifest.json").unlink()
    assert len(list(execute(made, lambda step: Monitor()))) == 3


def test_a_stray_file_among_the_receipts_is_no_shard(made: Recipe) -> None:
    receipts = Path(made.run) / "first" / "receipts"
    (receipts / "copy of 00000.json").write_text("{}")
    (Path(made.run) / "first" / "manifest.json").unlink()
    assert states(made)["first"] == "partial"
    list(execute(made, lambda step: Monitor()))


@pytest.mark.parametrize("line", [b"", b"[]", b'"x"', b'{"shard": 0}', b"\xff\xfe", b'{"shard": "0"}'])
def test_damaged_receipts_are_named(made: Recipe, line: bytes) -> None:
    path = Path(made.run) / "first" / "receipts.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(DamagedError, match=r"damaged receipts\.jsonl") as caught:
        Artifact(path.parent).receipts()
    assert "megahour verify --repair" in str(caught.value)


def test_an_input_from_elsewhere_that_is_gone_blocks_its_step_only(tmp_path: Path) -> None:
    text = THREE.replace("numbers: first", "numbers: elsewhere/numbers")
    recipe = load_recipe(write_recipe(tmp_path, text))
    assert states(recipe) == {"first": "missing", "second": "missing", "grouped": "blocked"}
    with pytest.raises(StoreError, match="elsewhere/numbers: no manifest"):
        next(execute(recipe, lambda step: Monitor()))
    assert not (tmp_path / "run").exists(), "refused before anything ran"
