"""Memory and disk that estimation in bounded memory needs, estimated before it begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megahour.core.errors import StageError
from megahour.lm.arpa.lines import line_bytes
from megahour.lm.estimate.kept_ngrams import GRAM_BYTES, NODE_BYTES
from megahour.lm.estimate.partitions import BUCKET
from megahour.lm.estimate.sweep import SUMS
from megahour.lm.scale.memory_rows import BYTES_OF_TOKEN, MOST_TOKENS
from megahour.lm.scale.row_files import CHUNK, row_bytes
from megahour.lm.scale.shard_types import Text
from megahour.lm.text.arrays import Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY

FIXED_BYTES = 180 << 20  # the interpreter, compiled kernels and libraries
SHARDS = 1024  # upper limit if memory allows, because every shard reads names from all others
MOST_SHARDS = 1 << 14  # in round 1 of a cluster: each is a partition of an exchange, and reads names from all others
LARGEST = 1 << 20  # rows of a shard, even if memory allows more: larger shards do not fit into caches


@dataclass(frozen=True)
class Room:
    """in_memory: whether tokens and positions are in memory. smallest: largest partition of several words, in
    positions. shard_rows: largest shard, in positions."""

    in_memory: bool
    smallest: int
    shard_rows: int


def room_for(
    text: Text, total: int, memory_bytes: int, threads: int, *, shard_rows: int = 0, on_disk: bool = False
) -> Room:
    """Decide how to hold a corpus of `total` positions. shard_rows: limit for a shard, 0 for what memory allows.
    on_disk: keep positions on disk even if they fit into memory.

    Raises StageError: memory is too small for the smallest shards; the message has the required size.
    """
    smallest = max(BUCKET, total >> 14)
    position = bytes_of_position(text.order)
    held = FIXED_BYTES + text.spelling.arena.nbytes + text.size * (8 + 16 + 4 + 8 + 8 + 8 * SUMS + 8)
    for_thread = text.size * (4 * (text.order + 3) + 8)
    ways = [(False, held, for_thread + CHUNK * row_bytes(text.order))]
    if total <= MOST_TOKENS and not on_disk:
        ways.insert(0, (True, held + BYTES_OF_TOKEN * total, for_thread))
    for in_memory, shared, own in ways:
        each = (memory_bytes - shared) // threads - own
        if each >= smallest * position:
            largest = min(each // position, max(LARGEST, total // SHARDS), shard_rows or total)
            return Room(in_memory, smallest, int(max(largest, smallest)))
    least = min(shared + threads * (own + smallest * position) for _, shared, own in ways)
    raise StageError(
        f"{total} tokens, {text.size} words and {threads} threads need at least {least / 1e6:.0f} MB of memory, "
        f"{memory_bytes / 1e6:.0f} MB are given",
        remedy=f"give --memory {-(-least // 10**6)}MB, or use fewer threads or words",
    )


def room_of_rows(total: int, order: int, shard_rows: int, on_disk: bool = False) -> Room:
    """How to hold a corpus of `total` positions in shards of `shard_rows`, the shards of `distributed.first_tree`.

    Tokens and positions are in memory where they take no more than the scratch arrays of one shard.
    """
    smallest = max(BUCKET, total // MOST_SHARDS)
    limit = max(shard_rows, smallest)
    in_memory = not on_disk and total <= MOST_TOKENS and BYTES_OF_TOKEN * total <= limit * bytes_of_position(order)
    return Room(in_memory, smallest, limit)


def bytes_of_position(order: int) -> int:
    """Memory per position of a shard that is counted or smoothed: its row, its window and the sorted copy, scratch of
    the sort, stored n-grams and lines."""
    return 4 * (order + 2) + 2 * (4 * order + 8) + 20 + 60 * order


SAMPLE = 1 << 18  # tokens
NAME_BYTES = 28
STORED = 0.65  # share of n-grams whose context occurs more than once, which the first pass keeps for the second
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Need:
    """spill_bytes: largest size of the scratch files. model_bytes: size of the ARPA file. ngrams: by order from 1."""

    spill_bytes: int
    model_bytes: int
    ngrams: list[int]


def need_of(tokens: Int32, lengths: Int32 | Int64, total: int, order: int, *, in_memory: bool = False) -> Need:
    """Estimate the need of a corpus of `total` tokens from the first ones.

    lengths (V,): bytes of words. in_memory: positions are in memory. The number of n-grams grows as a power of the
    tokens, with a falling exponent, so the exponent of the sample gives too much rather than too little. Left-over rows
    are in two files for a while, so positions of frequent words count twice.
    """
    half, whole = tokens[: min(len(tokens), SAMPLE) // 2], tokens[:SAMPLE]
    grown, sizes, model_bytes = total / max(1, len(whole)), [], 0
    word_bytes = float(lengths[whole].mean()) if len(whole) else 0.0
    for k in range(1, order + 1):
        seen, before = _different(whole, k), _different(half, k)
        power = np.log2(seen / before) if 0 < before < seen else 0.0
        expected = int(max(1, seen) * max(1.0, grown) ** min(1.0, power))
        sizes.append(expected)
        model_bytes += line_bytes(k, k == order, expected, int(expected * k * word_bytes * 1.3))
    frequent = float(np.sort(np.bincount(whole, minlength=1))[::-1][:16].sum() / max(1, len(whole)))
    contexts = min(sum(sizes[1:-1]) // 3, total)
    swept = 4 * order + (4 if in_memory else 8)
    rows = 0 if in_memory else row_bytes(order) * (1 + frequent)
    stored = GRAM_BYTES * int(STORED * sum(sizes[1:])) + NODE_BYTES * contexts
    spill_bytes = int(total * (4 + rows + swept) + stored + NAME_BYTES * contexts)
    return Need(spill_bytes, model_bytes, sizes)


SCRATCH = "lm train: --scratch, lmplz: -T, lm cluster: --out"
"""The options for the directory of scratch files, for messages."""


def check_disk(need: Need, order: int, scratch: Path, output: Path, held: int = 0) -> None:
    """Raises StageError: the disks of `scratch` and `output` are too small. held: bytes of existing scratch files."""
    free, spill = shutil.disk_usage(scratch).free, max(0, need.spill_bytes - held)
    if spill > free:
        raise StageError(
            f"order {order} needs about {_size(need.spill_bytes)} in {scratch}, {_size(free)} are free",
            remedy=f"give a directory with more room ({SCRATCH}), a lower order, or less text",
        )
    same = scratch.stat().st_dev == output.stat().st_dev
    free = shutil.disk_usage(output).free - (spill if same else 0)
    if need.model_bytes > free:
        moved = f"scratch files ({SCRATCH})" if same else "the model"
        raise StageError(
            f"the model needs about {_size(need.model_bytes)} in {output}, {_size(max(0, free))} are free"
            + (f" beside {_size(spill)} of scratch files" if same else ""),
            remedy=f"free some space, put {moved} on another disk, or prune",
        )


def _different(tokens: Int32, k: int) -> int:
    """The number of different k-grams within sentences, counted by their hashes."""
    if len(tokens) < k:
        return 0
    hashed = np.zeros(len(tokens) - k + 1, np.uint64)
    inside = np.ones(len(hashed), bool)
    for j in range(k):
        column = tokens[j : len(hashed) + j]
        hashed = (hashed ^ column.astype(np.uint64)) * _MIX
        hashed ^= hashed >> np.uint64(29)
        if 0 < j < k - 1:
            inside &= column != BOUNDARY
    hashed = np.sort(hashed[inside])  # not `np.unique`, whose hash table takes twenty times as long
    return int(np.count_nonzero(hashed[1:] != hashed[:-1])) + (len(hashed) > 0)


def _size(amount: int) -> str:
    if amount < 1e9:
        return f"{amount / 1e6:.0f} MB"
    return f"{amount / 1e9:.0f} GB" if amount >= 10e9 else f"{amount / 1e9:.1f} GB"
