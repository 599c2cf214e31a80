"""Files of n-gram counts: SRILM's (`ngram-count -write`) and Google's folders (Brants & Franz 2006; `-read-google`).

SRILM     lines `w1 … wk<tab>count`, of all lengths, in any order
Google    1gms/vocab.gz, 1gms/vocab_cs.gz (by count), 1gms/total, Kgms/Kgm-0000.gz …, Kgms/Kgm.idx: the same lines,
          sorted by their bytes; sentences begin with <S> and end with </S>, and <UNK> is a rare word
"""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import numpy as np

from megahour.core.compiled import compiled
from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.arpa.parse import _field, _next_line
from megahour.lm.arpa.write import PART
from megahour.lm.combine.trie import sort_rows
from megahour.lm.counts.table import NgramCounts, collect
from megahour.lm.text.arrays import Int32, Int64
from megahour.lm.text.cut import ALL_WORDS, WordCut
from megahour.lm.text.machine import load8, store8
from megahour.lm.text.sources import Block, blocks, is_stream
from megahour.lm.text.tokenise import PADDING, WordTable, _find, _head, _insert

MORE, WORDS, NUMBER, LONG = range(4)
"""Why parsing ended: no whole line is left (MORE), or the error in the current line."""

LARGEST = 1 << 53  # counts are summed in float64
DIGITS = 20


@compiled
def parse_counts(text, stop, table, arena, starts, n, frozen, grams, lengths, counts):  # type: ignore[no-untyped-def]
    """Parse the whole lines of text[:stop] into grams (rows, order), lengths and counts (rows,).

    frozen: words that the table lacks become `<unk>`. Returns (rows, lines read, words in the table, why it ended).
    """
    at, row, lines = 0, 0, 0
    while True:
        at, end, begin, last, lines = _next_line(text, at, stop, lines)
        if end == stop:
            return row, lines, n, MORE
        k = 0
        while True:
            following, following_last = _field(text, last, end)
            if following == end:
                break  # text[begin:last] is the count
            if k == grams.shape[1]:
                return row, lines, n, LONG
            head, hashed = _head(text, begin, last - begin)
            slot, number = _find(text, begin, last - begin, head, hashed, table, arena, starts)
            if number == 0 and not frozen:
                n = _insert(text, begin, last - begin, slot, head, table, arena, starts, n)
                number = n
            grams[row, k] = max(number - 1, 0)
            k += 1
            begin, last = following, following_last
        if k == 0:
            return row, lines, n, WORDS
        value = 0
        for i in range(begin, last):
            if not 48 <= text[i] <= 57 or value > LARGEST:
                return row, lines, n, NUMBER
            value = 10 * value + (text[i] - 48)
        if value > LARGEST:
            return row, lines, n, NUMBER
        lengths[row], counts[row] = k, value
        row += value > 0
        at = end + 1
        lines += 1


@compiled
def format_counts(grams, counts, arena, starts, out):  # type: ignore[no-untyped-def]
    """Write the lines of n-grams (n, k) to `out`, with a tab before the count; return the number of bytes."""
    at = 0
    for row in range(len(grams)):
        for j in range(grams.shape[1]):
            start = starts[grams[row, j]]
            length = starts[grams[row, j] + 1] - start
            for done in range(0, length, 8):
                store8(out, at + done, load8(arena, start + done))
            at += length
            out[at] = 32
            at += 1
        out[at - 1] = 9
        value, digits = counts[row], 1
        while value >= 10:
            value //= 10
            digits += 1
        value = counts[row]
        for i in range(digits - 1, -1, -1):
            out[at + i] = 48 + value % 10
            value //= 10
        at += digits
        out[at] = 10
        at += 1
    return at


GOOGLE_FILE = 10_000_000  # n-grams per file
GOOGLE_NAMES = {b"<UNK>": 0, b"<S>": 1, b"</S>": 2}
_WHY = {
    WORDS: "a count without words",
    NUMBER: "the last field is not a count: a whole number of at most 2^53",
    LONG: "more words than the order",
}


def read_counts(
    sources: Sequence[str], order: int, *, vocabulary: WordTable | None = None, cut: WordCut = ALL_WORDS
) -> NgramCounts:
    """Read files of counts and add them up. A folder has Google's layout. n-grams longer than `order` are skipped.

    vocabulary: words to keep; all others become `<unk>`. cut: words to keep by their counts instead.

    Raises
    ------
    ConfigError: a source matches nothing, or a folder has no counts. MegahourError with file and line: not a line of
    counts; an n-gram has a word without a count; there are no counts of `order`.
    """
    table = WordTable() if vocabulary is None else vocabulary
    if vocabulary is not None and any(map(_is_folder, sources)):  # `_numbers_of_google` maps these names
        table = vocabulary.copy()
        for name in GOOGLE_NAMES:
            table.add(name)
    parts = [_parsed(block, table, frozen=vocabulary is not None) for block in _blocks(sources, order)]
    grams, lengths, counts = (np.concatenate([part[i] for part in parts] or [_NOTHING[i]]) for i in range(3))
    numbers = _numbers_of_google(table)
    if numbers is not None and any(map(_is_folder, sources)):
        grams = numbers[grams]
    longest = int(lengths.max(initial=0))
    if longest < order:
        what = f"no {order}-grams, only up to {longest}-grams" if longest else "no counts"
        raise MegahourError(what, where=_named(sources), remedy="lower the order, or count longer n-grams")
    levels = [np.ascontiguousarray(grams[lengths == k, :k]) for k in range(1, order + 1)]
    try:
        return collect(table, levels, [counts[lengths == k] for k in range(1, order + 1)], cut)
    except MegahourError as error:
        error.where = error.where or _named(sources)
        raise


_NOTHING = np.empty((0, 9), np.int32), np.empty(0, np.int64), np.empty(0, np.int64)
MOST_WORDS = _NOTHING[0].shape[1]  # words in a line; SRILM's default order is 3


def _parsed(block: Block, table: WordTable, *, frozen: bool) -> tuple[Int32, Int64, Int64]:
    """n-grams (n, MOST_WORDS), their lengths (n,) and counts (n,)."""
    if not frozen:
        table.make_room(block.end + 1)
    rows = int(np.count_nonzero(block.text[: block.end] == 10)) + 1
    grams, lengths, counts = np.zeros((rows, MOST_WORDS), np.int32), np.empty(rows, np.int64), np.empty(rows, np.int64)
    found, lines, table.size, why = parse_counts(
        block.text, block.end, table.table, table.arena, table.starts, table.size, frozen, grams, lengths, counts
    )
    if why in _WHY:
        raise MegahourError(
            _WHY[why], where=f"{block.name}:{block.line + lines}",
            remedy="give counts as SRILM's ngram-count -write has them: words, a tab, a count",
        )  # fmt: skip
    return grams[:found], lengths[:found], counts[:found]


def _blocks(sources: Sequence[str], order: int) -> Iterator[Block]:
    plain = [source for source in sources if not _is_folder(source)]
    if plain:
        yield from blocks(plain)
    for folder in sorted({source for source in sources if _is_folder(source)}):
        for k in range(1, order + 1):
            files = _google_files(Path(folder) / f"{k}gms", k)
            if not files:
                remedy = f"give a folder in Google's form, with {k}gms/{'vocab.gz' if k == 1 else f'{k}gm-0000.gz'}"
                raise ConfigError(f"no counts of {k}-grams", where=folder, remedy=remedy)
            yield from blocks(files)


def _google_files(folder: Path, k: int) -> list[str]:
    if k == 1:
        return [str(path) for path in (folder / "vocab.gz", folder / "vocab") if path.is_file()][:1]
    named = re.compile(rf"{k}gm-\d+(\.gz)?")
    return sorted(str(path) for path in folder.glob(f"{k}gm-*") if named.fullmatch(path.name))


def _is_folder(source: str) -> bool:
    return not is_stream(source) and Path(source).is_dir()


def _named(sources: Sequence[str]) -> str:
    return ", ".join(sources)[:200]


def _numbers_of_google(table: WordTable) -> Int32 | None:
    """(V,) new word numbers that map Google's names to `<unk>`, `<s>` and `</s>`; None if no such name occurs."""
    numbers = np.arange(len(table), dtype=np.int32)
    for name, number in GOOGLE_NAMES.items():
        if own := table.number(name):
            numbers[own] = number
    return None if np.array_equal(numbers, np.arange(len(table))) else numbers


def write_srilm(counts: NgramCounts, file: BinaryIO) -> None:
    """Write all n-grams: short ones first, in order of their word numbers."""
    for grams, each in zip(counts.grams, counts.counts, strict=True):
        listed = each > 0
        for text in _lines(counts, grams[listed], each[listed]):
            file.write(text)


def write_google(counts: NgramCounts, folder: Path, file_ngrams: int = GOOGLE_FILE) -> None:
    """Write a folder in Google's form. It gets its name when it is complete.

    Raises ConfigError: the folder exists, or its parent does not.
    """
    if folder.exists():
        raise ConfigError("the folder already exists", where=str(folder), remedy="give the name of a new folder")
    if not folder.parent.is_dir():
        raise ConfigError("no such directory", where=str(folder.parent), remedy="create it first")
    making = folder.with_name(f".{folder.name}.{uuid4().hex[:12]}.making")
    making.mkdir()
    try:
        named, ranks = _as_google(counts)
        for k, (grams, each) in enumerate(zip(counts.grams, counts.counts, strict=True), 1):
            (making / f"{k}gms").mkdir()
            rows, origin = sort_rows(ranks[grams[each > 0]], counts.words)
            sums = each[each > 0][origin]
            if k == 1:
                _write_words(named, rows, sums, counts.tokens, making / "1gms")
                continue
            index = []
            for number, begin in enumerate(range(0, len(rows), file_ngrams)):
                part = slice(begin, begin + file_ngrams)
                path = making / f"{k}gms" / f"{k}gm-{number:04}.gz"
                _gzipped(path, _lines(named, rows[part], sums[part]))
                index.append(f"{path.name}\t".encode() + b" ".join(_bytes(named, word) for word in rows[begin]) + b"\n")
            (making / f"{k}gms" / f"{k}gm.idx").write_bytes(b"".join(index))
        making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _as_google(counts: NgramCounts) -> tuple[NgramCounts, Int32]:
    """The words with Google's names, sorted by their bytes, without n-grams; and the rank (V,) of each word."""
    names = dict(zip(GOOGLE_NAMES.values(), GOOGLE_NAMES, strict=True))
    words = [names.get(i) or _bytes(counts, i) for i in range(counts.words)]
    by_bytes = sorted(range(len(words)), key=words.__getitem__)
    ranks = np.empty(len(words), np.int32)
    ranks[by_bytes] = np.arange(len(words))
    spelled = [words[i] for i in by_bytes]
    starts = np.concatenate([[0], np.cumsum([len(word) for word in spelled])]).astype(np.int64)
    return NgramCounts(np.frombuffer(b"".join(spelled) + bytes(PADDING), np.uint8), starts, [], []), ranks


def _write_words(named: NgramCounts, rows: Int32, sums: Int64, tokens: int, folder: Path) -> None:
    by_count = np.argsort(-sums, kind="stable")
    _gzipped(folder / "vocab.gz", _lines(named, rows, sums))
    _gzipped(folder / "vocab_cs.gz", _lines(named, rows[by_count], sums[by_count]))
    (folder / "total").write_text(f"{tokens}\n")


def _bytes(counts: NgramCounts, word: int) -> bytes:
    return counts.arena[counts.starts[word] : counts.starts[word + 1]].tobytes()


def _lines(counts: NgramCounts, grams: Int32, each: Int64) -> Iterator[bytes]:
    lengths = np.diff(counts.starts)
    for begin in range(0, len(grams), PART):
        rows = grams[begin : begin + PART]
        room = int(lengths[rows].sum()) + len(rows) * (rows.shape[1] + DIGITS + 2) + PADDING
        text = np.empty(room, np.uint8)
        yield text[: format_counts(rows, each[begin : begin + PART], counts.arena, counts.starts, text)].tobytes()


def _gzipped(path: Path, texts: Iterable[bytes]) -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)  # 31: a gzip header without a time
    with path.open("wb") as file:
        for text in texts:
            file.write(packer.compress(text))
        file.write(packer.flush())
