"""Models from elsewhere that hear the letters of `tones`: two filters a letter, their energy, a threshold. Nothing is
trained, so what they must say of a recording is known: a letter in every frame of its tone, blanks around it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tones import LETTERS

TOKENS = ["|", *LETTERS.upper(), "<unk>", "<pad>"]  # the blank last, upper case: as models from elsewhere have them
GAIN, THRESHOLD = 100.0, 4.0
QUIET = 18.0  # log-mel energy between the noise and the tones
WINDOW_S = 0.04


def filters(rate_hz: int) -> NDArray[np.float32]:
    """(2 L, 1, K): cosine and sine of each letter's tone."""
    length = round(WINDOW_S * rate_hz)
    t = np.arange(length) / rate_hz
    hertz = 300 * 1.6 ** np.arange(len(LETTERS))[:, None]
    taper = np.hanning(length) / length * 2
    waves = np.stack([np.cos(2 * np.pi * hertz * t) * taper, np.sin(2 * np.pi * hertz * t) * taper], axis=1)
    return waves.reshape(2 * len(LETTERS), 1, length).astype(np.float32)


def readout() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights (V, L) and bias (V,) from the letters' energies to logits."""
    weight = np.zeros((len(TOKENS), len(LETTERS)), np.float32)
    weight[1 : 1 + len(LETTERS)] = GAIN * np.eye(len(LETTERS))
    bias = np.array([-3.0, *[-THRESHOLD] * len(LETTERS), -9.0, 0.0], np.float32)
    return weight, bias


def random_readout(gain: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Of a model that was never trained; the larger the gain, the surer it is."""
    rng = np.random.default_rng(1)
    weight = gain * rng.normal(size=(len(TOKENS), len(LETTERS)))
    return weight.astype(np.float32), rng.normal(size=len(TOKENS)).astype(np.float32)


def onnx_model(path: Path, rate_hz: int, shift: int, random: float = 0.0) -> Path:
    """waveform (1, N) → logits (1, T, V). random: gain of a model that was never trained."""
    weight, bias = random_readout(random) if random else readout()
    constants = {"filters": filters(rate_hz), "weight": weight[:, :, None], "bias": bias, "axis": np.array([1])}
    constants |= {"pairs": np.array([1, len(LETTERS), 2, -1]), "last": np.array([2])}
    nodes = [
        helper.make_node("Unsqueeze", ["waveform", "axis"], ["x"]),
        helper.make_node("Conv", ["x", "filters"], ["waves"], strides=[shift]),
        helper.make_node("Reshape", ["waves", "pairs"], ["both"]),
        helper.make_node("ReduceL2", ["both", "last"], ["energy"], keepdims=0),
        helper.make_node("Conv", ["energy", "weight", "bias"], ["vt"]),
        helper.make_node("Transpose", ["vt"], ["logits"], perm=[0, 2, 1]),
    ]
    waveform = helper.make_tensor_value_info("waveform", TensorProto.FLOAT, [1, "N"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "T", len(TOKENS)])
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "tones", [waveform], [logits], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def onnx_of_mels(path: Path, mels: int, shift: int, author: str = "") -> Path:
    """x (1, T, F) and x_lens → log_probs (1, T', V), as icefall exports them: every `shift`-th frame is an output."""
    rng = np.random.default_rng(4)
    constants = {"weight": rng.normal(size=(mels, len(TOKENS))).astype(np.float32), "zero": np.array([0])}
    constants |= {"end": np.array([1 << 40]), "axis": np.array([1]), "step": np.array([shift])}
    nodes = [
        helper.make_node("Slice", ["x", "zero", "end", "axis", "step"], ["fewer"]),
        helper.make_node("MatMul", ["fewer", "weight"], ["logits"]),
        helper.make_node("LogSoftmax", ["logits"], ["log_probs"], axis=2),
        helper.make_node("Identity", ["x_lens"], ["log_probs_len"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "T", mels])
    lengths = helper.make_tensor_value_info("x_lens", TensorProto.INT64, ["N"])
    outputs = [
        helper.make_tensor_value_info("log_probs", TensorProto.FLOAT, ["N", "S", len(TOKENS)]),
        helper.make_tensor_value_info("log_probs_len", TensorProto.INT64, ["N"]),
    ]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "mels", [x, lengths], outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    if author:
        helper.set_model_props(model, {"model_author": author, "model_type": "zipformer2_ctc"})
    path.write_bytes(model.SerializeToString())
    return path


class Tones(torch.nn.Module):
    """waveform (B, N) → log posteriors (B, T, V)."""

    def __init__(self, rate_hz: int, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.filters = torch.nn.Parameter(torch.from_numpy(filters(rate_hz)))
        weight, bias = readout()
        self.weight, self.bias = (torch.nn.Parameter(torch.from_numpy(value)) for value in (weight, bias))

    def forward(self, waveform: torch.Tensor) -> torch.Tensor:
        waves = torch.nn.functional.conv1d(waveform[:, None], self.filters, stride=self.shift)
        energy = waves.unflatten(1, (len(LETTERS), 2)).pow(2).sum(2).sqrt()
        return torch.log_softmax(energy.transpose(1, 2) @ self.weight.T + self.bias, dim=2)


class MelTones(torch.nn.Module):
    """log-mel (1, F, T) and its length → logits (1, T // 2, V): whether a letter's mel stands out of the others."""

    def __init__(self, bins: list[int]) -> None:
        super().__init__()
        self.bins = torch.nn.Parameter(torch.tensor(bins), requires_grad=False)
        weight, bias = readout()
        bias[1 : 1 + len(LETTERS)] = 0
        self.quiet = QUIET
        self.weight, self.bias = (
            torch.nn.Parameter(torch.from_numpy(weight / GAIN)),
            torch.nn.Parameter(torch.from_numpy(bias)),
        )

    def forward(self, mels: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        frames = mels[:, :, : int(length[0])].transpose(1, 2)[:, ::2]
        return 2 * (frames[:, :, self.bins] - self.quiet) @ self.weight.T + self.bias


def torchscript(path: Path, module: torch.nn.Module, *example: torch.Tensor) -> Path:
    """The module as a file: traced with an example, or without one compiled with its control flow."""
    held = io.BytesIO()
    compiled = torch.jit.trace(module.eval(), example) if example else torch.jit.script(module.eval())
    torch.jit.save(compiled, held)
    path.write_bytes(held.getvalue())
    return path
