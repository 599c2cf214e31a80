"""Kaldi data directories: `wav.scp` (plain paths and `archive:offset`), `segments`, `text`, `utt2spk`, `utt2lang`.

Only lines of the wanted recordings are held. Pipes are commands, and commands in data are never run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from megahour.core.errors import BadRecord
from megahour.corpus.interchange.outside import Entry, Root, custom, duration, json_object
from megahour.corpus.interchange.record import CUSTOM

Lines = Iterator["str | BadRecord"]
_PLACE = re.compile(r"(.+):(\d{1,18})$")


def read_kaldi(
    open_lines: Callable[[str], Lines], root: Root, wanted: Callable[[str], bool], *, first: bool
) -> Iterator[Entry | BadRecord]:
    """Entries of the recordings that `wanted` names.

    Parameters
    ----------
    open_lines: the lines of a file of the directory by its name; none where the file is missing.
    first: whether to yield the lines that belong to no recording, which every part of the directory sees.
    """
    places, bad = _table(open_lines("wav.scp"), wanted, "wav.scp", first=first)
    segments, also_bad = _segments(open_lines("segments"), wanted, first=first)
    yield from [*bad, *also_bad]
    spans = segments or {name: (name, 0.0, None) for name in places}
    tables = {}
    for name in ("text", "utt2spk", "utt2lang", "utt2megahour"):
        tables[name], bad = _table(open_lines(name), spans.__contains__, name, first=first)
        yield from bad
    for utterance, (recording, start_s, length_s) in spans.items():
        try:
            if recording not in places:
                raise BadRecord("missing-audio", f"{recording} is not in wav.scp")
            own = tables["utt2megahour"].get(utterance)
            match = _PLACE.fullmatch(_plain(places[recording]))
            audio = root.archive_entry(match[1], int(match[2])) if match else root.audio(places[recording])
            yield Entry(
                id=utterance,
                audio=audio,
                recording=recording,
                text=tables["text"].get(utterance, ""),
                start_s=start_s,
                duration_s=length_s,
                speaker=tables["utt2spk"].get(utterance, ""),
                language=tables["utt2lang"].get(utterance, ""),
                record=custom({CUSTOM: json_object(own)}) if own else None,
            )
        except BadRecord as error:
            error.record = utterance
            yield error


def _plain(place: str) -> str:
    if place.rstrip().endswith("|") or place.lstrip().startswith("|"):
        raise BadRecord("command-refused", "a pipe in wav.scp; write the audio out first, commands are never run")
    return place


def _table(
    lines: Lines, wanted: Callable[[str], bool], name: str, *, first: bool
) -> tuple[dict[str, str], list[BadRecord]]:
    """id → the rest of the line, and the lines that cannot be used: ``bad-line``, ``duplicate-id``."""
    found: dict[str, str] = {}
    bad: list[BadRecord] = []
    for line in lines:
        if isinstance(line, BadRecord):
            bad += [line] * first
            continue
        key, _, rest = line.strip().partition(" ")
        key, tab, after = key.partition("\t")
        rest = f"{after} {rest}".strip() if tab else rest.strip()
        if not wanted(key):
            continue
        if key in found:
            bad.append(BadRecord("duplicate-id", f"{key} is twice in {name}", record=key))
        else:
            found[key] = rest
    return found, bad


def _segments(
    lines: Lines, wanted: Callable[[str], bool], *, first: bool
) -> tuple[dict[str, tuple[str, float, float | None]], list[BadRecord]]:
    """utterance → (recording, start_s, duration_s)."""
    found: dict[str, tuple[str, float, float | None]] = {}
    bad: list[BadRecord] = []
    for line in lines:
        if isinstance(line, BadRecord):
            bad += [line] * first
            continue
        parts = line.split()
        try:
            if not wanted(parts[1] if len(parts) > 1 else ""):
                continue
            if len(parts) not in (4, 5):
                raise BadRecord("bad-line", f"segments: {len(parts)} columns, not 4", record="".join(parts[:1]))
            utterance, recording = parts[:2]
            start_s, end_s = (_number(part) for part in parts[2:4])
            if utterance in found:
                raise BadRecord("duplicate-id", f"{utterance} is twice in segments", record=utterance)
            length_s = None if end_s < 0 else end_s - start_s  # Kaldi: -1 is the recording's end
            if length_s is not None and length_s <= 0:
                raise BadRecord("bad-time", f"segments: {start_s} to {end_s}", record=utterance)
            found[utterance] = (recording, duration(start_s, "start"), length_s)
        except BadRecord as error:
            error.record = error.record or "".join(parts[:1])
            bad.append(error)
    return found, bad


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadRecord("bad-time", f"{text[:40]!r} is not a number") from None
    return -1.0 if value == -1 else duration(value, "time")
