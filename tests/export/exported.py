"""Models to export: they have learnt nothing, and say something of everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from megahour.core.store import Artifact, Counts, Manifest, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.features.params import FeaturesParams
from megahour.models.build import build

TOKENS = ["<blank>", " ", *"abcdefgh"]
MELS = 16
SHERPA = FeaturesParams(edges="mirrored", scale="unit", high_hz=-400)


def model(
    folder: Path, kind: str, p: FeaturesParams = SHERPA, *, rate_hz: int = 8000, stack: int = 1, layers: int = 2
) -> Artifact:
    """A *model* artifact with random weights, whose head is loud enough for the best token to change often."""
    audio = {"input": "stacked", "rate_hz": rate_hz, "low_hz": p.low_hz, "high_hz": p.high_hz, "prior": p.scaled_prior}
    config: dict[str, Any] = {
        "kind": kind,
        "inputs": stack * MELS,
        "outputs": len(TOKENS),
        "layers": layers,
        "units": 32,
    }
    config |= {"units": 32, "stack": stack, "tokens": TOKENS, "stats": {"mean": [0.3] * MELS, "inv_std": [0.4] * MELS}}
    config |= {"audio": {**audio, "edges": p.edges, "scale": p.scale}, "mels": MELS}
    config |= {"lookahead": 3} if kind == "lstm" else {}
    module = build(config, seed=5)
    config |= {"subsample": module.subsample} if module.subsample > 1 else {}
    with torch.no_grad():
        module.head.weight.mul_(12.0)
    artifact = Artifact(folder)
    with ShardWriter(artifact, 0, "made") as out:
        out.json(config, ".model.json")
        with out.open(".safetensors") as file:
            file.write(safetensors.torch.save({k: v.contiguous() for k, v in module.state_dict().items()}))
        receipts = [out.commit()]
    finish(artifact, receipts, Manifest("train", 1, "f", content_digest(receipts, {}), {}, {}, 1, Counts(), {}))
    return artifact


def voice(seconds: float, seed: int, rate_hz: int = 8000) -> NDArray[np.int16]:
    """Notes and noise that come and go, and half a second of digital silence."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    notes = rng.uniform(150, 0.45 * rate_hz, int(seconds * 6) + 1)[(t * 6).astype(int)]
    sound = 4000 * np.sin(2 * np.pi * np.cumsum(notes) / rate_hz) * (np.sin(7 * t) > -0.4)
    samples = (sound + rng.normal(0, 30, t.size)).astype(np.int16)
    samples[t.size // 2 : t.size // 2 + rate_hz // 2] = 0
    return samples
