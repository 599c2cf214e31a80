"""What a user may set of what `train` learns, from what, and in which steps."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import LATER, Params, Share
from megahour.features.params import WaveformParams
from megahour.train.options import POLICY

Schedule = Literal["exponential", "cosine", "linear", "constant", "inverse_sqrt", "stable"]


class LearningParams(Params):
    """The model, its criterion and data, and the steps: order, learning rate, augmentation."""

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
