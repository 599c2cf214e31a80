"""Identifies the voice of each utterance, and groups voices that share recordings.

A voice is a speaker, however the name is spelled. Voices in the same recording form a group, and so do voices
connected by a chain of such recordings. Sets take whole groups, so no recording and no speaker is in two sets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megahour.core.records import key_of
from megahour.corpus.text.speaker_labels import names_nobody
from megahour.corpus.transcripts.speaker_names import is_address, one_name

WHO = ("speaker", "recording", "name", "channel", "source")  # the columns that identify voice and place
HOUR_US = 3.6e9


def voice_of(speaker: str, recording: int) -> str:
    """The voice of a row. An unnamed speaker is a voice of its own in each recording."""
    if not speaker:
        return f"recording {recording}"
    return speaker if is_address(speaker) else one_name(speaker)


def places_of(group: dict[str, Any]) -> tuple[int, int, int]:
    """The places of a row, as hashes: its recording, its file, and the owner of the recording.

    The channels of a file are separate recordings, but a speaker on one may be audible on another.
    """
    recording, name = int(group["recording"]), group["name"]
    file = key_of("file", name, group["source"]) if name else recording
    return recording, file, key_of("voice", voice_of(_owner(group["speaker"], str(group["channel"])), recording))


def _owner(speaker: str, channel: str) -> str:
    """ "smith" for "smith/0" (a channel) and for "smith/Speaker 1" (a numbered, unnamed speaker)."""
    owner, _, part = speaker.rpartition("/")
    part_of_owner = part == channel or (names_nobody(part) and not part.isdecimal())
    return _owner(owner, channel) if owner and part_of_owner and not is_address(speaker) else speaker


def kinds_of(table: pa.Table) -> tuple[list[dict[str, Any]], NDArray[np.int64]]:
    """The distinct combinations of the columns `WHO`, and (rows,) the index of each row's combination."""
    kind = np.zeros(table.num_rows, np.int64)
    for name in WHO:
        column = pc.dictionary_encode(table[name].combine_chunks(), null_encoding="encode")
        together = kind * max(1, len(column.dictionary)) + column.indices.to_numpy()
        _, first, kind = np.unique(together, return_index=True, return_inverse=True)  # renumbered to stay small
    return table.select(WHO).take(first).to_pylist(), kind


def voices(table: pa.Table) -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    """(rows,) voices of a table with the columns `WHO`, and (rows, 3) the places where they are heard."""
    kinds, kind = kinds_of(table)
    names = np.array([voice_of(each["speaker"], each["recording"]) for each in kinds], object)
    return names[kind], np.array([places_of(each) for each in kinds], np.int64).reshape(-1, 3)[kind]


def names_of(table: pa.Table) -> NDArray[np.object_]:
    """(rows,) the voices of a table with the columns speaker and recording."""
    column = pc.dictionary_encode(table["speaker"].combine_chunks(), null_encoding="encode")
    speakers = np.array([speaker and voice_of(speaker, -1) for speaker in column.dictionary.to_pylist()], object)
    names: NDArray[np.object_] = speakers[column.indices.to_numpy()]
    unnamed = np.flatnonzero(~names.astype(np.bool_))
    names[unnamed] = [voice_of("", recording) for recording in table["recording"].take(unnamed).to_pylist()]
    return names


def times_us(table: pa.Table) -> pa.ChunkedArray:
    """(rows,) durations in whole microseconds, since integer sums do not depend on the sharding."""
    return pc.divide(pc.multiply(table["samples"], 1_000_000), pc.cast(table["rate_hz"], pa.int64()))


def grouped(shared: dict[int, list[str]]) -> dict[str, str]:
    """Voice → the alphabetically first voice of its group. Voices that share no recording are absent."""
    leader: dict[str, str] = {}

    def find(voice: str) -> str:
        while (above := leader.setdefault(voice, voice)) != voice:
            leader[voice] = leader[above]
            voice = above
        return voice

    for together in shared.values():
        ends = sorted({find(voice) for voice in together})
        leader.update(dict.fromkeys(ends, ends[0]))
    return {voice: find(voice) for voice in list(leader)}
