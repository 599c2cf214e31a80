"""`Stage`: a typed function of shards that knows nothing about engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from megahour.core.config import P
from megahour.core.receipts import Receipt as Receipt

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.core.store import Artifact as Artifact
    from megahour.core.writer import ShardWriter as ShardWriter
else:
    Artifact = ShardWriter = Any  # for annotations: their modules load pyarrow, for which `--help` need not wait


@dataclass(frozen=True)
class Input:
    """An input role of a stage, such as ``recordings``, and the kinds of artifacts that it accepts.

    Without `kinds`, a role named like a kind (see `core.kinds`) accepts that kind, any other role accepts anything.
    """

    role: str
    optional: bool = False
    kinds: tuple[str, ...] = ()

    @staticmethod
    def if_given(*roles: str, kinds: tuple[str, ...] = ()) -> tuple[Input, ...]:
        """An optional input for each of `roles`."""
        return tuple(Input(role, True, kinds) for role in roles)


@dataclass(frozen=True)
class Task:
    """The work for one output shard: JSON values that select the inputs to read."""

    spec: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.spec[name]


@dataclass(frozen=True)
class LaidOut:
    """An artifact that all tasks of a stage share: the stage that makes it, and its inputs by role."""

    stage: Stage[Any]
    params: Any
    roles: Mapping[str, str]  # role of `stage` → role of the tasks that share it


Inputs = Mapping[str, "Artifact"]
Batches = Iterator["pa.RecordBatch"]


@dataclass
class Context:
    """What a task may use besides its inputs. Nothing in it may change the bytes that the task writes.

    `service`: (address, token) of the model service. `work`: a scratch directory that survives a kill. `durable`: path
    or URL of a scratch directory that survives the machine, as the output does (empty: `work`). `model`: the model
    learnt in the stage's rounds. `threads`: how many a `local` stage may use. `progress(done, total, unit, **fields)`
    reports progress within a long task.
    """

    work: Path
    threads: int = 1
    service: Any = None
    durable: str = ""
    model: bytes = b""
    progress: Callable[..., None] = field(default=lambda *args, **fields: None)


class Stage(Generic[P]):
    """Base of all stages. Subclasses are stateless; `name`, `params` and `inputs` are their public interface."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    params: type[P]
    inputs: ClassVar[tuple[Input, ...]] = ()
    exchange: ClassVar[bool] = False
    local: ClassVar[bool] = False
    rounds: ClassVar[bool] = False

    def check(self, p: P, roles: Collection[str]) -> None:
        """Check that the parameters and the given roles fit together; called for all steps before a recipe starts.

        Checks that read files belong into `plan`. Raises ConfigError.
        """

    def check_made(self, p: P, roles: Collection[str], made: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
        """Check how inputs were made, or will be by steps of the recipe. Called where `check` is. Raises ConfigError.

        made: (stage, its parameters, without some that have their default) by role, of those inputs that are known.
        """

    def layouts(self, p: P, inputs: Inputs) -> Mapping[str, LaidOut]:
        """Extra inputs by role, in order, derived from all shards of an input and shared by all tasks.

        They are made once, in the output's scratch folder: if each task read all shards, the stage's work would be
        quadratic. `plan`, `partitions`, `run`, `split` and `merge` receive them; `check` and `finish` do not.
        """
        return {}

    def plan(self, p: P, inputs: Inputs) -> list[Task]:
        """Tasks in order; by default one per shard of the first input."""
        first = inputs[self.inputs[0].role]
        return [Task({"shard": receipt.shard}) for receipt in first.each_receipt()]

    def run(self, p: P, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        """Make one output shard: the same bytes for the same arguments, wherever it runs."""
        raise TypeError(f"stage {self.name} has no run(): it is an exchange stage")

    def finish(self, p: P, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """Reduce the receipts to the manifest's summary."""
        return {}

    def remedies(self, p: P, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        """Advice on which option keeps more records, by drop reason or its prefix; for messages.

        A stage with any remedies fails if it keeps none of its records.
        """
        return {}

    def accelerator(self, p: P, inputs: Inputs) -> Any:
        """The model that tasks call through the model service, as a `serve.spec.ModelSpec`, or None."""
        return None

    def opening(self, p: P, inputs: Inputs) -> bytes:
        """Stages with rounds: the model before the first round. `run` gets the last one as `ctx.model`."""
        raise TypeError(f"stage {self.name} has no rounds")

    def measure(self, p: P, inputs: Inputs, task: Task, ctx: Context) -> bytes:
        """Stages with rounds: the statistics of one task under `ctx.model`."""
        raise TypeError(f"stage {self.name} has no rounds")

    def add(self, left: bytes, right: bytes) -> bytes:
        """Stages with rounds: the sum of two statistics. It must be exact, since tasks are added in any order."""
        raise TypeError(f"stage {self.name} has no rounds")

    def learn(self, p: P, inputs: Inputs, statistics: bytes, ctx: Context) -> bytes:
        """Stages with rounds: the model after `ctx.model`, from the statistics of all tasks."""
        raise TypeError(f"stage {self.name} has no rounds")

    def rounds_left(self, p: P, model: bytes) -> int:
        """Stages with rounds: how many rounds are left before `run`."""
        raise TypeError(f"stage {self.name} has no rounds")

    def partitions(self, p: P, inputs: Inputs) -> int:
        """Exchange stages: the number of output shards."""
        raise TypeError(f"stage {self.name} is not an exchange stage")

    def split(self, p: P, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Exchange stages: (partition, bounded batch) pairs of one task."""
        raise TypeError(f"stage {self.name} is not an exchange stage")

    def merge(self, p: P, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context) -> None:
        """Exchange stages: one output shard from its batches, in order of (task, position)."""
        raise TypeError(f"stage {self.name} is not an exchange stage")


class SingleShard(Stage[P]):
    """A stage with one task, whose statistics become the summary."""

    def plan(self, p: P, inputs: Inputs) -> list[Task]:
        return [Task({})]

    def finish(self, p: P, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return dict(receipts[0].stats)
