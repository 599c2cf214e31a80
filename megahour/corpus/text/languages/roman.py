"""Values of Roman numerals."""

from __future__ import annotations

_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50}


def value_of(numeral: str) -> int:
    """Value of a numeral of I, V, X and L; subtractive pairs count."""
    values = [_VALUES[letter] for letter in numeral]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))
