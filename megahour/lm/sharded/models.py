"""Models as pieces of text for tasks: lines of an earlier stage by shard and order, ARPA files by byte ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import fsspec
import numpy as np

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.kinds import kind_of
from megahour.core.stage import Inputs
from megahour.lm.arpa import parse
from megahour.lm.arpa.read import shown
from megahour.lm.text.arrays import Float64, Int32
from megahour.lm.text.compression import BYTE_ORDER_MARK, COMPRESSED, unpacked
from megahour.lm.text.pieces import ByteRange, Piece
from megahour.lm.text.tokenise import WordTable, padded

BLOCK_BYTES = 1 << 23
_BINARY = (b"MHNGRA", b"mmap l")  # the mapped form, KenLM's
REMEDY = "check that the ARPA file is complete"
_WRONG = {
    parse.NUMBER: "not a number in",
    parse.POSITIVE: "a log10 probability above 0 in",
    parse.REPEATED: "a word that occurs twice in",
    parse.UNKNOWN_WORD: "a word that is not among the unigrams in",
}


def model_names(files: Sequence[str], roles: Sequence[str]) -> list[str]:
    """The models of a stage in order: the inputs lm1, lm2, …, then files."""
    return [*sorted(role for role in roles if role.startswith("lm")), *files]


def pieces_of(names: Sequence[str], inputs: Inputs, piece_bytes: int) -> list[dict[str, Any]]:
    """Divide models into pieces, in the order of their lines: model, order, source, shard or byte range.

    Raises ConfigError: no such file, or not an ARPA file. MegahourError: a truncated file.
    """
    result: list[dict[str, Any]] = []
    for model, name in enumerate(names):
        if name in inputs and kind_of(inputs[name]) == "lines":
            for receipt in inputs[name].each_receipt():
                orders = sorted(int(suffix[1:-4]) for suffix in receipt.files if suffix.endswith(".txt"))
                found = [{"model": model, "order": k, "source": name, "shard": receipt.shard} for k in orders]
                result += found
        else:
            result += _file_pieces(model, name, inputs, piece_bytes)
    return result


def _file_pieces(model: int, name: str, inputs: Inputs, piece_bytes: int) -> Iterator[dict[str, Any]]:
    with _opened(name, inputs) as file:
        magic = file.read(6)
        if magic.startswith(_BINARY):
            message, remedy = "not an ARPA file", f"give the output of: megahour lm convert {name} MODEL.arpa"
            raise ConfigError(message, where=name, remedy=remedy)
        if magic.startswith(COMPRESSED):
            yield {"model": model, "order": 0, "source": name}
            return
        file.seek(0)
        held: dict[str, Any] = {}
        for order, at, data in sections(file, name):
            if held and held["order"] == order and held["end"] - held["begin"] < piece_bytes:
                held["end"] = at + len(data)
                continue
            if held:
                yield held
            held = {"model": model, "order": order, "source": name, "begin": at, "end": at + len(data)}
        if held:
            yield held


@contextmanager
def _opened(name: str, inputs: Inputs) -> Iterator[BinaryIO]:
    """Open the ARPA file of a model in a store or on a disk. Raises ConfigError: there is none."""
    if name in inputs:
        artifact = inputs[name]
        files = artifact.receipt_of(0).files
        suffix = next((suffix for suffix in files if suffix.startswith(".arpa")), "")
        if not suffix:
            remedy = "give the stage before it that writes .arpa"
            raise ConfigError("no ARPA file is in the artifact", where=artifact.url, remedy=remedy)
        with artifact.open(0, suffix) as file:
            yield file
        return
    try:
        with fsspec.open(name, "rb") as file:
            yield file
    except FileNotFoundError:
        raise ConfigError("no such model", where=name, remedy="give .arpa files that all workers see") from None


def sections(file: BinaryIO, name: str) -> Iterator[tuple[int, int, bytes]]:
    r"""(order, offset in the file, whole lines) of the n-grams of an ARPA file, some megabytes at a time.

    Raises MegahourError: \data\ or \end\ is missing, or sections are out of order.
    """
    order, ended, begun, at, carry = 0, False, False, 0, b""
    while True:
        data = file.read(BLOCK_BYTES)
        text = carry + data if data else carry + b"\n"
        cut = text.rfind(b"\n") + 1
        whole, carry = text[:cut], text[cut:]
        place = len(BYTE_ORDER_MARK) if not at and whole.startswith(BYTE_ORDER_MARK) else 0
        while place < len(whole):
            if whole[place : place + 1] != b"\\":
                stop = whole.find(b"\n\\", place) + 1 or len(whole)
                if order and not ended:
                    yield order, at + place, whole[place:stop]
                elif ended and whole[place:stop].strip():
                    raise MegahourError(r"text after '\end\'", where=name, remedy=REMEDY)
                place = stop
                continue
            stop = whole.find(b"\n", place)
            line = whole[place:stop].strip()
            if line == b"\\data\\":
                begun = True
            elif line == b"\\end\\" and order:
                ended = True
            elif begun and not ended and line == b"\\%d-grams:" % (order + 1):
                order += 1
            else:
                raise MegahourError(f"an unexpected line {shown(line)}", where=name, remedy=REMEDY)
            place = stop + 1
        at += cut
        if not data:
            break
    if not ended:
        raise MegahourError("the file ends early", where=name, remedy=REMEDY)


def read_piece(piece: Piece, inputs: Inputs) -> Iterator[tuple[int, bytes]]:
    """(order, whole lines) of a piece, some megabytes at a time."""
    name, order = piece["source"], piece["order"]
    if "shard" in piece:
        with inputs[name].open(piece["shard"], f".{order}.txt") as file:
            yield from ((order, data) for data in _whole_lines(file))
        return
    with _opened(name, inputs) as raw:
        if "begin" not in piece:
            with unpacked(raw, name) as file:
                yield from ((k, data) for k, _, data in sections(file, name))
            return
        raw.seek(piece["begin"])
        own = cast(BinaryIO, ByteRange(raw, piece["end"] - piece["begin"]))
        yield from ((order, data) for data in _whole_lines(own))


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    carry = b""
    while data := file.read(BLOCK_BYTES):
        text = carry + data
        cut = text.rfind(b"\n") + 1
        if cut:
            yield text[:cut]
        carry = text[cut:]
    if carry:
        yield carry + b"\n"


def parse_lines(order: int, data: bytes, table: WordTable, name: str) -> tuple[Int32, Float64, Float64]:
    """Parse whole lines to grams (n, order), word numbers of a table, log10 p (n,) and log10 α (n,).

    Raises MegahourError: an invalid line, with its text.
    """
    text = padded(data)
    rows = data.count(b"\n")
    grams, logp, weight = np.empty((rows, order), np.int32), np.empty(rows), np.empty(rows)
    at, found, _, code, _ = parse.parse_ngrams(
        text, 0, len(data), 0, rows, order, table.table, table.arena, table.starts, grams, logp, weight
    )
    check_code(code, data, at, name)
    return grams[:found], logp[:found], weight[:found]


def check_code(code: int, data: bytes, at: int, name: str) -> None:
    """Raises MegahourError: the parser stopped before the end of the text."""
    if code not in (parse.MORE, parse.DONE):
        line = data[at:].lstrip().partition(b"\n")[0]
        what = _WRONG.get(code, "expected an n-gram with its probability, found")
        raise MegahourError(f"{what} {shown(line)}", where=name, remedy=REMEDY)
