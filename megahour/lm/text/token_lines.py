"""Lines of text spelled in the tokens of a recogniser, separated by spaces: the text of a language model of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from megahour.core.errors import ConfigError
from megahour.units.spellers import HUGGING_FACE, from_elsewhere, speller
from megahour.units.tokens import MARK, TokenSpeller

TokenForm = Literal["pieces", "ids", "nemo"]
NEMO_OFFSET = 100  # NeMo's DEFAULT_TOKEN_OFFSET: its KenLM models write token n as the character n + 100


class TokenLines:
    """A callable that spells lines in tokens and counts what it spells.

    form: how tokens are written: `pieces`, with the space as U+2581; `ids`, their numbers in the tokenizer's file;
    `nemo`. shift: difference between the speller's numbers and those of the file.

    Attributes: words and tokens are totals of the spelled lines; left_out counts lines without tokens or with unknown
    ones, which are skipped; names has the written form of each token.
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
        """Read a tokenizer's file (`spellers.from_elsewhere`). Raises ConfigError, StoreError: it is no tokenizer."""
        kind, data = from_elsewhere(file)
        return TokenLines(speller(kind, data, where=file), form, 1 if kind == HUGGING_FACE else 0)

    @property
    def digest(self) -> str:
        """Identifies the tokens, their order and their written forms."""
        every = "\n".join((*self._spell.tokens, *self.names))
        return hashlib.sha256(every.encode(errors="surrogatepass")).hexdigest()[:16]

    def check(self, words: Sequence[str], digest: str, *, where: str, file: str) -> None:
        """Check that a model was made of these tokens. words: its vocabulary; digest: that of its tokens, "" unknown.

        Raises ConfigError: it has other ones, so that its scores would be wrong.
        """
        known = set(self.names)
        other = next((word for word in words if word not in known and word[:1] + word[-1:] != "<>"), "")
        if not other and digest in ("", self.digest):
            return
        what = f"the model has the token {other!r}, which {file} has not" if other else f"the tokens of {file} differ"
        remedy = "give the tokenizer and the --token-form that the model was trained with"
        raise ConfigError(f"{what}: the model was made of other tokens", where=where, remedy=remedy)

    def begin(self) -> None:
        """Reset the counts before the text is read again."""
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

    def summary(self) -> str:
        """The counts as a line of text."""
        text = f"{self.words:,} words in {self.tokens:,} tokens"
        return f"{text}; skipped {self.left_out:,} lines that the tokens cannot spell" if self.left_out else text
