"""Writes transcripts as text, subtitles (SRT, VTT), JSON, or CTM with a word per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from megahour.core.unicode import shown
from megahour.corpus.interchange.subtitles import stamp
from megahour.decode.nbest import as_items
from megahour.transcribe.recogniser import TimedWord
from megahour.transcribe.session import PieceTexts, Transcription

CUE_S, CUE_CHARACTERS, CUE_GAP_S = 6.0, 80, 0.6
"""Longest subtitle in seconds and in characters, and the shortest pause that ends one."""


def cues(words: Sequence[TimedWord]) -> list[list[TimedWord]]:
    """Group words into subtitles, which end at pauses or when they are full. Each channel has its own."""
    result: list[list[TimedWord]] = []
    latest: dict[int, list[TimedWord]] = {}
    for word in words:
        cue = latest.get(word.channel)
        if cue is None or _is_full(cue, word):
            result.append([word])
            latest[word.channel] = result[-1]
        else:
            cue.append(word)
    return result


def _is_full(cue: Sequence[TimedWord], word: TimedWord) -> bool:
    if sum(len(each.text) + 1 for each in cue) + len(word.text) > CUE_CHARACTERS:
        return True
    first, last = cue[0].start_s, cue[-1].end_s
    if word.start_s is None or word.end_s is None or first is None or last is None:
        return False
    return word.start_s - last >= CUE_GAP_S or word.end_s - first > CUE_S


def text(transcript: Transcription) -> str:
    """Plain text, a line per subtitle."""
    return "".join(f"{line}\n" for _, _, line in _lines(transcript))


def srt(transcript: Transcription) -> str:
    """SubRip."""
    return "".join(
        f"{number}\n{_stamp(start, ',')} --> {_stamp(end, ',')}\n{line}\n\n"
        for number, (start, end, line) in enumerate(_lines(transcript), 1)
    )


def vtt(transcript: Transcription) -> str:
    """WebVTT."""
    voice = "<v Channel {}>".format
    lines = (
        f"{_stamp(start, '.')} --> {_stamp(end, '.')}\n{line}\n\n"
        for start, end, line in _lines(transcript, voice, _escaped)
    )
    return "WEBVTT\n\n" + "".join(lines)


def as_json(transcript: Transcription) -> str:
    """One object: file, model, the `channel` if one was asked for, seconds, text, words with times and confidence, what
    was lost, and remarks on the audio (cut short, clipped …); also the tag that the model predicts, such as `language`
    with `language_probability`, the tag that it was `told`, and `nbest`: the texts of each piece, if asked for, as in
    `.nbest.jsonl` of stage `decode`. If every channel was heard by itself, words have a `channel`, and the text has a
    line for each subtitle."""
    return json.dumps(as_dict(transcript), ensure_ascii=False, indent=1) + "\n"


def as_dict(transcript: Transcription) -> dict[str, Any]:
    tag, value, probability = transcript.tag or ("", "", 0.0)
    return {
        "file": shown(transcript.name),
        "model": transcript.model,
        **_channel(transcript),
        "seconds": transcript.seconds,
        **({tag: value, f"{tag}_probability": probability} if tag else {}),
        **({"told": transcript.told} if transcript.told else {}),
        "text": text(transcript).rstrip("\n") if any(word.channel for word in transcript.words) else transcript.text,
        "words": [word_dict(word) for word in transcript.words],
        **({"nbest": [_texts_dict(piece) for piece in transcript.nbest]} if transcript.nbest else {}),
        "lost": transcript.lost,
        "remarks": transcript.remarks,
    }


def word_dict(word: TimedWord) -> dict[str, Any]:
    """Keys word, start, end (seconds), confidence and channel; unknown values are left out."""
    values = {"word": word.text, "start": word.start_s, "end": word.end_s, "confidence": word.confidence}
    return {key: value for key, value in values.items() if value is not None} | _channel(word)


def _texts_dict(piece: PieceTexts) -> dict[str, Any]:
    times = {"start": round(piece.start_s, 3), "end": round(piece.end_s, 3)}
    return {**times, **_channel(piece), "texts": as_items(piece.texts)}


def _channel(heard: Transcription | TimedWord | PieceTexts) -> dict[str, int]:
    return {"channel": heard.channel} if heard.channel else {}


def ctm(transcript: Transcription) -> str:
    """NIST's CTM: `recording channel start duration word confidence`, for sclite."""
    recording = "_".join(shown(transcript.name).rsplit("/", 1)[-1].split()) or "-"
    lines = []
    for word in sorted(transcript.words, key=lambda word: word.channel):
        if word.start_s is not None and word.end_s is not None:
            channel, lasted = word.channel or transcript.channel or 1, word.end_s - word.start_s
            lines.append(f"{recording} {channel} {word.start_s:.3f} {lasted:.3f} {word.text} {word.confidence}\n")
    return "".join(lines)


def _lines(
    transcript: Transcription,
    voice: Callable[[int], str] = "{}: ".format,
    written: Callable[[str], str] = str,
) -> list[tuple[float, float, str]]:
    """(start, end, text) of each subtitle; without times it lasts as long as the recording.

    voice: what precedes the `written` text of a channel that was heard by itself.
    """
    return [
        (
            0.0 if cue[0].start_s is None else cue[0].start_s,
            transcript.seconds if cue[-1].end_s is None else cue[-1].end_s,
            (voice(cue[0].channel) if cue[0].channel else "") + written(" ".join(word.text for word in cue)),
        )
        for cue in cues(transcript.words)
    ]


def _stamp(seconds: float, point: str) -> str:
    return stamp(round(seconds * 1000), 1000).replace(",", point)


def _escaped(line: str) -> str:
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


FORMATS: dict[str, Callable[[Transcription], str]] = {"txt": text, "srt": srt, "vtt": vtt, "json": as_json, "ctm": ctm}
"""The writer of each format, by file suffix."""
