"""What a user may set of `decode`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from megahour.core.config import LATER, Params


class GraphParams(Params):
    """Decoding graph from topology, lexicon and language model."""

    topology: Literal["hmm", "ctc"] = Field("hmm", description="hmm: senones of `units`; ctc: characters of `model`")
    self_loop: float = Field(0.5, gt=0, lt=1, description="probability that a senone lasts another frame")
    silence_probability: float = Field(0.5, gt=0, lt=1, description="probability of silence beside a word")
    word_cost: float = Field(0.0, description="added for every word, in nats; above 0 gives fewer words")


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
    batch_frames: int = Field(4096, ge=1, description="stacked frames of an inference batch")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="of the model's products and convolutions; bf16 for GPUs that have it",
        json_schema_extra=LATER,
    )
