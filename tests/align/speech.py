"""Made-up posteriors and recordings, as a CTC model would give for a text, with a known share of errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNITS = ["<blank>", " ", *"abcdefghijklmnopqrstuvwxyz'"]


@dataclass
class Said:
    """Posteriors (T, V) float32 of spoken cues, and the first frame of each of their letters (spaces left out)."""

    log_probs: NDArray[np.float32]
    letter_frames: list[NDArray[np.int64]]


def vocabulary(size: int, rng: np.random.Generator) -> list[str]:
    letters = list("etaoinshrdlucmfwypvbgk")
    return ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(size)]


def sentences(count: int, rng: np.random.Generator, words: int = 9) -> list[str]:
    known = vocabulary(2000, rng)
    return [" ".join(known[i] for i in rng.integers(0, len(known), words)) for _ in range(count)]


def say(cues: list[str], rng: np.random.Generator, errors: float = 0.12, frames_a_letter: float = 4.0) -> Said:
    """Each letter peaks for one frame, then blanks follow; a share of letters is lost, doubled or replaced."""
    index = {unit: i for i, unit in enumerate(UNITS)}
    peaks: list[tuple[int, int]] = []
    letter_frames: list[NDArray[np.int64]] = []
    t = 3
    for cue in cues:
        frames = []
        for letter in cue:
            if letter != " ":
                frames.append(t)
            peaks.append((t, index[letter]))
            t += 1 + int(rng.poisson(frames_a_letter - 1)) if frames_a_letter > 1 else 1
        letter_frames.append(np.array(frames, np.int64))
        t += int(rng.integers(5, 15))
    log_probs = rng.normal(-7.0, 0.7, (t, len(UNITS))).astype(np.float32)
    best = np.zeros(t, np.int64)
    for frame, unit in peaks:
        draw = rng.random()
        wrong = int(rng.integers(1, len(UNITS)))
        best[frame] = unit if draw >= errors else (0 if draw < errors / 2 else wrong)
        log_probs[frame, unit] = -3.0
    log_probs[np.arange(t), best] = -0.1
    return Said(log_probs - np.log(np.exp(log_probs).sum(axis=1, keepdims=True)), letter_frames)
