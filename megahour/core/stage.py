"""Stage: a typed function of shards that knows nothing of engines (DESIGN, idea 2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from megahour.core.config import P

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.core.receipts import Receipt
    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter


@dataclass(frozen=True)
class Input:
    """A role that an artifact plays for a stage, such as ``recordings``, and the kinds of artifacts that can.

    Without `kinds` a role takes what it is called, where that is a kind (see `core.kinds`), and anything otherwise.
    """

    role: str
    optional: bool = False
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """One output shard's worth of work: JSON values that say which inputs it reads."""

    spec: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.spec[name]


@dataclass(frozen=True)
class LaidOut:
    """An artifact that all tasks of a stage share: what makes it, and which of their inputs have which role there."""

    stage: Stage[Any]
    params: Any
    roles: Mapping[str, str]  # role of `stage` → role of the tasks that share it


Inputs = Mapping[str, "Artifact"]
Batches = Iterator["pa.RecordBatch"]


@dataclass
class Context:
    """What a task may use besides its inputs. Nothing in it may change the bytes it writes.

    `service` is (address, token) of the accelerator service; `work` a scratch directory that survives a kill; `durable`
    a path or URL of one that survives the machine where the output does (empty: `work`);
    `model` what the rounds of a stage have learnt; `threads` how many a `local` stage may use;
    `progress(done, total, unit, **fields)` reports inside a long task.
    """

    work: Path
    threads: int = 1
    service: Any = None
    durable: str = ""
    model: bytes = b""
    progress: Callable[..., None] = field(default=lambda *args, **fields: None)


class Stage(Generic[P]):
    """Base of all stages. Subclasses are stateless; `name`, `params` and `inputs` are their public face."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    params: type[P]
    inputs: ClassVar[tuple[Input, ...]] = ()
    exchange: ClassVar[bool] = False
    local: ClassVar[bool] = False
    rounds: ClassVar[bool] = False

    def check(self, p: P, roles: Collection[str]) -> None:
        """Whether the parameters and the roles that are given go together; for all steps before a recipe starts.

        What only files can tell is for `plan`. Raises ConfigError.
        """

    def layouts(self, p: P, inputs: Inputs) -> Mapping[str, LaidOut]:
        """What tasks need of all shards of an input, by the role in which they get it beside the inputs, in order.

        It is made once, in the output's scratch folder: tasks that each read all shards would make the stage's work
        quadratic. `plan`, `partitions`, `run`, `split` and `merge` get it; `check` and `finish` do not.
        """
        return {}

    def plan(self, p: P, inputs: Inputs) -> list[Task]:
        """Tasks in order; one per shard of the first input unless a stage says otherwise."""
        first = inputs[self.inputs[0].role]
        return [Task({"shard": receipt.shard}) for receipt in first.each_receipt()]

    def run(self, p: P, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        """Make one output shard; the same bytes for the same arguments, wherever it runs."""
        raise TypeError(f"stage {self.name} has no run(): it is an exchange stage")

    def finish(self, p: P, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """A small reduction over the receipts; it becomes the manifest's summary."""
        return {}

    def remedies(self, p: P, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        """Which option lets left out records in, by the reason or the beginning of one; for people.

        A stage that has any fails when it keeps nothing of what came in.
        """
        return {}

    def accelerator(self, p: P, inputs: Inputs) -> Any:
        """The model that tasks call through the accelerator service, as an `serve` spec, or None."""
        return None

    def opening(self, p: P, inputs: Inputs) -> bytes:
        """Stages of rounds: the model before the first round over all tasks. `run` sees the last as `ctx.model`."""
        raise TypeError(f"stage {self.name} has no rounds")

    def measure(self, p: P, inputs: Inputs, task: Task, ctx: Context) -> bytes:
        """Stages of rounds: the statistics of one task under `ctx.model`."""
        raise TypeError(f"stage {self.name} has no rounds")

    def add(self, left: bytes, right: bytes) -> bytes:
        """Stages of rounds: the statistics of two lots of tasks. Exact: tasks are added in any order."""
        raise TypeError(f"stage {self.name} has no rounds")

    def learn(self, p: P, inputs: Inputs, statistics: bytes, ctx: Context) -> bytes:
        """Stages of rounds: the model after `ctx.model`, from the statistics of all tasks."""
        raise TypeError(f"stage {self.name} has no rounds")

    def rounds_left(self, p: P, model: bytes) -> int:
        """Stages of rounds: how many rounds come before `run`."""
        raise TypeError(f"stage {self.name} has no rounds")

    def partitions(self, p: P, inputs: Inputs) -> int:
        """Output shards of an exchange stage."""
        raise TypeError(f"stage {self.name} is not an exchange stage")

    def split(self, p: P, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Exchange stages: (partition, bounded batch) pairs of one task."""
        raise TypeError(f"stage {self.name} is not an exchange stage")

    def merge(self, p: P, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context) -> None:
        """Exchange stages: one output shard from its batches, in order of (task, position)."""
        raise TypeError(f"stage {self.name} is not an exchange stage")


class SingleShard(Stage[P]):
    """A stage with one task, whose statistics are the summary."""

    def plan(self, p: P, inputs: Inputs) -> list[Task]:
        return [Task({})]

    def finish(self, p: P, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return dict(receipts[0].stats)
