"""Licence expressions of SPDX 2.3, annex D: identifiers joined by WITH, AND and OR, in that order of precedence.

    expression = term {OR term};  term = factor {AND factor};  factor = "(" expression ")" | licence [WITH exception]

Reading is lenient: operators in any case, free names of licences ("CC BY 4.0 and MIT"), and Cargo's old
``MIT/Apache-2.0``. Writing is strict.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

MAX_PARTS = 50
_OPERATOR = r"(?<![\w-])(?:and|or|with)(?![\w-])"  # not the "or" of GPL-3.0-or-later
_TOKEN = re.compile(rf"\s*(\(|\)|{_OPERATOR})\s*", re.IGNORECASE)
_SLASHED = re.compile(r"[A-Za-z0-9.+-]+(?:/[A-Za-z0-9.+-]+)+")
_EXCEPTION = re.compile(r"[A-Za-z0-9.-]+-[A-Za-z0-9.-]*(?:exception|note|linking)[A-Za-z0-9.-]*", re.IGNORECASE)


class NoExpressionError(ValueError):
    """The text is not a licence expression, or names an unknown licence."""


@dataclass(frozen=True)
class Expression:
    """A licence (`parts` empty), or parts joined by `operator`."""

    licence: str = ""
    operator: Literal["", "AND", "OR", "WITH"] = ""
    parts: tuple[Expression, ...] = ()

    @property
    def text(self) -> str:
        """The expression as SPDX writes it."""
        if not self.parts:
            return self.licence
        inner = (
            f"({part.text})" if self.operator == "AND" and part.operator == "OR" else part.text for part in self.parts
        )
        return f" {self.operator} ".join(inner)

    def allows(self, is_allowed: Callable[[str], bool]) -> bool:
        """Whether the expression is allowed: any part of an OR, all parts of an AND, the licence before a WITH."""
        if not self.parts:
            return is_allowed(self.licence)
        if self.operator == "WITH":
            return is_allowed(self.text) or self.parts[0].allows(is_allowed)
        judged = [part.allows(is_allowed) for part in self.parts]
        return any(judged) if self.operator == "OR" else all(judged)


def looks_like_one(text: str) -> bool:
    """Whether the text has an operator, and so is not the name of one licence."""
    return bool(re.search(_OPERATOR, text, re.IGNORECASE)) or bool(_SLASHED.fullmatch(text) and "//" not in text)


def parse(text: str, identify: Callable[[str], str], unknown: str) -> Expression:
    """Parse an expression. `identify` returns the identifier of one licence, or `unknown`.

    Raises
    ------
    NoExpressionError: unbalanced brackets, no licence, more than `MAX_PARTS` parts, or an unknown licence.
    """
    if _SLASHED.fullmatch(text):
        text = text.replace("/", " OR ")
    tokens = [token.strip() for token in _TOKEN.split(text) if token.strip()]
    if len(tokens) > 2 * MAX_PARTS:
        raise NoExpressionError(f"{len(tokens)} tokens, the limit is {2 * MAX_PARTS}")
    parser = _Parser(tokens, identify, unknown)
    expression = parser.joined("OR")
    if parser.place != len(tokens):
        raise NoExpressionError(f"{tokens[parser.place]!r} is unexpected")
    return expression


class _Parser:
    def __init__(self, tokens: list[str], identify: Callable[[str], str], unknown: str) -> None:
        self.tokens, self.place = tokens, 0
        self._identify, self._unknown = identify, unknown

    def _take(self, word: str) -> bool:
        matches = self.place < len(self.tokens) and self.tokens[self.place].upper() == word
        self.place += matches
        return matches

    def joined(self, operator: Literal["AND", "OR"]) -> Expression:
        """Terms joined by `operator`; AND binds tighter than OR."""
        parts = [self._term(operator)]
        while self._take(operator):
            parts.append(self._term(operator))
        flat = [inner for part in parts for inner in (part.parts if part.operator == operator else (part,))]
        different = tuple(dict.fromkeys(flat))
        return different[0] if len(different) == 1 else Expression(operator=operator, parts=different)

    def _term(self, operator: Literal["AND", "OR"]) -> Expression:
        return self.joined("AND") if operator == "OR" else self._factor()

    def _factor(self) -> Expression:
        if self._take("("):
            inner = self.joined("OR")
            if not self._take(")"):
                raise NoExpressionError("a bracket is not closed")
            return inner
        licence = self._licence()
        if not self._take("WITH"):
            return licence
        if self.place >= len(self.tokens) or not _EXCEPTION.fullmatch(self.tokens[self.place]):
            raise NoExpressionError("WITH is not followed by an exception")
        self.place += 1
        return Expression(operator="WITH", parts=(licence, Expression(self.tokens[self.place - 1])))

    def _licence(self) -> Expression:
        if self.place >= len(self.tokens) or self.tokens[self.place] in "()":
            raise NoExpressionError("a licence is missing")
        name = self.tokens[self.place].strip(" ,;")
        self.place += 1
        later = name.endswith("+")  # "or any later version"
        identifier = self._identify(name.removesuffix("+"))
        if identifier == self._unknown:
            raise NoExpressionError(f"{name!r} is not a known licence")
        if later and identifier.endswith("-only"):
            return Expression(identifier.removesuffix("-only") + "-or-later")
        return Expression(identifier + "+" if later else identifier)
