"""The parameters of `cut`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from megahour.core.config import Params, Share

NO_ANCHORS = "the text repeats itself, or hardly any of it is heard: give cue times, or raise align's --max-cells"


class CutParams(Params):
    """Cut aligned recordings into utterances, at pauses."""

    min_s: float = Field(2.0, ge=0)
    """Shortest utterance, in seconds. Lower it for commands and digits."""
    max_s: float = Field(15.0, gt=0)
    """Longest utterance including padding, in seconds. Lower it when training runs out of memory."""
    pad_s: float = Field(0.3, ge=0, le=0.3)
    """Most audio kept before the first and after the last word, in seconds."""
    min_pause_s: float = Field(0.09, ge=0)
    """Shortest pause in which to cut, in seconds. Raise it when cuts clip words."""
    least_pause_s: float = Field(0.04, ge=0)
    """Shortest pause in which to cut when an utterance would otherwise exceed `max_s`, in seconds."""
    max_pause_s: float = Field(3.0, gt=0)
    """Pauses longer than this always separate utterances, in seconds."""
    min_confidence: Share = 0.5
    """Drop utterances with a lower mean word confidence. In recordings with low confidences throughout, the limit falls
    to the recording's own `false_reject` quantile."""
    clean_cer: float = Field(0.2, ge=0)
    """Highest character error rate of the second reading (recognition without the transcript) in the tier clean."""
    dirty_cer: float = Field(0.36, ge=0)
    """Drop utterances whose second reading has a higher character error rate. In recordings that the aligner reads
    worse, `false_reject` and `false_accept` raise the limit. 100 drops none."""
    false_reject: float = Field(0.02, ge=0, lt=0.5)
    """Share of correct utterances that may be dropped because of their second reading, estimated for each recording.
    Raise it for cleaner text. 0 applies `dirty_cer` and `min_confidence` as they are."""
    false_accept: float = Field(0.02, ge=0, lt=0.5)
    """Share of wrong texts that may pass when the aligner reads a recording badly. 0 uses `false_reject` alone."""
    clean_edge_cer: float = Field(0.6, ge=0)
    """Highest character error rate of the first and last five characters in the tier clean."""
    dirty_edge_cer: float = Field(0.8, ge=0)
    """Drop utterances with a higher error rate of the first and last five characters. Ignored when `dirty_cer` is 1 or
    more."""
    clean_wildcard_share: Share = 0.1
    """Highest share of recognised tokens outside the aligned words in the tier clean."""
    max_wildcard_share: Share = 1.0
    """Drop utterances with a higher share of recognised tokens outside the aligned words. 1 drops none."""
    clean_snr_db: float = 10.0
    """Lowest signal-to-noise ratio in the tier clean, in dB."""
    min_snr_db: float = 0.0
    """Drop utterances with a lower signal-to-noise ratio, in dB. Raise it for TTS."""
    clean_clipped_share: Share = 0.001
    """Highest share of clipped samples in the tier clean."""
    max_clipped_share: Share = 0.05
    """Drop utterances with a higher share of clipped samples."""
    dev_share: Share = 0.0
    """Share of the speakers (see `split_by`) in the split dev."""
    test_share: Share = 0.0
    """Share of the speakers (see `split_by`) in the split test."""
    split_by: Literal["speaker", "recording", "source"] = "speaker"
    """What the splits keep whole, chosen by a hash of its name; recordings where it is unknown. Other people who speak
    in a held-out speaker's recordings are in no split."""

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
