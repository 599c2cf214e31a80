"""Stages `lm-words` … `lm-arpa`: estimate the model of a corpus larger than one machine, by shards, on any engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from megahour.core.config import P
from megahour.core.errors import ConfigError, StageError
from megahour.core.stage import (
    Artifact,
    Batches,
    Context,
    Input,
    Inputs,
    Receipt,
    ShardWriter,
    SingleShard,
    Stage,
    Task,
)
from megahour.lm.params import (
    ArpaParams,
    EstimateParams,
    ReshardParams,
    ShardsParams,
    TallyParams,
    VocabularyParams,
    WordsParams,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.lm.scale.distributed import Cluster
    from megahour.lm.scale.distributed_counts import Counting, Estimating

ROUND_INPUTS = tuple(Input(f"round{number}", number > 1, ("round",)) for number in range(1, 7))


class CountWords(Stage[WordsParams]):
    """Writes `.arrow`: word, position of its first occurrence, count."""

    name = "lm-words"
    params = WordsParams
    inputs = (Input("text", optional=True),)
    exchange = True

    def check(self, p: WordsParams, roles: Collection[str]) -> None:
        if not p.source and not roles:
            raise ConfigError("no text", where=self.name, remedy="give the input `text` or the parameter `source`")

    def plan(self, p: WordsParams, inputs: Inputs) -> list[Task]:
        from megahour.lm.text.pieces import pieces_of

        pieces = pieces_of(p.source, inputs, p.piece_mb << 20)
        return [Task({"number": number, "piece": piece}) for number, piece in enumerate(pieces)]

    def partitions(self, p: WordsParams, inputs: Inputs) -> int:
        return p.parts

    def split(self, p: WordsParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.scale.distributed_words import split_words

        return split_words(task["piece"], task["number"], inputs, p.parts, p.skip_symbols)

    def merge(
        self, p: WordsParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.lm.scale.distributed_words import merge_words

        words, pieces = merge_words(batches)
        out.table(words, ".arrow")
        if partition == 0:
            out.stats["pieces"] = pieces
        out.kept_all(len(words))


class MakeVocabulary(Stage[VocabularyParams]):
    """Writes `.arrow`: word and count by word number. These are the unigrams, which every task reads."""

    name = "lm-vocabulary"
    params = VocabularyParams
    inputs = (Input("words"),)

    def plan(self, p: VocabularyParams, inputs: Inputs) -> list[Task]:
        return [Task({})]

    def run(self, p: VocabularyParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.scale.distributed_words import choose_words, listed_words, write_vocabulary

        words = inputs["words"]
        listed = p.vocabulary_file
        chosen = listed_words(words, listed) if listed else choose_words(words, p.vocabulary, p.min_count)
        write_vocabulary(words, chosen, out, p.order, p.shard_rows)
        if out.counts.kept == 0:
            what = f"none of the words of {listed}" if listed else "no words"
            raise StageError(f"the text has {what}", remedy="check the sources of lm-words, and the word list")


class ShardingRound(Stage[P]):
    """Distributes windows of tokens to shards by their histories. The next round splits histories left over."""

    exchange = True

    def merge(self, p: P, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.scale.distributed import merge_rows

        merge_rows(_cluster(inputs), partition, batches, out)

    def finish(self, p: P, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        left = [receipt.stats["rows"] for receipt in receipts if receipt.stats["left"]]
        return {"slots": len(receipts), "left": len(left), "left_rows": sum(left)}


class MakeShards(ShardingRound[ShardsParams]):
    """Writes `.sorted`: windows of tokens and their positions; for a history left over `.rows` and `.next.arrow`."""

    name = "lm-shards"
    version = 2
    params = ShardsParams
    inputs = (Input("words"), Input("vocabulary"), Input("text", optional=True))

    def plan(self, p: ShardsParams, inputs: Inputs) -> list[Task]:
        return CountWords().plan(params_of(inputs["words"], WordsParams), only_text(inputs))

    def partitions(self, p: ShardsParams, inputs: Inputs) -> int:
        return int(inputs["vocabulary"].receipts()[0].stats["slots"])

    def split(self, p: ShardsParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.scale.distributed import split_rows

        skip_symbols = params_of(inputs["words"], WordsParams).skip_symbols
        return split_rows(_cluster(inputs), task["piece"], task["number"], inputs, skip_symbols)


class Reshard(ShardingRound[ReshardParams]):
    """Writes the same files as `lm-shards`, for the histories that the last given round left over."""

    name = "lm-reshard"
    version = 2
    params = ReshardParams
    inputs = (Input("vocabulary"), *ROUND_INPUTS)

    def plan(self, p: ReshardParams, inputs: Inputs) -> list[Task]:
        return [
            Task({"slot": receipt.shard, "begin": begin, "rows": min(p.rows_per_task, receipt.stats["rows"] - begin)})
            for receipt in _last_round(inputs).receipts()
            if receipt.stats["left"]
            for begin in range(0, receipt.stats["rows"], p.rows_per_task)
        ]

    def partitions(self, p: ReshardParams, inputs: Inputs) -> int:
        return int(sum(receipt.stats["children"] for receipt in _last_round(inputs).receipts()))

    def split(self, p: ReshardParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.scale.distributed import split_left

        return split_left(_cluster(inputs), task["slot"], task["begin"], task["rows"])


class TallyShards(Stage[TallyParams]):
    """Writes tallies, n-grams of shared histories, and sums over words and contexts."""

    name = "lm-tally"
    version = 3
    params = TallyParams
    inputs = (Input("vocabulary"), *ROUND_INPUTS)
    exchange = True

    def plan(self, p: TallyParams, inputs: Inputs) -> list[Task]:
        return [Task({"shard": number}) for number in range(len(_cluster(inputs).tree.shards))]

    def partitions(self, p: TallyParams, inputs: Inputs) -> int:
        return _counting(inputs, p).parts.total

    def split(self, p: TallyParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        return _counting(inputs, p).split(task["shard"])

    def merge(
        self, p: TallyParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        _counting(inputs, p).merge(partition, batches, out)

    def finish(self, p: TallyParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        shared = sum(receipt.stats.get("shared_ngrams", 0) for receipt in receipts)
        return {**_cluster(inputs).tree.report().stats(), "shared_ngrams": shared}


class EstimateLines(Stage[EstimateParams]):
    """Writes `.1.txt`, `.2.txt`, …: lines of an ARPA file by order."""

    name = "lm-estimate"
    params = EstimateParams
    inputs = (Input("tally"), Input("vocabulary"), *ROUND_INPUTS)

    def plan(self, p: EstimateParams, inputs: Inputs) -> list[Task]:
        tree = _cluster(inputs).tree
        targets = [target if target >= 0 else len(tree.shards) + ~target for target in tree.printed()]
        return [Task({"target": target}) for target in [-1, *targets]]

    def run(self, p: EstimateParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        estimating = _estimating(inputs)
        if task["target"] < 0:
            estimating.write_unigrams(out)
        else:
            estimating.write_target(task["target"], out)


class JoinArpa(SingleShard[ArpaParams]):
    """Writes `.arpa` and `.vocab.txt`, as the stage `language-model` does."""

    name = "lm-arpa"
    version = 2
    params = ArpaParams
    inputs = (Input("lines"), Input("tally"), Input("vocabulary"), *ROUND_INPUTS)

    def run(self, p: ArpaParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        _estimating(inputs).write_arpa(inputs["lines"], out)


def params_of(artifact: Artifact, model: type[P]) -> P:
    """The parameters of the stage that wrote an artifact."""
    given = artifact.manifest.params
    return model.model_validate({name: given[name] for name in model.model_fields if name in given})


def only_text(inputs: Inputs) -> Inputs:
    """The input `text`, where it is given."""
    return {role: inputs[role] for role in inputs if role == "text"}


def _last_round(inputs: Inputs) -> Any:
    return inputs[max(role for role in inputs if role.startswith("round"))]


def _cluster(inputs: Inputs) -> Cluster:
    from megahour.lm.scale.held import cluster_of

    return cluster_of(inputs)


def _counting(inputs: Inputs, p: TallyParams) -> Counting:
    from megahour.lm.scale.held import counting_of

    return counting_of(inputs, p)


def _estimating(inputs: Inputs) -> Estimating:
    from megahour.lm.scale.held import estimating_of

    return estimating_of(inputs, params_of(inputs["tally"], TallyParams))
