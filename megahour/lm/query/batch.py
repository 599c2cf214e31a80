"""Scoring batches of sentences with a mapped model, in compiled code and threads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from megahour.lm.query.mapped import MappedModel
from megahour.lm.query.score import TextScore
from megahour.lm.query.scoring import score, sum_sentences
from megahour.lm.text.arrays import Bytes, Float32, Float64, Int32, Tokens
from megahour.lm.text.tokenise import BOUNDARY, END, PADDING, UNKNOWN, encode

_BLANKS = bytes.maketrans(b"\t\r\n\0", b"    ")
PIECE = 1 << 14  # tokens of a thread's piece of work, at least


@dataclass(frozen=True, eq=False)
class SentenceScores:
    """S sentences with T tokens together; a token is a word, or the end of a sentence.

    log10_prob (S,): of words and `</s>`. words (S,): without `</s>`. oov, log10_oov (S,): words that the model does not
    know, and their part of log10_prob. tokens (T,): word numbers, BOUNDARY where a sentence ends. word_log10_prob (T,),
    ngram_length (T,): words of the n-gram that gave the probability.
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
        """All sentences together."""
        tokens, oov = int(self.words.sum()) + len(self), int(self.oov.sum())
        return TextScore(float(self.log10_prob.sum()), tokens, oov, float(self.log10_oov.sum()))


def score_sentences(model: MappedModel, sentences: Sequence[str], threads: int = 1) -> SentenceScores:
    """Scores of sentences, words separated by spaces; `<s>` and `</s>` are added.

    Raises ValueError: a sentence has a line break in it.
    """
    data = "\n".join([*sentences, ""]).encode("utf-8", "surrogateescape")
    if data.count(b"\n") != len(sentences):
        wrong = next(i for i, sentence in enumerate(sentences) if "\n" in sentence)
        raise ValueError(f"sentence {wrong} has a line break in it: {sentences[wrong][:60]!r}")
    return score_lines(model, data, threads)


def score_lines(model: MappedModel, lines: bytes, threads: int = 1) -> SentenceScores:
    """Scores of lines, a sentence each; the last one may lack its line break. An empty line is a sentence: `</s>`."""
    if lines and not lines.endswith(b"\n"):
        lines += b"\n"
    text: Bytes = np.frombuffer(lines + bytes(PADDING), np.uint8)
    tokens = np.empty(len(lines) + 2, np.int32)
    tokens[0] = BOUNDARY
    count, _ = encode(text, len(lines), model.vocabulary, tokens[1:], frozen=True)
    return score_tokens(model, tokens[: count + 1], threads)


def score_tokens(model: MappedModel, tokens: Tokens, threads: int = 1) -> SentenceScores:
    """Scores of numbered sentences: a BOUNDARY, then words and a BOUNDARY for each sentence."""
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


def spelled(line: bytes) -> list[bytes]:
    """The words of a line that are scored, as `tokenise` parts them."""
    return [word for word in line.translate(_BLANKS).split(b" ") if word and word not in (b"<s>", b"</s>")]


def _pieces(ends: npt.NDArray[np.intp], size: int, threads: int) -> list[tuple[int, int]]:
    """Ranges of sentences that have about as many tokens."""
    if not len(ends):
        return []
    pieces = max(1, min(4 * threads, size // PIECE)) if threads > 1 else 1
    edges = np.searchsorted(ends, np.linspace(0, size, pieces + 1)[1:-1])
    bounds = np.unique([0, *edges.tolist(), len(ends)]).tolist()
    return list(pairwise(bounds))
