"""Stage `train`: an acoustic model from features and labels, and from a teacher's targets or pseudo-labels as well."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.learn.params import TrainParams


class Train(Stage[TrainParams]):
    """One task: the whole training run, resumed from its checkpoints after a kill."""

    name = "train"
    version = 4
    params = TrainParams
    inputs: ClassVar[tuple[Input, ...]] = (
        Input("features", kinds=("features", "partitions", "voice_data")),
        Input("audio", optional=True, kinds=("utterances",)),
        *Input.if_given("noises", "rooms", kinds=("recordings", "utterances")),
        Input("units", optional=True),
        Input("targets", optional=True, kinds=("targets", "partitions")),
        *Input.if_given("pseudo_labels", "selection", "tokens", "lexicon"),
        Input("initial", optional=True, kinds=("model",)),
        Input("graph", optional=True),
        Input("lattices", optional=True, kinds=("hypotheses",)),
        Input("vocoder", optional=True, kinds=("model",)),
    )
    local = True

    def check(self, p: TrainParams, roles: Collection[str]) -> None:
        p.check_roles(roles)

    def check_made(
        self, p: TrainParams, roles: Collection[str], made: Mapping[str, tuple[str, Mapping[str, Any]]]
    ) -> None:
        stage, values = made.get("features", ("", {}))
        if stage == "features":
            from megahour.features.kept import check_kept

            check_kept(values.get("keep", "frames"), "audio" in roles, where="input features")

    def plan(self, p: TrainParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import check_sets

        if "pseudo_labels" not in inputs or p.differs("sets"):  # these may be the only labels
            check_sets([inputs["features"]], p.sets, where=self.name)
        if {"targets", "pseudo_labels"} & inputs.keys():
            check_sets([inputs["features"]], p.unlabelled_sets, where=self.name, option="unlabelled_sets")
        return [Task({"shard": 0})]

    def run(self, p: TrainParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.train.session import train

        train(p, inputs, out, ctx)

    def remedies(self, p: TrainParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        few = "one of few speakers is much: --held-out-by utterance holds out single clips of all"
        return {"held-out": few if p.held_out_by == "speaker" else f"--held-out is {p.held_out:g}"}

    def finish(self, p: TrainParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return {name: receipts[0].stats[name] for name in sorted(receipts[0].stats)}
