"""What a user may set of `align`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from megahour.core.config import LATER, Params, Share
from megahour.models.params import BatchFrames, Precision


class AlignParams(Params):
    """Word times of long recordings from their transcripts, by CTC."""

    window_s: float = Field(
        30.72,
        gt=0,
        description="seconds of audio that the model sees at once; longer gives more context and needs more memory",
    )
    margin_s: float = Field(1.0, ge=0, description="seconds at each end of a window that are only context")
    star_nats: float = Field(
        1.0,
        gt=0,
        description="cost of a frame of untranscribed speech between cues; lower it where transcripts miss much",
    )
    skip_cue_nats: float = Field(
        4.0,
        ge=0,
        description="cost of leaving out a cue that was not spoken; lower it where transcripts have invented lines",
    )
    skip_token_nats: float = Field(
        4.0, gt=0, description="cost per token of such a cue until each recording has calibrated its own"
    )
    skip_ratio: float = Field(
        3.0,
        gt=0,
        description="calibrated cost per token, in medians of the recording's loss; raise it to keep more cues",
    )
    anchor_length: int = Field(
        10,
        ge=4,
        description="characters of an anchor, a passage that reading and transcript share; longer is surer",
    )
    anchor_every_s: float = Field(
        45.0, gt=0, description="least seconds between anchors; fewer anchors need more memory"
    )
    max_hint_error_s: float = Field(
        60.0,
        gt=0,
        description="how far subtitle times may be off, in seconds; raise it for subtitles of another cut of the film",
    )
    hint_tolerance_s: float = Field(
        1.5, gt=0, description="how far a short cue may be off its neighbours' drift, at least"
    )
    said_chance: float = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="false-accept rate for poorly recognised cues that match their subtitle time; 0 disables recovery",
    )
    max_cells: float = Field(
        4e9,
        gt=0,
        description="frames x tokens between two anchors above which a recording is refused; raise it if memory allows",
    )
    max_loss_nats: float = Field(
        100.0,
        gt=0,
        description="median loss per token above which a recording is refused, whatever the aligner; 100 asks for none",
    )
    decoy_margin: Share = Field(
        0.2, description="how much cheaper than its reversed text a doubtful transcript must be; 0 skips the check"
    )
    min_spoken: Share = Field(
        0.3, description="least share of the transcript's tokens spoken; below, the transcript is refused as another's"
    )
    false_accept: float = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="share of cues not said where they are placed that pass, by comparing each with other texts there; "
        "lower it for cleaner text; 0 compares nothing",
    )
    false_reject: float = Field(
        0.02,
        ge=0,
        lt=0.5,
        description="share of said cues dropped where that drops more of those not said, by the document's own cues; "
        "0 goes by false_accept alone",
    )
    min_confidence: Share = Field(
        0.0, description="least mean posterior of a cue, whatever the aligner; 0 asks for none"
    )
    max_cue_loss_nats: float = Field(
        100.0,
        gt=0,
        description="loss per token above which a cue is dropped, whatever the aligner; 100 asks for none",
    )
    longest_word_s: float = Field(
        6.0, gt=0, description="cues with a longer word are dropped: usually they span a passage without text"
    )
    min_untranscribed_s: float = Field(
        0.3, gt=0, description="shortest speech between cues that counts as untranscribed"
    )
    recognised: Literal["reading", "missing", "better"] = Field(
        "missing",
        description="what a recogniser's text (ingest --recognised) is: the second reading; the transcript, too, where "
        "no other stands; or also where it shows more of what is heard than the others do",
        json_schema_extra=LATER,
    )
    batch_frames: BatchFrames = 8192
    precision: Precision = "fp32"
    write_posteriors: bool = Field(
        False, description="also write the posteriors (8 bits), so that another alignment need not run the model"
    )
