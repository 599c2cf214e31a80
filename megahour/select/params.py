"""Parameters of the stages in `select`."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Options, Params, Share


class SetRule(Options):
    """Which speakers a set takes: a number, a share of the remaining hours, hours, names, or all the rest."""

    name: str = Field(min_length=1)
    speakers: int | None = Field(default=None, ge=1)
    share: float | None = Field(default=None, gt=0, le=1)
    hours: float | None = Field(default=None, gt=0)
    named: list[str] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one_kind(self) -> SetRule:
        if sum(value is not None for value in (self.speakers, self.share, self.hours, self.named)) > 1:
            raise ValueError(f"set {self.name}: give one of speakers, share, hours, named")
        return self


class SelectParams(Params):
    """Divide utterances by speaker into training and test sets.

    The default sets are test, labelled and unlabelled.
    """

    sets: list[SetRule] = Field(
        [
            SetRule(name="test", share=0.1),
            SetRule(name="labelled", share=0.1),
            SetRule(name="unlabelled"),
        ],
        min_length=1,
    )
    """Rules, applied in order: {name, and one of speakers: N, share: of the hours left, hours: N, named: [...]}. A rule
    with a name alone takes all that is left."""
    shard_hours: float = Field(0.5, gt=0)
    """Hours per shard, made of whole speakers. Smaller shards spread over more workers."""
    speaker_hours: float = Field(0.0, ge=0)
    """Most hours of one speaker, earliest first. Set it to keep single voices from dominating; 0 sets no limit. `hours`
    of sets and `shard_hours` do not count what it leaves out."""
    splits: list[str] = Field([])
    """Use only utterances in these splits (train, dev, test). Empty: all."""
    tiers: list[str] = Field([])
    """Use only utterances in these tiers (clean, dirty). Empty: all."""
    languages: list[str] = Field([], json_schema_extra=LATER)
    """Use only utterances in these languages (BCP 47). `en` also takes en-US and en-GB, `en-US` only that locale.
    Empty: all."""
    min_confidence: Share = 0.0
    """Drop utterances with a lower alignment confidence."""
    from_s: int = 0
    """Earliest time of recording, in Unix seconds. 0 sets no limit."""
    until_s: int = 0
    """Latest time of recording, in Unix seconds. 0 sets no limit."""
    draw_hours: dict[str, float] = Field({}, json_schema_extra=LATER)
    """Hours to sample from some of the sets, such as {unlabelled: 1000000}, exact to half an utterance; with
    `draw_evenly: speakers` to an utterance a shard, and exact on average. Other sets stay whole."""
    draw_evenly: Literal["time", "speakers"] = Field("time", json_schema_extra=LATER)
    """time: sample equal hours from each period of `period_s`, and each utterance within it with equal probability.
    speakers: sample equal hours from each speaker, and from each speaker equal hours per period; whoever has fewer
    gives all. Use speakers when a few speakers or days would fill the set."""
    period_s: int = Field(86_400, ge=0, json_schema_extra=LATER)
    """Length of a period for `draw_hours`, in seconds of recording time (`created_s`): 86400 makes days. At most 10,000
    periods. 0: a single period, so that busy days count more. All utterances of unknown time are one period."""
    shared_recordings: Literal["join", "drop"] = "join"
    """join: all speakers of a recording go to the same set, with everyone who shares another recording with them. drop:
    speakers are assigned one by one, and a recording shared by two sets stays only in the first."""
    seed: int = Field(0, ge=0)
    """Seed of the order in which speakers are assigned."""

    @model_validator(mode="after")
    def _each_speaker_once(self) -> SelectParams:
        from megahour.corpus.transcripts.speaker_names import one_name

        named = [speaker for rule in self.sets for speaker in rule.named or ()]
        counts = Counter(one_name(speaker) for speaker in named)
        if twice := sorted({speaker for speaker in named if counts[one_name(speaker)] > 1}):
            raise ValueError(f"speakers {twice} are named twice")
        return self

    @model_validator(mode="after")
    def _draws_fit(self) -> SelectParams:
        if unknown := sorted(self.draw_hours.keys() - {rule.name for rule in self.sets}):
            raise ValueError(f"draw_hours of {unknown}, which are no sets")
        if any(not 0 < hours < float("inf") for hours in self.draw_hours.values()):
            raise ValueError(f"draw_hours = {self.draw_hours}: hours are above 0")
        if self.draw_hours and self.speaker_hours:
            raise ValueError("speaker_hours keeps a speaker's earliest utterances: leave it out with draw_hours")
        if self.draw_hours and self.draw_evenly == "speakers" and self.shared_recordings == "drop":
            raise ValueError("draw_evenly=speakers needs shared_recordings=join: drop takes hours of speakers away")
        return self


class DuplicatesParams(Params):
    """Find utterances with nearly equal sound or text.

    The artifact lists the ones to leave out.
    """

    audio: bool = True
    """Find copies of the same sound in another codec, gain, sampling rate or with another start."""
    audio_similarity: float = Field(0.75, gt=0.5, le=1)
    """Smallest share of equal fingerprint bits in two copies. Lower it for stronger compression."""
    min_common_s: float = Field(1.0, gt=0)
    """Shortest stretch of sound that copies have in common, in seconds."""
    min_common_share: float = Field(0.6, gt=0, le=1)
    """Smallest share of the shorter utterance that copies have in common."""
    landmark_every: int = Field(4, ge=1)
    """Look up one in N frames. Lower it to find more duplicates at a higher cost."""
    text: Literal["never", "same-speaker", "any-speaker"] = "same-speaker"
    """Whose equal texts are duplicates. An unknown speaker counts as one speaker per recording."""
    text_similarity: float = Field(0.8, gt=0, le=1)
    """Smallest Jaccard similarity of the character 5-grams of two texts that count as equal."""
    min_text_chars: int = Field(40, ge=1)
    """Texts with fewer characters are never duplicates."""
    keep: Literal["first", "best"] = "first"
    """Which of several duplicates stays: the one with the smallest key (first) or the lowest alignment loss (best)."""
    partitions: int = Field(0, ge=0)
    """Number of output shards. 0: as many as the utterances have."""
    most_compared: int = Field(200, ge=1)
    """Largest number of utterances in a bucket that another one is compared with. More find more duplicates and take
    longer."""


class CombineParams(Params):
    """Combine utterances of several corpora.

    They may be public and private ones, or real and synthetic speech.
    """

    prefixes: list[str] = Field([])
    """Prefix for the speaker names of each input, in order, such as ['', 'tts-'], so that different people with the
    same name stay apart. Empty: equal names are the same speaker."""
