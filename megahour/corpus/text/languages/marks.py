"""Combining marks, which belong to words but are no letters to `re`."""

from __future__ import annotations

import re
import unicodedata
from functools import cache


@cache
def marks() -> str:
    """Character class of combining marks and joiners, which occur in words but are not in `\\w`."""
    spans: list[list[int]] = []
    for code in (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0)):
        if unicodedata.category(chr(code)).startswith("M"):
            if spans and spans[-1][1] == code - 1:
                spans[-1][1] = code
            else:
                spans.append([code, code])
    return "\u00ad\u200c\u200d\u2060" + "".join(f"{chr(low)}-{chr(high)}" for low, high in spans)


@cache
def letters_and_marks() -> re.Pattern[str]:
    """A word, with its marks: the vowels of Bengali and Thai are marks, and so are tones."""
    part = rf"[^\W\d_](?:[^\W\d_]|[{marks()}])*"
    return re.compile(rf"{part}(?:['’]{part})*")
