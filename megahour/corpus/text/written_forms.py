"""Build the regular expression of a language: its rules in order of precedence, one named group each.

Every rule takes linear time: each unbounded repetition is followed by something that it cannot contain, or starts where
no other repetition of its kind can have started.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache

from megahour.corpus.text.languages.base import Tongue
from megahour.corpus.text.languages.lookup import reads_numbers, tongue
from megahour.corpus.text.languages.marks import marks

LETTER = r"[^\W\d_]"
VULGAR = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅛⅜⅝⅞"
# For a group that repeats. Python before 3.11.5 may raise SystemError; there, the parts of a word take memory.
_POSSESSIVE = "+" if sys.version_info >= (3, 11, 5) else ""
_SPACE = "[ \u00a0\u202f\u2009]"
_MINUS = r"(?<![\w.,)\]])[-−]"
_END = r"(?![\w²³'’])"  # after a unit
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_MONTH_DAY = (
    rf"(?P<month_day>\b(?P<mm>{_MONTHS}|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.)[ \u00a0]"
    r"(?P<md>[0-2]?\d|3[01])(?:st|nd|rd|th)?(?![\w%]|[.,:]\d))"
)
_DOMAINS = "com|org|net|edu|gov|info|io|ai|tv|de|fr|es|it|ru|uk|eu|ch|at|mx|ar"
WEB_HINT = re.compile(rf"://|(?i:www\.)|@\w|\.(?i:{_DOMAINS})(?!\w)")
_ELISIONS = {
    "fr": r"(?i:[ldnsmtcj]|qu|jusqu)",
    "it": r"(?i:[ldnsc]|un|dell|all|nell|sull|dall|quell)",
}


@cache
def grammar(language: str, has_web: bool) -> re.Pattern[str]:
    """The rules of a primary subtag. `has_web` adds those of addresses, for texts that match `WEB_HINT`."""
    words = tongue(language)
    rules = [
        *(_web_rules() if has_web else ()),
        r"(?P<hashtag>#(?=\w*?[^\W\d_])(?P<tag>\w+))" if words.web else "",
        *(_reading_rules(words) if words.months else ()),
        *(_plain_rules(language)),
        _symbol_rule(words) if words.symbols else "",
        _word_rule(),
    ]
    return re.compile("|".join(rule for rule in rules if rule))


def _class(symbols: Iterable[str]) -> str:
    return "[" + "".join(map(re.escape, symbols)) + "]"


def _any_of(written: Iterable[str]) -> str:
    """Alternatives, longest first; a space in one matches any kind of space or none."""
    ordered = sorted(written, key=lambda text: (-len(text), text))
    return "|".join(re.escape(text).replace(r"\ ", f"{_SPACE}?") for text in ordered)


def _point(words: Tongue) -> str:
    """What stands before decimals; Arabic and Persian have a sign of their own beside the dot, as between thousands."""
    return "[.\u066b]" if "\u066c" in words.grouping else re.escape(words.decimal_sign)


def grouped_number(words: Tongue) -> str:
    """Pattern of digits with grouped thousands and optional decimals."""
    lakhs = r"|\d{1,2}(?:,\d\d){1,3},\d{3}" if words.decimal_sign == "." else ""  # 12,34,567: Indian grouping
    return rf"(?:\d{{1,3}}(?:{words.grouping}\d{{3}})+{lakhs})(?!\d)(?:{_point(words)}\d++)?"


def _rank(words: Tongue) -> str:
    """Pattern of an ordinal's whole number, which may have grouped thousands: 10,000th."""
    return rf"(?:\d{{1,3}}(?:{words.grouping}\d{{3}}){{1,2}}|\d{{1,9}})"


def _number(words: Tongue) -> str:
    point = "" if words.decimal_sign == "." else r"|\d++\.\d++(?!\.?\d)"
    bare = r"|(?<![\w.,])\.\d++(?!\.\d)" if words.code == "en" else ""  # .5
    return rf"(?:{grouped_number(words)}|\d++{_point(words)}\d++{point}|\d++{bare})"


def _plain_rules(language: str) -> list[str]:
    """Number rules of languages without a full table: with signs and units, whole numbers, or digits left as is."""
    words = tongue(language)
    if words.months:
        return []
    if words.minus:
        with_nouns = [_money_rule(words), *_price_and_quantity(words, ())] if words.currencies else []
        suffix = rf"(?P<ordinal>(?<![.,\d])(?P<rank>{_rank(words)})(?P<os>{words.ordinal_suffix})(?!\w))"
        number = rf"(?P<number>(?P<minus>{_MINUS})?(?P<value>{_number(words)}))"
        return [*with_nouns, *([suffix] if words.ordinal_suffix else []), number]
    return [r"(?P<number>(?P<value>\d+))" if reads_numbers(language) else r"(?P<digits>\d+(?:[.,]\d+)*)"]


def _symbol_rule(words: Tongue) -> str:
    number_sign = r"#(?=\s?\d)|" if "#" in words.symbols else ""
    return rf"(?P<symbol>{number_sign}{_class(sign for sign in words.symbols if sign != '#')})"


def _word_rule() -> str:
    word = rf"{LETTER}++(?:[{marks()}]++{LETTER}*+)*{_POSSESSIVE}"
    return rf"(?P<word>{word}(?:(?:['’ʼ]|(?<=[^\W\d_]{{2}})[-‐]\n[ \t]{{0,4}}(?=[^\W\d_]{{2}})){word})*{_POSSESSIVE})"


def _web_rules() -> list[str]:
    tail = r"(?:[/?#][^\s<>\"]*(?<=[\w/]))?"
    host = r"[\w-]++(?:\.[\w-]++)+"
    return [
        rf"(?P<url>(?i:https?://|ftp://|(?<![\w.-])www\.)(?:{host}|[\w-]++){tail}"
        rf"|(?<![\w.@/-])(?:[\w-]++\.)+?(?i:{_DOMAINS})(?![\w-]|\.\w){tail})",
        rf"(?P<email>(?<![\w.+-])[\w.+-]{{1,64}}@{host})",
        r"(?P<handle>(?<![\w@])@\w+)",
    ]


def _reading_rules(words: Tongue) -> list[str]:
    numeral = "(?:XL|X{0,3})(?:IX|IV|V?I{0,3})"
    latin_ending = "er|re|ère|ème|e" if words.code == "fr" else "(?!)"  # XIVe siècle; elsewhere Ie and Ve are words
    of_digits = "|".join((*_date_rules(words), *_time_rules(words), *_number_rules(words)))
    return [
        _plain_word(words),
        rf"(?=[\d(+−-]|\.\d)(?:{of_digits})",
        _MONTH_DAY if words.code == "en" else "(?!)",
        *(f"(?P<extra_{name}>{rule})" for name, rule in words.letter_rules.items()),
        rf"(?P<elided>(?<!\w){_ELISIONS[words.code]}['’])(?=\d)" if words.code in _ELISIONS else "(?!)",
        _money_rule(words),
        rf"(?P<roman>(?=[IVXL]+(?:{latin_ending})?(?!\w))(?P<latin>{numeral})"
        rf"(?P<ls>{latin_ending})?(?!\w|['’]\w))",
        _abbreviation_rule(words),
        rf"(?P<initials>(?<!\w)(?:{LETTER}\.){{2,}})",
    ]


def _money_rule(words: Tongue) -> str:
    """An amount after its currency sign."""
    money, number = _any_of([*words.currencies, *words.codes]), _number(words)
    low = rf"(?P<mlow>{number})[–—-](?P=sign)?" if words.to else r"(?P<mlow>(?!))"
    scale = rf"{_SPACE}?(?P<ms>{_any_of(words.scales)}){_END}" if words.scales else "(?P<ms>(?!))"
    return rf"(?P<money>(?P<mneg>{_MINUS})?(?P<sign>{money}){_SPACE}?(?:{low})?(?P<amount>{number})(?:{scale})?)"


def _price_and_quantity(words: Tongue, signs: Iterable[str]) -> list[str]:
    """Numbers before a currency, and before a unit, a scale or one of `signs`."""
    number, scales, gap = _number(words), _any_of(words.scales), f"{_SPACE}?"
    money = _any_of([*words.currencies, *words.codes])
    units = _any_of([*words.units, *(scale for scale in words.scales if len(scale) > 1), *signs])
    before = r"(?<![\w.,-])"
    low = rf"(?P<%slow>{number})[–—-]" if words.to else "(?P<%slow>(?!))"
    scale = rf"(?P<ps>{scales}){gap}" if words.scales else "(?P<ps>(?!))"
    return [
        rf"(?P<price>(?:{before}{low % 'p'})?(?P<pneg>{_MINUS})?(?P<cost>{number}){gap}"
        rf"(?:{scale})?(?P<coin>{money}){_END})",
        rf"(?P<quantity>(?:{before}{low % 'q'})?(?P<qneg>{_MINUS})?(?P<count>{number}){gap}(?P<unit>{units}){_END})",
    ]


def _plain_word(words: Tongue) -> str:
    """A fast path for most words: lower case, between spaces, and not the start of any other rule."""
    dotless = [text for text in (*words.abbreviations, "mr", "mrs", "ms", "dr", "prof") if not text.endswith(".")]
    return rf"(?P<plain>(?<=[ \n])(?!(?:{_any_of(dotless)})[ ,\n]|и )[a-zà-öø-ÿа-яё]{{2,}}+(?=[ ,\n]))"


def _date_rules(words: Tongue) -> list[str]:
    months = _MONTHS if words.code == "en" else f"(?i:{'|'.join(words.months)})"  # "may" is a verb
    after_day = rf"(?=[ \u00a0](?:de |of )?(?:{months})\b)"
    return [
        r"(?P<iso>(?<![\w.-])(?P<iso_y>\d{4})-(?P<iso_m>0\d|1[0-2])-(?P<iso_d>[0-2]\d|3[01])(?![\w-]))",
        r"(?P<date>(?<![\w./-])(?P<d1>[0-3]?\d)(?P<ds>[./])(?P<d2>[0-3]?\d)(?P=ds)(?P<d3>\d{4})(?![\w/]))",
        rf"(?P<day>(?<![\w.,:])(?P<dd>[0-2]?\d|3[01])(?:{words.ordinal_suffix or '(?!)'}|\.)?{after_day})",
    ]


def _time_rules(words: Tongue) -> list[str]:
    return [
        *(f"(?P<extra_{name}>{rule})" for name, rule in words.digit_rules.items()),
        rf"(?P<clock>(?<![\w:.,])(?P<hh>[01]?\d|2[0-4]):(?P<mi>[0-5]\d)(?::(?P<ss>[0-5]\d))?(?![\d:])"
        rf"(?:{_SPACE}?(?P<cs>{words.clock_suffix or '(?!)'}))?)",
        rf"(?P<phone>(?<![\w-])(?:\+\d{{1,3}}(?:[ .\u00a0-]?\(?\d{{1,4}}\)?){{2,6}}(?!\d){'|' + words.phone}))",
    ]


def _number_rules(words: Tongue) -> list[str]:
    """Rules for numbers, with and without what they count; the most specific come first."""
    number, gap = _number(words), f"{_SPACE}?"
    return [
        *_price_and_quantity(words, ("%", "‰", "°")),
        rf"(?P<spelled>(?<!\d)(?<!\d[.,]){words.spelled_number})",
        r"(?P<fraction>(?<![\w/⁄.,])(?:(?P<mixed>\d{1,3}) )?(?P<top>\d{1,2})[/⁄](?P<bottom>[2-68]|10)(?![\w/⁄]))",
        rf"(?P<halves>(?<![\w/⁄.,])(?P<units>\d{{1,3}}){gap}(?P<vulgar>[{VULGAR}]))",
        rf"(?P<ordinal>(?<![.,])(?P<rank>{_rank(words)})(?P<os>{words.ordinal_suffix or '(?!)'})(?!\w))",
        rf"(?P<chain>(?<![\w.])(?!{grouped_number(words)}(?![.\d]))\d++(?:\.\d++){{2,}}{_POSSESSIVE})",
        rf"(?P<range>(?<![\w.,-])(?P<low>{number})(?P<dash>[–—-])(?P<high>{number})(?![\w-]))",
        rf"(?P<number>(?P<minus>{_MINUS})?(?P<value>{number}))",
    ]


def _abbreviation_rule(words: Tongue) -> str:
    """Abbreviations, not inside words but also directly next to digits."""
    exact = f"|{_any_of(words.exact_abbreviations)}" if words.exact_abbreviations else ""
    before_number = f"(?i:{_any_of(words.before_numbers)})(?={_SPACE}?\\d)|" if words.before_numbers else ""
    always = f"(?i:{_any_of(words.abbreviations)})"
    return rf"(?P<abbreviation>(?<!{LETTER})(?<!['’.])(?:{before_number}{always}{exact})(?!{LETTER}))"
