"""The `export` stage: the *utterances* artifact → the formats of other tools, shard by shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from megahour.core.config import Params
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter

Format = Literal["webdataset", "shar", "nemo", "parquet", "kaldi", "ctm", "textgrid", "srt", "files"]


class ExportParams(Params):
    """Utterances as WebDataset, lhotse Shar, NeMo, Kaldi, Hugging Face parquet, CTM, TextGrid and SRT."""

    formats: list[Format] = Field(
        ["webdataset", "nemo"],
        min_length=1,
        description="what to write: webdataset shar nemo parquet kaldi ctm textgrid srt files",
    )
    splits: list[str] = Field([], description="only utterances of these splits; empty = all")
    tiers: list[str] = Field([], description="only utterances of these tiers; empty = all")
    sets: list[str] = Field([], description="only utterances of these sets of the selection; empty = all selected")
    max_tar_mb: float = Field(1000.0, gt=0, description="audio of one output shard at most, megabytes")
    with_text: bool = Field(False, description="a .txt beside each .flac and .json of WebDataset")
    prefix: str = Field("", description="put before the paths in Kaldi's and lhotse's files: the export's own address")
    title: str = Field("speech", min_length=1, description="name of the data set in its README")

    @model_validator(mode="after")
    def _formats_fit(self) -> ExportParams:
        if len(set(self.formats)) != len(self.formats):
            raise ValueError(f"formats = {self.formats} names one of them twice")
        if "nemo" in self.formats and "webdataset" not in self.formats:
            raise ValueError("nemo describes the tars of webdataset: add webdataset to formats")
        if self.prefix and (not self.prefix.endswith("/") or any(c.isspace() for c in self.prefix)):
            raise ValueError(f'prefix = "{self.prefix}" must end with "/" and have no space')
        return self


class Export(Stage[ExportParams]):
    """A task per shard of utterances (more where it is above `max_tar_mb`), and a last one for what spans all of them.

    `selection` and `duplicates` say which utterances to take and which to leave out.
    """

    name = "export"
    version = 1
    params = ExportParams
    inputs: ClassVar[tuple[Input, ...]] = (
        Input("utterances"),
        Input("selection", optional=True),
        Input("duplicates", optional=True),
    )

    def plan(self, p: ExportParams, inputs: Inputs) -> list[Task]:
        from megahour.corpus.interchange.export import plan_parts

        return [Task(spec) for spec in plan_parts(inputs["utterances"], p.max_tar_mb * 1e6)] + [Task({"whole": True})]

    def run(self, p: ExportParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        if "whole" in task.spec:
            from megahour.corpus.interchange.whole import export_whole

            export_whole(p, inputs, out, ctx)
        else:
            from megahour.corpus.interchange.export import export_part

            export_part(p, inputs, task.spec, out, ctx)

    def finish(self, p: ExportParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        whole = receipts[-1].stats
        return {
            "utterances": whole["utterances"],
            "hours": whole["hours"],
            "licences": whole["licences"],
            "formats": sorted(p.formats),
            "audio_shards": len(receipts) - 1,
        }
