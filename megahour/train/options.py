"""What a user may set of `train` by a table of its own: optimisers, criteria, and how a model is shared out."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from megahour.core.config import Share

POLICY: dict[str, JsonValue] = {"policy": True}
"""`json_schema_extra` of a parameter that says how a training runs, not what it learns."""
IN_FEATURES = ("speaker", "condition")
"""Tags that features have; others are of the selection."""


class OptimiserOptions(BaseModel):
    """What all optimisers have: the learning rate and weight decay of `train`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AdamWOptions(OptimiserOptions):
    """AdamW (Loshchilov and Hutter, 2019): decay is apart from the gradient."""

    beta1: float = Field(0.9, ge=0, lt=1, description="memory of the mean gradient; lower it where the loss jumps")
    beta2: float = Field(0.999, ge=0, lt=1, description="memory of its square; 0.98 for transformers and short runs")
    eps: float = Field(1e-8, gt=0, description="added to the root of the square; raise it in fp16")


class SgdOptions(OptimiserOptions):
    """SGD with momentum: wants a learning rate tens of times that of AdamW, and keeps half as much of each weight."""

    momentum: float = Field(0.9, ge=0, lt=1, description="share of the last step that the next one keeps")
    nesterov: bool = Field(True, description="the gradient counts as of one step ahead (Sutskever et al., 2013)")


class MuonOptions(AdamWOptions):
    """Muon (Jordan et al., 2024): matrices take orthogonal steps, the head, norms and biases those of AdamW.

    A matrix's step is scaled to the root mean square of AdamW's (Liu et al., 2025), so that one learning rate and decay
    serve both: begin with those of AdamW.
    """

    momentum: float = Field(0.95, ge=0, lt=1, description="memory of a matrix's mean gradient")
    iterations: int = Field(5, ge=1, le=20, description="Newton-Schulz iterations that make a step orthogonal")


OPTIMISERS: dict[str, type[OptimiserOptions]] = {"adamw": AdamWOptions, "sgd": SgdOptions, "muon": MuonOptions}


class CriterionOptions(BaseModel):
    """What all criteria have: nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def heads(self) -> dict[str, float]:
        """Weight of each head of an end-to-end model; none: the encoder's own outputs are the model's."""
        return {}


class AttentionOptions(CriterionOptions):
    """An attention decoder beside CTC or transducer, which learns from the same encoder."""

    attention: float = Field(
        0.0, ge=0, le=10, description="weight of an attention decoder's loss; 0: none. 0.3 often helps the encoder"
    )
    decoder_layers: int = Field(1, ge=1, le=64, description="layers of the attention decoder")
    smoothing: float = Field(0.1, ge=0, lt=1, description="label smoothing of the attention decoder")
    intermediate: float = Field(
        0.0,
        ge=0,
        le=10,
        description="weight of CTC on the encoder's middle layer, beside the last one's; try 0.3 on deep encoders",
    )
    tag: Literal["", "language", "speaker", "condition", "source", "text_language"] = Field(
        "",
        description="what the model also says of an utterance, with its probability, from the mean of its frames: a "
        "column of the features (speaker, condition) or of the input `selection`. The curve has its accuracy",
    )
    tag_weight: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="weight of the tag's cross entropy beside the loss of all of an utterance's tokens",
    )
    tag_told: Share = Field(
        0.0,
        description="share of the utterances whose tag the model is told in training, so that `tell` of decode and "
        "transcribe can; 0.5 for a model that is also asked without, 1 where it is always told. 0: it cannot be told",
    )
    join: int = Field(256, ge=2, le=8192, description="width of what the encoder hands to its heads, where it has some")

    @model_validator(mode="after")
    def _told_a_tag(self) -> AttentionOptions:
        if self.tag_told and not self.tag:
            raise ValueError("tag_told is of a tag: set `tag`, such as language, too")
        return self


class CtcOptions(AttentionOptions):
    """CTC (Graves et al., 2006)."""

    consistency: float = Field(
        0.0,
        ge=0,
        le=10,
        description="weight of the distance between what the model says of two augmented views of each piece (CR-CTC, "
        "Yao et al., 2024); try 0.2 with time masks. A step takes twice the time",
    )

    @property
    def heads(self) -> dict[str, float]:
        if not (self.attention or self.intermediate or self.tag):
            return {}
        return {"ctc": 1.0} | ({"attention": self.attention} if self.attention else {})


class TransducerOptions(AttentionOptions):
    """Transducer (Graves, 2012), at most one token a frame."""

    predictor: Literal["stateless", "lstm"] = Field(
        "stateless", description="stateless: sees the last `context` tokens; lstm: all, where there is text enough"
    )
    context: int = Field(2, ge=1, le=16, description="tokens that a stateless predictor sees")
    prune: int = Field(
        0,
        ge=0,
        le=1000,
        description="symbols of each frame that the joiner is computed for (pruned transducer); 0: all. 5 saves time "
        "and memory where texts are long and tokens many",
    )
    prune_after: float = Field(
        0.25,
        ge=0,
        lt=1,
        description="share of the training that has all symbols before `prune` counts: a model that cannot spell yet "
        "does not know which matter. 0 where `initial` can spell",
    )
    ctc: float = Field(
        0.0, ge=0, le=10, description="weight of CTC on the same encoder; 0: none. 0.2 makes early training steady"
    )

    @property
    def heads(self) -> dict[str, float]:
        weights = {"transducer": 1.0, "ctc": self.ctc, "attention": self.attention}
        return {name: weight for name, weight in weights.items() if weight}


class SequenceOptions(CriterionOptions):
    """Sequence training from a model of criterion ce, over all paths of the input `graph`, or of each utterance's own
    among the `lattices` (Veselý et al., 2013).
    """

    acoustic_scale: float = Field(
        0.5,
        gt=0,
        le=10,
        description="weight of the acoustics against the graph; take the one that decodes best (`scales` of decode)",
    )
    smoothing: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="share of cross entropy in the loss (F-smoothing); raise it when words get worse while the loss "
        "falls. Beside it, a small learning rate and few epochs keep the model near the first one",
    )
    add_aligned: bool = Field(
        True,
        description="with `lattices`: one that lacks the alignment gets it as a path, with the language model's cost "
        "of its best path. False: mmi learns nothing from such an utterance, smbr only what is best among the rest",
    )
    reject: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="frames whose aligned senone is less likely among all paths have no gradient of the criterion; try "
        "0.001 with mmi where transcripts are rough",
    )


class SmbrOptions(SequenceOptions):
    """State-level minimum Bayes risk: fewer frames that are not as aligned, over all paths of the input `graph`, or
    of `lattices`.
    """

    silence: bool = Field(
        False,
        description="silence counts as right where it is aligned; try it where words are inserted in pauses",
    )


class SpeechOptions(CriterionOptions):
    """Speech from phones, for kind voice, with the durations, pitch and energy of *voice_data* as a second lesson."""

    decoder: Literal["fast", "flow"] = Field(
        "flow",
        description="flow: mels by flow matching (Matcha-TTS), in some steps; fast: all at once (FastSpeech 2), for "
        "the slowest machines. How they sound side by side was not measured",
    )
    decoder_layers: int = Field(8, ge=1, le=64, description="layers of the decoder; most of the time goes there")


CRITERIA: dict[str, type[CriterionOptions]] = {
    "ce": CriterionOptions,
    "ctc": CtcOptions,
    "transducer": TransducerOptions,
    "mmi": SequenceOptions,
    "smbr": SmbrOptions,
    "speech": SpeechOptions,
}


class Parallel(BaseModel):
    """How a model that is too big for one process is shared out.

    `shard` consecutive workers hold one model and are one worker to the `trainer`, which goes between such groups: a
    fast network inside, a thin one between. Each worker of a group loads batches of its own; `clip` is of the group's
    gradient.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    shard: int = Field(1, ge=1, description="workers that hold one model in parts; those of one machine are best")
    mode: Literal["fsdp", "zero", "pipeline", "tensor"] = Field(
        "fsdp",
        description="weights, gradients and optimiser state are in parts. fsdp: each layer's weights come together "
        "where it computes (FSDP2, ZeRO-3); zero: they stay until backward is through (ZeRO-2): more memory, less "
        "traffic; pipeline: each worker has some of the layers, and only activations travel; tensor: each has a part "
        "of every layer of a conformer, whose activations come together: for the fastest networks",
    )
    microbatches: int = Field(
        1, ge=1, description="pipeline: parts of a worker's batch; more keep workers busy, in smaller products"
    )
    schedule: Literal["1f1b", "gpipe"] = Field(
        "1f1b",
        description="pipeline: 1f1b goes back as soon as it can, so that each worker keeps the activations of as many "
        "parts as there are workers; gpipe keeps those of all, for links whose latency counts",
    )

    @model_validator(mode="after")
    def _of_the_mode(self) -> Parallel:
        if self.mode != "pipeline" and (self.microbatches, self.schedule) != (1, "1f1b"):
            raise ValueError(f"microbatches and schedule are of mode pipeline, not of {self.mode}")
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_of_other_modes(self, given: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What finished runs have in their identity stays as it is when a mode gets options."""
        found: dict[str, Any] = given(self)
        pipeline = self.mode == "pipeline"
        return {name: value for name, value in found.items() if pipeline or name in ("shard", "mode")}
