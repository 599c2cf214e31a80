"""`Document`: a transcript as the aligner's row of tokens, with their words and cues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megahour.units.listed_pieces import ListedPieces
from megahour.units.tokens import MARK

BLANK = 0
SPACE = " "


@dataclass(frozen=True, slots=True)
class Document:
    """J cues, W words and U tokens of a recording's transcript.

    tokens: (U,) int32 units. token_word: (U,) int32 word of each token, -1 for the space between words of a cue.
    words: W texts; word_cue, word_index: (W,) int32 number of the word's cue, and its index among that cue's words.
    boundaries: (J+1,) int32 first token of each cue, then U. cues: (J,) int32 numbers of the cues that have tokens.
    hint_s: (J,) float64 start of the cue according to the transcript, NaN if unknown. unspellable: numbers of the cues
    without any character that the model knows.
    """

    tokens: NDArray[np.int32]
    token_word: NDArray[np.int32]
    words: list[str]
    word_cue: NDArray[np.int32]
    word_index: NDArray[np.int32]
    boundaries: NDArray[np.int32]
    cues: NDArray[np.int32]
    hint_s: NDArray[np.float64]
    unspellable: list[int]
    space: int


def spell(cues: Sequence[tuple[int, float, str]], units: Sequence[str]) -> Document:
    """Tokens of cues (number, start in seconds or NaN, normalised text) in the model's `units` (0 is the blank).

    Characters that the model does not know are dropped, and so are words without known characters.
    """
    index = {unit: i for i, unit in enumerate(units) if i != BLANK}
    space = index.get(SPACE, -1)
    tokens: list[int] = []
    token_word: list[int] = []
    words: list[tuple[str, int, int]] = []
    boundaries, spelled, hints, unspellable = [0], [], [], []
    for number, hint_s, text in cues:
        for position, word in enumerate(text.split()):
            known = [index[character] for character in word if character in index]
            if not known:
                continue
            if space >= 0 and len(tokens) > boundaries[-1]:
                tokens.append(space)
                token_word.append(-1)
            tokens += known
            token_word += [len(words)] * len(known)
            words.append((word, number, position))
        if len(tokens) > boundaries[-1]:
            boundaries.append(len(tokens))
            spelled.append(number)
            hints.append(hint_s)
        elif text.strip():
            unspellable.append(number)
    return Document(
        np.array(tokens, np.int32),
        np.array(token_word, np.int32),
        [word for word, _, _ in words],
        np.array([number for _, number, _ in words], np.int32),
        np.array([position for _, _, position in words], np.int32),
        np.array(boundaries, np.int32),
        np.array(spelled, np.int32),
        np.array(hints, np.float64),
        unspellable,
        space,
    )


PRIVATE = 0xF0000  # first of the 65,534 characters of a private plane: one stands for each piece


def spell_pieces(cues: Sequence[tuple[int, float, str]], pieces: ListedPieces) -> Document:
    """`spell` for the pieces of a subword vocabulary ("▁the", "re"); a word begins with a piece with the mark."""
    names = [chr(PRIVATE + i) for i in range(len(pieces.tokens))]

    def coded(word: str) -> str:
        return "".join(names[number] for number in pieces.cut(MARK + word)) or MARK

    document = spell([(number, hint, " ".join(map(coded, text.split()))) for number, hint, text in cues], names)
    written = {number: text.split() for number, _, text in cues}
    places = zip(document.word_cue.tolist(), document.word_index.tolist(), strict=True)
    return replace(document, words=[written[cue][index] for cue, index in places])
