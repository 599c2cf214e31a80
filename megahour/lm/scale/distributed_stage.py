"""Stages `lm-words` … `lm-reshard`: a corpus that no machine holds, numbered and sharded, on any engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from megahour.core.config import Params
from megahour.core.errors import StageError
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter

ROUND_INPUTS = tuple(Input(f"round{number}", optional=number > 1) for number in range(1, 7))


class WordsParams(Params):
    """Words of a text and their counts, by hash: the first step of a language model on a cluster."""

    source: list[str] = Field([], description="text files, URLs or globs, one sentence a line; `FILE.parquet:COLUMN`")
    skip_symbols: bool = Field(False, description="leave <s>, </s> and <unk> in the text out instead of refusing them")
    piece_mb: int = Field(64, ge=1, description="megabytes of a plain file that one task reads")
    parts: int = Field(4, ge=1, description="partitions of the words")

    def identity(self) -> dict[str, Any]:
        """With a digest of the files, so that changed text is counted again."""
        from megahour.lm.text.sources import sources_digest

        return {**super().identity(), "source_sha256": sources_digest(self.source)}


class Words(Stage[WordsParams]):
    """Writes `.arrow`: word, its first place, count."""

    name = "lm-words"
    params = WordsParams
    inputs = (Input("text", optional=True),)
    exchange = True

    def plan(self, p: WordsParams, inputs: Inputs) -> list[Task]:
        from megahour.lm.text.pieces import pieces_of

        pieces = pieces_of(p.source, inputs, p.piece_mb << 20)
        return [Task({"number": number, "piece": piece}) for number, piece in enumerate(pieces)]

    def partitions(self, p: WordsParams, inputs: Inputs) -> int:
        return p.parts

    def split(self, p: WordsParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.scale.distributed import split_words

        return split_words(task["piece"], task["number"], inputs, p.parts, p.skip_symbols)

    def merge(
        self, p: WordsParams, inputs: Inputs, partition: int, batches: Iterator[pa.RecordBatch], out: ShardWriter,
        ctx: Context,
    ) -> None:  # fmt: skip
        from megahour.lm.scale.distributed import merge_words

        words, pieces = merge_words(batches)
        out.table(words, ".arrow")
        if partition == 0:
            out.stats["pieces"] = pieces
        out.came_in(len(words))
        out.kept(len(words))


class VocabularyParams(Params):
    """The numbered vocabulary of `lm-words`, and how its language model is sharded."""

    order: int = Field(3, ge=2, le=7, description="longest n-gram")
    vocabulary: int = Field(0, ge=0, description="keep so many most frequent words, others are <unk>; 0: all")
    min_count: int = Field(1, ge=1, description="keep words seen at least so often, others are <unk>")
    vocabulary_file: str = Field("", description="keep the words of this list only, others are <unk>")
    shard_rows: int = Field(
        1 << 20, ge=1, description="positions of a shard, which take about 400 bytes each at order 5"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.vocabulary_file and (self.vocabulary or self.min_count > 1):
            raise ValueError("vocabulary_file lists the words to keep; leave vocabulary and min_count out")
        return self

    def identity(self) -> dict[str, Any]:
        """With a digest of the list, if there is one."""
        from megahour.lm.text.sources import sources_digest

        listed = {"vocabulary_sha256": sources_digest([self.vocabulary_file])} if self.vocabulary_file else {}
        return {**super().identity(), **listed}


class MakeVocabulary(Stage[VocabularyParams]):
    """Writes `.arrow`: word and count by number: the unigrams, which every task reads."""

    name = "lm-vocabulary"
    params = VocabularyParams
    inputs = (Input("words"),)

    def plan(self, p: VocabularyParams, inputs: Inputs) -> list[Task]:
        return [Task({})]

    def run(self, p: VocabularyParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.scale.cluster_vocabulary import choose_words, listed_words, write_vocabulary

        words = inputs["words"]
        if p.vocabulary_file:
            chosen = listed_words(words, p.vocabulary_file)
        else:
            chosen = choose_words(words, p.vocabulary, p.min_count)
        write_vocabulary(words, chosen, out, p.order, p.shard_rows)
        if out.counts.kept == 0:
            what = f"none of the words of {p.vocabulary_file}" if p.vocabulary_file else "no words"
            raise StageError(f"the text has {what}", remedy="check the sources of lm-words, and the word list")


class ShardsParams(Params):
    """Positions of a text by the last word of their history: round 1 of progressive sharding."""


class MakeShards(Stage[ShardsParams]):
    """Writes `.rows`: windows of tokens with their positions; `.next.arrow` of a history that is left over."""

    name = "lm-shards"
    params = ShardsParams
    inputs = (Input("words"), Input("vocabulary"), Input("text", optional=True))
    exchange = True

    def plan(self, p: ShardsParams, inputs: Inputs) -> list[Task]:
        words = _words_params(inputs)
        return Words().plan(words, {role: inputs[role] for role in inputs if role == "text"})

    def partitions(self, p: ShardsParams, inputs: Inputs) -> int:
        return int(inputs["vocabulary"].receipts()[0].stats["slots"])

    def split(self, p: ShardsParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.scale.distributed import Cluster, split_rows

        return split_rows(Cluster(inputs), task["piece"], task["number"], _words_params(inputs).skip_symbols)

    def merge(
        self, p: ShardsParams, inputs: Inputs, partition: int, batches: Iterator[pa.RecordBatch], out: ShardWriter,
        ctx: Context,
    ) -> None:  # fmt: skip
        from megahour.lm.scale.distributed import Cluster, merge_rows

        merge_rows(Cluster(inputs), partition, batches, out)

    def finish(self, p: ShardsParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return _round_summary(receipts)


class ReshardParams(Params):
    """Histories that are too large for a shard, parted by one more word: a later round of progressive sharding."""

    rows_per_task: int = Field(1 << 22, ge=1, description="positions that one task moves")


class Reshard(Stage[ReshardParams]):
    """Writes what `lm-shards` does, for what the last of the given rounds left over."""

    name = "lm-reshard"
    params = ReshardParams
    inputs = (Input("vocabulary"), *ROUND_INPUTS)
    exchange = True

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
        from megahour.lm.scale.distributed import Cluster, split_left

        return split_left(Cluster(inputs), task["slot"], task["begin"], task["rows"])

    def merge(
        self, p: ReshardParams, inputs: Inputs, partition: int, batches: Iterator[pa.RecordBatch], out: ShardWriter,
        ctx: Context,
    ) -> None:  # fmt: skip
        from megahour.lm.scale.distributed import Cluster, merge_rows

        merge_rows(Cluster(inputs), partition, batches, out)

    def finish(self, p: ReshardParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return _round_summary(receipts)


def _words_params(inputs: Inputs) -> WordsParams:
    given = inputs["words"].manifest.params
    return WordsParams.model_validate({name: given[name] for name in WordsParams.model_fields if name in given})


def _last_round(inputs: Inputs) -> Any:
    return inputs[max(role for role in inputs if role.startswith("round"))]


def _round_summary(receipts: list[Receipt]) -> dict[str, Any]:
    left = [receipt.stats["rows"] for receipt in receipts if receipt.stats["left"]]
    return {"slots": len(receipts), "left": len(left), "left_rows": sum(left)}
