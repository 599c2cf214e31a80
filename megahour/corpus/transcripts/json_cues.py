"""Convert JSON transcripts to cues, in the formats that people and recognisers write.

The format is recognised by its keys, at the top level or in a wrapping object:

    cues, segments, subtitles, body    lists of cues: megahour, Whisper, WhisperX, the Podcast Index, Bilibili
    a bare list                        cues, texts, or words as written by faster-whisper
    chunks                             Hugging Face (`timestamp: [start, end]`)
    events                             YouTube's json3 (`tStartMs`, `segs`)
    transcription                      whisper.cpp (`offsets` in milliseconds)
    results                            Amazon Transcribe, Google, Watson, Speechmatics, Deepgram, Vosk's `result`
    recognizedPhrases, phrases         Azure in batches (ticks of 100 ns), Azure's fast transcription (milliseconds)
    monologues                         Rev
    utterances                         AssemblyAI (milliseconds), Gladia (seconds)
    transcripts                        ElevenLabs, one for each channel
    fragments                          aeneas
    word_segments, words               WhisperX; OpenAI's API, whose `text` has the punctuation; Gentle; AssemblyAI
                                       without speakers; ElevenLabs
    timestamp, timestamps_segment      NeMo, also timestamps_word
    text, content, sentence            no times

Lists of single words are joined into sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from megahour.core.errors import BadRecord
from megahour.core.unicode import load_json
from megahour.corpus.transcripts import json_services
from megahour.corpus.transcripts.cues import Cue
from megahour.corpus.transcripts.json_words import (
    ENDS,
    STARTS,
    TEXTS,
    Fields,
    Reader,
    Said,
    are_words,
    cue_list,
    first_text,
    is_cue,
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
NEMO = ("segment", "word")


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
        return (_list, value) if depth == 0 or any(map(is_cue, value)) else None
    if not isinstance(value, dict):
        return None
    for name, read in _SHAPES:
        if isinstance(cues := value.get(name), list) and (cues or not is_cue(value)):  # some services give only a text
            return read, value
    if service := json_services.service(value.get("results")):
        return service, value
    if any(are_words(value.get(name)) for name in WORD_LISTS):
        return _word_list, value
    if are_words(value.get("words"), named="text"):
        return json_services.worded, value
    if _nemo_times(value):
        return _nemo, value
    for name in WRAPPERS if depth < MAX_DEPTH else ():
        if inner := find(value.get(name), depth + 1):
            return inner
    return (_text, value) if is_cue(value) else None


def _list(cues: list[Any]) -> Iterable[Said]:
    words = are_words(cues) and not is_cue(cues[0])
    return sentences_by_channel(words_of(cues)) if words else cue_list(cues)


def _cue_lists(value: Fields) -> Iterable[Said]:
    return _list(next(value[name] for name in CUE_LISTS if isinstance(value.get(name), list)))


def _text(value: Fields) -> Iterator[Said]:
    text = in_sentences(first_text(value, TEXTS))
    return cue_list([value] if len(text) == 1 else [{"text": part, "speaker": speaker_of(value)} for part in text])


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


def _aeneas(value: Fields) -> Iterator[Said]:
    for part in value["fragments"]:
        yield Said(time_of(part, STARTS), time_of(part, ENDS), " ".join(part["lines"]))


def _nemo(value: Fields) -> Iterable[Said]:
    name, items = _nemo_times(value)[0]
    said = (Said(time_of(item, STARTS), time_of(item, ENDS), item[name]) for item in items)
    return sentences(said) if name == "word" else said


def _nemo_times(value: Fields) -> list[tuple[str, list[Fields]]]:
    """Of segments, then of words: within `timestamp`, or beside the text of a manifest."""
    inner = value.get("timestamp")
    own = inner if isinstance(inner, dict) else {name: value.get(f"timestamps_{name}") for name in NEMO}
    return [(name, own[name] or []) for name in NEMO if are_words(own.get(name), named=name)]


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
    ("recognizedPhrases", json_services.azure),
    ("phrases", json_services.azure_fast),
    ("monologues", json_services.rev),
    ("utterances", json_services.utterances),
    ("transcripts", json_services.channels),
    ("fragments", _aeneas),
    ("result", _vosk),
)


def timed_cue(said: Said, rate_hz: int) -> Cue:
    """The cue with its times in samples at `rate_hz`, -1 if unknown or impossible."""
    start, end = (
        round(s * rate_hz) if 0 <= s < MAX_HOURS * 3600 else -1  # NaN gives -1
        for s in (said.start_s, said.end_s)
    )
    return Cue(start, end if end > start >= 0 else -1, said.text, said.speaker, said.channel)
