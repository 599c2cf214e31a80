"""Rows that come from outside, checked against a table's schema before they are taken: a table is written whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from megahour.core.errors import BadRecord


def check_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Raise BadRecord ``unwritable-record`` for what the table could not hold, such as a number beyond its type.

    Found when the shard's table is written, it would end the stage, and no one could say which record it was.

    >>> check_rows([{"n": 1 << 40}], pa.schema([("n", pa.int32())]))
    Traceback (most recent call last):
    megahour.core.errors.BadRecord: unwritable-record: n: Value 1099511627776 too large to fit in C integer type
    """
    for field in schema:
        try:
            pa.array([row.get(field.name) for row in rows], field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise BadRecord("unwritable-record", f"{field.name}: {str(error)[:200]}") from error
