"""Find the speaker of each cue from its markup and labels, and split cues that several speakers share."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from megahour.corpus.text.markup import spoken_text, view
from megahour.corpus.text.speaker_labels import leading_name, named_labels
from megahour.corpus.transcripts.cues import Cue

_CHEVRONS = re.compile(r"(?<=\S)\s(?=>>+\s)")  # change to an unnamed speaker


def with_names(cues: list[Cue]) -> list[Cue]:
    """Move mixed-case names ("Ann: hello") from the start of lines to `speaker`, in files that use them as labels."""
    names = named_labels(cue.raw for cue in cues)
    if not names:
        return cues
    named = []
    for cue in cues:
        parts: list[tuple[str, str]] = []
        for line in cue.raw.splitlines(keepends=True):
            name, start = leading_name(line, names)
            if name or not parts:
                parts.append((name or cue.speaker, line[start:]))
            else:
                parts[-1] = (parts[-1][0], parts[-1][1] + line)
        named.extend(_turns(cue, [(name, text.strip()) for name, text in parts]))
    return named


def by_speaker(cue: Cue) -> list[Cue]:
    """Set the speaker of `cue`, or split it into one cue per turn if it names several; inner times are unknown."""
    shown = view(cue.raw)
    names = [name for name, _ in shown.labels]
    if not names:
        return [cue]
    begins = {span.end: span.start for span in shown.hidden if span.kind == "speaker"}
    edges = [0, *(begins[end] for _, end in shown.labels), len(cue.raw)]
    if len(set(names)) == 1 and not spoken_text(cue.raw[: edges[1]]) and not _CHEVRONS.search(cue.raw):
        return [replace(cue, speaker=names[0])]
    pieces = (_CHEVRONS.split(cue.raw[start:end]) for start, end in pairwise(edges))
    named = zip([cue.speaker, *names], pieces, strict=True)
    return _turns(cue, [(name if n == 0 else "", raw) for name, own in named for n, raw in enumerate(own)])


def _turns(cue: Cue, parts: list[tuple[str, str]]) -> list[Cue]:
    """Make cues of the parts that contain speech. If there are several, only the first keeps its start time."""
    said = [(name, raw) for name, raw in parts if spoken_text(raw)]
    if len(said) == 1 and said[0][1].strip() == cue.raw.strip():
        return [replace(cue, speaker=said[0][0])]
    if len(said) == 1:
        return [replace(cue, raw=said[0][1], speaker=said[0][0])]
    return [
        replace(cue, raw=raw, speaker=name, start_samples=cue.start_samples if position == 0 else -1, end_samples=-1)
        for position, (name, raw) in enumerate(said)
    ]
