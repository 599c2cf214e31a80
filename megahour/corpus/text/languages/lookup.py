"""The languages that are read aloud, by their code."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module

from megahour.corpus.text.languages.base import Table, Tongue, fold, spell

__all__ = ["fold", "primary", "tongue"]
NAMES = {"de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian", "ru": "Russian"}
"""Languages with a module and a table of their own: its class."""


@cache
def primary(language: str) -> str:
    """The primary subtag: ``en`` for ``en-US``; ``en`` when empty."""
    return re.split(r"[-_]", language.strip().lower() or "en")[0]


@cache
def tongue(language: str) -> Tongue:
    """Words and rules of a BCP 47 tag's language; numbers only for others of num2words, nothing for the rest."""
    code = primary(language)
    if code not in NAMES:
        return Tongue(code, Table({}))
    kind: type[Tongue] = getattr(import_module(f"megahour.corpus.text.languages.{code}"), NAMES[code])
    return kind(code, Table.of(code))


@cache
def reads_numbers(language: str) -> bool:
    """Whether digits become words in `language`."""
    return bool(spell(1, primary(language)))
