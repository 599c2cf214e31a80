"""Reading a *model* artifact and running it on batches. No pickle: safetensors and JSON, both checked before use."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import safetensors.torch
import torch
from torch import nn

from megahour.core.errors import ConfigError, MegahourError, StoreError
from megahour.core.store import Artifact
from megahour.models.build import shapes, skeleton
from megahour.models.configuration import DAMAGED, MAX_CONFIG_BYTES, RECOGNISED, parse_config, read_config, tag_number
from megahour.models.end_to_end import EndToEnd
from megahour.models.foreign import COST_STEPS, SUFFIX, ForeignModel
from megahour.models.precision import autocast

if TYPE_CHECKING:
    from numpy.typing import NDArray

Outputs = Literal["log_probs", "top_k", "costs", "encoded"]


@dataclass(frozen=True)
class Model:
    """A model ready for inference: call it with a padded batch."""

    config: dict[str, Any]
    module: nn.Module
    device: str
    outputs: Outputs
    k: int
    precision: str = "fp32"

    def __call__(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Run `features` (B, T, F), stacked and normalised, with `lengths` (B,) real frames each.

        Returns the outputs and their lengths, which are `lengths` unless the model subsamples, as `serve.spec.Model`
        asks: {"log_probs": (B, T, V) float32}, or {"indices": (B, T, k) uint16, "logits": (B, T, k) float16} with the k
        largest logits of each frame in falling order (Parthasarathi et al., section V-C), or {"costs": (B, T, V)
        uint8}, -log posteriors in 1/16 nat: a quarter of the bytes, for aligners, or {"encoded": (B, T, D) float32} of
        an `EndToEnd` model. A model that tells tags adds to log_probs and encoded "tags": (B, T, N) float32, the log
        probabilities of the whole utterance's, equal in all frames. Frames past a row's length are undefined.
        """
        with torch.inference_mode():
            x = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32)).to(self.device)
            own = torch.from_numpy(np.asarray(lengths, dtype=np.int64)).to(self.device)
            with autocast(self.device, self.precision):
                logits, more = self._run(x, own)
            logits, lengths = logits.float(), lengths // getattr(self.module, "subsample", 1)
            if self.outputs == "encoded":
                return {"encoded": logits.cpu().numpy(), **more}, lengths
            if self.outputs == "costs":
                steps = torch.round(torch.log_softmax(logits, dim=2) * -float(COST_STEPS))
                return {"costs": steps.clamp(0, 255).to(torch.uint8).cpu().numpy()}, lengths
            if self.outputs == "log_probs":
                return {"log_probs": torch.log_softmax(logits, dim=2).cpu().numpy(), **more}, lengths
            values, indices = torch.topk(logits, self.k, dim=2)
            bound = float(np.finfo(np.float16).max)
            top = {
                "indices": indices.cpu().numpy().astype(np.uint16),
                "logits": values.clamp(-bound, bound).cpu().numpy().astype(np.float16),
            }
            return top, lengths

    def _run(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, dict[str, NDArray[np.float32]]]:
        """Logits (B, T', V), or what the encoder gives (B, T', D); and `tags`, where the model says any."""
        module = self.module
        if not isinstance(module, EndToEnd) or (self.outputs != "encoded" and not module.tags):
            return module(x, lengths), {}
        encoded, tags = module.encode(x, lengths), None
        if module.tags:
            tags = module.tagged(encoded.float(), lengths // module.subsample).float().log_softmax(1)
            encoded = module.told(encoded, tags) if module.tells_itself else encoded
        logits = encoded if self.outputs == "encoded" else module.ctc(encoded)
        if tags is None:
            return logits, {}
        return logits, {"tags": tags[:, None].expand(-1, encoded.shape[1], -1).cpu().numpy()}


def load(
    url: str,
    threads: int = 1,
    device: str = "cpu",
    *,
    outputs: Outputs = "log_probs",
    k: int = 20,
    shard: int = 0,
    precision: str = "fp32",
    tell: str = "",
) -> Model | ForeignModel:
    """The model of a *model* artifact, as the accelerator service loads it: loader ``megahour.models.inference:load``.

    `threads` sets torch's threads for the whole process (0 leaves them). k larger than V is lowered to V. An imported
    model (`import-aligner`) is run by its own library and gives log_probs or costs. tell: a tag, as of `restore`.

    Raises
    ------
    StoreError: a damaged, hostile or mismatched file, with what is wrong.
    ConfigError: top_k or another precision of an imported model, or its library is missing; posteriors of a model that
        is a transducer alone; a tag that it cannot be told.
    """
    artifact = Artifact(url)
    if threads:
        torch.set_num_threads(threads)
    config = read_config(artifact, shard)
    if config.get("kind") == "voice":
        raise ConfigError("a voice, which speaks and does not hear", where=url, remedy="megahour say; or give another")
    heads = config.get("heads", {})
    if outputs != "encoded" and heads and "ctc" not in heads:
        what = "a transducer has no posteriors of single frames"
        raise ConfigError(what, where=url, remedy="train it with criterion_options: {ctc: 0.2}, which adds some")
    if outputs == "encoded" and not heads:
        remedy = "leave attention_weight at 0, or train with criterion_options: {attention: 0.3}"
        raise ConfigError("the model has no attention decoder", where=url, remedy=remedy)
    if config.get("kind") in SUFFIX:
        tag_number(config, tell, where=url)
        if outputs == "top_k" or outputs == "encoded":
            raise ConfigError(f"an imported model gives no {outputs}", where=url, remedy="use a trained model")
        if precision != "fp32":
            what = f"precision {precision}: an imported model computes in what it was exported in"
            raise ConfigError(what, where=url, remedy="leave precision out")
        data = artifact.read_bytes(shard, SUFFIX[config["kind"]])
        return ForeignModel(config, data, threads=threads, device=device, outputs=outputs, where=url)
    module = restore(config, artifact.read_bytes(shard, ".safetensors"), where=url, tell=tell)
    return Model(config, module.to(device).eval(), device, outputs, min(k, int(config["outputs"])), precision)


def output_without_graph(config: Mapping[str, Any], *, attention: bool = False) -> Outputs:
    """What a search without a graph needs of a model of tokens; `attention`: its decoder is asked too."""
    return "encoded" if attention or "transducer" in config.get("heads", {}) else "log_probs"


def restore(config: Mapping[str, Any], data: bytes, *, where: str, tell: str = "") -> nn.Module:
    """The module of `config` with the weights in `data` (a safetensors file); `tell`: a tag that it is told for good,
    or RECOGNISED.

    Names, shapes and dtypes in the file's header are compared with the configuration before any tensor is made.
    """
    try:
        expected = shapes(config)
    except MegahourError as error:
        raise StoreError(f"model configuration: {error.message}", where=where, remedy=error.remedy) from error
    header = _header(data, where=where)
    found = {name: entry for name, entry in header.items() if name != "__metadata__"}
    if missing := sorted(expected.keys() - found.keys()):
        raise StoreError(f"weights lack {missing[0]!r} ({len(missing)} missing)", where=where, remedy=DAMAGED)
    if extra := sorted(found.keys() - expected.keys()):
        raise StoreError(f"weights hold unknown {extra[0]!r} ({len(extra)} unknown)", where=where, remedy=DAMAGED)
    for name, shape in expected.items():
        entry = found[name]
        if not isinstance(entry, dict) or entry.get("dtype") != "F32" or entry.get("shape") != list(shape):
            raise StoreError(f"weight {name!r} is {entry}, expected F32 {list(shape)}", where=where, remedy=DAMAGED)
    if sum(4 * math.prod(shape) for shape in expected.values()) > len(data):
        raise StoreError("weights are shorter than their header says", where=where, remedy=DAMAGED)
    try:
        tensors = safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise StoreError(f"damaged weights: {error}", where=where, remedy=DAMAGED) from error
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise StoreError(f"weight {name!r} holds NaN or infinity", where=where, remedy="train the model again")
    module = skeleton(config)
    module.load_state_dict(tensors, assign=True)
    if (tag := tag_number(config, tell, where=where)) is not None:
        assert isinstance(module, EndToEnd)
        module.tell(tag)
    if tell == RECOGNISED:
        module.tells_itself = True  # type: ignore[assignment]
    return module


def _header(data: bytes, *, where: str) -> dict[str, Any]:
    """The JSON header of a safetensors file: 8 bytes of length (little-endian), then that many bytes."""
    if len(data) < 8:
        raise StoreError(f"weights file of {len(data)} bytes", where=where, remedy=DAMAGED)
    (size,) = struct.unpack("<Q", data[:8])
    if size > min(len(data) - 8, MAX_CONFIG_BYTES):
        raise StoreError(f"weights header of {size} bytes in a file of {len(data)}", where=where, remedy=DAMAGED)
    return parse_config(data[8 : 8 + size], where=where)
