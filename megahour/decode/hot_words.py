"""Hot words (contextual biasing): an automaton over characters that rewards phrases where they occur (Aho & Corasick).

A phrase earns weight · characters wherever it occurs as whole words. While it is being spelled, the search gets partial
credit, which is taken back if the text diverges from it. The automaton reads characters, not tokens, because word
pieces can spell a phrase in more than one way. A `*` at an end lets the word go on: `Schmidt*` also matches Schmidts.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_WEIGHT = re.compile(r"(.*\S)\s+:(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+))")


class HotWord(NamedTuple):
    """text: words separated by single spaces, `*` at an end that may continue. weight: nats per character."""

    text: str
    weight: float

    @property
    def letters(self) -> str:
        return self.text.strip("*")

    @property
    def open_at(self) -> list[bool]:
        """Whether a word may go on at the beginning and at the end: with `*`, or in scripts without spaces."""
        edges = (self.text[0], self.text[-1])
        return [edge == "*" or unicodedata.east_asian_width(edge) in "WF" for edge in edges]


class Automaton(NamedTuple):
    """next (S, C): the state after a byte, by the byte's class. classes (256,): class of each byte. value, reward (S,):
    nats of partial credit, and for phrases that end here. start: state where a text begins. S is 0 without phrases."""

    next: npt.NDArray[np.int32]
    classes: npt.NDArray[np.uint8]
    value: npt.NDArray[np.float64]
    reward: npt.NDArray[np.float64]
    start: int

    def most(self, text: str, *, after_space: bool) -> float:
        """The most that `text` can add from any state, at least 0. after_space: a space may come before it."""
        best = 0.0
        for space in (b"", b" ") if after_space else (b"",):
            state, given = np.arange(len(self.value)), np.zeros(len(self.value))
            for byte in space + text.encode():
                state = self.next[state, self.classes[byte]]
                given += self.reward[state]
            best = max(best, float((given + self.value[state] - self.value).max(initial=0.0)))
        return best


def parse(lines: Sequence[str], weight: float) -> list[HotWord]:
    """Parses lines such as `new york` or, with its own weight, `new york :2.5`; drops empty lines and repeats."""
    found: dict[str, HotWord] = {}
    for line in lines:
        match = _WEIGHT.fullmatch(line.strip())
        text = " ".join((match[1] if match else line).split())
        if text.strip("*").strip():
            found[text] = HotWord(text, float(match[2]) if match else weight)
    return list(found.values())


def automaton(words: Sequence[HotWord], *, spaces: bool) -> Automaton:
    """spaces: whether the model's tokens mark word boundaries; if not, phrases match anywhere."""
    following: list[dict[int, int]] = [{}]
    characters, heaviest, own = [0], [0.0], [0.0]
    for word in words:
        state, done = 0, 0
        for byte, counted in _spelled(word, spaces):
            if byte not in following[state]:
                following[state][byte] = len(following)
                following.append({})
                characters.append(0)
                heaviest.append(0.0)
                own.append(0.0)
            state, done = following[state][byte], done + counted
            characters[state] = max(characters[state], done)
            heaviest[state] = max(heaviest[state], word.weight)
        own[state] += word.weight * len(word.letters)
    return _complete(following, characters, heaviest, own) if words else _none()


def _none() -> Automaton:
    return Automaton(np.zeros((0, 1), np.int32), np.zeros(256, np.uint8), np.zeros(0), np.zeros(0), 0)


def _spelled(word: HotWord, spaces: bool) -> list[tuple[int, int]]:
    """The phrase's bytes, with a space at each closed end; and 1 for a byte that starts a character, else 0."""
    before, behind = (b"" if is_open or not spaces else b" " for is_open in word.open_at)
    inner = [(byte, int(byte & 0xC0 != 0x80)) for byte in word.letters.encode()]
    return [*((byte, 0) for byte in before), *inner, *((byte, 0) for byte in behind)]


def _complete(
    following: list[dict[int, int]], characters: list[int], heaviest: list[float], own: list[float]
) -> Automaton:
    """Fills in failure transitions breadth first: fall back to the longest suffix that begins a phrase."""
    used = sorted({byte for each in following for byte in each} | {32})
    classes = np.zeros(256, np.uint8)
    classes[used] = np.arange(1, len(used) + 1)  # UTF-8 has fewer than 250 values
    table = np.zeros((len(following), int(classes.max()) + 1), np.int32)
    value, reward, given = np.zeros(len(following)), np.array(own), np.zeros(len(following))
    fallback = np.zeros(len(following), np.int64)
    waiting = deque([0])
    while waiting:
        state = waiting.popleft()
        if state:
            table[state] = table[fallback[state]]
            reward[state] += reward[fallback[state]]
            given[state] += own[state]
            value[state] = max(0.0, heaviest[state] * characters[state] - given[state])
        for byte, child in following[state].items():
            fallback[child] = table[state, classes[byte]] if state else 0
            given[child] = given[state]
            waiting.append(child)
        for byte, child in following[state].items():
            table[state, classes[byte]] = child
    return Automaton(table, classes, value, reward, int(table[0, classes[32]]))
