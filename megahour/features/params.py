"""Parameters of stages `features` and `import-features`, and of the augmentation of audio."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from megahour.core.config import LATER, Options, Params, Share

UNIT = 1 / 32768
"""Scales int16 samples to -1 … 1. A power of two, so that features shift by a constant without rounding."""
SHIFT_S = 0.010


Mean = Literal["causal", "utterance"]
Decibels = Annotated[float, Field(ge=0, le=100)]


def frame_seconds(rate_hz: int) -> float:
    """Seconds from one frame to the next: a whole number of samples, 9.977 ms at 22,050 Hz.

    >>> frame_seconds(16_000), round(frame_seconds(22_050) * 22_050)
    (0.01, 220)
    """
    return round(SHIFT_S * rate_hz) / rate_hz


class FeaturesParams(Params):
    """Compute log-mel features with a causal mean per speaker.

    There is a frame every 10 ms. The summary has the global mean and variance.
    """

    mels: int = Field(64, ge=8, le=256)
    """Number of mel filters. 64 or 80 are usual, 40 for 8 kHz audio."""
    low_hz: float = Field(20.0, ge=0)
    """Lower edge of the lowest mel filter, in Hz. Raise it to suppress hum."""
    high_hz: float = 0.0
    """Upper edge of the highest mel filter, in Hz. 0 or less is relative to the Nyquist frequency."""
    prior: float = 14.0
    """Log energy with which the causal mean of a speaker starts. Its influence fades within seconds of speech."""
    mean: Mean = Field("causal", json_schema_extra=LATER)
    """Mean to subtract. causal: the speaker's running mean, over all earlier utterances, as streams can have it.
    utterance: that of the utterance itself. Use utterance where microphones or rooms change from one utterance to the
    next and recognition may wait for the end; such models have no streaming graph when they are exported."""
    range_db: Decibels = Field(0.0, json_schema_extra=LATER)
    """With the mean of the utterance: energies lower than this below the loud level of their mel (95th percentile) are
    raised to that. Try 15 where models of few voices will hear other voices, rooms or noise: pauses are then alike
    everywhere. With many voices it may cost more than it gains. 0 is no limit."""
    restarts: Share = Field(0.0, json_schema_extra=LATER)
    """Share of the utterances before which the speaker's causal mean starts again at `prior`, as in streams, exported
    bundles and `transcribe --whole`. Use 0.5 for models that will run there: with 0, few utterances are the first of
    their speaker, and the model makes many more errors in such ones."""
    edges: Literal["inside", "mirrored"] = Field("inside", json_schema_extra=LATER)
    """inside: only windows that lie inside the audio (Kaldi's snip_edges). mirrored: a frame every 10 ms with reflected
    ends. Use mirrored, with `high_hz` -400, for models that sherpa-onnx will run (`export-model`)."""
    scale: Literal["int16", "unit"] = Field("int16", json_schema_extra=LATER)
    """Range of the samples: int16 is -32768 … 32767, unit is -1 … 1, where sounds below the floor of the logarithm are
    lost. Use unit for models that sherpa-onnx will run. `prior` refers to int16 in both cases."""
    keep: Literal["frames", "means", "both"] = Field("frames", json_schema_extra=LATER)
    """What to store. frames: the features. means: only the causal means, a hundredth of the size; `train` computes the
    features from its input `audio`, with or without augmentation. both: the same, and frames for senones, targets and
    decode."""
    sets: list[str] = Field([])
    """Sets of the selection to process. Empty: all."""
    stats_sets: list[str] = Field([])
    """Sets from which the global mean and variance are computed. Empty: all but test*."""

    @model_validator(mode="after")
    def _check(self) -> FeaturesParams:
        if self.restarts and self.mean != "causal":
            raise ValueError(f"restarts = {self.restarts:g} is of the causal mean, but mean is {self.mean}")
        _check_range(self)
        return self

    @property
    def unit(self) -> float:
        """Factor by which int16 samples are multiplied."""
        return UNIT if self.scale == "unit" else 1.0

    @property
    def scaled_prior(self) -> float:
        """`prior` for energies in `scale`."""
        return round(self.prior + 2 * math.log(self.unit), 6)


def _check_range(p: FeaturesParams | ImportFeaturesParams) -> None:
    if p.range_db and p.mean != "utterance":
        raise ValueError(f"range_db = {p.range_db:g} is of whole utterances, but mean is {p.mean}: use utterance")


Codec = Literal["mu-law", "a-law", "gsm", "adpcm", "mp3", "vorbis", "packet-loss"]
Range = tuple[float, float]


class WaveformParams(Options):
    """Augmentation of the audio before its features are computed.

    Each epoch draws new changes for every utterance, and each kind independently. Held-out utterances stay as they are.
    """

    speed: Share = 0.0
    """Share of utterances played at one of `speeds`, which also changes the pitch. It makes new voices from few
    speakers; 0.67 is usual. Only for ctc and transducer, because frame labels have fixed times."""
    speeds: list[float] = Field([0.9, 1.1], min_length=1)
    """Speeds from 0.5 to 2, drawn with equal probability."""
    noise: Share = 0.0
    """Share of utterances with added noise. Raise it for noisy test audio."""
    snr_db: Range = (5.0, 20.0)
    """Range of the signal-to-noise ratio, in dB. Lower is harder."""
    reverb: Share = 0.0
    """Share of utterances with reverberation. Raise it for distant microphones."""
    rt60_s: Range = (0.2, 0.7)
    """Range of the reverberation time of simulated rooms, in seconds. Not used with the input `rooms`."""
    direct_db: Range = (0.0, 10.0)
    """Range of the direct-to-reverberant ratio in simulated rooms, in dB. Lower simulates a greater distance."""
    codec: Share = 0.0
    """Share of utterances passed through one of `codecs`. Raise it for telephone and call recordings."""
    codecs: list[Codec] = Field(["mu-law", "a-law", "gsm", "adpcm", "mp3", "vorbis", "packet-loss"], min_length=1)
    """Codecs, drawn with equal probability. Keep those that your users have. mu-law, a-law, gsm and adpcm are telephone
    codecs at 8 kHz."""
    volume: Share = 0.0
    """Share of utterances played louder or softer than the speaker's earlier ones. Raise it for moving speakers."""
    volume_db: Range = (-12.0, 6.0)
    """Range of that change of level, in dB."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out defaults, so that a new option does not change the identity of finished runs."""
        options: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        return {name: value for name, value in options.items() if getattr(self, name) != fields[name].default}

    @property
    def changes(self) -> bool:
        return any((self.speed, self.noise, self.reverb, self.codec, self.volume))

    @model_validator(mode="after")
    def _check(self) -> WaveformParams:
        for name in ("snr_db", "rt60_s", "direct_db", "volume_db"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} goes from {low} to {high}: give the lower end first")
        if wrong := [speed for speed in self.speeds if not 0.5 <= speed <= 2]:
            raise ValueError(f"speeds {wrong} are not from 0.5 to 2")
        if self.rt60_s[0] <= 0.05 or self.rt60_s[1] >= 5:
            raise ValueError(f"rt60_s {self.rt60_s} is not between 0.05 and 5 seconds")
        return self


Simulated = Literal["channel", "noise", "reverb"]


class ImportFeaturesParams(Params):
    """Import published cepstra in Sphinx's format.

    Cepstra and transcriptions become features with a causal mean per speaker.
    """

    source: str = ""
    """Directory, glob or URL of cepstra files, with 100 frames per second."""
    extension: str = Field(".mfc", min_length=1)
    """File name extension of the cepstra files."""
    dims: int = Field(13, ge=1, le=256)
    """Cepstra per frame."""
    mels: int = Field(0, ge=0, le=256, json_schema_extra=LATER)
    """Convert the cepstra to this many log-mel energies, as smooth as cepstra allow, so that `warp`, `mel_masks` and
    `noise` of `train` work as described. 0 keeps cepstra."""
    train: str = ""
    """Transcription file of the training set, with lines `WORDS (utterance)`."""
    test: str = ""
    """Transcription file of the test set."""
    fillers: bool = Field(False, json_schema_extra=LATER)
    """Keep the lines' fillers, such as `++noise++`, beside the features, for `noises` of `senones`. Texts have words
    alone in any case."""
    speaker_pattern: str = r"([^/]+)/[^/]+$"
    """Regular expression whose group matches the speaker in a file's path."""
    labelled: Share = 0.2
    """Share of the training speakers in `labelled`. The others are in `unlabelled`."""
    tune: float = Field(0.0, ge=0, lt=1)
    """Share of the training speakers in `tune`, taken out of the other sets."""
    folds: int = Field(0, ge=0, json_schema_extra=LATER)
    """Divide the speakers of both lists, shuffled by `seed`, into this many folds and test on one of them. One run per
    fold tests every speaker (`megahour pool-scores`). 0 keeps the lists."""
    fold: int = Field(0, ge=0, json_schema_extra=LATER)
    """Number of the fold to test on, from 0."""
    shards: int = Field(2, ge=1)
    """Largest number of shards per set."""
    corpus: str = ""
    """Name of the corpus. It is part of every key."""
    condition: str = ""
    """Recording condition."""
    sets: list[str] = Field([], json_schema_extra=LATER)
    """Sets to import, such as [test]. Empty: all."""
    simulate: list[Simulated] = Field([], json_schema_extra=LATER)
    """Import each utterance once in each of these conditions, simulated on its cepstra, in place of the recorded one.
    Use it for test sets whose audio is not published; noise and rooms in audio are harder."""
    mean: Mean = Field("causal", json_schema_extra=LATER)
    """Mean to subtract. causal: the speaker's running mean, over all earlier utterances. utterance: that of the
    utterance itself; use it where channels change from one utterance to the next."""
    range_db: Decibels = Field(0.0, json_schema_extra=LATER)
    """With `mels` and the mean of the utterance: energies lower than this below the loud level of their mel are raised
    to that, as in stage `features`. 0 is no limit."""
    prior: list[float] = Field([])
    """Values with which the causal mean of a speaker starts, one per cepstrum (`dims`). Empty: zeros."""
    stats_sets: list[str] = Field([])
    """Sets from which the global mean and variance are computed. Empty: all but test*."""
    seed: int = Field(0, ge=0)
    """Seed of the order in which speakers are assigned."""

    @model_validator(mode="after")
    def _check(self) -> ImportFeaturesParams:
        if self.prior and len(self.prior) != self.dims:
            raise ValueError(f"prior has {len(self.prior)} values, dims is {self.dims}")
        if len(set(self.simulate)) < len(self.simulate):
            raise ValueError(f"simulate {self.simulate} names a condition twice")
        _check_range(self)
        if self.range_db and not self.mels:
            raise ValueError(f"range_db = {self.range_db:g} is of mels, but mels is 0: cepstra have no level")
        if 0 < self.mels < self.dims:
            raise ValueError(
                f"mels = {self.mels} is below dims, {self.dims}: cepstra have no more dimensions than mels"
            )
        if self.folds == 1 or self.fold >= max(1, self.folds):
            raise ValueError(f"fold {self.fold} of {self.folds}: use at least two folds, counted from 0")
        try:
            groups = re.compile(self.speaker_pattern).groups
        except re.error as error:
            raise ValueError(f"speaker_pattern {self.speaker_pattern!r}: {error}") from None
        if groups != 1:
            raise ValueError(f"speaker_pattern {self.speaker_pattern!r} has {groups} groups, not one")
        return self

    def identity(self) -> dict[str, Any]:
        """Includes digests of the sources, so that a changed source is a new job, as for `ingest`."""
        from megahour.corpus.ingest.sources import source_digest

        paths = [path for path in (self.source, self.train, self.test) if path]
        return {**super().identity(), "digests": [source_digest(path) for path in paths]}

    def reach(self) -> None:
        """The sources."""
        from megahour.corpus.ingest.sources import check_sources

        check_sources(self, "source", "train", "test")
