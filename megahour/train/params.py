"""What a user may set of `train`: parameters, their defaults and what they change."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from megahour.core.config import LATER, Params, Share, parse
from megahour.core.errors import ConfigError
from megahour.features.params import WaveformParams
from megahour.sync.build import options_of
from megahour.sync.params import TRAINERS, TrainerOptions
from megahour.train.options import (
    CRITERIA,
    IN_FEATURES,
    OPTIMISERS,
    AttentionOptions,
    CriterionOptions,
    CtcOptions,
    OptimiserOptions,
    Parallel,
    SequenceOptions,
    SpeechOptions,
)

POLICY: dict[str, JsonValue] = {"policy": True}
Schedule = Literal["exponential", "cosine", "linear", "constant", "inverse_sqrt", "stable"]


CHOICES = tuple(name for name, options in TRAINERS.items() if not options.wraps_model)


class TrainParams(Params):
    """Train an acoustic model on frame labels, tokens or sentences, or with a teacher's targets."""

    kind: Literal["lstm", "blstm", "tdnn", "mlp", "conformer", "voice"] = Field(
        "lstm",
        description="encoder: lstm sees `lookahead` ahead, blstm the whole utterance, tdnn some frames on both sides, "
        "mlp `lookahead` on both sides, for minutes of speech on one core, "
        "conformer (for ctc and transducer, with `stack` 1 or 2) the whole utterance or chunks, from the same weights; "
        "voice speaks, with criterion speech",
    )
    layers: int = Field(2, ge=1, le=64, description="layers; more fit more data and train more slowly")
    hidden: int = Field(
        256, ge=1, le=8192, description="units per layer (blstm: and per direction); raise it with the hours of data"
    )
    lookahead: int = Field(
        3,
        ge=0,
        le=64,
        description="stacked frames that an lstm sees ahead, an mlp to either side: latency for accuracy; other kinds "
        "ignore it",
    )
    dropout: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="share of outputs dropped in training; raise it when held-out loss rises while loss falls",
    )
    criterion: Literal["ce", "ctc", "transducer", "mmi", "smbr", "speech"] = Field(
        "ce",
        description="ce: frame labels from `units`; ctc: characters of the text, pieces of `tokens` or phones of "
        "`lexicon`, without an alignment; transducer: these, each in view of those before: more accurate than ctc "
        "where there are hours to learn from, and slower; smbr, mmi: a model of ce (`initial`) learns further, on "
        "whole sentences against all others of `graph`; smbr is the usual one. mmi also trains from nothing, best "
        "against a graph of topology phones (lattice-free MMI); speech: mels from phones, of *voice_data*",
    )
    criterion_options: dict[str, Any] = Field(
        {},
        description="options of the criterion, such as {predictor: lstm}: see docs/stages.md",
        json_schema_extra=LATER,
    )
    sets: list[str] = Field(["labelled"], description="sets whose labels are trained on")
    unlabelled_sets: list[str] = Field(
        ["unlabelled"], description="sets whose teacher targets, or pseudo-labels, are trained on"
    )
    confidence_power: float = Field(
        0.0,
        ge=0.0,
        le=100.0,
        description="with pseudo_labels: an utterance's loss counts by its label's confidence to this power; try 1 "
        "where many are wrong and a higher least confidence leaves too few. 0: all count the same",
        json_schema_extra=LATER,
    )
    held_out: float = Field(
        0.05, ge=0.0, lt=1.0, description="share of the labelled data that is only evaluated, for the curves"
    )
    held_out_by: Literal["speaker", "utterance"] = Field(
        "speaker",
        description="hold out whole speakers, at least one, or single utterances where there are few speakers",
    )
    stack: int = Field(
        3,
        ge=1,
        le=16,
        description="10 ms frames joined into one: 3 makes 30 ms steps, a third as many",
    )
    offsets: list[int] = Field(
        [0, 1, 2],
        min_length=1,
        description="first frames that passes rotate through, each below `stack`: more views of the same audio",
    )
    epochs: int = Field(
        10,
        ge=0,
        description="passes in chunks over the labelled sets (without targets); of ctc and transducer over whole "
        "utterances, as texts have no times",
    )
    whole_epochs: int = Field(2, ge=0, description="passes over whole utterances after them")
    unlabelled_epochs: int = Field(1, ge=1, description="passes over the unlabelled sets (with targets)")
    sub_epochs: int = Field(
        6, ge=1, description="parts of such a pass; each is followed by a pass over the labelled sets"
    )
    whole_sub_epochs: int = Field(1, ge=0, description="last parts that train on whole utterances")
    labelled_gain: float = Field(1.2, gt=0.0, description="learning rate on labelled data relative to unlabelled")
    chunk_frames: int = Field(
        32, ge=1, description="stacked frames of a chunk; shorter is faster and sees less context"
    )
    truncate: int = Field(
        0,
        ge=0,
        description="for an lstm with criterion ce on whole utterances: back-propagate through this many stacked "
        "frames, and carry the state on; set it to bound memory, or to train for streams. 0: the whole utterance",
        json_schema_extra=LATER,
    )
    batch_frames: int = Field(
        2048, ge=1, description="stacked frames of a batch, on average; halve it when memory runs out"
    )
    window_shards: int = Field(8, ge=1, description="shards shuffled together; more mix better and open more files")
    lanes: int = Field(
        1,
        ge=1,
        le=4096,
        description="windows of shards that batches come from in turn; as many as `workers`, on several machines that "
        "read an object store: then each reads shards of its own, not all",
        json_schema_extra=LATER,
    )
    prefetch: int = Field(
        4,
        ge=0,
        description="batches made ahead of the step, each in memory; raise it when the meters show waits for data",
        json_schema_extra=POLICY,
    )
    cache: str = Field(
        "",
        description="folder for shards of inputs in an object store, on a disk of the machine, shared by its workers; "
        "empty: in the work folder",
        json_schema_extra=POLICY,
    )
    cache_gb: float = Field(
        50.0,
        gt=0.0,
        description="most GB there; at least three windows of shards, and no epoch after the first fetches when the "
        "inputs fit. Features computed from `audio` for chunks are there too",
        json_schema_extra=POLICY,
    )
    learning_rate: float = Field(
        2e-3, gt=0.0, description="learning rate at the start; halve it when the loss diverges"
    )
    final_learning_rate: float = Field(
        1e-4, gt=0.0, description="learning rate at the end, reached by exponential decay"
    )
    warm_up: Share = Field(0.02, description="share of the steps over which the learning rate rises from zero")
    schedule: Schedule = Field(
        "exponential",
        description="how the learning rate falls after its rise; cosine or stable suit transformers, and stable a run "
        "whose length is not known",
        json_schema_extra=LATER,
    )
    optimiser: Literal["adamw", "sgd", "muon"] = Field(
        "adamw", description="what steps; each wants a learning rate of its own", json_schema_extra=LATER
    )
    optimiser_options: dict[str, Any] = Field(
        {}, description="options of the optimiser, such as {beta2: 0.98}: see docs/stages.md", json_schema_extra=LATER
    )
    weight_decay: float = Field(
        0.0, ge=0.0, description="share of each weight that a step takes off, times the learning rate"
    )
    clip: float = Field(1.0, gt=0.0, description="largest gradient norm; lower it when the loss jumps")
    time_masks: int = Field(
        0, ge=0, description="bands of time masked in each piece (SpecAugment); try 1 or 2 on little data"
    )
    time_mask_frames: int = Field(8, ge=0, description="largest width of a time mask, in stacked frames")
    mel_masks: int = Field(0, ge=0, description="bands of mels masked in each piece (SpecAugment)")
    mel_mask: int = Field(12, ge=0, description="largest width of a mel mask, in mels")
    warp: float = Field(
        0.0,
        ge=0.0,
        le=0.5,
        description="largest stretch of the mel axis, as by another vocal tract; try 0.1 on few speakers",
    )
    waveform: WaveformParams = Field(
        WaveformParams.model_validate({}),
        description="changes of the audio itself, with the input `audio`, such as {noise: 0.5}: see docs/stages.md",
        json_schema_extra=LATER,
    )
    tempo: float = Field(
        0.0,
        ge=0.0,
        le=0.5,
        description="largest change of tempo, up or down; try 0.1 on few speakers",
        json_schema_extra=LATER,
    )
    noise: Share = Field(0.0, description="share of pieces that get a noise floor; raise it for noisy test audio")
    channel: float = Field(
        0.0,
        ge=0.0,
        le=10.0,
        description="size in nats of a smooth curve over the mels that is put on each piece, as by another microphone; "
        "try 0.3 where test audio comes through other channels",
        json_schema_extra=LATER,
    )
    rows: int = Field(20, ge=1, description="points of the training curve")
    average: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="share of the steps, the last ones, whose weights are averaged to the model: steadier than those "
        "of the last step; try 0.2. With trainer dense or gtc",
        json_schema_extra=LATER,
    )
    accumulate: int = Field(
        1,
        ge=1,
        description="batches of a worker whose gradients make one step: large steps where memory is small",
        json_schema_extra=LATER,
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="auto: a GPU for each worker where the machine has as many, else its CPU; a run may move to "
        "another device, which gives other bytes",
        json_schema_extra=POLICY,
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="of products and convolutions; weights stay fp32. bf16 saves memory and time on GPUs that have it; "
        "fp16, with dynamic loss scaling, on those that do not",
        json_schema_extra=LATER,
    )
    recompute: bool = Field(
        False,
        description="compute each layer twice instead of keeping it for backward: more time, for long "
        "utterances and deep encoders that do not fit",
        json_schema_extra=POLICY,
    )
    compile: bool = Field(
        False,
        description="torch.compile the encoder: slow to start; it won nothing on a CPU, try it on GPUs",
        json_schema_extra=LATER,
    )
    threads: int = Field(
        2,
        ge=1,
        le=64,
        description="replicas that share a batch on a CPU, one core each; they change rounding, and so the result",
    )
    workers: int = Field(
        1,
        ge=1,
        description="processes that train together, one a GPU; on a CPU at most one for every `threads` cores",
    )
    trainer: str = Field("dense", description="how workers agree: " + ", ".join(CHOICES))
    trainer_options: dict[str, Any] = Field(
        {}, description="options of the trainer, such as {threshold: 0.3}: see docs/stages.md"
    )
    parallel: Parallel = Field(
        Parallel.model_validate({}),
        description="for models too big for one process, such as {shard: 4}: see docs/stages.md",
        json_schema_extra=LATER,
    )
    seed: int = Field(1, ge=0, description="seed of weights, order, masks and dropout")
    checkpoint_s: float = Field(
        20.0, ge=0.0, description="seconds between checkpoints, about; 0: after every step", json_schema_extra=POLICY
    )
    tensorboard: bool = Field(
        True,
        description="also write TensorBoard files into the work directory, where it is installed",
        json_schema_extra=POLICY,
    )
    mlflow: str = Field(
        "",
        description="also send the meters' rows to this MLflow experiment (extra `mlflow`)",
        json_schema_extra=POLICY,
    )
    alarm: str = Field(
        "",
        description="command to run with a message when the loss diverges, training stalls, or ends by an error",
        json_schema_extra=POLICY,
    )
    stall_s: float = Field(
        120.0,
        gt=0.0,
        description="seconds without a step after which the alarm calls it a stall",
        json_schema_extra=POLICY,
    )
    timeout_s: float = Field(
        300.0,
        gt=0.0,
        description="seconds that a worker waits for another before it counts as lost",
        json_schema_extra=POLICY,
    )
    max_restarts: int = Field(100, ge=0, description="times that lost workers are restarted", json_schema_extra=POLICY)
    faults: Literal["restart", "continue"] = Field(
        "restart",
        description="when a worker is lost. restart: all go on from the last checkpoint, and the bytes of the model do "
        "not depend on the loss. continue: the others go on at once with the mean of those left, and it joins them "
        "when it is back; on the CPUs of one machine, with dense, gtc, bmuf, diloco or local_sgd, for many workers or "
        "long starts",
        json_schema_extra=LATER,
    )
    nodes: int = Field(1, ge=1, description="machines that share the workers", json_schema_extra=POLICY)
    min_nodes: int = Field(1, ge=1, description="machines that suffice to continue", json_schema_extra=POLICY)
    rendezvous: str = Field(
        "", description="HOST:PORT of the first machine, where the others join", json_schema_extra=POLICY
    )

    @property
    def step_options(self) -> OptimiserOptions:
        """The optimiser's options. ConfigError: there is no such option."""
        kind = OPTIMISERS[self.optimiser]
        known = ", ".join(kind.model_fields) or "none"
        return parse(
            kind, self.optimiser_options, where=f"optimiser {self.optimiser}", remedy=f"its options are {known}"
        )

    @property
    def goal(self) -> CriterionOptions:
        """The criterion's options. ConfigError: there is no such option."""
        kind = CRITERIA[self.criterion]
        known = ", ".join(kind.model_fields) or "none"
        where = f"criterion {self.criterion}"
        return parse(kind, self.criterion_options, where=where, remedy=f"its options are {known}")

    @property
    def tag(self) -> str:
        """What the model says of an utterance beside its text; "": nothing."""
        goal = self.goal
        return goal.tag if isinstance(goal, AttentionOptions) else ""

    @property
    def synchroniser(self) -> TrainerOptions:
        """The trainer with its options. ConfigError: there is no such trainer or option."""
        clip = self.clip if self.parallel.shard == 1 else None  # a group of shards clips what it hands over
        return options_of(self.trainer, {**self.trainer_options, "clip_norm": clip})

    @property
    def of_senones(self) -> bool:
        """Whether the labels are senones of `units`, frame by frame."""
        return self.criterion in ("ce", "mmi", "smbr")

    def check_roles(self, roles: Collection[str]) -> None:
        """Raises ConfigError: the criterion asks for other inputs."""
        if self.criterion == "speech" and (others := sorted(set(roles) - {"features", "initial"})):
            what = f"criterion speech learns from *voice_data* alone, not from `{others[0]}`"
            raise ConfigError(what, where="train", remedy="leave it out")
        self._check_sequence(roles)
        if self.criterion != "ce" and "targets" in roles:
            what = f"targets are a teacher's senones; they do not go with criterion {self.criterion}"
            raise ConfigError(what, where="train")
        if self.of_senones and "pseudo_labels" in roles:
            what = f"pseudo_labels are texts: criterion {self.criterion} learns senones"
            raise ConfigError(what, where="train", remedy="set criterion: ctc or transducer, or use `targets`")
        if self.confidence_power and "pseudo_labels" not in roles:
            what = "confidence_power weighs pseudo-labels, which are not given"
            raise ConfigError(what, where="train", remedy="give the input `pseudo_labels`, or leave it out")
        if (bool(self.tag) and self.tag not in IN_FEATURES) != ("selection" in roles):
            what = "the input `selection` says tags such as language" if "selection" in roles else f"tag {self.tag}"
            remedy = "give the `selection` of the features, and criterion_options: {tag: language}, or neither"
            raise ConfigError(f"{what}: one is given without the other", where="train", remedy=remedy)
        if "initial" in roles and self.parallel.shard > 1:
            what = "`initial` with parallel.shard above 1: no worker holds the whole model"
            raise ConfigError(what, where="train", remedy="leave one of them out")
        self._check_audio(roles)
        spelled = [role for role in ("tokens", "lexicon") if role in roles]
        if self.of_senones and spelled:
            what = f"criterion {self.criterion} learns senones of `units`, not `{spelled[0]}`"
            raise ConfigError(what, where="train", remedy="set criterion: ctc, or leave it out")
        if len(spelled) > 1:
            what = "`tokens` spells words in pieces, `lexicon` in phones"
            raise ConfigError(what, where="train", remedy="give one of them")
        if self.of_senones and "units" not in roles:
            remedy = "give units: an artifact, or criterion: ctc"
            raise ConfigError(f"criterion {self.criterion} needs `units`", where="train", remedy=remedy)

    def _check_sequence(self, roles: Collection[str]) -> None:
        """Whether sequence training has its graph and the model that it begins with, and no other criterion a graph."""
        against = [role for role in ("graph", "lattices") if role in roles]
        if not isinstance(self.goal, SequenceOptions):
            if against:
                what = f"`{against[0]}` is what sequence training learns against, not criterion {self.criterion}"
                raise ConfigError(what, where="train", remedy="set criterion: smbr, or leave it out")
            return
        if len(against) != 1:
            what = (
                f"criterion {self.criterion} needs `graph` or `lattices`, and has {' and '.join(against) or 'neither'}"
            )
            remedy = "give a *graph* of a low-order language model, or of topology phones, made with these `units`; or "
            remedy += "lattices of these features: `decode` with `lattice: 6`, of the sets that are trained on"
            raise ConfigError(what, where="train", remedy=remedy)
        if "initial" not in roles and (self.criterion == "smbr" or "lattices" in roles):
            remedy = "train with criterion: ce first, and give its model"
            raise ConfigError(f"criterion {self.criterion} needs `initial`", where="train", remedy=remedy)
        if "lattices" in roles and (self.offsets != [0] or self.tempo):
            what = "frames of `lattices` are those of offset 0, at the tempo of the recording"
            raise ConfigError(what, where="train", remedy="set offsets: [0], and leave out tempo")

    def _check_audio(self, roles: Collection[str]) -> None:
        """Whether what changes audio has audio to change, and what is given is used."""
        wave = self.waveform
        for what, wrong, remedy in (
            ("`waveform` changes audio", wave.changes and "audio" not in roles, "give `audio`, the utterances"),
            ("`noises` is not used", "noises" in roles and not wave.noise, "set noise in `waveform`, or leave it out"),
            ("`rooms` is not used", "rooms" in roles and not wave.reverb, "set reverb in `waveform`, or leave it out"),
            (
                "`waveform` has speed, and frame labels have times",
                self.of_senones and wave.speed > 0,
                "use `tempo`, which moves labels along, or criterion: ctc",
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
            raise ValueError("a conformer has a row of outputs for four frames: set criterion: ctc or transducer")
        if self.kind == "conformer" and self.stack > 2:
            raise ValueError(
                f"a conformer joins four frames by itself: with stack = {self.stack} its steps are of "
                f"{40 * self.stack} ms; set stack: 1 and offsets: [0]"
            )
        return self

    @model_validator(mode="after")
    def _voice_fits(self) -> TrainParams:
        if (self.kind == "voice") != isinstance(self.goal, SpeechOptions):
            raise ValueError("kind voice and criterion speech go together: set both, or neither")
        if self.kind != "voice":
            return self
        changes = {"time_masks", "mel_masks", "warp", "tempo", "noise", "channel"}
        if changed := sorted(name for name in changes if getattr(self, name)):
            raise ValueError(f"{changed[0]} changes the speech that a voice learns: leave it out")
        if self.epochs or self.stack != 1 or self.compile or self.parallel.mode in ("pipeline", "tensor"):
            raise ValueError(
                "a voice learns whole utterances, frame by frame: set epochs: 0 and some whole_epochs, stack: 1 and "
                "offsets: [0], and leave out compile and parallel modes pipeline and tensor"
            )
        return self

    @model_validator(mode="after")
    def _truncation_fits(self) -> TrainParams:
        if self.truncate and (self.kind != "lstm" or self.criterion != "ce" or self.parallel.shard > 1 or self.compile):
            raise ValueError(
                "truncate is for kind lstm with criterion ce, whose loss is a frame's own, without parallel.shard and "
                "compile: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _criterion_fits(self) -> TrainParams:
        goal = self.goal
        if isinstance(goal, SequenceOptions) and (self.epochs or self.parallel.shard > 1):
            raise ValueError(
                f"criterion {self.criterion} learns whole utterances, by workers with whole models: set epochs: 0 and "
                "some whole_epochs, and leave out parallel.shard"
            )
        if goal.heads and self.compile:
            raise ValueError("compile does not go with a transducer or an attention decoder: leave it out")
        if goal.heads and goal.model_dump()["intermediate"] and ("ctc" not in goal.heads or self.layers < 2):
            raise ValueError("intermediate is of CTC on a middle layer: give ctc a weight, and two layers at least")
        if (
            isinstance(goal, CtcOptions)
            and goal.consistency
            and (goal.heads or not (self.time_masks or self.mel_masks))
        ):
            raise ValueError("consistency compares augmented views: set time_masks or mel_masks, and no other heads")
        return self

    @model_validator(mode="after")
    def _optimiser_fits(self) -> TrainParams:
        _ = self.step_options
        if self.schedule == "inverse_sqrt" and not self.warm_up:
            raise ValueError("schedule inverse_sqrt falls from the end of the rise: give warm_up a share above 0")
        return self

    @model_validator(mode="after")
    def _workers_fit(self) -> TrainParams:
        if self.trainer in TRAINERS and self.trainer not in CHOICES:
            instead = " with parallel: {shard: N}" if self.trainer in ("fsdp", "zero") else ""
            raise ValueError(f"{self.trainer} must wrap the model, which only scripts can: use dense{instead}")
        for name in ("clip_norm", "backwards"):
            if name in self.trainer_options:
                raise ValueError(f"`{name}` in trainer_options: use `clip`, and leave `backwards`")
        node_workers = self.synchroniser.node_workers
        if self.workers // self.nodes % node_workers:
            raise ValueError(f"node_size {node_workers} does not divide the workers of a machine")
        if self.workers % self.nodes or not self.min_nodes <= self.nodes:
            raise ValueError(
                f"{self.workers} workers on {self.nodes} machines, at least {self.min_nodes}: must be whole"
            )
        if self.faults == "continue" and (why := self.synchroniser.needs_all or ("nodes above 1" * (self.nodes > 1))):
            raise ValueError(f"faults: continue does not go with {why}; or set restart")
        if self.nodes > 1 and not self.rendezvous:
            raise ValueError(f"{self.nodes} machines need a `rendezvous`, HOST:PORT of the first")
        return self

    @model_validator(mode="after")
    def _average_fits(self) -> TrainParams:
        if self.average and (self.trainer not in ("dense", "gtc") or self.parallel.shard > 1):
            raise ValueError("average needs weights that are whole and the same on all workers: trainer dense or gtc")
        if self.average and self.faults == "continue":
            raise ValueError("average does not go with faults: continue; set restart")
        return self

    @model_validator(mode="after")
    def _shards_fit(self) -> TrainParams:
        shard = self.parallel.shard
        if shard == 1:
            return self
        if self.workers % shard or (self.min_nodes < self.nodes and self.workers // self.nodes % shard):
            raise ValueError(
                f"parallel.shard {shard} must divide workers, {self.workers}, and those of a machine where "
                "min_nodes is below nodes"
            )
        refused = {
            "trainer gossip: its workers do not step together; use another": self.trainer == "gossip",
            "node_size above 1: the shards of a model are the node": self.synchroniser.node_workers > 1,
            "clip of the mean: leave `clip` in trainer_options, a group's gradient is clipped": (
                self.trainer_options.get("clip") == "mean"
            ),
            "optimiser muon: it needs whole matrices; use adamw or sgd": self.optimiser == "muon",
            "precision fp16: use bf16, which needs no scale of the loss": self.precision == "fp16",
            "compile: leave it out": self.compile,
            "faults continue: without a worker its part is missing": self.faults == "continue",
        }
        mode = self.parallel.mode
        refused[f"heads, which mode {mode} does not share out; use mode fsdp or zero"] = bool(
            self.goal.heads and mode in ("pipeline", "tensor")
        )
        refused[f"consistency, whose views mode {mode} does not share out; use mode fsdp or zero"] = bool(
            isinstance(self.goal, CtcOptions) and self.goal.consistency and mode in ("pipeline", "tensor")
        )
        if mode == "tensor":
            refused[
                f"kind {self.kind}: torch shares out its layers no more than LSTMs; use conformer, or mode fsdp"
            ] = self.kind != "conformer"
            refused[f"trainer {self.trainer}, under which copies of the norms would part; use dense"] = (
                self.trainer != "dense"
            )
        if mode == "pipeline":
            refused[f"layers {self.layers}: each worker of a pipeline has one at least"] = self.layers < shard
        if reasons := [what for what, is_so in refused.items() if is_so]:
            raise ValueError(f"parallel.shard {shard} does not go with {'; nor with '.join(reasons)}")
        return self
