"""Rows of tab-separated text, whose quotes may be quoting or plain characters.

Spreadsheets quote fields as in CSV (RFC 4180, section 2). Others, Common Voice among them, write texts as they are,
also those that begin with a quote; read as CSV, such a field would take in the rows up to the next quote.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Protocol

MAX_QUOTED = 1 << 16  # characters of a row whose quoted field has line breaks


class SeekableLines(Protocol):
    """Lines of a file; `position` is the offset of the next one."""

    position: int

    def next_line(self) -> str:
        """The next line; empty at the end."""
        ...

    def seek(self, position: int) -> None:
        """Go back to a line."""
        ...


def tsv_rows(lines: SeekableLines, columns: int) -> Iterator[list[str]]:
    """Fields of each row. A quote opens a quoted field if one before a tab or the row's end closes it.

    columns: number of columns of the header. A line with as many fields is a row and continues no quoted field.
    """
    while line := lines.next_line():
        end = lines.position
        row = line
        values = _unquoted(row)
        while values is None and len(row) < MAX_QUOTED:
            more = lines.next_line()
            if not more or more.count("\t") + 1 == columns:
                break
            row += more
            values = _unquoted(row)
        if values is None:
            lines.seek(end)
            values = line.rstrip("\r\n").split("\t")
        yield values


def _unquoted(row: str) -> list[str] | None:
    """Fields of a row by the rules of CSV; None if its quotes do not follow them."""
    if '"' not in row:
        return row.rstrip("\r\n").split("\t") if row.strip("\r\n") else []
    try:
        (values,) = csv.reader(io.StringIO(row, newline=""), delimiter="\t", strict=True)
    except (csv.Error, ValueError):
        return None
    return values
