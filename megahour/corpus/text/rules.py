"""Readers that convert each kind of written form, a named group of `grammar`, to words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from megahour.corpus.text.digits_and_addresses import plain_digits, said_address, said_hashtag
from megahour.corpus.text.languages.base import Around, Tongue, Words, fold
from megahour.corpus.text.languages.roman import value_of
from megahour.corpus.text.written_forms import LETTER

Piece = tuple[str, int, int]  # (word, start and end of its source in the text)
Match = re.Match[str]
MAX_NEIGHBOUR = 24  # maximum length of a neighbouring word
_BEFORE = re.compile(rf"({LETTER}{{1,{MAX_NEIGHBOUR}}})\.?[ \u00a0\n]{{1,2}}$")
_AFTER = re.compile(rf"[ \u00a0\n]{{1,2}}({LETTER}{{1,{MAX_NEIGHBOUR}}})")
_VULGAR = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5)}
_VULGAR |= {"⅘": (4, 5), "⅙": (1, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8)}


def around(match: Match) -> Around:
    """The words before and after a match."""
    text, start, end = match.string, match.start(), match.end()
    before = _BEFORE.search(text[max(0, start - MAX_NEIGHBOUR - 3) : start])
    after = _AFTER.match(text, end)
    word = before[1] if before else ""
    return Around(fold(word), after[1] if after else "", word[:1].isupper())


def _ascii(digits: str) -> int:
    return int(digits)  # int() reads the decimal digits of every script


def _spread(words: Iterable[str], match: Match, group: str | int = 0) -> Iterator[Piece]:
    """Give all words the source span of the match or group."""
    start, end = match.span(group)
    return ((word, start, end) for word in words)


def _signed(match: Match, group: str, minus: str | None, words: Tongue) -> str:
    digits = plain_digits(match[group], words)
    return f"-{digits}" if minus else digits


def _number(match: Match, words: Tongue) -> Iterator[Piece]:
    written = match["value"]
    if not words.minus:
        return _spread(words.number(plain_digits(written, words)), match)
    digits = _signed(match, "value", match["minus"], words)
    if "." in written and words.decimal_sign == "," and "." in digits and "," not in written:
        whole, _, decimals = digits.partition(".")
        return _spread((*words.number(whole), *words.point_word.split(), *words.after_point(decimals)), match)
    beside = around(match)._replace(grouped=not written.isdecimal())
    return _spread(words.counted(digits, beside), match)


def _range(match: Match, words: Tongue) -> Iterator[Piece]:
    low, high = plain_digits(match["low"], words), plain_digits(match["high"], words)
    beside = around(match)
    is_range = match["dash"] != "-" or _rises(low, high)
    ends = (
        words.low_end(low, high, beside._replace(grouped=not match["low"].isdecimal())),
        words.counted(high, beside._replace(grouped=not match["high"].isdecimal())),
    )
    if is_range:
        first = words.before_range.split() if beside.before not in ("da", "dal", "dai", "dalle") else []
        yield from _spread((*first, *ends[0], *words.to.split()), match, "low")
    else:
        yield from _spread(ends[0], match, "low")
    yield from _spread(ends[1], match, "high")


def _rises(low: str, high: str) -> bool:
    """Whether a hyphen between two numbers means "to": 10-12, 1980-85; not 3-2, 747-400."""
    if len(low) > 15 or len(high) > 15:
        return False
    years = len(low) == 4 and len(high) == 2 and low.isdecimal()
    return float(low[-2:] if years else low) < float(high)


def _low_end(match: Match, group: str, gender: str, words: Tongue) -> Words:
    """Words of the lower end of a range of quantities, including "to"; empty if there is no range."""
    if not match[group]:
        return ()
    low = words.number(plain_digits(match[group], words), gender)
    return (*words.before_range.split(), *low, *words.to.split())


def _money(match: Match, words: Tongue) -> Iterator[Piece]:
    symbol = words.codes.get(match["sign"], match["sign"])
    digits = _signed(match, "amount", match["mneg"], words)
    low, beside = _low_end(match, "mlow", words.currencies[symbol].gender, words), around(match)
    if match["ms"]:
        return _spread((*low, *words.scaled(digits, words.scales[match["ms"]], symbol, beside)), match)
    return _spread((*low, *words.money(digits, symbol, beside)), match)


def _price(match: Match, words: Tongue) -> Iterator[Piece]:
    symbol = words.codes.get(match["coin"], match["coin"])
    digits, beside = _signed(match, "cost", match["pneg"], words), around(match)
    low = _low_end(match, "plow", words.currencies[symbol].gender, words)
    if match["ps"]:
        return _spread((*low, *words.scaled(digits, words.scales[match["ps"]], symbol, beside)), match)
    return _spread((*low, *words.money(digits, symbol, beside)), match)


def _quantity(match: Match, words: Tongue) -> Iterator[Piece]:
    digits, beside = _signed(match, "count", match["qneg"], words), around(match)
    signs = {"%": words.percent, "‰": words.per_mille, "°": words.degree}
    unit = re.sub("[\u00a0\u202f\u2009]", " ", match["unit"])
    name = signs.get(unit) or words.units.get(unit) or words.scales.get(unit)
    if name is None:  # written without the space in the unit's name: "кв.м"
        name = next(value for key, value in words.units.items() if key.replace(" ", "") == unit.replace(" ", ""))
    return _spread((*_low_end(match, "qlow", name.gender, words), *words.quantity(digits, name, beside)), match)


def _fraction(match: Match, words: Tongue) -> Iterator[Piece]:
    top, bottom = _ascii(match["top"]), _ascii(match["bottom"])
    if match["mixed"]:
        said = words.mixed(_ascii(match["mixed"]), top, bottom)
        plain = (*words.whole(_ascii(match["mixed"])), *words.whole(top), *words.whole(bottom))
        return _spread(said or plain, match)
    return _spread(words.fraction(top, bottom) or (*words.whole(top), *words.whole(bottom)), match)


def _halves(match: Match, words: Tongue) -> Iterator[Piece]:
    whole, (top, bottom) = _ascii(match["units"]), _VULGAR[match["vulgar"]]
    said = words.mixed(whole, top, bottom) or (*words.whole(whole), *words.whole(top), *words.whole(bottom))
    return _spread(said, match)


def _date(match: Match, words: Tongue) -> Iterator[Piece]:
    first, second, year = _ascii(match["d1"]), _ascii(match["d2"]), _ascii(match["d3"])
    month_first = (not words.day_first and match["ds"] == "/" and first <= 12) or second > 12
    month, day = (first, second) if month_first else (second, first)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        numbers = (word for n in (first, second, year) for word in words.whole(n))
        return _spread(numbers, match)
    return _written_date(match, day, month, year, words)


def _written_date(match: Match, day: int, month: int, year: int, words: Tongue) -> Iterator[Piece]:
    beside = around(match)
    name = (words.months[month - 1],)
    return _spread(words.date(words.day(day, beside), name, words.year(year, beside)), match)


def _iso(match: Match, words: Tongue) -> Iterator[Piece]:
    year, month, day = _ascii(match["iso_y"]), _ascii(match["iso_m"]), _ascii(match["iso_d"])
    if not (month and day):
        return _spread((word for n in (year, month, day) for word in words.whole(n)), match)
    return _written_date(match, day, month, year, words)


def _day(match: Match, words: Tongue) -> Iterator[Piece]:
    day = _ascii(match["dd"])
    return _spread(words.day_before_month(day, around(match)) if day else words.whole(day), match)


def _month_day(match: Match, words: Tongue) -> Iterator[Piece]:
    name = next(month for month in words.months if month.startswith(fold(match["mm"])[:3]))
    yield from _spread([name], match, "mm")
    day = _ascii(match["md"])
    yield from ((word, match.start("md"), match.end()) for word in words.day(day, around(match)))


def _clock(match: Match, words: Tongue) -> Iterator[Piece]:
    seconds = _ascii(match["ss"]) if match["ss"] else None
    return _spread(words.clock(_ascii(match["hh"]), _ascii(match["mi"]), seconds, match["cs"] or ""), match)


def _phone(match: Match, words: Tongue) -> Iterator[Piece]:
    """Read digit by digit, or in groups if the language does; the source of each word is its own digits."""
    start = match.start()
    if match[0].startswith("+"):
        yield from ((word, start, start + 1) for word in words.symbols["+"].split())
    for group in re.finditer(r"\d+", match[0]):
        digits = plain_digits(group[0], words)
        if words.phone_in_groups and len(digits) <= 3:
            yield from ((word, start + group.start(), start + group.end()) for word in words.number(digits))
            continue
        for position, digit in enumerate(digits, start + group.start()):
            yield from ((word, position, position + 1) for word in words.whole(int(digit)))


def _chain(match: Match, words: Tongue) -> Iterator[Piece]:
    for position, group in enumerate(re.finditer(r"\d+", match[0])):
        start, end = match.start() + group.start(), match.start() + group.end()
        said = words.number(plain_digits(group[0], words))
        yield from ((word, start, end) for word in ((*words.point_word.split(), *said) if position else said))


def _ordinal(match: Match, words: Tongue) -> Iterator[Piece]:
    rank = _ascii(plain_digits(match["rank"], words))
    return _spread(words.ordinal(rank, match["os"].lstrip("."), around(match)), match)


def _roman(match: Match, words: Tongue) -> Iterator[Piece]:
    """Read as a numeral only if that is likely: after a ruler, a chapter or another name, or before a century."""
    latin, beside = match["latin"], around(match)
    value = value_of(latin) if latin else 0
    if match["ls"]:
        return _spread(words.ordinal(value, match["ls"]) if value else (fold(match[0]),), match)
    may_be_pronoun = words.code == "en" and latin == "I" and not (beside.before == "war" and beside.capital)
    if value and not may_be_pronoun:
        if beside.before in words.rulers and beside.capital:
            return _spread(words.roman(value, beside, rank=True), match)
        if beside.after.lower() in words.ages:
            return _spread(words.ordinal(value), match)
        if beside.before in words.rulers:
            return _spread(words.ordinal(value), match)
        if beside.before in words.parts_of_works or (len(latin) > 1 and beside.capital):
            return _spread(words.roman(value, beside, rank=False), match)
    return _spread((fold(match[0]),), match)


def _abbreviation(match: Match, words: Tongue) -> Iterator[Piece]:
    written = re.sub("[\u00a0\u202f\u2009]", " ", match[0])
    lower = written.lower()
    said = words.exact_abbreviations.get(written) or words.abbreviations.get(lower) or words.before_numbers.get(lower)
    if said is None:  # written without spaces
        exact = {key.lower(): value for key, value in words.exact_abbreviations.items()}
        every = {**words.abbreviations, **words.before_numbers, **exact}
        squeezed = lower.replace(" ", "")
        said = next(value for key, value in every.items() if key.replace(" ", "") == squeezed)
    return _spread((part for word in said.split() for part in (fold(word),)), match)


def _initials(match: Match, words: Tongue) -> Iterator[Piece]:
    for position in range(match.start(), match.end(), 2):
        yield fold(match.string[position]), position, position + 1


def _address(match: Match, words: Tongue) -> Iterator[Piece]:
    return _spread(said_address(match[0], words), match)


READERS: dict[str, Callable[[Match, Tongue], Iterator[Piece]]] = {
    "url": _address,
    "email": _address,
    "handle": _address,
    "hashtag": lambda m, words: _spread(said_hashtag(m["tag"], words), m),
    "iso": _iso,
    "date": _date,
    "day": _day,
    "month_day": _month_day,
    "clock": _clock,
    "phone": _phone,
    "spelled": _phone,
    "money": _money,
    "price": _price,
    "quantity": _quantity,
    "fraction": _fraction,
    "halves": _halves,
    "ordinal": _ordinal,
    "chain": _chain,
    "range": _range,
    "number": _number,
    "roman": _roman,
    "abbreviation": _abbreviation,
    "initials": _initials,
    "digits": lambda m, words: _spread([fold(m[0])], m),
    "symbol": lambda m, words: _spread(words.symbols[m[0]].split(), m),
}


def read(match: Match, words: Tongue) -> Iterator[Piece]:
    """Words of a match of the language's grammar, with their sources; `normalise` handles ordinary words itself."""
    kind = match.lastgroup or ""
    if kind.startswith("extra_"):
        return _spread(words.extra(kind.removeprefix("extra_"), match, around(match)), match)
    return READERS[kind](match, words)
