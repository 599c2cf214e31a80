"""Cases and genders of Russian words around numbers."""

from __future__ import annotations

import re

from megahour.corpus.text.languages.base import one_of

GENITIVE = one_of("до от около с со более менее больше меньше свыше порядка из без для после кроме")
CASE_OF_SUFFIX = {
    **{"й": ("n", "m"), "ый": ("n", "m"), "ий": ("n", "m"), "ой": ("n", "m"), "я": ("n", "f"), "ая": ("n", "f")},
    **{"е": ("n", "n"), "ое": ("n", "n"), "го": ("g", "m"), "ого": ("g", "m"), "его": ("g", "m")},
    **{"му": ("d", "m"), "ому": ("d", "m"), "м": ("p", "m"), "ом": ("p", "m"), "ем": ("p", "m")},
    **{"ю": ("a", "f"), "ую": ("a", "f"), "х": ("p", "m"), "ых": ("p", "m")},
}
YEARS = {"год": "n", "года": "g", "году": "p", "годом": "i", "годе": "p"}
CENTURIES = {"век": "n", "века": "g", "веку": "d", "веке": "p", "веком": "i"}
BOTTOMS = {2: ("вторая", "вторых"), 3: ("треть", "трети"), 4: ("четверть", "четверти")}
QUEENS = frozenset({"екатерина", "елизавета"})


def ends_in_one(digits: str) -> bool:
    """Whether a number takes the singular: 1, 21, but not 11."""
    return digits.endswith("1") and not digits.endswith("11")


def gender_of(digits: str, after: str) -> str:
    """Gender of the noun that a number ending in 1 or 2 counts, by its ending: две книги, одна книга, два дома."""
    word = after.lower()
    if not re.fullmatch(r"[а-яё]+", word):
        return ""
    if ends_in_one(digits):
        return "f" if word.endswith(("а", "я", "ая")) else "n" if word.endswith(("о", "е")) else "m"
    if digits.endswith("2") and not digits.endswith("12"):
        return "f" if word.endswith(("ы", "и", "ые", "ие")) and len(word) > 2 else "m"
    return ""
