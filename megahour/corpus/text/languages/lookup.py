"""The languages that are read aloud, by their code."""

from __future__ import annotations

import re
from functools import cache

from megahour.corpus.text.languages.base import Tongue, fold, spell

__all__ = ["fold", "primary", "tongue"]


@cache
def primary(language: str) -> str:
    """The primary subtag: ``en`` for ``en-US``; ``en`` when empty."""
    return re.split(r"[-_]", language.strip().lower() or "en")[0]


@cache
def tongue(language: str) -> Tongue:
    """Words and rules of a BCP 47 tag's language; numbers only for others of num2words, nothing for the rest."""
    from megahour.corpus.text.languages import de, en, es, fr, it, ru

    kinds: dict[str, type[Tongue]] = {
        "en": en.English,
        "es": es.Spanish,
        "fr": fr.French,
        "it": it.Italian,
        "ru": ru.Russian,
        "de": de.German,
    }
    code = primary(language)
    return kinds.get(code, Tongue)(code)


@cache
def reads_numbers(language: str) -> bool:
    """Whether digits become words in `language`."""
    return bool(spell(1, primary(language)))
