"""What estimation in bounded memory may hold: positions in memory or on disk, and how large a shard may be."""

from __future__ import annotations

from dataclasses import dataclass

from megahour.core.errors import StageError
from megahour.lm.estimate.partitions import BUCKET
from megahour.lm.estimate.sweep import SUMS
from megahour.lm.scale.memory_rows import BYTES_OF_TOKEN, MOST_TOKENS
from megahour.lm.scale.row_files import CHUNK, row_bytes
from megahour.lm.scale.shard_types import Text

FIXED_BYTES = 180 << 20  # the interpreter, compiled kernels and libraries
SHARDS = 1024  # at most, where memory allows: every shard reads a piece of every other's names
LARGEST = 1 << 20  # rows of a shard that more memory does not make larger: caches are small


@dataclass(frozen=True)
class Room:
    """in_memory: tokens and positions are held in memory. smallest: positions of a partition of neighbouring words;
    shard_rows: positions that a shard may have."""

    in_memory: bool
    smallest: int
    shard_rows: int


def room_for(
    text: Text, total: int, memory_bytes: int, threads: int, *, shard_rows: int = 0, on_disk: bool = False
) -> Room:
    """How a corpus of `total` positions is held. shard_rows: positions of a shard at most, 0 as many as memory allows.
    on_disk: positions go to disk even where memory would hold them.

    Raises StageError: memory is too little even for the smallest shards; says how much would do.
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
        f"memory of {memory_bytes / 1e6:.0f} MB is too little for {total} tokens, {text.size} words and "
        f"{threads} threads: the least is {least / 1e6:.0f} MB",
        remedy=f"give --memory {-(-least // 10**6)}MB, or fewer threads or words",
    )


def bytes_of_position(order: int) -> int:
    """Memory of a position of a shard while it is counted or smoothed: rows, windows and their sorted copy, sorting,
    stored n-grams and lines."""
    return 4 * (order + 2) + 2 * (4 * order + 8) + 20 + 60 * order
