"""Base class and tables for reading text aloud in a language.

num2words spells the numbers; each language corrects its errors. The module of a language defines a subclass with its
rules, and a YAML file beside it holds the words. `Tongue` has the rules common to all languages and is used directly
for languages of num2words without a module.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from megahour.corpus.text.languages.marks import letters_and_marks

MAX_DIGITS = 15  # longer digit strings are identifiers, read digit by digit
_DOTLESS = ("tr", "az")
_MARKS = str.maketrans({"’": "'", "ʼ": "'", "\u00ad": None, "\u2060": None})
# Arabic to Burmese, Khmer to Mongolian, Arabic presentation forms: scripts in which joiners change the spelling.
_STRESS = re.compile("(?<=[аеёиоуыэюяіїє])\u0301")
_JOINING = re.compile("[\u0600-\u109f\u1780-\u18af\ua880-\ua8ff\ufb50-\ufefc]")
Words = tuple[str, ...]


class Noun(NamedTuple):
    """A unit's name: `forms` (one, many) or, in Russian, (one, few, many); gender m, f or n."""

    forms: Words
    gender: str = "m"


class Around(NamedTuple):
    """Context of a number: the word before it, folded, and the word after it, as written.

    `capital`: the word before begins with a capital; `grouped`: the number has grouped thousands.
    """

    before: str = ""
    after: str = ""
    capital: bool = False
    grouped: bool = False


def noun(text: str) -> Noun:
    """Parse a `Noun` of a table such as "libra, libras (f)"; the gender is m unless given."""
    forms, _, gender = text.removesuffix(")").partition(" (")
    return Noun(tuple(forms.split(", ")), gender if text.endswith(")") else "m")


class Table:
    """The words of a language, from `CODE.yaml` beside its module. A key may list several forms with one reading."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self._entries = entries

    @staticmethod
    def of(code: str) -> Table:
        """Load the table that is part of megahour."""
        import yaml

        text = Path(__file__).with_name(f"{code}.yaml").read_text("utf-8")
        entries: dict[str, Any] = yaml.load(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader))  # all scalars are text
        return Table(entries)

    def part(self, name: str) -> Table:
        """The table under a key; empty if there is none."""
        return Table(self._entries.get(name, {}))

    def text(self, name: str) -> str:
        """The text under a key; "" if there is none."""
        return str(self._entries.get(name, ""))

    def texts(self, name: str) -> dict[str, str]:
        """Map from written to spoken forms."""
        entries = self._entries.get(name, {})
        return {written: said for keys, said in entries.items() for written in keys.split(", ")}

    def nouns(self, name: str) -> dict[str, Noun]:
        """Map from written forms to nouns."""
        return {written: noun(text) for written, text in self.texts(name).items()}


def fold(text: str, language: str = "") -> str:
    """Fold text to the form of tokens: NFKC, case-folded, NFKC again, ASCII apostrophes.

    In Turkish and Azerbaijani, I folds to ı, elsewhere to i; İ always folds to i. Joiners are kept only in scripts that
    use them. Stress marks on Cyrillic vowels are removed (за́мок, замо́к): texts for learners have them, others do not.

    >>> fold("İNCE IŞIK", "tr"), fold("Hel\u200dlo")
    ('ince ışık', 'hello')
    """
    if language in _DOTLESS:
        text = unicodedata.normalize("NFC", text).replace("I", "ı")
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).replace("\u0130", "i").casefold()
    folded = _STRESS.sub("", unicodedata.normalize("NFKC", folded).translate(_MARKS))
    return folded if _JOINING.search(folded) else folded.replace("\u200c", "").replace("\u200d", "")


def one_of(words: str) -> frozenset[str]:
    """The set of words of a text, for lookup."""
    return frozenset(words.split())


def words_of(text: str) -> Words:
    """The folded words of a spelled number; hyphens separate words."""
    return tuple(letters_and_marks().findall(fold(text)))


@lru_cache(maxsize=20_000)
def spell(value: Decimal | int, language: str, kind: str = "cardinal", case: str = "n", gender: str = "m") -> Words:
    """Spell a number with num2words; empty for an unknown language. `case` and `gender` are used in Russian only."""
    import num2words

    if language not in num2words.CONVERTER_CLASSES:
        return ()
    grammar = {"case": case, "gender": gender} if language == "ru" else {}
    try:
        return words_of(str(num2words.num2words(value, lang=language, to=kind, **grammar)))
    except (NotImplementedError, OverflowError, TypeError):
        return () if kind == "cardinal" else spell(value, language)


class Tongue:
    """Words and rules of a language; `code` is its primary subtag.

    The table maps written to spoken forms. Digits are passed as ASCII with a decimal point.
    """

    grouping: str = r"(?:[.\u00a0\u202f\u2009]| (?=000(?!\d)))"  # regular expression of the thousands separator
    decimal_sign: str = ","
    day_first: ClassVar[bool] = True
    ordinal_suffix: str = ""  # regular expression
    fraction_as_number: ClassVar[bool] = False  # if true, 3,25 is "three comma twenty five"
    phone_in_groups: ClassVar[bool] = False
    digit_rules: ClassVar[dict[str, str]] = {}  # name → regular expression that begins with a digit, read by `extra`
    letter_rules: ClassVar[dict[str, str]] = {}  # the same, for expressions that begin with a letter or a sign
    clock_suffix: ClassVar[str] = ""
    phone: ClassVar[str] = ""  # regular expression of the country's telephone numbers
    spelled_number: ClassVar[str] = "(?!)"  # and of other numbers that are read digit by digit

    def __init__(self, code: str, table: Table) -> None:
        self.code = code
        self.decimal_sign = table.text("decimal_sign") or self.decimal_sign
        self.grouping = table.text("grouping") or self.grouping
        self.ordinal_suffix = table.text("ordinal_suffix") or self.ordinal_suffix
        self.decimal_word = table.text("decimal_word")
        self.point_word = table.text("point_word")  # name of the dot if the decimal sign is a comma, as in version 3.5
        self.minus = table.text("minus")
        self.to = table.text("to")  # between the ends of a range
        self.before_range = table.text("before_range")
        self.and_cents = table.text("and_cents")
        self.of_money = table.text("of_money")  # between a scale and a currency: "millones de euros"
        self.months = tuple(table.text("months").split())
        self.currencies = table.nouns("currencies")
        self.codes = table.texts("codes")  # currency codes → symbols
        self.cents = table.nouns("cents")
        self.bare_cents = noun(table.text("bare_cents"))  # named only in amounts below one euro: "drei euro fünfzig"
        self.units = table.nouns("units")
        self.scales = table.nouns("scales")
        self.percent = noun(table.text("percent"))
        self.per_mille = noun(table.text("per_mille"))
        self.degree = noun(table.text("degree"))
        self.symbols = table.texts("symbols")
        self.web = table.texts("web")
        self.abbreviations = table.texts("abbreviations")  # in any case
        self.exact_abbreviations = table.texts("exact_abbreviations")  # in this case only
        self.before_numbers = table.texts("before_numbers")  # abbreviations only before a number
        self.parts_of_works = one_of(table.text("parts_of_works"))  # words before Roman numerals read as cardinals
        self.rulers = one_of(table.text("rulers"))  # names before Roman numerals read as ranks
        self.ages = one_of(table.text("ages"))  # words after Roman numerals read as ordinals: "XX secolo"

    def whole(self, n: int, gender: str = "", case: str = "n") -> Words:
        """Words of a whole number; `gender` is "" if no noun follows, as in counting."""
        return spell(n, self.code) or (str(n),)

    def number(self, digits: str, gender: str = "", case: str = "n") -> Words:
        """Words of a plain decimal such as ``"1250"``, ``"-3.25"`` or ``"007"``, which is read digit by digit."""
        if digits.startswith("-"):
            return (*self.minus.split(), *self.number(digits[1:], gender, case))
        whole, _, fraction = digits.partition(".")
        if len(whole) > MAX_DIGITS or (len(whole) > 1 and whole.startswith("0")):
            return self.digit_by_digit(whole + fraction)
        if not fraction:
            return self.whole(int(whole), gender, case)
        return self.decimal(whole, fraction, case)

    def digit_by_digit(self, digits: str) -> Words:
        """Words of each digit in turn."""
        names = {digit: self.whole(int(digit)) for digit in set(digits)}
        return tuple(word for digit in digits for word in names[digit])

    def decimal(self, whole: str, fraction: str, case: str = "n") -> Words:
        """Words of a number with decimals; `whole` is empty in .5, "point five"."""
        return (*(self.whole(int(whole)) if whole else ()), *self.decimal_word.split(), *self.after_point(fraction))

    def after_point(self, fraction: str) -> Words:
        """Words of the digits after a decimal sign."""
        as_number = self.fraction_as_number and len(fraction) <= 2 and not fraction.startswith("0")
        return self.whole(int(fraction)) if as_number else self.digit_by_digit(fraction)

    def ordinal(self, n: int, written: str = "", around: Around = Around()) -> Words:  # noqa: B008 (a tuple)
        """Words of an ordinal; `written` is its written suffix."""
        return spell(n, self.code, "ordinal") or (str(n),)

    def year(self, n: int, around: Around = Around()) -> Words:  # noqa: B008
        """Words of a year."""
        return self.whole(n)

    def counted(self, digits: str, around: Around) -> Words:
        """Words of a number that stands in running text."""
        return self.number(digits)

    def quantity(self, digits: str, name: Noun, around: Around) -> Words:
        """Words of a number and its unit."""
        return (*self.number(digits, name.gender), *self.form(name, digits).split())

    def form(self, name: Noun, digits: str) -> str:
        """The form of a unit's name that agrees with a number."""
        return name.forms[0] if digits.lstrip("-") == "1" else name.forms[-1]

    def money(self, digits: str, symbol: str, around: Around) -> Words:
        """Words of an amount of money; with two decimals, as in $3.25, they are read as cents."""
        name, cent = self.currencies[symbol], self.cents.get(symbol)
        whole, _, fraction = digits.partition(".")
        whole = "0" if not whole and len(fraction) == 2 else whole
        if symbol == "€" and self.bare_cents.forms[0] and len(fraction) == 2:
            if whole == "0":
                return self.quantity(str(int(fraction)), self.bare_cents, around)
            tail = self.whole(int(fraction)) if int(fraction) else ()
            return (*self.quantity(whole, name, around), *tail)
        if cent is None or len(fraction) != 2:
            return self.quantity(digits, name, around)
        small = () if fraction == "00" else self.quantity(str(int(fraction)), cent, around)
        if whole == "0" and small:
            return small
        return (*self.quantity(whole, name, around), *((*self.and_cents.split(), *small) if small else ()))

    def scaled(self, digits: str, scale: Noun, symbol: str, around: Around) -> Words:
        """Words of an amount such as 5 million dollars; `symbol` may be empty."""
        head = self.quantity(digits, scale, around)
        return (*head, *self.of_money.split(), *self.currencies[symbol].forms[-1].split()) if symbol else head

    def clock(self, hours: int, minutes: int, seconds: int | None, suffix: str) -> Words:
        """Words of a time of day."""
        rest = [self.whole(part) for part in (minutes, seconds or 0)]
        return (*self.whole(hours), *rest[0], *(rest[1] if seconds else ()))

    def low_end(self, low: str, high: str, around: Around) -> Words:
        """Words of the first number of a range."""
        return self.counted(low, around)

    def day(self, n: int, around: Around) -> Words:
        """Words of a day of a month."""
        return self.whole(n)

    def day_before_month(self, n: int, around: Around) -> Words:
        """Words of a day before the name of its month."""
        return self.day(n, around)

    def date(self, day: Words, month: Words, year: Words) -> Words:
        """Words of a date written in figures; `year` may be empty."""
        return (*day, *month, *year)

    def fraction(self, top: int, bottom: int) -> Words:
        """Words of a common fraction; empty if the language has no short name for it."""
        return ()

    def mixed(self, whole: int, top: int, bottom: int) -> Words:
        """Words of a whole number and a fraction."""
        tail = self.fraction(top, bottom)
        return (*self.whole(whole), *self.symbols.get("&", "").split(), *tail) if tail else ()

    def roman(self, n: int, around: Around, *, rank: bool) -> Words:
        """Words of a Roman numeral: after a ruler's name (`rank`), or of a chapter and the like."""
        return self.ordinal(n) if rank else self.whole(n)

    def extra(self, rule: str, match: re.Match[str], around: Around) -> Words:
        """Words of a match of `digit_rules` or `letter_rules`."""
        raise NotImplementedError(rule)
