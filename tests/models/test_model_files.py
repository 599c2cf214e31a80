"""Model artifacts: the written model is the one that runs, and damaged or hostile files are refused in time."""

import json
import struct

import numpy as np
import pytest
import safetensors.torch
import torch
from made_artifacts import write_artifact

from megahour.core.errors import StoreError
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.models.build import build
from megahour.models.inference import load, parse_config, restore
from megahour.models.service import model_spec

CONFIG = {"kind": "lstm", "inputs": 6, "outputs": 7, "layers": 2, "units": 8, "lookahead": 1, "dropout": 0.3}


def weights(**changes: torch.Tensor) -> bytes:
    return safetensors.torch.save({**build(CONFIG, seed=1).state_dict(), **changes})


@pytest.fixture
def url(tmp_path):
    artifact = write_artifact(tmp_path / "model", [({}, {".model.json": CONFIG})], {})
    with ShardWriter(artifact, 0, "made") as out:
        with out.open(".safetensors") as file:
            file.write(weights())
        out.json(CONFIG, ".model.json")
        out.commit()
    return artifact.url


def test_log_probs_are_those_of_the_module(url):
    x, lengths = np.random.default_rng(0).normal(size=(2, 9, 6)).astype(np.float32), np.array([9, 5])
    outputs, out_lengths = load(url)(x, lengths)
    with torch.no_grad():
        expected = build(CONFIG, seed=1)(torch.from_numpy(x), torch.from_numpy(lengths)).log_softmax(2).numpy()
    assert out_lengths.tolist() == [9, 5]
    assert outputs["log_probs"].dtype == np.float32
    np.testing.assert_allclose(outputs["log_probs"], expected, atol=1e-6)


def test_top_k_holds_the_largest_logits_in_falling_order(url):
    x, lengths = np.random.default_rng(0).normal(size=(2, 9, 6)).astype(np.float32), np.array([9, 9])
    top, _ = load(url, outputs="top_k", k=3)(x, lengths)
    log_probs = load(url)(x, lengths)[0]["log_probs"]
    assert top["indices"].dtype == np.uint16
    assert top["logits"].dtype == np.float16
    assert top["indices"].shape == top["logits"].shape == (2, 9, 3)
    np.testing.assert_array_equal(top["indices"], np.argsort(-log_probs, axis=2, kind="stable")[..., :3])
    assert load(url, outputs="top_k", k=100)(x, lengths)[0]["indices"].shape == (2, 9, 7)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_gives_nearly_the_same_in_fp32(url, precision):
    x, lengths = np.random.default_rng(0).normal(size=(2, 9, 6)).astype(np.float32), np.array([9, 9])
    exact, near = (load(url, precision=name)(x, lengths)[0]["log_probs"] for name in ("fp32", precision))
    assert near.dtype == np.float32
    np.testing.assert_allclose(near, exact, atol=0.03)
    assert (near != exact).any()


def test_a_model_that_was_made_again_is_not_the_one_asked_for(url):
    """A worker that starts again in the middle of a stage would mix two models' results."""
    x, lengths, own = np.ones((1, 4, 6), np.float32), np.array([4]), Artifact(url).manifest.digest
    of_two, _ = load(url, others=[url], digests=[own, own])(x, lengths)
    np.testing.assert_allclose(of_two["log_probs"], load(url, digests=[own])(x, lengths)[0]["log_probs"], atol=1e-6)
    top, _ = load(url, others=[url], digests=[own, own], outputs="top_k", k=7)(x, lengths)
    np.testing.assert_allclose(np.exp(top["logits"].astype(np.float32)).sum(2), 1, atol=0.01)
    for digests in (["other", own], [own, "other"]):
        with pytest.raises(StoreError, match="made again"):
            load(url, others=[url], digests=digests)


def test_a_service_is_asked_for_all_models_as_they_are_now(url, tmp_path):
    other = write_artifact(tmp_path / "other", [({}, {".x": b"1"})], {})
    asked = model_spec(Artifact(url), 100, other).arguments["digests"]
    assert asked == [Artifact(url).manifest.digest, other.manifest.digest]


def header_of(entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


HOSTILE = {
    "empty": b"",
    "pickle": b"\x80\x04\x95" + b"x" * 40,
    "truncated": weights()[:-100],
    "header longer than the file": struct.pack("<Q", 1 << 60) + b"{}",
    "no header": struct.pack("<Q", 2) + b"[]",
    "missing weight": header_of({"head.bias": {"dtype": "F32", "shape": [7], "data_offsets": [0, 28]}}) + bytes(28),
    "wrong shape": weights(**{"head.bias": torch.zeros(8)}),
    "wrong type": weights(**{"head.bias": torch.zeros(7, dtype=torch.float64)}),
    "unknown weight": weights(backdoor=torch.zeros(1)),
    "NaN": weights(**{"head.bias": torch.full((7,), torch.nan)}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_weights_are_refused(name):
    with pytest.raises(StoreError, match="here"):
        restore(CONFIG, HOSTILE[name], where="here")


@pytest.mark.parametrize("text", [b"", b"[1]", b'{"kind": ', b"[" * 100_000, b"\xff\xfe"])
def test_bad_configurations_are_refused(text):
    with pytest.raises(StoreError, match="here"):
        parse_config(text, where="here")


def test_a_configuration_of_another_model_is_refused():
    with pytest.raises(StoreError, match="F32"):
        restore({**CONFIG, "outputs": 9}, weights(), where="here")
    with pytest.raises(StoreError, match="units"):
        restore({**CONFIG, "units": 1 << 40}, weights(), where="here")
