"""Roman numerals, where they can be nothing else."""

from __future__ import annotations

import re

_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50}
NUMERAL = re.compile(r"(?:XL|X{0,3})(?:IX|IV|V?I{0,3})")  # up to 49: longer ones are years, and words such as MIX


def value_of(numeral: str) -> int:
    """Value of a numeral of I, V, X and L; subtractive pairs count."""
    values = [_VALUES[letter] for letter in numeral]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))


def is_numeral(text: str) -> bool:
    """Whether `text` is a well-formed numeral from I to XLIX."""
    return bool(text) and NUMERAL.fullmatch(text) is not None
