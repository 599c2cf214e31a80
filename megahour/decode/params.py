"""What a user may set of `decode`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Params
from megahour.models.params import BatchFrames, Precision


class GraphParams(Params):
    """Decoding graph from topology, lexicon and language model."""

    topology: Literal["hmm", "ctc", "phones"] = Field(
        "hmm",
        description="hmm: senones of `units`; ctc: tokens of `model`; phones: the senones of `units` by an n-gram of "
        "their alignments, without words, for criterion mmi (lattice-free MMI)",
    )
    self_loop: float = Field(0.5, gt=0, lt=1, description="probability that a senone lasts another frame")
    silence_probability: float = Field(0.5, gt=0, lt=1, description="probability of silence beside a word")
    word_cost: float = Field(0.0, description="added for every word, in nats; above 0 gives fewer words")
    order: int = Field(
        3,
        ge=2,
        le=8,
        description="phones: of the n-gram; higher is a tighter model in a larger graph",
        json_schema_extra=LATER,
    )
    min_count: int = Field(
        3,
        ge=1,
        description="phones: histories seen less often are shortened; raise it for a smaller, faster graph",
        json_schema_extra=LATER,
    )


class DecodeParams(Params):
    """Beam search: over the graph with a model's posteriors, or without a graph for a model of tokens."""

    sets: list[str] = Field(["test"], description="sets to decode")
    model_name: str = Field("model", description="name of the model in the hypotheses")
    acoustic_scale: float = Field(1.0, gt=0, description="weight of the acoustics; replaced by the input `tuned`")
    prior_scale: float = Field(1.0, ge=0, description="weight of the senones' priors; ctc graphs use none")
    beam: float = Field(14.0, gt=0, description="drop paths that are worse than the best by more nats")
    max_active: int = Field(7000, ge=1, description="most paths at a frame")
    scales: list[float] = Field(
        [], description="acoustic scales to try on `sets` (not the test set); the summary names the best"
    )
    beams: int = Field(
        4,
        ge=1,
        le=256,
        description="without a graph: hypotheses of an utterance that are kept; 1 is greedy, and fastest",
        json_schema_extra=LATER,
    )
    ctc_search: Literal["best-path", "prefixes"] = Field(
        "best-path",
        description="without a graph, of CTC: best-path, the likeliest token of each frame, whatever `beams`; "
        "prefixes: `beams` texts, each with the sum of all its paths, a little better. A language model, hot words, "
        "`nbest` and `attention_weight` search prefixes without being asked",
        json_schema_extra=LATER,
    )
    lm_scale: float = Field(
        0.5,
        ge=0,
        description="without a graph: weight of the input `lm`'s ln p; choose it on a held-out set, with word_bonus: "
        "higher for text as the language model's, lower for a model that has heard much text",
        json_schema_extra=LATER,
    )
    word_bonus: float = Field(
        0.0,
        description="without a graph: nats for each word (each token, with a language model of tokens); raise it where "
        "words are missing, as they are with a high lm_scale",
        json_schema_extra=LATER,
    )
    unknown_word: float = Field(
        0.0,
        description="nats for each word (or token) that `lm` does not know, beside its <unk>; lower it, to -10, where "
        "all words are known; raise it where names are lost",
        json_schema_extra=LATER,
    )
    composed_lm_scale: float = Field(
        1.0,
        ge=0,
        description="with a graph: weight of the ln p of the input `lm`, which takes the place of `graph_lm`; choose "
        "it on a held-out set, with acoustic_scale",
        json_schema_extra=LATER,
    )
    low_order_scale: float = Field(
        0.2,
        ge=0,
        description="weight that is taken off for the input `low_order_lm`, a model of tokens of order 2 of the "
        "training texts (LODR): a transducer has learnt these already; choose it with lm_scale",
        json_schema_extra=LATER,
    )
    hot_words: list[str] = Field(
        [],
        description="without a graph: words and phrases to expect, `new york` or, with a bonus of its own, "
        "`new york :1.5`; `york*` also within a longer word",
        json_schema_extra=LATER,
    )
    hot_word_bonus: float = Field(
        0.5,
        description="nats for each character of a hot word; lower it where they are found and were not said",
        json_schema_extra=LATER,
    )
    attention_weight: float = Field(
        0.0,
        ge=0,
        description="without a graph: weight of the attention decoder's ln p when the `beams` best texts are sorted "
        "once more; 0: not asked. Needs a model that was trained with one; try 0.5 and beams of 10",
        json_schema_extra=LATER,
    )
    tell: str = Field(
        "",
        description="tag, such as the language `de`, of all utterances, which a model that was trained with `tag_told` "
        "is told; recognised: the one that it hears, of each utterance by itself (the attention decoder is told "
        "nothing); empty: none",
        json_schema_extra=LATER,
    )
    nbest: int = Field(
        0,
        ge=0,
        le=256,
        description="texts of an utterance in `.nbest.jsonl`, with the parts of their scores, which `megahour lm "
        "rescore` reads; a search without a graph finds at most `beams`. 0: none",
        json_schema_extra=LATER,
    )
    confidence: bool = Field(
        False,
        description="a column `confidence` from 0 to 1: the mean probability of the path's labels, of tokens without "
        "the frames of blanks. `pseudo-label` chooses by it",
        json_schema_extra=LATER,
    )
    lattice: float = Field(
        0.0,
        ge=0,
        description="with a graph: beam of lattices, in nats, which are written to `.lattices.parquet`; 6 for some ten "
        "arcs that cross a frame, more for a first pass that is weak. Texts and `nbest` are then theirs. 0: none",
        json_schema_extra=LATER,
    )
    batch_frames: BatchFrames = 4096
    precision: Precision = "fp32"


class LatticesParams(Params):
    """Lattices to texts: another language model, n-best lists, word confidences and times, errors of the oracle."""

    model_name: str = Field("lattices", description="name of the model in the hypotheses")
    acoustic_scale: float = Field(0.0, ge=0, description="weight of the acoustics; 0: that of the lattices")
    lm_scale: float = Field(1.0, ge=0, description="weight of the input `lm`'s ln p; choose it on a held-out set")
    word_bonus: float = Field(0.0, description="nats for each word; raise it where words are missing")
    beam: float = Field(0.0, ge=0, description="drop arcs that are worse than the best path by more nats; 0: keep all")
    nbest: int = Field(0, ge=0, le=1000, description="texts of an utterance in `.nbest.jsonl`; 0: none")


class ExportLatticesParams(Params):
    """Lattices as Kaldi's archives, of compact and plain lattices, and HTK's SLF."""

    formats: list[Literal["kaldi", "kaldi-text", "lattice4", "slf"]] = Field(
        ["kaldi"],
        min_length=1,
        description="kaldi: compact lattices, binary; kaldi-text: the same as text; lattice4: plain ones, for readers "
        "of OpenFst's files; slf: a tar of a file an utterance",
    )


class ImportLatticesParams(Params):
    """Lattices of other recognisers, in Kaldi's archives or HTK's SLF, to be rescored and scored beside ours."""

    source: list[str] = Field(min_length=1, description="files, globs or URLs: archives, or SLF files; .gz too")
    format: Literal["kaldi", "slf"] = Field("kaldi", description="kaldi: compact lattices, binary or text")
    words: str = Field("", description="kaldi: its words.txt")
    sets: list[str] = Field(["test"], description="sets of the features whose utterances are looked for")
    model_name: str = Field("recogniser", description="name of the recogniser in the hypotheses")
    acoustic_scale: float = Field(1.0, gt=0, description="weight of the acoustics that the lattices are meant for")
    frame_s: float = Field(0.01, gt=0, description="seconds of a frame: 0.03 where every third one is computed")

    @model_validator(mode="after")
    def _words_fit(self) -> ImportLatticesParams:
        if (self.format == "kaldi") != bool(self.words):
            raise ValueError(f"{self.format} {'needs' if self.format == 'kaldi' else 'takes no'} words = WORDS.TXT")
        return self

    def identity(self) -> dict[str, Any]:
        """Other contents are another job; other places are not."""
        from megahour.units.texts import files_digest

        files = {"source": files_digest(self.source), "words": files_digest([self.words]) if self.words else ""}
        return {**super().identity(), **files}


class NamesParams(Params):
    """Which utterances' names meet what others wrote; laid out for the stages that import."""

    sets: list[str] = Field([], description="sets of the features whose utterances are named")
    nameless: bool = Field(False, description="records without a name go to the first shard of the sets")


class ImportHypothesesParams(Params):
    """Any recogniser's JSON as hypotheses, to be scored beside ours and to make pseudo-labels of."""

    source: list[str] = Field(
        min_length=1,
        description="files, globs or URLs: a JSON object a line (NeMo's manifests with pred_text, …), or a file an "
        "utterance, named as it is (Whisper, Vosk, the JSON of `transcribe`, …); .gz too",
    )
    sets: list[str] = Field(["unlabelled"], description="sets of the features whose utterances are looked for")
    model_name: str = Field("recogniser", description="name of the recogniser in the hypotheses")
    language: str = Field(
        "en", description="language whose rules make spoken words of its texts, as of transcripts; empty: as they are"
    )

    def identity(self) -> dict[str, Any]:
        """Other contents are another job; other places are not."""
        from megahour.units.texts import files_digest

        return {**super().identity(), "source": files_digest(self.source)}
