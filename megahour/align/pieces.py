"""Spells words in the pieces of a subword vocabulary ("▁the", "re"), for models whose tokens are not characters.

A token list has no scores, so a word is cut into as few pieces as possible, preferring longer ones first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megahour.align.document import BLANK, Document, spell

MARK = "\u2581"  # sentencepiece's sign of a word's beginning
PRIVATE = 0xF0000  # first of the 65,534 characters of a private plane: one stands for each piece
UNKNOWN_COST = 1000  # of dropping a character, in pieces


def spell_pieces(cues: Sequence[tuple[int, float, str]], units: Sequence[str]) -> Document:
    """`document.spell` for a list of pieces; every word begins with a piece that carries the mark."""
    names = [chr(PRIVATE + i) for i in range(len(units))]
    known = {piece: names[i] for i, piece in enumerate(units) if i != BLANK and piece}
    longest = max(map(len, known), default=0)
    words: dict[str, str] = {}
    for _, _, text in cues:
        for word in text.split():
            if word not in words:
                words[word] = _cut(MARK + word, known, longest) or MARK
    coded = [(number, hint, " ".join(words[word] for word in text.split())) for number, hint, text in cues]
    document = spell(coded, names)
    written = {number: text.split() for number, _, text in cues}
    places = zip(document.word_cue.tolist(), document.word_index.tolist(), strict=True)
    return replace(document, words=[written[cue][index] for cue, index in places])


def _cut(word: str, known: dict[str, str], longest: int) -> str:
    """The names of the fewest pieces that make `word`; characters that are in no piece are left out."""
    best = [(0, 0, "")] + [(len(word) * UNKNOWN_COST, 0, "")] * len(word)  # cost, where the last piece begins, its name
    for end in range(1, len(word) + 1):
        best[end] = (best[end - 1][0] + UNKNOWN_COST, end - 1, "")
        for begin in range(max(0, end - longest), end):
            name = known.get(word[begin:end])
            if name is not None and best[begin][0] + 1 < best[end][0]:
                best[end] = (best[begin][0] + 1, begin, name)
    names, end = "", len(word)
    while end:
        _, end, name = best[end]
        names = name + names
    return names
