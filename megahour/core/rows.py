"""Checks rows from outside against a table's schema, because one bad row would fail the whole table's write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from megahour.core.errors import BadRecord


def check_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Raise BadRecord ``unwritable-record`` for a value that the table cannot store, such as a number beyond its type.

    Without this check, writing the shard's table would fail, end the stage and not name the record.

    >>> check_rows([{"n": 1 << 40}], pa.schema([("n", pa.int32())]))
    Traceback (most recent call last):
    megahour.core.errors.BadRecord: unwritable-record: n: Value 1099511627776 too large to fit in C integer type
    """
    for field in schema:
        try:
            pa.array([row.get(field.name) for row in rows], field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise BadRecord("unwritable-record", f"{field.name}: {str(error)[:200]}") from error
