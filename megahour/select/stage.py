"""Stage `select`: utterances into sets by speaker, a speaker's utterances together and in order of time.

Only metadata moves (Amazon paper, IV-B.1): the audio stays where `cut` wrote it and is read by address.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megahour.core.config import Params
from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter
    from megahour.select.sample import Layout


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
    shard_hours: float = Field(0.5, gt=0, description="hours of a shard; whole speakers, so a shard can be larger")
    speaker_hours: float = Field(0.0, ge=0, description="most hours of one speaker, the earliest first; 0: no limit")
    splits: list[str] = Field([], description="only utterances of these splits (train, dev, test); empty: all")
    tiers: list[str] = Field([], description="only utterances of these tiers (clean, dirty); empty: all")
    min_confidence: float = Field(0.0, ge=0, le=1, description="drop utterances of a lower alignment confidence")
    from_s: int = Field(0, description="earliest time of recording, Unix seconds")
    until_s: int = Field(0, description="latest time of recording, Unix seconds; 0: no limit")
    seed: int = Field(0, ge=0, description="of the order in which speakers are taken")

    @model_validator(mode="after")
    def _each_speaker_once(self) -> SelectParams:
        named = [speaker for rule in self.sets for speaker in rule.named or ()]
        if twice := sorted({speaker for speaker in named if named.count(speaker) > 1}):
            raise ValueError(f"speakers {twice} are named twice")
        return self


class Select(Stage[SelectParams]):
    """An exchange by speaker. The plan needs the hours of every speaker: one pass over three columns of metadata."""

    name = "select"
    version = 4
    params = SelectParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("utterances"), Input("duplicates", optional=True))
    exchange = True

    def partitions(self, p: SelectParams, inputs: Inputs) -> int:
        return len(layout(p, inputs).shards)

    def split(self, p: SelectParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.select.exchange import split_shard

        yield from split_shard(p, layout(p, inputs), inputs, task["shard"])

    def merge(
        self,
        p: SelectParams,
        inputs: Inputs,
        partition: int,
        batches: Iterator[pa.RecordBatch],
        out: ShardWriter,
        ctx: Context,
    ) -> None:
        from megahour.select.exchange import merge_shard

        merge_shard(p, layout(p, inputs).shards[partition].set, batches, inputs.get("duplicates"), out)

    def finish(self, p: SelectParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        sets: dict[str, dict[str, float]] = {}
        for receipt in receipts:
            row = sets.setdefault(receipt.tags["set"], {"utterances": 0, "hours": 0.0, "speakers": 0})
            row["utterances"] += receipt.counts.kept
            row["hours"] = round(row["hours"] + receipt.stats["audio_s"] / 3600, 4)
            row["speakers"] += receipt.stats["speakers"]
        came_in = sum(receipt.counts.came_in for receipt in receipts)
        return {"sets": sets, "no_set": inputs["utterances"].manifest.counts.kept - came_in}


_layouts: dict[tuple[str, str], Layout] = {}


def layout(p: SelectParams, inputs: Inputs) -> Layout:
    """The layout for these parameters and inputs, worked out once per process."""
    from megahour.select.exchange import speaker_hours
    from megahour.select.sample import lay_out

    digests = ",".join(f"{role}={inputs[role].manifest.digest}" for role in sorted(inputs))
    place = (p.model_dump_json(), digests)
    if place not in _layouts:
        hours = speaker_hours(p, inputs)
        missing = sorted({s for rule in p.sets for s in rule.named or ()} - set(hours))
        if missing:
            raise ConfigError(
                f"no utterances of the named speakers {missing}",
                where="select",
                remedy="check their names, splits, tiers, min_confidence, from_s and until_s",
            )
        made = lay_out(hours, p.sets, p.seed, p.shard_hours)
        if empty := sorted({rule.name for rule in p.sets} - {shard.set for shard in made.shards}):
            raise ConfigError(
                f"no speakers are left for the sets {empty}: there are {len(hours)} speakers",
                where="select",
                remedy="let earlier sets take fewer, or leave these sets out",
            )
        _layouts[place] = made
    return _layouts[place]
