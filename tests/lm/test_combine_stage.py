"""Stages `lm-interpolate`, `lm-prune`, `lm-perplexity`, `lm-convert`: the sums of `lm/combine` on artifacts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from models import SMALL, entries

from megahour.core.config import parse
from megahour.core.errors import ConfigError
from megahour.core.kinds import kind_of
from megahour.core.store import Artifact
from megahour.engine.local import LocalEngine
from megahour.lm.arpa.model import NgramModel
from megahour.lm.combine.interpolate import gather, interpolate, tune
from megahour.lm.combine.trie import unpack
from megahour.lm.combine_stage import Convert, Interpolate, Perplexity, Prune
from megahour.lm.params import LanguageModelParams
from megahour.lm.query.convert import read_lm, read_model
from megahour.lm.stage import LanguageModel
from megahour.runner.runner import run_stage


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, engine: LocalEngine) -> dict[str, Artifact]:
    """Two artifacts of `language-model`, `lm1` and `lm2`."""
    folder, made = tmp_path_factory.mktemp("models"), {}
    for role, lines in (("lm1", SMALL[:14]), ("lm2", SMALL[14:])):
        (folder / f"{role}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        params = LanguageModelParams(source=[f"{folder}/{role}.txt"])
        made[role] = Artifact(folder / role)
        run_stage(LanguageModel(), params, {}, made[role], engine, work=folder / "work")
    return made


@pytest.fixture
def heldout(tmp_path: Path) -> str:
    (tmp_path / "heldout.txt").write_text("".join(f"{line}\n" for line in SMALL[10:18]), "utf-8")
    return f"{tmp_path}/heldout.txt"


def run(stage: Any, values: dict[str, Any], inputs: dict[str, Artifact], out: Path, engine: LocalEngine) -> Artifact:
    params = parse(stage.params, values, where="test")
    run_stage(stage, params, inputs, Artifact(out), engine, work=out.parent / "work")
    return Artifact(out)


def alike(model: NgramModel, other: NgramModel) -> bool:
    """The same n-grams, and their numbers to 1e-6."""
    found, wanted = entries(model), entries(other)
    return found.keys() == wanted.keys() and all(found[gram] == pytest.approx(wanted[gram], abs=1e-6) for gram in found)


def test_weights_are_tuned_on_held_out_text_and_the_models_merged(
    models: dict[str, Artifact], heldout: str, tmp_path: Path, engine: LocalEngine
) -> None:
    mixed = run(Interpolate(), {"heldout": [heldout]}, models, tmp_path / "mixed", engine)
    members = gather([read_lm(model) for model in models.values()])
    fitted = tune(members, [line.split() for line in SMALL[10:18]])
    assert mixed.manifest.summary["weights"] == pytest.approx(fitted.weights)
    assert mixed.manifest.summary["models"] == ["lm1", "lm2"]
    merged, expected = read_lm(mixed), unpack(interpolate(members, fitted.weights), members.vocabulary)
    assert alike(merged, expected)
    assert tuple(mixed.read_bytes(0, ".vocab.txt").decode().split()) == merged.vocabulary.words[3:]
    assert kind_of(mixed) == "lm"


def test_models_may_be_files_and_held_out_text_an_artifact(
    models: dict[str, Artifact], tmp_path: Path, engine: LocalEngine
) -> None:
    """`lm2` as a compressed file: the same model."""
    packed, text = tmp_path / "notes.arpa.gz", tmp_path / "text"
    packed.write_bytes(gzip.compress(models["lm2"].read_bytes(0, ".arpa")))
    given = {"lm1": models["lm1"]}
    by_file = run(Interpolate(), {"files": [str(packed)], "weights": [0.6, 0.4]}, given, text, engine)
    by_role = run(Interpolate(), {"weights": [0.6, 0.4]}, models, tmp_path / "roles", engine)
    assert by_file.read_bytes(0, ".arpa") == by_role.read_bytes(0, ".arpa")
    assert by_file.manifest.summary["models"] == ["lm1", str(packed)]


def test_pruning_reaches_a_size_and_depends_on_the_contexts(
    models: dict[str, Artifact], heldout: str, tmp_path: Path, engine: LocalEngine
) -> None:
    kept = set()
    for name, values, inputs in (
        ("own", {}, {}),
        ("text", {"history_text": [heldout]}, {}),
        ("model", {}, {"history": models["lm2"]}),
    ):
        given = {"lm": models["lm1"], **inputs}
        small = run(Prune(), {"ngrams": 90, **values}, given, tmp_path / name, engine)
        assert sum(small.manifest.summary["ngrams"]) == 90
        kept.add(frozenset(entries(read_lm(small))))
    assert len(kept) == 3


def test_perplexities_of_several_models_stand_in_one_table(
    models: dict[str, Artifact], heldout: str, tmp_path: Path, engine: LocalEngine
) -> None:
    judged = run(Perplexity(), {"source": [heldout]}, models, tmp_path / "judged", engine)
    table = json.loads(judged.read_bytes(0, ".json"))
    assert table == judged.manifest.summary
    assert set(table) == {"lm1", "lm2"}
    words = sum(len(line.split()) + 1 for line in SMALL[10:18])
    assert all(row["tokens"] + row["unknown"] == words for row in table.values())
    assert table["lm1"]["perplexity"] < table["lm1"]["perplexity_with_unknown"]


@pytest.mark.parametrize("form", ["mlm", "arpa.gz"])
def test_a_converted_model_is_an_lm_artifact_too(
    form: str, models: dict[str, Artifact], tmp_path: Path, engine: LocalEngine
) -> None:
    packed = run(Convert(), {"form": form}, {"lm": models["lm1"]}, tmp_path / "packed", engine)
    with packed.local(0, f".{form}") as path:
        assert alike(read_model(path), read_lm(models["lm1"]))
    assert packed.read_bytes(0, ".vocab.txt") == models["lm1"].read_bytes(0, ".vocab.txt")
    assert alike(read_lm(packed), read_lm(models["lm1"]))
    assert kind_of(packed) == "lm"


@pytest.mark.parametrize(("form", "kind"), [("kenlm-probing", 0), ("kenlm-trie", 2)])
def test_kenlms_binary_form_is_made_by_a_stage(
    form: str, kind: int, models: dict[str, Artifact], tmp_path: Path, engine: LocalEngine
) -> None:
    """Byte 96 of its header is the kind of its tables. What wants n-grams says that it cannot have them."""
    packed = run(Convert(), {"form": form}, {"lm": models["lm1"]}, tmp_path / "packed", engine)
    assert packed.read_bytes(0, ".kenlm")[96] == kind
    with pytest.raises(ConfigError, match="cannot be listed"):
        read_lm(packed)


def test_changed_held_out_text_tunes_again_and_moved_text_does_not(
    models: dict[str, Artifact], heldout: str, tmp_path: Path, engine: LocalEngine
) -> None:
    out, text = tmp_path / "mixed", Path(heldout)
    first = run(Interpolate(), {"heldout": [heldout]}, models, out, engine).manifest.digest
    moved = text.rename(tmp_path / "moved.txt")
    assert run(Interpolate(), {"heldout": [str(moved)]}, models, out, engine).manifest.digest == first
    moved.write_text("".join(f"{line}\n" for line in SMALL[16:]), "utf-8")
    assert run(Interpolate(), {"heldout": [str(moved)]}, models, out, engine).manifest.digest != first


@pytest.mark.parametrize(
    ("stage", "values", "message"),
    [
        (Interpolate(), {}, "no weights"),
        (Interpolate(), {"weights": [1.0]}, "1 weights for 2 models"),
        (Perplexity(), {}, "no text"),
        (Prune(), {}, "give one of threshold"),
        (Prune(), {"ngrams": 9, "threshold": 1e-8}, "give one of threshold"),
        (Convert(), {"form": "trie"}, "form"),
    ],
)
def test_requests_that_cannot_be_met_are_refused_before_any_work(
    stage: Any, values: dict[str, Any], message: str, models: dict[str, Artifact], tmp_path: Path, engine: LocalEngine
) -> None:
    inputs = {"lm": models["lm1"]} if stage.inputs[0].role == "lm" else models
    with pytest.raises(ConfigError, match=message):
        run(stage, values, inputs, tmp_path / "out", engine)
    assert not (tmp_path / "out" / "shards").exists()


def test_contexts_of_pruning_come_from_one_place(
    models: dict[str, Artifact], heldout: str, tmp_path: Path, engine: LocalEngine
) -> None:
    inputs = {"lm": models["lm1"], "history": models["lm2"]}
    with pytest.raises(ConfigError, match="not both"):
        run(Prune(), {"ngrams": 9, "history_text": [heldout]}, inputs, tmp_path / "out", engine)
