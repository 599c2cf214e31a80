"""The parameters of the stages in `decode`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from megahour.core.config import LATER, Params
from megahour.models.params import BatchFrames, Precision


class GraphParams(Params):
    """Compile a decoding graph from lexicon and language model."""

    topology: Literal["hmm", "ctc", "phones"] = "hmm"
    """hmm: senones of `units`. ctc: tokens of `model`. phones: an n-gram of the senones in the alignments of `units`,
    without words, for criterion mmi (lattice-free MMI)."""
    self_loop: float = Field(0.5, gt=0, lt=1)
    """Probability that a senone lasts another frame."""
    silence_probability: float = Field(0.5, gt=0, lt=1)
    """Probability of silence between words."""
    noise_probability: float = Field(0.05, gt=0, lt=1, json_schema_extra=LATER)
    """Probability of a noise between words, if `units` have phones for noise. Lower it if words are lost to them."""
    word_cost: float = 0.0
    """Insertion penalty per word, in nats. Raise it to get fewer words."""
    order: int = Field(3, ge=2, le=8, json_schema_extra=LATER)
    """With topology phones: order of the n-gram. A higher order models more context in a larger graph."""
    min_count: int = Field(3, ge=1, json_schema_extra=LATER)
    """With topology phones: shorten histories that occur less often. Raise it for a smaller, faster graph."""


class DecodeParams(Params):
    """Decode by beam search, with or without a graph.

    A graph goes with any model's posteriors; models of tokens also decode without one.
    """

    sets: list[str] = Field(["test"])
    """Sets to decode."""
    model_name: str = "model"
    """Name of the model in the hypotheses."""
    acoustic_scale: float = Field(1.0, gt=0)
    """With a graph: weight of the acoustic scores. The input `tuned` replaces it."""
    prior_scale: float = Field(1.0, ge=0)
    """Weight of the senone priors that posteriors are divided by. CTC graphs use none."""
    beam: float = Field(14.0, gt=0)
    """Drop paths that score this many nats below the best. A wider beam is more accurate and slower."""
    max_active: int = Field(7000, ge=1)
    """Largest number of active paths per frame. Lower it to bound time on noisy audio."""
    min_active: int = Field(20, ge=0, json_schema_extra=LATER)
    """With a graph: smallest number of active paths per frame, also outside `beam`; never more than `max_active`. Set
    both alike (1000), and a frame costs the same however unsure the model is, so that `megahour plan` has a law."""
    scales: list[float] = Field([])
    """Values to try on `sets`, which must not be the test set: of `acoustic_scale` with a graph, of `lm_scale` without
    one. The summary names the best."""
    beams: int = Field(4, ge=1, le=256, json_schema_extra=LATER)
    """Without a graph: number of hypotheses kept per utterance. 1 is greedy and the fastest."""
    ctc_search: Literal["best-path", "prefixes"] = Field("best-path", json_schema_extra=LATER)
    """Without a graph, for CTC. best-path: the likeliest token of each frame, whatever `beams` is. prefixes: prefix
    beam search, which sums over all paths of a text and is a little more accurate. A language model, hot words,
    `nbest`, `lattice` and `attention_weight` always use prefixes."""
    lm_scale: float = Field(0.5, ge=0, json_schema_extra=LATER)
    """Without a graph: weight of the language model's log probability (input `lm`). The input `tuned` replaces it. Tune
    it on a held-out set with `scales`: higher for text like the language model's, lower for a model trained on much
    text."""
    word_bonus: float = Field(0.0, json_schema_extra=LATER)
    """Without a graph: score added per word, in nats (per token with a language model of tokens). Raise it when words
    are missing, as happens with a high `lm_scale`."""
    unknown_word: float = Field(0.0, json_schema_extra=LATER)
    """Score added per word or token that `lm` does not know, in nats, beside its `<unk>`. Set it to -10 when all words
    are known; raise it when names get lost."""
    composed_lm_scale: float = Field(1.0, ge=0, json_schema_extra=LATER)
    """With a graph: weight of the input `lm`, which replaces `graph_lm` during the search. Tune it on a held-out set
    together with `acoustic_scale`."""
    low_order_scale: float = Field(0.2, ge=0, json_schema_extra=LATER)
    """Weight subtracted for the input `low_order_lm`, a bigram of tokens from the training texts that a transducer has
    already learnt (LODR). Tune it together with `lm_scale`."""
    hot_words: list[str] = Field([], json_schema_extra=LATER)
    """Without a graph: words and phrases to expect, such as `new york` or, with a bonus of its own, `new york :1.5`.
    `york*` also matches inside longer words."""
    hot_word_bonus: float = Field(0.5, json_schema_extra=LATER)
    """Score added per character of a hot word, in nats. Lower it when hot words appear that were not spoken."""
    attention_weight: float = Field(0.0, ge=0, json_schema_extra=LATER)
    """Without a graph: weight of the attention decoder's log probability when it reranks the `beams` best texts. Needs
    a model trained with an attention decoder; try 0.5 with 10 beams. 0 turns it off."""
    tell: str = Field("", json_schema_extra=LATER)
    """Tag of all utterances, such as the language `de`, passed to a model trained with `tag_told`. recognised: the tag
    that the model recognises in each utterance (the attention decoder gets none). Empty: no tag."""
    nbest: int = Field(0, ge=0, le=256, json_schema_extra=LATER)
    """Texts per utterance in `.nbest.jsonl`, with the parts of their scores, for `megahour lm rescore`. A search
    without a graph finds at most `beams`. 0 writes none."""
    confidence: bool = Field(False, json_schema_extra=LATER)
    """Write a column `confidence` from 0 to 1: the mean probability of the labels on the path; for tokens, without the
    blank frames. `pseudo-label` selects by it."""
    lattice: float = Field(0.0, ge=0, json_schema_extra=LATER)
    """Beam of the lattices written to `.lattices.parquet`, in nats. With a graph 6 gives about ten arcs across each
    frame; use more after a weak first pass. Texts and `nbest` then come from the lattices. Without a graph each of the
    search's texts within this beam, at most `beams`, is a path of its own. 0 writes none."""
    chunk_ms: int = Field(0, ge=0, json_schema_extra=LATER)
    """Milliseconds of a chunk of a conformer's attention, as in a stream of `transcribe --chunk-ms`: shows what a
    shorter delay costs in words. 0: attention sees the whole utterance."""
    left: int = Field(4, ge=0, json_schema_extra=LATER)
    """With `chunk_ms`: number of earlier chunks that attention sees."""
    batch_frames: BatchFrames = 4096
    precision: Precision = "fp32"


class LatticesParams(Params):
    """Rescore lattices with another language model.

    The stage also writes n-best lists, word confidences and times, and oracle error rates.
    """

    model_name: str = "lattices"
    """Name of the model in the hypotheses."""
    acoustic_scale: float = Field(0.0, ge=0)
    """Weight of the acoustic scores. 0: the scale stored in the lattices."""
    lm_scale: float = Field(1.0, ge=0)
    """Weight of the log probability of the input `lm`. Tune it on a held-out set."""
    word_bonus: float = 0.0
    """Score added per word, in nats. Raise it when words are missing."""
    beam: float = Field(0.0, ge=0)
    """Drop arcs that score this many nats below the best path. 0 keeps all."""
    nbest: int = Field(0, ge=0, le=1000)
    """Texts per utterance in `.nbest.jsonl`. 0 writes none."""
