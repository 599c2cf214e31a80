"""Generated English: a context-free grammar (`english.grammar.txt`) drawn with a seed.

Each sentence has a written form ("On May 3rd, 25 people paid $40.") and a spoken one ("on may third twenty five people
paid forty dollars"). The splits divide the sentences themselves, by a hash of the spoken form: no sentence of one split
ever occurs in another, whatever the seeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from megahour.core.errors import ConfigError
from megahour.core.records import key_of
from megahour.corpus.generate.numbers import KINDS

# Split → share of the hash range [0, 100).
SPLITS = {"train": range(0, 45), "lm": range(45, 75), "test": range(75, 90), "prompts": range(90, 100)}

_SLOT = re.compile(r"\{([^}]*)\}")
_WEIGHT = re.compile(r"\s\*(\d+)$")
_NOT_SPOKEN = re.compile(r"[^a-z' ]+")
_PAUSES = re.compile(r"[^a-z',.?!: ]+")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU]|hour)")
_ZIPF_EXPONENT = 0.25


class Sentence(NamedTuple):
    """`raw` as written; `said` as spoken, lower case, with the punctuation that makes the pauses."""

    raw: str
    said: str

    @property
    def spoken(self) -> str:
        """Words only, one space between them."""
        return " ".join(_NOT_SPOKEN.sub(" ", self.said).split())


class _Rule(NamedTuple):
    cumulative: tuple[float, ...]  # of the alternatives' probabilities
    alternatives: tuple[tuple[str, ...], ...]  # text and slot names by turns: text, slot, text, slot, …, text


def _rule(body: str, zipf: bool) -> _Rule:
    weights, alternatives = [], []
    for rank, alternative in enumerate(part.strip() for part in body.split("|")):
        weight = _WEIGHT.search(alternative)
        weights.append(float(weight[1]) if weight else 1.0 / (rank + 1) ** _ZIPF_EXPONENT if zipf else 1.0)
        alternatives.append(tuple(_SLOT.split(_WEIGHT.sub("", alternative))))
    return _Rule(tuple(np.cumsum(weights) / np.sum(weights)), tuple(alternatives))


def parse_grammar(text: str) -> dict[str, _Rule]:
    """Rules by name.

    Raises
    ------
    ConfigError: a line that is no rule, or a slot without a rule.
    """
    bodies: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace() and name:
            bodies[name] += " " + line.strip()
        elif ":" in line:
            name, body = line.split(":", 1)
            bodies[name] = body.strip()
        else:
            raise ConfigError(f"not a rule: {line!r}", where="grammar")
    rules = {name.lstrip("~"): _rule(body, name.startswith("~")) for name, body in bodies.items()}
    for name, rule in rules.items():
        for slot in (slot for parts in rule.alternatives for slot in parts[1::2]):
            if slot not in rules and slot.removeprefix("#") not in KINDS:
                raise ConfigError(f'rule "{name}" uses "{{{slot}}}", which no rule defines', where="grammar")
    return rules


@cache
def grammar() -> dict[str, _Rule]:
    """The English grammar that comes with the package."""
    return parse_grammar(files("megahour.corpus.generate").joinpath("english.grammar.txt").read_text("utf-8"))


def _expand(rules: dict[str, _Rule], name: str, rng: np.random.Generator, raw: list[str], said: list[str]) -> None:
    rule = rules[name]
    draw = rng.random()
    chosen = next((i for i, edge in enumerate(rule.cumulative) if draw < edge), len(rule.alternatives) - 1)
    for position, part in enumerate(rule.alternatives[chosen]):
        if position % 2 == 0:
            raw.append(part)
            said.append(part.lower())
        elif part.startswith("#"):
            written, spoken = KINDS[part[1:]](rng)
            raw.append(written)
            said.append(spoken)
        else:
            _expand(rules, part, rng, raw, said)


def draw_sentence(rng: np.random.Generator) -> Sentence:
    """One sentence of the package's grammar, of any split."""
    raw_parts: list[str] = []
    said_parts: list[str] = []
    _expand(grammar(), "sentence", rng, raw_parts, said_parts)
    raw, said = (_ARTICLE.sub(r"\1n ", "".join(parts)) for parts in (raw_parts, said_parts))
    return Sentence(raw[0].upper() + raw[1:], _PAUSES.sub(" ", said))


def split_of(spoken: str) -> str:
    """The split that owns a sentence, from its spoken form."""
    percentile = key_of("sentence", spoken) % 100
    return next(split for split, share in SPLITS.items() if percentile in share)


def sentences(split: str, seed: int) -> Iterator[Sentence]:
    """Endless sentences of one split, the same for the same seed.

    Raises
    ------
    ConfigError: unknown split.
    """
    if split not in SPLITS:
        raise ConfigError(f'there is no sentence set "{split}"', remedy=f"take one of {', '.join(SPLITS)}")
    rng = np.random.Generator(np.random.PCG64(key_of("sentences", split, seed)))
    while True:
        sentence = draw_sentence(rng)
        if split_of(sentence.spoken) == split:
            yield sentence


def vocabulary() -> list[str]:
    """Every word that the grammar's texts contain, sorted; the words of numbers come from `numbers`."""
    texts = (part for rule in grammar().values() for parts in rule.alternatives for part in parts[::2])
    return sorted({word for text in texts for word in _NOT_SPOKEN.sub(" ", text.lower()).split()})
