"""Speech made of tones, one a letter, and a real little network that has learnt to hear them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
from numpy.typing import NDArray

from megahour.core.schemas import CUES, RECORDINGS, TRUTH
from megahour.core.store import Artifact, Counts, Manifest, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.corpus.audio import encode_flac
from megahour.corpus.tar import tar_writer
from megahour.features.fbank import log_mel
from megahour.features.normalise import CausalMean
from megahour.features.stack import stack
from megahour.models.build import build

RATE_HZ, MELS, SIZE, PRIOR = 16_000, 64, 3, 14.0
LETTERS = "abcdef"
TOKENS = ["<blank>", *LETTERS]
LETTER_S, GAP_S, WORD_PAUSE_S, SENTENCE_PAUSE_S = 0.12, 0.06, 0.15, 0.6
Timed = tuple[str, int, int]  # word, start_samples, end_samples


def speak(sentences: list[str], rng: np.random.Generator) -> tuple[NDArray[np.int16], list[Timed], list[Timed]]:
    """Samples, words and letters with their true times."""
    words: list[Timed] = []
    letters: list[Timed] = []
    parts = [np.zeros(RATE_HZ // 2)]
    at = len(parts[0])

    def add(samples: NDArray[np.float64]) -> None:
        nonlocal at
        parts.append(samples)
        at += len(samples)

    t = np.arange(round(LETTER_S * RATE_HZ)) / RATE_HZ
    for sentence in sentences:
        for word in sentence.split():
            begin = at
            for letter in word:
                hertz = 300 * 1.6 ** LETTERS.index(letter)
                letters.append((letter, at, at + len(t)))
                add(6000 * np.sin(2 * np.pi * hertz * t) * np.hanning(len(t)) ** 0.3)
                add(np.zeros(round(GAP_S * RATE_HZ)))
            words.append((word, begin, letters[-1][2]))
            add(np.zeros(round(WORD_PAUSE_S * RATE_HZ)))
        add(np.zeros(round(SENTENCE_PAUSE_S * RATE_HZ)))
    samples = np.concatenate(parts)
    return (samples + rng.normal(0, 20, len(samples))).astype(np.int16), words, letters


def sentences(count: int, rng: np.random.Generator) -> list[str]:
    return [
        " ".join("".join(rng.choice(list(LETTERS), rng.integers(2, 6))) for _ in range(rng.integers(3, 6)))
        for _ in range(count)
    ]


def write(folder: Path, fill: Any, summary: dict[str, Any] | None = None) -> Artifact:
    """A complete artifact of one shard that `fill(out)` writes."""
    artifact = Artifact(folder)
    with ShardWriter(artifact, 0, "made") as out:
        fill(out)
        receipt = out.commit()
    digest = content_digest([receipt], summary or {})
    finish(artifact, [receipt], Manifest("made", 1, "made", digest, {}, {}, 1, Counts(), summary or {}))
    return artifact


def train_listener(folder: Path) -> Artifact:
    """A *model* artifact: frame by frame, the letter in its middle and blanks around it."""
    rng = np.random.default_rng(5)
    samples, _, letters = speak(sentences(25, rng), rng)
    normalised = CausalMean(np.full(MELS, PRIOR, np.float32)).apply(log_mel(samples, RATE_HZ, MELS))
    features = stack(normalised, 0, np.zeros(MELS, np.float32), np.full(MELS, 0.3, np.float32), SIZE)
    labels = np.zeros(len(features), np.int64)
    for letter, begin, end in letters:
        labels[round((begin + end) / 2 / (SIZE * RATE_HZ // 100) - 0.75)] = TOKENS.index(letter)
    config = {"kind": "tdnn", "inputs": SIZE * MELS, "outputs": len(TOKENS), "layers": 2, "units": 48}
    config |= {"stack": SIZE, "tokens": TOKENS, "stats": {"mean": [0.0] * MELS, "inv_std": [0.3] * MELS}}
    config |= {"audio": {"input": "stacked", "rate_hz": RATE_HZ, "low_hz": 20.0, "high_hz": 0.0, "prior": PRIOR}}
    module = build(config, seed=3)
    optimiser = torch.optim.Adam(module.parameters(), 0.005)
    x, y = torch.from_numpy(features)[None], torch.from_numpy(labels)
    weight = torch.tensor([1.0] + [4.0] * len(LETTERS))
    torch.set_num_threads(1)
    for _ in range(100):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(x, torch.tensor([len(features)]))[0], y, weight).backward()
        optimiser.step()

    def fill(out: ShardWriter) -> None:
        out.json(config, ".model.json")
        with out.open(".safetensors") as file:
            file.write(safetensors.torch.save({k: v.contiguous() for k, v in module.state_dict().items()}))

    return write(folder, fill)


def write_recordings(folder: Path, made: list[tuple[str, NDArray[np.int16], list[str], list[Timed]]]) -> Any:
    """(recordings, raw with its truth) from (name, samples, cues, true words)."""
    rows, cues, truth = [], [], []

    def fill(out: ShardWriter) -> None:
        with out.open(".tar") as file, tar_writer(file) as tar:
            for key, (name, samples, written, words) in enumerate(made, start=1):
                offset, size = tar.add(f"{key}.flac", encode_flac(samples, RATE_HZ))
                row = {"key": key, "name": name, "offset": offset, "size": size, "samples": len(samples)}
                fixed = {"rate_hz": RATE_HZ, "channel": 0, "speaker": "s", "language": "en", "licence": "CC0-1.0"}
                rows.append({**row, **fixed, "attribution": "", "source": "", "condition": "clean", "created_s": 0})
                for cue, text in enumerate(written):
                    offsets = [i for i, c in enumerate(text) if i == 0 or text[i - 1] == " "]
                    times = {"start_samples": -1, "end_samples": -1}
                    cues.append(
                        {"key": key, "cue": cue, **times, "raw": text.upper(), "text": text, "offsets": offsets}
                    )
                for i, (word, start, end) in enumerate(words):
                    times = {"start_samples": start, "end_samples": end}
                    truth.append({"name": name, "word": i, "text": word, **times, "sentence": 0})
        out.table(pa.Table.from_pylist(rows, RECORDINGS))
        out.table(pa.Table.from_pylist(cues, CUES), ".cues.parquet")

    recordings = write(folder / "recordings", fill)
    raw = write(folder / "raw", lambda out: out.table(pa.Table.from_pylist(truth, TRUTH), ".truth.parquet"))
    return recordings, raw
