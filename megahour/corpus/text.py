"""Written text → spoken words, each with the place in the raw text that it came from.

One pass of one regular expression per language; each match is read aloud by the rule that is named after its group.
Words of any script pass through: NFKC, case-folded, with apostrophes kept inside.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from megahour.corpus.readings import (
    fold,
    plain_digits,
    plural,
    primary,
    read_money,
    read_number,
    read_percent,
    read_time,
    speech,
)

_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_TITLES = {"mr": "mister", "mrs": "missus", "ms": "miss", "dr": "doctor", "prof": "professor"}
_ABBREVIATIONS = {"vs": "versus", "etc": "et cetera", "jr": "junior", "sr": "senior", "approx": "approximately"}
_FRACTIONS = {"2": "half", "3": "third", "4": "quarter", "5": "fifth", "8": "eighth", "10": "tenth"}
_ORDINAL_SUFFIX = {
    "en": r"(?:st|nd|rd|th)",
    "fr": r"(?:er|ère|re|e|è|ème|eme)",
    "es": r"(?:º|ª|er|ra|ro|do|da|to|ta)",
    "it": r"[ºª]",
    "ru": r"-(?:й|я|е|го|му|м|ый|ий|ая|ое)",
}
Piece = tuple[str, int, int]  # (word, start, end) of its source in the raw text


@dataclass(frozen=True)
class Normalised:
    """Spoken words; the source of ``tokens[i]`` is ``raw[offsets[i]:ends[i]]``. Offsets never decrease.

    The words of one number share its source.
    """

    tokens: list[str]
    offsets: list[int]
    ends: list[int]

    @property
    def text(self) -> str:
        return " ".join(self.tokens)


def normalise(raw: str, language: str = "en") -> Normalised:
    """Spoken form of `raw`: numbers, dates, times, money and abbreviations as words, punctuation gone.

    Parameters
    ----------
    language: BCP 47 tag; numbers are read aloud in the languages of num2words, money and symbols in en, es, fr, it,
        de and ru; in other languages digits stay digits.
    """
    tongue = primary(language)
    tokens: list[str] = []
    offsets: list[int] = []
    ends: list[int] = []
    for match in _grammar(tongue).finditer(raw):
        rule = _RULES[match.lastgroup or "word"]
        for word, start, end in rule(match, tongue):
            tokens.append(word)
            offsets.append(start)
            ends.append(end)
    return Normalised(tokens, offsets, ends)


@cache
def _marks() -> str:
    """Character class of combining marks and joiners, which `\\w` leaves out but words contain."""
    spans: list[list[int]] = []
    for code in range(0x300, 0x1F000):
        if unicodedata.category(chr(code)).startswith("M"):
            if spans and spans[-1][1] == code - 1:
                spans[-1][1] = code
            else:
                spans.append([code, code])
    return "\u00ad\u200c\u200d" + "".join(f"{chr(low)}-{chr(high)}" for low, high in spans)


@cache
def _grammar(language: str) -> re.Pattern[str]:
    """The rules of a language in order of precedence, one named group each."""
    words = speech(language)
    if words.comma_is_decimal:
        number = r"(?:\d{1,3}(?:[.\u00a0\u202f]\d{3})+(?!\d)(?:,\d+)?|\d+(?:,\d+)?)"
    else:
        number = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?)"
    symbols = "[" + re.escape("".join(words.money)) + "]" if words.money else "(?!)"
    scales = f"(?:{'|'.join(words.scales)})" if words.scales else "(?!)"
    other = "[" + re.escape("".join(words.symbols)) + "]" if words.symbols else "(?!)"
    ordinal = _ORDINAL_SUFFIX.get(language, "(?!)")
    letter = r"[^\W\d_]"
    word = rf"{letter}(?:{letter}|[{_marks()}])*"
    rules = [
        *(_english_rules() if language == "en" else []),
        rf"(?P<money>(?P<sign>{symbols})\s?(?P<amount>{number})(?:\s(?P<scale>{scales})\b)?)",
        rf"(?P<price>(?P<cost>{number})\s?(?P<unit>{symbols}))",
        rf"(?P<percent>(?P<share>{number})\s?%)",
        r"(?P<time>(?<!\d)(?P<hours>[01]?\d|2[0-3]):(?P<minutes>[0-5]\d)(?!\d))",
        rf"(?P<ordinal>(?P<rank>\d+){ordinal}(?!\w))",
        rf"(?P<number>(?P<minus>(?<![\w.])[-−])?(?P<value>{number}))",
        rf"(?P<symbol>{other})",
        rf"(?P<word>{word}(?:['’ʼ]{word})*)",
    ]
    return re.compile("|".join(rules))


def _english_rules() -> list[str]:
    return [
        r"(?P<phone>(?<![\d-])(?:\(\d{3}\)\s?|\d{3}[-.])?\d{3}[-.]\d{4}(?![\d-]))",
        rf"(?P<date>\b(?P<month>{_MONTHS})\s+(?P<day>[12]?\d|3[01])(?=\s*[.;!?)]?\s*$|,))",
        r"(?P<decade>(?<![\w.,])(?P<tens>(?:1[1-9]|20)?\d0)s\b)",
        r"(?P<year>(?<![\w.,$€£¥])(?:1[1-9]|20)\d\d(?![\w%]|[.,:]\d))",
        r"(?P<fraction>(?<![\d/⁄])(?P<top>\d{1,2})[/⁄](?P<bottom>2|3|4|5|8|10)(?![\d/⁄]))",
        r"(?P<initials>\b(?:[^\W\d_]\.){2,})",
        rf"(?P<title>\b(?i:{'|'.join(_TITLES)})\b\.?(?=\s+[^\W\d_]))",
        rf"(?P<abbreviation>\b(?i:{'|'.join(_ABBREVIATIONS)})\.)",
        r"(?P<numero>\bNo\.(?=\s*\d))",
        r"(?P<street>\bSt\.)",
        r"(?P<pound>#(?!\s?\d))",
    ]


def _spread(words: Iterable[str], match: re.Match[str], group: str | int = 0) -> Iterator[Piece]:
    """The words of one reading, all with the same source."""
    for word in words:
        yield word, match.start(group), match.end(group)


def _word(match: re.Match[str], language: str) -> Iterator[Piece]:
    folded = fold(match[0])
    if _is_plain(folded) or folded == match[0]:
        return _spread([folded], match)
    # Compatibility forms such as ½, x² or ﷺ fold to digits, signs or several words: read those.
    return _spread(normalise(folded, language).tokens, match)


def _is_plain(text: str) -> bool:
    return all(char == "'" or char.isalpha() or unicodedata.category(char)[0] == "M" for char in text)


def _date(match: re.Match[str], language: str) -> Iterator[Piece]:
    yield from _spread([fold(match["month"])], match, "month")
    yield from _spread(read_number(match["day"], language, "ordinal"), match, "day")


def _year(match: re.Match[str], language: str) -> Iterator[Piece]:
    return _spread(read_number(plain_digits(match["year"], language), language, "year"), match)


def _decade(match: re.Match[str], language: str) -> Iterator[Piece]:
    digits = plain_digits(match["tens"], language)
    return _spread(plural(read_number(digits, language, "year" if len(digits) == 4 else "cardinal")), match)


def _fraction(match: re.Match[str], language: str) -> Iterator[Piece]:
    top = plain_digits(match["top"], language)
    name = _FRACTIONS[plain_digits(match["bottom"], language)]
    many = "halves" if name == "half" else f"{name}s"
    return _spread([*read_number(top, language), name if top == "1" else many], match)


def _phone(match: re.Match[str], language: str) -> Iterator[Piece]:
    for position in range(match.start(), match.end()):
        char = match.string[position]
        if char.isdigit():
            yield from ((word, position, position + 1) for word in read_number(plain_digits(char, language), language))


def _initials(match: re.Match[str], language: str) -> Iterator[Piece]:
    for position in range(match.start(), match.end(), 2):
        yield fold(match.string[position]), position, position + 1


def _money(match: re.Match[str], language: str) -> Iterator[Piece]:
    amount = plain_digits(match["amount"], language)
    return _spread(read_money(match["sign"], amount, match["scale"] or "", language), match)


def _price(match: re.Match[str], language: str) -> Iterator[Piece]:
    return _spread(read_money(match["unit"], plain_digits(match["cost"], language), "", language), match)


def _number(match: re.Match[str], language: str) -> Iterator[Piece]:
    digits = plain_digits(match["value"], language)
    return _spread(read_number(f"-{digits}" if match["minus"] else digits, language), match)


def _street(match: re.Match[str], language: str) -> Iterator[Piece]:
    """Saint before a name, street after one: "by St. Mary", "on Park St."."""
    before = match.string[: match.start()].split()
    follows_name = bool(before) and before[-1][0].isupper()
    precedes_name = match.string[match.end() :].lstrip()[:1].isupper()
    return _spread(["saint" if precedes_name and not follows_name else "street"], match)


_RULES: dict[str, Callable[[re.Match[str], str], Iterator[Piece]]] = {
    "word": _word,
    "date": _date,
    "year": _year,
    "decade": _decade,
    "fraction": _fraction,
    "phone": _phone,
    "initials": _initials,
    "money": _money,
    "price": _price,
    "number": _number,
    "street": _street,
    "percent": lambda m, language: _spread(read_percent(plain_digits(m["share"], language), language), m),
    "time": lambda m, language: _spread(read_time(m["hours"], m["minutes"], language), m),
    "ordinal": lambda m, language: _spread(read_number(plain_digits(m["rank"], language), language, "ordinal"), m),
    "title": lambda m, language: _spread([_TITLES[m[0].rstrip(".").lower()]], m),
    "abbreviation": lambda m, language: _spread(_ABBREVIATIONS[m[0].rstrip(".").lower()].split(), m),
    "numero": lambda m, language: _spread(["number"], m),
    "pound": lambda m, language: _spread(["pound"], m),
    "symbol": lambda m, language: _spread(speech(language).symbols[m[0]].split(), m),
}
