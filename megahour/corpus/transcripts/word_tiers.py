"""Read cues of Praat's TextGrids, ELAN's EAF, CTM and STM, the formats of aligners and of those who label by hand.

TextGrid: the Praat manual, "TextGrid file formats"; its long and short text forms are the same numbers and quoted texts
with other words around them. EAF: "ELAN Annotation Format" 3.0. NIST SCTK, both with `;;` comments: CTM, ``recording
channel start duration word [confidence]``; STM, ``recording channel speaker start end [<labels>] text``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from megahour.core.errors import BadRecord
from megahour.corpus.transcripts.json_words import Said, seconds, sentences, sentences_by_channel
from megahour.corpus.transcripts.subtitle_forms import xml_of

# Kinds of tiers by name, or by the part of a name behind " - ", as the Montreal Forced Aligner has "ann - words".
SENTENCES = {
    "segments",
    "lines",
    "sentences",
    "sentence",
    "utterances",
    "utterance",
    "text",
    "transcript",
    "transcription",
    "tx",  # Toolbox
}
WORDS = {"words", "word", "ort"}
OTHERS = {
    *("phones", "phone", "phonemes", "phoneme", "mau", "kan", "record"),
    *("comment", "comments", "note", "notes", "gesture", "gestures", "translation", "translations"),
}
IGNORED = {"", "ignore_time_segment_in_scoring", "<nontrans>"}  # texts of STM
MOST_ABOVE = 16  # annotations of ELAN that hang on each other
_SEGMENT = re.compile(r"(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)(?:\s+<[^<>]*>)?(.*)")
_ALTERNATIVES = re.compile(r"\{([^{}/]*)/[^{}]*\}")  # { gonna / going to }; @ is none
# TED-LIUM's {NOISE}, its numbers of pronunciations, the(2), and NIST's empty alternative
_UNSPOKEN = re.compile(r"\{[A-Z]+\}|\(\d{1,2}\)|(?<!\S)@(?!\S)")
_ENDING = re.compile(r" (?='(?:s|re|ve|ll|d|m|t)(?!\S))")  # TED-LIUM: it 's
SILENCES = {"", "sil", "sp", "spn", "<eps>", "<sil>", "<p:>"}
_TOKEN = re.compile(r'"([^"]*(?:""[^"]*)*)"|(?:^|(?<=\s))(?:(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)|<exists>)(?=\s|$)')


class Tier(NamedTuple):
    """An interval tier: its name, its intervals with a text, times in seconds, and its speaker if that is named."""

    name: str
    intervals: list[Said]
    participant: str = ""

    @property
    def kind(self) -> str:
        """The last part of the name, in lower case."""
        return self.name.rpartition(" - ")[2].strip().lower()

    @property
    def speaker(self) -> str:
        """The participant, the first part of a name of two, or a name that is no kind of tier."""
        if self.participant:
            return self.participant
        known = self.kind in SENTENCES | WORDS | OTHERS
        return self.name.rpartition(" - ")[0].strip() if known else self.name.strip()


def textgrid_said(text: str) -> list[Said]:
    """Cues of a TextGrid, by start: of its tiers of sentences, else of words, else of all, which are speakers.

    Words are joined into sentences. Tiers of phones do not count.

    Raises BadRecord (``unreadable-transcript``) for other texts and for Praat's binary form.
    """
    return _of_tiers(_tiers(text))


def _of_tiers(every: list[Tier]) -> list[Said]:
    tiers = [tier for tier in every if tier.kind not in OTHERS]
    if chosen := [tier for tier in tiers if tier.kind in SENTENCES]:
        said = [cue._replace(speaker=tier.speaker) for tier in chosen for cue in tier.intervals]
    elif chosen := [tier for tier in tiers if tier.kind in WORDS]:
        said = [cue for tier in chosen for cue in sentences(_words(tier))]
    else:
        named = len(tiers) > 1  # a single tier may have any name
        speakers = [tier.speaker if named else tier.participant for tier in tiers]
        said = [cue._replace(speaker=who) for who, tier in zip(speakers, tiers, strict=True) for cue in tier.intervals]
    return _in_time(said)


def _words(tier: Tier) -> Iterator[Said]:
    for word in tier.intervals:
        if word.text.lower() not in SILENCES:
            yield word._replace(speaker=tier.speaker)


def _tiers(text: str) -> list[Tier]:
    """The interval tiers; those of points have no words."""
    tokens = (match[1] if match[1] is not None else match[2] or match[0] for match in _TOKEN.finditer(text))
    tiers: list[Tier] = []
    try:
        if next(tokens) != "ooTextFile" or next(tokens) != "TextGrid":
            raise ValueError("no text file of Praat's TextGrids")
        next(tokens), next(tokens), next(tokens)
        for _ in range(int(next(tokens))):
            form, name = next(tokens), next(tokens)
            next(tokens), next(tokens)
            intervals = []
            for _ in range(int(next(tokens))):
                start, second = float(next(tokens)), next(tokens)
                if form == "IntervalTier" and (said := next(tokens).replace('""', '"').strip()):
                    intervals.append(Said(start, float(second), said))
            tiers += [Tier(name.replace('""', '"'), intervals)] if form == "IntervalTier" else []
    except (StopIteration, ValueError) as error:
        detail = str(error) or "it ends before its last tier"
        raise BadRecord("unreadable-transcript", f"no TextGrid: {detail}; in Praat: Save as text file") from None
    return tiers


def elan_said(text: str) -> list[Said]:
    """Cues of an ELAN file, by start, from its tiers as `textgrid_said` takes them.

    A tier below another (words, translations, glosses) counts only if its name says that it has sentences.

    Raises BadRecord (``unreadable-transcript``, ``transcript-too-large``), see `xml_of`.
    """
    root = xml_of(text, "ANNOTATION_DOCUMENT", "ELAN")
    places = {slot.get("TIME_SLOT_ID"): slot.get("TIME_VALUE", "") for slot in root.iter("TIME_SLOT")}
    spans: dict[str, tuple[float, float]] = {}  # of the annotations with times of their own
    for each in root.iter("ALIGNABLE_ANNOTATION"):
        start, end = (places.get(each.get(f"TIME_SLOT_REF{n}"), "") for n in (1, 2))
        spans[each.get("ANNOTATION_ID", "")] = (_milliseconds(start), _milliseconds(end))
    above = {each.get("ANNOTATION_ID", ""): each.get("ANNOTATION_REF", "") for each in root.iter("REF_ANNOTATION")}
    tiers = []
    for tier in root.iterfind("TIER"):  # no deeper ones: each would repeat the annotations of those within
        kind, at, speaker = tier.get("TIER_ID", "").partition("@")  # tx@Ann, as Toolbox and many corpora name them
        known = at or kind.strip().lower() in SENTENCES | WORDS | OTHERS
        name = f"{speaker} - {kind}" if known else kind
        intervals = [
            Said(*_span_of(each.get("ANNOTATION_ID", ""), spans, above), said)
            for each in tier.iterfind("ANNOTATION/*")
            if (said := (each.findtext("ANNOTATION_VALUE") or "").strip())
        ]
        found = Tier(name, _in_time(intervals), tier.get("PARTICIPANT", "").strip())
        if intervals and (not tier.get("PARENT_REF") or found.kind in SENTENCES):
            tiers.append(found)
    return _of_tiers(tiers)


def _milliseconds(written: str) -> float:
    return int(written) / 1000 if re.fullmatch(r"\d{1,12}", written) else math.nan


def _span_of(
    annotation: str, spans: Mapping[str, tuple[float, float]], above: Mapping[str, str]
) -> tuple[float, float]:
    """Times of an annotation, or of the nearest one above it that has some."""
    for _ in range(MOST_ABOVE):
        if annotation in spans or annotation not in above:
            break
        annotation = above[annotation]
    return spans.get(annotation, (math.nan, math.nan))


def _in_time(said: Iterable[Said]) -> list[Said]:
    """Cues by start; those without one stay behind the cue before them."""
    starts, start_s = list[float](), -1.0
    for cue in (said := list(said)):
        start_s = start_s if math.isnan(cue.start_s) else cue.start_s
        starts.append(start_s)
    return [said[n] for n in sorted(range(len(said)), key=starts.__getitem__)]


def stm_said(text: str) -> list[Said]:
    """Cues of an STM file, by start. Segments to ignore in scoring are left out; of alternatives the first is taken.

    Raises BadRecord (``unreadable-transcript``) for a line of another form, and for segments of several recordings.
    """
    said: dict[str, list[Said]] = {}  # by recording
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith(";;"):
            continue
        found = _SEGMENT.fullmatch(line.strip())
        start, end = (seconds(found[at]) for at in (4, 5)) if found else (math.nan, math.nan)
        if not found or start != start or end != end:
            raise BadRecord(
                "unreadable-transcript", f"line {number}: not recording, channel, speaker, start, end, text"
            )
        cues = said.setdefault(found[1], [])
        words = _UNSPOKEN.sub(" ", _ALTERNATIVES.sub(r" \1 ", found[6]))
        spoken = _ENDING.sub("", " ".join(words.split()))
        if spoken.lower() not in IGNORED and found[3].lower() != "inter_segment_gap":
            cues.append(Said(start, end, spoken, found[3], channel=found[2]))
    _check_single(said, "segments")
    return sorted((cue for cues in said.values() for cue in cues), key=lambda cue: cue.start_s)


def _check_single(by_recording: Mapping[str, object], what: str) -> None:
    if len(by_recording) > 1:
        names = ", ".join(list(by_recording)[:3])
        detail = f"{what} of {len(by_recording)} recordings ({names} …); give a file for each"
        raise BadRecord("unreadable-transcript", detail)


def ctm_said(text: str) -> list[Said]:
    """Sentences of the words of a CTM file, by start; words of two channels are not joined. Of alternatives (``* *
    <ALT_BEGIN>`` … ``<ALT>`` … ``<ALT_END>``) the first is taken.

    Raises BadRecord (``unreadable-transcript``) for a line of another form, and for words of several recordings.
    """
    words: dict[str, list[Said]] = {}  # by recording
    is_other = False  # an alternative that is not the first
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        if not fields or fields[0].startswith(";;"):
            continue
        if fields[2:4] == ["*", "*"] and len(fields) > 4:
            is_other = fields[4].upper() == "<ALT>"
            continue
        start, lasts = (seconds(fields[at]) if len(fields) > 4 else float("nan") for at in (2, 3))
        if start != start or lasts != lasts:
            raise BadRecord("unreadable-transcript", f"line {number}: not recording, channel, start, duration, word")
        said = words.setdefault(fields[0], [])
        said += [Said(start, start + lasts, fields[4], channel=fields[1])] * (
            fields[4].lower() not in SILENCES and not is_other
        )
    _check_single(words, "words")
    return sentences_by_channel(sorted((word for own in words.values() for word in own), key=lambda word: word.start_s))
