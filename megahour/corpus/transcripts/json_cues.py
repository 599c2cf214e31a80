"""Convert JSON transcripts to cues, in the formats that people and recognisers write.

The format is recognised by its keys, at the top level or in a wrapping object:

    cues, segments, subtitles, body    lists of cues: megahour, Whisper, WhisperX, the Podcast Index, Bilibili
    a bare list                        cues, texts, or words as written by faster-whisper
    chunks                             Hugging Face (`timestamp: [start, end]`)
    events                             YouTube's json3 (`tStartMs`, `segs`)
    transcription                      whisper.cpp (`offsets` in milliseconds)
    results                            Amazon Transcribe, Google, Speechmatics, Deepgram, Vosk's `result`
    recognizedPhrases                  Azure (ticks of 100 ns)
    monologues                         Rev
    utterances                         AssemblyAI (milliseconds)
    fragments                          aeneas
    word_segments, words               WhisperX; OpenAI's API, whose `text` has the punctuation; Gentle
    text, content, sentence            no times

Lists of single words are joined into sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from megahour.core.errors import BadRecord
from megahour.core.unicode import load_json
from megahour.corpus.transcripts.cues import Cue
from megahour.corpus.transcripts.json_words import (
    ENDS,
    STARTS,
    TEXTS,
    Fields,
    Said,
    are_words,
    channel_of,
    first_text,
    in_time,
    seconds,
    sentences,
    sentences_by_channel,
    speaker_of,
    time_of,
    with_marks,
    word_of,
    words_of,
)
from megahour.corpus.transcripts.sentences import in_sentences

MAX_HOURS = 100
WRAPPERS = ("transcript", "transcription", "result", "response", "data", "output", "captions")
MAX_DEPTH = 4
CUE_LISTS = ("cues", "segments", "subtitles", "body")
WORD_LISTS = ("word_segments", "words")
DURATIONS = ("duration", "dur")
Reader = Callable[[Any], Iterable[Said]]


def json_cues(text: str, rate_hz: int) -> list[Cue]:
    """Cues of a JSON transcript; times are in samples at `rate_hz`, -1 if unknown.

    Raises BadRecord (``unreadable-transcript``) for invalid JSON or an unknown format.
    """
    try:
        value: Any = load_json(text)
    except (ValueError, RecursionError) as error:
        raise BadRecord("unreadable-transcript", f"not JSON: {error}") from error
    shape = find(value)
    if shape is None:
        names = ", ".join(list(value)[:12]) if isinstance(value, dict) else ""
        what = f"an object with {names}" if names else f"a JSON {type(value).__name__}"
        raise BadRecord("unreadable-transcript", f"{what}, without cues or text in a known format")
    read, inner = shape
    try:
        said = list(read(inner))
        if strange := [part for each in said for part in (each.text, each.speaker) if not isinstance(part, str)]:
            raise TypeError(f"a text or a speaker is a JSON {type(strange[0]).__name__}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        detail = f"cues in the format {read.__name__.strip('_')} are malformed: {type(error).__name__} {error}"
        raise BadRecord("unreadable-transcript", detail) from error
    return [timed_cue(each, rate_hz) for each in said]


def find(value: Any, depth: int = 0) -> tuple[Reader, Any] | None:
    """The reader for the transcript in a JSON value and the part to pass to it; None if there is no transcript."""
    if isinstance(value, list):
        return (_list, value) if depth == 0 or any(map(_is_cue, value)) else None
    if not isinstance(value, dict):
        return None
    for name, read in _SHAPES:
        if isinstance(cues := value.get(name), list) and (cues or not _is_cue(value)):  # some services give only a text
            return read, value
    if service := _service(value.get("results")):
        return service, value
    if any(are_words(value.get(name)) for name in WORD_LISTS):
        return _word_list, value
    for name in WRAPPERS if depth < MAX_DEPTH else ():
        if inner := find(value.get(name), depth + 1):
            return inner
    return (_text, value) if _is_cue(value) else None


def _is_cue(value: Any) -> bool:
    """Whether an object has a text. A `transcript` of one word does not count: it may be a file name."""
    if not isinstance(value, dict):
        return False
    return any(isinstance(text := value.get(name), str) and (name != "transcript" or " " in text) for name in TEXTS)


def _list(cues: list[Any]) -> Iterator[Said]:
    if are_words(cues) and not _is_cue(cues[0]):
        yield from sentences_by_channel(words_of(cues))
        return
    for item in cues:
        cue = {"text": item} if isinstance(item, str) else item
        if not isinstance(cue, dict):
            raise TypeError(f"a cue is a JSON {type(item).__name__}")
        start, end = time_of(cue, STARTS), time_of(cue, ENDS)
        end = start + time_of(cue, DURATIONS) if math.isnan(end) else end
        yield Said(start, end, first_text(cue, TEXTS), speaker_of(cue), channel=channel_of(cue))


def _cue_lists(value: Fields) -> Iterator[Said]:
    return _list(next(value[name] for name in CUE_LISTS if isinstance(value.get(name), list)))


def _text(value: Fields) -> Iterator[Said]:
    text = in_sentences(first_text(value, TEXTS))
    return _list([value] if len(text) == 1 else [{"text": part, "speaker": speaker_of(value)} for part in text])


def _chunks(value: Fields) -> Iterator[Said]:
    for chunk in value["chunks"]:
        start, end = chunk.get("timestamp") or (None, None)
        yield Said(seconds(start), seconds(end), chunk["text"])


def _youtube(value: Fields) -> Iterator[Said]:
    for event in value["events"]:
        text = "".join(part.get("utf8", "") for part in event.get("segs", ()))
        if text.strip():
            start = seconds(event.get("tStartMs")) / 1000
            yield Said(start, start + seconds(event.get("dDurationMs")) / 1000, text)


def _whisper_cpp(value: Fields) -> Iterator[Said]:
    for part in value["transcription"]:
        at = part.get("offsets") or {}
        yield Said(seconds(at.get("from")) / 1000, seconds(at.get("to")) / 1000, part["text"])


def _amazon(value: Fields) -> Iterable[Said]:
    results = value["results"]
    if segments := results.get("audio_segments"):
        return _list(segments)
    who = {
        item["start_time"]: item.get("speaker_label") or segment.get("speaker_label") or ""
        for segment in (results.get("speaker_labels") or {}).get("segments") or ()
        for item in segment.get("items") or ()
    }
    words = (
        Said(
            time_of(item, STARTS),
            time_of(item, ENDS),
            item["alternatives"][0]["content"],
            item.get("speaker_label") or who.get(item.get("start_time"), ""),
            item.get("type") == "punctuation",
            channel_of(item),
        )
        for item in results["items"]
    )
    return sentences_by_channel(words)


def _deepgram(value: Fields) -> Iterator[Said]:
    results = value["results"]
    if utterances := results.get("utterances"):
        return _list(utterances)
    channels = [list(_deepgram_channel(channel["alternatives"][0])) for channel in results["channels"]]
    if len(channels) <= 1:
        return iter(channels[0])
    numbered = [cue._replace(channel=str(number)) for number, cues in enumerate(channels) for cue in cues]
    return iter(in_time(numbered))


def _deepgram_channel(best: Fields) -> Iterator[Said]:
    if paragraphs := (best.get("paragraphs") or {}).get("paragraphs"):
        return _list([{**each, "speaker": speaker_of(part)} for part in paragraphs for each in part["sentences"]])
    return _text(best) if not best.get("words") else sentences(map(word_of, best["words"]))


def _google(value: Fields) -> Iterator[Said]:
    """Version 2 has offsets, and none for a first word at 0."""
    for result in value["results"]:
        best = (result.get("alternatives") or [{}])[0]
        words = best.get("words") or [{}]
        first = {"startOffset": 0, **words[0]} if "endOffset" in words[0] else words[0]
        if best.get("transcript"):
            start, end = time_of(first, (*STARTS, "startOffset")), time_of(words[-1], (*ENDS, "endOffset"))
            yield Said(start, end, best["transcript"], channel=channel_of(result))


def _speechmatics(value: Fields) -> list[Said]:
    def said(item: Fields) -> Said:
        best, joined = item["alternatives"][0], item.get("attaches_to") in ("previous", "both")
        who = speaker_of(best).replace("UU", "")  # unknown
        return Said(time_of(item, STARTS), time_of(item, ENDS), best["content"], who, joined, channel_of(item))

    return sentences_by_channel(map(said, value["results"]))


def _azure(value: Fields) -> list[Said]:
    """All phrases of one channel may come before those of the next. Phrases without words have another status."""

    def said(phrase: Fields) -> Said:
        start = seconds(phrase.get("offsetInTicks")) / 1e7
        end = start + seconds(phrase.get("durationInTicks")) / 1e7
        return Said(start, end, phrase["nBest"][0]["display"], speaker_of(phrase), channel=channel_of(phrase))

    phrases = value["recognizedPhrases"]
    return in_time(said(phrase) for phrase in phrases if phrase.get("recognitionStatus", "Success") == "Success")


def _rev(value: Fields) -> Iterator[Said]:
    for turn in value["monologues"]:
        words = [
            Said(
                seconds(e.get("ts")),
                seconds(e.get("end_ts")),
                e["value"].strip(),
                speaker_of(turn),
                e.get("type") == "punct",
            )
            for e in turn["elements"]
        ]
        yield from sentences(word for word in words if word.text)


def _assembly(value: Fields) -> Iterator[Said]:
    for each in value["utterances"]:
        start, end = (seconds(each.get(name)) / 1000 for name in ("start", "end"))
        yield Said(start, end, each["text"], speaker_of(each), channel=channel_of(each))


def _aeneas(value: Fields) -> Iterator[Said]:
    for part in value["fragments"]:
        yield Said(time_of(part, STARTS), time_of(part, ENDS), " ".join(part["lines"]))


def _vosk(value: Fields) -> Iterator[Said]:
    return sentences(map(word_of, value["result"]))


def _word_list(value: Fields) -> list[Said]:
    words = next(value[name] for name in WORD_LISTS if are_words(value.get(name)))
    return sentences_by_channel(with_marks(list(words_of(words)), first_text(value, TEXTS)))


_SHAPES: tuple[tuple[str, Reader], ...] = (
    *((name, _cue_lists) for name in CUE_LISTS),
    ("chunks", _chunks),
    ("events", _youtube),
    ("transcription", _whisper_cpp),
    ("recognizedPhrases", _azure),
    ("monologues", _rev),
    ("utterances", _assembly),
    ("fragments", _aeneas),
    ("result", _vosk),
)


def _service(results: Any) -> Reader | None:
    """The reader for `results`, a key that Amazon, Google, Speechmatics and Deepgram share."""
    if isinstance(results, list):
        said = [each for each in results if isinstance(each, dict) and "alternatives" in each]
        return (_speechmatics if "type" in said[0] else _google) if said else None
    if isinstance(results, dict) and ("items" in results or "audio_segments" in results):
        return _amazon
    return _deepgram if isinstance(results, dict) and ("channels" in results or "utterances" in results) else None


def timed_cue(said: Said, rate_hz: int) -> Cue:
    """The cue with its times in samples at `rate_hz`, -1 if unknown or impossible."""
    start, end = (
        round(s * rate_hz) if 0 <= s < MAX_HOURS * 3600 else -1  # NaN gives -1
        for s in (said.start_s, said.end_s)
    )
    return Cue(start, end if end > start >= 0 else -1, said.text, said.speaker, said.channel)
