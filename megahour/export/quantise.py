"""Make smaller graphs: weights in fp16 or int8. Large layers, or by calibration all, are also computed in int8."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MATRICES = ["MatMul", "Gemm"]
KINDS = (*MATRICES, "Conv", "LSTM")
"""Operators to quantise. All others, and nodes of the front end and the vocoder (`FP32`), stay in fp32."""
FP32 = ("/front/", "/vocoder/")
LEAST_VALUES = 256  # smaller tensors stay fp32: they are not worth a Cast node
LEAST_COMPUTED = 1 << 17
"""Weights of a layer from which int8 arithmetic is at least twice as fast as fp32. In smaller layers it costs accuracy
and gains little, and convolutions are slower in int8: both only store int8."""
SPLIT = "_MatMul"
"""With dynamic scales, onnxruntime splits each Gemm into an Add and a MatMul, whose name ends so."""
Feed = Mapping[str, Any]


def layers(path: Path) -> list[str]:
    """Names of the nodes to quantise, in graph order, which is the same for the offline and streaming graphs."""
    import onnx

    graph = onnx.load(str(path)).graph
    weights = {each.name for each in graph.initializer}
    return [
        node.name
        for node in graph.node
        if node.op_type in KINDS and not node.name.startswith(FP32) and weights.intersection(node.input)
    ]


def to_fp16(source: Path, target: Path) -> None:
    """Store weights in fp16, cast back to fp32 by the graph: half the size, arithmetic still in fp32."""
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


def to_int8(
    source: Path,
    target: Path,
    *,
    leave: Sequence[str] = (),
    feeds: Iterable[Feed] | None = None,
    least: float = LEAST_COMPUTED,
) -> None:
    """Store weights in int8 with a scale per channel, and compute some layers in int8.

    feeds: calibration inputs for static activation scales: all matrices are computed in int8. None for dynamic scales,
    which matrices and LSTMs of at least `least` weights have; the graph turns the weights of all other layers into fp32
    when it is loaded. leave: nodes whose weights stay fp32.
    """
    import onnx

    model = onnx.load(str(source))
    metadata = {each.key: each.value for each in model.metadata_props}
    chosen = [name for name in layers(source) if name not in leave]
    computed = _computed(model.graph, chosen, least if feeds is None else 0)
    chosen, computed = ([*names, *(name + SPLIT for name in names)] for names in (chosen, computed))
    if computed:  # an empty list would mean all nodes
        onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})  # by `write_onnx`
        _compute(model, target, computed, feeds)
        model = onnx.load(str(target))
    _store(model.graph, chosen)
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, str(target))


def _computed(graph: Any, names: Sequence[str], least: float) -> list[str]:
    """Those of the nodes `names` that are no convolution and have `least` weights or more."""
    size = {each.name: int(np.prod(each.dims)) for each in graph.initializer}
    found = {node.name for node in graph.node if node.op_type != "Conv"}
    most = {node.name: max((size.get(name, 0) for name in node.input), default=0) for node in graph.node}
    return [name for name in names if name in found and most[name] >= least]


def _compute(model: Any, target: Path, nodes: list[str], feeds: Iterable[Feed] | None) -> None:
    """Write `model` with `nodes` computed in int8.

    Their weights have seven bits: on x86 CPUs without VNNI, products of eight bits overflow.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    shared = {"per_channel": True, "weight_type": QuantType.QInt8, "reduce_range": True, "nodes_to_quantize": nodes}
    if feeds is None:
        quantize_dynamic(model, str(target), op_types_to_quantize=[*MATRICES, "LSTM"], **shared)
    else:
        quantize_static(
            model, str(target), _FeedReader(feeds), quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8, op_types_to_quantize=MATRICES,
            extra_options={"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": MATRICES}, **shared,
        )  # fmt: skip


def _store(graph: Any, names: Sequence[str]) -> None:
    """Store the fp32 weights of the nodes `names`, and embeddings, in int8. Runtimes fold the casts when they load."""
    from onnx import TensorProto, helper, numpy_helper

    weights = {each.name: each for each in graph.initializer}
    chosen, made = set(names), []
    for node in graph.node:
        if node.name not in chosen and (node.op_type != "Gather" or node.name.startswith(FP32)):
            continue
        for place in (0,) if node.op_type == "Gather" else (1, 2) if node.op_type == "LSTM" else (1,):
            weight = weights.pop(node.input[place], None)
            values = None if weight is None else numpy_helper.to_array(weight)
            if values is None or values.dtype != np.float32 or values.ndim < 2 or values.size < LEAST_VALUES:
                continue
            scale = np.abs(values).max(axis=_summed(node, values.ndim), keepdims=True) / np.float32(127)
            scale[scale == 0] = 1
            name, small = node.input[place], [f"{node.input[place]}.{part}" for part in ("int8", "scale", "whole")]
            weight.CopyFrom(numpy_helper.from_array(np.rint(values / scale).astype(np.int8), small[0]))
            graph.initializer.append(numpy_helper.from_array(scale, small[1]))
            made.append(helper.make_node("Cast", [small[0]], [small[2]], f"{name}.cast", to=TensorProto.FLOAT))
            made.append(helper.make_node("Mul", small[1:], [name], f"{name}.mul"))
    for node in reversed(made):
        graph.node.insert(0, node)


def _summed(node: Any, axes: int) -> tuple[int, ...]:
    """The axes of a node's weights that share a scale: those that are summed over, or an embedding's columns."""
    if node.op_type == "Conv":
        return tuple(range(1, axes))
    rows = node.op_type == "MatMul" or (
        node.op_type == "Gemm" and not any(each.name == "transB" and each.i for each in node.attribute)
    )
    return (axes - 2 if rows else axes - 1,)


class _FeedReader:
    """Calibration data reader in onnxruntime's interface."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def ranges(path: Path) -> dict[str, list[float]]:
    """Smallest and largest activation that a static graph can represent, by tensor; {} for a dynamic graph."""
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
    """How much quantising each layer alone changes the output.

    For log posteriors: the mean Kullback-Leibler divergence, in nats per frame. For an encoder output: the squared
    difference relative to the squared output.
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
    """Output `output` of a graph for each of `feeds`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [session.run([output], dict(feed))[0] for feed in feeds]
