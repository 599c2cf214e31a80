"""Filters the utterances that `select` may use, with a reason for each that it drops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from megahour.core.errors import absent
from megahour.core.schemas import UTTERANCES
from megahour.core.stage import Inputs
from megahour.core.store import Artifact
from megahour.corpus.text.language_id import canonical
from megahour.runner.beside import rows_beside
from megahour.select.params import SelectParams
from megahour.select.voices import WHO

REASONS = (
    "usable",
    "duplicate",
    "other-split",
    "other-tier",
    "low-confidence",
    "before-from",
    "after-until",
    "other-language",
)
USABLE = 0
NAMED = {"splits": "split", "tiers": "tier", "languages": "language"}  # option → column
FILTERED = ["key", *WHO, "samples", "rate_hz", "confidence", "created_s", "split", "tier", "language"]


def usable(p: SelectParams, inputs: Inputs, shard: int) -> pa.Table:
    """The rows of an utterances shard that pass all filters."""
    return only_usable(p, inputs, shard, read(p, inputs, shard))


def read(p: SelectParams, inputs: Inputs, shard: int) -> pa.Table:
    """The columns `FILTERED` of an utterances shard; no rows if all are of other times."""
    if _of_other_times(p, inputs["utterances"], shard):
        return UTTERANCES.empty_table().select(FILTERED)
    return inputs["utterances"].read_table(shard, columns=FILTERED)


def only_usable(p: SelectParams, inputs: Inputs, shard: int, table: pa.Table) -> pa.Table:
    """The rows of `read` that pass all filters."""
    return table.filter(pa.array(reasons(p, table, listed(inputs, shard, table)) == USABLE))


def _of_other_times(p: SelectParams, utterances: Artifact, shard: int) -> bool:
    """Whether the Parquet statistics show that no row of a shard is in the wanted time range.

    This saves reading shards if the metadata are partitioned by time.
    """
    if not (p.from_s or p.until_s):
        return False
    with utterances.open(shard, ".parquet") as file:
        about = pyarrow.parquet.read_metadata(file)
    column = [about.schema.column(i).path for i in range(about.num_columns)].index("created_s")
    known = [about.row_group(group).column(column).statistics for group in range(about.num_row_groups)]
    return all(
        each is not None
        and each.has_min_max
        and ((bool(p.from_s) and each.max < p.from_s) or (bool(p.until_s) and each.min > p.until_s))
        for each in known
    )


def listed(inputs: Inputs, shard: int, table: pa.Table) -> NDArray[np.bool_]:
    """(rows,) which rows of an utterances shard are listed as duplicates, see `Select.layouts`."""
    if "listed" not in inputs:
        return np.zeros(table.num_rows, np.bool_)
    keys = rows_beside(inputs["listed"], shard)["key"].combine_chunks()
    listed: NDArray[np.bool_] = pc.is_in(table["key"], value_set=keys).to_numpy()
    return listed


def reasons(p: SelectParams, table: pa.Table, twice: NDArray[np.bool_]) -> NDArray[np.int8]:
    """(rows,) indices into `REASONS`. twice: (rows,) which are duplicates."""
    split, tier = (_outside(table[name], wanted) for name, wanted in (("split", p.splits), ("tier", p.tiers)))
    confidence, created_s = table["confidence"].to_numpy(), table["created_s"].to_numpy()
    early = created_s < p.from_s if p.from_s else np.zeros(created_s.size, np.bool_)  # before 1970 it is negative
    late = created_s > p.until_s if p.until_s else np.zeros(created_s.size, np.bool_)
    language = _in_other_languages(table["language"], p.languages)
    wrong = [twice, split, tier, confidence < p.min_confidence, early, late, language]
    return np.select(wrong, range(1, len(REASONS)), default=USABLE).astype(np.int8)


def _outside(column: pa.ChunkedArray, wanted: list[str]) -> NDArray[np.bool_]:
    """(rows,) which values are not among `wanted`. An empty `wanted` accepts all."""
    return _other_than(column, wanted) if wanted else np.zeros(len(column), np.bool_)


def _other_than(column: pa.ChunkedArray, values: list[str]) -> NDArray[np.bool_]:
    other: NDArray[np.bool_] = ~pc.is_in(column, value_set=pa.array(values, pa.string())).to_numpy()
    return other


def _in_other_languages(column: pa.ChunkedArray, wanted: list[str]) -> NDArray[np.bool_]:
    """(rows,) which are in none of these languages. A language without a region accepts all its regions."""
    if not wanted:
        return np.zeros(len(column), np.bool_)
    return _other_than(column, of_languages(pc.unique(column).to_pylist(), wanted))


def of_languages(tags: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """Those of the tags that are in one of the `wanted` languages. One without a region accepts all its regions."""
    starts = tuple(f"{canonical(tag)}-" for tag in wanted)
    return [tag for tag in tags if f"{canonical(tag)}-".startswith(starts)]


def absent_names(p: SelectParams, present: Mapping[str, Collection[str]]) -> list[str]:
    """Of each option of `NAMED` that no utterance has some names, and which are there. present: option → names."""
    asked = {"splits": p.splits, "tiers": p.tiers}
    asked["languages"] = [tag for tag in p.languages if not of_languages(present.get("languages", ()), [tag])]
    of_times = ", in shards of these times" if p.from_s or p.until_s else ""  # of others none need be read
    texts = [absent(option, asked[option], present.get(option, ())) for option in NAMED]
    return [text + of_times for text in texts if text]
