"""Tokens of a Hugging Face `tokenizer.json`, renamed to sentencepiece's convention: `▁` marks the start of a word."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from megahour.core.errors import StoreError
from megahour.units.tokens import BLANK, MARK, printable_name

MAX_BYTES = 64 << 20


class HuggingFaceTokens:
    """Encodes texts with the tokenizer of a file. Token 0 is the blank; token n of the file becomes n + 1.

    A text is `spellable` if its tokens joined give exactly the text: none is unknown, and the case of letters matches
    the tokenizer's. `longest_first`: it is WordPiece, which cuts words so (`ListedPieces`).

    Raises
    ------
    StoreError: the file is no tokenizer, its tokens mark the ends of words (`</w>`) instead of their starts, or two of
        them have the same name.
    """

    def __init__(self, file: bytes, *, where: str) -> None:
        import tokenizers

        if len(file) > MAX_BYTES:
            raise StoreError(f"{len(file)} bytes of a tokenizer, at most {MAX_BYTES}", where=where, remedy=_REMEDY)
        try:
            text = file.decode()
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
            rules = json.loads(text)
        except Exception as error:  # the library raises nothing narrower
            raise StoreError(f"not a tokenizer.json: {error}", where=where, remedy=_REMEDY) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        cut = self._tokenizer.pre_tokenizer  # several kinds split at spaces: see what it does
        splits = cut is not None and [part for part, _ in cut.pre_tokenize_str("a b")] == ["a", "b"]
        name_of, self._before = _names(rules, ids, splits, where)
        names = {number: name_of(token) for token, number in ids.items()}
        size = max(names, default=-1) + 1
        self.tokens = (BLANK, *(printable_name(names.get(number, BLANK), number) for number in range(size)))
        twice, times = Counter(self.tokens).most_common(1)[0]
        if times > 1:  # a model of them could not be used
            remedy = "leave one of them out, or use stage `tokens` with texts"
            raise StoreError(f"two of its tokens are {twice[:20]!r}", where=where, remedy=remedy)
        self.longest_first = rules["model"]["type"] == "WordPiece"

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return [number + 1 for number in self._tokenizer.encode(self._before + text, add_special_tokens=False).ids]

    def spellable(self, text: str) -> bool:
        """Whether a text is not empty and its tokens spell exactly the text."""
        spelled = "".join(self.tokens[token] for token in self.encode(text))
        return bool(text) and spelled.replace(MARK, " ").strip() == text


_REMEDY = "give a file written by `tokenizer.save` or `save_pretrained`"


def _names(rules: dict[str, Any], ids: dict[str, int], splits: bool, where: str) -> tuple[Callable[[str], str], str]:
    """A function from a token of the file to its name here, and a prefix for texts.

    The prefix, a space or nothing, makes the first word be tokenised like any other. splits: at spaces, which it drops.
    """
    model = rules["model"]
    if model.get("end_of_word_suffix"):
        what = f"its tokens mark the ends of words, with {model['end_of_word_suffix']!r}, which is not supported"
        raise StoreError(what, where=where, remedy="use a tokenizer that marks their beginnings, or stage `tokens`")
    if going_on := model.get("continuing_subword_prefix"):
        return lambda token: token.removeprefix(going_on) if token.startswith(going_on) else MARK + token, ""
    if any(token.startswith("\u0120") for token in ids):  # byte-level BPE writes a space as this letter (GPT-2)
        prefixed = _pre_tokenizers(rules).get("ByteLevel", {}).get("add_prefix_space", False)
        letters = _bytes_of_letters()
        return lambda token: _text_of(token, letters), "" if prefixed else " "
    if any(token.startswith(MARK) for token in ids):
        return lambda token: token, ""
    if model["type"] == "WordLevel" and splits:
        return lambda token: MARK + token, ""
    return lambda token: " " if token in ("|", " ") else token, ""


def _pre_tokenizers(rules: dict[str, Any]) -> dict[str, dict[str, Any]]:
    outer = rules.get("pre_tokenizer") or {}
    return {each["type"]: each for each in outer.get("pretokenizers", [outer]) if each}


def _bytes_of_letters() -> dict[str, int]:
    """Letter → byte in byte-level BPE: printable bytes stand for themselves, the others are numbered from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _text_of(token: str, letters: dict[str, int]) -> str:
    """The text of a byte-level token. Parts of a character, and the mark as a letter, which would be read as a space,
    are no text: their name in angle brackets stands for them.
    """
    try:
        text = bytes(letters[letter] for letter in token).decode()
    except (KeyError, UnicodeDecodeError):
        return f"<{token}>"
    return f"<{token}>" if MARK in text else text.replace(" ", MARK)
