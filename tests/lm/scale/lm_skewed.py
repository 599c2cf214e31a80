"""Text whose words are drawn from a Zipf distribution, with "how to" in front of a fifth of all lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from megahour.core.errors import StageError
from megahour.lm.estimate.estimate import estimate
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.scale.bounded import Bounded, estimate_bounded
from megahour.lm.text.sources import blocks


def write_skewed(path: Path, lines: int, vocabulary: int = 3000, seed: int = 4) -> Path:
    """A line has two to six words; `path` with `lines` of them."""
    rng = np.random.Generator(np.random.PCG64(seed))
    words = np.minimum(rng.zipf(1.2, (lines, 6)) - 1, vocabulary - 1)
    lengths = rng.integers(2, 7, lines)
    heads = np.where(rng.random(lines) < 0.2, "how to ", "")
    text = (
        head + " ".join(f"w{word}" for word in row[:length])
        for head, row, length in zip(heads.tolist(), words.tolist(), lengths.tolist(), strict=True)
    )
    path.write_text("\n".join(text) + "\n", "utf-8")
    return path


def in_memory(text: Path, order: int, out: Path, cutoffs: tuple[int, ...] = (), **options: object) -> bytes:
    """The bytes that `estimate` writes for the corpus in one piece; options of `read_corpus`."""
    estimate(read_corpus(blocks([str(text)]), **options).corpus, order, out, cutoffs=cutoffs)  # type: ignore[arg-type]
    return out.read_bytes()


def least_memory(text: Path, order: int, folder: Path) -> int:
    """The smallest limit that `estimate_bounded` takes for a text: shards are as small as they can be."""
    try:
        estimate_bounded(reader(text), order, folder / "none.arpa", folder / "least", memory_bytes=1)
    except StageError as error:
        return (int(error.message.split("need at least ")[1].split(" ")[0]) + 1) * 1_000_000
    raise AssertionError("one byte of memory was enough")


def reader(text: Path) -> Callable[[], object]:
    """What `estimate_bounded` reads a text file with."""
    return lambda: blocks([str(text)])


def bounded(text: Path, order: int, folder: Path, **options: object) -> tuple[bytes, Bounded]:
    """The bytes that `estimate_bounded` writes with the smallest shards, through the disk, and its report."""
    out = folder / "bounded.arpa"
    options = {"memory_bytes": 1 << 30, "shard_rows": 1, "on_disk": True, **options}
    found = estimate_bounded(reader(text), order, out, folder / "scratch", **options)  # type: ignore[arg-type]
    return out.read_bytes(), found
