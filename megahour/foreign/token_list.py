"""Reads the token list of an imported model and orders it for the aligner."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError
from megahour.core.filesystems import file_system
from megahour.core.unicode import shown
from megahour.units.tokens import BLANK, MARK, is_sign, lines_of_tokens, printable_name

if TYPE_CHECKING:
    from megahour.foreign.params import ImportAlignerParams

BLANKS = ("<blank>", "<blk>", "<pad>", "[PAD]", "<eps>", "[blank]", "_")
SEPARATORS = ("|", " ", "<space>")
GOES_ON = "##"  # WordPiece's sign of a piece that continues a word
MAX_TOKENS_BYTES = 64 << 20


def read_tokens(path: str) -> list[str]:
    """Tokens in the order of the model's outputs.

    The file is JSON (a list, or a map from token to number) or text: a token per line, or if every line has one, a
    token and its number after a space or tab (`a 5`). A line of one space is the token " ".

    Raises
    ------
    ConfigError: the file is missing, damaged or empty, or a token or number occurs twice.
    """
    try:
        text = read_file(path, MAX_TOKENS_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8: {error}", where=path, remedy="save the list as UTF-8") from None
    if path.lower().endswith(".json"):
        tokens = _parsed(text, path)
    else:
        try:
            tokens = lines_of_tokens(text)
        except ValueError as error:
            raise ConfigError(f"{error}", where=path) from None
    if isinstance(tokens, Mapping):
        tokens = by_number(tokens, where=path)
    if len(set(tokens)) < len(tokens) or not tokens:
        raise ConfigError(_doubled(tokens) if tokens else "an empty token list", where=path)
    return list(tokens)


def _doubled(tokens: Sequence[str]) -> str:
    token, _ = Counter(tokens).most_common(1)[0]
    return f"the token {token!r} occurs more than once"


def by_number(numbers: Mapping[str, Any], *, where: str) -> list[str]:
    """Tokens in the order of their `numbers`. Raises ConfigError: they are not 0 … N - 1.

    >>> by_number({"b": 1, "a": 0}, where="vocab.json")
    ['a', 'b']
    """
    number, times = Counter(map(str, numbers.values())).most_common(1)[0] if numbers else ("", 0)
    if times > 1:
        first, second = [token for token, own in numbers.items() if str(own) == number][:2]
        what = f"the tokens {first!r} and {second!r} both have the number {number[:20]}"
        raise ConfigError(what, where=where, remedy="give the file that the model was trained with")
    if sorted(map(str, numbers.values())) != sorted(map(str, range(len(numbers)))):
        raise ConfigError(f"{len(numbers)} tokens are not numbered 0 … {len(numbers) - 1}", where=where)
    return sorted(numbers, key=lambda token: int(numbers[token]))


def _parsed(text: str, path: str) -> Any:
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}", where=path) from None
    flat = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
    numbered = isinstance(tokens, dict) and all(type(number) is int for number in tokens.values())
    if not flat and not numbered:
        raise ConfigError("neither a list of tokens nor a map from tokens to numbers", where=path)
    return tokens


def ordered(p: ImportAlignerParams, tokens: Sequence[str]) -> dict[str, Any]:
    """`tokens` in the aligner's spelling, the blank first, and `order`: the model's output for each.

    The separator becomes " "; among characters it may be ▁, as `export-model` writes it. Letters become lower case, as
    in normalised text, if the list has upper-case letters only or `case` is upper. WordPiece's pieces become
    sentencepiece's, and `longest_first` says that they were WordPiece's.

    Raises
    ------
    ConfigError: the blank or separator is missing, or two tokens are equal in lower case.
    """
    blank = _special(p.blank, tokens, BLANKS, "blank")
    separators = SEPARATORS if any(len(token) > 1 and not is_sign(token) for token in tokens) else (*SEPARATORS, MARK)
    separator = _special(p.separator, tokens, separators, "separator")
    order = [blank, *(i for i in range(len(tokens)) if i != blank)]
    word_pieces = separator < 0 and _are_word_pieces(tokens)
    if word_pieces:
        tokens = _marked(tokens, blank)
    letters = [token for i, token in enumerate(tokens) if i not in (blank, separator) and not is_sign(token)]
    upper = any(token != token.lower() for token in letters)
    # Lists of capitals may have ß, whose capital form is SS.
    lower = any(token != token.upper() and len(token) == len(token.upper()) for token in letters)
    if p.case == "upper" or (p.case == "auto" and upper and not lower):
        tokens = [token if is_sign(token) else token.lower() for token in tokens]
        doubled = sorted({token for token in tokens if tokens.count(token) > 1})
        if doubled:
            raise ConfigError(f"two tokens are {doubled[0]!r} in lower case", where=p.tokens, remedy="case: lower")
    spelled = [" " if i == separator else _other(tokens[i], i) for i in order]
    marks = any(token.startswith(MARK) for token in spelled)
    about = {"outputs": len(tokens), "tokens": [BLANK, *spelled[1:]], "order": order, "marks": marks}
    return about | ({"longest_first": True} if word_pieces else {})


def _other(token: str, number: int) -> str:
    """The name of a token that is neither the blank nor the separator: never theirs, which texts would be spelled with,
    and one that files and terminals can have."""
    return f"<{number}>" if token == " " or token != shown(token) else printable_name(token, number)


def _are_word_pieces(tokens: Sequence[str]) -> bool:
    """Whether the list is of WordPiece."""
    goes_on = any(token.startswith(GOES_ON) and token != GOES_ON for token in tokens)
    return goes_on and not any(token.startswith(MARK) for token in tokens)


def _marked(tokens: Sequence[str], blank: int) -> Sequence[str]:
    """Pieces of WordPiece (`hell`, `##o`) in sentencepiece's form (`▁hell`, `o`)."""
    named = [token.removeprefix(GOES_ON) if token.startswith(GOES_ON) else MARK + token for token in tokens]
    return [old if i == blank or is_sign(old) else new for i, (old, new) in enumerate(zip(tokens, named, strict=True))]


def _special(asked: str, tokens: Sequence[str], usual: Sequence[str], role: str) -> int:
    """Index of a special token; -1 if the list has no separator."""
    for token in (asked,) if asked else usual:
        if token in tokens:
            return tokens.index(token)
    if asked or role == "blank":
        what = f"the list has no token {asked!r}" if asked else f"none of {', '.join(usual)} is in the list"
        raise ConfigError(what, where="import-aligner", remedy=f"set `{role}` to the right token")
    return -1


def read_file(path: str, limit: int) -> bytes:
    """Contents of a file. Raises ConfigError: it does not exist, is a folder, or has more than `limit` bytes."""
    fs, inner = file_system(path)
    try:
        size = fs.size(inner)
        if size > limit:
            raise ConfigError(f"{size} bytes, at most {limit}", where=path)
        return bytes(fs.cat_file(inner))
    except FileNotFoundError:
        raise ConfigError("no such file", where=path) from None
    except IsADirectoryError:
        raise ConfigError("a folder, not a file", where=path) from None
