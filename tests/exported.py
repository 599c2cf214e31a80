"""Untrained models to export, whose random weights output some text for any input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
import yaml
from numpy.typing import NDArray

from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.core.schemas import SELECTION, UTTERANCES
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.media.tar import tar_writer
from megahour.features.params import FeaturesParams
from megahour.models.build import build

TOKENS = ["<blank>", " ", *"abcdefgh"]
MELS = 16
LOUD = {"head.weight": 12.0, "ctc.weight": 12.0, "joiner.weight": 12.0, "encoder.head.weight": 4.0}
SHERPA = FeaturesParams(edges="mirrored", scale="unit", high_hz=-400)


def model(
    folder: Path,
    kind: str,
    p: FeaturesParams = SHERPA,
    *,
    rate_hz: int = 8000,
    stack: int = 1,
    layers: int = 2,
    heads: Mapping[str, Any] = {},
    stats: Mapping[str, Any] | None = None,
    tokens: Sequence[str] = TOKENS,
    mels: int = MELS,
) -> Artifact:
    """A *model* artifact with random weights, large enough in the head for the best token to change often.

    heads: the heads in `.model.json` of an end-to-end model. stats: made-up statistics of the features.
    """
    audio = {"input": "stacked", "rate_hz": rate_hz, "low_hz": p.low_hz, "high_hz": p.high_hz, "prior": p.scaled_prior}
    config: dict[str, Any] = {
        "kind": kind,
        "inputs": stack * mels,
        "outputs": len(tokens),
        "layers": layers,
        "units": 32,
    }
    config |= {
        "units": 32,
        "stack": stack,
        "tokens": list(tokens),
        "stats": stats or {"mean": [0.3] * mels, "inv_std": [0.4] * mels},
    }
    means = {"mean": p.mean, "range_db": p.range_db}
    config |= {"audio": {**audio, "edges": p.edges, "scale": p.scale, **means}, "mels": mels}
    config |= {"lookahead": 3} if kind == "lstm" else {}
    config |= {"join": 24, "context": 2, "decoder_layers": 1, **heads} if heads else {}
    module = build(config, seed=5)
    config |= {"subsample": module.subsample} if module.subsample > 1 else {}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in LOUD:
                parameter.mul_(LOUD[name])
            if name.startswith("tag_"):
                parameter.normal_(generator=torch.Generator().manual_seed(7))  # not told anything yet, they are zeros
    return stored(folder, module, config, "labelled")


def stored(folder: Path, module: torch.nn.Module, config: Mapping[str, Any], learnt_from: str) -> Artifact:
    """A *model* artifact of a module, with a training set in its provenance."""
    artifact = Artifact(folder)
    with ShardWriter(artifact, 0, "made") as out:
        out.json(config, ".model.json")
        with out.open(".safetensors") as file:
            file.write(safetensors.torch.save({k: v.contiguous() for k, v in module.state_dict().items()}))
        receipts = [out.commit()]
    return closed(artifact, receipts, "train", {"sets": [learnt_from]})


def closed(artifact: Artifact, receipts: list[Receipt], stage: str, params: dict[str, Any]) -> Artifact:
    digest = content_digest(receipts, {"stage": stage})
    finish(artifact, receipts, Manifest(stage, 1, "f", digest, params, {}, len(receipts), Counts(), {}))
    return artifact


def run(folder: Path) -> Artifact:
    """A run whose model was trained on two speakers of the set labelled, with two speakers held out in the set test."""
    rows: list[dict[str, Any]] = []
    utterances, selection = Artifact(folder / "utterances"), Artifact(folder / "selection")
    with ShardWriter(utterances, 0, "made") as out:
        with out.open(".tar") as file, tar_writer(file) as tar:
            for key in range(12):
                samples = voice(1.0 + 0.05 * key, key)
                offset, size = tar.add(f"{key}.flac", encode_flac(samples, 8000))
                row = {field.name: [] if pa.types.is_list(field.type) else None for field in SELECTION}
                row |= {"key": key, "shard": 0, "offset": offset, "size": size, "samples": len(samples)}
                row |= {"rate_hz": 8000, "speaker": f"s{key // 3}", "text": f"word {key}", "licence": "CC0-1.0"}
                rows.append({**row, "attribution": "us", "language": "de", "set": "labelled" if key < 6 else "test"})
        out.table(pa.Table.from_pylist(rows, UTTERANCES))
        receipts = [out.commit()]
    closed(utterances, receipts, "cut", {})
    with ShardWriter(selection, 0, "made") as out:
        out.table(pa.Table.from_pylist(rows, SELECTION))
        receipts = [out.commit()]
    closed(selection, receipts, "select", {})
    closed(Artifact(folder / "features"), [], "features", {})
    inputs = {
        "selection": {"utterances": "utterances"},
        "features": {"selection": "selection", "utterances": "utterances"},
        "model": {"features": "features"},
    }
    steps = {
        name: {"stage": name, "inputs": {role: f"{folder}/{other}" for role, other in each.items()}}
        for name, each in {"utterances": {}, **inputs}.items()
    }
    steps["model"] |= {"stage": "train", "criterion": "ctc"}
    (folder / "recipe.resolved.yaml").write_text(yaml.safe_dump({"run": str(folder), "steps": steps}))
    return model(folder / "model", "tdnn", FeaturesParams(), layers=1)


def voice(seconds: float, seed: int, rate_hz: int = 8000) -> NDArray[np.int16]:
    """Notes and noise that come and go, and half a second of digital silence."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    notes = rng.uniform(150, 0.45 * rate_hz, int(seconds * 6) + 1)[(t * 6).astype(int)]
    sound = 4000 * np.sin(2 * np.pi * np.cumsum(notes) / rate_hz) * (np.sin(7 * t) > -0.4)
    samples = (sound + rng.normal(0, 30, t.size)).astype(np.int16)
    samples[t.size // 2 : t.size // 2 + rate_hz // 2] = 0
    return samples
