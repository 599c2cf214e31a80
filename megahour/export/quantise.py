"""Smaller graphs: weights in fp16, or in int8 with activations that are measured as they come or beforehand."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("MatMul", "Gemm", "Conv", "LSTM")
"""Operators with weights. The rest, the front end and what makes sound of mels stay as they are."""
FP32 = ("/front/", "/vocoder/")
LEAST_VALUES = 256  # of a tensor that is worth a node of its own
Feed = Mapping[str, Any]


def layers(path: Path) -> list[str]:
    """Names of the nodes with weights, in the order of the graph: the same offline and streaming."""
    import onnx

    graph = onnx.load(str(path)).graph
    weights = {each.name for each in graph.initializer}
    return [
        node.name
        for node in graph.node
        if node.op_type in KINDS and not node.name.startswith(FP32) and weights.intersection(node.input)
    ]


def to_fp16(source: Path, target: Path) -> None:
    """Weights in fp16, which the runtime turns into fp32 when it loads them: half the bytes, the same arithmetic."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(str(source))
    graph, casts = model.graph, []
    for weight in graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.size >= LEAST_VALUES:
            small = np.clip(values, *(float(np.finfo(np.float16).min), float(np.finfo(np.float16).max)))
            name = f"{weight.name}.fp16"
            casts.append(helper.make_node("Cast", [name], [weight.name], f"{name}.cast", to=TensorProto.FLOAT))
            weight.CopyFrom(numpy_helper.from_array(small.astype(np.float16), name))
    for cast in reversed(casts):
        graph.node.insert(0, cast)
    onnx.save(model, str(target))


def to_int8(source: Path, target: Path, *, leave: Sequence[str] = (), feeds: Iterable[Feed] | None = None) -> None:
    """int8 weights, a scale a column; activations by what `feeds` show, or without these as they come.

    leave: nodes that stay fp32.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    nodes = [name for name in layers(source) if name not in leave]
    model = onnx.load(str(source))
    metadata = {each.key: each.value for each in model.metadata_props}
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})  # `write_onnx` did that
    shared = {"per_channel": True, "weight_type": QuantType.QInt8, "nodes_to_quantize": nodes}
    if feeds is None:
        quantize_dynamic(model, str(target), op_types_to_quantize=list(KINDS), **shared)
    else:
        quantize_static(
            model, str(target), _Reader(feeds), quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8, op_types_to_quantize=["MatMul", "Gemm", "Conv"],
            extra_options={"MatMulConstBOnly": True}, **shared,
        )  # fmt: skip
    quantised = onnx.load(str(target))
    onnx.helper.set_model_props(quantised, metadata)
    onnx.save(quantised, str(target))


class _Reader:
    """onnxruntime's way of asking for the next input."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def ranges(path: Path) -> dict[str, list[float]]:
    """Least and largest activation that a static graph can hold, by tensor; {} for a dynamic one."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    values = {each.name: each for each in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[1] in values:
            scale, zero = (numpy_helper.to_array(values[name]) for name in node.input[1:3])
            if scale.ndim == 0 and zero.dtype == np.uint8:
                ends = ((np.array([0, 255]) - int(zero)) * float(scale)).tolist()
                found[node.input[0]] = [round(end, 6) for end in ends]
    return found


def divergences(source: Path, feeds: Sequence[Feed], output: str) -> dict[str, float]:
    """How far each layer moves the output when it alone is int8.

    Of log posteriors the mean Kullback-Leibler divergence, in nats a frame; of an encoder's output the mean square of
    the difference, as a share of the output's.
    """
    exact = outputs_of(source, feeds, output)
    found = {}
    names = layers(source)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            target = Path(folder) / "one.onnx"
            to_int8(source, target, leave=[other for other in names if other != name])
            pairs = list(zip(exact, outputs_of(target, feeds, output), strict=True))
            if output == "log_probs":
                each = [(np.exp(one) * (one - other)).sum(axis=-1).ravel() for one, other in pairs]
                found[name] = float(np.concatenate(each).mean())
            else:
                moved = sum(float(np.square(one - other).sum()) for one, other in pairs)
                found[name] = moved / max(1e-12, sum(float(np.square(one).sum()) for one, _ in pairs))
    return found


def outputs_of(path: Path, feeds: Sequence[Feed], output: str) -> list[Any]:
    """What a graph gives for each of `feeds`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [session.run([output], dict(feed))[0] for feed in feeds]
