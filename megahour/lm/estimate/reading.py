"""Blocks of text → the numbered corpus that `estimate` takes, with a vocabulary that is built, given or cut by count.

As in `lmplz`, every line, an empty one too, is a sentence; words outside the vocabulary are `<unk>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from megahour.core.compiled import compiled
from megahour.core.errors import MegahourError
from megahour.lm.estimate.partitions import PADDING, Corpus
from megahour.lm.text.arrays import Bytes, Tokens
from megahour.lm.text.cut import ALL_WORDS, WordCut, cut_words, renumber
from megahour.lm.text.sources import Block
from megahour.lm.text.tokenise import BOUNDARY, RESERVED, UNKNOWN, WordTable, encode
from megahour.lm.text.tokenise import PADDING as PADDING_BYTES

MOST_EXPECTED = 1 << 23  # words of a vocabulary: with more, the table of words takes what growing costs
MAX_TOKENS = 2**31 - 1 - PADDING
"""Positions of a corpus in memory have 32 bits."""


@dataclass(frozen=True)
class CountedCorpus:
    """A corpus, and counts of it: running words (unknown ones too, sentence ends not), different words of the text,
    words outside the vocabulary, reserved words left out, sentences, and those of them without a word."""

    corpus: Corpus
    words: int
    types: int
    unknown: int
    reserved: int
    sentences: int
    empty: int


def vocabulary_of(text: Iterable[Block]) -> WordTable:
    """The words of a word list, one or several a line; `<unk>`, `<s>` and `</s>` may be among them."""
    table = WordTable()
    for block in text:
        encode(block.text, block.end, table, np.empty(block.end + 1, np.int32))
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
    """Number all words of the text.

    vocabulary: words to keep, with their numbers; without one, words are numbered in order of appearance, and `cut`
    chooses among them. skip_symbols: skip `<s>`, `</s>` and `<unk>`, which are errors otherwise. utf8: refuse other
    encodings. room: tokens to allocate for; a good guess saves copying.

    Raises
    ------
    MegahourError: more than `max_tokens`; a reserved word; not UTF-8. Naming file and line.
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
        result, skipped = encode(block.text, block.end, table, tokens[size:], frozen=vocabulary is not None)
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
    """(V,) 1 for the words of a corpus that a list has too, and for `<unk>`, `<s>`, `</s>`: for `estimate`."""
    text = b"\n".join(corpus.spell(number) for number in range(len(RESERVED), corpus.size))
    buffer: Bytes = np.zeros(len(text) + PADDING_BYTES, np.uint8)
    buffer[: len(text)] = np.frombuffer(text, np.uint8)
    numbers = np.empty(2 * corpus.size, np.int32)
    result, _ = encode(buffer, len(text), listed, numbers, frozen=True)
    allowed = np.ones(corpus.size, np.uint8)
    allowed[len(RESERVED) :] = numbers[:result:2] != UNKNOWN  # every other token is a BOUNDARY
    return allowed


def lines_of(text: Iterable[Block]) -> Iterator[str]:
    """Lines of blocks as strings, without their ends.

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


def _grown(tokens: Tokens, used: int, least: int) -> Tokens:
    wider = np.empty(max(least, 2 * len(tokens)), np.int32)
    wider[:used] = tokens[:used]
    return wider


def _too_many(block: Block, limit: int) -> MegahourError:
    return MegahourError(
        f"more than {limit} words and sentence ends, the limit for a corpus in memory",
        where=f"{block.name}:{block.line}",
        remedy="give less text or raise the limit; a corpus that memory does not hold is estimated on disk (`memory`)",
    )


@compiled
def _tally(tokens, begin):  # type: ignore[no-untyped-def]
    """Sentences, those without words, and unknown words from `begin` on; tokens[begin-1] is a BOUNDARY."""
    sentences, empty, unknown = 0, 0, 0
    for i in range(begin, len(tokens)):
        if tokens[i] == BOUNDARY:
            sentences += 1
            empty += tokens[i - 1] == BOUNDARY
        unknown += tokens[i] == UNKNOWN
    return sentences, empty, unknown
