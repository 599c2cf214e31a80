"""Spanish: numbers agree with what they count (veintiún años, doscientas personas), "coma" before decimals.

The first of a month is "primero"; ordinals to ten are ordinals, those of kings above ten cardinals; times are read with
"y" (15:30 "quince y treinta"); a feminine noun is recognised by its ending and a list of exceptions.
"""

from __future__ import annotations

from megahour.corpus.text.languages.base import Around, Tongue, Words, one_of, spell

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
    fraction_as_number = True
    phone_in_groups = True
    ordinal_suffix = r"(?:\.?[ºª]|\.?er|\.?(?:ra|ro|do|da|to|ta|mo|ma|vo|va|no|na)\b)"
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
    """Gender of the noun that a number counts; "" if no noun follows."""
    word = after.lower()
    if not word[:1].isalpha() or word in _NO_NOUN:
        return ""
    if word in _MASCULINE_A:
        return "m"
    return "f" if word in _FEMININE or word.endswith(("as", "a", "ciones", "siones", "dades", "ción", "dad")) else "m"
