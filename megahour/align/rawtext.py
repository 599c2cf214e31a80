"""The transcript's own spelling of neighbouring aligned words, and where each word is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

Places = tuple[str, list[int], list[int]]  # raw text; each word's first character and the one after its last


def raw_text(words: Sequence[tuple[int, int]], cues: Mapping[int, Mapping[str, Any]]) -> Places:
    """Of `words` (cue, word within the cue), cue after cue; cues are parted by a space.

    A cue that is taken from its first word on, or to its last, keeps the marks around it. Words read out of one
    token ("$5") have the same place. Raises IndexError for a word that its cue does not have.
    """
    text, starts, ends = "", [], []
    for cue, group in groupby(words, key=lambda word: word[0]):
        places = [word for _, word in group]
        raw, offsets = cues[cue]["raw"], cues[cue]["offsets"]
        begin = offsets[places[0]] if places[0] else 0
        later = [offset for offset in offsets[places[-1] + 1 :] if offset > offsets[places[-1]]]
        stop = later[0] if later else len(raw)
        begin = min(begin + len(raw[begin:stop]) - len(raw[begin:stop].lstrip()), offsets[places[0]])
        part = raw[begin:stop].rstrip()
        shift = len(text) + bool(text) - begin
        starts += [offsets[place] + shift for place in places]
        ends += [min(cues[cue]["ends"][place], begin + len(part)) + shift for place in places]
        text = f"{text} {part}" if text else part
    return text, starts, ends
