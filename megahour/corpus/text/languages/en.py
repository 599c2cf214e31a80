"""English, as news readers read it: no "and" inside a number, 1,250 is "one thousand two hundred fifty".

Years 1100 to 2099 are read in pairs (1905 "nineteen oh five"), and numeric dates month first. Digits of telephone
numbers, of ten digits and more without groups, and after the decimal point are read one by one. 3:00 is "three", 15:00
"fifteen hundred".
"""

from __future__ import annotations

import re
from typing import ClassVar

from megahour.corpus.text.languages.base import Around, Tongue, Words, spell

_BOTTOMS = {2: "half", 3: "third", 4: "quarter"}


class English(Tongue):
    """English words and rules."""

    grouping = r"(?:[,\u00a0\u202f\u2009]| (?=000(?!\d)))"
    decimal_sign = "."
    day_first = False
    ordinal_suffix = r"(?:st|nd|rd|th)"
    digit_rules: ClassVar[dict[str, str]] = {"decade": r"(?<![\w.,])(?P<tens>(?:1[1-9]|20)?\d0)['’]?s\b"}
    letter_rules: ClassVar[dict[str, str]] = {
        "title": r"(?<![^\W\d_]|['’])(?P<honour>(?i:mr|mrs|dr|prof)|Ms)(?![^\W\d_]|['’]\w)\.?",
        "street": r"\bSt\.",
        "pound": r"#(?!\s?\w)",
    }
    clock_suffix = r"(?:hours|hrs)\b"
    phone = r"(?:1[-. ])?(?:\(\d{3}\)\s?|\d{3}[-.])?\d{3}[-.]\d{4}(?![\d-])|911(?![\w-]|[.,]\d)"
    # Amounts as long as this are round, have their thousands grouped, or a unit or currency beside them.
    spelled_number = r"(?:1-)?\d{10,15}(?<!000)(?!\d|[.,]\d)"

    def whole(self, n: int, gender: str = "", case: str = "n") -> Words:
        return tuple(word for word in spell(n, "en") if word != "and")

    def ordinal(self, n: int, written: str = "", around: Around = Around()) -> Words:  # noqa: B008
        return tuple(word for word in spell(n, "en", "ordinal") if word != "and")

    def year(self, n: int, around: Around = Around()) -> Words:  # noqa: B008
        return tuple(word for word in spell(n, "en", "year") if word != "and")

    def counted(self, digits: str, around: Around) -> Words:
        is_year = len(digits) == 4 and digits.isdecimal() and "1100" <= digits <= "2099" and not around.grouped
        return self.year(int(digits)) if is_year else self.number(digits)

    def day(self, n: int, around: Around) -> Words:
        return self.ordinal(n)

    def day_before_month(self, n: int, around: Around) -> Words:
        if around.after == "of":
            return self.ordinal(n)
        return (*(() if around.before == "the" else ("the",)), *self.ordinal(n), "of")

    def date(self, day: Words, month: Words, year: Words) -> Words:
        return (*month, *day, *year)

    def clock(self, hours: int, minutes: int, seconds: int | None, suffix: str) -> Words:
        head = self.whole(hours)
        if not minutes and not seconds:
            return (*head, "hundred") if hours > 12 or suffix else head
        parts = (minutes,) if seconds is None else (minutes, seconds)
        return (*head, *(word for part in parts for word in (*(("oh",) if part < 10 else ()), *self.whole(part))))

    def fraction(self, top: int, bottom: int) -> Words:
        name = (_BOTTOMS[bottom],) if bottom in _BOTTOMS else self.ordinal(bottom)
        return (*self.whole(top), *(name if top == 1 else _plural(name)))

    def roman(self, n: int, around: Around, *, rank: bool) -> Words:
        return ("the", *self.ordinal(n)) if rank else self.whole(n)

    def extra(self, rule: str, match: re.Match[str], around: Around) -> Words:
        if rule == "decade":
            tens = int(match["tens"])
            return _plural(self.year(tens) if tens > 99 else self.whole(tens) if tens else ("hundred",))
        if rule == "title":
            titles = {"mr": "mister", "mrs": "missus", "ms": "miss", "dr": "doctor", "prof": "professor"}
            return (titles[match["honour"].lower()],)
        if rule == "street":
            # Saint before a name, street after one: "by St. Mary", "on Park St."
            follows_name = match.string[: match.start()][-40:].split()[-1:]
            is_street = (follows_name and follows_name[0][0].isupper()) or not around.after[:1].isupper()
            return ("street",) if is_street else ("saint",)
        return ("pound",)


def _plural(words: Words) -> Words:
    """Plural of the last word: nineteen ninety → nineteen nineties."""
    *head, last = words
    irregular = {"half": "halves"}.get(last)
    return (*head, irregular or (last[:-1] + "ies" if last.endswith("y") else last + "s"))
