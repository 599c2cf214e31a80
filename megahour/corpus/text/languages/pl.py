"""Polish nouns after numbers: 1 złoty, 2 złote, 5 złotych, 1,5 złotego."""

from __future__ import annotations

from megahour.corpus.text.languages.base import Noun, Tongue


class Polish(Tongue):
    """Polish words; nouns have forms for one, few, many and parts, or one form for all."""

    def form(self, name: Noun, digits: str) -> str:
        if len(name.forms) < 4:
            return name.forms[0]
        if "." in digits:
            return name.forms[3]
        n = int(digits.lstrip("-"))
        if n == 1:
            return name.forms[0]
        return name.forms[1] if n % 10 in (2, 3, 4) and n % 100 not in (12, 13, 14) else name.forms[2]
