"""Speech made of tones, one per letter, and a small network trained to recognise them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
from numpy.typing import NDArray

from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import CUES, RECORDINGS, TRUTH
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.media.tar import tar_writer
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


def write(folder: Path, *fills: Any, summary: dict[str, Any] | None = None, stage: str = "made") -> Artifact:
    """A complete artifact with a shard for each `fill(out)`."""
    artifact = Artifact(folder)
    receipts = []
    for shard, fill in enumerate(fills):
        with ShardWriter(artifact, shard, "made") as out:
            fill(out)
            receipts.append(out.commit())
    digest = content_digest(receipts, summary or {})
    finish(artifact, receipts, Manifest(stage, 1, "made", digest, {}, {}, len(fills), Counts(), summary or {}))
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

    return write(folder, fill, stage="train")


Made = tuple[str, NDArray[np.int16], list[str], list[Timed]]  # name, samples, cues, true words


def write_recordings(folder: Path, *shards: list[Made], rate_hz: int = RATE_HZ) -> Any:
    """(recordings, raw with its truth); keys are 1, 2, … over all shards."""
    keys = iter(range(1, 1 << 20))
    recordings = write(folder / "recordings", *(recordings_shard(made, keys, rate_hz) for made in shards))
    truth = [
        {"name": name, "word": i, "text": word, "start_samples": start, "end_samples": end, "sentence": 0}
        for made in shards
        for name, _, _, words in made
        for i, (word, start, end) in enumerate(words)
    ]
    raw = write(folder / "raw", lambda out: out.table(pa.Table.from_pylist(truth, TRUTH), ".truth.parquet"))
    return recordings, raw


def recordings_shard(made: list[Made], keys: Iterator[int], rate_hz: int = RATE_HZ) -> Callable[[ShardWriter], None]:
    """What writes a shard of `made`; a cue that is a tuple is (start_samples, transcript, text)."""

    def fill(out: ShardWriter) -> None:
        rows, cues = [], []
        with out.open(".tar") as file, tar_writer(file) as tar:
            for name, samples, written, _ in made:
                key = next(keys)
                offset, size = tar.add(f"{key}.flac", encode_flac(samples, rate_hz))
                row = {"key": key, "name": name, "offset": offset, "size": size, "samples": len(samples)}
                fixed = {"rate_hz": rate_hz, "channel": 0, "speaker": "s", "language": "en", "licence": "CC0-1.0"}
                rows.append({**row, **fixed, "attribution": "", "source": "", "condition": "clean", "created_s": 0})
                cues += [{"key": key, **cue_row(cue, entry)} for cue, entry in enumerate(written)]
        out.table(pa.Table.from_pylist(rows, RECORDINGS))
        out.table(pa.Table.from_pylist(cues, CUES), ".cues.parquet")

    return fill


def cue_row(cue: int, entry: str | tuple[int, int, str]) -> dict[str, Any]:
    start, transcript, text = (-1, 0, entry) if isinstance(entry, str) else entry
    offsets = [i for i, c in enumerate(text) if i == 0 or text[i - 1] == " "]
    ends = [i for i in range(1, len(text) + 1) if i == len(text) or text[i] == " "]
    times = {"start_samples": start, "end_samples": -1, "transcript": transcript, "speaker": ""}
    return {"cue": cue, **times, "raw": text.upper(), "text": text, "offsets": offsets, "ends": ends}
