"""Parameters of `train` for the model, its data and its steps."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import LATER, Params, Share
from megahour.features.params import WaveformParams
from megahour.learn.options import POLICY, SpeechScoreOptions

Schedule = Literal["exponential", "cosine", "linear", "constant", "inverse_sqrt", "stable"]


class LearningParams(Params):
    """The model, its criterion and data, and the steps: order, learning rate, augmentation."""

    kind: Literal["lstm", "blstm", "tdnn", "mlp", "conformer", "voice", "vocoder"] = "lstm"
    """Encoder. lstm: sees `lookahead` stacked frames ahead. blstm: sees the whole utterance. tdnn: sees some frames on
    both sides. mlp: sees `lookahead` frames on both sides, for minutes of speech on one core. conformer: for ctc and
    transducer with `stack` 1 or 2; runs on whole utterances or in chunks with the same weights. voice: synthesises
    speech, with criterion speech. vocoder: makes sound of mels, with criterion sound."""
    layers: int = Field(2, ge=1, le=64)
    """Number of layers. More layers fit more data and train more slowly."""
    hidden: int = Field(256, ge=1, le=8192)
    """Units per layer (of a blstm, per direction). Raise it with the hours of training data."""
    lookahead: int = Field(3, ge=0, le=64)
    """Future context in stacked frames: ahead of an lstm, on both sides of an mlp. More context improves accuracy and
    adds latency. Other kinds ignore it."""
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Dropout rate in training. Raise it when the held-out loss rises while the training loss falls."""
    criterion: Literal["ce", "ctc", "transducer", "mmi", "smbr", "speech", "sound"] = "ce"
    """Training criterion. ce: frame labels from `units`. ctc: characters of the text, pieces of `tokens` or phones of
    `lexicon`, without an alignment. transducer: the same outputs, each conditioned on the ones before; more accurate
    than ctc with hours of data, and slower. smbr, mmi: sequence training of a ce model (`initial`) on whole utterances,
    against `graph` or `lattices`; smbr is the usual choice. mmi also trains from scratch, best with a graph of topology
    phones (lattice-free MMI). speech: mel spectra from phones, from *voice_data*. sound: samples from mels, from
    *voice_data* with `sound`."""
    criterion_options: dict[str, Any] = Field({}, json_schema_extra=LATER)
    """Options of the criterion, such as {predictor: lstm}. docs/stages.md lists them."""
    sets: list[str] = Field(["labelled"])
    """Sets whose transcripts or frame labels are trained on."""
    unlabelled_sets: list[str] = Field(["unlabelled"])
    """Sets that are trained on with teacher targets or pseudo-labels."""
    confidence_power: float = Field(0.0, ge=0.0, le=100.0, json_schema_extra=LATER)
    """With pseudo_labels: weight each utterance's loss by its label confidence raised to this power. Try 1 when many
    labels are wrong and a higher `min_confidence` of `pseudo-label` leaves too few. 0 gives all labels the same
    weight."""
    held_out: float = Field(0.05, ge=0.0, lt=1.0)
    """Share of the labelled data that is held out: evaluated for the training curve, never trained on."""
    held_out_by: Literal["speaker", "utterance"] = "speaker"
    """Hold out whole speakers (at least one), or single utterances when there are few speakers, or for a voice."""
    stack: int = Field(3, ge=1, le=16)
    """Number of 10 ms frames joined into one model input. 3 gives steps of 30 ms, a third as many as 1."""
    offsets: list[int] = Field([0, 1, 2], min_length=1)
    """First frames at which stacking starts, used in turn from pass to pass, each below `stack`. Several offsets give
    more views of the same audio."""
    epochs: int = Field(10, ge=0)
    """Passes over the labelled sets without targets: in chunks with ce, on whole utterances with ctc and transducer,
    because texts have no times."""
    whole_epochs: int = Field(2, ge=0)
    """Further passes on whole utterances, after `epochs`."""
    unlabelled_epochs: int = Field(1, ge=1)
    """Passes over the unlabelled sets, with targets."""
    sub_epochs: int = Field(6, ge=1)
    """Parts into which each pass over the unlabelled sets is divided. A pass over the labelled sets follows each
    part."""
    whole_sub_epochs: int = Field(1, ge=0)
    """Number of parts at the end that train on whole utterances instead of chunks."""
    labelled_gain: float = Field(1.2, gt=0.0)
    """Factor on the learning rate for labelled data, relative to unlabelled data."""
    chunk_frames: int = Field(32, ge=1)
    """Length of a training chunk in stacked frames. Shorter chunks train faster and give the model less context."""
    truncate: int = Field(0, ge=0, json_schema_extra=LATER)
    """For an lstm with criterion ce, ctc or transducer on whole utterances: back-propagate through this many stacked
    frames and carry the state forward. Set it to bound memory or to train for streaming. 0 back-propagates through the
    whole utterance. ctc and transducer need a second forward pass: their loss is of the whole utterance."""
    batch_frames: int = Field(2048, ge=1)
    """Average batch size in stacked frames. Halve it when memory runs out."""
    window_shards: int = Field(8, ge=1)
    """Shards that are shuffled together. More shards mix better and keep more files open."""
    lanes: int = Field(0, ge=0, le=4096, json_schema_extra=LATER)
    """Groups of shards that batches are drawn from in turn; part of the order of training. 0: one, or on several
    machines (`nodes`) one per worker, so that each reads only its own shards. Set it when a training may move between
    one machine and several: then to a multiple of `workers`."""
    prefetch: int = Field(4, ge=0, json_schema_extra=POLICY)
    """Batches prepared ahead of the training step, each held in memory. Raise it when the meters show waits for
    data."""
    cache: str = Field("", json_schema_extra=POLICY)
    """Local folder for shards fetched from an object store, shared by the workers of a machine. Empty: inside the work
    folder."""
    cache_gb: float = Field(50.0, gt=0.0, json_schema_extra=POLICY)
    """Size limit of `cache`, in GB. It must hold at least three windows of shards. If all inputs fit, only the first
    epoch fetches. Features computed from `audio` for chunks are cached there too."""
    learning_rate: float = Field(2e-3, gt=0.0)
    """Learning rate at the start, after `warm_up`. Halve it when the loss diverges."""
    final_learning_rate: float = Field(1e-4, gt=0.0)
    """Learning rate at the end. Schedules constant and inverse_sqrt ignore it."""
    warm_up: Share = 0.02
    """Share of the steps over which the learning rate rises linearly from zero."""
    schedule: Schedule = Field("exponential", json_schema_extra=LATER)
    """How the learning rate decays after warm-up. cosine or stable suit transformers. stable keeps the rate constant
    until the last fifth of the steps."""
    optimiser: Literal["adamw", "sgd", "muon"] = Field("adamw", json_schema_extra=LATER)
    """Optimiser. sgd needs a learning rate tens of times that of adamw; muon starts well from that of adamw."""
    optimiser_options: dict[str, Any] = Field({}, json_schema_extra=LATER)
    """Options of the optimiser, such as {beta2: 0.98}. docs/stages.md lists them."""
    weight_decay: float = Field(0.0, ge=0.0)
    """Weight decay. adamw and muon shrink each weight by this share times the learning rate at every step."""
    clip: float = Field(1.0, gt=0.0)
    """Largest gradient norm; larger gradients are scaled down to it. Lower it when the loss jumps."""
    time_masks: int = Field(0, ge=0)
    """Time masks (SpecAugment) per utterance or chunk. Try 1 or 2 on little data."""
    time_mask_frames: int = Field(8, ge=0)
    """Largest width of a time mask, in stacked frames. A mask never covers more than a quarter of the utterance or
    chunk."""
    mel_masks: int = Field(0, ge=0)
    """Frequency masks (SpecAugment) per utterance or chunk."""
    mel_mask: int = Field(12, ge=0)
    """Largest width of a frequency mask, in mel bins."""
    warp: float = Field(0.0, ge=0.0, le=0.5)
    """Largest relative stretch of the mel axis, which simulates other vocal tracts. Try 0.1 with few speakers."""
    waveform: WaveformParams = Field(WaveformParams.model_validate({}), json_schema_extra=LATER)
    """Augmentation of the audio itself, with the input `audio`, such as {noise: 0.5}. docs/stages.md lists the
    options."""
    tempo: float = Field(0.0, ge=0.0, le=0.5, json_schema_extra=LATER)
    """Largest relative change of tempo, faster or slower. Try 0.1 with few speakers."""
    noise: Share = 0.0
    """Share of utterances or chunks that get a noise floor, added to their features. Raise it for noisy test audio."""
    channel: float = Field(0.0, ge=0.0, le=10.0, json_schema_extra=LATER)
    """Strength, in nats, of a random smooth curve over the mels that simulates another microphone. Try 0.3 when the
    test audio comes through other channels."""
    rows: int = Field(20, ge=1)
    """Number of points in the training curve."""
    score_speech: SpeechScoreOptions = Field(SpeechScoreOptions.model_validate({}), json_schema_extra=LATER)
    """With criteria speech and sound: how often held-out speech is scored during training, such as {every: 5}.
    docs/stages.md lists the options."""
    average: float = Field(0.0, ge=0.0, lt=1.0, json_schema_extra=LATER)
    """Share of the steps, at the end of training, whose weights are averaged into the model. The average is steadier
    than the last step's weights; try 0.2. Needs trainer dense or gtc."""
    accumulate: int = Field(1, ge=1, json_schema_extra=LATER)
    """Batches whose gradients each worker sums into one step. Raise it for larger steps on little memory."""
