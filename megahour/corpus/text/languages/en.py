"""English, as news readers read it: no "and" inside a number, 1,250 is "one thousand two hundred fifty".

Years 1100 to 2099 in pairs (1905 "nineteen oh five"); dates in figures month first; digits of telephone numbers and
behind the decimal point one by one; 3:00 is "three", 15:00 "fifteen hundred".
"""

from __future__ import annotations

import re
from typing import ClassVar

from megahour.corpus.text.languages.base import Around, Noun, Tongue, Words, noun, one_of, spell

_BOTTOMS = {2: "half", 3: "third", 4: "quarter"}


class English(Tongue):
    """English words and rules."""

    grouping = r"(?:[,\u00a0\u202f\u2009]| (?=000(?!\d)))"
    decimal_sign = "."
    decimal_word = point_word = "point"
    minus = "minus"
    to = "to"
    and_cents = "and"
    day_first = False
    months = (
        *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october"),
        *("november", "december"),
    )
    ordinal_suffix = r"(?:st|nd|rd|th)"
    percent = noun("percent")
    per_mille = noun("per mille")
    degree = noun("degree", "degrees")
    currencies: ClassVar[dict[str, Noun]] = {
        "$": noun("dollar", "dollars"),
        "€": noun("euro", "euros"),
        "£": noun("pound", "pounds"),
        "¥": noun("yen"),
        "₹": noun("rupee", "rupees"),
        "₽": noun("ruble", "rubles"),
        "CHF": noun("swiss franc", "swiss francs"),
    }
    codes: ClassVar[dict[str, str]] = {"USD": "$", "US$": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "RUB": "₽"}
    cents: ClassVar[dict[str, Noun]] = {
        "$": noun("cent", "cents"),
        "€": noun("cent", "cents"),
        "£": noun("penny", "pence"),
        "₽": noun("kopeck", "kopecks"),
    }
    scales: ClassVar[dict[str, Noun]] = {
        **{name: noun(name) for name in ("hundred", "thousand", "million", "billion", "trillion")},
        "bn": noun("billion"),
        "mn": noun("million"),
        "m": noun("million"),
        "k": noun("thousand"),
        "K": noun("thousand"),
        "M": noun("million"),
        "B": noun("billion"),
    }
    units: ClassVar[dict[str, Noun]] = {
        "km/h": noun("kilometer per hour", "kilometers per hour"),
        "mph": noun("mile per hour", "miles per hour"),
        "m/s": noun("meter per second", "meters per second"),
        "km²": noun("square kilometer", "square kilometers"),
        "m²": noun("square meter", "square meters"),
        "m³": noun("cubic meter", "cubic meters"),
        "km": noun("kilometer", "kilometers"),
        "cm": noun("centimeter", "centimeters"),
        "mm": noun("millimeter", "millimeters"),
        "m": noun("meter", "meters"),
        "kg": noun("kilogram", "kilograms"),
        "mg": noun("milligram", "milligrams"),
        "g": noun("gram", "grams"),
        "ml": noun("milliliter", "milliliters"),
        "l": noun("liter", "liters"),
        "lbs": noun("pound", "pounds"),
        "lb": noun("pound", "pounds"),
        "oz": noun("ounce", "ounces"),
        "ft": noun("foot", "feet"),
        "°C": noun("degree celsius", "degrees celsius"),
        "°F": noun("degree fahrenheit", "degrees fahrenheit"),
        "kHz": noun("kilohertz"),
        "MHz": noun("megahertz"),
        "GHz": noun("gigahertz"),
        "Hz": noun("hertz"),
        "kWh": noun("kilowatt hour", "kilowatt hours"),
        "kW": noun("kilowatt", "kilowatts"),
        "MB": noun("megabyte", "megabytes"),
        "GB": noun("gigabyte", "gigabytes"),
        "TB": noun("terabyte", "terabytes"),
        "dB": noun("decibel", "decibels"),
        "min.": noun("minute", "minutes"),
        "hrs": noun("hour", "hours"),
        "¢": noun("cent", "cents"),
    }
    symbols: ClassVar[dict[str, str]] = {
        **{"&": "and", "@": "at", "+": "plus", "=": "equals", "#": "number", "×": "times", "÷": "divided by"},
        **{"±": "plus or minus", "§": "section", "%": "percent", "‰": "per mille", "°": "degrees"},
        **{"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee", "₽": "ruble"},
    }
    web: ClassVar[dict[str, str]] = {
        ".": "dot",
        "/": "slash",
        "-": "dash",
        "_": "underscore",
        "@": "at",
        "#": "hashtag",
        ":": "colon",
    }
    abbreviations: ClassVar[dict[str, str]] = {
        "vs.": "versus",
        "etc.": "et cetera",
        "jr.": "junior",
        "sr.": "senior",
        "approx.": "approximately",
        "e.g.": "for example",
        "i.e.": "that is",
        "dept.": "department",
        "mt.": "mount",
        "ave.": "avenue",
        "blvd.": "boulevard",
        "inc.": "incorporated",
        "corp.": "corporation",
        "ltd.": "limited",
        "gov.": "governor",
        "capt.": "captain",
        "sgt.": "sergeant",
        "rev.": "reverend",
    }
    digit_rules: ClassVar[dict[str, str]] = {"decade": r"(?<![\w.,])(?P<tens>(?:1[1-9]|20)?\d0)['’]?s\b"}
    before_numbers: ClassVar[dict[str, str]] = {"no.": "number", "nos.": "numbers", "fig.": "figure", "vol.": "volume"}
    letter_rules: ClassVar[dict[str, str]] = {
        "title": r"(?<![^\W\d_]|['’])(?P<honour>(?i:mr|mrs|dr|prof)|Ms)(?![^\W\d_]|['’]\w)\.?",
        "street": r"\bSt\.",
        "pound": r"#(?!\s?\w)",
    }
    parts_of_works = one_of(
        "war chapter part volume act scene title article type phase grade level book section stage bowl episode"
    )
    rulers = one_of(
        "henry louis elizabeth george charles edward william paul pius john james richard benedict nicholas catherine "
        "frederick philip peter alexander napoleon leo innocent gregory mary ramesses rameses"
    )
    clock_suffix = r"(?:hours|hrs)\b"
    phone = r"(?:1[-. ])?(?:\(\d{3}\)\s?|\d{3}[-.])?\d{3}[-.]\d{4}(?![\d-])|911(?![\w-]|[.,]\d)"

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
