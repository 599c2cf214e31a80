"""Read a recogniser's JSON output for one utterance: its id, its text and its confidence.

The text is `pred_text` (NeMo manifests), `text`, or that of a format of `json_cues`. The confidence is the mean over
the smallest parts that have one: words (`confidence`, `probability`, `conf`, `score`), tokens (`p`), else segments,
else the whole. For Whisper's segments it is exp(`avg_logprob`), weighted by the segment's length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from megahour.core.errors import BadRecord
from megahour.corpus.transcripts.json_cues import find
from megahour.corpus.transcripts.json_words import seconds

IDS = ("id", "key", "utt_id", "utterance_id", "audio_filepath", "audio", "file", "path", "wav", "name")
CONFIDENCES = ("confidence", "probability", "conf", "score", "p")
LISTED = ("word_confidence", "token_confidence")  # NeMo: lists of numbers without words
SAID = ("word", "punctuated_word", "text", "pred_text", "transcript", "content", "value", "display", "sentence")
RIVALS = ("alternatives", "nBest")  # lists of alternatives, of which only the first (best) counts
NO_WORD = "[_"  # whisper.cpp's tokens [_BEG_] and [_TT_50], of times
AUDIO = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".npy", ".json", ".jsonl", ".gz")


class Recognised(NamedTuple):
    """Text and confidence of an utterance. `confidence` is from 0 to 1, or None if the JSON has none."""

    text: str
    confidence: float | None


def recognised(value: Mapping[str, Any]) -> Recognised:
    """Read the text and confidence from a JSON object.

    Raises
    ------
    BadRecord: ``no-text`` for an unknown format, ``bad-confidence`` for a confidence that is not a number from 0 to 1.
    """
    return Recognised(_text(value), _confidence(value))


def named(value: Mapping[str, Any]) -> str:
    """What a JSON object calls its utterance, an id or a path; "" if there is nothing."""
    return str(next((value[key] for key in IDS if isinstance(value.get(key), str | int)), ""))


def utterance_id(name: str) -> str:
    """Strip the folder and the file suffixes in `AUDIO` from a name.

    >>> utterance_id("clips/an4.12.wav"), utterance_id("an4.12")
    ('an4.12', 'an4.12')
    """
    name = name.rpartition("/")[2]
    while (stem := name.rpartition(".")[0]) and name.lower().endswith(AUDIO):
        name = stem
    return name


def _text(value: Mapping[str, Any]) -> str:
    if "pred_text" in value:
        if not isinstance(text := value["pred_text"], str):  # then `text`, if there is one, is the transcript
            raise BadRecord("no-text", f"pred_text is {json.dumps(text)[:40]}, not a text")
        return text
    if isinstance(text := value.get("text"), str):
        return text
    shape = find(value)
    if shape is None:
        raise BadRecord("no-text", f"an object with {', '.join(list(value)[:12])}, without text in a known format")
    read, inner = shape
    try:
        return " ".join(said.text for said in read(inner))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BadRecord(
            "no-text", f"text in the format {read.__name__.strip('_')} is malformed: {type(error).__name__} {error}"
        ) from error


def _confidence(value: Mapping[str, Any]) -> float | None:
    found = list(_of_parts(value))
    weight = sum(part for _, part in found)
    return sum(number * part for number, part in found) / weight if weight else None


def _of_parts(value: Any) -> Iterator[tuple[float, float]]:
    """Yield (confidence, weight) of the smallest parts within a value that have a confidence."""
    if isinstance(value, list):
        for item in value:
            yield from _of_parts(item)
        return
    if not isinstance(value, Mapping):
        return
    inner = [part for name, item in value.items() for part in _of_parts(item[:1] if _rivals(name, item) else item)]
    yield from inner or _own(value)


def _rivals(name: str, item: Any) -> bool:
    return name in RIVALS and isinstance(item, list)


def _own(value: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    for name in LISTED:
        if isinstance(value.get(name), list):
            yield from ((_checked(name, number), 1.0) for number in value[name])
            return
    said = next((text for name in SAID if isinstance(text := value.get(name), str)), None)
    if said is None or said.startswith(NO_WORD):
        return
    if (name := next((name for name in CONFIDENCES if value.get(name) is not None), "")) != "":
        yield _checked(name, value[name]), 1.0
    elif value.get("avg_logprob") is not None:
        length = seconds(value.get("end")) - seconds(value.get("start"))
        yield _checked("avg_logprob", value["avg_logprob"], exponent=True), length if length > 0 else 1.0


def _checked(name: str, value: Any, *, exponent: bool = False) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
        number = math.exp(number) if exponent else number
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0.0 <= number <= 1.0:  # true for NaN
        raise BadRecord("bad-confidence", f"{name} = {str(value)[:40]} is no confidence between 0 and 1")
    return number
