"""Helpers shared by the formats of `json_cues`: reading fields and words, and joining words into cues."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

TEXTS = ("text", "content", "sentence", "transcript", "body")
SPEAKERS = ("speaker", "speaker_label", "name", "speaker_id")
CHANNELS = ("channel", "channel_label", "channelTag")
STARTS, ENDS = ("start", "from", "begin", "start_time", "startTime"), ("end", "to", "end_time", "endTime")
DURATIONS = ("duration", "dur")
MAX_S = 1e18  # three thousand years in ticks of 100 ns; a larger JSON integer may overflow a float
SENTENCE_WORDS = 40  # maximum number of words in a joined cue
SENTENCE_PAUSE_S = 1.0  # a pause of this length ends a cue
_CLOCK = re.compile(r"\s*(?:(?:(\d{1,3}):)?(\d{1,3}):)?(\d+(?:[.,]\d+)?)\s*s?\s*")
_SENTENCE_END = re.compile(r"[.?!…。？！][\"'”’»)]*$")
Fields = Mapping[str, Any]


class Said(NamedTuple):
    """A cue or a word; times in seconds, NaN if unknown. `joined`: no space before it."""

    start_s: float
    end_s: float
    text: str
    speaker: str = ""
    joined: bool = False
    channel: str = ""


Reader = Callable[[Any], Iterable[Said]]


def sentences(words: Iterable[Said]) -> Iterator[Said]:
    """Join words into cues that end at a sentence end, a pause, a change of speaker or `SENTENCE_WORDS` words."""
    pending: list[Said] = []
    end_s = math.nan  # end of the last word that has one; punctuation has none
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


def sentences_by_channel(words: Iterable[Said]) -> list[Said]:
    """`sentences` of each channel, by start: two people who talk at once are not mixed word by word."""
    channels: dict[str, list[Said]] = {}
    for word in words:
        channels.setdefault(word.channel, []).append(word)
    found = [list(sentences(own)) for own in channels.values()]
    return found[0] if len(found) == 1 else in_time(cue for cues in found for cue in cues)


def in_time(cues: Iterable[Said]) -> list[Said]:
    """Sorted by their starts; those without one stay in order, at the end."""
    return sorted(cues, key=lambda said: (math.isnan(said.start_s), 0.0 if math.isnan(said.start_s) else said.start_s))


def _joined(words: list[Said]) -> Said:
    text = "".join(f"{'' if word.joined else ' '}{word.text}" for word in words).strip()
    ends = [word.end_s for word in words if not math.isnan(word.end_s)]
    return Said(words[0].start_s, max(ends, default=math.nan), text, words[0].speaker, channel=words[0].channel)


def is_cue(value: Any) -> bool:
    """Whether an object has a text. A `transcript` of one word does not count: it may be a file name."""
    if not isinstance(value, dict):
        return False
    return any(isinstance(text := value.get(name), str) and (name != "transcript" or " " in text) for name in TEXTS)


def cue_list(cues: list[Any]) -> Iterator[Said]:
    """Convert a list of texts, or of objects with a text; an end may be given by a duration."""
    for item in cues:
        cue = {"text": item} if isinstance(item, str) else item
        if not isinstance(cue, dict):
            raise TypeError(f"a cue is a JSON {type(item).__name__}")
        start, end = time_of(cue, STARTS), time_of(cue, ENDS)
        end = start + time_of(cue, DURATIONS) if math.isnan(end) else end
        yield Said(start, end, first_text(cue, TEXTS), speaker_of(cue), channel=channel_of(cue))


def word_of(item: Fields) -> Said:
    """Convert one item of a list of words."""
    return Said(
        time_of(item, STARTS),
        time_of(item, ENDS),
        item.get("punctuated_word") or item["word"],
        speaker_of(item),
        channel=channel_of(item),
    )


def are_words(value: Any, named: str = "word") -> bool:
    """Whether a JSON value is a list of words, each with its text in the field `named`."""
    return (
        bool(value)
        and isinstance(value, list)
        and all(isinstance(item, dict) and isinstance(item.get(named), str) for item in value)
    )


def words_of(items: list[Fields]) -> Iterator[Said]:
    """Convert a list of words. Whisper's words begin with a space unless they continue the previous one."""
    spaced = any(item["word"].startswith(" ") for item in items)
    for item in items:
        word = word_of(item)
        yield word._replace(text=word.text.strip(), joined=spaced and not word.text.startswith(" "))


def with_marks(words: list[Said], text: str) -> list[Said]:
    """Add to each word the punctuation that follows it in `text`; unchanged if `text` lacks one of the words."""
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
    """The first of the fields `names` that holds a string; "" if none does."""
    return next((value for name in names if isinstance(value := cue.get(name), str)), "")


def speaker_of(item: Fields) -> str:
    """The speaker's name or number as a string; "" if there is none."""
    return _name_in(item, SPEAKERS)


def channel_of(item: Fields) -> str:
    """The name or number of the channel as a string; "" if there is none."""
    return _name_in(item, CHANNELS)


def _name_in(item: Fields, names: Iterable[str]) -> str:
    value = next((item[name] for name in names if isinstance(item.get(name), str | int)), "")
    return "" if isinstance(value, bool) else str(value).strip()


def time_of(cue: Fields, names: Iterable[str]) -> float:
    """The first of the fields `names` that exists, in seconds; NaN if none does."""
    return seconds(next((cue[name] for name in names if name in cue), None))


def seconds(value: Any) -> float:
    """Convert a number or a string such as "1.5", "1.5s" or "0:01.5" to seconds; NaN for anything else."""
    if isinstance(value, str):
        match = _CLOCK.fullmatch(value)
        parts = [float((part or "0").replace(",", ".")) for part in match.groups()] if match else [math.nan] * 3
        return (parts[0] * 60 + parts[1]) * 60 + parts[2]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < MAX_S else math.nan
