"""One ARPA file, with its word list, from the lines of all shards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from megahour.lm.arpa.write import END_OF_MODEL, header, section
from megahour.lm.scale.streams import StreamReader, shard_stream
from megahour.lm.text.arrays import Bytes, Int64
from megahour.lm.text.tokenise import RESERVED

if TYPE_CHECKING:
    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter


def join_lines(lines: Artifact, sizes: Sequence[int], out: ShardWriter) -> None:
    """Write `.arpa` from an artifact with `.1.txt`, `.2.txt`, …: lines by order, shards in the order of the file."""
    receipts = lines.receipts()
    with shard_stream(out, ".arpa") as file:
        file.put(np.frombuffer(header(sizes), np.uint8))
        for k in range(1, len(sizes) + 1):
            file.put(np.frombuffer(section(k), np.uint8))
            for receipt in receipts:
                if f".{k}.txt" in receipt.files:
                    with lines.local(receipt.shard, f".{k}.txt") as path, closing(StreamReader(path)) as part:
                        for piece in part.pieces():
                            file.put(piece)
        file.put(np.frombuffer(END_OF_MODEL, np.uint8))


def write_words(arena: Bytes, starts: Int64, file: BinaryIO) -> None:
    """Write the words of a vocabulary without the reserved ones, a line each."""
    own = starts[len(RESERVED) :]
    file.write(np.insert(arena[own[0] : own[-1]], own[1:] - own[0], 10).data)
