"""Takes a census of the voices of a corpus: hours, spellings of names, and places that several voices share.

Each shard is counted separately (`counted`). An exchange then brings all counts of a voice, and all those of a place,
into one partition. It adds them up (`settled`), and outputs one row per voice and the places that several voices share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from megahour.core.records import key_of
from megahour.core.stage import Inputs
from megahour.corpus.transcripts.speaker_names import is_address
from megahour.runner.beside import by_place
from megahour.select.filters import NAMED, only_usable, read
from megahour.select.params import SelectParams
from megahour.select.voices import HOUR_US, kinds_of, places_of, times_us, voice_of

NOWHERE = -1  # `place` of rows that count time
NAMES_AT = {option: -2 - at for at, option in enumerate(NAMED)}  # … and of rows with a split, tier or language
COUNTED = pa.schema(
    [
        pa.field("place", pa.int64()),  # where the voice is heard (`voices.places_of`), or one of the above
        pa.field("voice", pa.string()),  # or the split, tier or language
        pa.field("spelling", pa.string()),  # of its name; "" if it has none
        pa.field("us", pa.int64()),
    ]
)
HOURS, SPELLINGS, SHARED, NAMES = SETTLED = (".parquet", ".spellings.parquet", ".shared.parquet", ".names.parquet")


@dataclass
class Census:
    """The hours of each voice, the preferred spelling of voices with several, and the voices at shared places.

    The preferred spelling is the one with the most speech; later stages compare names literally. A place is one of
    `voices.places_of`, and is listed if several voices are heard there. names: the splits, tiers and languages of all
    utterances that were read, for each of these options that is in use.
    """

    hours: dict[str, float] = field(default_factory=dict)
    spellings: dict[str, str] = field(default_factory=dict)
    shared: dict[int, list[str]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def add(self, tables: dict[str, pa.Table]) -> None:
        """Add the tables of one partition, from `settled`."""
        hours = tables[HOURS]["us"].to_numpy() / HOUR_US
        self.hours.update(zip(tables[HOURS]["voice"].to_pylist(), hours.tolist(), strict=True))
        self.spellings.update(
            zip(*(tables[SPELLINGS][name].to_pylist() for name in ("voice", "spelling")), strict=True)
        )
        self.shared.update(zip(*(tables[SHARED][name].to_pylist() for name in ("place", "voices")), strict=True))
        for option, place in NAMES_AT.items():
            own = tables[NAMES].filter(pc.equal(tables[NAMES]["place"], place))
            self.names.setdefault(option, []).extend(own["voice"].to_pylist())


def census(p: SelectParams, inputs: Inputs) -> Census:
    """The census of the usable utterances, from the artifact of `CountVoices` if given, else counted here."""
    found = Census()
    if (made := inputs.get("counted")) is None:
        found.add(settled(counted(p, inputs, range(inputs["utterances"].manifest.shards))))
        return found
    for part in range(made.manifest.shards):
        found.add({suffix: made.read_table(part, suffix) for suffix in SETTLED})
    return found


def counted(p: SelectParams, inputs: Inputs, shards: Iterable[int]) -> pa.Table:
    """Count the usable utterances of these shards: one row of `COUNTED` per spelling of a voice and per place."""
    parts = []
    for shard in shards:
        table = read(p, inputs, shard)
        parts += [_counted(only_usable(p, inputs, shard, table)), *_names(p, table)]
    together = pa.concat_tables(parts).group_by(["place", "voice", "spelling"], use_threads=False)
    return together.aggregate([("us", "sum")]).rename_columns(COUNTED.names).cast(COUNTED)


def _counted(table: pa.Table) -> pa.Table:
    kinds, kind = kinds_of(table)
    us = np.zeros(len(kinds), np.int64)
    np.add.at(us, kind, times_us(table).to_numpy())
    names = [voice_of(each["speaker"], each["recording"]) for each in kinds]
    # Addresses do not count as names: there may be millions of recordings without a name.
    spelled = [each["speaker"] if each["speaker"] and not is_address(each["speaker"]) else "" for each in kinds]
    places = np.array([places_of(each) for each in kinds], np.int64).reshape(-1, 3)
    count = len(kinds)
    columns = [
        np.concatenate([np.full(count, NOWHERE), *places.T]),
        names * 4,
        spelled + [""] * 3 * count,
        np.concatenate([us, np.zeros(3 * count, np.int64)]),
    ]
    return pa.table([pa.array(values, f.type) for values, f in zip(columns, COUNTED, strict=True)], schema=COUNTED)


def _names(p: SelectParams, table: pa.Table) -> Iterator[pa.Table]:
    """A row of `COUNTED` for each split, tier and language, if their option is in use."""
    for option, column in NAMED.items():
        if getattr(p, option):
            names = pc.unique(table[column].combine_chunks())
            yield pa.table(
                [[NAMES_AT[option]] * len(names), names, [""] * len(names), [0] * len(names)], schema=COUNTED
            )


def to_partitions(table: pa.Table, count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, rows) of `COUNTED`, by place if the row has one, else by voice."""
    voices = pc.dictionary_encode(table["voice"].combine_chunks())
    of_voice = np.array([key_of("count", voice) for voice in voices.dictionary.to_pylist()], np.int64)
    place = table["place"].to_numpy()
    keys = np.where(place == NOWHERE, of_voice[voices.indices.to_numpy()], place) if len(of_voice) else place
    yield from by_place(table, keys % count)


def settled(table: pa.Table) -> dict[str, pa.Table]:
    """Add up all rows of a partition's voices and places: the tables for `Census.add`, by file suffix."""
    time = table.filter(pc.equal(table["place"], NOWHERE))
    hours = time.group_by("voice", use_threads=False).aggregate([("us", "sum")]).rename_columns(["voice", "us"])
    names = table.filter(pc.less(table["place"], NOWHERE)).group_by(["place", "voice"], use_threads=False).aggregate([])
    by_name = names.sort_by([("place", "ascending"), ("voice", "ascending")])
    return {HOURS: hours.sort_by("voice"), SPELLINGS: _spellings(time), SHARED: _shared(table), NAMES: by_name}


def _spellings(time: pa.Table) -> pa.Table:
    """The name with the most speech, for each voice with several. Ties go to the first in alphabetical order."""
    named = time.filter(pc.not_equal(time["spelling"], "")).group_by(["voice", "spelling"], use_threads=False)
    names = named.aggregate([("us", "sum")])
    count = names.group_by("voice", use_threads=False).aggregate([("spelling", "count")])
    several = count.filter(pc.greater(count["spelling_count"], 1))["voice"]
    own = names.filter(pc.is_in(names["voice"], value_set=several.combine_chunks()))
    best = own.sort_by([("voice", "ascending"), ("us_sum", "descending"), ("spelling", "ascending")])
    chosen: dict[str, str] = {}
    for voice, spelling in zip(best["voice"].to_pylist(), best["spelling"].to_pylist(), strict=True):
        chosen.setdefault(voice, spelling)
    return pa.table({"voice": list(chosen), "spelling": list(chosen.values())}, _SPELLED)


def _shared(table: pa.Table) -> pa.Table:
    heard = table.filter(pc.greater(table["place"], NOWHERE)).group_by(["place", "voice"], use_threads=False)
    pairs = heard.aggregate([])
    count = pairs.group_by("place", use_threads=False).aggregate([("voice", "count")])
    several = count.filter(pc.greater(count["voice_count"], 1))["place"]
    own = pairs.filter(pc.is_in(pairs["place"], value_set=several.combine_chunks()))
    together: dict[int, list[str]] = {}
    for place, voice in zip(own["place"].to_pylist(), own["voice"].to_pylist(), strict=True):
        together.setdefault(place, []).append(voice)
    return pa.table(
        {"place": sorted(together), "voices": [sorted(together[place]) for place in sorted(together)]}, _TOGETHER
    )


_SPELLED = pa.schema([("voice", pa.string()), ("spelling", pa.string())])
_TOGETHER = pa.schema([("place", pa.int64()), ("voices", pa.list_(pa.string()))])
