"""Builds the shallow fusion of language models and hot words for a token model, and rejects those that do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.decode.hot_words import Automaton, HotWord, automaton, parse
from megahour.decode.params import DecodeParams
from megahour.decode.prefixes import BEGINS, INSIDE, PARTS, Fusion, SortedWords
from megahour.lm.query.mapped import MappedModel
from megahour.lm.query.model_files import lm_file
from megahour.lm.query.scorer import NgramScorer
from megahour.lm.query.states import Ngrams
from megahour.lm.text.tokenise import PADDING, RESERVED
from megahour.units.texts import lines_of
from megahour.units.tokens import MARK

FITTING = 0.5  # share of a language model's words that the model must be able to spell
ROLES = ("lm", "low_order_lm")


class Tokens(NamedTuple):
    """A model's tokens, with the kind of each and its text without marks. See `units.tokens.spelled_words`."""

    names: tuple[str, ...]
    kinds: tuple[int, ...]
    texts: tuple[str, ...]

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Tokens:
        """From the contents of a `.model.json`."""
        names, mark = tuple(config.get("tokens", ())), MARK if config.get("marks") else ""
        texts = [name.removeprefix(mark).strip() if number else "" for number, name in enumerate(names)]
        begins = [bool(mark) and name.startswith(mark) for name in names]
        kinds = [PARTS if not text else BEGINS if first else INSIDE for text, first in zip(texts, begins, strict=True)]
        return Tokens(names, (INSIDE, *kinds[1:]), tuple(texts))

    @property
    def spaces(self) -> bool:
        """Whether some tokens mark word boundaries."""
        return any(kind != INSIDE for kind in self.kinds[1:])

    @property
    def written(self) -> list[str]:
        """Tokens as a token language model writes them: the space as ▁."""
        return [MARK if name == " " else name for name in self.names]


def check_fusion(p: DecodeParams, config: Mapping[str, Any], inputs: Mapping[str, Artifact]) -> None:
    """Raises ConfigError for language models or hot words that the model cannot spell, and for attention rescoring if
    the model has no attention decoder."""
    tokens = Tokens.from_config(config)
    for role in ROLES:
        if role in inputs:
            _check_words(role, inputs[role], tokens)
    _check_hot_words(parse(p.hot_words, p.hot_word_bonus), tokens)
    if p.attention_weight and "attention" not in config.get("heads", {}):
        raise ConfigError(
            f"attention_weight = {p.attention_weight:g}: the model has no attention decoder",
            where="decode",
            remedy="leave it at 0, or train with criterion_options: {attention: 0.3}",
        )


def make_fusion(p: DecodeParams, config: Mapping[str, Any], inputs: Mapping[str, Artifact]) -> Fusion:
    """The fusion for a model's configuration, with the inputs `lm` and `low_order_lm` if given."""
    tokens = Tokens.from_config(config)
    lm, low = (_opened(inputs[role].url) if role in inputs else None for role in ROLES)
    texts = [text.encode() for text in tokens.texts]
    hot = automaton(parse(p.hot_words, p.hot_word_bonus), spaces=tokens.spaces)
    numbers = _numbers(lm, tokens) if lm and _is_of_tokens(lm.model.spelled(), tokens) else np.zeros(0, np.int32)
    return Fusion(
        lm.ngrams if lm else Ngrams.none(),
        low.ngrams if low else Ngrams.none(),
        _sorted_words(inputs["lm"].url) if lm and not len(numbers) else SortedWords.of([]),
        numbers,
        _numbers(low, tokens) if low else np.zeros(0, np.int32),
        p.lm_scale,
        p.word_bonus,
        p.unknown_word,
        p.low_order_scale,
        np.array(tokens.kinds, np.int8),
        np.frombuffer(b"".join(texts) + bytes(PADDING), np.uint8).copy(),
        np.cumsum([0, *map(len, texts)]),
        hot.next,
        hot.classes,
        hot.value,
        hot.reward,
        hot.start,
        _most(p, low.model if low else None, hot, tokens),
    )


def is_fused(p: DecodeParams, roles: Sequence[str] | Mapping[str, Any]) -> bool:
    """Whether anything besides the acoustic model contributes to the score."""
    return any(role in roles for role in ROLES) or bool(p.hot_words) or p.word_bonus != 0


def _most(p: DecodeParams, low: MappedModel | None, hot: Automaton, tokens: Tokens) -> NDArray[np.float64]:
    """Upper bound on what each token adds: bonuses, the rarest token's low-order cost, and the best hot-word credit."""
    total = max(0.0, p.word_bonus) + max(0.0, p.unknown_word)
    if low is not None:
        weights, values = low.weights.reshape(-1, 4)[:, :2], low.values.reshape(-1, 4)[:, 2:]
        rarest, backoff = np.minimum(np.nanmin(weights, 0, initial=0.0), np.nanmin(values, 0, initial=0.0))
        total -= p.low_order_scale * np.log(10.0) * float(rarest + (low.order - 1) * backoff)
    return np.array(
        [
            total + hot.most(text, after_space=kind != INSIDE)
            for text, kind in zip(tokens.texts, tokens.kinds, strict=True)
        ]
    )


@lru_cache(maxsize=2)
def _opened(url: str) -> NgramScorer:
    """Cached, since a process searches many shards with one model and artifacts do not change."""
    with lm_file(Artifact(url)) as path:
        return NgramScorer.open(path)


@lru_cache(maxsize=2)
def _sorted_words(url: str) -> SortedWords:
    """Cached as `_opened` is."""
    spelled = _opened(url).model.spelled()[len(RESERVED) :]
    return SortedWords.of(word.encode("utf-8", "surrogateescape") for word in spelled)


def _words(artifact: Artifact) -> list[str]:
    files = next(receipt.files for receipt in artifact.each_receipt())
    if ".vocab.txt" in files:
        return lines_of(artifact.read_bytes(0, ".vocab.txt").decode("utf-8", "replace"))
    return _opened(artifact.url).model.spelled()[len(RESERVED) :]


def _is_of_tokens(words: Sequence[str], tokens: Tokens) -> bool:
    return {*tokens.written, *RESERVED}.issuperset(words)


def _numbers(lm: NgramScorer, tokens: Tokens) -> Any:
    return np.array([lm.number(name) for name in tokens.written], np.int32)


def _check_words(role: str, artifact: Artifact, tokens: Tokens) -> None:
    words = _words(artifact)
    if _is_of_tokens(words, tokens):
        return
    if role == "low_order_lm":
        raise ConfigError(
            f"its words are not the model's tokens (such as {', '.join(map(repr, tokens.written[1:4]))})",
            where=artifact.url,
            remedy="make it with stage language-model and the input `tokens`: the model, or its tokens in training",
        )
    letters = set("".join(tokens.texts))
    misfits = [word for word in words if not letters.issuperset(word)]
    if len(words) - len(misfits) < FITTING * len(words):
        raise ConfigError(
            f"{len(misfits)} of {len(words)} words have letters that the model lacks, such as {misfits[0]!r}",
            where=artifact.url,
            remedy="make the language model from text normalised like the model's (see `language`), or from the "
            "model's tokens, with the input `tokens`",
        )


def _check_hot_words(words: Sequence[HotWord], tokens: Tokens) -> None:
    letters = set("".join(tokens.texts)) | ({" "} if tokens.spaces else set())
    for word in words:
        if unknown := sorted(set(word.letters) - letters):
            raise ConfigError(
                f"the hot word {word.text!r} has {', '.join(map(repr, unknown))}, which the model cannot spell",
                where="hot_words",
                remedy=f"spell it with the letters of the model's texts, {''.join(sorted(letters))[:80]!r}",
            )
        if not any(word.open_at) and (lost := [each for each in word.text.split() if not _spelled(each, tokens)]):
            raise ConfigError(
                f"the hot word {word.text!r} has {lost[0]!r}, which no tokens of the model spell",
                where="hot_words",
                remedy="leave it out, or train with pieces or characters as tokens, in place of whole words",
            )


def _spelled(word: str, tokens: Tokens) -> bool:
    """Whether tokens spell a whole word."""
    texts = list(zip(tokens.texts, tokens.kinds, strict=True))
    inner, first = ({text for text, of in texts if of == kind} for kind in (INSIDE, BEGINS))
    if PARTS in tokens.kinds or not tokens.spaces:
        first |= inner
    ends = [0]
    for end in range(1, len(word) + 1):
        if any(word[begin:end] in (inner if begin else first) for begin in ends):
            ends.append(end)
    return ends[-1] == len(word)
