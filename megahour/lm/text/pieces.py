"""Text divided into one piece per task: byte ranges of plain files, whole compressed files, shards of an artifact."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import fsspec
import numpy as np

from megahour.core.errors import ConfigError
from megahour.lm.text.arrays import Tokens
from megahour.lm.text.compression import COMPRESSED, first_bytes, past_mark
from megahour.lm.text.sources import Block, blocks, check_text, file_blocks, line_blocks, source_files
from megahour.lm.text.tokenise import WordTable, encode
from megahour.units.texts import input_lines

if TYPE_CHECKING:
    from megahour.core.store import Artifact

Piece = Mapping[str, Any]


def pieces_of(sources: list[str], inputs: Mapping[str, Artifact], piece_bytes: int) -> list[dict[str, Any]]:
    """Divide text into pieces of about `piece_bytes`: first the shards of the input `text`, then the sorted sources.

    Raises ConfigError: there is no text, or a file is none.
    """
    result: list[dict[str, Any]] = []
    if "text" in inputs:
        result += [{"shard": receipt.shard} for receipt in inputs["text"].each_receipt()]
    for url, column in source_files(sources):
        fs, path = fsspec.core.url_to_fs(url)
        size = int(fs.size(path) or 0)
        with fs.open(path, "rb") as file:
            head = first_bytes(file)
        if not column:
            check_text(head, url)
        if column or head.startswith(COMPRESSED) or size <= piece_bytes:
            result.append({"source": f"{url}:{column}" if column else url})
        else:
            result += [
                {"source": url, "begin": b, "end": min(b + piece_bytes, size)} for b in range(0, size, piece_bytes)
            ]
    if not result:
        raise ConfigError("no text", remedy="give the input `text` or the parameter `source`")
    return result


def read_piece(piece: Piece, inputs: Mapping[str, Artifact]) -> Iterator[Block]:
    """Read the blocks of a piece. A byte range has the lines that begin in it."""
    if "shard" in piece:
        own: Any = _OneShard(inputs["text"], piece["shard"])
        yield from line_blocks(input_lines({"text": own}), f"text shard {piece['shard']}")
    elif "begin" not in piece:
        yield from blocks([piece["source"]])
    else:
        with fsspec.open(piece["source"], "rb") as file:
            begin, end = _line_at(file, piece["begin"]), _line_at(file, piece["end"])
            if end > begin:
                file.seek(begin)
                yield from file_blocks(ByteRange(file, end - begin), piece["source"], 8 << 20)


def tokens_of(
    piece: Piece, inputs: Mapping[str, Artifact], table: WordTable, *, skip: bool, frozen: bool = False
) -> Iterator[Tokens]:
    """Encode a piece, block by block, and add its new words to the table, unless it is `frozen`: see `encode`. The next
    block reuses the yielded array.

    Raises MegahourError: a reserved word, unless `skip`.
    """
    tokens = np.empty(0, np.int32)
    for block in read_piece(piece, inputs):
        if len(tokens) <= block.end:
            tokens = np.empty(block.end + 1, np.int32)
        count, skipped = encode(block.text, block.end, table, tokens, frozen=frozen, reserve=True)
        if skipped and not skip:
            raise block.reserved()
        yield tokens[:count]


class ByteRange(io.RawIOBase):
    """The next `left` bytes of a file."""

    def __init__(self, file: BinaryIO, left: int) -> None:
        self._file, self._left = file, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _line_at(file: BinaryIO, place: int) -> int:
    """The offset of the first line that begins at `place` or later, past a byte-order mark."""
    if place == 0:
        return past_mark(file)
    file.seek(place - 1)
    file.readline()
    return file.tell()


class _OneShard:
    """A view of a text artifact that shows only one of its shards."""

    def __init__(self, text: Artifact, shard: int) -> None:
        self._text, self._shard = text, shard
        self.open = text.open

    def receipts(self) -> list[Any]:
        return [self._text.receipt_of(self._shard)]
