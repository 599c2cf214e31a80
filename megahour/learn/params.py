"""The parameters of `train`, and checks that they fit each other and the inputs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import model_validator

from megahour.core.config import parse
from megahour.core.errors import ConfigError
from megahour.core.hooks import code_digest
from megahour.learn.learning_params import LearningParams
from megahour.learn.machine_params import CHOICES, MachineParams
from megahour.learn.options import (
    CRITERIA,
    IN_FEATURES,
    OPTIMISERS,
    AttentionOptions,
    CriterionOptions,
    CtcOptions,
    OptimiserOptions,
    SequenceOptions,
)
from megahour.sync.build import options_of
from megahour.sync.params import TRAINERS
from megahour.sync.trainer_options import TrainerOptions

SOUNDING = {"voice": "speech", "vocoder": "sound"}
"""Kinds of model that generate speech or sound, with their criteria."""


class TrainParams(MachineParams, LearningParams):
    """Train a recogniser or a voice.

    A recogniser learns from frame labels, texts, whole utterances against a graph, or a teacher's targets.
    """

    @property
    def step_options(self) -> OptimiserOptions:
        """The optimiser's options. Raises ConfigError for an unknown option."""
        kind = OPTIMISERS[self.optimiser]
        known = ", ".join(kind.model_fields) or "none"
        return parse(
            kind, self.optimiser_options, where=f"optimiser {self.optimiser}", remedy=f"its options are {known}"
        )

    @property
    def goal(self) -> CriterionOptions:
        """The criterion's options. Raises ConfigError for an unknown option."""
        kind = CRITERIA[self.criterion]
        known = ", ".join(kind.model_fields) or "none"
        where = f"criterion {self.criterion}"
        return parse(kind, self.criterion_options, where=where, remedy=f"its options are {known}")

    @property
    def tag(self) -> str:
        """The tag that the model predicts besides the text, such as language; "" for none."""
        goal = self.goal
        return goal.tag if isinstance(goal, AttentionOptions) else ""

    @property
    def synchroniser(self) -> TrainerOptions:
        """The trainer with its options. Raises ConfigError for an unknown trainer or option."""
        clip = self.clip if self.parallel.shard == 1 else None  # a group of shards clips its gradient itself
        return options_of(self.trainer, {**self.trainer_options, "clip_norm": clip})

    @property
    def of_senones(self) -> bool:
        """Whether the labels are a senone of `units` for each frame."""
        return self.criterion in ("ce", "mmi", "smbr")

    @property
    def lanes_in_use(self) -> int:
        """`lanes`, or what 0 stands for. Workers that do not step together take any batch, whatever its lane."""
        return self.lanes or (self.workers if self.nodes > 1 and self.synchroniser.in_step else 1)

    def identity(self) -> dict[str, Any]:
        """As for all parameters. Muon's orthogonal steps once included heads and embeddings: that was another model.

        The digest of a recogniser's file has its errors counted again after a change. Lanes are those in use, and one
        is left out, as before there were lanes: `nodes` is no part of the identity, but chooses them.
        """
        now = self.optimiser == "muon" and bool(self.goal.heads or self.kind == "voice")
        recogniser = self.score_speech.recogniser
        digest = {"recogniser_sha256": code_digest(recogniser)} if recogniser else {}
        found = {name: value for name, value in super().identity().items() if name != "lanes"}
        lanes = {"lanes": self.lanes_in_use} if self.lanes_in_use > 1 else {}
        return found | lanes | ({"muon": "inner matrices"} if now else {}) | digest

    def check_roles(self, roles: Collection[str]) -> None:
        """Raises ConfigError unless the inputs `roles` fit the criterion."""
        if "vocoder" in roles and self.kind != "voice":
            what = f"`vocoder` makes the held-out speech of a voice, not of kind {self.kind}"
            raise ConfigError(what, where="train", remedy="leave it out")
        if self.kind in SOUNDING and (others := sorted(set(roles) - {"features", "initial", "vocoder"})):
            what = f"criterion {self.criterion} learns only from *voice_data*, not from `{others[0]}`"
            raise ConfigError(what, where="train", remedy="leave it out")
        self._check_sequence(roles)
        if self.criterion != "ce" and "targets" in roles:
            what = f"targets are a teacher's senones, which criterion {self.criterion} cannot use"
            raise ConfigError(what, where="train", remedy="set criterion: ce, or leave `targets` out")
        if self.of_senones and "pseudo_labels" in roles:
            what = f"pseudo_labels are texts, but criterion {self.criterion} learns senones"
            raise ConfigError(what, where="train", remedy="give `units` of `realign`, which aligns them")
        if self.confidence_power and "pseudo_labels" not in roles:
            what = "confidence_power applies to pseudo-labels, which are missing"
            raise ConfigError(
                what, where="train", remedy="give the input `pseudo_labels`, or leave confidence_power out"
            )
        if (bool(self.tag) and self.tag not in IN_FEATURES) != ("selection" in roles):
            what = "the input `selection` is used only for a tag, and no tag is set"
            remedy = "give the `selection` of the features, and criterion_options: {tag: language}, or neither"
            if "selection" not in roles:
                what = f"tag {self.tag} needs the input `selection`, which has the tags of utterances"
            elif self.tag:
                what, remedy = f"tag {self.tag} is taken from the features, so `selection` is not used", "leave it out"
            raise ConfigError(what, where="train", remedy=remedy)
        if "initial" in roles and self.parallel.shard > 1:
            what = "`initial` does not go with parallel.shard above 1, since no worker holds the whole model"
            raise ConfigError(what, where="train", remedy="leave one of them out")
        self._check_audio(roles)
        spelled = [role for role in ("tokens", "lexicon") if role in roles]
        if self.of_senones and spelled:
            what = f"criterion {self.criterion} learns senones of `units`, not `{spelled[0]}`"
            raise ConfigError(what, where="train", remedy=f"set criterion: ctc, or leave `{spelled[0]}` out")
        if len(spelled) > 1:
            what = "`tokens` spells words in pieces, `lexicon` in phones"
            raise ConfigError(what, where="train", remedy="give only one of them")
        if self.of_senones and "units" not in roles:
            remedy = "give the input `units`, or set criterion: ctc"
            raise ConfigError(f"criterion {self.criterion} needs `units`", where="train", remedy=remedy)

    def _check_sequence(self, roles: Collection[str]) -> None:
        """Check that sequence training has a graph or lattices and an initial model, and other criteria no graph."""
        against = [role for role in ("graph", "lattices") if role in roles]
        if not isinstance(self.goal, SequenceOptions):
            if against:
                what = f"`{against[0]}` is only for sequence training, not for criterion {self.criterion}"
                raise ConfigError(what, where="train", remedy=f"set criterion: smbr, or leave `{against[0]}` out")
            return
        if len(against) != 1:
            what = (
                f"criterion {self.criterion} needs either `graph` or `lattices`, has {' and '.join(against) or 'none'}"
            )
            remedy = "give a *graph* of a low-order language model, or of topology phones, made with these `units`; or "
            remedy += "lattices of the training sets of these features, from `decode` with `lattice: 6`"
            raise ConfigError(what, where="train", remedy=remedy)
        if "initial" not in roles and (self.criterion == "smbr" or "lattices" in roles):
            remedy = "train with criterion: ce first, and give its model"
            raise ConfigError(f"criterion {self.criterion} needs `initial`", where="train", remedy=remedy)
        if "lattices" in roles and (self.offsets != [0] or self.tempo):
            what = "`lattices` fit only frames at offset 0, at the recording's tempo"
            raise ConfigError(what, where="train", remedy="set offsets: [0], and leave out tempo")

    def _check_audio(self, roles: Collection[str]) -> None:
        """Check that settings that change audio have the input `audio`, and that all audio inputs are used."""
        wave = self.waveform
        for what, wrong, remedy in (
            (
                "`waveform` needs the input `audio`",
                wave.changes and "audio" not in roles,
                "give `audio`, the utterances of the features",
            ),
            ("`noises` is not used", "noises" in roles and not wave.noise, "set noise in `waveform`, or leave it out"),
            ("`rooms` is not used", "rooms" in roles and not wave.reverb, "set reverb in `waveform`, or leave it out"),
            (
                "speed in `waveform` would shift the audio against its frame labels",
                self.of_senones and wave.speed > 0,
                "use `tempo`, which moves the labels along, or criterion: ctc",
            ),
        ):
            if wrong:
                raise ConfigError(what, where="train", remedy=remedy)

    @model_validator(mode="after")
    def _offsets_fit(self) -> TrainParams:
        if any(not 0 <= offset < self.stack for offset in self.offsets):
            raise ValueError(f"offsets {self.offsets} must be from 0 to stack − 1 = {self.stack - 1}")
        return self

    @model_validator(mode="after")
    def _conformer_fits(self) -> TrainParams:
        if self.kind == "conformer" and self.of_senones:
            raise ValueError(
                "a conformer has one output for every four frames, but senones need one per frame: set criterion: ctc "
                "or transducer"
            )
        if self.kind == "conformer" and self.stack > 2:
            raise ValueError(
                f"a conformer joins four frames itself, so stack = {self.stack} gives steps of {40 * self.stack} ms; "
                "set stack: 1 and offsets: [0]"
            )
        return self

    @model_validator(mode="after")
    def _voice_fits(self) -> TrainParams:
        for kind, criterion in SOUNDING.items():
            if (self.kind == kind) != (self.criterion == criterion):
                raise ValueError(f"kind {kind} and criterion {criterion} go together: set both, or neither")
        if self.score_speech.every and (self.kind not in SOUNDING or not self.held_out):
            raise ValueError("score_speech needs held-out speech: set kind: voice or vocoder, and held_out above 0")
        if self.kind not in SOUNDING:
            return self
        changes = {"time_masks", "mel_masks", "warp", "tempo", "noise", "channel"}
        if changed := sorted(name for name in changes if getattr(self, name)):
            raise ValueError(f"{changed[0]} would change the speech that a {self.kind} learns: leave it out")
        if self.epochs or self.stack != 1 or self.compile:
            raise ValueError(
                f"a {self.kind} learns whole utterances, frame by frame: set epochs: 0 and some whole_epochs, stack: 1 "
                "and offsets: [0], and leave out compile"
            )
        return self

    @model_validator(mode="after")
    def _truncation_fits(self) -> TrainParams:
        fits = self.kind == "lstm" and self.criterion in ("ce", "ctc", "transducer")
        if self.truncate and (not fits or self.parallel.shard > 1 or self.compile):
            raise ValueError(
                "truncate applies only to kind lstm with criterion ce, ctc or transducer, without parallel.shard and "
                "compile: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _criterion_fits(self) -> TrainParams:
        goal = self.goal
        if isinstance(goal, SequenceOptions) and (self.epochs or self.parallel.shard > 1):
            raise ValueError(
                f"criterion {self.criterion} needs whole utterances, and the whole model in each worker: set epochs: 0 "
                "and some whole_epochs, and leave out parallel.shard"
            )
        if goal.heads and self.compile:
            raise ValueError("compile does not go with a transducer or an attention decoder: leave it out")
        if goal.heads and goal.model_dump()["intermediate"] and ("ctc" not in goal.heads or self.layers < 2):
            raise ValueError(
                "intermediate adds CTC on a middle layer: give ctc a weight, and the model two layers or more"
            )
        if (
            isinstance(goal, CtcOptions)
            and goal.consistency
            and (goal.heads or not (self.time_masks or self.mel_masks))
        ):
            raise ValueError("consistency compares augmented views: set time_masks or mel_masks, without other heads")
        return self

    @model_validator(mode="after")
    def _optimiser_fits(self) -> TrainParams:
        _ = self.step_options
        if self.schedule == "inverse_sqrt" and not self.warm_up:
            raise ValueError("schedule inverse_sqrt decays from the end of the warm-up: set warm_up above 0")
        return self

    @model_validator(mode="after")
    def _workers_fit(self) -> TrainParams:
        if self.trainer in TRAINERS and self.trainer not in CHOICES:
            instead = " with parallel: {shard: N}" if self.trainer in ("fsdp", "zero") else ""
            raise ValueError(f"{self.trainer} must wrap the model, which works only in scripts: use dense{instead}")
        for name in ("clip_norm", "backwards"):
            if name in self.trainer_options:
                raise ValueError(f"trainer_options cannot have `{name}`: leave it out, and set `clip` for clipping")
        node_workers = self.synchroniser.node_workers
        if self.workers // self.nodes % node_workers:
            raise ValueError(f"node_size {node_workers} must divide the number of workers of each machine")
        if self.workers % self.nodes or not self.min_nodes <= self.nodes:
            raise ValueError(
                f"{self.workers} workers cannot be divided equally among {self.nodes} machines"
                if self.workers % self.nodes
                else f"min_nodes {self.min_nodes} is above nodes {self.nodes}"
            )
        if self.faults == "continue" and (why := self.synchroniser.needs_all or ("nodes above 1" * (self.nodes > 1))):
            raise ValueError(f"faults: continue does not go with {why}; set faults: restart")
        if self.nodes > 1 and not self.rendezvous:
            raise ValueError(f"{self.nodes} machines need a `rendezvous`: set it to HOST:PORT of the first")
        return self

    @model_validator(mode="after")
    def _average_fits(self) -> TrainParams:
        if self.average and (self.trainer not in ("dense", "gtc") or self.parallel.shard > 1):
            raise ValueError(
                "average needs the same whole model on all workers: use trainer dense or gtc, without parallel.shard"
            )
        if self.average and self.faults == "continue":
            raise ValueError("average does not go with faults: continue; set faults: restart")
        return self

    def _refused_with_continue(self) -> dict[str, bool]:
        """What `faults: continue` does not go with among models in parts."""
        continues, mode = self.faults == "continue", self.parallel.mode
        return {
            "faults continue in a single group of workers: without one of them a part of the model is missing; set "
            "workers to two or more times `shard`, or faults: restart": continues
            and self.workers == self.parallel.shard,
            f"faults continue in mode {mode}: use mode fsdp or zero, or faults: restart": continues
            and mode not in ("fsdp", "zero"),
            f"faults continue and trainer {self.trainer}: use dense, or faults: restart": continues
            and self.trainer != "dense",
        }

    @model_validator(mode="after")
    def _shards_fit(self) -> TrainParams:
        shard = self.parallel.shard
        if shard == 1:
            return self
        if self.workers % shard or (self.min_nodes < self.nodes and self.workers // self.nodes % shard):
            raise ValueError(
                f"parallel.shard {shard} must divide workers ({self.workers}), and with min_nodes below nodes also the "
                "workers of a machine"
            )
        refused = {
            "trainer gossip, whose workers do not step together: use another": self.trainer == "gossip",
            "node_size above 1: the workers that share a model are the node": self.synchroniser.node_workers > 1,
            "clip: mean in trainer_options: leave it out, each group clips its own gradient": (
                self.trainer_options.get("clip") == "mean"
            ),
            "optimiser muon: it needs whole matrices; use adamw or sgd": self.optimiser == "muon",
            "precision fp16: use bf16, which needs no scale of the loss": self.precision == "fp16",
            "compile: leave it out": self.compile,
        }
        mode = self.parallel.mode
        refused |= self._refused_with_continue()
        refused[f"heads, which mode {mode} does not share out; use mode fsdp or zero"] = bool(
            self.goal.heads and mode in ("pipeline", "tensor")
        )
        refused[f"consistency, whose views mode {mode} does not share out; use mode fsdp or zero"] = bool(
            isinstance(self.goal, CtcOptions) and self.goal.consistency and mode in ("pipeline", "tensor")
        )
        if mode == "tensor":
            refused[f"kind {self.kind}, whose layers mode {mode} does not share out; use conformer, or mode fsdp"] = (
                self.kind not in ("conformer", *SOUNDING)
            )
            refused[f"trainer {self.trainer}, under which copies of the norms would part; use dense"] = (
                self.trainer != "dense"
            )
        if mode == "pipeline":
            layers = self.layers + self.goal.model_dump().get("decoder_layers", 0) * (self.kind == "voice")
            refused[f"layers {layers}: each worker of a pipeline has one at least"] = layers < shard
        if reasons := [what for what, is_so in refused.items() if is_so]:
            raise ValueError(f"parallel.shard {shard} does not go with {'; nor with '.join(reasons)}")
        return self
