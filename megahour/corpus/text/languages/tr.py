"""Turkish numbers: num2words writes one word, as on cheques; text has separate words (TDK, Yazım Kılavuzu)."""

from __future__ import annotations

import re

from megahour.corpus.text.languages.base import Tongue, Words

_PARTS = re.compile(
    "sıfır|bir|iki|üç|dört|beş|altmış|altı|yedi|sekiz|dokuz|on|yirmi|otuz|kırk|elli|yetmiş|seksen|doksan|yüz|bin|"
    "milyon|milyar|trilyon|katrilyon"
)


class Turkish(Tongue):
    """Turkish words."""

    def whole(self, n: int, gender: str = "", case: str = "n") -> Words:
        return tuple(part for word in super().whole(n) for part in _PARTS.findall(word) or [word])
