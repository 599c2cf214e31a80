"""Whose voice an utterance is, and which voices belong together because recordings hold several of them.

A voice is a speaker whatever the spelling of the name. Voices that are heard in one recording form a group, and so do
voices that a chain of such recordings connects: a set takes whole groups, so no recording and no speaker is in two.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
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
VOICES, SPELLINGS, HEARD_AT = COUNTED = (".parquet", ".spellings.parquet", ".heard.parquet")
SPELLED = ("voice", "spelling", "us")


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


def voices(table: pa.Table) -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    """(rows,) voices of a table with the columns `WHO`, and (rows, 3) the places where they are heard."""
    rows = table.select(WHO).append_column("row", pa.array(np.arange(table.num_rows)))
    names = np.empty(table.num_rows, object)
    places = np.zeros((table.num_rows, 3), np.int64)
    for group in rows.group_by(list(WHO), use_threads=False).aggregate([("row", "list")]).to_pylist():
        names[group["row_list"]] = voice_of(group["speaker"], group["recording"])
        places[group["row_list"]] = places_of(group)
    return names, places


def times_us(table: pa.Table) -> pa.ChunkedArray:
    """(rows,) whole microseconds: sums of integers do not depend on how the utterances are sharded."""
    return pc.divide(pc.multiply(table["samples"], 1_000_000), pc.cast(table["rate_hz"], pa.int64()))


@dataclass
class Census:
    """Voices of a corpus: hours, spellings of their names, and who is heard where; shards are added one by one."""

    _time_us: Counter[str] = field(default_factory=Counter)
    _spellings: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _numbers: dict[str, int] = field(default_factory=dict)
    _heard: list[NDArray[np.int64]] = field(default_factory=list)  # (N, 2): place, number of the voice

    def add(self, table: pa.Table) -> None:
        """Usable rows of a shard: `WHO`, samples and rate_hz."""
        groups = (
            table.append_column("us", times_us(table)).group_by(list(WHO), use_threads=False).aggregate([("us", "sum")])
        )
        heard = []
        for group in groups.to_pylist():
            voice = voice_of(group["speaker"], group["recording"])
            self._time_us[voice] += group["us_sum"]
            if group["speaker"] and not is_address(voice):  # of recordings without a name there may be millions
                self._spellings[voice][group["speaker"]] += group["us_sum"]
            number = self._numbers.setdefault(voice, len(self._numbers))
            heard += [(bucket, number) for bucket in places_of(group)]
        if heard:
            self._heard.append(np.unique(np.array(heard, np.int64), axis=0))

    def to_tables(self) -> dict[str, pa.Table]:
        """All that was counted, by file, for `merge`."""
        spelled = [(voice, name, us) for voice, counts in self._spellings.items() for name, us in counts.items()]
        heard = np.concatenate(self._heard or [np.zeros((0, 2), np.int64)])
        return {
            VOICES: pa.table({"voice": list(self._numbers), "us": [self._time_us[voice] for voice in self._numbers]}),
            SPELLINGS: pa.table({name: [row[at] for row in spelled] for at, name in enumerate(SPELLED)}),
            HEARD_AT: pa.table({"place": heard[:, 0], "number": heard[:, 1]}),
        }

    def merge(self, tables: Mapping[str, pa.Table]) -> None:
        """Add what another census has counted."""
        names = tables[VOICES]["voice"].to_pylist()
        for voice, us in zip(names, tables[VOICES]["us"].to_pylist(), strict=True):
            self._time_us[voice] += us
        for voice, name, us in zip(*(tables[SPELLINGS][each].to_pylist() for each in SPELLED), strict=True):
            self._spellings[voice][name] += us
        own = np.array([self._numbers.setdefault(voice, len(self._numbers)) for voice in names], np.int64)
        place, number = tables[HEARD_AT]["place"].to_numpy(), tables[HEARD_AT]["number"].to_numpy()
        if len(place):
            self._heard.append(np.unique(np.stack([place, own[number]], axis=1), axis=0))

    @property
    def hours(self) -> dict[str, float]:
        """Hours by voice."""
        return {voice: value / HOUR_US for voice, value in self._time_us.items()}

    def spellings(self) -> dict[str, str]:
        """For each voice with several names the one of most speech: later stages compare names as they are."""
        several = {voice: counts for voice, counts in self._spellings.items() if len(counts) > 1}
        return {voice: min(counts, key=lambda name: (-counts[name], name)) for voice, counts in several.items()}

    def shared(self) -> dict[int, list[str]]:
        """Places (`places_of`) where several voices are heard, with the voices."""
        if not self._heard:
            return {}
        heard = np.unique(np.concatenate(self._heard), axis=0)
        _, first, count = np.unique(heard[:, 0], return_index=True, return_counts=True)
        names = list(self._numbers)
        return {
            int(heard[at, 0]): sorted(names[number] for number in heard[at : at + size, 1])
            for at, size in zip(first[count > 1].tolist(), count[count > 1].tolist(), strict=True)
        }


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
