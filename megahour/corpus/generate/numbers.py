"""Numbers, dates, times and prices of the generated sentences, as written and as spoken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# fmt: off
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_IRREGULAR = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)
# fmt: on
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

Form = tuple[str, str]  # (written, spoken)


def cardinal(n: int) -> str:
    """Spoken form of 0 ≤ n < 1,000,000, without "and".

    >>> cardinal(1250)
    'one thousand two hundred fifty'
    """
    if not 0 <= n < 1_000_000:
        raise ValueError(f"cardinal() speaks 0 … 999,999, got {n}")
    if n < 20:
        return _ONES[n]
    if n < 100:
        return _TENS[n // 10 - 2] + (f" {_ONES[n % 10]}" if n % 10 else "")
    unit, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    return f"{cardinal(n // unit)} {name}" + (f" {cardinal(n % unit)}" if n % unit else "")


def ordinal(n: int) -> str:
    """Spoken form of an ordinal number.

    >>> ordinal(23)
    'twenty third'
    """
    *head, last = cardinal(n).split()
    last = last[:-1] + "ieth" if last.endswith("y") else _IRREGULAR.get(last, last + "th")
    return " ".join([*head, last])


def written_ordinal(n: int) -> str:
    """``written_ordinal(23) == "23rd"``."""
    return f"{n}{'th' if n % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def year(n: int) -> str:
    """Spoken form of a year from 1100 to 2099.

    >>> year(1905), year(2004)
    ('nineteen oh five', 'two thousand four')
    """
    if 2000 <= n < 2010:
        return cardinal(n)
    tail = n % 100
    return f"{cardinal(n // 100)} " + ("hundred" if tail == 0 else f"oh {_ONES[tail]}" if tail < 10 else cardinal(tail))


def _draw(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def _small(rng: np.random.Generator) -> Form:
    n = _draw(rng, 2, 12)
    return (str(n) if rng.random() < 0.5 else cardinal(n)), cardinal(n)


def _count(rng: np.random.Generator) -> Form:
    scale = rng.random()
    n = _draw(rng, 13, 99) if scale < 0.6 else _draw(rng, 2, 9) * 10 if scale < 0.85 else _draw(rng, 1, 40) * 50
    return f"{n:,}", cardinal(n)


def _ordinal(rng: np.random.Generator) -> Form:
    n = _draw(rng, 1, 12) if rng.random() < 0.7 else _draw(rng, 13, 31)
    return (written_ordinal(n) if rng.random() < 0.5 else ordinal(n).replace(" ", "-")), ordinal(n)


def _date(rng: np.random.Generator) -> Form:
    month = _draw(rng, 0, 11)
    day = _draw(rng, 1, _DAYS[month])
    return f"{_MONTHS[month]} {written_ordinal(day)}", f"{_MONTHS[month].lower()} {ordinal(day)}"


def _time(rng: np.random.Generator) -> Form:
    hour, minute = _draw(rng, 1, 12), _draw(rng, 0, 11) * 5
    written, spoken = f"{hour}:{minute:02d}", cardinal(hour)
    if minute:
        spoken += f" oh {_ONES[minute]}" if minute < 10 else f" {cardinal(minute)}"
        return written, spoken
    half = "a" if hour < 12 and rng.random() < 0.5 else "p"
    return f"{hour} {half}.m.", f"{spoken} {half} m"


def _money(rng: np.random.Generator) -> Form:
    if rng.random() < 0.3:
        dollars, cents = _draw(rng, 2, 20), _draw(rng, 1, 19) * 5
        return f"${dollars}.{cents:02d}", f"{cardinal(dollars)} dollars and {cardinal(cents)} cents"
    dollars = _draw(rng, 2, 99) if rng.random() < 0.7 else _draw(rng, 1, 60) * 100
    return f"${dollars:,}", f"{cardinal(dollars)} dollars"


def _percent(rng: np.random.Generator) -> Form:
    if rng.random() < 0.3:
        whole, tenth = _draw(rng, 1, 9), _draw(rng, 1, 9)
        return f"{whole}.{tenth}%", f"{cardinal(whole)} point {_ONES[tenth]} percent"
    n = _draw(rng, 2, 95)
    return (f"{n}%" if rng.random() < 0.7 else f"{n} percent"), f"{cardinal(n)} percent"


def _digits(rng: np.random.Generator) -> Form:
    digits = [_draw(rng, 0, 9) for _ in range(_draw(rng, 3, 4))]
    return "-".join(map(str, digits)), " ".join(_ONES[digit] for digit in digits)


def _phone(rng: np.random.Generator) -> Form:
    digits = [_draw(rng, 0, 9) for _ in range(6)]
    return " ".join(map(str, digits)), " ".join(_ONES[digit] for digit in digits)


def _year(rng: np.random.Generator) -> Form:
    n = _draw(rng, 1960, 2025)
    return str(n), year(n)


def _degrees(rng: np.random.Generator) -> Form:
    n = _draw(rng, 2, 38)
    return f"{n} degrees", f"{cardinal(n)} degrees"


def _heat(rng: np.random.Generator) -> Form:
    n = _draw(rng, 16, 25) * 10
    return f"{n} degrees", f"{cardinal(n)} degrees"


KINDS: dict[str, Callable[[np.random.Generator], Form]] = {
    "small": _small,
    "count": _count,
    "ordinal": _ordinal,
    "date": _date,
    "time": _time,
    "money": _money,
    "percent": _percent,
    "digits": _digits,
    "phone": _phone,
    "year": _year,
    "degrees": _degrees,
    "heat": _heat,
}
