"""Russian: numbers, years and units agree with each other, as far as the words beside them show the form.

"Один" and "два" take their gender from the ending of the next word; numbers and units after genitive prepositions (до,
от, около, с …) are in the genitive. A day before a month is a genitive ordinal, a year before "год" an ordinal in the
case of that word. Decimals are "целых" and "десятых"; in a range, only the two ends are read; telephone digits are read
in groups.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import ClassVar

from megahour.corpus.text.languages.base import Around, Noun, Tongue, Words, noun, one_of, spell
from megahour.corpus.text.languages.roman import value_of

_GENITIVE = one_of("до от около с со более менее больше меньше свыше порядка из без для после кроме")
# Words that end as nouns do, but stand beside a number that they do not count: нажмите 1 для справки.
_NO_NOUNS = one_of(
    "а во да для до за ко на не но о по про со то если или когда либо пока после почти при сейчас тогда тоже только "
    "также уже хотя чтобы вместо вне"
)
_CASE_OF_SUFFIX = {
    **{"й": ("n", "m"), "ый": ("n", "m"), "ий": ("n", "m"), "ой": ("n", "m"), "я": ("n", "f"), "ая": ("n", "f")},
    **{"е": ("n", "n"), "ое": ("n", "n"), "го": ("g", "m"), "ого": ("g", "m"), "его": ("g", "m")},
    **{"му": ("d", "m"), "ому": ("d", "m"), "м": ("p", "m"), "ом": ("p", "m"), "ем": ("p", "m")},
    **{"ю": ("a", "f"), "ую": ("a", "f"), "х": ("p", "m"), "ых": ("p", "m")},
}
_YEARS = {"год": "n", "года": "g", "году": "p", "годом": "i", "годе": "p"}
_CENTURIES = {"век": "n", "века": "g", "веку": "d", "веке": "p", "веком": "i"}
_BOTTOMS = {2: ("вторая", "вторых"), 3: ("треть", "трети"), 4: ("четверть", "четверти")}
_QUEENS = frozenset({"екатерина", "елизавета"})


class Russian(Tongue):
    """Russian words and rules."""

    grouping = "[. \u00a0\u202f\u2009]"
    phone_in_groups = True
    ordinal_suffix = r"[-‐‑](?:ого|его|ому|ый|ий|ой|ая|ое|ую|ых|ом|ем|го|му|й|я|е|м|ю|х)(?!\w)"
    digit_rules: ClassVar[dict[str, str]] = {
        "years": r"(?<![\w.,])(?P<from>\d{4})[–—-](?P<upto>\d{4})[ \t\u00a0](?P<many>гг\.|годах|годы|годов)(?!\w)",
        "age": r"(?<![\w.,])(?P<old>\d{1,3})[-‐](?P<letn>лет[а-яё]+|дневн[а-яё]+|кратн[а-яё]+)",
        "god": r"(?<![\w.,])(?P<anno>\d{1,4})(?:[-‐‑](?:й|го|м|му))?[ \t\u00a0](?P<noun>год[ауе]?|годом|гг?\.)(?!\w)",
    }
    letter_rules: ClassVar[dict[str, str]] = {
        "vek": r"\b(?P<century>[IVX]{1,5})[ \t\u00a0](?P<age>век[ауе]?|веком|вв?\.)(?!\w)",
        "world": r"\b(?P<war>[IVX]{1,3})(?= миров(?P<ending>ая|ой|ую))",
        "city": r"(?<!\w)г\.(?=[ \t\u00a0]?[А-ЯЁ])",
    }
    phone = r"8[ \u00a0-]?\(?\d{3}\)?[ \u00a0-]?\d{3}[ \u00a0-]?\d\d[ \u00a0-]?\d\d(?!\d)"
    clock_suffix = r"(?:ч\b\.?)"

    def whole(self, n: int, gender: str = "", case: str = "n") -> Words:
        words = spell(n, "ru", "cardinal", case, gender or "m")
        return words[1:] if 1000 <= n < 2000 and case in "ng" else words  # "одна тысяча" is used only on cheques

    def decimal(self, whole: str, fraction: str, case: str = "n") -> Words:
        if len(fraction) > 3 or not int(fraction):
            return (*self.whole(int(whole)), *self.decimal_word.split(), *self.digit_by_digit(fraction))
        words = spell(Decimal(f"{whole}.{fraction}"), "ru")
        return words[1:] if 1000 <= int(whole) < 2000 else words

    def ordinal(self, n: int, written: str = "", around: Around = Around()) -> Words:  # noqa: B008
        suffix = written.lstrip("-‐‑").lower()
        if n % 10 == 0 and suffix in ("е", "х"):  # decades: 1990-е, 80-х
            *head, last = spell(n, "ru", "ordinal")
            return (*head, last[:-2] + "ы" + suffix)
        case, gender = _CASE_OF_SUFFIX.get(suffix, ("n", "m"))
        return spell(n, "ru", "ordinal", case, gender)

    def counted(self, digits: str, around: Around) -> Words:
        if not digits.isdecimal():
            return self.number(digits)
        if around.before in ("с", "от", "до") and around.after in ("по", "до") and len(digits) == 4:
            return self.year(int(digits))
        if around.before in self.months and len(digits) == 4:
            return (*self.year(int(digits)), "года")
        if around.before in _GENITIVE:
            return self.number(digits, _gender_of(digits, around.after), "g")
        return self.number(digits, _gender_of(digits, around.after))

    def low_end(self, low: str, high: str, around: Around) -> Words:
        return self.number(low, _gender_of(high, around.after)) if low.isdecimal() else self.number(low)

    def quantity(self, digits: str, name: Noun, around: Around) -> Words:
        if around.before in _GENITIVE and digits.isdecimal():
            form = name.forms[min(1 if _ends_in_one(digits) else 2, len(name.forms) - 1)]
            return (*self.number(digits, name.gender, "g"), *form.split())
        return super().quantity(digits, name, around)

    def form(self, name: Noun, digits: str) -> str:
        if len(name.forms) < 3:
            return name.forms[0]
        if "." in digits:
            return name.forms[1]
        last, last_two = int(digits[-1]), int(digits[-2:].lstrip("-"))
        if last == 1 and last_two != 11:
            return name.forms[0]
        return name.forms[1] if 2 <= last <= 4 and not 12 <= last_two <= 14 else name.forms[2]

    def clock(self, hours: int, minutes: int, seconds: int | None, suffix: str) -> Words:
        parts = (minutes,) if seconds is None else (minutes, seconds)
        zero = self.whole(0)
        tail = (word for part in parts for word in (*(zero if part < 10 else ()), *self.whole(part)))
        return (*self.whole(hours), *tail)

    def day(self, n: int, around: Around) -> Words:
        return spell(n, "ru", "ordinal", "g", "n")

    def date(self, day: Words, month: Words, year: Words) -> Words:
        return (*day, *month, *((*year, "года") if year else ()))

    def year(self, n: int, around: Around = Around()) -> Words:  # noqa: B008
        return spell(n, "ru", "ordinal", "g")

    def fraction(self, top: int, bottom: int) -> Words:
        if bottom == 2 and top == 1:
            return ("одна", "вторая")
        one, many = _BOTTOMS.get(bottom) or (
            " ".join(spell(bottom, "ru", "ordinal", "n", "f")),
            " ".join(word[:-2] + "ых" for word in spell(bottom, "ru", "ordinal", "n", "f")),
        )
        return (*self.whole(top, "f"), *(one if _ends_in_one(str(top)) else many).split())

    def mixed(self, whole: int, top: int, bottom: int) -> Words:
        unit = "целая" if _ends_in_one(str(whole)) else "целых"
        return (*self.whole(whole, "f"), unit, *self.fraction(top, bottom))

    def roman(self, n: int, around: Around, *, rank: bool) -> Words:
        if not rank:
            return self.whole(n)
        name = around.before
        gender = "f" if name in ("екатерина", "елизавета", "екатерины") else "m"
        return spell(n, "ru", "ordinal", "g" if name.endswith(("а", "я", "ы")) and name not in _QUEENS else "n", gender)

    def extra(self, rule: str, match: re.Match[str], around: Around) -> Words:
        if rule == "city":
            return ("города",) if around.before in (*_GENITIVE, "из") else ("город",)
        if rule == "age":  # 20-летний: the genitive and the rest are one word
            return ("".join((*self.whole(int(match["old"]), "", "g"), match["letn"])),)
        if rule == "years":
            return self._of_years(match, around)
        if rule == "world":
            case = {"ая": "n", "ой": "g", "ую": "a"}[match["ending"]]
            return spell(value_of(match["war"]), "ru", "ordinal", case, "f")
        if rule == "vek":
            return self._of_age(match["century"], match["age"], around)
        noun_written, n = match["noun"], int(match["anno"])
        if noun_written == "гг.":
            return (*spell(n, "ru", "ordinal", "n"), "годы")
        if noun_written == "г." and n < 1000 and self._are_grams(match, around):
            return self.quantity(match["anno"], noun("грамм, грамма, граммов"), around)
        if noun_written == "г.":
            case = "p" if around.before in ("в", "во") else "n" if around.before == "" else "g"
            noun_written = {"p": "году", "n": "год", "g": "года"}[case]
        if n < 1000 and match["noun"] in ("год", "года"):
            return self.quantity(str(n), noun("год, года, лет"), around)
        return (*spell(n, "ru", "ordinal", _YEARS.get(noun_written, "n")), noun_written)

    def _are_grams(self, match: re.Match[str], around: Around) -> bool:
        """Whether "г." after a small number is for grams: a year has "в", a month, "до н. э." or "н. э." beside it."""
        bare = re.match(r"\d+[ \t\u00a0]", match[0]) is not None
        is_year = around.before in (*self.months, "в", "во", "к") or around.after.lower() in ("до", "н")
        return bare and not is_year

    def _of_years(self, match: re.Match[str], around: Around) -> Words:
        name, case = match["many"], "n"
        if name == "гг.":
            name = "годах" if around.before in ("в", "во") else "годы"
        if name != "годы":
            case = "p" if name == "годах" else "g"
        ends = (spell(int(match[end]), "ru", "ordinal", case) for end in ("from", "upto"))
        return (*(word for end in ends for word in end), name)

    def _of_age(self, latin: str, age: str, around: Around) -> Words:
        if age == "вв.":
            return (*spell(value_of(latin), "ru", "ordinal", "n"), "века")
        if age == "в.":
            age = "веке" if around.before in ("в", "во") else "века" if around.before else "век"
        return (*spell(value_of(latin), "ru", "ordinal", _CENTURIES[age]), age)


def _ends_in_one(digits: str) -> bool:
    """Whether a number takes the singular: 1, 21, but not 11."""
    return digits.endswith("1") and not digits.endswith("11")


def _gender_of(digits: str, after: str) -> str:
    """Gender of the noun that a number ending in 1 or 2 counts, by its ending: две книги, одна книга, два дома."""
    word = after.lower()
    if word in _NO_NOUNS or not re.fullmatch(r"[а-яё]+", word):
        return ""
    if _ends_in_one(digits):
        return "f" if word.endswith(("а", "я", "ая")) else "n" if word.endswith(("о", "е")) else "m"
    if digits.endswith("2") and not digits.endswith("12"):
        return "f" if word.endswith(("ы", "и", "ые", "ие")) and len(word) > 2 else "m"
    return ""
