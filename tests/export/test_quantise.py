"""Smaller graphs compute what the large ones do, nearly: which layers in int8, and what is left of the file."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from megahour.export.onnx_file import shorten, write_onnx
from megahour.export.quantise import divergences, layers, outputs_of, to_fp16, to_int8

FEED = {"tokens": np.arange(24).reshape(2, 12) % 20}
LARGE = 64 * 48  # weights of the larger matrix below


class Layers(nn.Module):
    """One layer of each kind that has weights."""

    inputs, outputs = ("tokens",), ("scores",)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.conv = nn.Embedding(20, 32), nn.Conv1d(32, 32, 3)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.small, self.large = nn.Linear(32, 64), nn.Linear(64, 48)
        with torch.no_grad():
            self.embedding.weight[3] *= 100  # one loud token

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.conv(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        return self.large(self.small(self.lstm(x)[0]).tanh())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    axes = {"tokens": {0: "B", 1: "T"}, "scores": {0: "B", 1: "T'"}}
    write_onnx(Layers(), (torch.zeros(2, 12, dtype=torch.int64),), axes, path)
    return path


def operators(path: Path) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in onnx.load(str(path)).graph.node)


def scores(path: Path) -> Any:
    return outputs_of(path, [FEED], "scores")[0]


def test_only_large_matrices_are_computed_in_int8(graph: Path, tmp_path: Path) -> None:
    """Convolutions are slower and less exact in int8, and small layers gain nothing: they only store int8."""
    target = tmp_path / "int8.onnx"
    to_int8(graph, target, least=LARGE)
    found = operators(target)
    assert found["MatMulInteger"] == 1
    assert found["DynamicQuantizeLSTM"] == 1, "32 x 128 weights are more than the limit"
    assert found["ConvInteger"] == 0
    assert found["Conv"] == found["MatMul"] == 1
    to_int8(graph, target)
    assert not {"MatMulInteger", "DynamicQuantizeLSTM", "ConvInteger"}.intersection(operators(target))


def test_all_weights_are_stored_in_int8_with_a_scale_per_channel(graph: Path, tmp_path: Path) -> None:
    target = tmp_path / "int8.onnx"
    to_int8(graph, target)
    weights = [numpy_helper.to_array(each) for each in onnx.load(str(target)).graph.initializer]
    stored = {each.shape: each for each in weights if each.dtype == np.int8}
    assert set(stored) == {(20, 32), (32, 32, 3), (1, 128, 32), (32, 64), (64, 48)}
    assert all(each.size <= 256 for each in weights if each.dtype == np.float32), "biases, scales"
    assert np.abs(stored[20, 32]).max(axis=1).tolist() == [127] * 20, "the loud token does not drown the others"
    exact = scores(graph)
    assert 0 < np.abs(scores(target) - exact).max() < 0.03 * np.abs(exact).max()


class TwoLayers(nn.Module):
    """Matrices with a bias on rows without a time axis, as a joiner and a predictor have them: Gemm in a graph."""

    inputs, outputs = ("tokens",), ("scores",)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.small, self.large = nn.Embedding(20, 32), nn.Linear(32, 16), nn.Linear(16, 300)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.large(self.small(self.embedding(tokens)).tanh())  # type: ignore[no-any-return]


@pytest.mark.parametrize("feeds", [None, [{"tokens": np.arange(20)}]], ids=["dynamic", "static"])
def test_matrices_with_a_bias_are_stored_in_int8_and_large_ones_computed(feeds: Any, tmp_path: Path) -> None:
    path, target = tmp_path / "joiner.onnx", tmp_path / "int8.onnx"
    write_onnx(TwoLayers(), (torch.zeros(2, dtype=torch.int64),), {"tokens": {0: "N"}, "scores": {0: "N"}}, path)
    assert operators(path)["Gemm"] == 2
    to_int8(path, target, least=16 * 300, feeds=feeds)
    assert feeds or operators(target)["MatMulInteger"] == 1
    weights = [numpy_helper.to_array(each) for each in onnx.load(str(target)).graph.initializer]
    assert sorted(each.size for each in weights if each.dtype == np.int8 and each.ndim == 2) == [512, 640, 4800]
    given = {"tokens": np.arange(20)}
    small, exact = (outputs_of(each, [given], "scores")[0] for each in (target, path))
    assert 0 < np.abs(small - exact).max() < 0.03 * np.abs(exact).max()


def test_calibrated_matrices_round_their_inputs_only(graph: Path, tmp_path: Path) -> None:
    """Rounded outputs are added to, multiplied and exponentiated: log posteriors in 256 steps were far from fp32."""
    target = tmp_path / "int8.onnx"
    to_int8(graph, target, feeds=[FEED])
    assert operators(target)["QuantizeLinear"] == 2
    quantised = onnx.load(str(target)).graph
    (last,) = (node for node in quantised.node if "scores" in node.output)
    assert last.op_type == "Add", "the output is not rounded"
    exact = scores(graph)
    assert 0 < np.abs(scores(target) - exact).max() < 0.03 * np.abs(exact).max()


def test_layers_that_are_left_stay_as_they_are(graph: Path, tmp_path: Path) -> None:
    target = tmp_path / "int8.onnx"
    to_int8(graph, target, leave=layers(graph), least=0)  # onnxruntime takes an empty list for all nodes
    assert operators(target)["MatMulInteger"] == 0
    stored = [each.dims for each in onnx.load(str(target)).graph.initializer if each.data_type == onnx.TensorProto.INT8]
    assert [list(each) for each in stored] == [[20, 32]], "only the embedding, which is no layer"


@pytest.mark.parametrize("smaller", [to_fp16, to_int8])
def test_a_graph_without_names_computes_the_same(smaller: Any, graph: Path, tmp_path: Path) -> None:
    target, whole = tmp_path / "small.onnx", onnx.load(str(graph))
    smaller(graph, target)
    before, large = scores(target), target.stat().st_size
    shorten(target)
    small = onnx.load(str(target))
    np.testing.assert_array_equal(scores(target), before)
    assert (small.graph.input, small.graph.output) == (whole.graph.input, whole.graph.output)
    assert not any(node.name for node in small.graph.node)
    assert not small.graph.value_info
    assert target.stat().st_size < large - 1000


class Posteriors(TwoLayers):
    """A small layer, whose rounding spreads, and the last one."""

    outputs = ("log_probs",)

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).log_softmax(1)


def test_the_divergence_of_a_layer_is_that_of_its_posteriors(tmp_path: Path) -> None:
    path, target, feed = tmp_path / "model.onnx", tmp_path / "int8.onnx", {"tokens": np.arange(20)}
    write_onnx(Posteriors(), (torch.zeros(2, dtype=torch.int64),), {"tokens": {0: "N"}, "log_probs": {0: "N"}}, path)
    found = divergences(path, [feed, feed], "log_probs")
    assert set(found) == set(layers(path))
    name = max(found, key=lambda name: found[name])
    to_int8(path, target, leave=[other for other in found if other != name])
    exact, rounded = (torch.from_numpy(outputs_of(each, [feed], "log_probs")[0]) for each in (path, target))
    expected = nn.functional.kl_div(rounded, exact, reduction="batchmean", log_target=True).item()
    assert found[name] == pytest.approx(expected, rel=1e-3)
    assert expected > 0
