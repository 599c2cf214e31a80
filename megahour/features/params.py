"""What a user may set of `features`: parameters, their defaults and what they change."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from megahour.core.config import LATER, Params, Share

UNIT = 1 / 32768
"""Of int16 samples in -1 … 1; a power of two, so features change by a constant and nothing is rounded."""


class FeaturesParams(Params):
    """Log-mel features at 10 ms with a causal mean per speaker, and global mean and variance."""

    mels: int = Field(64, ge=8, le=256, description="mel filters; 64 or 80 are usual, 40 for 8 kHz audio")
    low_hz: float = Field(20.0, ge=0, description="lower edge of the lowest filter, in Hz; raise it against hum")
    high_hz: float = Field(0.0, description="upper edge of the highest filter; 0 or less: counted from Nyquist")
    prior: float = Field(
        14.0, description="log energy that a speaker's causal mean starts from; it fades within some seconds of speech"
    )
    edges: Literal["inside", "mirrored"] = Field(
        "inside",
        json_schema_extra=LATER,
        description="inside: whole windows only (Kaldi's snip_edges); mirrored: a frame every 10 ms, ends reflected: "
        "for models that sherpa-onnx is to play (`export-model`), with `high_hz` -400",
    )
    scale: Literal["int16", "unit"] = Field(
        "int16",
        json_schema_extra=LATER,
        description="samples in -32768 … 32767, or in -1 … 1, which hides what is quieter than the logarithm's floor: "
        "for models that sherpa-onnx is to play; `prior` is of int16 either way",
    )
    keep: Literal["frames", "means", "both"] = Field(
        "frames",
        json_schema_extra=LATER,
        description="what is stored. frames: the features; means: a hundredth of that, from which `train` computes the "
        "same features, or those of changed audio, with its input `audio`; both: also for senones, targets and decode",
    )
    sets: list[str] = Field([], description="sets of the selection to work on; empty: all")
    stats_sets: list[str] = Field([], description="sets that the global mean and variance come from; empty: not test*")

    @property
    def unit(self) -> float:
        """What int16 samples are multiplied by."""
        return UNIT if self.scale == "unit" else 1.0

    @property
    def scaled_prior(self) -> float:
        """`prior` of energies in `scale`."""
        return round(self.prior + 2 * math.log(self.unit), 6)


Codec = Literal["mu-law", "a-law", "gsm", "adpcm", "mp3", "vorbis", "packet-loss"]
Range = tuple[float, float]


class WaveformParams(BaseModel):
    """Changes of the audio before its features are computed.

    Each epoch draws other changes for an utterance, and each kind by itself; shares are shares of the utterances.
    Held-out utterances are never changed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    speed: Share = Field(
        0.0,
        description="share played at one of `speeds`, with the pitch: other voices from few speakers; 0.67 is usual. "
        "For ctc and transducer: frame labels have times",
    )
    speeds: list[float] = Field([0.9, 1.1], min_length=1, description="speeds, each as likely; from 0.5 to 2")
    noise: Share = Field(0.0, description="share with noise added; raise it for noisy places")
    snr_db: Range = Field((5.0, 20.0), description="speech over noise, in dB, from and to; lower is harder")
    reverb: Share = Field(0.0, description="share heard in a room; raise it for distant microphones")
    rt60_s: Range = Field(
        (0.2, 0.7), description="reverberation time of generated rooms, from and to; not with the input `rooms`"
    )
    direct_db: Range = Field(
        (0.0, 10.0), description="direct over reverberant sound in generated rooms, in dB; lower is farther away"
    )
    codec: Share = Field(0.0, description="share that goes through one of `codecs`; raise it for telephones and calls")
    codecs: list[Codec] = Field(
        ["mu-law", "a-law", "gsm", "adpcm", "mp3", "vorbis", "packet-loss"],
        min_length=1,
        description="codecs, each as likely: leave those that your users do not have. mu-law, a-law, gsm and adpcm are "
        "of a telephone, 8 kHz",
    )
    volume: Share = Field(
        0.0, description="share that is louder or softer than the speaker before; for moving speakers"
    )
    volume_db: Range = Field((-12.0, 6.0), description="by how much, in dB, from and to")

    @model_serializer(mode="wrap")
    def _what_is_set(self, given: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What finished runs have in their identity stays as it is when there are more options."""
        found: dict[str, Any] = given(self)
        fields = type(self).model_fields
        return {name: value for name, value in found.items() if getattr(self, name) != fields[name].default}

    @property
    def changes(self) -> bool:
        return any((self.speed, self.noise, self.reverb, self.codec, self.volume))

    @model_validator(mode="after")
    def _check(self) -> WaveformParams:
        for name in ("snr_db", "rt60_s", "direct_db", "volume_db"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} goes from {low} to {high}: the lower one comes first")
        if wrong := [speed for speed in self.speeds if not 0.5 <= speed <= 2]:
            raise ValueError(f"speeds {wrong}: they are from 0.5 to 2")
        if self.rt60_s[0] <= 0.05 or self.rt60_s[1] >= 5:
            raise ValueError(f"rt60_s {self.rt60_s}: it is between 0.05 and 5 seconds")
        return self


class ImportFeaturesParams(Params):
    """Published cepstra and transcriptions in Sphinx's formats, as features with a causal mean per speaker."""

    source: str = Field("", description="directory, glob or URL of files of cepstra, 100 frames per second")
    extension: str = Field(".mfc", min_length=1, description="how the names of these files end")
    dims: int = Field(13, ge=1, le=256, description="cepstra per frame")
    mels: int = Field(
        0,
        ge=0,
        le=256,
        description="store that many log mel energies, as smooth as the cepstra leave them, so that `warp`, "
        "`mel_masks` and `noise` of `train` mean what they say; 0: cepstra as they are",
        json_schema_extra=LATER,
    )
    train: str = Field("", description="transcription file of the training set, lines `WORDS (utterance)`")
    test: str = Field("", description="transcription file of the test set")
    speaker_pattern: str = Field(
        r"([^/]+)/[^/]+$", description="regular expression whose group finds the speaker in a file's path"
    )
    labelled: Share = Field(
        0.2, description="share of the training speakers in `labelled`, of the others in `unlabelled`"
    )
    tune: float = Field(0.0, ge=0, lt=1, description="share of the training speakers in `tune`, kept from the others")
    folds: int = Field(
        0,
        ge=0,
        description="share out the speakers of both lists, in an order by `seed`, to that many folds, one of them "
        "the test; as many runs test every speaker (`megahour pool-scores`). 0: the lists as they are",
        json_schema_extra=LATER,
    )
    fold: int = Field(0, ge=0, description="the fold that is the test, from 0", json_schema_extra=LATER)
    shards: int = Field(2, ge=1, description="most shards of each set")
    corpus: str = Field("", description="name of the corpus; part of every key")
    condition: str = Field("", description="recording condition")
    prior: list[float] = Field([], description="`dims` values that a speaker's causal mean starts from; empty: zeros")
    stats_sets: list[str] = Field([], description="sets that the global mean and variance come from; empty: not test*")
    seed: int = Field(0, ge=0, description="of the order in which speakers are taken")

    @model_validator(mode="after")
    def _check(self) -> ImportFeaturesParams:
        if self.prior and len(self.prior) != self.dims:
            raise ValueError(f"prior has {len(self.prior)} values, dims is {self.dims}")
        if 0 < self.mels < self.dims:
            raise ValueError(
                f"mels = {self.mels} is below dims, {self.dims}: cepstra have no more dimensions than mels"
            )
        if self.folds == 1 or self.fold >= max(1, self.folds):
            raise ValueError(f"fold {self.fold} of {self.folds}: there are two folds at least, counted from 0")
        try:
            groups = re.compile(self.speaker_pattern).groups
        except re.error as error:
            raise ValueError(f"speaker_pattern {self.speaker_pattern!r}: {error}") from None
        if groups != 1:
            raise ValueError(f"speaker_pattern {self.speaker_pattern!r} has {groups} groups, not one")
        return self

    def identity(self) -> dict[str, Any]:
        """A changed source is another job, as for `ingest`."""
        from megahour.corpus.ingest.sources import source_digest

        paths = [path for path in (self.source, self.train, self.test) if path]
        return {**super().identity(), "digests": [source_digest(path) for path in paths]}
