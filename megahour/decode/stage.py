"""Stages `graph` (model, lexicon and units to a decoding graph) and `decode` (features to words)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from megahour.core.config import Params
from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter
    from megahour.engine.accelerator.spec import ModelSpec


class GraphParams(Params):
    """Decoding graph from topology, lexicon and language model."""

    topology: Literal["hmm", "ctc"] = Field("hmm", description="hmm: senones of `units`; ctc: characters of `model`")
    self_loop: float = Field(0.5, gt=0, lt=1, description="probability that a senone lasts another frame")
    silence_probability: float = Field(0.5, gt=0, lt=1, description="probability of silence beside a word")
    word_cost: float = Field(0.0, description="added for every word, in nats; above 0 gives fewer words")


class MakeGraph(Stage[GraphParams]):
    """Writes `.fst` (OpenFst const), `.words.txt` (`word number` lines) and `.json`.

    Inputs: `lm`, `lexicon`, and `units` for topology hmm, or `model` (trained with criterion ctc) for topology ctc,
    where only the words of the lexicon count and their spelling is their pronunciation.
    """

    name = "graph"
    params = GraphParams
    inputs = (Input("lm"), Input("lexicon"), Input("units", optional=True), Input("model", optional=True))

    def plan(self, p: GraphParams, inputs: Inputs) -> list[Task]:
        needed = "units" if p.topology == "hmm" else "model"
        if needed not in inputs:
            raise ConfigError(f"topology {p.topology} needs the input `{needed}`", where="graph")
        return [Task({})]

    def run(self, p: GraphParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.decode.build import write_graph

        write_graph(p, inputs, out)

    def finish(self, p: GraphParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return dict(receipts[0].stats)


class DecodeParams(Params):
    """Beam search over the graph with a model's posteriors."""

    sets: list[str] = Field(["test"], description="sets to decode")
    model_name: str = Field("model", description="name of the model in the hypotheses")
    acoustic_scale: float = Field(1.0, gt=0, description="weight of the acoustics; replaced by the input `tuned`")
    prior_scale: float = Field(1.0, ge=0, description="weight of the senones' priors; ctc graphs use none")
    beam: float = Field(14.0, gt=0, description="drop paths that are worse than the best by more nats")
    max_active: int = Field(7000, ge=1, description="most paths at a frame")
    scales: list[float] = Field([], description="acoustic scales to try on `sets` (not the test set); the best is told")
    batch_frames: int = Field(4096, ge=1, description="stacked frames of an inference batch")


class Decode(Stage[DecodeParams]):
    """One task per features shard of the sets. Writes *hypotheses*; its summary names the best of `scales`.

    A run with `scales` on a held-out set can be the input `tuned` of the run on the test set.
    """

    name = "decode"
    version = 3
    params = DecodeParams
    inputs = (
        Input("features"),
        Input("model"),
        Input("graph"),
        Input("units", optional=True),
        Input("tuned", optional=True),
    )

    def plan(self, p: DecodeParams, inputs: Inputs) -> list[Task]:
        from megahour.decode.match import check_match
        from megahour.features.sets import tasks_of_sets

        check_match(inputs)
        return tasks_of_sets(inputs["features"], p.sets, where=self.name)

    def accelerator(self, p: DecodeParams, inputs: Inputs) -> ModelSpec:
        from megahour.models.service import model_spec

        return model_spec(inputs["model"], p.batch_frames)

    def run(self, p: DecodeParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.decode.run import decode_shard

        decode_shard(p, inputs, task["shard"], self.accelerator(p, inputs), out, ctx)

    def finish(self, p: DecodeParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        totals: dict[str, float] = {}
        for receipt in receipts:
            for name, value in receipt.stats.items():
                totals[name] = totals.get(name, 0) + value
        numbers = {name: round(total, 4) for name, total in totals.items()}
        summary: dict[str, Any] = {"model": p.model_name, "sets": sorted(p.sets), **numbers}
        words = totals.get("reference_words", 0)
        if p.scales and words:
            rates = {scale: totals[f"errors_at_{scale:g}"] / words for scale in sorted(p.scales)}
            summary["wer_by_scale"] = {f"{scale:g}": round(rate, 6) for scale, rate in rates.items()}
            summary["best_scale"] = min(rates, key=lambda scale: (rates[scale], scale))
        return summary
