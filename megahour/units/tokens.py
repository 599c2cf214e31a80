"""Character tokens for CTC (the blank, then characters in code-point order), and words of a token path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol

BLANK = "<blank>"
BLANKS = (BLANK, "<blk>", "<eps>", "<pad>", "[PAD]", "-")
"""Names of token 0 in this and other toolkits."""
MARK = "\u2581"  # sentencepiece's marker for the start of a word
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NUMBERED = re.compile(r"(.+)[ \t]([0-9]+)")
Span = tuple[int, int]
"""The first frame of a word, and the first frame after it."""


def lines_of_tokens(text: str) -> list[str] | dict[str, int]:
    """Tokens of a list: one per line, or if every line has one, a token and its number after a space or tab.

    Raises ValueError: a numbered token, or a number, occurs twice.

    >>> lines_of_tokens("<blk> 0\\na 1\\n  2\\n")
    {'<blk>': 0, 'a': 1, ' ': 2}
    """
    lines = [line.rstrip("\r\n") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    pairs = [found.groups() for found in map(_NUMBERED.fullmatch, lines) if found]
    if not pairs or len(pairs) < len(lines):
        return lines
    numbers = {token: int(number) for token, number in pairs}
    if len(numbers) < len(pairs):
        token, _ = Counter(token for token, _ in pairs).most_common(1)[0]
        raise ValueError(f"the token {token!r} occurs more than once")
    number, times = Counter(numbers.values()).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{times} tokens have the number {number}")
    return numbers


def printable_name(name: str, number: int) -> str:
    """The token's name, which lists of a token per line can have: its number in angle brackets in place of control
    characters, and of the name of the blank. No cleaned text has either.
    """
    return f"<{number}>" if name == BLANK or CONTROL.search(name) else name


def is_sign(token: str) -> bool:
    """Whether a token is a special symbol such as `<unk>`, `[PAD]` or the byte `<0x41>`, not text."""
    return len(token) > 2 and token[0] + token[-1] in ("<>", "[]")


class TokenSpeller(Protocol):
    """Converts texts to the tokens of a model. Token 0 is the blank."""

    @property
    def tokens(self) -> tuple[str, ...]: ...

    def encode(self, text: str) -> list[int]: ...

    def spellable(self, text: str) -> bool: ...


@dataclass(frozen=True)
class Characters:
    """A character inventory. Token 0 is the blank; the space is an ordinary character that separates words."""

    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.tokens or self.tokens[0] != BLANK:
            raise ValueError(f"token 0 must be {BLANK!r}, got {self.tokens[:1]}")
        if len(set(self.tokens)) != len(self.tokens):
            raise ValueError("a token occurs twice")
        if wrong := [token for token in self.tokens[1:] if len(token) != 1]:
            raise ValueError(f"token {wrong[0]!r} is not one character")

    @staticmethod
    def of(texts: Iterable[str]) -> Characters:
        """The inventory of the characters in these texts, which must be normalised."""
        characters: set[str] = set()
        for text in texts:
            characters.update(text)
        return Characters((BLANK, *sorted(characters)))

    @cached_property
    def index(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """The token of each character.

        Raises
        ------
        KeyError: naming the first character that the inventory lacks.
        """
        index = self.index
        try:
            return [index[character] for character in text]
        except KeyError as error:
            raise KeyError(
                f"character {error.args[0]!r} of {text[:40]!r} is not among the {len(self)} tokens"
            ) from None

    def spellable(self, text: str) -> bool:
        """Whether a text is not empty and all its characters are known."""
        return bool(text) and set(text) <= self.index.keys()

    def decode(self, path: Sequence[int]) -> str:
        """The text of a CTC path: merge equal neighbours, then remove blanks."""
        kept = [token for i, token in enumerate(path) if token and (i == 0 or token != path[i - 1])]
        return "".join(self.tokens[token] for token in kept)


def frames_needed(tokens: Sequence[int]) -> int:
    """The smallest number of frames in which a CTC path can spell `tokens`.

    Each token takes one frame, and equal neighbours need a blank between them.

    >>> frames_needed([1, 2, 2, 3])
    5
    """
    return len(tokens) + sum(a == b for a, b in pairwise(tokens))


class SpelledWord(NamedTuple):
    """A word of a token path, with its frames."""

    text: str
    span: Span


def spelled_words(
    labels: Sequence[int], tokens: Sequence[str], mark: str = "", *, merge: bool = True
) -> list[SpelledWord]:
    """The words of a CTC path with one label per frame.

    Equal neighbours are merged, blanks (label 0) removed, and spaces end words. A word spans the first frame of its
    first token to the last frame of its last token; since CTC tokens are short, words end early.

    mark: prefix of tokens that start a word, "▁" for sentencepiece; "" if spaces are tokens.
    merge: False for the path of a transducer, where each label is a token.

    >>> spelled_words([0, 1, 1, 0, 2, 3, 0, 1], ["<blank>", "a", "b", " "])
    [SpelledWord(text='ab', span=(1, 5)), SpelledWord(text='a', span=(7, 8))]
    """
    words: list[SpelledWord] = []
    before, open_word = 0, False  # open_word: whether the next token continues the last word
    for frame, label in enumerate(labels):
        if label and (label != before or not merge):
            token = tokens[label]
            text = token.removeprefix(mark).strip()
            if text and open_word and not (mark and token.startswith(mark)):
                words[-1] = SpelledWord(words[-1].text + text, words[-1].span)
            elif text:
                words.append(SpelledWord(text, (frame, frame)))
            open_word = bool(text)
        if label and open_word:
            text, (first, _) = words[-1]
            words[-1] = SpelledWord(text, (first, frame + 1))
        before = label
    return words
