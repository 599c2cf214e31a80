"""Read digits, web addresses and hashtags aloud, part by part."""

from __future__ import annotations

import re
import unicodedata

from megahour.corpus.text.languages.base import Tongue, fold
from megahour.corpus.text.written_forms import LETTER, grouped_number

_WEB_PARTS = re.compile(rf"{LETTER}+|\d+|[^\w\s]|_")
_CAMEL = re.compile(r"(?<=[^\W\d_A-ZА-ЯЁÀ-Þ])(?=[A-ZА-ЯЁÀ-Þ])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])|_")


def plain_digits(written: str, words: Tongue) -> str:
    """Convert a language's digit groups and decimal sign to ASCII digits and a dot: "1.234,5" → "1234.5" in German."""
    ascii_digits = "".join(str(unicodedata.decimal(char, char)) for char in written) if written else ""
    if ascii_digits.isdecimal():
        return ascii_digits
    if re.fullmatch(grouped_number(words), ascii_digits):
        ascii_digits = re.sub(words.grouping, "", ascii_digits)
    return ascii_digits.replace(words.decimal_sign, ".").replace("\u066b", ".")


def said_address(written: str, words: Tongue) -> list[str]:
    """Words of a web address: punctuation such as dots and slashes is named, the protocol is omitted."""
    address = re.sub(r"^\w+://", "", written)
    said: list[str] = []
    for part in _WEB_PARTS.findall(address):
        if part.lower() == "www":
            said.extend("www")
        elif part[0].isdecimal():
            said.extend(words.number(plain_digits(part, words)))
        elif part[0].isalpha():
            said.append(fold(part))
        else:
            said.extend(words.web.get(part, "").split())
    return said


def said_hashtag(written: str, words: Tongue) -> list[str]:
    """Words of a hashtag: the name of "#", then the parts of the tag, split at capitals, digits and underscores."""
    parts = [part for part in _CAMEL.split(written) if part]
    said = (
        word
        for part in parts
        for word in (words.number(plain_digits(part, words)) if part.isdecimal() else (fold(part),))
    )
    return [*words.web["#"].split(), *said]
