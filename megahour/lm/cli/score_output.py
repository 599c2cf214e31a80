"""Output of `megahour lm score` in three formats: ours, KenLM's `query`, SRILM's `ngram -ppl -debug 2`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from megahour.lm.query.batch import spelled
from megahour.lm.text.tokenise import UNKNOWN

if TYPE_CHECKING:
    from megahour.lm.query.batch import SentenceScores, TextScore

Words = list[tuple[bytes, int, int, float]]  # as written; number, n-gram length, log10 p


def print_sentences(lines: list[bytes], result: SentenceScores) -> None:
    """Print one line per sentence: log10 p, words, unknown words, the sentence."""
    columns = (result.log10_prob.tolist(), result.words.tolist(), result.oov.tolist())
    for line, logp, count, oov in zip(lines, *columns, strict=True):
        sys.stdout.buffer.write(b"%.6f\t%d\t%d\t%s\n" % (logp, count, oov, line.strip()))


def print_words(lines: list[bytes], result: SentenceScores) -> None:
    """Print words as KenLM's `query`."""
    for (_, each), logp, oov in zip(_sentences(lines, result), result.log10_prob, result.oov, strict=True):
        row = b"\t".join(b"%s=%d %d %.6g" % (word, 2 if word == b"</s>" else n, k, p) for word, n, k, p in each)
        sys.stdout.buffer.write(row + b"\tTotal: %.6g OOV: %d\n" % (logp, oov))


def print_srilm(lines: list[bytes], result: SentenceScores) -> None:
    """As SRILM's `ngram -ppl -debug 2` without -unk, which counts unknown words, but does not score them."""
    out = sys.stdout.buffer
    for line, each in _sentences(lines, result):
        out.write(line.strip() + b"\n")
        before, known, oov = b"<s> ", 0.0, 0
        for word, number, k, logp in each:
            unknown = number == UNKNOWN and word != b"</s>"
            shown = b"<unk>" if unknown else word
            what = b"[OOV] 0 [ -inf ]" if unknown else b"[%dgram] %.7g [ %.7g ]" % (k, 10.0**logp, logp)
            out.write(b"\tp( %s | %s) \t= %s\n" % (shown, before, what))
            before = shown + b" ..."
            oov += unknown
            known += 0.0 if unknown else logp
        words = len(each) - 1
        out.write(f"1 sentences, {words} words, {oov} OOVs\n{_perplexities(known, words, oov, 1)}\n\n".encode())


def srilm_total(name: str, total: TextScore, sentences: int) -> None:
    """Print the last two lines of SRILM's output."""
    sys.stdout.buffer.flush()
    words = total.tokens - sentences
    click.echo(f"file {name}: {sentences} sentences, {words} words, {total.oov} OOVs")
    click.echo(_perplexities(total.log10_prob - total.log10_oov, words, total.oov, sentences))


def _perplexities(log10_prob: float, words: int, oov: int, sentences: int) -> str:
    """SRILM's line of perplexities: ppl includes ends of sentences, ppl1 does not."""
    counts = words - oov + sentences, words - oov
    ppl, ppl1 = (f"{10.0 ** (-log10_prob / count):.7g}" if count else "undefined" for count in counts)
    return f"0 zeroprobs, logprob= {log10_prob:.7g} ppl= {ppl} ppl1= {ppl1}"


def _sentences(lines: list[bytes], result: SentenceScores) -> Iterator[tuple[bytes, Words]]:
    """Each line with its words and `</s>`."""
    at = 0
    for line, count in zip(lines, result.words.tolist(), strict=True):
        own = slice(at, at + count + 1)
        columns = (result.tokens[own], result.ngram_length[own], result.word_log10_prob[own])
        yield line, list(zip([*spelled(line), b"</s>"], *(each.tolist() for each in columns), strict=True))
        at = own.stop
