"""Training initialised from another model: its encoder, normalisation and, for the same tokens, its last layers."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from made_artifacts import features_artifact, utterances

from megahour.core.errors import ConfigError
from megahour.core.receipts import Counts, Manifest
from megahour.core.stage import Context
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.learn.initial import InitialModel
from megahour.learn.params import TrainParams
from megahour.models.build import build
from megahour.train.session import train

TOKENS = {"kind": "lstm", "criterion": "ctc", "layers": 1, "hidden": 16, "lookahead": 1, "epochs": 0, "threads": 1}
STILL = {**TOKENS, "whole_epochs": 1, "learning_rate": 1e-12, "final_learning_rate": 1e-12, "batch_frames": 400}


def trained(folder: Path, features: Artifact, initial: Artifact | None = None, **values: Any) -> Artifact:
    inputs = {"features": features} | ({} if initial is None else {"initial": initial})
    p = TrainParams.model_validate({**STILL, "tensorboard": False, "held_out": 0.0, **values})
    p.check_roles(inputs)
    output = Artifact(folder / "model")
    with ShardWriter(output, 0, "made") as out:
        train(p, inputs, out, Context(work=folder / "work"))
        receipts = [out.commit()]
    digest = content_digest(receipts, {"stage": "train"})
    finish(output, receipts, Manifest("train", 4, "f", digest, {}, {}, 1, Counts(), {}))
    return output


def weights(model: Artifact) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(model.read_bytes(0, ".safetensors"))


@pytest.fixture(scope="module")
def made() -> list[dict[str, Any]]:
    return utterances(30, speakers=3)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, made: list[dict[str, Any]]) -> Artifact:
    features = features_artifact(tmp_path_factory.mktemp("features"), [("labelled", made)])
    return trained(tmp_path_factory.mktemp("first"), features, whole_epochs=3, learning_rate=1e-2, seed=5)


def others(folder: Path, made: list[dict[str, Any]], texts: dict[str, str] | None = None) -> Artifact:
    """Louder features; texts in other letters where they are given."""
    table = str.maketrans(texts or {})
    changed = [{**u, "features": u["features"] + 3, "text": u["text"].translate(table)} for u in made[:10]]
    return features_artifact(folder / "features", [("labelled", changed)])


def test_features_of_another_mean_are_remarked_upon(tmp_path, made, first, caplog):
    features = others(tmp_path, made)
    manifest = json.loads((tmp_path / "features" / "manifest.json").read_text())
    manifest["summary"]["subtracts"] = "utterance"
    (tmp_path / "features" / "manifest.json").write_text(json.dumps(manifest))
    with caplog.at_level(logging.WARNING):
        second = trained(tmp_path, Artifact(features.url), first)
    assert "was trained on features of mean: causal, these are of mean: utterance" in caplog.text
    assert second.read_json(0, ".model.json")["subtracts"] == "utterance"


def test_the_same_tokens_take_all_weights_and_the_normalisation(tmp_path, made, first):
    second = trained(tmp_path, others(tmp_path, made), first)
    for name, tensor in weights(first).items():
        torch.testing.assert_close(weights(second)[name], tensor, atol=1e-6, rtol=0)
    assert second.read_json(0, ".model.json")["stats"] == first.read_json(0, ".model.json")["stats"]


def test_other_tokens_take_the_encoder_and_begin_their_own_head(tmp_path, made, first):
    second = trained(tmp_path, others(tmp_path, made, {"a": "x"}), first)
    assert second.read_json(0, ".model.json")["tokens"] != first.read_json(0, ".model.json")["tokens"]
    mine, theirs = weights(second), weights(first)
    far = {name for name in mine if not torch.allclose(mine[name], theirs[name], atol=1e-6)}
    assert far == {"head.weight", "head.bias"}


def test_a_transducer_begins_with_the_encoder_of_ctc_and_the_other_way_round(tmp_path, made, first):
    joint = {"criterion": "transducer", "criterion_options": {"join": 12, "ctc": 0.3}}
    second = trained(tmp_path / "2", others(tmp_path / "2", made), first, **joint)
    mine, theirs = weights(second), weights(first)
    for name in theirs.keys() - {"head.weight", "head.bias"}:
        torch.testing.assert_close(mine[f"encoder.{name}"], theirs[name], atol=1e-6, rtol=0)
    third = weights(trained(tmp_path / "3", others(tmp_path / "3", made), Artifact(second.url)))
    for name in theirs.keys() - {"head.weight", "head.bias"}:
        torch.testing.assert_close(third[name], theirs[name], atol=1e-6, rtol=0)
    fourth = weights(trained(tmp_path / "4", others(tmp_path / "4", made), second, **joint))
    for name in mine:
        torch.testing.assert_close(fourth[name], mine[name], atol=1e-6, rtol=0)


def test_a_voice_takes_no_rows_of_other_symbols_or_speakers() -> None:
    """As many of them, but others: row 1 of the one model's `symbol` is row 2 of the other's."""
    sizes = {"kind": "voice", "inputs": 4, "outputs": 4, "layers": 1, "units": 8, "decoder_layers": 1}
    config = {**sizes, "decoder": "fast", "symbols": ["", "a", "b"], "voices": ["x", "y"], "languages": ["de", "en"]}
    initial = object.__new__(InitialModel)
    initial.url, initial.config = "first", config
    initial._data = safetensors.torch.save(build(config, seed=1).state_dict())
    for name, names in ("symbols", ["", "b", "a"]), ("voices", ["x", "z"]), ("languages", ["de", "fr"]), ("", []):
        module = build(config, seed=2)
        with torch.no_grad():
            initial.fill(module, {**config, name: names} if name else config)
        theirs = build(config, seed=1).state_dict()
        apart = {key for key, tensor in module.state_dict().items() if not torch.equal(tensor, theirs[key])}
        assert apart == ({f"{name.removesuffix('s')}.weight"} if name else set())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden": 20}, "the initial model has hidden 16, this training 20"),
        ({"layers": 3, "hidden": 20}, "has layers 1, this training 3, hidden 16, this training 20"),
        ({"kind": "blstm"}, "the initial model has kind lstm"),
        ({"parallel": {"shard": 2}, "workers": 2}, "`initial` does not go with parallel.shard above 1"),
    ],
)
def test_another_encoder_is_refused_by_what_differs(tmp_path, made, first, values, message):
    with pytest.raises(ConfigError, match=message):
        trained(tmp_path, others(tmp_path, made), first, **values)
