"""What a user may set of `select`: parameters, their defaults and what they change."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megahour.core.config import LATER, Params, Share


class SetRule(BaseModel):
    """Which speakers a set takes: a number, a share of the hours left, hours, names, or all the rest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    """Utterances into labelled, unlabelled and test sets by speaker."""

    sets: list[SetRule] = Field(
        [
            SetRule(name="test", share=0.1),
            SetRule(name="labelled", share=0.1),
            SetRule(name="unlabelled"),
        ],
        min_length=1,
        description="rules in order: {name, and one of speakers: N, share: of the hours left, hours: N, named: [...]}",
    )
    shard_hours: float = Field(
        0.5, gt=0, description="hours of a shard, in whole speakers; smaller shards spread over more workers"
    )
    speaker_hours: float = Field(
        0.0, ge=0, description="most hours of one speaker, the earliest first, so that no voice dominates; 0: no limit"
    )
    splits: list[str] = Field([], description="only utterances of these splits (train, dev, test); empty: all")
    tiers: list[str] = Field([], description="only utterances of these tiers (clean, dirty); empty: all")
    languages: list[str] = Field(
        [],
        description="only utterances in these languages (BCP 47): `en` takes en-US and en-GB too, `en-US` only that "
        "locale; empty: all",
        json_schema_extra=LATER,
    )
    min_confidence: Share = Field(0.0, description="drop utterances of a lower alignment confidence")
    from_s: int = Field(0, description="earliest time of recording, Unix seconds")
    until_s: int = Field(0, description="latest time of recording, Unix seconds; 0: no limit")
    draw_hours: dict[str, float] = Field(
        {},
        description="hours to draw of some sets, such as {unlabelled: 1000000}, to half an utterance: equal hours of "
        "every period, and within it each utterance as likely as any other, whoever speaks; other sets stay whole",
        json_schema_extra=LATER,
    )
    draw_evenly: Literal["time", "speakers"] = Field(
        "time",
        description="time: as `draw_hours` says; speakers: equal hours of every speaker, of each equal hours of his "
        "periods, and all of who or what has fewer, to half an utterance a shard; take it where a few speakers or "
        "days would fill the set",
        json_schema_extra=LATER,
    )
    period_s: int = Field(
        86_400,
        ge=0,
        description="seconds of such a period of `created_s`, of which there may be 10,000: 86400 are days; 0: one "
        "period, so that busy days count more",
        json_schema_extra=LATER,
    )
    shared_recordings: Literal["join", "drop"] = Field(
        "join",
        description="join: all who speak in one recording go to one set, with whoever shares another recording with "
        "them; drop: speakers go their own ways, and of a recording that two sets share the first set's are kept",
    )
    seed: int = Field(0, ge=0, description="seed of the order in which speakers are taken")

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
    """Utterances whose sound or text is nearly that of another one, to be left out."""

    audio: bool = Field(True, description="look for copies of sound: other codec, gain, rate or start")
    audio_similarity: float = Field(
        0.75,
        gt=0.5,
        le=1,
        description="least share of equal fingerprint bits of two copies; lower it for heavier compression",
    )
    min_common_s: float = Field(1.0, gt=0, description="least seconds of sound that copies share")
    min_common_share: float = Field(0.6, gt=0, le=1, description="least share of the shorter one that they share")
    landmark_every: int = Field(
        4, ge=1, description="look up one frame in N; lower it to find more duplicates, at more cost"
    )
    text: Literal["never", "same-speaker", "any-speaker"] = Field(
        "same-speaker", description="whose equal texts are duplicates; an unknown speaker is his recording's"
    )
    text_similarity: float = Field(
        0.8, gt=0, le=1, description="least Jaccard similarity of character 5-grams of two equal texts"
    )
    min_text_chars: int = Field(40, ge=1, description="shorter texts are never duplicates")
    keep: Literal["first", "best"] = Field("first", description="of alike ones: the smallest key, or the lowest loss")
    partitions: int = Field(0, ge=0, description="output shards; 0: as many as the utterances have")
    most_compared: int = Field(
        200,
        ge=1,
        description="utterances of a bucket that another one is compared with; more find more and take longer",
    )


class CombineParams(Params):
    """Utterances of several corpora as one: public and own ones, or real and synthetic speech."""

    prefixes: list[str] = Field(
        [],
        description="put before the speakers' names of each input, in order, such as ['', 'tts-']: equal names of "
        "different people stay apart. Empty: an equal name is the same speaker",
    )
