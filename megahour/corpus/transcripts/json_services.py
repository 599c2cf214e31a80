"""Read the JSON answers of speech services: their texts, times, speakers and channels.

Services that number their channels may give all texts of one before those of the next: these are put in order of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from megahour.corpus.transcripts.json_words import (
    ENDS,
    STARTS,
    TEXTS,
    Fields,
    Reader,
    Said,
    channel_of,
    cue_list,
    first_text,
    in_time,
    seconds,
    sentences,
    sentences_by_channel,
    speaker_of,
    time_of,
    with_marks,
    word_of,
)
from megahour.corpus.transcripts.sentences import in_sentences

HESITATION = "%HESITATION"  # Watson's "uh"


def amazon(value: Fields) -> Iterable[Said]:
    results = value["results"]
    if segments := results.get("audio_segments"):
        return cue_list(segments)
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


def deepgram(value: Fields) -> Iterator[Said]:
    results = value["results"]
    if utterances := results.get("utterances"):
        return cue_list(utterances)
    channels = [list(_deepgram_channel(channel["alternatives"][0])) for channel in results["channels"]]
    if len(channels) <= 1:
        return iter(channels[0])
    numbered = [cue._replace(channel=str(number)) for number, cues in enumerate(channels) for cue in cues]
    return iter(in_time(numbered))


def _deepgram_channel(best: Fields) -> Iterator[Said]:
    if paragraphs := (best.get("paragraphs") or {}).get("paragraphs"):
        return cue_list([{**each, "speaker": speaker_of(part)} for part in paragraphs for each in part["sentences"]])
    if best.get("words"):
        return sentences(map(word_of, best["words"]))
    return cue_list(in_sentences(first_text(best, ("transcript",))))


def google(value: Fields) -> Iterator[Said]:
    """Version 2 has offsets, and none for a first word at 0."""
    for result in value["results"]:
        best = (result.get("alternatives") or [{}])[0]
        words = best.get("words") or [{}]
        first = {"startOffset": 0, **words[0]} if "endOffset" in words[0] else words[0]
        if best.get("transcript"):
            start, end = time_of(first, (*STARTS, "startOffset")), time_of(words[-1], (*ENDS, "endOffset"))
            yield Said(start, end, best["transcript"], channel=channel_of(result))


def watson(value: Fields) -> Iterator[Said]:
    """Speakers are named beside the results, by the starts of words; one result may have several."""
    who = {label["from"]: str(label["speaker"]) for label in value.get("speaker_labels") or ()}
    for result in value["results"]:
        best = (result.get("alternatives") or [{}])[0]
        words = [Said(start, end, word, who.get(start, "")) for word, start, end in best.get("timestamps") or ()]
        text = " ".join(str(best.get("transcript") or "").replace(HESITATION, " ").split())
        if who and words:
            yield from sentences(word for word in words if word.text != HESITATION)
        elif text:
            start, end = (words[0].start_s, words[-1].end_s) if words else (seconds(None), seconds(None))
            yield Said(start, end, text)


def speechmatics(value: Fields) -> list[Said]:
    def said(item: Fields) -> Said:
        best, joined = item["alternatives"][0], item.get("attaches_to") in ("previous", "both")
        who = speaker_of(best).replace("UU", "")  # unknown
        return Said(time_of(item, STARTS), time_of(item, ENDS), best["content"], who, joined, channel_of(item))

    return sentences_by_channel(map(said, value["results"]))


def azure(value: Fields) -> list[Said]:
    """Batch transcription. Phrases without words have another status."""

    def said(phrase: Fields) -> Said:
        start = seconds(phrase.get("offsetInTicks")) / 1e7
        end = start + seconds(phrase.get("durationInTicks")) / 1e7
        return Said(start, end, phrase["nBest"][0]["display"], speaker_of(phrase), channel=channel_of(phrase))

    phrases = value["recognizedPhrases"]
    return in_time(said(phrase) for phrase in phrases if phrase.get("recognitionStatus", "Success") == "Success")


def azure_fast(value: Fields) -> list[Said]:
    """Fast transcription; its first versions had `offset` and `duration`, in milliseconds, too."""

    def said(phrase: Fields) -> Said:
        start = time_of(phrase, ("offsetMilliseconds", "offset")) / 1000
        end = start + time_of(phrase, ("durationMilliseconds", "duration")) / 1000
        return Said(start, end, phrase["text"], speaker_of(phrase), channel=channel_of(phrase))

    return in_time(map(said, value["phrases"]))


def rev(value: Fields) -> Iterator[Said]:
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


def utterances(value: Fields) -> list[Said]:
    """AssemblyAI in milliseconds, Gladia in seconds."""
    said = value["utterances"]
    unit_s = _unit_s([*said, *(word for each in said for word in each.get("words") or ())])
    return in_time(_timed(each, unit_s) for each in said)


def worded(value: Fields) -> list[Said]:
    """AssemblyAI without speakers, in milliseconds; ElevenLabs in seconds, its spaces among the words."""
    items = value["words"]
    unit_s, spaced = _unit_s(items), any(item.get("type") == "spacing" for item in items)
    words, joined = list[Said](), False
    for item in items:
        if item.get("type") != "spacing":
            words.append(_timed(item, unit_s)._replace(joined=joined))
        joined = spaced and item.get("type") != "spacing"
    return sentences_by_channel(with_marks(words, first_text(value, TEXTS)))


def channels(value: Fields) -> list[Said]:
    """ElevenLabs' answer for each channel."""
    each = [(part.get("channel_index", number), worded(part)) for number, part in enumerate(value["transcripts"])]
    return in_time(said._replace(channel=str(channel)) for channel, own in each for said in own)


def _timed(item: Fields, unit_s: float) -> Said:
    start, end = (seconds(item.get(name)) * unit_s for name in ("start", "end"))
    return Said(start, end, item["text"], speaker_of(item), channel=channel_of(item))


def _unit_s(items: Iterable[Fields]) -> float:
    """Times that are all whole numbers are milliseconds, others seconds."""
    times = [item[name] for item in items for name in ("start", "end") if item.get(name) is not None]
    return 1e-3 if all(isinstance(time, int) for time in times) else 1.0


def service(results: Any) -> Reader | None:
    """The reader for `results`, a key that several services share; None for other values."""
    if isinstance(results, list):
        said = [each for each in results if isinstance(each, dict) and "alternatives" in each]
        if not said:
            return None
        return speechmatics if "type" in said[0] else watson if "final" in said[0] else google
    if isinstance(results, dict) and ("items" in results or "audio_segments" in results):
        return amazon
    return deepgram if isinstance(results, dict) and ("channels" in results or "utterances" in results) else None
