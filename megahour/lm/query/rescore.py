"""Sorts n-best lists by the sum of the recogniser's score, the language model's and a penalty per word.

    total = score + weight · ln p(words) + penalty · number of words          (natural logarithms throughout)

JSONL: one line ``{"id": …, "nbest": [{"text": …, "score": …}, …]}`` per utterance; other keys are kept. Kaldi: lines
``UTTERANCE-N word word …`` and, in a second file, lines ``UTTERANCE-N cost`` (`words_text` and `ac_cost` of its
n-best directories; score = -cost).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from megahour.core.errors import MegahourError
from megahour.lm.estimate.reading import words_of
from megahour.lm.query.batch import SentenceScores

LN10 = math.log(10.0)
BATCH = 1 << 13  # hypotheses scored together
ScoreSentences = Callable[[list[str]], SentenceScores]


@dataclass
class NBest:
    """The hypotheses of an utterance: texts, scores of the recogniser (nats), and the JSON objects (items, whole)."""

    id: str
    texts: list[str]
    scores: list[float]
    items: list[dict[str, Any]]
    whole: dict[str, Any]


@dataclass(frozen=True)
class Weights:
    """weight: of the language model. penalty: added for each word; below 0 it favours fewer words."""

    weight: float = 1.0
    penalty: float = 0.0


def rescore(utterances: Iterable[NBest], score: ScoreSentences, weights: Weights) -> Iterator[NBest]:
    """Sort hypotheses by total, best first, stably. Each item gets `lm` (ln p), `words`, `oov` and `total`."""
    held: list[NBest] = []
    for utterance in utterances:
        held.append(utterance)
        if sum(len(each.texts) for each in held) >= BATCH:
            yield from _rescored(held, score, weights)
            held = []
    yield from _rescored(held, score, weights)


def _rescored(utterances: list[NBest], score: ScoreSentences, weights: Weights) -> Iterator[NBest]:
    scores = score([text for utterance in utterances for text in utterance.texts])
    logp, words, oov = (LN10 * scores.log10_prob).tolist(), scores.words.tolist(), scores.oov.tolist()
    at = 0
    for utterance in utterances:
        for i, item in enumerate(utterance.items):
            total = utterance.scores[i] + weights.weight * logp[at] + weights.penalty * words[at]
            item |= {"lm": round(logp[at], 6), "words": words[at], "oov": oov[at], "total": round(total, 6)}
            at += 1
        order = sorted(range(len(utterance.items)), key=lambda i: -utterance.items[i]["total"])
        texts, values, items = utterance.texts, utterance.scores, utterance.items
        yield NBest(
            utterance.id, [texts[i] for i in order], [values[i] for i in order], [items[i] for i in order],
            {**utterance.whole, "nbest": [items[i] for i in order]},
        )  # fmt: skip


def read_jsonl(lines: Iterable[bytes], name: str) -> Iterator[NBest]:
    """Read utterances from JSON lines; blank lines are skipped.

    Raises MegahourError with the line: no JSON, missing keys, text with half a character, or a score that is not a
    finite number.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            whole = json.loads(line)
            items = [dict(item) for item in whole["nbest"]]
            texts = [" ".join(words_of(str(item["text"]))) for item in items]
            "".join(texts).encode()  # JSON can contain half a character: "\\ud800"
            scores = [_finite(item["score"]) for item in items]
            yield NBest(str(whole["id"]), texts, scores, items, whole)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            missing = isinstance(error, KeyError)
            raise _wrong(name, number, f"no key {error}" if missing else f"{type(error).__name__}: {error}") from None


def read_kaldi(texts: Iterable[bytes], costs: Iterable[bytes] | None, name: str, costs_name: str) -> Iterator[NBest]:
    """Read utterances from Kaldi's n-best texts, with costs of the same keys in the same order.

    Raises MegahourError with the line: no ``-N`` after the utterance, or a cost is missing, without a text, or not a
    finite number.
    """
    held, number = None, 0
    rows = iter(costs) if costs is not None else None
    for number, line in enumerate(texts, 1):
        key, *words = words_of(line.decode("utf-8", "surrogateescape")) or [""]
        if not key:
            continue
        name_of, dash, rank = key.rpartition("-")
        if not dash or not rank.isdecimal():
            raise _wrong(name, number, f"{key!r} is not UTTERANCE-N")
        score = -_cost(rows, key, costs_name, number) if rows is not None else 0.0
        if held is None or held.id != name_of:
            if held is not None:
                yield held
            held = NBest(name_of, [], [], [], {"id": name_of})
        held.texts.append(" ".join(words))
        held.scores.append(score)
        held.items.append({"text": held.texts[-1], "score": score, "rank": int(rank)})
    if held is not None:
        yield held
    if rows is not None and (more := next((row for row in rows if row.strip()), None)):
        raise _wrong(costs_name, number, f"a cost without a text: {more[:60].decode('utf-8', 'replace').strip()!r}")


def _cost(rows: Iterator[bytes], key: str, name: str, number: int) -> float:
    fields = next(rows, b"").decode("utf-8", "surrogateescape").split()
    if len(fields) != 2 or fields[0] != key:
        raise _wrong(name, number, f"expected the cost of {key!r}, found {' '.join(fields)[:60]!r}")
    try:
        return _finite(fields[1])
    except ValueError as error:
        raise _wrong(name, number, str(error)) from None


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"score {value!r} is not a finite number")
    return number


def _wrong(name: str, number: int, what: str) -> MegahourError:
    return MegahourError(what, where=f"{name}:{number}", remedy="see megahour lm rescore --help for the two formats")
