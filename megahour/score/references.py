"""Reads the reference of each test utterance: its text, or the true words in its time span if the truth is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from megahour.core.errors import StageError
from megahour.core.store import Artifact
from megahour.corpus.interchange.record import recording_id
from megahour.features.sets import check_sets

Int64 = npt.NDArray[np.int64]


class Reference(NamedTuple):
    """One utterance that a system should have recognised.

    recording: its recording's name and channel, as in CTM files, with its span there; "" if only features are known.
    """

    key: int
    text: str
    condition: str
    speaker: str
    recording: str = ""
    start_s: float = 0.0
    end_s: float = 0.0


OWN = ("key", "text", "condition", "speaker")
PLACE = ("name", "recording", "channel", "start_samples", "end_samples", "rate_hz")
"""Columns of features, and those that a selection also has."""


def read_references(artifact: Artifact, suffix: str, sets: Sequence[str]) -> list[Reference]:
    """References of the shards tagged with one of `sets`, in order. Raises ConfigError for a set without shards, and
    StageError when there are no references."""
    check_sets([artifact], sets, where="score")
    references: list[Reference] = []
    columns = [*OWN, *(PLACE if suffix == ".parquet" else ())]
    for receipt in artifact.each_receipt():
        if receipt.tags.get("set") in sets:
            table = artifact.read_table(receipt.shard, suffix, columns=columns)
            references += [_placed(row) for row in table.to_pylist()]
    if not references:
        raise StageError(f"no utterances in sets {list(sets)}", where=artifact.url, remedy="set `sets`")
    return references


def _placed(row: Mapping[str, Any]) -> Reference:
    own = Reference(*(row[name] for name in OWN))
    if not row.get("rate_hz"):
        return own
    start_s, end_s = (round(row[f"{end}_samples"] / row["rate_hz"], 3) for end in ("start", "end"))
    return own._replace(recording=recording_id(row), start_s=start_s, end_s=end_s)


def true_references(
    references: list[Reference], raw: Artifact, recordings: Artifact, utterances: Artifact, rate_hz: int = 0
) -> list[Reference]:
    """The references with their text replaced by the true words whose middle lies in the utterance's span.

    `rate_hz`: rate of the truth's samples; 0 if it is that of the recordings. Only test recordings are held in memory.

    Raises
    ------
    StageError: an utterance or the truth of a recording is missing, or the truth lacks the time of a word.
    """
    spans = _spans(utterances, {reference.key for reference in references})
    names = _names(recordings, {recording for recording, _, _ in spans.values()})
    truth = _truth(raw, {name for name, _ in names.values()})
    result = []
    for reference in references:
        if reference.key not in spans:
            raise StageError(f"utterance {reference.key} is not in the utterances", where=utterances.url)
        recording, start, end = spans[reference.key]
        name, own_rate_hz = names.get(recording, ("", 1))
        if name not in truth:
            raise StageError(f"no truth for recording {name or recording}", where=raw.url, remedy="leave `raw` out")
        words, middles = truth[name]
        # doubled, so that they stay integers: the middle of [a, b) is (a + b) / 2
        scale = (own_rate_hz if rate_hz == 0 else rate_hz, own_rate_hz)
        inside = (middles * scale[1] >= 2 * start * scale[0]) & (middles * scale[1] < 2 * end * scale[0])
        result.append(reference._replace(text=" ".join(words[inside])))
    return result


def _spans(utterances: Artifact, keys: Collection[int]) -> dict[int, tuple[int, int, int]]:
    columns = ["key", "recording", "start_samples", "end_samples"]
    return {row["key"]: tuple(row[name] for name in columns[1:]) for row in _rows(utterances, columns, "key", keys)}


def _names(recordings: Artifact, keys: Collection[int]) -> dict[int, tuple[str, int]]:
    rows = _rows(recordings, ["key", "name", "rate_hz"], "key", keys)
    return {row["key"]: (row["name"], row["rate_hz"]) for row in rows}


def _truth(raw: Artifact, names: Collection[str]) -> dict[str, tuple[npt.NDArray[np.object_], Int64]]:
    """By recording: words in order of time (N,) and twice their middles (N,)."""
    columns = ["name", "text", "start_samples", "end_samples"]
    sentences: dict[str, list[tuple[int, str]]] = {}
    for row in _rows(raw, columns, "name", names, suffix=".truth.parquet"):
        known = row["start_samples"] >= 0 and row["end_samples"] >= 0  # composed clips of several words have -1
        middle = row["start_samples"] + row["end_samples"] if known else -1
        sentences.setdefault(row["name"], []).append((middle, row["text"]))
    truth = {}
    for name, entries in sentences.items():
        if min(middle for middle, _ in entries) < 0:
            raise StageError(
                f"the truth of recording {name} does not say when each word is spoken",
                where=raw.url,
                remedy="leave `raw`, `recordings` and `utterances` out: the transcripts are then the references",
            )
        entries.sort(key=lambda entry: entry[0])
        words = np.array([text for _, text in entries], dtype=object)
        truth[name] = (words, np.array([middle for middle, _ in entries], np.int64))
    return truth


def _rows(
    artifact: Artifact, columns: list[str], by: str, wanted: Collection[Any], suffix: str = ".parquet"
) -> list[Mapping[str, Any]]:
    """Rows with a wanted value in column `by`, shard by shard."""
    values = sorted(wanted)
    rows: list[Mapping[str, Any]] = []
    for receipt in artifact.each_receipt():
        if suffix in receipt.files:
            table = artifact.read_table(receipt.shard, suffix, columns=columns)
            rows += table.filter(pc.is_in(table[by], pa.array(values, table.schema.field(by).type))).to_pylist()
    return rows
