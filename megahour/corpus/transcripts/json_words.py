"""Fields and words of JSON transcripts, and words joined to cues: what the shapes of `json_cues` share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

TEXTS = ("text", "content", "sentence", "transcript", "body")
SPEAKERS = ("speaker", "speaker_label", "name")
STARTS, ENDS = ("start", "from", "begin", "start_time", "startTime"), ("end", "to", "end_time", "endTime")
MAX_S = 1e18  # in ticks of 100 ns, three thousand years; an integer of JSON may be too long for a float
SENTENCE_WORDS = 40  # words after which a cue of words ends, whatever they are
SENTENCE_PAUSE_S = 1.0  # pause that ends it
_CLOCK = re.compile(r"\s*(?:(?:(\d{1,3}):)?(\d{1,3}):)?(\d+(?:[.,]\d+)?)\s*s?\s*")
_SENTENCE_END = re.compile(r"[.?!…。？！][\"'”’»)]*$")
Fields = Mapping[str, Any]


class Said(NamedTuple):
    """A cue, or a word, in seconds; NaN unknown. `joined`: without a space before it."""

    start_s: float
    end_s: float
    text: str
    speaker: str = ""
    joined: bool = False


def sentences(words: Iterable[Said]) -> Iterator[Said]:
    """Words joined to cues, which end with a sentence, before a pause or another speaker, or after many words."""
    pending: list[Said] = []
    end_s = math.nan  # of the last word that has one: marks have none
    for word in words:
        if pending and not word.joined:
            full = len(pending) >= SENTENCE_WORDS or bool(_SENTENCE_END.search(pending[-1].text))
            if full or word.start_s - end_s >= SENTENCE_PAUSE_S or word.speaker != pending[0].speaker:
                yield _joined(pending)
                pending = []
        pending.append(word)
        end_s = end_s if math.isnan(word.end_s) else word.end_s
    if pending:
        yield _joined(pending)


def _joined(words: list[Said]) -> Said:
    text = "".join(f"{'' if word.joined else ' '}{word.text}" for word in words).strip()
    ends = [word.end_s for word in words if not math.isnan(word.end_s)]
    return Said(words[0].start_s, max(ends, default=math.nan), text, words[0].speaker)


def word_of(item: Fields) -> Said:
    """One word of a list of words."""
    return Said(
        time_of(item, STARTS), time_of(item, ENDS), item.get("punctuated_word") or item["word"], speaker_of(item)
    )


def are_words(value: Any) -> bool:
    """Whether a JSON value is a list of words, each with its text in `word`."""
    return (
        bool(value)
        and isinstance(value, list)
        and all(isinstance(item, dict) and isinstance(item.get("word"), str) for item in value)
    )


def words_of(items: list[Fields]) -> Iterator[Said]:
    """Words one by one. Whisper's begin with a space unless they go on with the one before."""
    spaced = any(item["word"].startswith(" ") for item in items)
    for item in items:
        word = word_of(item)
        yield word._replace(text=word.text.strip(), joined=spaced and not word.text.startswith(" "))


def with_marks(words: list[Said], text: str) -> list[Said]:
    """The words as `text` writes them, with the marks behind each; as they are where it does not have them all."""
    starts, end = list[int](), 0
    for word in words:
        start = text.find(word.text, end)
        if start < 0:
            return words
        starts.append(start)
        end = start + len(word.text)
    edges = [0, *starts[1:], len(text)]
    return [word._replace(text=text[a:b].strip()) for word, (a, b) in zip(words, pairwise(edges), strict=True)]


def first_text(cue: Fields, names: Iterable[str]) -> str:
    """The first of the fields `names` that is a text; empty where none is."""
    return next((value for name in names if isinstance(value := cue.get(name), str)), "")


def speaker_of(item: Fields) -> str:
    """A speaker's name, or the number that stands for it."""
    value = next((item[name] for name in SPEAKERS if isinstance(item.get(name), str | int)), "")
    return "" if isinstance(value, bool) else str(value).strip()


def time_of(cue: Fields, names: Iterable[str]) -> float:
    """The first of the fields `names` in seconds, NaN where there is none."""
    return seconds(next((cue[name] for name in names if name in cue), None))


def seconds(value: Any) -> float:
    """A number of seconds, or a string: "1.5", "1.5s", "0:01.5"; NaN for what is neither."""
    if isinstance(value, str):
        match = _CLOCK.fullmatch(value)
        parts = [float((part or "0").replace(",", ".")) for part in match.groups()] if match else [math.nan] * 3
        return (parts[0] * 60 + parts[1]) * 60 + parts[2]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < MAX_S else math.nan
