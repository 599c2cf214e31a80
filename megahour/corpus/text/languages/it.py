"""Italian: "virgola" before decimals, read as a number up to two digits; times with "e" (15:30 "quindici e trenta").

The first of a month is "primo"; kings and centuries are ordinals; telephone numbers are read digit by digit; "un",
"uno" or "una" depends on the noun's beginning and ending; a range is "da … a".
"""

from __future__ import annotations

import re
from typing import ClassVar

from megahour.corpus.text.languages.base import Around, Tongue, Words, one_of, spell

_NO_NOUN = one_of(
    "a ad al alla con da dal dalla del della di e è era fra fu ha i il in la le lo ma nel nella non o per più poi se "
    "si sono su sul tra un una"
)
_COMPOUND_TRE = re.compile(r"(?<=\w)tre$")  # ventitré
_BOTTOMS = {2: "mezzo", 3: "terzo", 4: "quarto", 5: "quinto", 6: "sesto", 8: "ottavo", 10: "decimo"}


class Italian(Tongue):
    """Italian words and rules."""

    fraction_as_number = True
    ordinal_suffix = "[ºª]"
    digit_rules: ClassVar[dict[str, str]] = {
        "rank": r"(?<![\w.,])(?P<n>\d)°(?= (?P<counted>[a-zà-ù]+))",
        "hours": r"(?:(?<=alle )|(?<=ore ))(?P<h>[01]?\d|2[0-4])\.(?P<min>[0-5]\d)(?![\d.])",
    }
    phone = r"0\d{1,3}[ /-]\d{5,8}(?!\d)|3\d\d[ /-]\d{6,7}(?!\d)"
    clock_suffix = r"(?:ore\b)"

    def whole(self, n: int, gender: str = "", case: str = "n") -> Words:
        words = _mended(spell(n, "it"))
        return {"m": ("un",), "f": ("una",), "s": ("uno",)}.get(gender, words) if n == 1 else words

    def ordinal(self, n: int, written: str = "", around: Around = Around()) -> Words:  # noqa: B008
        words = _mended(spell(n, "it", "ordinal"))[n == 1_000_000 :]  # not "un milionesimo"
        return (*words[:-1], words[-1][:-1] + "a") if written == "ª" else words

    def counted(self, digits: str, around: Around) -> Words:
        return self.number(digits, _article(around.after))

    def day(self, n: int, around: Around) -> Words:
        return ("primo",) if n == 1 else self.whole(n)

    def clock(self, hours: int, minutes: int, seconds: int | None, suffix: str) -> Words:
        head = self.whole(hours, "f") if hours == 1 else self.whole(hours)
        tail: Words = ("e", *self.whole(minutes)) if minutes else ()
        return (*head, *tail, *(("e", *self.whole(seconds), "secondi") if seconds else ()))

    def fraction(self, top: int, bottom: int) -> Words:
        if bottom not in _BOTTOMS:
            return ()
        return (*self.whole(top, "m"), _BOTTOMS[bottom] if top == 1 else _BOTTOMS[bottom][:-1] + "i")

    def mixed(self, whole: int, top: int, bottom: int) -> Words:
        return (*self.whole(whole), "e", "mezzo") if (top, bottom) == (1, 2) else super().mixed(whole, top, bottom)

    def roman(self, n: int, around: Around, *, rank: bool) -> Words:
        words = self.ordinal(n)
        if rank:
            return (*words[:-1], words[-1][:-1] + "a") if around.before in ("elisabetta", "caterina") else words
        return self.whole(n)

    def extra(self, rule: str, match: re.Match[str], around: Around) -> Words:
        if rule == "rank":
            return self.ordinal(int(match["n"]), "ª" if match["counted"].endswith("a") else "º")
        return self.clock(int(match["h"]), int(match["min"]), None, "")


def _mended(words: Words) -> Words:
    """num2words has "centodicotto" and "centoventitre"; the "e" of "un milione e duecento" is not spoken."""
    return tuple(_COMPOUND_TRE.sub("tré", word.replace("dicott", "diciott")) for word in words if word != "e")


def _article(after: str) -> str:
    """The form of "one" before a noun: m (un), s (uno), f (una); "" if no noun follows."""
    word = after.lower()
    if not word[:1].isalpha() or word in _NO_NOUN:
        return ""
    if word.endswith(("a", "ione", "tà")):
        return "f"
    impure = word[0] == "z" or word.startswith(("gn", "ps", "x", "y"))
    return "s" if impure or (word[0] == "s" and word[1:2] not in "aeiouàèéìòù") else "m"
