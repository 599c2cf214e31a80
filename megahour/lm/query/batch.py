"""Scores of batches of sentences by a mapped model, in compiled code and threads; perplexities of texts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from operator import add

import numpy as np
import numpy.typing as npt

from megahour.lm.query.mapped import MappedModel
from megahour.lm.query.scoring import score, sum_sentences
from megahour.lm.text.arrays import Bytes, Float32, Float64, Int32, Tokens
from megahour.lm.text.tokenise import BOUNDARY, END, PADDING, UNKNOWN, encode

_BLANKS = bytes.maketrans(b"\t\r\n\0", b"    ")
PIECE = 1 << 14  # smallest piece of work for a thread, in tokens


@dataclass(frozen=True)
class TextScore:
    """The score of a text of `tokens` words and sentence ends, `oov` of them unknown.

    log10_prob: sum over all tokens; log10_oov: the part of the unknown words.

    >>> round(TextScore(log10_prob=-6.0, tokens=4, oov=1, log10_oov=-3.0).perplexity_known, 6)
    10.0
    """

    log10_prob: float = 0.0
    tokens: int = 0
    oov: int = 0
    log10_oov: float = 0.0

    def __add__(self, other: TextScore) -> TextScore:
        return TextScore(*map(add, vars(self).values(), vars(other).values()))

    @property
    def perplexity(self) -> float:
        """Perplexity of all tokens, with unknown words scored as `<unk>`; NaN without tokens."""
        return _perplexity(self.log10_prob, self.tokens)

    @property
    def perplexity_known(self) -> float:
        """Perplexity of the tokens in the vocabulary; NaN without such tokens."""
        return _perplexity(self.log10_prob - self.log10_oov, self.tokens - self.oov)


def _perplexity(log10_prob: float, tokens: int) -> float:
    return 10.0 ** (-log10_prob / tokens) if tokens else float("nan")


@dataclass(frozen=True, eq=False)
class SentenceScores:
    """Scores of S sentences with T tokens in total, which are words and sentence ends.

    log10_prob (S,): of words and `</s>`. words (S,): without `</s>`. oov, log10_oov (S,): number of unknown words, and
    their part of log10_prob. tokens (T,): word numbers, BOUNDARY for sentence ends. word_log10_prob (T,). ngram_length
    (T,): length of the n-gram that gave the probability.
    """

    log10_prob: Float64
    words: Int32
    oov: Int32
    log10_oov: Float64
    tokens: Tokens
    word_log10_prob: Float32
    ngram_length: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.log10_prob)

    @property
    def total(self) -> TextScore:
        """The score of all sentences together."""
        tokens, oov = int(self.words.sum()) + len(self), int(self.oov.sum())
        return TextScore(float(self.log10_prob.sum()), tokens, oov, float(self.log10_oov.sum()))


def score_sentences(model: MappedModel, sentences: Sequence[str], threads: int = 1) -> SentenceScores:
    """Score sentences, whose words are separated by spaces; `<s>` and `</s>` are added.

    Raises ValueError: a sentence contains a line break. TypeError: a single string instead of a list.
    """
    if isinstance(sentences, str):
        raise TypeError(f"a list of sentences is needed, not the string {sentences[:60]!r}")
    data = "\n".join([*sentences, ""]).encode("utf-8", "surrogateescape")
    if data.count(b"\n") != len(sentences):
        wrong = next(i for i, sentence in enumerate(sentences) if "\n" in sentence)
        raise ValueError(f"sentence {wrong} contains a line break: {sentences[wrong][:60]!r}")
    return score_lines(model, data, threads)


def score_lines(model: MappedModel, lines: bytes, threads: int = 1) -> SentenceScores:
    """Score lines as sentences. The last one may lack its line break. An empty line is a sentence with `</s>` only."""
    if lines and not lines.endswith(b"\n"):
        lines += b"\n"
    text: Bytes = np.frombuffer(bytearray().join([lines, bytes(PADDING)]), np.uint8)  # writable, as a file's blocks are
    tokens = np.empty(len(lines) + 2, np.int32)
    tokens[0] = BOUNDARY
    count, _ = encode(text, len(lines), model.vocabulary, tokens[1:], frozen=True)
    return score_tokens(model, tokens[: count + 1], threads)


def score_tokens(model: MappedModel, tokens: Tokens, threads: int = 1) -> SentenceScores:
    """Score sentences of word numbers: a BOUNDARY, then the words and a BOUNDARY for each sentence."""
    ends = np.flatnonzero(tokens[1:] == BOUNDARY) + 1
    size, sentences = len(tokens) - 1, len(ends)
    logp, length = np.empty(size, np.float32), np.empty(size, np.int8)
    total, lost = np.empty(sentences), np.empty(sentences)
    words, missing = np.empty(sentences, np.int32), np.empty(sentences, np.int32)
    weights, values = model.weights, model.values

    def work(first: int, last: int) -> None:
        """Sentences first .. last-1."""
        begin, stop = int(ends[first - 1]) + 1 if first else 1, int(ends[last - 1]) + 1
        part, own = slice(begin - 1, stop - 1), slice(first, last)
        score(
            tokens, begin, stop, model.order, model.closed, model.words, weights, model.segments, model.entries, values,
            END, logp[part], length[part],
        )  # fmt: skip
        sum_sentences(tokens, begin, stop, logp[part], UNKNOWN, total[own], words[own], missing[own], lost[own])

    pieces = _pieces(ends, size, threads)
    if len(pieces) < 2:
        for piece in pieces:
            work(*piece)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda piece: work(*piece), pieces))
    return SentenceScores(total, words - 1, missing, lost, tokens[1:], logp, length)


def summed(tokens: Tokens, logp: Float64, length: npt.NDArray[np.int8]) -> SentenceScores:
    """The scores of sentences from those of their tokens (T,)."""
    sentences = int(np.count_nonzero(tokens == BOUNDARY))
    total, lost = np.empty(sentences), np.empty(sentences)
    words, missing = np.empty(sentences, np.int32), np.empty(sentences, np.int32)
    if sentences:
        sum_sentences(tokens, 0, len(tokens), logp, UNKNOWN, total, words, missing, lost)
    return SentenceScores(total, words - 1, missing, lost, tokens, logp.astype(np.float32), length)


def spelled(line: bytes) -> list[bytes]:
    """The scored words of a line, separated as in `tokenise`."""
    return [word for word in line.translate(_BLANKS).split(b" ") if word and word not in (b"<s>", b"</s>")]


def _pieces(ends: npt.NDArray[np.intp], size: int, threads: int) -> list[tuple[int, int]]:
    """Divide sentences into ranges of about equal numbers of tokens."""
    if not len(ends):
        return []
    pieces = max(1, min(4 * threads, size // PIECE)) if threads > 1 else 1
    edges = np.searchsorted(ends, np.linspace(0, size, pieces + 1)[1:-1])
    bounds = np.unique([0, *edges.tolist(), len(ends)]).tolist()
    return list(pairwise(bounds))
