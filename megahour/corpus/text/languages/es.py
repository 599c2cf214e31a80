"""Spanish: numbers agree with what they count (veintiún años, doscientas personas), "coma" before decimals.

The first of a month is "primero"; ordinals to ten are ordinals, those of kings above ten cardinals; times are read with
"y" (15:30 "quince y treinta"); a feminine noun is told by its ending -as or -a and a list of exceptions.
"""

from __future__ import annotations

from typing import ClassVar

from megahour.corpus.text.languages.base import Around, Noun, Tongue, Words, noun, one_of, spell

_NO_NOUN = one_of(
    "a ante con contra de desde e el en entre era es fue ha hasta la las los lo más menos o para pero por que se según "
    "sin sobre son su sus tras u un una veces y ya mil no ni como cuando al del le les está están hay otra si"
)
_MASCULINE_A = one_of(
    "día días problema problemas programa programas sistema sistemas tema temas poema poemas mapa mapas idioma idiomas "
    "clima climas planeta planetas gramas kilogramas telegrama telegramas drama dramas síntoma síntomas"
)
_FEMININE = one_of(
    "mujeres mujer noches noche veces vez clases clase partes parte calles calle flores flor leyes ley imágenes imagen "
    "redes red torres torre tardes tarde series serie especies especie fases fase frases frase naves nave manos mano"
)
_TEENS = {
    **{11: "undécimo", 12: "duodécimo", 13: "decimotercero", 14: "decimocuarto", 15: "decimoquinto"},
    **{16: "decimosexto", 17: "decimoséptimo", 18: "decimoctavo", 19: "decimonoveno"},
}
_BOTTOMS = {2: "medio", 3: "tercio", 4: "cuarto", 5: "quinto", 6: "sexto", 8: "octavo", 10: "décimo"}


class Spanish(Tongue):
    """Spanish words and rules."""

    grouping = "[. \u00a0\u202f\u2009]"
    decimal_word = "coma"
    point_word = "punto"
    minus = "menos"
    to = "a"
    and_cents = "con"
    of_money = "de"
    fraction_as_number = True
    phone_in_groups = True
    months = (
        *("enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre", "octubre"),
        *("noviembre", "diciembre"),
    )
    ordinal_suffix = r"(?:\.?[ºª]|\.?er|\.?(?:ra|ro|do|da|to|ta|mo|ma|vo|va|no|na)\b)"
    percent = noun("por ciento", gender="")
    per_mille = noun("por mil")
    degree = noun("grado", "grados")
    currencies: ClassVar[dict[str, Noun]] = {
        "$": noun("dólar", "dólares"),
        "€": noun("euro", "euros"),
        "£": noun("libra", "libras", gender="f"),
        "¥": noun("yen", "yenes"),
        "₽": noun("rublo", "rublos"),
    }
    codes: ClassVar[dict[str, str]] = {"USD": "$", "US$": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}
    cents: ClassVar[dict[str, Noun]] = {
        "$": noun("centavo", "centavos"),
        "€": noun("céntimo", "céntimos"),
        "£": noun("penique", "peniques"),
    }
    scales: ClassVar[dict[str, Noun]] = {
        "millones": noun("millón", "millones"),
        "millón": noun("millón", "millones"),
        "mill.": noun("millón", "millones"),
        "billones": noun("billón", "billones"),
        "M": noun("millón", "millones"),
    }
    units: ClassVar[dict[str, Noun]] = {
        "km/h": noun("kilómetro por hora", "kilómetros por hora"),
        "m/s": noun("metro por segundo", "metros por segundo"),
        "km²": noun("kilómetro cuadrado", "kilómetros cuadrados"),
        "m²": noun("metro cuadrado", "metros cuadrados"),
        "m³": noun("metro cúbico", "metros cúbicos"),
        "km": noun("kilómetro", "kilómetros"),
        "cm": noun("centímetro", "centímetros"),
        "mm": noun("milímetro", "milímetros"),
        "m": noun("metro", "metros"),
        "kg": noun("kilo", "kilos"),
        "mg": noun("miligramo", "miligramos"),
        "g": noun("gramo", "gramos"),
        "ml": noun("mililitro", "mililitros"),
        "l": noun("litro", "litros"),
        "t": noun("tonelada", "toneladas", gender="f"),
        "ha": noun("hectárea", "hectáreas", gender="f"),
        "h": noun("hora", "horas", gender="f"),
        "min": noun("minuto", "minutos"),
        "s": noun("segundo", "segundos"),
        "°C": noun("grado celsius", "grados celsius"),
        "kHz": noun("kilohercio", "kilohercios"),
        "MHz": noun("megahercio", "megahercios"),
        "Hz": noun("hercio", "hercios"),
        "kW": noun("kilovatio", "kilovatios"),
        "kWh": noun("kilovatio hora", "kilovatios hora"),
        "MB": noun("megabyte", "megabytes"),
        "GB": noun("gigabyte", "gigabytes"),
        "dB": noun("decibelio", "decibelios"),
    }
    symbols: ClassVar[dict[str, str]] = {
        **{"&": "y", "@": "arroba", "+": "más", "=": "igual a", "×": "por", "÷": "entre", "±": "más menos"},
        **{"%": "por ciento", "‰": "por mil", "°": "grados", "#": "número", "$": "dólar", "€": "euro", "£": "libra"},
        **{"§": "sección", "¥": "yen", "₽": "rublo"},
    }
    web: ClassVar[dict[str, str]] = {
        ".": "punto",
        "/": "barra",
        "-": "guion",
        "_": "guion bajo",
        "@": "arroba",
        "#": "hashtag",
        ":": "dos puntos",
    }
    abbreviations: ClassVar[dict[str, str]] = {
        "sr.": "señor",
        "sra.": "señora",
        "srta.": "señorita",
        "sres.": "señores",
        "dr.": "doctor",
        "dra.": "doctora",
        "dña.": "doña",
        "ud.": "usted",
        "uds.": "ustedes",
        "vd.": "usted",
        "etc.": "etcétera",
        "p. ej.": "por ejemplo",
        "tel.": "teléfono",
        "av.": "avenida",
        "avda.": "avenida",
        "prof.": "profesor",
        "aprox.": "aproximadamente",
        "a. c.": "antes de cristo",
        "d. c.": "después de cristo",
    }
    before_numbers: ClassVar[dict[str, str]] = {
        **{"núm.": "número", "n.º": "número", "nº": "número", "n°": "número", "pág.": "página", "págs.": "páginas"},
        **{"art.": "artículo", "cap.": "capítulo"},
    }
    exact_abbreviations: ClassVar[dict[str, str]] = {
        "EE. UU.": "estados unidos",
        "EE.UU.": "estados unidos",
        "EEUU": "estados unidos",
    }
    parts_of_works = one_of(
        "siglo siglos capítulo tomo parte volumen acto escena título guerra mundial artículo fase tipo"
    )
    rulers = one_of(
        "felipe carlos alfonso fernando isabel juan pablo luis enrique pío benedicto napoleón nicolás jorge carlos "
        "catalina pedro sancho jaime alejandro"
    )
    phone = r"[6789]\d\d(?:[ \u00a0]\d{3}[ \u00a0]\d{3}|(?:[ \u00a0]\d\d){3})(?!\d)"
    clock_suffix = r"(?:horas\b|hs?\b\.?)"

    def whole(self, n: int, gender: str = "", case: str = "n") -> Words:
        words = list(spell(n, "es"))
        for position, word in enumerate(words[:-1]):
            if words[position + 1] in ("mil", "millones", "billones"):
                words[position] = {"veintiuno": "veintiún", "uno": "un"}.get(word, word)
        if gender:
            ends = {"m": {"uno": "un", "veintiuno": "veintiún"}, "f": {"uno": "una", "veintiuno": "veintiuna"}}[gender]
            words[-1] = ends.get(words[-1], words[-1])
        if gender == "f":
            below = max((position for position, word in enumerate(words) if word.startswith("millon")), default=-1) + 1
            words[below:] = [_feminine_hundreds(word) for word in words[below:]]
        return tuple(words)

    def ordinal(self, n: int, written: str = "", around: Around = Around()) -> Words:  # noqa: B008
        words = [_TEENS[n]] if n in _TEENS else list(spell(n, "es", "ordinal"))
        if not words:
            return self.whole(n)
        if written.endswith(("ª", "a")):
            return tuple(word[:-1] + "a" if word.endswith("o") else word for word in words)
        short = written.endswith("er") or (written and _gender(around.after) == "m")
        return (*words[:-1], words[-1][:-1]) if short and words[-1].endswith(("primero", "tercero")) else tuple(words)

    def counted(self, digits: str, around: Around) -> Words:
        return self.number(digits, _gender(around.after))

    def day(self, n: int, around: Around) -> Words:
        return ("primero",) if n == 1 else self.whole(n)

    def date(self, day: Words, month: Words, year: Words) -> Words:
        return (*day, "de", *month, *(("de", *year) if year else ()))

    def clock(self, hours: int, minutes: int, seconds: int | None, suffix: str) -> Words:
        head = self.whole(hours, "f")
        tail: Words = ("y", *self.whole(minutes)) if minutes else ()
        extra: Words = ("y", *self.whole(seconds), "segundos") if seconds else ()
        return (*head, *tail, *extra, *(("horas",) if suffix else ()))

    def fraction(self, top: int, bottom: int) -> Words:
        if bottom not in _BOTTOMS:
            return ()
        name = _BOTTOMS[bottom]
        return (*self.whole(top, "m"), name if top == 1 else name + "s")

    def mixed(self, whole: int, top: int, bottom: int) -> Words:
        words = super().mixed(whole, top, bottom)
        return tuple(word for word in words if word != "un") if (top, bottom) == (1, 2) else words

    def roman(self, n: int, around: Around, *, rank: bool) -> Words:
        if rank and n <= 10:
            words = self.ordinal(n)
            return tuple(word[:-1] + "a" for word in words) if around.before in ("isabel", "catalina") else words
        return self.whole(n)


def _feminine_hundreds(word: str) -> str:
    return word[:-2] + "as" if word.endswith("cientos") or word == "quinientos" else word


def _gender(after: str) -> str:
    """Gender of the noun that a number counts, "" when what follows is none."""
    word = after.lower()
    if not word[:1].isalpha() or word in _NO_NOUN:
        return ""
    if word in _MASCULINE_A:
        return "m"
    return "f" if word in _FEMININE or word.endswith(("as", "a", "ciones", "siones", "dades", "ción", "dad")) else "m"
