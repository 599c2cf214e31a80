"""How written numbers are read aloud: cardinals, ordinals, years, decimals, money, in the languages of num2words.

English is read as news readers do, without "and" inside a number: 1,250 is "one thousand two hundred fifty".
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from functools import cache, lru_cache
from typing import NamedTuple

MAX_DIGITS = 15  # longer digit strings are identifiers, read digit by digit
_WORDS = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


class Speech(NamedTuple):
    """Words of one language. Unit names are (one, many) or, in Slavic languages, (one, few, many)."""

    percent: tuple[str, ...]
    money: dict[str, tuple[str, ...]]
    cents: dict[str, tuple[str, ...]]
    scales: tuple[str, ...]
    symbols: dict[str, str]
    comma_is_decimal: bool = True


_ENGLISH = Speech(
    percent=("percent",),
    money={
        "$": ("dollar", "dollars"),
        "€": ("euro", "euros"),
        "£": ("pound", "pounds"),
        "¥": ("yen",),
        "₹": ("rupee", "rupees"),
        "₽": ("ruble", "rubles"),
    },
    cents={"$": ("cent", "cents"), "€": ("cent", "cents"), "£": ("penny", "pence")},
    scales=("hundred", "thousand", "million", "billion", "trillion"),
    symbols={"&": "and", "@": "at", "+": "plus", "=": "equals", "#": "number", "°": "degrees"},
    comma_is_decimal=False,
)
SPEECH = {
    "en": _ENGLISH,
    "es": Speech(
        percent=("por ciento",),
        money={"$": ("dólar", "dólares"), "€": ("euro", "euros"), "£": ("libra", "libras")},
        cents={},
        scales=("mil", "millones"),
        symbols={"&": "y", "@": "arroba", "+": "más", "=": "igual a", "°": "grados"},
    ),
    "fr": Speech(
        percent=("pour cent",),
        money={"$": ("dollar", "dollars"), "€": ("euro", "euros"), "£": ("livre", "livres")},
        cents={},
        scales=("mille", "millions", "milliards"),
        symbols={"&": "et", "@": "arobase", "+": "plus", "=": "égale", "°": "degrés"},
    ),
    "it": Speech(
        percent=("per cento",),
        money={"$": ("dollaro", "dollari"), "€": ("euro",), "£": ("sterlina", "sterline")},
        cents={},
        scales=("mila", "milioni", "miliardi"),
        symbols={"&": "e", "@": "chiocciola", "+": "più", "=": "uguale", "°": "gradi"},
    ),
    "de": Speech(
        percent=("prozent",),
        money={"$": ("dollar",), "€": ("euro",), "£": ("pfund",)},
        cents={},
        scales=("tausend", "millionen", "milliarden"),
        symbols={"&": "und", "@": "at", "+": "plus", "=": "gleich", "°": "grad"},
    ),
    "ru": Speech(
        percent=("процент", "процента", "процентов"),
        money={"$": ("доллар", "доллара", "долларов"), "€": ("евро",), "₽": ("рубль", "рубля", "рублей")},
        cents={},
        scales=("тысяч", "миллионов", "миллиардов"),
        symbols={"&": "и", "@": "собака", "+": "плюс", "=": "равно", "°": "градусов"},
    ),
}
NEUTRAL = Speech(percent=(), money={}, cents={}, scales=(), symbols={})


def fold(text: str) -> str:
    """NFKC, case-folded, NFKC again, typewriter apostrophes: the form of every token."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return folded.replace("’", "'").replace("ʼ", "'").replace("\u00ad", "")


@cache
def primary(language: str) -> str:
    """The primary subtag: ``en`` for ``en-US``; ``en`` when empty."""
    return re.split(r"[-_]", language.strip().lower() or "en")[0]


def speech(language: str) -> Speech:
    """Words of `language` (a primary subtag); `NEUTRAL` for one without a table."""
    return SPEECH.get(language, NEUTRAL)


@lru_cache(maxsize=20_000)
def read_number(digits: str, language: str, kind: str = "cardinal") -> tuple[str, ...]:
    """Words of a number; `kind` is "cardinal", "ordinal" or "year".

    Parameters
    ----------
    digits: a plain decimal such as ``"1250"``, ``"-3.25"`` or ``"007"`` (read digit by digit).

    Returns
    -------
    tuple of folded words; the digits themselves when num2words has no such language.
    """
    whole = digits.lstrip("-").partition(".")[0]
    if len(whole) > MAX_DIGITS or (len(whole) > 1 and whole.startswith("0")):
        return tuple(word for digit in digits if digit.isdigit() for word in read_number(digit, language))
    words = _num2words(Decimal(digits) if "." in digits else int(digits), language, kind)
    if words is None:
        return (fold(digits),)
    return tuple(word for word in _WORDS.findall(fold(words)) if not (language == "en" and word == "and"))


def _num2words(value: Decimal | int, language: str, kind: str) -> str | None:
    """num2words, or None for a language or form that it does not have."""
    import num2words

    if language not in num2words.CONVERTER_CLASSES:
        return None
    try:
        return str(num2words.num2words(value, lang=language, to=kind))
    except (NotImplementedError, OverflowError, TypeError):
        return None if kind == "cardinal" else _num2words(value, language, "cardinal")


def plain_digits(written: str, language: str) -> str:
    """Digit groups and the decimal sign of a language → ASCII digits and a dot: "1.234,5" → "1234.5" in German."""
    ascii_digits = "".join(str(unicodedata.decimal(char, char)) for char in written)
    if speech(language).comma_is_decimal:
        return re.sub(r"[.\s\u202f]", "", ascii_digits).replace(",", ".")
    return ascii_digits.replace(",", "")


def unit_name(names: tuple[str, ...], digits: str) -> str:
    """The form of a unit's name that goes with a number, such as "dollar" with 1 and "dollars" with 2."""
    if len(names) < 3:
        return names[0] if digits == "1" else names[-1]
    if "." in digits:
        return names[1]
    last, last_two = int(digits[-1]), int(digits[-2:])
    if last == 1 and last_two != 11:
        return names[0]
    return names[1] if 2 <= last <= 4 and not 12 <= last_two <= 14 else names[2]


def read_money(symbol: str, digits: str, scale: str, language: str) -> tuple[str, ...]:
    """Words of an amount: ("$", "3.25", "") → three dollars and twenty five cents; ("$", "5", "million") → …"""
    words = speech(language)
    names = words.money.get(symbol, (symbol,))
    if scale:
        return (*read_number(digits, language), fold(scale), names[-1])
    whole, _, fraction = digits.partition(".")
    if len(fraction) == 2 and symbol in words.cents:
        cents = str(int(fraction))
        small = () if cents == "0" else (*read_number(cents, language), unit_name(words.cents[symbol], cents))
        if whole == "0" and small:
            return small
        large = (*read_number(whole, language), unit_name(names, whole))
        return (*large, *(("and", *small) if small else ()))
    return (*read_number(digits, language), unit_name(names, digits))


def read_percent(digits: str, language: str) -> tuple[str, ...]:
    """Words of a percentage."""
    names = speech(language).percent
    return (*read_number(digits, language), *(unit_name(names, digits).split() if names else ()))


def read_time(hours: str, minutes: str, language: str) -> tuple[str, ...]:
    """Words of a time of day: 3:05 → three oh five, 3:00 → three, in English; the two numbers elsewhere."""
    first = read_number(str(int(hours)), language)
    if int(minutes) == 0:
        return first
    middle = ("oh",) if language == "en" and int(minutes) < 10 else ()
    return (*first, *middle, *read_number(str(int(minutes)), language))


def plural(words: tuple[str, ...]) -> tuple[str, ...]:
    """English plural of the last word: nineteen ninety → nineteen nineties."""
    *head, last = words
    return (*head, last[:-1] + "ies" if last.endswith("y") else last + "s")
