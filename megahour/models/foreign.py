"""Acoustic models from elsewhere, run by their own libraries: ONNX, TorchScript, Hugging Face's checkpoints. No pickle.

Such a model may look at its whole input (normalisation over time, attention without a mask), so each sequence runs by
itself at its own length: what shares its batch cannot matter, and padding is never computed.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from megahour.core.errors import ConfigError, StoreError
from megahour.models.onnx_session import in_a_line, limited_run, read_session

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = {"onnx": ".onnx", "torchscript": ".pt", "huggingface": ".safetensors"}
COST_STEPS = 16  # 8-bit costs are in steps of 1/16 nat, as `align.ctc.quantise` makes them
Call = Callable[["NDArray[np.float32]"], "NDArray[np.float32]"]  # input of one sequence → (T', V)


class ForeignModel:
    """A model of `import-aligner`, called with a padded batch like any other (`engine.accelerator.spec.Model`).

    `config` is the artifact's `.model.json`: `audio` says what the frames are, `run` how the file is called, `order`
    which of its outputs are the tokens (the blank first). `data` is the file. bounded: as `onnx_session` has it.

    Raises
    ------
    ConfigError: the library is missing. StoreError: it cannot read the file.
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
            from megahour.models.huggingface import open_checkpoint

            self._call = open_checkpoint(config, data, device, where)
        else:
            self._call = _open_torchscript(data, config["run"], threads, device, where)

    def __call__(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """(B, T, F) with `lengths` (B,) → {"log_probs": (B, T', V) float32} or {"costs": … uint8}, and lengths T'.

        F is the samples of a frame for a model of waveforms. Unused rows (all zero, of length 1) are not run.
        """
        found: dict[int, NDArray[Any]] = {}
        for row, length in enumerate(np.asarray(lengths).tolist()):
            sequence = features[row, :length]
            if length > 1 or sequence.any():
                log_probs = log_softmax(self.run(sequence), normal=self.config["run"]["log_probs"])[:, self._order]
                found[row] = log_probs if self._outputs == "log_probs" else quantised(log_probs)
        frames = np.array([len(found.get(row, ())) for row in range(len(features))], np.int64)
        kind = np.float32 if self._outputs == "log_probs" else np.uint8
        padded = np.zeros((len(features), int(frames.max(initial=0)), len(self._order)), kind)
        for row, values in found.items():
            padded[row, : len(values)] = values
        return {self._outputs: padded}, frames

    def run(self, sequence: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the file gives for one sequence (T, F): (T', V), all of its outputs in its own order."""
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
                f"the model gives values of shape {values.shape} for one sequence, not (1, frames, tokens)",
                where=self._where,
                remedy="name the right output with output_name",
            )
        return values


def log_softmax(values: NDArray[np.float32], *, normal: bool = False) -> NDArray[np.float32]:
    """Log posteriors of logits (T, V) in nats; `normal`: they are log posteriors already."""
    values = values.astype(np.float32, copy=False)
    if normal:
        return values
    shifted = values - values.max(axis=1, keepdims=True)
    result: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def quantised(log_probs: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Log posteriors in nats as uint8 costs in steps of 1/16 nat; below -15.9 nats they saturate."""
    costs: NDArray[np.uint8] = np.clip(np.rint(log_probs * -np.float32(COST_STEPS)), 0, 255).astype(np.uint8)
    return costs


def _open_onnx(data: bytes, run: Mapping[str, Any], threads: int, device: str, where: str, *, bounded: bool) -> Call:
    session = read_session(data, where=where, threads=threads, device=device, bounded=bounded)
    inputs, names = {i.name for i in session.get_inputs()}, [o.name for o in session.get_outputs()]
    input_name = run["input_name"] or session.get_inputs()[0].name
    output_name = run["output_name"] or names[0]
    for name, known in ((input_name, inputs), (run["length_name"], inputs), (output_name, names)):
        if name and name not in known:
            raise ConfigError(f'the model has no "{name}"; it has {", ".join(sorted(known))}', where=where)

    def call(one: NDArray[np.float32]) -> NDArray[np.float32]:
        feed: dict[str, Any] = {input_name: one}
        if run["length_name"]:
            feed[run["length_name"]] = np.array([one.shape[_time_axis(run, one)]], np.int64)
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
    except Exception as error:  # as above
        remedy = "take a shorter piece of audio; of any, the model is damaged or was changed: get it again"
        raise StoreError(f"the graph does not run: {in_a_line(error)}", where=where, remedy=remedy) from None


def _open_torchscript(data: bytes, run: Mapping[str, Any], threads: int, device: str, where: str) -> Call:
    import torch

    if threads:
        torch.set_num_threads(threads)
    try:
        with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):  # torch prefers its own export
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
