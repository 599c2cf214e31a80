"""Stages `lm-union` … `lm-join`, which interpolate models by partitions, on any engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from megahour.core.config import P
from megahour.core.errors import ConfigError
from megahour.core.stage import Batches, Context, Input, Inputs, Receipt, ShardWriter, SingleShard, Stage, Task
from megahour.lm.sharded.params import JoinParams, MixParams, RangesParams, UnionParams, WeightsParams

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.lm.sharded.ranges import Ranges
    from megahour.lm.sharded.union import Union

MODELS = tuple(Input(f"lm{number}", True, ("lines", "lm")) for number in range(1, 9))


class MakeUnion(SingleShard[UnionParams]):
    """Writes `.arrow`, the words; `.values.npy`, their values in each model; `.pieces.json`, the pieces of models."""

    name = "lm-union"
    version = 2
    params = UnionParams
    inputs = MODELS

    def check(self, p: UnionParams, roles: Collection[str]) -> None:
        if not p.files and not roles:
            raise ConfigError(
                "no models", where=self.name, remedy="give the inputs lm1, lm2, … or the parameter `files`"
            )

    def run(self, p: UnionParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.sharded.models import model_names
        from megahour.lm.sharded.union import write_union

        write_union(model_names(p.files, list(inputs)), inputs, p.piece_mb << 20, out)


class OfModels(Stage[P]):
    """A stage whose tasks read pieces of the models of its input `union`."""

    exchange = True

    def plan(self, p: P, inputs: Inputs) -> list[Task]:
        return [Task(piece) for piece in union_of(inputs).pieces if piece["order"] != 1]


class CutRanges(OfModels[RangesParams]):
    """Writes `.npy`: the bounds of partitions, by suffix (shard 0) and by prefix (1); shard 2: sizes of the models."""

    name = "lm-ranges"
    params = RangesParams
    inputs = (Input("union"), *MODELS)

    def partitions(self, p: RangesParams, inputs: Inputs) -> int:
        return 3

    def split(self, p: RangesParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.sharded.mix import sample_rows

        return sample_rows(union_of(inputs), task.spec, inputs, p.shard_rows)

    def merge(
        self, p: RangesParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.lm.sharded.ranges import write_ranges
        from megahour.lm.sharded.union import write_sizes

        order = union_of(inputs).order
        if partition == 2:
            write_sizes(union_of(inputs), batches, out)
            return
        write_ranges(batches, max(1, order - 1) if partition == 0 else order, p.shard_rows, out)

    def finish(self, p: RangesParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        by_suffix, by_prefix, sizes = (receipt.stats for receipt in receipts)
        return {"by_suffix": by_suffix["partitions"], "by_prefix": by_prefix["partitions"], "ngrams": sizes["ngrams"]}


class TuneWeights(Stage[WeightsParams]):
    """The summary has the weights, and perplexities of the held-out text."""

    name = "lm-weights"
    version = 2
    params = WeightsParams
    inputs = (Input("gathered"), Input("union"), Input("ranges"), Input("text", optional=True))
    exchange = True

    def check(self, p: WeightsParams, roles: Collection[str]) -> None:
        if not p.heldout and "text" not in roles:
            raise ConfigError("no held-out text", where=self.name, remedy="give `heldout`, or the input `text`")

    def partitions(self, p: WeightsParams, inputs: Inputs) -> int:
        return 1

    def split(self, p: WeightsParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.combine.walk import encode_sentences, sentences
        from megahour.lm.sharded.mix import heldout_batches
        from megahour.lm.sharded.rows import read_rows
        from megahour.units.texts import input_lines

        union, shard = union_of(inputs), task["shard"]
        given = input_lines({role: inputs[role] for role in inputs if role == "text"})
        tokens = encode_sentences(list(sentences(p.heldout, given)), union.vocabulary())
        rows = read_rows(inputs["gathered"], shard, union.order)
        return heldout_batches(union, ranges_of(inputs, 0), shard, rows, tokens, unknown_of(inputs))

    def merge(
        self, p: WeightsParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.lm.combine.mixture import fit
        from megahour.lm.sharded.mix import joined

        union = union_of(inputs)
        probs = joined(batches, len(union.models))
        fitted = asdict(fit(probs, p.weights or None))
        out.json(fitted)
        out.stats.update(fitted, models=union.models)
        out.kept_all(probs.shape[1])

    def finish(self, p: WeightsParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return dict(receipts[0].stats)


class WritesLines(Stage[P]):
    """A stage that writes `.1.txt`, `.2.txt`, …: lines of an ARPA file by order, shards in the order of the file."""

    exchange = True

    def partitions(self, p: P, inputs: Inputs) -> int:
        return len(ranges_of(inputs, 1))

    def highest(self, p: P, inputs: Inputs) -> int:
        """The order of the new model."""
        raise NotImplementedError

    def merge(self, p: P, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.sharded.lines import write_lines

        write_lines(union_of(inputs), self.highest(p, inputs), batches, out)

    def finish(self, p: P, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return {"ngrams": [sum(sizes) for sizes in zip(*(receipt.stats["sizes"] for receipt in receipts), strict=True)]}


class Mix(WritesLines[MixParams]):
    """Writes `.1.txt`, `.2.txt`, …: lines of an ARPA file, whose shards follow each other in it."""

    name = "lm-mix"
    params = MixParams
    inputs = (Input("gathered"), Input("union"), Input("ranges"), Input("tuned", optional=True, kinds=("weights",)))

    def check(self, p: MixParams, roles: Collection[str]) -> None:
        if not p.weights and "tuned" not in roles:
            raise ConfigError("no weights", where=self.name, remedy="give `weights`, or the input `tuned`")

    def split(self, p: MixParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.sharded.mix import mixed
        from megahour.lm.sharded.rows import read_rows

        union, shard = union_of(inputs), task["shard"]
        rows = read_rows(inputs["gathered"], shard, union.order)
        ranges = ranges_of(inputs, 0), ranges_of(inputs, 1)
        return mixed(union, *ranges, shard, rows, _weights(p, inputs), unknown_of(inputs))

    def highest(self, p: MixParams, inputs: Inputs) -> int:
        pairs = zip(union_of(inputs).orders, _weights(p, inputs), strict=True)
        return max(order for order, weight in pairs if weight > 0)


class JoinLines(SingleShard[JoinParams]):
    """Writes `.arpa` and `.vocab.txt`, as the stage `language-model` does."""

    name = "lm-join"
    params = JoinParams
    inputs = (Input("lines"), Input("union"))

    def run(self, p: JoinParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.sharded.lines import join_lines

        join_lines(inputs["lines"], union_of(inputs), out)


def _weights(p: MixParams, inputs: Inputs) -> list[float]:
    from megahour.lm.combine.mixture import check_weights

    given = p.weights or inputs["tuned"].receipt_of(0).stats["weights"]
    check_weights(given, len(union_of(inputs).models))
    return list(given)


def union_of(inputs: Inputs) -> Union:
    """The words of the models."""
    from megahour.lm.sharded.union import Union

    return Union(inputs["union"])


def ranges_of(inputs: Inputs, shard: int) -> Ranges:
    """Partitions by suffix (0) or by prefix (1)."""
    from megahour.lm.sharded.ranges import read_ranges

    return read_ranges(inputs["ranges"], shard)


def unknown_of(inputs: Inputs) -> Any:
    """`unknown` of the stage `lm-union`."""
    return inputs["union"].manifest.params["unknown"]
