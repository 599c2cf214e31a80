"""French: "virgule" before decimals, read as a number up to two digits; times with "heures"; telephone digits in pairs.

The first of a month is "premier", other days are cardinals; kings are cardinals from the second on. "Une" is used
before nouns that are feminine by their ending or a short list.
"""

from __future__ import annotations

import re
from typing import ClassVar

from megahour.corpus.text.languages.base import Around, Noun, Tongue, Words, one_of, spell

_FEMININE = one_of(
    "fois heure heures minute minutes seconde secondes personne personnes année années semaine semaines page pages "
    "tonne tonnes livre livres étoile étoiles voiture voitures femme femmes fille filles maison maisons nuit nuits "
    "ligne lignes place places partie parties île îles ville villes rue rues voix chambre chambres"
)
_FEMININE_ENDS = ("tion", "tions", "té", "tés", "ée", "ées", "ette", "ettes", "ance", "ances", "ence", "ences", "sion")
_MASCULINE = one_of(
    "apogée athée bastion camée caducée comité comités comté comtés côté côtés député députés doigté été étés invité "
    "invités lycée lycées mausolée mausolées musée musées pâté pâtés pygmée scarabée scarabées silence silences "
    "squelette squelettes traité traités trophée trophées"
)
_BOTTOMS = {2: "demi", 3: "tiers", 4: "quart"}


class French(Tongue):
    """French words and rules."""

    grouping = "[. \u00a0\u202f\u2009]"
    fraction_as_number = True
    phone_in_groups = True
    ordinal_suffix = r"(?:ers?|ères?|res?|ièmes?|èmes?|emes?|es?|nde?)"
    digit_rules: ClassVar[dict[str, str]] = {
        "heures": r"(?<![\d.,])(?P<h>[01]?\d|2[0-4])\s?[hH](?:\s?(?P<min>[0-5]\d)(?!\d)|(?!\w))"
    }
    phone = r"0\d(?:[ .\u00a0]\d\d){4}(?!\d)"
    clock_suffix = r"(?:heures?\b|h\b)"

    def whole(self, n: int, gender: str = "", case: str = "n") -> Words:
        words = spell(n, "fr")
        return (*words[:-1], "une") if gender == "f" and words[-1] == "un" else words

    def ordinal(self, n: int, written: str = "", around: Around = Around()) -> Words:  # noqa: B008
        many = ("s",) if written.endswith("s") else ("",)
        if n == 1:
            return (("première" if written.startswith(("è", "re")) else "premier") + many[0],)
        if written.startswith("nd") and n == 2:
            return ("seconde" if written == "nde" else "second",)
        words = spell(n, "fr", "ordinal")
        # num2words keeps the plural of "cents" and "vingts" before the ending.
        last = words[-1].replace("centsième", "centième").replace("vingtsième", "vingtième")
        last = last.replace("llionsième", "llionième")
        return (*words[:-1], last + many[0])

    def counted(self, digits: str, around: Around) -> Words:
        after = around.after.lower()
        feminine = after in _FEMININE or (after.endswith(_FEMININE_ENDS) and after not in _MASCULINE)
        return self.number(digits, "f" if feminine else "")

    def scaled(self, digits: str, scale: Noun, symbol: str, around: Around) -> Words:
        words = super().scaled(digits, scale, symbol, around)
        if symbol and words[-1][0] in "aeiouy" and "de" in words:
            return (*words[:-2], f"d'{words[-1]}")
        return words

    def form(self, name: Noun, digits: str) -> str:
        return name.forms[0] if digits.lstrip("-").partition(".")[0] in ("0", "1") else name.forms[-1]

    def clock(self, hours: int, minutes: int, seconds: int | None, suffix: str) -> Words:
        head = (*self.whole(hours, "f"), "heure" if hours < 2 else "heures")
        tail = self.whole(minutes, "f") if minutes else ()
        return (*head, *tail, *((*self.whole(seconds, "f"), "secondes") if seconds else ()))

    def day(self, n: int, around: Around) -> Words:
        return ("premier",) if n == 1 else self.whole(n)

    def fraction(self, top: int, bottom: int) -> Words:
        if bottom in _BOTTOMS:
            name = _BOTTOMS[bottom]
            return (*self.whole(top), name if top == 1 or name.endswith("s") else name + "s")
        return (*self.whole(top), *self.ordinal(bottom, "s" if top > 1 else ""))

    def mixed(self, whole: int, top: int, bottom: int) -> Words:
        return (*self.whole(whole), "et", "demi") if (top, bottom) == (1, 2) else super().mixed(whole, top, bottom)

    def roman(self, n: int, around: Around, *, rank: bool) -> Words:
        return ("premier",) if rank and n == 1 else self.whole(n)

    def extra(self, rule: str, match: re.Match[str], around: Around) -> Words:
        return self.clock(int(match["h"]), int(match["min"] or 0), None, "h")
