"""Loads a *model* artifact and runs it on batches. Files are safetensors and JSON, checked before use; no pickle."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import safetensors.torch
import torch
from torch import nn

from megahour.core.errors import ConfigError, MegahourError, StoreError
from megahour.core.store import Artifact
from megahour.foreign.model import COST_STEPS, SUFFIX, ForeignModel
from megahour.models.build import shapes, skeleton
from megahour.models.configuration import (
    DAMAGED,
    MAX_CONFIG_BYTES,
    RECOGNISED,
    Outputs,
    check_frames,
    parse_config,
    read_config,
    tag_number,
)
from megahour.models.conformer import AttentionContext, Conformer
from megahour.models.end_to_end import EndToEnd
from megahour.models.precision import autocast

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        """Run the model on `features` (B, T, F), stacked and normalised, with `lengths` (B,) real frames each.

        Returns the arrays below and their lengths (B,), `lengths` divided by the model's subsampling. Frames past a
        row's length are undefined.

        log_probs: {"log_probs": (B, T, V) float32}.
        top_k: {"indices": (B, T, k) uint16, "logits": (B, T, k) float16}, the k largest logits of each frame in falling
            order (Parthasarathi et al., section V-C).
        costs: {"costs": (B, T, V) uint8}, -log posteriors in 1/16 nat, a quarter of the bytes, for aligners.
        encoded: {"encoded": (B, T, D) float32} of an `EndToEnd` model.

        A model with a tagger adds to log_probs and encoded {"tags": (B, T, N) float32}, the log probabilities of the
        utterance's tags, equal in all frames.
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
        """Logits (B, T', V) or encoded frames (B, T', D); and `tags`, if the model has a tagger."""
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


class Ensemble(nn.Module):
    """Models of the same outputs whose mean posteriors are the result, as log probabilities (B, T, V)."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.subsample = getattr(members[0], "subsample", 1)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        every = torch.stack([member(x, lengths).float().log_softmax(2) for member in self.members])
        return every.logsumexp(0) - math.log(len(self.members))


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
    chunk: int = 0,
    left: int = 4,
    others: Sequence[str] = (),
    digests: Sequence[str] = (),
) -> Model | ForeignModel:
    """Load a *model* artifact. The model service uses it as loader ``megahour.models.inference:load``.

    threads: torch's threads for the whole process; 0 does not change them. k: number of outputs for top_k, at most V.
    tell: a tag, as in `restore`. An imported model (`import-aligner`) has outputs log_probs and costs only.
    chunk, left: context of a conformer's attention in output frames and earlier chunks, as in a stream; 0: everything.
    others: models with the same inputs and outputs, whose posteriors are averaged with this one's.
    digests: those of this model's and the others' manifests, if they must be these.

    Raises
    ------
    StoreError: a file is damaged, hostile or does not match, or a model has been made again since.
    ConfigError: the model does not have such outputs or tag, or cannot compute in `precision`, or a library is missing.
    """
    artifact = Artifact(url)
    if threads:
        torch.set_num_threads(threads)
    config = read_config(artifact, shard)
    if config.get("kind") == "voice":
        raise ConfigError("a voice, not a recogniser", where=url, remedy="use `megahour say`, or give another model")
    heads = config.get("heads", {})
    if outputs != "encoded":
        check_frames(config, where=url)
    if outputs == "encoded" and not heads:
        remedy = "leave attention_weight at 0, or train with criterion_options: {attention: 0.3}"
        raise ConfigError("the model has no attention decoder", where=url, remedy=remedy)
    data = artifact.read_bytes(shard, SUFFIX.get(str(config.get("kind")), ".safetensors"))
    if digests and artifact.manifest.digest != digests[0]:  # after the reads, which may have met the old files
        what = "the model has been made again since this work was asked for"
        raise StoreError(what, where=url, remedy="run the command again when the model is finished")
    if config.get("kind") in SUFFIX:
        tag_number(config, tell, where=url)
        if outputs == "top_k" or outputs == "encoded":
            raise ConfigError(f"an imported model has no {outputs}", where=url, remedy="use a trained model")
        if precision != "fp32":
            what = f"precision {precision}: an imported model keeps the precision of its export"
            raise ConfigError(what, where=url, remedy="leave precision out")
        return ForeignModel(config, data, threads=threads, device=device, outputs=outputs, where=url)
    module = restore(config, data, where=url, tell=tell)
    if chunk:
        encoder = module.encoder if isinstance(module, EndToEnd) else module
        if not isinstance(encoder, Conformer):
            what = f"chunks of attention: a model of kind {config.get('kind')} has none"
            raise ConfigError(what, where=url, remedy="leave them out, or train a conformer")
        encoder.context = AttentionContext(chunk, left)
    if others:
        same: dict[str, Any] = {"outputs": outputs, "shard": shard, "precision": precision}
        theirs = [digests[number : number + 1] for number in range(1, len(others) + 1)]
        rest = [load(other, threads, device, digests=own, **same) for other, own in zip(others, theirs, strict=True)]
        members = [module, *(cast(Model, model).module for model in rest)]
        if len({getattr(member, "subsample", 1) for member in members}) > 1:
            what = "models that join frames differently have no mean: a conformer joins four, others none"
            raise ConfigError(what, where=url, remedy="give teachers of one kind, or without conformers")
        module = Ensemble(members)
    return Model(config, module.to(device).eval(), device, outputs, min(k, int(config["outputs"])), precision)


def restore(config: Mapping[str, Any], data: bytes, *, where: str, tell: str = "") -> nn.Module:
    """The module of `config` with the weights in `data`, a safetensors file.

    tell: a tag to fix for all utterances (`EndToEnd.tell`), or RECOGNISED.

    Raises
    ------
    StoreError: the configuration or the weights are damaged or do not match. Names, shapes and dtypes in the file's
        header are checked before any tensor is made.
    ConfigError: the model has no such tag.
    """
    try:
        expected = shapes(config)
    except MegahourError as error:
        raise StoreError(f"model configuration: {error.message}", where=where, remedy=error.remedy) from error
    header = _header(data, where=where)
    header.pop("__metadata__", None)
    if missing := sorted(expected.keys() - header.keys()):
        raise StoreError(f"weights lack {missing[0]!r} ({len(missing)} missing)", where=where, remedy=DAMAGED)
    if extra := sorted(header.keys() - expected.keys()):
        raise StoreError(f"weights hold unknown {extra[0]!r} ({len(extra)} unknown)", where=where, remedy=DAMAGED)
    for name, shape in expected.items():
        entry = header[name]
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
