"""Beam search over a decoding graph with kaldi-decoder.

Frame t adds acoustic_scale · (log p(label | x_t) - prior_scale · log p(label)): posteriors become scaled likelihoods
(Bourlard & Morgan 1994, chapter 7). CTC models use prior_scale 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import kaldi_decoder
import kaldifst
import numpy as np
import numpy.typing as npt

from megahour.decode.graph import Graph, to_kaldifst
from megahour.decode.nbest import Text
from megahour.units.hmm import PRIOR_FLOOR

if TYPE_CHECKING:
    from megahour.lattices.lattice import Lattice

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SearchOptions:
    """Pruning and scales. Narrower pruning is faster, wider is closer to exact search.

    beam: paths that are worse than the best by more nats are dropped. max_active: most active paths per frame.
    min_active: fewest, also outside the beam; at most max_active - 1 are asked of kaldi-decoder.
    """

    beam: float
    max_active: int
    acoustic_scale: float
    prior_scale: float
    min_active: int = 20  # kaldi-decoder's own


@dataclass(frozen=True)
class Hypothesis:
    """The words of an utterance, and the path that gave them.

    score: minus the path's cost in nats, graph plus scaled acoustics. labels: one a frame. final: False if no path in
    the beam reached the end of a sentence, so that this is the best unfinished one. parts: the parts of the score.
    nbest: texts of the utterance, best first, if requested. confidence: mean probability of the labels except blanks, 0
    if there is none. lattice: the lattice, if requested.
    """

    words: tuple[str, ...]
    score: float
    labels: tuple[int, ...]
    final: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    nbest: tuple[Text, ...] = ()
    confidence: float = 0.0
    lattice: Lattice | None = None


class Searcher:
    """Decodes utterances with one graph."""

    def __init__(
        self, graph: Graph, priors: Sequence[float] | None, options: SearchOptions, fst: Any | None = None
    ) -> None:
        """`priors`: probability of each label (S,), required unless prior_scale is 0.

        `fst`: `to_kaldifst(graph.fst)`, for several searchers to share; converted here if None.
        """
        if options.prior_scale and priors is None:
            raise ValueError(f"prior_scale {options.prior_scale} needs priors; pass them or set it to 0")
        self.options, self.words = options, graph.words
        self.labels = int(graph.fst.arcs["ilabel"].max(initial=0))
        self._fst = to_kaldifst(graph.fst) if fst is None else fst
        fewest = min(options.min_active, options.max_active - 1)  # kaldi-decoder refuses a min_active that is not below
        self._config = kaldi_decoder.FasterDecoderOptions(
            beam=options.beam, max_active=options.max_active, min_active=fewest
        )
        floor = np.log(np.maximum(np.asarray(priors, np.float64), PRIOR_FLOOR)) if priors is not None else None
        self._log_priors = None if floor is None else (options.prior_scale * floor).astype(np.float32)

    def __call__(self, log_posteriors: Float32) -> Hypothesis:
        """The best path for `log_posteriors` float32 (T, V); V is at least the number of labels in the graph.

        If T is too short for any sentence, this is the best unfinished path. Raises ValueError on a wrong shape, on
        NaN, or if no path survives.
        """
        stream = self.begin()
        stream.advance(log_posteriors)
        return stream.best

    def begin(self) -> GraphStream:
        """Begin the search of an utterance that arrives in chunks."""
        return GraphStream(self, kaldi_decoder.FasterDecoder(self._fst, self._config))

    def n_best(self, log_posteriors: Float32, n: int, lattice_beam: float = 8.0) -> list[Hypothesis]:
        """Up to `n` best paths with distinct words, best first, from a lattice with a beam of `lattice_beam` nats."""
        config = kaldi_decoder.LatticeSimpleDecoderConfig(beam=self.options.beam, lattice_beam=lattice_beam)
        decoder = kaldi_decoder.LatticeSimpleDecoder(self._fst, config)
        decoder.decode(kaldi_decoder.DecodableCtc(self.scaled(log_posteriors)))
        final = math.isfinite(decoder.final_relative_cost())
        _, lattice = decoder.get_raw_lattice()
        best: dict[tuple[str, ...], Hypothesis] = {}
        wanted = n
        while len(best) < n:
            paths = kaldifst.convert_nbest_to_vector(kaldifst.shortest_path(lattice, wanted))
            for path in paths:
                hypothesis = self.read(path, final)
                best.setdefault(hypothesis.words, hypothesis)
            if len(paths) < wanted or wanted >= 64 * n:  # no more paths, or too many with the same words
                break
            wanted *= 4
        return sorted(best.values(), key=lambda hypothesis: -hypothesis.score)[:n]

    def texts(self, log_posteriors: Float32, most: int) -> tuple[Text, ...]:
        """Up to `most` different texts, best first. See `n_best`."""
        return tuple((" ".join(each.words), each.score, each.parts) for each in self.n_best(log_posteriors, most))

    def scaled(self, log_posteriors: Float32) -> Float32:
        """Scaled log likelihoods (T, V), contiguous."""
        if log_posteriors.ndim != 2 or log_posteriors.shape[1] < self.labels or not len(log_posteriors):
            raise ValueError(f"log posteriors are {log_posteriors.shape}; expected (T ≥ 1, V ≥ {self.labels})")
        if not (log_posteriors < np.inf).all():
            raise ValueError("log posteriors are NaN or infinite; check the model and its features")
        values = log_posteriors.astype(np.float32)
        if self._log_priors is not None:
            values -= self._log_priors
        return np.ascontiguousarray(values * np.float32(self.options.acoustic_scale))

    def read(self, path: Any, final: bool) -> Hypothesis:
        """The hypothesis of a linear kaldifst path."""
        _, inputs, outputs, weight = kaldifst.get_linear_symbol_sequence(path)
        return Hypothesis(
            tuple(self.words[number] for number in outputs),
            -(weight.value1 + weight.value2),
            tuple(label - 1 for label in inputs),
            final,
            {"score": round(-weight.value2, 4), "graph": round(-weight.value1, 4)},
        )


class GraphStream:
    """The search of an utterance that arrives in chunks; the result is the same as for the whole utterance."""

    def __init__(self, searcher: Searcher, decoder: Any) -> None:
        self._searcher, self._decoder, self._frames = searcher, decoder, 0
        decoder.init_decoding()

    def advance(self, log_posteriors: Float32) -> None:
        """The next frames, float32 (C, V). Raises ValueError on a wrong shape or NaN."""
        self._decoder.advance_decoding(kaldi_decoder.DecodableCtc(self._searcher.scaled(log_posteriors), self._frames))
        self._frames += len(log_posteriors)

    @property
    def best(self) -> Hypothesis:
        """The best path so far. Raises ValueError when nothing survives."""
        final = bool(self._decoder.reached_final())
        reached, path = self._decoder.get_best_path()
        if not reached:
            raise ValueError(f"no path survives {self._frames} frames; raise beam {self._searcher.options.beam}")
        return self._searcher.read(path, final)
