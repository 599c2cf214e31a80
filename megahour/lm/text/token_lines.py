"""Lines of text as the tokens of a recogniser, with spaces between them: what a model of tokens counts and is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from megahour.units.spellers import HUGGING_FACE, from_elsewhere, speller
from megahour.units.tokens import MARK, TokenSpeller

TokenForm = Literal["pieces", "ids", "nemo"]
NEMO_OFFSET = 100  # NeMo's DEFAULT_TOKEN_OFFSET: its KenLM models know token n as the character n + 100


class TokenLines:
    """Called with lines, yields them in tokens. left_out: lines so far that have none, or unknown ones. words, tokens:
    of the others. names: what is written for each of the speller's tokens.

    form: `pieces`, with the space as U+2581; `ids`, the numbers that the tokenizer's own file gives them; `nemo`.
    shift: what the speller's numbers are above the file's.
    """

    def __init__(self, spell: TokenSpeller, form: TokenForm = "pieces", shift: int = 0) -> None:
        self.begin()
        self._spell = spell
        numbers = range(-shift, len(spell.tokens) - shift)
        self.names = tuple(MARK if name == " " else name for name in spell.tokens)
        if form == "ids":
            self.names = tuple(map(str, numbers))
        elif form == "nemo":
            self.names = tuple(chr(number + NEMO_OFFSET) for number in numbers)

    @staticmethod
    def open(file: str, form: TokenForm = "pieces") -> TokenLines:
        """Of a tokenizer's file: see `spellers.from_elsewhere`. Raises ConfigError, StoreError: it is none."""
        kind, data = from_elsewhere(file)
        return TokenLines(speller(kind, data, where=file), form, 1 if kind == HUGGING_FACE else 0)

    def begin(self) -> None:
        """Count from nothing: a text is read again."""
        self.left_out = self.words = self.tokens = 0

    def __call__(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            text = " ".join(line.split())
            if not self._spell.spellable(text):
                self.left_out += 1
                continue
            tokens = [self.names[token] for token in self._spell.encode(text)]
            self.words += text.count(" ") + 1
            self.tokens += len(tokens)
            yield " ".join(tokens)

    def said(self) -> str:
        """What was spelled, as a line for people."""
        text = f"{self.words:,} words in {self.tokens:,} tokens"
        return f"{text}; left out {self.left_out:,} lines that they do not spell" if self.left_out else text
