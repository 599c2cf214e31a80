"""Character tokens for CTC: the blank, then the characters of the training text in code-point order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol

BLANK = "<blank>"
BLANKS = (BLANK, "<blk>", "<eps>", "<pad>", "[PAD]", "-")
"""How others call token 0."""
MARK = "\u2581"  # sentencepiece's sign of a word's beginning
Span = tuple[int, int]
"""First frame of a word, and the first one after it."""


class TokenSpeller(Protocol):
    """What a model of tokens spells with; token 0 is the blank."""

    @property
    def tokens(self) -> tuple[str, ...]: ...

    def encode(self, text: str) -> list[int]: ...

    def spellable(self, text: str) -> bool: ...


@dataclass(frozen=True)
class Characters:
    """A character inventory. Token 0 is the blank; the space is an ordinary character that parts words."""

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
        """The inventory of normalised texts."""
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
        """Token of each character.

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
        """Whether a text has tokens, all of them known."""
        return bool(text) and set(text) <= self.index.keys()

    def decode(self, path: Sequence[int]) -> str:
        """Text of a CTC path: equal neighbours merged, then blanks removed."""
        kept = [token for i, token in enumerate(path) if token and (i == 0 or token != path[i - 1])]
        return "".join(self.tokens[token] for token in kept)


def frames_needed(tokens: Sequence[int]) -> int:
    """Fewest frames in which a CTC path can spell `tokens`: one each, and a blank between equal neighbours.

    >>> frames_needed([1, 2, 2, 3])
    5
    """
    return len(tokens) + sum(a == b for a, b in pairwise(tokens))


class SpelledWord(NamedTuple):
    """A word that was read token by token."""

    text: str
    span: Span


def spelled_words(
    labels: Sequence[int], tokens: Sequence[str], mark: str = "", *, merge: bool = True
) -> list[SpelledWord]:
    """Words of a CTC path, a label a frame: equal neighbours merge, blanks (label 0) go, spaces end words.

    mark: how tokens that begin a word begin, "▁" of sentencepiece; "": spaces are tokens of their own. A word goes from
    its first token's first frame to its last token's last one: CTC tokens are short, so ends are early.
    merge: False for a transducer's path, where each label is a token.

    >>> spelled_words([0, 1, 1, 0, 2, 3, 0, 1], ["<blank>", "a", "b", " "])
    [SpelledWord(text='ab', span=(1, 5)), SpelledWord(text='a', span=(7, 8))]
    """
    words: list[SpelledWord] = []
    before, open_word = 0, False  # whether the next letters belong to the last word
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
