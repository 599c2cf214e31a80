"""Whose voice an utterance is, and which voices belong together because recordings hold several of them.

A voice is a speaker whatever the spelling of the name. Voices that are heard in one recording form a group, and so do
voices that a chain of such recordings connects: a set takes whole groups, so no recording and no speaker is in two.
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

WHO = ("speaker", "recording", "name", "channel", "source")  # the columns that say whose voice it is, and where
HOUR_US = 3.6e9


def voice_of(speaker: str, recording: int) -> str:
    """The voice that a row's `speaker` names. An unnamed one is its recording's own, as two may be two people."""
    if not speaker:
        return f"recording {recording}"
    return speaker if is_address(speaker) else one_name(speaker)


def places_of(group: dict[str, Any]) -> tuple[int, int, int]:
    """Where a row is heard: its recording, its file, and with the speaker whose recording it is.

    The channels of a file are recordings of their own, but who speaks on one is heard on the other.
    """
    recording, name = int(group["recording"]), group["name"]
    file = key_of("file", name, group["source"]) if name else recording
    return recording, file, key_of("voice", voice_of(_owner(group["speaker"], str(group["channel"])), recording))


def _owner(speaker: str, channel: str) -> str:
    """ "smith" of "smith/0", a channel, and of "smith/Speaker 1", whom nothing but a number tells from Smith."""
    owner, _, part = speaker.rpartition("/")
    part_of_owner = part == channel or (names_nobody(part) and not part.isdecimal())
    return _owner(owner, channel) if owner and part_of_owner and not is_address(speaker) else speaker


def kinds_of(table: pa.Table) -> tuple[list[dict[str, Any]], NDArray[np.int64]]:
    """The combinations of values of `WHO` that a table has, some per recording, and (rows,) which of them each is."""
    kind = np.zeros(table.num_rows, np.int64)
    for name in WHO:
        column = pc.dictionary_encode(table[name].combine_chunks(), null_encoding="encode")
        together = kind * max(1, len(column.dictionary)) + column.indices.to_numpy()
        _, first, kind = np.unique(together, return_index=True, return_inverse=True)  # small again
    return table.select(WHO).take(first).to_pylist(), kind


def voices(table: pa.Table) -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    """(rows,) voices of a table with the columns `WHO`, and (rows, 3) the places where they are heard."""
    kinds, kind = kinds_of(table)
    names = np.array([voice_of(each["speaker"], each["recording"]) for each in kinds], object)
    return names[kind], np.array([places_of(each) for each in kinds], np.int64).reshape(-1, 3)[kind]


def names_of(table: pa.Table) -> NDArray[np.object_]:
    """(rows,) the voices alone, of a table with the columns speaker and recording."""
    column = pc.dictionary_encode(table["speaker"].combine_chunks(), null_encoding="encode")
    speakers = np.array([speaker and voice_of(speaker, -1) for speaker in column.dictionary.to_pylist()], object)
    names: NDArray[np.object_] = speakers[column.indices.to_numpy()]
    unnamed = np.flatnonzero(~names.astype(np.bool_))
    names[unnamed] = [voice_of("", recording) for recording in table["recording"].take(unnamed).to_pylist()]
    return names


def times_us(table: pa.Table) -> pa.ChunkedArray:
    """(rows,) whole microseconds: sums of integers do not depend on how the utterances are sharded."""
    return pc.divide(pc.multiply(table["samples"], 1_000_000), pc.cast(table["rate_hz"], pa.int64()))


def grouped(shared: dict[int, list[str]]) -> dict[str, str]:
    """Voice → the first voice, in alphabetical order, of its group; voices that share no recording are left out."""
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
