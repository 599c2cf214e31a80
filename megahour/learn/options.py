"""Parameters of `train` that are tables of their own: optimisers, criteria, and how to split a model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from megahour.core.config import Options, Share

POLICY: dict[str, JsonValue] = {"policy": True}
"""`json_schema_extra` of parameters that affect how a training runs, but not what it learns."""
IN_FEATURES = ("speaker", "condition")
"""Tags that are stored with features; all others come from the input `selection`."""


class OptimiserOptions(Options):
    """Options that all optimisers have: none. Learning rate and weight decay are parameters of `train`."""


class AdamWOptions(OptimiserOptions):
    """AdamW (Loshchilov and Hutter, 2019): Adam with decoupled weight decay."""

    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay rate of the running mean of the gradient. Lower it when the loss jumps."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """Decay rate of the running mean of the squared gradient. Use 0.98 for transformers and short runs."""
    eps: float = Field(1e-8, gt=0)
    """Added to the denominator for numerical stability. Raise it with fp16."""


class SgdOptions(OptimiserOptions):
    """SGD with momentum. Its learning rate is tens of times that of AdamW, and its state half as large."""

    momentum: float = Field(0.9, ge=0, lt=1)
    """Share of the previous step that the next one keeps."""
    nesterov: bool = True
    """Use Nesterov momentum (Sutskever et al., 2013)."""


class MuonOptions(AdamWOptions):
    """Muon (Jordan et al., 2024): orthogonal steps for matrices, AdamW for output layers, embeddings, norms
    and biases.

    A matrix's step is scaled to the root mean square of AdamW's (Liu et al., 2025), so one learning rate and decay
    fit both: start with those of AdamW.
    """

    momentum: float = Field(0.95, ge=0, lt=1)
    """Decay rate of the running mean of a matrix's gradient."""
    iterations: int = Field(5, ge=1, le=20)
    """Newton-Schulz iterations that orthogonalise a step."""


OPTIMISERS: dict[str, type[OptimiserOptions]] = {"adamw": AdamWOptions, "sgd": SgdOptions, "muon": MuonOptions}


class CriterionOptions(Options):
    """Options that all criteria have: none."""

    @property
    def heads(self) -> dict[str, float]:
        """Weights of the heads of an end-to-end model; empty if the encoder has the only output layer."""
        return {}


class AttentionOptions(CriterionOptions):
    """An attention decoder trained beside CTC or a transducer, on the same encoder."""

    attention: float = Field(0.0, ge=0, le=10)
    """Weight of the attention decoder's loss; 0 trains none. 0.3 often helps the encoder."""
    decoder_layers: int = Field(1, ge=1, le=64)
    """Layers of the attention decoder."""
    smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing of the attention decoder."""
    intermediate: float = Field(0.0, ge=0, le=10)
    """Weight of a CTC loss on the encoder's middle layer, added to the last layer's. Try 0.3 on deep encoders."""
    tag: Literal["", "language", "speaker", "condition", "source", "text_language"] = ""
    """Tag that the model also predicts for each utterance, with its probability: a column of the features (speaker,
    condition) or of the input `selection`. The training curve shows its accuracy."""
    tag_weight: float = Field(1.0, gt=0, le=1000)
    """Weight of the tag's cross-entropy, relative to the loss of all tokens of an utterance."""
    tag_told: Share = 0.0
    """Share of the training utterances for which the model gets the tag as an input, so that `tell` of decode and
    transcribe works. Use 1 if the tag is always given, 0.5 if it sometimes is. 0: the model cannot take a tag."""
    join: int = Field(256, ge=2, le=8192)
    """Width of the projection from the encoder to its heads, if it has several."""

    @model_validator(mode="after")
    def _told_a_tag(self) -> AttentionOptions:
        if self.tag_told and not self.tag:
            raise ValueError("tag_told needs a tag: set `tag` too, such as language")
        return self


class CtcOptions(AttentionOptions):
    """CTC (Graves et al., 2006)."""

    consistency: float = Field(0.0, ge=0, le=10)
    """Weight of the divergence between the outputs for two augmented views of each utterance (CR-CTC, Yao et al.,
    2024). Try 0.2 together with time masks. A step takes twice as long."""

    @property
    def heads(self) -> dict[str, float]:
        if not (self.attention or self.intermediate or self.tag):
            return {}
        return {"ctc": 1.0} | ({"attention": self.attention} if self.attention else {})


class TransducerOptions(AttentionOptions):
    """Transducer (Graves, 2012) that emits at most one token per frame."""

    predictor: Literal["stateless", "lstm"] = "stateless"
    """stateless: sees the last `context` tokens. lstm: sees all of them; use it with plenty of text."""
    context: int = Field(2, ge=1, le=16)
    """Tokens that a stateless predictor sees."""
    prune: int = Field(0, ge=0, le=1000)
    """Symbols per frame that the joiner is computed for (pruned transducer). 5 saves time and memory with long texts
    and many tokens. 0 computes all."""
    prune_after: float = Field(0.25, ge=0, lt=1)
    """Share of the training that computes all symbols before `prune` applies, because an untrained model does not know
    which ones matter. 0 if `initial` is a trained transducer."""
    ctc: float = Field(0.0, ge=0, le=10)
    """Weight of a CTC loss on the same encoder, in training alone; 0 trains none. 0.3 helps where speech is little."""

    @property
    def heads(self) -> dict[str, float]:
        weights = {"transducer": 1.0, "ctc": self.ctc, "attention": self.attention}
        return {name: weight for name, weight in weights.items() if weight}


class SequenceOptions(CriterionOptions):
    """Sequence training over all paths of `graph`, or of each utterance's lattice (Veselý et al., 2013)."""

    acoustic_scale: float = Field(0.5, gt=0, le=10)
    """Weight of the acoustic scores against the graph. Use the one that decodes best (`scales` of decode)."""
    smoothing: float = Field(0.1, ge=0, lt=1)
    """Weight of cross-entropy in the loss (F-smoothing). Raise it when word errors rise while the loss falls. A small
    learning rate and few epochs also keep the model close to the initial one."""
    add_aligned: bool = True
    """With `lattices`: add the alignment as a path to each lattice that lacks it, at the language model cost of the
    lattice's best path. False: mmi learns nothing from such an utterance, smbr learns from the paths that are there."""
    reject: float = Field(0.0, ge=0, lt=1)
    """Frames whose aligned senone has a lower posterior among all paths get no gradient of the criterion. Try 0.001
    with mmi when transcripts are rough."""


class SmbrOptions(SequenceOptions):
    """State-level minimum Bayes risk: maximises the expected frame accuracy over all paths of a graph or lattice."""

    silence: bool = False
    """Count silence and noises, as one class, as correct where any of them is aligned. Try it when words are inserted
    in pauses. Each phone for noise takes as long again as the rest of the loss."""


class SpeechOptions(CriterionOptions):
    """Speech from phones, for kind voice. Learns durations, pitch and energy of *voice_data* as well as mels."""

    decoder: Literal["fast", "flow"] = "flow"
    """flow: mels by flow matching in several steps (Matcha-TTS). fast: mels in one step (FastSpeech 2); faster, and
    understood better in both languages measured, at a lower predicted MOS (docs/speak.md). Nobody compared them by
    ear."""
    decoder_layers: int = Field(8, ge=1, le=64)
    """Layers of the decoder, which takes most of the time."""


class SoundOptions(CriterionOptions):
    """Sound from mels, for kind vocoder: spectra of several resolutions, and discriminators trained alongside."""

    rounds: int = Field(32, ge=0, le=100)
    """Rounds of Griffin-Lim before the convolutions. Fewer are faster and leave more to learn."""
    judge_units: int = Field(16, ge=1, le=512)
    """Channels of the discriminators, which take most of a step's time."""


CRITERIA: dict[str, type[CriterionOptions]] = {
    "ce": CriterionOptions,
    "ctc": CtcOptions,
    "transducer": TransducerOptions,
    "mmi": SequenceOptions,
    "smbr": SmbrOptions,
    "speech": SpeechOptions,
    "sound": SoundOptions,
}


class SpeechScoreOptions(Options):
    """How a voice's or vocoder's speech is scored while it trains: held-out utterances, by the weights of the moment.

    The functions are those of `score-speech`. A voice is compared with the recording's mels through the same vocoder,
    so that the model alone is measured; its PESQ and STOI mean little, since its timing differs. A vocoder speaks the
    recording's mels and is compared with the recording.
    """

    every: int = Field(0, ge=0)
    """Score the speech of rows of the curves whose number is a multiple of this, and of the last row. 0: never; MCD,
    pitch and voicing are measured at every row in any case."""
    utterances: int = Field(4, ge=1, le=200)
    """Number of held-out utterances that are spoken at each row. More give steadier curves and take more time."""
    mos: bool = False
    """Also predict the MOS with DNSMOS (extra `mos`)."""
    recogniser: str = ""
    """Recogniser that counts the words it hears wrong: a model, run or bundle as in `transcribe`, or
    FILE.py:function of samples (float32, -1 to 1) and their rate. Empty: no word errors."""

    @model_validator(mode="after")
    def _is_asked(self) -> SpeechScoreOptions:
        if not self.every and (self.mos or self.recogniser):
            raise ValueError("mos and recogniser apply only to rows that are scored: set every, such as 5")
        return self


class Parallel(Options):
    """How to split a model that is too large for one process.

    `shard` consecutive workers hold one model and act as one worker of the `trainer`, which works between such groups:
    put the fast network inside a group and the slow one between groups. Each worker of a group loads its own batches.
    `clip` limits the gradient of the group.
    """

    shard: int = Field(1, ge=1)
    """Consecutive workers that hold one model in parts. Workers on one machine are best."""
    mode: Literal["fsdp", "zero", "pipeline", "tensor"] = "fsdp"
    """How the model is split. fsdp: weights, gradients and optimiser state are sharded, and each layer's weights are
    gathered when it computes (FSDP2, ZeRO-3). zero: gathered weights stay until the backward pass ends (ZeRO-2): more
    memory, less traffic. pipeline: each worker holds some of the layers, and only activations travel. tensor: each
    worker holds a part of every layer of a conformer, voice or vocoder; needs the fastest networks."""
    microbatches: int = Field(1, ge=1)
    """With mode pipeline: parts of a worker's batch. More parts keep the workers busy but make smaller matrix
    products."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """With mode pipeline. 1f1b: starts each backward pass as early as possible, so a worker holds the activations of as
    many parts as there are workers. gpipe: holds those of all parts; for links with high latency."""

    @model_validator(mode="after")
    def _of_the_mode(self) -> Parallel:
        if self.mode != "pipeline" and (self.microbatches, self.schedule) != (1, "1f1b"):
            raise ValueError(f"microbatches and schedule apply only to mode pipeline, not to {self.mode}")
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_of_other_modes(self, given: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out options of other modes, so that new options do not change the identity of finished runs."""
        found: dict[str, Any] = given(self)
        pipeline = self.mode == "pipeline"
        return {name: value for name, value in found.items() if pipeline or name in ("shard", "mode")}
