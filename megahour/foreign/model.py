"""Runs imported models: ONNX, TorchScript, Hugging Face checkpoints, ESPnet, SpeechBrain. No pickle.

Such a model may use its whole input (normalisation over time, attention without a mask). Each sequence therefore runs
alone at its own length: neither the batch nor padding can change its result.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from megahour.core.errors import ConfigError, StoreError
from megahour.foreign.onnx_session import in_a_line, limited_run, read_session
from megahour.foreign.torch_file import check_unpacked

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = {"onnx": ".onnx", "torchscript": ".pt"}
SUFFIX |= dict.fromkeys(("huggingface", "espnet", "speechbrain"), ".safetensors")
CODE_BYTES = 64 << 20  # most that the compressed code of a TorchScript file unpacks to
COST_STEPS = 16  # 8-bit costs are in steps of 1/16 nat, as in `align.ctc.quantise`
_NUMPY = {"tensor(float16)": np.float16, "tensor(double)": np.float64, "tensor(int32)": np.int32}
Call = Callable[["NDArray[np.float32]"], "NDArray[np.float32]"]  # input of one sequence → (T', V)


class ForeignModel:
    """A model of `import-aligner`. It takes padded batches, as `serve.spec.Model` requires.

    config: the artifact's `.model.json`, where `audio` describes the input, `run` the call, and `order` lists the
    output of each token, the blank first. data: the model file. bounded: limit memory and time (`onnx_session`).

    Raises
    ------
    ConfigError: the library is missing. StoreError: the library cannot read the file.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        data: bytes,
        *,
        threads: int = 1,
        device: str = "cpu",
        outputs: Literal["log_probs", "costs"] = "log_probs",
        where: str = "",
        bounded: bool = False,
    ) -> None:
        self.config, self._outputs, self._where = config, outputs, where
        self._waveform = config["audio"]["input"] == "waveform"
        self._order = np.asarray(config["order"], np.intp)
        if config["kind"] == "onnx":
            self._call: Call = _open_onnx(data, config["run"], threads, device, where, bounded=bounded)
        elif config["kind"] == "huggingface":
            from megahour.foreign.huggingface import open_checkpoint

            self._call = open_checkpoint(config, data, device, where)
        elif config["kind"] == "espnet":
            from megahour.foreign.espnet import open_espnet

            self._call = open_espnet(config, data, device, where)
        elif config["kind"] == "speechbrain":
            from megahour.foreign.speechbrain import open_speechbrain

            self._call = open_speechbrain(config, data, device, where)
        else:
            self._call = _open_torchscript(data, config["run"], threads, device, where)

    def __call__(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """(B, T, F) with `lengths` (B,) → {"log_probs": (B, T', V) float32} or {"costs": … uint8}, and lengths T'.

        For a waveform model, F is the number of samples per frame. Unused rows (all zero, of length 1) are skipped.
        """
        results: dict[int, NDArray[Any]] = {}
        for row, length in enumerate(np.asarray(lengths).tolist()):
            sequence = features[row, :length]
            if length > 1 or sequence.any():
                log_probs = log_softmax(self.run(sequence), normal=self.config["run"]["log_probs"])[:, self._order]
                results[row] = log_probs if self._outputs == "log_probs" else quantised(log_probs)
        frames = np.array([len(results.get(row, ())) for row in range(len(features))], np.int64)
        kind = np.float32 if self._outputs == "log_probs" else np.uint8
        padded = np.zeros((len(features), int(frames.max(initial=0)), len(self._order)), kind)
        for row, values in results.items():
            padded[row, : len(values)] = values
        return {self._outputs: padded}, frames

    def run(self, sequence: NDArray[np.float32]) -> NDArray[np.float32]:
        """The file's outputs (T', V) for one sequence (T, F), all of them, in the file's order."""
        one = np.ascontiguousarray(sequence.reshape(-1) if self._waveform else sequence, np.float32)
        if not self._waveform and self.config["run"]["layout"] == "mels-first":
            one = np.ascontiguousarray(one.T)
        values = self._call(one[None])
        if values.ndim == 3 and values.shape[0] == 1:
            values = values[0]
        elif values.ndim == 3 and values.shape[1] == 1:  # (T', B, V)
            values = values[:, 0]
        if values.ndim != 2:
            raise ConfigError(
                f"the model's output has shape {values.shape} for one sequence, not (1, frames, tokens)",
                where=self._where,
                remedy="name the right output with output_name",
            )
        return values


def log_softmax(values: NDArray[np.float32], *, normal: bool = False) -> NDArray[np.float32]:
    """Log posteriors in nats of logits (T, V). normal: the values are log posteriors already."""
    values = values.astype(np.float32, copy=False)
    if normal:
        return values
    shifted = values - values.max(axis=1, keepdims=True)
    result: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def quantised(log_probs: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Log posteriors in nats as uint8 costs in steps of 1/16 nat. They saturate at -15.9 nats.

    >>> quantised(np.array([[0.0, -1.0, -20.0]], np.float32))
    array([[  0,  16, 255]], dtype=uint8)
    """
    costs: NDArray[np.uint8] = np.clip(np.rint(log_probs * -np.float32(COST_STEPS)), 0, 255).astype(np.uint8)
    return costs


def _open_onnx(data: bytes, run: Mapping[str, Any], threads: int, device: str, where: str, *, bounded: bool) -> Call:
    session = read_session(data, where=where, threads=threads, device=device, bounded=bounded)
    inputs, names = {i.name: _NUMPY.get(i.type) for i in session.get_inputs()}, [o.name for o in session.get_outputs()]
    input_name = run["input_name"] or session.get_inputs()[0].name
    output_name = run["output_name"] or names[0]
    for name, known in ((input_name, inputs), (run["length_name"], inputs), (output_name, names)):
        if name and name not in known:
            raise ConfigError(f'the model has no "{name}", only {", ".join(sorted(known))}', where=where)
    if others := [name for name in inputs if name not in (input_name, run["length_name"])]:
        what = f"the graph also takes {', '.join(others[:3])}, as graphs of streams take their state"
        raise ConfigError(what, where=where, remedy="export the model offline, with audio and its length as inputs")

    def call(one: NDArray[np.float32]) -> NDArray[np.float32]:
        feed: dict[str, Any] = {input_name: one.astype(inputs[input_name] or np.float32, copy=False)}
        if length := run["length_name"]:
            feed[length] = np.array([one.shape[_time_axis(run, one)]], inputs[length] or np.int64)
        if not bounded:
            (values,) = session.run([output_name], feed)
        else:
            with limited_run(one.shape[_time_axis(run, one)] / 100) as options:
                (values,) = _run(session, output_name, feed, options, where)
        return np.asarray(values, np.float32)

    return call


def _run(session: Any, output: str, feed: Mapping[str, Any], options: Any, where: str) -> Any:
    try:
        return session.run([output], feed, options)
    except Exception as error:  # onnxruntime's classes share no base
        remedy = "use shorter audio; if no audio works, the model is damaged: get it again"
        raise StoreError(f"the graph does not run: {in_a_line(error)}", where=where, remedy=remedy) from None


def _open_torchscript(data: bytes, run: Mapping[str, Any], threads: int, device: str, where: str) -> Call:
    import torch

    check_unpacked(data, "the model", where, spare=CODE_BYTES)
    if threads:
        torch.set_num_threads(threads)
    try:
        with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):  # torch recommends torch.export
            module = torch.jit.load(io.BytesIO(data), map_location=device).eval()  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise StoreError(f"torch.jit cannot read the model: {str(error).splitlines()[0]}", where=where) from error

    def call(one: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode():
            arguments = [torch.from_numpy(one).to(device)]
            if run["length_name"]:
                arguments.append(torch.tensor([one.shape[_time_axis(run, one)]], device=device))
            values = module(*arguments)
            values = values[0] if isinstance(values, tuple | list) else values
            return np.asarray(values.float().cpu().numpy(), np.float32)

    return call


def _time_axis(run: Mapping[str, Any], one: NDArray[np.float32]) -> int:
    return 2 if one.ndim == 3 and run["layout"] == "mels-first" else 1
