"""The dimensions by which hours are counted: table columns, and values derived from them (domain, month, label)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.schemas import BY_RECOGNISER
from megahour.corpus.transcripts.speaker_names import is_address, one_name

DIMENSIONS = ("language", "domain", "licence", "label", "tier", "speaker", "month", "split", "set", "condition")
HUMAN, RECOGNISER, TEACHER, NO_LABEL = "human", "recogniser", "teacher", "none"
TRANSCRIPT = "transcript"  # the label before a teacher's; used for what `select` leaves out
# Columns that a dimension is derived from, if not from the column of its name.
_FROM = {"domain": ("source",), "month": ("created_s",), "label": ("text",)}
COLUMNS = sorted({*DIMENSIONS, "source", "created_s", "text", "transcript", "key", "samples", "rate_hz"})
Sums = dict[str, list[tuple[str, int, float]]]  # dimension → (name, records, seconds), by name
Names = list[str]


def with_names(table: pa.Table) -> pa.Table:
    """Add the columns domain, month and label, each if the columns it is derived from are present."""
    for dimension, columns in _FROM.items():
        if set(columns) <= set(table.column_names):
            table = table.append_column(dimension, pa.array(_NAMED[dimension](table), pa.string()))
    return table


def named(table: pa.Table, taught: Collection[str] = ()) -> dict[str, Names]:
    """The name of each row in each dimension that the table's columns allow; "" is unknown.

    taught: sets labelled by a teacher.
    """
    found = {}
    for dimension in DIMENSIONS:
        if set(_FROM.get(dimension, (dimension,))) <= set(table.column_names):
            found[dimension] = _NAMED.get(dimension, _own(dimension))(table)
    if "label" in found:
        found[TRANSCRIPT] = found["label"]
        sets = found.get("set", [""] * len(table))
        found["label"] = [TEACHER if name in taught else own for name, own in zip(sets, found["label"], strict=True)]
    return found


def sums(names: dict[str, Names], seconds: NDArray[np.float64]) -> Sums:
    """Records and seconds (rows,) of each name in each dimension."""
    found = {}
    for dimension, values in names.items():
        coded = pa.array(values, pa.string()).dictionary_encode()
        codes, many = coded.indices.to_numpy(), len(coded.dictionary)
        records, total = np.bincount(codes, minlength=many), np.bincount(codes, seconds, minlength=many)
        rows = zip(coded.dictionary.to_pylist(), records.tolist(), total.tolist(), strict=True)
        found[dimension] = sorted(rows)
    return found


def domain_of(source: str) -> str:
    """The host of a URL, or the first folder of a path; "" for a bare name."""
    if "://" in source:
        try:
            return (urlsplit(source).hostname or "").removeprefix("www.")
        except ValueError:  # such as an unclosed bracket in the host
            return ""
    folder, slash, _ = source.lstrip("./").partition("/")
    return folder if slash else ""


def month_of(created_s: Iterable[int]) -> Iterator[str]:
    """ "2026-11", in UTC; "" of 0, which is unknown."""
    times = np.array(list(created_s), np.int64)
    months = times.astype("datetime64[s]").astype("datetime64[M]").astype(str).tolist()
    yield from (month if at else "" for month, at in zip(months, times.tolist(), strict=True))


def _own(dimension: str) -> Callable[[pa.Table], Names]:
    return lambda table: [value or "" for value in table[dimension].to_pylist()]


def _each(column: str, name: Callable[[str], str]) -> Callable[[pa.Table], Names]:
    """A function that maps a column's values by `name`, called once per distinct value."""

    def found(table: pa.Table) -> Names:
        values = [value or "" for value in table[column].to_pylist()]
        names = {value: name(value) for value in set(values)}
        return [names[value] for value in values]

    return found


def _labels(table: pa.Table) -> Names:
    texts = table["text"].to_pylist()
    transcripts = table["transcript"].to_pylist() if "transcript" in table.column_names else [0] * len(texts)
    return [
        NO_LABEL if not text else RECOGNISER if number == BY_RECOGNISER else HUMAN
        for text, number in zip(texts, transcripts, strict=True)
    ]


_NAMED: dict[str, Callable[[pa.Table], Names]] = {
    "domain": _each("source", domain_of),
    "speaker": _each("speaker", lambda name: name if is_address(name) else one_name(name)),  # `select` normalises them
    "month": lambda table: list(month_of(at or 0 for at in table["created_s"].to_pylist())),
    "label": _labels,
}
