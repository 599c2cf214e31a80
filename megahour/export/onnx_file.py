"""Write a module as an ONNX file, with the metadata that a runtime reads."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

OPSET = 17
"""Old enough for all recent runtimes, including sherpa-onnx."""


def write_onnx(
    module: nn.Module, example: tuple[torch.Tensor, ...], free: Mapping[str, Mapping[int, str]], path: Path
) -> None:
    """Write `module`, whose `inputs` and `outputs` are lists of names. free: dynamic axes, by input or output.

    Uses torch's older, tracing exporter: it takes a second where the newer one takes a minute, and supports LSTMs.
    Tracing errors are caught later, since every graph is compared with the model.
    """
    inputs, outputs = list(module.inputs), list(module.outputs)  # type: ignore[arg-type]
    axes = {name: dict(each) for name, each in free.items()}
    with warnings.catch_warnings(action="ignore"), torch.inference_mode():
        torch.onnx.export(
            module.eval(), example, str(path), input_names=inputs, output_names=outputs, dynamic_axes=axes,
            opset_version=OPSET, dynamo=False,
        )  # fmt: skip
    _simplify(path)
    _keep_inputs(path, inputs, example, axes)


def _simplify(path: Path) -> None:
    """Fold constants and common subexpressions, such as the positions in each layer: this removes half of the nodes.

    onnxruntime writes the graph after its basic optimisations; the result is still standard ONNX.
    """
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    model = onnx.load(str(path))
    used = {node.domain for node in model.graph.node} | {""}
    kept = [each for each in model.opset_import if each.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    _share_weights(model.graph)
    onnx.save(model, str(path))


def _share_weights(graph: Any) -> None:
    """Merge equal weights: tracing writes a tensor that is not a parameter once per use."""
    first: dict[bytes, str] = {}
    instead = {}
    for weight in list(graph.initializer):
        name, weight.name = weight.name, ""
        content = hashlib.sha256(weight.SerializeToString()).digest()
        weight.name = name
        if content in first:
            instead[name] = first[content]
            graph.initializer.remove(weight)
        first.setdefault(content, name)
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = instead.get(name, name)


def _keep_inputs(path: Path, names: list[str], example: tuple[torch.Tensor, ...], axes: Mapping[str, Any]) -> None:
    """Restore inputs that the graph does not use: runtimes pass all of them, in order."""
    import onnx

    model = onnx.load(str(path))
    there = {each.name: each for each in model.graph.input}
    kinds = {torch.bool: onnx.TensorProto.BOOL, torch.int64: onnx.TensorProto.INT64}
    for name, value in zip(names, example, strict=True):
        if name not in there:
            shape = [axes.get(name, {}).get(axis, size) for axis, size in enumerate(value.shape)]
            kind = kinds.get(value.dtype, onnx.TensorProto.FLOAT)
            there[name] = onnx.helper.make_tensor_value_info(name, kind, shape)
    del model.graph.input[:]
    model.graph.input.extend(there[name] for name in names)
    onnx.save(model, str(path))


def set_metadata(path: Path, values: Mapping[str, Any]) -> None:
    """Replace an ONNX file's metadata with `values`, converted to text."""
    import onnx

    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {name: str(value) for name, value in values.items()})
    onnx.save(model, str(path))


def shorten(path: Path) -> None:
    """Remove what no runtime needs: names of nodes, long names of inner tensors, and shapes that follow from others.

    In an int8 graph of 0.3 M parameters they are a quarter of the file.
    """
    import onnx

    model = onnx.load(str(path))
    graph, names = model.graph, {"": ""}
    del graph.value_info[:]
    names.update((each.name, each.name) for each in (*graph.input, *graph.output))
    for weight in graph.initializer:
        weight.name = names.setdefault(weight.name, f"_{len(names):x}")
    for node in graph.node:
        node.name = ""
        for tensors in (node.input, node.output):
            tensors[:] = [names.setdefault(name, f"_{len(names):x}") for name in tensors]
    onnx.save(model, str(path))
