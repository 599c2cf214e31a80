"""The token list of a model from elsewhere: read, and put into the order in which the aligner spells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError
from megahour.core.filesystems import file_system
from megahour.units.tokens import MARK

if TYPE_CHECKING:
    from megahour.models.params import ImportAlignerParams

BLANKS = ("<blank>", "<blk>", "<pad>", "[PAD]", "<eps>", "[blank]", "_")
SEPARATORS = ("|", " ", "<space>")
MAX_TOKENS_BYTES = 64 << 20


def read_tokens(path: str) -> list[str]:
    """Tokens in the order of the model's outputs.

    From JSON (a list, or a mapping token → number) or text: a token a line, and after a blank its number where every
    line has one (`a 5`). A line that is only a blank is the token " ".
    """
    text = read_file(path, MAX_TOKENS_BYTES).decode("utf-8-sig", errors="strict")
    if path.lower().endswith(".json"):
        found = _parsed(text, path)
    else:
        lines = [line.rstrip("\r\n") for line in text.splitlines()]
        while lines and not lines[-1]:
            lines.pop()
        pairs = [line.rpartition(" ") for line in lines]
        numbered = all(token and number.isdigit() for token, _, number in pairs)
        found = {token: int(number) for token, _, number in pairs} if numbered else lines
    if isinstance(found, Mapping):
        numbers = sorted(found.values())
        if numbers != list(range(len(numbers))):
            raise ConfigError(f"{len(numbers)} tokens are not numbered 0 … {len(numbers) - 1}", where=path)
        found = sorted(found, key=lambda token: found[token])
    doubled = {token for token in found if found.count(token) > 1} if len(set(found)) < len(found) else set()
    if doubled or not found:
        what = f"the token {min(doubled)!r} occurs more than once" if doubled else "an empty token list"
        raise ConfigError(what, where=path)
    return list(found)


def _parsed(text: str, path: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", where=path) from None
    flat = isinstance(found, list) and all(isinstance(token, str) for token in found)
    numbered = isinstance(found, dict) and all(type(number) is int for number in found.values())
    if not flat and not numbered:
        raise ConfigError("neither a list of tokens nor a mapping of tokens to numbers", where=path)
    return found


def ordered(p: ImportAlignerParams, tokens: Sequence[str]) -> dict[str, Any]:
    """`tokens` as the aligner spells with them, the blank first, and `order`: the model's output of each.

    The separator becomes " ". Upper-case letters become lower-case ones, as in normalised text, where the list has no
    lower-case letters of its own (or `case` says so).

    Raises
    ------
    ConfigError: no such token, or two tokens that are equal in lower case.
    """
    blank = _special(p.blank, tokens, BLANKS, "blank")
    separator = _special(p.separator, tokens, SEPARATORS, "separator")
    order = [blank, *(i for i in range(len(tokens)) if i != blank)]
    letters = [token for i, token in enumerate(tokens) if i not in (blank, separator) and not _is_sign(token)]
    upper = any(token != token.lower() for token in letters)
    lower = any(token != token.upper() for token in letters)
    if p.case == "upper" or (p.case == "auto" and upper and not lower):
        tokens = [token if _is_sign(token) else token.lower() for token in tokens]
        doubled = sorted({token for token in tokens if tokens.count(token) > 1})
        if doubled:
            raise ConfigError(f"two tokens are {doubled[0]!r} in lower case", where=p.tokens, remedy="case: lower")
    spelled = [" " if i == separator else tokens[i] for i in order]
    marks = any(token.startswith(MARK) for token in tokens)
    return {"outputs": len(tokens), "tokens": ["<blank>", *spelled[1:]], "order": order, "marks": marks}


def _is_sign(token: str) -> bool:
    """`<unk>`, `[PAD]`: a sign for the model's own use, not text."""
    return len(token) > 2 and token[0] + token[-1] in ("<>", "[]")


def _special(asked: str, tokens: Sequence[str], usual: Sequence[str], role: str) -> int:
    """Index of a special token; -1 for a separator that the list does not have."""
    for token in (asked,) if asked else usual:
        if token in tokens:
            return tokens.index(token)
    if asked or role == "blank":
        what = f"the list has no token {asked!r}" if asked else f"none of {', '.join(usual)} is in the list"
        raise ConfigError(what, where="import-aligner", remedy=f"say with `{role}` which token it is")
    return -1


def read_file(path: str, limit: int) -> bytes:
    """A whole file. Raises ConfigError: there is none, or it has more bytes than `limit`."""
    fs, inner = file_system(path)
    try:
        size = fs.size(inner)
        if size > limit:
            raise ConfigError(f"{size} bytes, at most {limit}", where=path)
        return bytes(fs.cat_file(inner))
    except FileNotFoundError:
        raise ConfigError("no such file", where=path) from None
