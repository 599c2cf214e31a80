"""ARPA files, compressed or not, to arrays: sections and their order are checked here, lines by `parse`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.lm.arpa import parse
from megahour.lm.arpa.rows import repeated
from megahour.lm.text.compression import unpacked
from megahour.lm.text.tokenise import PADDING, UNKNOWN, Bytes, WordTable, encode

BLOCK_BYTES = 1 << 23
LINE_BYTES = 1 << 20  # a longer line is none of an ARPA file
MAX_ORDER = 32
UNSEEN = -100.0  # log10 p of an `<unk>` that a file lacks, as KenLM has it (build_binary -u)
ITEM_BYTES = 6  # a line has no fewer bytes: what a header may claim of a file of known length

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ArpaArrays:
    """vocabulary: words in the file's order behind `<unk>`, `<s>`, `</s>`. By order k = 1 …: grams[k-1] int32 (n, k),
    logp, backoff float64 (n,). Unigram i is word i; specials that the file lacks are there: `<unk>` with UNSEEN, `<s>`
    and `</s>` with probability zero. A file's `<UNK>` is its `<unk>` where it has no other, as KenLM reads it."""

    vocabulary: WordTable
    grams: list[Int32]
    logp: list[Float64]
    backoff: list[Float64]


def read_arrays(path: str | Path, progress: Progress = lambda phase, done, total: None) -> ArpaArrays:
    """Read an ARPA file: plain, gzip, bzip2, xz or zstd by its first bytes.

    Raises
    ------
    MegahourError naming file and line: cut short, sections missing or out of order, counts that are wrong, n-grams
    that are there twice or have words that are no unigrams, numbers that are none (NaN), probabilities above one.
    """
    with opened(path) as file:
        reader = _Reader(file, str(path))
        sizes = _counts(reader)
        total = sum(sizes)
        arrays = _unigrams(reader, sizes[0])
        capital = _capital_unknown(arrays)
        for k, size in enumerate(sizes[1:], 2):
            progress("read", total - sum(sizes[k - 1 :]), total)
            _ngrams(reader, arrays, k, size)
            if capital:
                arrays.grams[-1][arrays.grams[-1] == capital] = UNKNOWN
        arrays.backoff[-1][:] = 0.0  # some programs write weights where there is nothing to back off from
        reader.expect(b"\\end\\")
        reader.expect_nothing()
        progress("read", total, total)
    return arrays


def read_sizes(path: str | Path) -> list[int]:
    """Numbers of n-grams by order, as the header has them. Raises MegahourError as `read_arrays`."""
    with opened(path) as file:
        return _counts(_Reader(file, str(path)))


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """A file's bytes, unpacked. Raises MegahourError, while they are read, where the compression is damaged."""
    with Path(path).open("rb") as raw, unpacked(raw, str(path)) as file:
        yield file


class _Reader:
    """Whole lines of a file in a buffer: text[at:end]. line: number of the one at `at`."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name = file, name
        self.text: Bytes = np.zeros(BLOCK_BYTES + LINE_BYTES + PADDING, np.uint8)
        self.at = self.end = 0
        self.line = 1
        self.last = False  # the file is used up
        self.begun = False  # \\data\\ has been met

    def more(self) -> None:
        """Read on behind what is left. Raises MegahourError where nothing follows."""
        if self.last:
            self.fail(
                "the file ends early" if self.begun else r"the file ends early, without a line '\data\': no ARPA file"
            )
        left = self.end - self.at
        if left > LINE_BYTES:
            self.fail(f"a line of more than {LINE_BYTES:,} bytes")
        self.text[:left] = self.text[self.at : self.end].copy()
        self.at, self.end = 0, left
        data = self.file.read(BLOCK_BYTES)
        self.text[left : left + len(data)] = np.frombuffer(data, np.uint8)
        self.end += len(data)
        if not data:
            self.last = True
            self.text[self.end] = 10  # the last line may lack its end
            self.end += left > 0

    def next(self) -> bytes:
        """The next line that is not blank, without blanks around it."""
        while True:
            line = self.peek()
            self.at += len(line) + 1
            self.line += 1
            if line.strip():
                return line.strip()

    def peek(self) -> bytes:
        """The line at hand, without its end."""
        while True:
            data = self.text[self.at : min(self.end, self.at + LINE_BYTES + 1)].tobytes()
            result = data.find(b"\n")
            if result >= 0:
                return data[:result]
            self.more()

    def expect(self, text: bytes) -> None:
        line = self.next()
        if line != text:
            self.line -= 1
            self.fail(f"expected {text.decode()!r}, found {_shown(line)}")

    def expect_nothing(self) -> None:
        """Only blank lines, to the end: what follows a model is another one, or the end of a longer file."""
        while not (rest := self.text[self.at : self.end].tobytes()).strip():
            if self.last:
                return
            self.line += rest.count(b"\n")
            self.at = self.end
            self.more()
        text = rest.lstrip()
        self.line += rest[: len(rest) - len(text)].count(b"\n")
        line, _, _ = text.partition(b"\n")
        self.fail(rf"text behind '\end\': {_shown(line)}")

    def fail(self, message: str) -> NoReturn:
        raise MegahourError(message, where=f"{self.name}:{self.line}", remedy="check that it is a whole ARPA file")


def _shown(line: bytes) -> str:
    return repr(line[:60].decode("utf-8", "replace"))


def _counts(reader: _Reader) -> list[int]:
    while reader.next() != b"\\data\\":
        continue
    reader.begun = True
    sizes: list[int] = []
    while (line := reader.next()).startswith(b"ngram"):
        order, _, size = line.removeprefix(b"ngram").partition(b"=")
        if order.strip() != b"%d" % (len(sizes) + 1) or not size.strip().isdigit() or len(size) > 12:
            reader.line -= 1
            reader.fail(f"expected 'ngram {len(sizes) + 1}=COUNT', found {_shown(line)}")
        sizes.append(int(size))
        if len(sizes) > MAX_ORDER:
            reader.fail(f"more than {MAX_ORDER} orders")
    if not sizes or line != b"\\1-grams:":
        reader.line -= 1
        reader.fail(f"expected '\\1-grams:' after the counts, found {_shown(line)}")
    return sizes


def _unigrams(reader: _Reader, size: int) -> ArpaArrays:
    table = WordTable()
    room = 1 << 10
    seen, logp, backoff = np.zeros(room, np.bool_), np.full(room, parse.NEVER), np.zeros(room)
    logp[UNKNOWN] = UNSEEN
    row, code = 0, parse.MORE if size else parse.DONE
    while code != parse.DONE:
        table.make_room(reader.end - reader.at)
        if table.size + (reader.end - reader.at) // 4 + 1 > len(seen):
            more = max(len(seen), (reader.end - reader.at) // 4 + 1)
            seen = np.concatenate([seen, np.zeros(more, np.bool_)])
            logp = np.concatenate([logp, np.full(more, parse.NEVER)])
            backoff = np.concatenate([backoff, np.zeros(more)])
        reader.at, row, lines, table.size, code = parse.parse_unigrams(
            reader.text, reader.at, reader.end, row, size, table.table, table.arena, table.starts, table.size,
            seen, logp, backoff,
        )  # fmt: skip
        reader.line += lines
        _go_on(reader, code, 1, size, row, 0)
    n = table.size
    return ArpaArrays(table, [np.arange(n, dtype=np.int32)[:, None]], [logp[:n].copy()], [backoff[:n].copy()])


def _capital_unknown(arrays: ArpaArrays) -> int:
    """The number of `<UNK>` where it stands for `<unk>`, which then has its weights; else 0."""
    found = np.zeros(2, np.int32)
    text = np.frombuffer(b"<UNK>\n" + bytes(PADDING), np.uint8)
    encode(text, 6, arrays.vocabulary, found, frozen=True)
    number = int(found[0])
    if number == UNKNOWN or arrays.logp[0][UNKNOWN] != UNSEEN:
        return 0
    for weights in (arrays.logp[0], arrays.backoff[0]):
        weights[UNKNOWN] = weights[number]
    return number


def _ngrams(reader: _Reader, arrays: ArpaArrays, k: int, size: int) -> None:
    """Append the n-grams of order k. Arrays grow with what is read, so a header that lies costs no memory."""
    reader.expect(b"\\%d-grams:" % k)
    table = arrays.vocabulary
    room = min(size, BLOCK_BYTES)
    grams, logp, backoff = np.empty((room, k), np.int32), np.empty(room), np.empty(room)
    first = reader.line
    row, code = 0, parse.MORE if size else parse.DONE
    while code != parse.DONE:
        if len(logp) < size and len(logp) - row < (reader.end - reader.at) // ITEM_BYTES + 1:
            room = min(size, 2 * len(logp) + BLOCK_BYTES)
            grams, logp, backoff = (_grown(array, room) for array in (grams, logp, backoff))
        reader.at, row, lines, code, which = parse.parse_ngrams(
            reader.text, reader.at, reader.end, row, size, k, table.table, table.arena, table.starts,
            grams, logp, backoff,
        )  # fmt: skip
        reader.line += lines
        _go_on(reader, code, k, size, row, which)
    twice = repeated(grams[:size])
    if twice >= 0:
        words = b" ".join(_spell(table, int(word)) for word in grams[twice])
        reader.line = first + twice
        reader.fail(f"the {k}-gram {_shown(words)} is there twice")
    arrays.grams.append(grams)
    arrays.logp.append(logp)
    arrays.backoff.append(backoff)


def _grown(array: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    grown = np.empty((rows, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


def _spell(table: WordTable, number: int) -> bytes:
    return table.arena[table.starts[number] : table.starts[number + 1]].tobytes()


def _go_on(reader: _Reader, code: int, k: int, size: int, row: int, which: int) -> None:
    """Read on, or say what is wrong with the line at hand."""
    if code == parse.DONE:
        return
    if code == parse.MORE:
        reader.more()
        return
    line = reader.peek().strip()
    if code == parse.SECTION:
        reader.fail(f"expected {size:,} {k}-grams as the header says, found {row:,} before {_shown(line)}")
    if code == parse.NUMBER:
        reader.fail(f"not a number in {_shown(line)}")
    if code == parse.POSITIVE:
        reader.fail(f"a log10 probability above 0 in {_shown(line)}")
    if code == parse.REPEATED:
        reader.fail(f"the word of {_shown(line)} is there twice")
    if code == parse.UNKNOWN_WORD:
        fields = [field for field in line.replace(b"\t", b" ").split(b" ") if field]
        reader.fail(f"word {_shown(fields[which + 1])} is not among the unigrams")
    reader.fail(f"expected a {k}-gram with its probability, found {_shown(line)}")
