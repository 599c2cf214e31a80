"""Turkish numbers, in separate words (TDK, Yazım Kılavuzu). num2words writes one, as on cheques, and loses some."""

from __future__ import annotations

from collections.abc import Iterator

from megahour.corpus.text.languages.base import Tongue, Words

_ONES = ("", "bir", "iki", "üç", "dört", "beş", "altı", "yedi", "sekiz", "dokuz")
_TENS = ("", "on", "yirmi", "otuz", "kırk", "elli", "altmış", "yetmiş", "seksen", "doksan")
_SCALES = ("katrilyon", "trilyon", "milyar", "milyon", "bin", "")


class Turkish(Tongue):
    """Turkish words."""

    def whole(self, n: int, gender: str = "", case: str = "n") -> Words:
        if not 0 < n < 1000 ** len(_SCALES):
            return ("sıfır",) if n == 0 else super().whole(n)
        return tuple(word for word in _words(n) if word)


def _words(n: int) -> Iterator[str]:
    for power, scale in zip(range(len(_SCALES) - 1, -1, -1), _SCALES, strict=True):
        part = n // 1000**power % 1000
        hundreds, tens, ones = part // 100, part // 10 % 10, part % 10
        if part and (part, scale) != (1, "bin"):  # bin, not bir bin
            yield from (_ONES[hundreds] if hundreds > 1 else "", "yüz" if hundreds else "", _TENS[tens], _ONES[ones])
        if part:
            yield scale
