"""German: 1985 is "neunzehnhundertfünfundachtzig" as a year, "eintausend…" as a number; decimals are digit by digit.

The ending of an ordinal depends on the word before it: "der dritte", "am dritten", else "dritter". A number with a dot
is an ordinal before a month, a lower-case word or a noun of a short list, or after an article. Times are read with
"uhr".
"""

from __future__ import annotations

import re
from typing import ClassVar

from megahour.corpus.text.languages.base import Around, Tongue, Words, fold, one_of, spell

_WEAK_E = one_of("der die das dieser diese dieses jede jedes welche eine")
_WEAK_EN = one_of(
    "am im vom zum beim zur dem den des ab bis seit diesem ersten einem einen einer eines ihrem seinem unserem deren "
    "ihren seinen meinem meinen unseren"
)
_ORDINAL_NOUNS = one_of(
    "jahrhundert jahrhunderts jahrtausend auflage platz stock etage klasse kapitel liga bundesliga mal weltkrieg "
    "weltkriegs tag woche runde staffel folge teil rang geburtstag akt satz spieltag lebensjahr semester quartal "
    "halbjahr bezirk"
)
_NEUTER = one_of("jahrhundert jahrtausend kapitel mal lebensjahr semester quartal halbjahr")
_FEMININE_RANKS = one_of("auflage etage klasse liga bundesliga woche runde staffel folge")
_FEMININE = one_of(
    "stunde minute sekunde woche person million milliarde frau tonne seite straße meile stimme tasse flasche"
)
_BEFORE_YEARS = one_of("jahr jahre jahren jahres seit anno sommer winter herbst frühling frühjahr bis ab")
_BOTTOMS = {2: "halb", 3: "drittel", 4: "viertel"}


class German(Tongue):
    """German words and rules."""

    grouping = "[.\u00a0\u202f\u2009'’]"
    letter_rules: ClassVar[dict[str, str]] = {"street": r"\b(?P<street>[^\W\d_]++)(?<=str)\.(?!\w)"}
    phone = r"0\d{2,4}[ /-]\d{4,8}(?!\d)"
    digit_rules: ClassVar[dict[str, str]] = {
        "rang": r"(?<![\d.,])(?P<stelle>\d{1,3})\.(?=[ \t\u00a0]{1,2}[^\W\d_])",
        "monat": r"(?<![\w.,])(?P<d_of_mon>[0-2]?\d|3[01])\.(?P<mon>0?[1-9]|1[0-2])\.(?!\d)",
        "er": r"(?<![\w.,])(?P<zig>\d{1,4})[-‐]?(?P<er>ern?|mal|fach|(?:[jJ]ährig|prozentig)(?:e[mnrs]?)?)\b",
        "uhr": r"(?<![\d.,:])(?P<h>[01]?\d|2[0-4])(?:[:.](?P<min>[0-5]\d))?[ \t\u00a0]?Uhr\b"
        r"(?:[ \t\u00a0](?P<nach>[0-5]?\d)\b(?![.,:]\d|[ \t][^\W\d_]))?",
    }

    def whole(self, n: int, gender: str = "", case: str = "n") -> Words:
        words = spell(n, "de")
        if gender and words[-1].endswith("eins"):
            return (*words[:-1], words[-1][:-1] if gender != "f" or n > 1 else "eine")
        return words

    def ordinal(self, n: int, written: str = "", around: Around = Around()) -> Words:  # noqa: B008
        *head, last = spell(n, "de", "ordinal")
        stem = last[:-1]
        noun_after = around.after.lower()
        strong = "es" if noun_after in _NEUTER else "e" if noun_after in _FEMININE_RANKS else "er"
        ending = "e" if around.before in _WEAK_E else "en" if around.before in _WEAK_EN else strong
        return (*head, stem + ending)

    def year(self, n: int, around: Around = Around()) -> Words:  # noqa: B008
        return spell(n, "de", "year") if 1100 <= n <= 1999 else self.whole(n)

    def counted(self, digits: str, around: Around) -> Words:
        after = around.after
        if len(digits) == 4 and digits.isdecimal() and "1100" <= digits <= "1999":
            counts_a_noun = after[:1].isupper() and around.before not in (*_BEFORE_YEARS, *self.months)
            return self.whole(int(digits)) if counts_a_noun else self.year(int(digits))
        if after[:1].isupper():
            return self.number(digits, "f" if after.lower() in _FEMININE else "m")
        return self.number(digits)

    def clock(self, hours: int, minutes: int, seconds: int | None, suffix: str) -> Words:
        tail = self.whole(minutes) if minutes else ()
        return (*self.whole(hours, "m"), "uhr", *tail, *(("und", *self.whole(seconds), "sekunden") if seconds else ()))

    def day(self, n: int, around: Around) -> Words:
        return self.ordinal(n, "", around)

    def fraction(self, top: int, bottom: int) -> Words:
        if bottom == 2:
            return ("ein", "halb") if top == 1 else (*self.whole(top), "halbe")
        name = _BOTTOMS.get(bottom) or spell(bottom, "de", "ordinal")[-1][:-1] + "el"
        return (*self.whole(top, "m"), name)

    def mixed(self, whole: int, top: int, bottom: int) -> Words:
        if (top, bottom) == (1, 2):
            return ("".join((*self.whole(whole, "m"), "einhalb")),)
        return super().mixed(whole, top, bottom)

    def roman(self, n: int, around: Around, *, rank: bool) -> Words:
        return ("der", spell(n, "de", "ordinal")[-1]) if rank else self.whole(n)

    def extra(self, rule: str, match: re.Match[str], around: Around) -> Words:
        if rule == "street":
            return (fold(match["street"][:-3] + "straße"),)
        if rule == "monat":
            return (*self.ordinal(int(match["d_of_mon"]), "", around), self.months[int(match["mon"]) - 1])
        if rule == "er":  # 90er, 3-mal, 30-jährig: one word
            n = int(match["zig"])
            words = self.year(n) if match["er"].startswith("er") else self.whole(n, "m")
            return (*words[:-1], words[-1] + fold(match["er"]))
        if rule == "rang":
            word, before = around.after, around.before
            ranks = word[:1].islower() or word.lower() in _ORDINAL_NOUNS or before in _WEAK_E or before in _WEAK_EN
            return self.ordinal(int(match["stelle"]), "", around) if ranks else self.number(match["stelle"])
        return self.clock(int(match["h"]), int(match["min"] or match["nach"] or 0), None, "uhr")
