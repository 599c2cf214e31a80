"""Find the words and rules of a language by its code."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module

from megahour.corpus.text.languages.base import Table, Tongue, fold, spell

__all__ = ["fold", "primary", "tongue"]
NAMES = {"de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian", "ru": "Russian"}
"""Class names of the languages with a module and a table of their own."""
NUMBERS = ("ar", "da", "fa", "fi", "id", "ja", "ko", "nl", "no", "pl", "pt", "ro", "sv", "tr", "vi")
"""Languages of ``numbers.yaml``, which read numbers with decimals, minus and percent signs."""

MONEY = ("da", "fi", "id", "ja", "ko", "nl", "no", "pl", "pt", "sv", "tr", "vi")
"""Languages of ``numbers.yaml`` that also read money and units."""

_OF_NUMBERS = {"pl": "Polish", "tr": "Turkish"}  # languages of `NUMBERS` that also have a module
_CODES = {"nb": "no", "kk": "kz"}  # codes that num2words uses


@cache
def primary(language: str) -> str:
    """The primary subtag: ``en`` for ``en-US``; ``en`` when empty."""
    return re.split(r"[-_]", language.strip().lower() or "en")[0]


@cache
def tongue(language: str) -> Tongue:
    """Words and rules for a BCP 47 tag. Languages known only to num2words read only numbers; others read nothing."""
    code = _CODES.get(primary(language), primary(language))
    name = NAMES.get(code) or _OF_NUMBERS.get(code)
    kind: type[Tongue] = getattr(import_module(f"megahour.corpus.text.languages.{code}"), name) if name else Tongue
    return kind(code, Table.of(code) if code in NAMES else Table.of("numbers").part(code))


@cache
def reads_numbers(language: str) -> bool:
    """Whether digits become words in `language`."""
    return bool(spell(1, tongue(language).code))
