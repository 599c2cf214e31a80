"""Graph-free search with a token model (CTC or transducer): texts, best first, with the parts of their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.decode.ctc_beam import CtcBeam, align
from megahour.decode.fusion import check_fusion, is_fused, make_fusion
from megahour.decode.nbest import Text
from megahour.decode.params import DecodeParams
from megahour.decode.prefixes import COUNT, FUSED, HOT, LM, LOW, MISSING, Fusion
from megahour.decode.transducer_beam import FusedChoice
from megahour.lattices.lattice import Lattice
from megahour.lattices.listed import ListedText, lattice_of
from megahour.models.paths import NOT_FINITE, TokenPath, best_path
from megahour.units.tokens import MARK, SpelledWord, spelled_words

if TYPE_CHECKING:
    from megahour.models.token_search import TokenStream, TransducerSearcher

Float32 = NDArray[np.float32]
TOGETHER = 16
"""Utterances that are best given at a time: beams of a transducer are rows of one batch."""
_NOTHING = np.zeros(6)


class TokenReading(NamedTuple):
    """A text of an utterance. path: its `score` is that of the acoustics. score: of all together, in nats.

    sums (6,): what was fused, by `prefixes`. attention: the decoder's ln p, 0.0 where it was not asked.
    """

    tokens: tuple[int, ...]
    path: TokenPath
    score: float
    sums: NDArray[np.float64]
    attention: float = 0.0

    def parts(self) -> dict[str, float]:
        """The parts of the score, named as in n-best lists."""
        found = {"score": self.path.score, "lm": self.sums[LM], "low_order_lm": self.sums[LOW]}
        found |= {"hot_words": self.sums[HOT], "attention": self.attention}
        numbers = {"words": int(self.sums[COUNT]), "oov": int(self.sums[MISSING])}
        return {**{name: round(float(value), 4) for name, value in found.items()}, **numbers}


class TokenSearcher:
    """Decodes utterances with a model of tokens.

    Raises
    ------
    ConfigError: a language model, hot words or an attention decoder that do not go with the model.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        module: Any,
        p: DecodeParams,
        inputs: Mapping[str, Artifact] | None = None,
    ) -> None:
        """config: of a `.model.json`. module: the model, which CTC without attention needs not. inputs: `lm` and
        `low_order_lm` of those that stage `decode` has."""
        inputs = inputs or {}
        check_fusion(p, config, inputs)
        self.tokens: tuple[str, ...] = tuple(config.get("tokens", ()))
        self._mark = MARK if config.get("marks") else ""
        self._p, self._module = p, module
        self._transducer: TransducerSearcher | None = None
        if "transducer" in config.get("heads", {}):
            from megahour.models.token_search import TransducerSearcher

            self._transducer = TransducerSearcher(module, beams=p.beams)
        prefixes = p.ctc_search == "prefixes" or p.nbest > 1 or p.lattice > 0 or p.attention_weight > 0
        self._fusion: Fusion | None = None
        if is_fused(p, inputs) or (prefixes and self._transducer is None):
            self._fusion = make_fusion(p, config, inputs)

    def __call__(self, outputs: Sequence[Float32]) -> list[list[TokenReading] | ValueError]:
        """Readings of each of `outputs`, (T, V) or (T, D) of the model, best first, or why there is none."""
        finite = [bool(np.isfinite(output).all()) for output in outputs]
        good = [output for output, is_so in zip(outputs, finite, strict=True) if is_so]
        found = self._of_transducer(good) if self._transducer is not None else [self._of_ctc(each) for each in good]
        readings = (self._rescored(*each) for each in zip(found, good, strict=True))
        wrong = ValueError(NOT_FINITE)
        return [next(readings) if is_so else wrong for is_so in finite]

    def begin(self) -> TokenStream | TokenReadingStream:
        """The search of an utterance that comes in parts."""
        if self._fusion is None and not self._p.attention_weight:
            from megahour.models.token_search import TokenStream

            return TokenStream(self._transducer)
        searched: _CtcParts | _TransducerParts
        if self._transducer is None:
            searched = _CtcParts(self._beam(), self._log_probs)
        else:
            searched = _TransducerParts(self._transducer, self._choice(1))
        return TokenReadingStream(searched, self._rescored)

    def words(self, labels: Sequence[int]) -> list[SpelledWord]:
        """Words of a path, with their frames."""
        return spelled_words(labels, self.tokens, self._mark, merge=self._transducer is None)

    def texts(self, readings: Sequence[TokenReading], most: int) -> tuple[Text, ...]:
        """Up to `most` different texts of `readings`, in their order."""
        texts = islice(self._different(readings).items(), most)
        listed = [(" ".join(words), each.score, each.parts()) for words, each in texts]
        if self._fusion is None:  # which would have counted them
            listed = [(text, score, parts | {"words": len(text.split())}) for text, score, parts in listed]
        return tuple(listed)

    def lattice(self, readings: Sequence[TokenReading], beam: float) -> Lattice:
        """The different texts of `readings`, best first, within `beam` nats of the best one.

        Graph costs are what was fused: language models, bonuses and attention.
        """
        listed = []
        for words, each in self._different(readings).items():
            if each.score >= readings[0].score - beam:
                spans, labels = [word.span for word in self.words(each.path.labels)], each.path.labels
                listed.append(ListedText(words, spans, labels, each.path.score - each.score, -each.path.score))
        return lattice_of(listed)

    def _different(self, readings: Sequence[TokenReading]) -> dict[tuple[str, ...], TokenReading]:
        """The first reading of each text. Several paths may spell the same one."""
        texts: dict[tuple[str, ...], TokenReading] = {}
        for reading in readings:
            texts.setdefault(tuple(word.text for word in self.words(reading.path.labels)), reading)
        return texts

    def _of_transducer(self, encoded: Sequence[Float32]) -> list[list[TokenReading]]:
        assert self._transducer is not None
        choice = self._choice(len(encoded))
        return _of_paths(choice, self._transducer.n_best(encoded, choice))

    def _choice(self, utterances: int) -> FusedChoice | None:
        return None if self._fusion is None else FusedChoice(self._fusion, utterances, self._p.beams)

    def _of_ctc(self, output: Float32) -> list[TokenReading]:
        if self._fusion is None:
            path = best_path(output)
            return [TokenReading(_merged(path.labels), path, path.score, _NOTHING)]
        parts = _CtcParts(self._beam(), self._log_probs)
        parts.advance(output)
        return parts.readings()

    def _beam(self) -> CtcBeam:
        assert self._fusion is not None
        return CtcBeam(self._fusion, self._p.beams)

    def _rescored(self, readings: list[TokenReading], output: Float32) -> list[TokenReading]:
        """By score + weight · ln p of the attention decoder, where it is asked (WeNet's attention rescoring)."""
        weight = self._p.attention_weight
        if not weight or not len(output):
            return readings
        from megahour.models.token_search import attention_scores

        scores = attention_scores(self._module, [reading.tokens for reading in readings], output)
        added = zip(readings, scores, strict=True)
        found = [reading._replace(score=reading.score + weight * ln_p, attention=ln_p) for reading, ln_p in added]
        return sorted(found, key=lambda reading: -reading.score)

    def _log_probs(self, output: Float32) -> Float32:
        """Of CTC; where attention is asked too, `output` is what the encoder gives."""
        if not self._p.attention_weight:
            return output
        from megahour.models.token_search import ctc_log_probs

        return ctc_log_probs(self._module, output)


class TokenReadingStream:
    """The search of one utterance that comes in parts, as `models.token_search.TokenStream`, with all that is fused."""

    def __init__(
        self,
        searched: _CtcParts | _TransducerParts,
        rescore: Callable[[list[TokenReading], Float32], list[TokenReading]],
    ) -> None:
        self._searched, self._rescore = searched, rescore
        self._outputs: list[Float32] = []

    def advance(self, output: Float32) -> None:
        """`output`: the next rows (C, V) or (C, D) of the model. Raises ValueError where they are not finite."""
        if not np.isfinite(output).all():
            raise ValueError(NOT_FINITE)
        self._searched.advance(output)
        self._outputs.append(output)

    @property
    def path(self) -> TokenPath:
        """The best path so far."""
        if not self._outputs:
            return TokenPath((), (), 0.0)
        return self._rescore(self._searched.readings(), np.concatenate(self._outputs))[0].path


class _CtcParts:
    def __init__(self, beam: CtcBeam, log_probs: Callable[[Float32], Float32]) -> None:
        self._beam, self._log_probs = beam, log_probs
        self._heard: list[Float32] = []

    def advance(self, output: Float32) -> None:
        self._heard.append(self._log_probs(output))
        self._beam.advance(self._heard[-1])

    def readings(self) -> list[TokenReading]:
        """The texts found, each aligned to all frames so far."""
        readings, log_probs = [], np.concatenate(self._heard)
        for tokens, score, sums in self._beam.found():
            labels = align(log_probs, np.array(tokens, np.int64))
            chances = np.exp(log_probs[np.arange(len(labels)), labels])
            path = TokenPath(tuple(labels.tolist()), tuple(chances.tolist()), score)
            readings.append(TokenReading(tuple(tokens), path, score + float(sums[FUSED]), sums))
        return readings


class _TransducerParts:
    def __init__(self, transducer: TransducerSearcher, choice: FusedChoice | None) -> None:
        self._transducer, self._choice = transducer, choice
        self._found = transducer.start(1, choice)

    def advance(self, output: Float32) -> None:
        self._found = self._transducer.advanced_by(self._found, output)

    def readings(self) -> list[TokenReading]:
        return _of_paths(self._choice, self._found.paths())[0]


def _of_paths(choice: FusedChoice | None, paths: Sequence[Sequence[TokenPath]]) -> list[list[TokenReading]]:
    """Paths of each utterance as readings, best first."""
    if choice is None:
        return [[TokenReading(path.tokens, path, path.score, _NOTHING) for path in some] for some in paths]
    return [
        [TokenReading(path.tokens, path, path.score + float(sums[FUSED]), sums) for path, sums in some]
        for some in choice.best_first(paths)
    ]


def _merged(labels: Sequence[int]) -> tuple[int, ...]:
    return tuple(label for label, _ in groupby(labels) if label)
