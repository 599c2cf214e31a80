"""The parameters of `align`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from megahour.core.config import LATER, Params, Share
from megahour.models.params import BatchFrames, Precision

EXAMPLE = "heard"
"""The statistic of a shard with the first tokens that the aligner recognised in it."""


class AlignParams(Params):
    """Align long recordings with their transcripts by CTC.

    The result has the time and the confidence of each word, and what was refused and why.
    """

    window_s: float = Field(30.72, gt=0)
    """Seconds of audio that the model processes at once. A longer window gives more context and needs more memory."""
    margin_s: float = Field(1.0, ge=0)
    """Seconds at each end of a window that serve only as context."""
    star_nats: float = Field(1.0, gt=0)
    """Cost, in nats, of a frame of untranscribed speech between cues. Lower it when transcripts leave out much of the
    speech."""
    skip_cue_nats: float = Field(4.0, ge=0)
    """Cost, in nats, of leaving out a cue that was not spoken. Lower it when transcripts contain invented lines."""
    skip_token_nats: float = Field(4.0, gt=0)
    """Additional cost, in nats per token, of leaving out a cue, before it is calibrated on each recording."""
    skip_ratio: float = Field(3.0, gt=0)
    """Calibrated cost per token of leaving out a cue, as a multiple of the recording's median loss per token. Raise it
    to keep more cues."""
    anchor_length: int = Field(10, ge=4)
    """Length in characters of an anchor: a passage that recognition and transcript share. Longer anchors are more
    reliable and rarer."""
    anchor_every_s: float = Field(45.0, gt=0)
    """Shortest distance between anchors, in seconds. Fewer anchors need more memory."""
    max_hint_error_s: float = Field(60.0, gt=0)
    """Largest error of subtitle times, in seconds. Raise it for subtitles of another cut of the film."""
    hint_tolerance_s: float = Field(1.5, gt=0)
    """Deviation from the drift of neighbouring subtitles that is always accepted in a short cue, in seconds."""
    said_chance: float = Field(0.1, ge=0, lt=0.5)
    """False-accept rate when left-out cues are searched for again at their subtitle times. Lower it when unspoken lines
    come back; 0 disables the search."""
    max_cells: float = Field(4e9, gt=0)
    """Largest alignment between two anchors, in frames x tokens. Recordings that exceed it are refused; raise it if
    memory allows."""
    max_loss_nats: float = Field(100.0, gt=0)
    """Refuse recordings with a higher median loss per token, in nats. 100 disables the limit."""
    decoy_margin: Share = 0.2
    """How much cheaper a doubtful transcript must align than its own reversed text, as a share. 0 disables the
    check."""
    min_spoken: Share = 0.3
    """Refuse a transcript as another recording's when a smaller share of its tokens is spoken. Lower it for texts that
    go far beyond their recordings, such as that of a book beside each of its chapters."""
    false_accept: float = Field(0.3, ge=0, lt=0.5)
    """Target rate of unspoken cues that pass, tested against other texts at the same place, if no speech is left over
    beside them. Lower it for cleaner text; 0 disables the test."""
    false_reject: float = Field(0.005, ge=0, lt=0.5)
    """Share of spoken cues that may be lost where the test then rejects more unspoken ones, estimated from the
    document's own cues. 0 uses `false_accept` alone."""
    min_confidence: Share = 0.0
    """Drop cues with a lower mean posterior. 0 disables the limit."""
    max_cue_loss_nats: float = Field(100.0, gt=0)
    """Drop cues with a higher loss per token, in nats. 100 disables the limit."""
    longest_word_s: float = Field(6.0, gt=0)
    """Drop cues with a word longer than this, in seconds. Such cues usually span speech without a transcript."""
    min_untranscribed_s: float = Field(0.3, gt=0)
    """Shortest stretch of speech between cues that is listed as untranscribed, in seconds."""
    recognised: Literal["reading", "missing", "better"] = Field("missing", json_schema_extra=LATER)
    """How to use text from another recogniser (`recognised` of ingest). reading: as the second reading that `cut`
    compares texts with. missing: also as the transcript of recordings that have none. better: also in place of
    transcripts that match the audio worse."""
    batch_frames: BatchFrames = 8192
    precision: Precision = "fp32"
    write_posteriors: bool = False
    """Also write the posteriors (8 bits each), so that another alignment does not run the model again."""
