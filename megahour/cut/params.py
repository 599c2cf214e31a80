"""What a user may set of `cut`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from megahour.core.config import Params, Share

NO_ANCHORS = "the text repeats itself, or hardly any of it is heard: give cue times, or raise align's --max-cells"


class CutParams(Params):
    """Utterances from aligned recordings, cut in the middle of pauses."""

    min_s: float = Field(2.0, ge=0, description="shortest utterance, in seconds; lower it for commands and digits")
    max_s: float = Field(
        15.0,
        gt=0,
        description="longest utterance with its padding, in seconds; lower it when training runs out of memory",
    )
    pad_s: float = Field(0.3, ge=0, le=0.3, description="audio kept before and after the words, at most")
    min_pause_s: float = Field(
        0.09, ge=0, description="shortest pause at which audio may be cut; raise it where words are cut off"
    )
    least_pause_s: float = Field(0.04, ge=0, description="the same where there is no better pause within max_s")
    max_pause_s: float = Field(3.0, gt=0, description="longer pauses always separate utterances")
    min_confidence: Share = Field(
        0.5, description="least mean word confidence of an utterance, or of most of its recording's if that is less"
    )
    clean_cer: float = Field(
        0.2, ge=0, description="largest character error rate of the second reading in the tier clean"
    )
    dirty_cer: float = Field(
        0.36,
        ge=0,
        description="character error rate above which an utterance is dropped; of recordings read worse, a limit "
        "by false_reject; 100 drops none",
    )
    false_reject: float = Field(
        0.02,
        ge=0,
        lt=0.5,
        description="share of right utterances dropped for their readings, by recording; raise it for cleaner text; "
        "0 asks for dirty_cer and min_confidence whatever the aligner",
    )
    false_accept: float = Field(
        0.02,
        ge=0,
        lt=0.5,
        description="share of wrong texts that may pass where an aligner reads badly; 0 goes by false_reject alone",
    )
    clean_edge_cer: float = Field(
        0.6,
        ge=0,
        description="largest error rate of the first and last five characters in the tier clean",
    )
    dirty_edge_cer: float = Field(
        0.8, ge=0, description="the same, above which an utterance is dropped; not asked where dirty_cer is 1 or more"
    )
    clean_wildcard_share: Share = Field(
        0.1, description="largest share of sound recognised outside the words in the tier clean"
    )
    max_wildcard_share: Share = Field(1.0, description="the same, above which an utterance is dropped")
    clean_snr_db: float = Field(10.0, description="least signal-to-noise ratio in the tier clean, in decibels")
    min_snr_db: float = Field(
        0.0,
        description="signal-to-noise ratio below which an utterance is dropped, in decibels; raise it for TTS",
    )
    clean_clipped_share: Share = Field(0.001, description="largest share of clipped samples in the tier clean")
    max_clipped_share: Share = Field(0.05, description="the same, above which an utterance is dropped")
    dev_share: Share = Field(0.0, description="share of speakers (split_by) in the split dev")
    test_share: Share = Field(0.0, description="share of speakers (split_by) in the split test")
    split_by: Literal["speaker", "recording", "source"] = Field(
        "speaker",
        description="what is held out whole, by its hash; recordings where it is unknown. Others who speak in a "
        "held-out speaker's recording are in no split",
    )

    @model_validator(mode="after")
    def _limits_fit(self) -> CutParams:
        if self.min_s >= self.max_s:
            raise ValueError(f"min_s = {self.min_s} must be below max_s = {self.max_s}")
        if self.least_pause_s > self.min_pause_s:
            raise ValueError(f"least_pause_s = {self.least_pause_s} is above min_pause_s = {self.min_pause_s}")
        if self.dev_share + self.test_share > 1:
            raise ValueError(f"dev_share + test_share = {self.dev_share + self.test_share} is above 1")
        rising = [
            ("clean_cer", "dirty_cer"),
            ("clean_edge_cer", "dirty_edge_cer"),
            ("clean_wildcard_share", "max_wildcard_share"),
            ("clean_clipped_share", "max_clipped_share"),
            ("min_snr_db", "clean_snr_db"),
        ]
        for lower, upper in rising:
            if getattr(self, lower) > getattr(self, upper):
                raise ValueError(f"{lower} = {getattr(self, lower)} is above {upper} = {getattr(self, upper)}")
        return self
