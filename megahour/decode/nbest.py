"""n-best lists: texts with their scores, and the form in which `.nbest.jsonl` and `transcribe` write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Text = tuple[str, float, Mapping[str, float]]
"""A text, its score in nats, and the parts of the score."""


def as_items(texts: Iterable[Text]) -> list[dict[str, Any]]:
    """Texts as `megahour lm rescore` reads them; their `score` is the acoustic score.

    >>> as_items([("hello", -1.25, {"score": -1.0})])
    [{'text': 'hello', 'total': -1.25, 'score': -1.0}]
    """
    return [{"text": text, "total": round(total, 4), **parts} for text, total, parts in texts]
