"""Text that others cannot hold: lone halves of UTF-16 pairs, from JSON's escapes and names of files, and formulas.

Text gets U+FFFD for halves; names keep them apart, as two files may differ in nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

REPLACEMENT = "\ufffd"
_HALF = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the full-width ones are taken for these
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def mended(text: str) -> str:
    r"""Halves that belong together joined, U+FFFD for each that stays alone.

    >>> mended("a\ud800b")
    'a�b'
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if _HALF.search(text) else text


def shown(name: str) -> str:
    r"""A file's name as text: ``\xff`` for a byte that is no UTF-8, ``\ud800`` for half a character."""
    return _HALF.sub(lambda half: _escaped(ord(half[0])), name)


def printable(text: str) -> str:
    r"""Text for a terminal: ``\x1b`` for a control character, which a file's name may hide; lines and tabs stay.

    >>> printable("talk\x1b[2J.wav\n")
    'talk\\x1b[2J.wav\n'
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _escaped(code: int) -> str:
    # Python's names of files have U+DC00 + byte for a byte that is no UTF-8 (PEP 383).
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def tsv_line(cells: Iterable[object]) -> str:
    r"""A line of tab-separated text. A field that a spreadsheet would run as a formula gets an apostrophe before it.

    >>> tsv_line(["=HYPERLINK(A1)", "a\tb", -0.5])
    "'=HYPERLINK(A1)\ta b\t-0.5\n"
    """
    return "\t".join(_plain(" ".join(str(cell).split())) for cell in cells) + "\n"


def _plain(field: str) -> str:
    return f"'{field}" if field.startswith(_FORMULA) and not _NUMBER.fullmatch(field) else field


def load_json(data: str | bytes, **options: Any) -> Any:
    """`json.loads` whose strings are `mended`, with U+FFFD for NUL too. Raises ValueError (no JSON), RecursionError."""
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
    value = json.loads(mended(text), **options)
    if "\\u0000" in text:
        value = _without_nul(value)
    if not _ESCAPED_HALF.search(text):
        return value
    whole = json.dumps(value, ensure_ascii=False)
    return json.loads(mended(whole), **options) if _HALF.search(whole) else value


def _without_nul(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nul(each) for each in value]
    return value.replace("\0", REPLACEMENT) if isinstance(value, str) else value


def replaced(row: Mapping[str, Any]) -> int:
    """Characters of a row's texts that stand for something that was no text."""
    return sum(value.count(REPLACEMENT) for value in row.values() if isinstance(value, str))


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """`to_pylist` of a table that somebody wrote: U+FFFD for bytes that are no UTF-8."""
    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError:
        return [
            {name: _value(batch.column(position)[row]) for position, name in enumerate(batch.schema.names)}
            for row in range(batch.num_rows)
        ]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        if hasattr(scalar, "as_buffer"):
            return mended(bytes(scalar.as_buffer()).decode("utf-8", "replace"))
        if hasattr(scalar, "items"):
            return {name: _value(each) for name, each in scalar.items()}
        return [_value(each) for each in scalar]
