"""Italian: "virgola" before decimals, read as a number up to two digits; times with "e" (15:30 "quindici e trenta").

The first of a month is "primo"; kings and centuries are ordinals; telephone numbers digit by digit; "un", "uno" and
"una" by the noun's beginning and ending; a range is "da … a".
"""

from __future__ import annotations

import re
from typing import ClassVar

from megahour.corpus.text.languages.base import Around, Noun, Tongue, Words, noun, one_of, spell

_NO_NOUN = one_of(
    "a ad al alla con da dal dalla del della di e è era fra fu ha i il in la le lo ma nel nella non o per più poi se "
    "si sono su sul tra un una"
)
_BOTTOMS = {2: "mezzo", 3: "terzo", 4: "quarto", 5: "quinto", 6: "sesto", 8: "ottavo", 10: "decimo"}


class Italian(Tongue):
    """Italian words and rules."""

    decimal_word = "virgola"
    point_word = "punto"
    minus = "meno"
    before_range = "da"
    to = "a"
    and_cents = "e"
    of_money = "di"
    fraction_as_number = True
    months = (
        *("gennaio", "febbraio", "marzo", "aprile", "maggio", "giugno", "luglio", "agosto", "settembre", "ottobre"),
        *("novembre", "dicembre"),
    )
    ordinal_suffix = "[ºª]"
    percent = noun("per cento", gender="")
    per_mille = noun("per mille")
    degree = noun("grado", "gradi")
    currencies: ClassVar[dict[str, Noun]] = {
        "$": noun("dollaro", "dollari"),
        "€": noun("euro"),
        "£": noun("sterlina", "sterline", gender="f"),
        "¥": noun("yen"),
        "₽": noun("rublo", "rubli"),
    }
    codes: ClassVar[dict[str, str]] = {"USD": "$", "US$": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}
    cents: ClassVar[dict[str, Noun]] = {
        "$": noun("centesimo", "centesimi"),
        "€": noun("centesimo", "centesimi"),
        "£": noun("penny", "penny"),
    }
    scales: ClassVar[dict[str, Noun]] = {
        "milioni": noun("milione", "milioni"),
        "milione": noun("milione", "milioni"),
        "miliardi": noun("miliardo", "miliardi"),
        "miliardo": noun("miliardo", "miliardi"),
        "mln": noun("milione", "milioni"),
        "mld": noun("miliardo", "miliardi"),
    }
    units: ClassVar[dict[str, Noun]] = {
        "km/h": noun("chilometro orario", "chilometri orari"),
        "m/s": noun("metro al secondo", "metri al secondo"),
        "km²": noun("chilometro quadrato", "chilometri quadrati"),
        "m²": noun("metro quadrato", "metri quadrati"),
        "mq": noun("metro quadrato", "metri quadrati"),
        "m³": noun("metro cubo", "metri cubi"),
        "km": noun("chilometro", "chilometri"),
        "cm": noun("centimetro", "centimetri"),
        "mm": noun("millimetro", "millimetri"),
        "m": noun("metro", "metri"),
        "kg": noun("chilo", "chili"),
        "mg": noun("milligrammo", "milligrammi"),
        "g": noun("grammo", "grammi"),
        "ml": noun("millilitro", "millilitri"),
        "l": noun("litro", "litri"),
        "t": noun("tonnellata", "tonnellate", gender="f"),
        "ha": noun("ettaro", "ettari"),
        "h": noun("ora", "ore", gender="f"),
        "min": noun("minuto", "minuti"),
        "s": noun("secondo", "secondi"),
        "°C": noun("grado celsius", "gradi celsius"),
        "kHz": noun("chilohertz"),
        "MHz": noun("megahertz"),
        "Hz": noun("hertz"),
        "kW": noun("chilowatt"),
        "kWh": noun("chilowattora"),
        "MB": noun("megabyte"),
        "GB": noun("gigabyte"),
        "dB": noun("decibel"),
    }
    symbols: ClassVar[dict[str, str]] = {
        **{"&": "e", "@": "chiocciola", "+": "più", "=": "uguale", "×": "per", "÷": "diviso", "±": "più o meno"},
        **{"%": "per cento", "‰": "per mille", "°": "gradi", "#": "numero", "$": "dollaro", "€": "euro"},
        **{"£": "sterlina", "§": "paragrafo", "¥": "yen", "₽": "rublo"},
    }
    web: ClassVar[dict[str, str]] = {
        **{".": "punto", "/": "barra", "-": "trattino", "_": "underscore", "@": "chiocciola", "#": "hashtag"},
        ":": "due punti",
    }
    abbreviations: ClassVar[dict[str, str]] = {
        "sig.": "signor",
        "sig.ra": "signora",
        "sig.na": "signorina",
        "sigg.": "signori",
        "dott.": "dottor",
        "dott.ssa": "dottoressa",
        "dr.": "dottor",
        "prof.": "professor",
        "prof.ssa": "professoressa",
        "ing.": "ingegner",
        "avv.": "avvocato",
        "on.": "onorevole",
        "ecc.": "eccetera",
        "p.es.": "per esempio",
        "p. es.": "per esempio",
        "tel.": "telefono",
        "ca.": "circa",
        "a.c.": "avanti cristo",
        "d.c.": "dopo cristo",
        "v.le": "viale",
        "p.zza": "piazza",
    }
    before_numbers: ClassVar[dict[str, str]] = {
        **{"n.": "numero", "n°": "numero", "nº": "numero", "pag.": "pagina", "pagg.": "pagine", "art.": "articolo"},
        "cap.": "capitolo",
    }
    digit_rules: ClassVar[dict[str, str]] = {
        "rank": r"(?<![\w.,])(?P<n>\d)°(?= (?P<counted>[a-zà-ù]+))",
        "hours": r"(?:(?<=alle )|(?<=ore ))(?P<h>[01]?\d|2[0-4])\.(?P<min>[0-5]\d)(?![\d.])",
    }
    parts_of_works = one_of("capitolo tomo parte volume atto scena titolo guerra articolo fase tipo")
    rulers = one_of(
        "vittorio emanuele umberto enrico carlo luigi filippo paolo giovanni pio benedetto napoleone giorgio "
        "elisabetta nicola caterina federico guglielmo ferdinando leone gregorio alessandro secolo"
    )
    ages = frozenset({"secolo"})
    phone = r"0\d{1,3}[ /-]\d{5,8}(?!\d)|3\d\d[ /-]\d{6,7}(?!\d)"
    clock_suffix = r"(?:ore\b)"

    def whole(self, n: int, gender: str = "", case: str = "n") -> Words:
        words = tuple(word for word in spell(n, "it") if word != "e")  # "un milione e duecento": no one says the "e"
        return {"m": ("un",), "f": ("una",), "s": ("uno",)}.get(gender, words) if n == 1 else words

    def ordinal(self, n: int, written: str = "", around: Around = Around()) -> Words:  # noqa: B008
        words = tuple(word for word in spell(n, "it", "ordinal") if word != "e")
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


def _article(after: str) -> str:
    """How "one" is said before a noun: m (un), s (uno), f (una), "" when no noun follows."""
    word = after.lower()
    if not word[:1].isalpha() or word in _NO_NOUN:
        return ""
    if word.endswith(("a", "ione", "tà")):
        return "f"
    impure = word[0] == "z" or word.startswith(("gn", "ps", "x", "y"))
    return "s" if impure or (word[0] == "s" and word[1:2] not in "aeiouàèéìòù") else "m"
