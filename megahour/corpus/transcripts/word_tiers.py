"""Read cues of Praat's TextGrids and of CTM, the formats of aligners and of those who label by hand.

TextGrid: the Praat manual, "TextGrid file formats"; its long and short text forms are the same numbers and quoted texts
with other words around them. CTM (NIST SCTK): ``recording channel start duration word [confidence]``, `;;` comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from megahour.core.errors import BadRecord
from megahour.corpus.transcripts.json_words import Said, seconds, sentences

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
}
WORDS = {"words", "word", "ort"}
OTHERS = {"phones", "phone", "phonemes", "phoneme", "mau", "kan", "record"}
SILENCES = {"", "sil", "sp", "spn", "<eps>", "<sil>", "<p:>"}
_TOKEN = re.compile(r'"([^"]*(?:""[^"]*)*)"|(?:^|(?<=\s))(?:(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)|<exists>)(?=\s|$)')


class Tier(NamedTuple):
    """An interval tier: its name, and its intervals with a text, times in seconds."""

    name: str
    intervals: list[Said]

    @property
    def kind(self) -> str:
        """The last part of the name, in lower case."""
        return self.name.rpartition(" - ")[2].strip().lower()

    @property
    def speaker(self) -> str:
        """The first part of a name of two, or a name that is no kind of tier."""
        known = self.kind in SENTENCES | WORDS | OTHERS
        return self.name.rpartition(" - ")[0].strip() if known else self.name.strip()


def textgrid_said(text: str) -> list[Said]:
    """Cues of a TextGrid, by start: of its tiers of sentences, else of words, else of all, which are speakers.

    Words are joined into sentences. Tiers of phones do not count.

    Raises BadRecord (``unreadable-transcript``) for other texts and for Praat's binary form.
    """
    tiers = [tier for tier in _tiers(text) if tier.kind not in OTHERS]
    if chosen := [tier for tier in tiers if tier.kind in SENTENCES]:
        said = [cue._replace(speaker=tier.speaker) for tier in chosen for cue in tier.intervals]
    elif chosen := [tier for tier in tiers if tier.kind in WORDS]:
        said = [cue for tier in chosen for cue in sentences(_words(tier))]
    else:
        named = len(tiers) > 1  # a single tier may have any name
        said = [cue._replace(speaker=tier.speaker if named else "") for tier in tiers for cue in tier.intervals]
    return sorted(said, key=lambda cue: cue.start_s)


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


def ctm_said(text: str) -> list[Said]:
    """Sentences of the words of a CTM file, by start; words of two channels are not joined.

    Raises BadRecord (``unreadable-transcript``) for a line of another form, and for words of several recordings.
    """
    words: dict[str, dict[str, list[Said]]] = {}  # by recording and channel
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        if not fields or fields[0].startswith(";;"):
            continue
        start, lasts = (seconds(fields[at]) if len(fields) > 4 else float("nan") for at in (2, 3))
        if start != start or lasts != lasts:
            raise BadRecord("unreadable-transcript", f"line {number}: not recording, channel, start, duration, word")
        said = words.setdefault(fields[0], {}).setdefault(fields[1], [])
        said += [Said(start, start + lasts, fields[4])] * (fields[4].lower() not in SILENCES)
    if len(words) > 1:
        names = ", ".join(list(words)[:3])
        raise BadRecord("unreadable-transcript", f"words of {len(words)} recordings ({names} …); give a file for each")
    channels = (sorted(said, key=lambda word: word.start_s) for own in words.values() for said in own.values())
    return sorted((cue for said in channels for cue in sentences(said)), key=lambda cue: cue.start_s)
