"""Reads blocks of text to the numbered corpus for `estimate`, with a vocabulary that is built, given or cut by count.

As in `lmplz`, every line is a sentence, also an empty one; words outside the vocabulary are `<unk>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from megahour.core.compiled import compiled
from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.estimate.partitions import PADDING, Corpus
from megahour.lm.text.arrays import Bytes, Tokens
from megahour.lm.text.cut import ALL_WORDS, WordCut, cut_words, renumber
from megahour.lm.text.sources import Block, blocks
from megahour.lm.text.tokenise import BOUNDARY, RESERVED, UNKNOWN, WordTable, encode, padded

MOST_EXPECTED = 1 << 23  # words for which the table has room at first: to make a larger one costs as much as growing
_BLANKS = dict.fromkeys(map(ord, "\t\r\n\0"), " ")
MAX_TOKENS = 2**31 - 1 - PADDING
"""Positions of a corpus in memory have 32 bits."""


@dataclass(frozen=True)
class CountedCorpus:
    """A corpus with its counts. words: without sentence ends; types: different words; unknown: words outside the
    vocabulary; reserved: skipped reserved words; sentences; empty: sentences without words."""

    corpus: Corpus
    words: int
    types: int
    unknown: int
    reserved: int
    sentences: int
    empty: int


def vocabulary_of(text: Iterable[Block]) -> WordTable:
    """Read a word list, with one or more words per line; it may have `<unk>`, `<s>` and `</s>`."""
    table = WordTable()
    for block in text:
        encode(block.text, block.end, table, np.empty(block.end + 1, np.int32))
    return table


def word_list(path: str) -> WordTable:
    """`vocabulary_of` a file. Raises ConfigError: it has no words, so that a model would know none."""
    table = vocabulary_of(blocks([path]))
    if len(table) == len(RESERVED):
        raise ConfigError("the word list has no words", where=path, remedy="list the words to keep")
    return table


def read_corpus(
    text: Iterable[Block],
    *,
    vocabulary: WordTable | None = None,
    cut: WordCut = ALL_WORDS,
    skip_symbols: bool = False,
    utf8: bool = False,
    max_tokens: int = MAX_TOKENS,
    room: int = 1 << 20,
) -> CountedCorpus:
    """Number all words of a text.

    vocabulary: words to keep, with their numbers; without it words are numbered in order of appearance and limited by
    `cut`. skip_symbols: skip `<s>`, `</s>` and `<unk>` instead of refusing them. utf8: refuse other encodings. room:
    expected number of tokens; a good guess saves copies.

    Raises
    ------
    MegahourError with file and line: more than `max_tokens`; a reserved word; not UTF-8.
    """
    table = WordTable(min(room, MOST_EXPECTED)) if vocabulary is None else vocabulary
    tokens: Tokens = np.empty(PADDING + room, np.int32)
    tokens[:PADDING] = BOUNDARY
    size, reserved = PADDING, 0
    for block in text:
        if utf8:
            block.check_utf8()
        if size + block.end + 1 > len(tokens):  # every byte could be a line
            tokens = _grown(tokens, size, size + block.end + 1)
        result, skipped = encode(
            block.text, block.end, table, tokens[size:], frozen=vocabulary is not None, reserve=skip_symbols
        )
        if skipped and not skip_symbols:
            raise block.reserved()
        size, reserved = size + result, reserved + skipped
        if size - PADDING > max_tokens:
            raise _too_many(block, max_tokens)
    tokens = tokens[:size]
    types = len(table) - len(RESERVED)
    if vocabulary is None and cut.cuts:
        numbers, table = cut_words(np.bincount(tokens[PADDING:], minlength=len(table)), table, cut)
        renumber(tokens, numbers)
    sentences, empty, unknown = _tally(tokens, PADDING)
    corpus = Corpus(tokens, table.arena, table.starts[: len(table) + 1])
    return CountedCorpus(corpus, size - PADDING - sentences, types, unknown, reserved, sentences, empty)


def allowed_words(corpus: Corpus, listed: WordTable) -> Bytes:
    """`allowed` (V,) for `estimate`: 1 for the words of a corpus that are listed, and for `<unk>`, `<s>`, `</s>`."""
    text = b"\n".join(corpus.spell(number) for number in range(len(RESERVED), corpus.size))
    numbers = np.empty(2 * corpus.size, np.int32)
    result, _ = encode(padded(text), len(text), listed, numbers, frozen=True)
    allowed = np.ones(corpus.size, np.uint8)
    allowed[len(RESERVED) :] = numbers[:result:2] != UNKNOWN  # every other token is a BOUNDARY
    return allowed


def lines_of(text: Iterable[Block]) -> Iterator[str]:
    """Lines of blocks as strings, without their line breaks.

    Raises MegahourError: not UTF-8.
    """
    held = ""
    for block in text:
        block.check_utf8()
        *lines, last = block.tobytes().decode().split("\n")
        for line in lines:
            yield held + line
            held = ""
        held += last
    if held:
        yield held


def words_of(line: str) -> list[str]:
    """The words of a line as `encode` separates them, without `<s>` and `</s>`."""
    return [word for word in line.translate(_BLANKS).split(" ") if word and word not in RESERVED[1:]]


def _grown(tokens: Tokens, used: int, least: int) -> Tokens:
    wider = np.empty(max(least, 2 * len(tokens)), np.int32)
    wider[:used] = tokens[:used]
    return wider


def _too_many(block: Block, limit: int) -> MegahourError:
    return MegahourError(
        f"more than {limit} words and sentence ends, the limit for a corpus in memory",
        where=f"{block.name}:{block.line}",
        remedy="give less text, raise the limit, or estimate on disk, with the option `memory`",
    )


@compiled
def _tally(tokens, begin):  # type: ignore[no-untyped-def]
    """(sentences, sentences without words, unknown words) from `begin` on; tokens[begin-1] is a BOUNDARY."""
    sentences = empty = unknown = np.int64(0)
    for i in range(begin, len(tokens)):  # without branches: the compiler vectorises this
        ends = tokens[i] == BOUNDARY
        sentences += ends
        empty += ends & (tokens[i - 1] == BOUNDARY)
        unknown += tokens[i] == UNKNOWN
    return sentences, empty, unknown
