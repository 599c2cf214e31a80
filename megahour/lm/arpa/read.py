"""Reader of ARPA files, compressed or not. It checks the sections; `parse` checks the lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.lm.arpa import parse
from megahour.lm.arpa.rows import repeated
from megahour.lm.arpa.write import TOKENIZER
from megahour.lm.text.arrays import Bytes, Float64, Int32
from megahour.lm.text.compression import BYTE_ORDER_MARK, unpacked
from megahour.lm.text.tokenise import PADDING, RESERVED, UNKNOWN, WordTable

BLOCK_BYTES = 1 << 23
LINE_BYTES = 1 << 26  # longest line: MAX_ORDER words as `text.sources` reads them
SHORT_BYTES = 1 << 10  # of most lines
LONG_BYTES = 1 << 20
FOREWORD = 10_000  # lines before the header
MAX_ORDER = 32
UNSEEN = -100.0  # log10 p of `<unk>` if the file lacks it, as in KenLM (build_binary -u)
ITEM_BYTES = 6  # shortest line: limits the n-grams of a block

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ArpaArrays:
    """The content of an ARPA file. For each order k = 1 …: grams[k-1] int32 (n, k), logp, backoff float64 (n,).

    vocabulary: `<unk>`, `<s>`, `</s>`, then words in the file's order; unigram i is word i. If the file lacks `<unk>`,
    `<UNK>` is `<unk>`, as in KenLM. If it has both, they are two words. If it has neither, `<unk>` gets UNSEEN. Missing
    `<s>` and `</s>` get NEVER. tokenizer: from the line TOKENIZER before `\\data\\`, "" without one.
    """

    vocabulary: WordTable
    grams: list[Int32]
    logp: list[Float64]
    backoff: list[Float64]
    tokenizer: str = ""


def read_arrays(path: str | Path, progress: Progress = lambda phase, done, total: None) -> ArpaArrays:
    """Read an ARPA file: plain, gzip, bzip2, xz or zstd, by its first bytes.

    Raises
    ------
    MegahourError with file and line: the file is cut short; sections are missing or out of order; counts are wrong; an
    n-gram occurs twice or has a word that is no unigram; a number is invalid (NaN); a probability is above one.
    """
    with opened(path) as file:
        reader = _LineBuffer(file, str(path))
        sizes = _counts(reader)
        total = sum(sizes)
        arrays, listed = _unigrams(reader, sizes[0])
        for k, size in enumerate(sizes[1:], 2):
            progress("read", total - sum(sizes[k - 1 :]), total)
            _ngrams(reader, arrays, k, size)
        arrays.backoff[-1][:] = 0.0  # some programs write weights for the highest order
        reader.expect(b"\\end\\")
        reader.expect_nothing()
        progress("read", total, total)
    capital = 0 if listed else arrays.vocabulary.number(b"<UNK>")
    return replace(_without_capital_unknown(arrays, capital) if capital else arrays, tokenizer=reader.tokenizer)


def read_sizes(path: str | Path) -> list[int]:
    """Read the numbers of n-grams by order from the header. Raises MegahourError as `read_arrays`."""
    with opened(path) as file:
        return _counts(_LineBuffer(file, str(path)))


def read_tokenizer(path: str | Path) -> str:
    """Read `ArpaArrays.tokenizer` from the header. Raises MegahourError as `read_arrays`."""
    with opened(path) as file:
        _counts(reader := _LineBuffer(file, str(path)))
        return reader.tokenizer


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file, decompressed where it is compressed. Raises MegahourError on reading: the data are damaged."""
    with Path(path).open("rb") as raw, unpacked(raw, str(path)) as file:
        yield file


class _LineBuffer:
    """Whole lines of a file in a buffer: text[at:end]. line: number of the line at `at`."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name = file, name
        self.text: Bytes = np.zeros(BLOCK_BYTES + LINE_BYTES + PADDING, np.uint8)
        self.at = self.end = 0
        self.line = 1
        self.last = False  # the end of the file is reached
        self.begun = False  # \\data\\ has been read
        self.tokenizer = ""

    def more(self) -> None:
        """Append the next block of the file to the unread bytes. Raises MegahourError at the end of the file."""
        if self.last:
            self.fail("the file ends early" if self.begun else r"not an ARPA file: it has no line '\data\'")
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
            self.text[self.end] = 10  # the last line may lack its line break
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
        """The current line without its line break."""
        while True:
            for room in (SHORT_BYTES, LONG_BYTES, LINE_BYTES + 1):
                data = self.text[self.at : min(self.end, self.at + room)].tobytes()
                result = data.find(b"\n")
                if result >= 0:
                    return data[:result]
            self.more()

    def expect(self, text: bytes) -> None:
        line = self.next()
        if line != text:
            self.line -= 1
            self.fail(f"expected {text.decode()!r}, found {shown(line)}")

    def expect_nothing(self) -> None:
        """Check that only blank lines follow the model."""
        while not (rest := self.text[self.at : self.end].tobytes()).strip():
            if self.last:
                return
            self.line += rest.count(b"\n")
            self.at = self.end
            self.more()
        text = rest.lstrip()
        self.line += rest[: len(rest) - len(text)].count(b"\n")
        line, _, _ = text.partition(b"\n")
        self.fail(rf"text after '\end\': {shown(line)}")

    def fail(self, message: str) -> NoReturn:
        raise MegahourError(message, where=f"{self.name}:{self.line}", remedy="check that the ARPA file is complete")


def shown(line: bytes) -> str:
    """The beginning of a line, for messages."""
    return repr(line[:60].decode("utf-8", "replace"))


def _counts(reader: _LineBuffer) -> list[int]:
    while (line := reader.next()).removeprefix(BYTE_ORDER_MARK) != b"\\data\\":
        if reader.line > FOREWORD:
            reader.fail(rf"not an ARPA file: it has no line '\data\' among the first {FOREWORD:,}")
        if line.startswith(TOKENIZER):
            reader.tokenizer = line.removeprefix(TOKENIZER).decode("utf-8", "replace").strip()
    reader.begun = True
    sizes: list[int] = []
    while (line := reader.next()).startswith(b"ngram"):
        order, _, size = line.removeprefix(b"ngram").partition(b"=")
        if order.strip() != b"%d" % (len(sizes) + 1) or not size.strip().isdigit() or len(size) > 12:
            reader.line -= 1
            reader.fail(f"expected 'ngram {len(sizes) + 1}=COUNT', found {shown(line)}")
        sizes.append(int(size))
        if len(sizes) > MAX_ORDER:
            reader.fail(f"more than {MAX_ORDER} orders")
    if not sizes or line != b"\\1-grams:":
        reader.line -= 1
        reader.fail(f"expected '\\1-grams:' after the counts, found {shown(line)}")
    if not sizes[0]:
        reader.fail("it has no words: ngram 1=0")
    return sizes


def _unigrams(reader: _LineBuffer, size: int) -> tuple[ArpaArrays, bool]:
    """The unigrams, and whether `<unk>` is one of them."""
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
    grams = np.arange(n, dtype=np.int32)[:, None]
    return ArpaArrays(table, [grams], [logp[:n].copy()], [backoff[:n].copy()]), bool(seen[UNKNOWN])


def _without_capital_unknown(arrays: ArpaArrays, number: int) -> ArpaArrays:
    """The same n-grams with `<unk>` for `<UNK>`, which is word `number`."""
    words = arrays.vocabulary.words()
    numbers = np.arange(len(words), dtype=np.int32) - (np.arange(len(words)) > number).astype(np.int32)
    numbers[number] = UNKNOWN
    for weights in (arrays.logp, arrays.backoff):
        weights[0][UNKNOWN] = weights[0][number]
        weights[0] = np.delete(weights[0], number)
    grams = [np.arange(len(words) - 1, dtype=np.int32)[:, None], *(numbers[each] for each in arrays.grams[1:])]
    table = WordTable.of(words[len(RESERVED) : number] + words[number + 1 :])
    return ArpaArrays(table, grams, arrays.logp, arrays.backoff)


def _ngrams(reader: _LineBuffer, arrays: ArpaArrays, k: int, size: int) -> None:
    """Append the n-grams of order k. Arrays grow as lines are read, so a wrong header costs no memory."""
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
        words = b" ".join(table.spell(int(word)) for word in grams[twice])
        reader.line = first + twice
        reader.fail(f"the {k}-gram {shown(words)} occurs twice")
    arrays.grams.append(grams)
    arrays.logp.append(logp)
    arrays.backoff.append(backoff)


def _grown(array: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    grown = np.empty((rows, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


def _go_on(reader: _LineBuffer, code: int, k: int, size: int, row: int, which: int) -> None:
    """Continue with the next block after MORE. Raises MegahourError: another code than MORE and DONE."""
    if code == parse.DONE:
        return
    if code == parse.MORE:
        reader.more()
        return
    line = reader.peek().strip()
    if code == parse.SECTION:
        reader.fail(f"the header has {size:,} {k}-grams, but only {row:,} come before {shown(line)}")
    if code == parse.NUMBER:
        reader.fail(f"not a number in {shown(line)}")
    if code == parse.POSITIVE:
        reader.fail(f"a log10 probability above 0 in {shown(line)}")
    if code == parse.REPEATED:
        reader.fail(f"the word of {shown(line)} occurs twice")
    if code == parse.UNKNOWN_WORD:
        fields = [field for field in line.replace(b"\t", b" ").split(b" ") if field]
        reader.fail(f"word {shown(fields[which + 1])} is not among the unigrams")
    reader.fail(f"expected a {k}-gram with its probability, found {shown(line)}")
