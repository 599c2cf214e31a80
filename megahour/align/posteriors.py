"""Computes CTC posteriors of long recordings window by window through the model service, as 8-bit costs in memory.

A recording is one row of frames, computed in blocks without seams; a causal mean runs over all of it, as over a
speaker's utterances in training. Windows overlap by a margin on each side, which gives the model context and whose
outputs are discarded. All windows of a recording have the same length, the last one starting earlier if necessary; only
a recording shorter than a window has its own length. So batches are full and nothing is padded.

A window's key is (recording, window): number of the recording in this task, and of the window in the recording.

`.posteriors.arrow` keeps them, so that `align` need not run the model again: an Arrow file with one record batch per
recording, in the order of keys, and one row per piece: ``key``, ``piece``, ``frames``, ``costs`` (T, V) uint8 in 1/16
nat, and ``level``, the mean log-mel energy of the piece's 10 ms frames, float16. The schema's metadata name the
aligner: ``aligner`` (digest), ``units`` V, ``frame_shift_samples`` and ``rate_hz``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.features.frontend import FrontEnd, Source, blocks_of, misfit
from megahour.serve.client import Session

SILENCE = 255  # cost of every token but the blank in frames missing from the model's output at the end
IN_FLIGHT = 6  # most batches of a task in the service
Window = tuple[int, NDArray[np.float32]]


@dataclass
class Heard:
    """A recording's posteriors (T, V) uint8, and level (T10,), the mean log-mel energy at 10 ms.

    failed: why inference failed, or "".
    """

    posteriors: NDArray[np.uint8]
    level: NDArray[np.float32]
    failed: str = ""


@dataclass
class _Plan:
    """A recording in progress."""

    frames: int
    levels: list[NDArray[np.float16]] = field(default_factory=list)
    windows: list[tuple[int, int, int]] = field(default_factory=list)  # first frame, frames that count: from, to
    posteriors: NDArray[np.uint8] | None = None
    missing: int = 0
    failed: str = ""


def listen(sources: Iterable[Source], front: FrontEnd, session: Session, burst: int = 1) -> Iterator[Heard]:
    """Posteriors of each source, in order. Reads ahead no further than a few batches.

    session: of a model whose output is `costs`. burst: windows sent together, ideally a batch, so that the service need
    not choose between waiting and a partial batch.

    Raises
    ------
    ConfigError: the model's outputs do not fit its token list or its frame shift.
    """
    plans: dict[int, _Plan] = {}  # recordings not yielded yet, by number

    def windows() -> Iterator[Window]:
        for number, source in enumerate(sources):
            plan = plans[number] = _Plan(front.outputs(source.samples, source.rate_hz))
            for i, features in enumerate(_windows(source, front, plan)):
                yield number << 32 | i, features

    def fail(key: int, reason: str) -> None:
        plans[key >> 32].failed = reason

    done = 0
    in_flight = IN_FLIGHT * burst * front.sequence_frames
    sequences = in_bursts(windows(), burst)
    for key, outputs in session.infer(sequences, ordered=True, window_frames=in_flight, on_failure=fail):
        number, window = key >> 32, key & 0xFFFFFFFF
        while done < number:
            yield _heard(plans.pop(done), front)
            done += 1
        _place(plans[number], window, outputs["costs"], front)
    for number in sorted(plans):
        yield _heard(plans.pop(number), front)


def in_bursts(windows: Iterable[Window], size: int) -> Iterator[Window]:
    """The same windows, computed in groups of `size` before the first of a group is yielded."""
    waiting = iter(windows)
    while burst := list(islice(waiting, size)):
        yield from burst


def _place(plan: _Plan, window: int, costs: NDArray[Any], front: FrontEnd) -> None:
    """Copy the frames that count into the recording's row."""
    left, first, last = plan.windows[window]
    if costs.shape[1] != front.units:
        raise misfit(costs.shape[1], front.units)
    if plan.posteriors is None:
        plan.posteriors = np.full((plan.frames, front.units), SILENCE, np.uint8)
        plan.posteriors[:, 0] = 0
    counted = costs[first:last]
    plan.missing += last - first - len(counted)
    # Unpadded convolutions give a frame or two less than their input has, which does not matter in the margin.
    if len(counted) < last - first and (left + last < plan.frames or plan.missing > max(3, front.margin)):
        raise ConfigError(
            f"the model gives {len(costs)} frames for a window, but {last} are expected",
            remedy="check the model's frame_shift_samples, or raise margin_s",
        )
    plan.posteriors[left + first : left + first + len(counted)] = counted


def _heard(plan: _Plan, front: FrontEnd) -> Heard:
    level = np.concatenate(plan.levels).astype(np.float32) if plan.levels else np.zeros(0, np.float32)
    if plan.posteriors is None or plan.failed:
        return Heard(np.zeros((0, front.units), np.uint8), level, plan.failed)
    return Heard(plan.posteriors, level)


def _windows(source: Source, front: FrontEnd, plan: _Plan) -> Iterator[NDArray[np.float32]]:
    """The model's inputs; appends to the plan's `windows` and `levels`. A window stands for an utterance whose own mean
    the model subtracts."""
    size, stream = front.rows, front.rows_of(blocks_of(source, front.rate_hz), plan.levels)
    waiting = next(stream, np.zeros((0, 1), np.float32))  # rows from output frame `held_from`
    held_from = 0
    for left, first, last in spans(plan.frames, front.window, front.margin):
        right = left + min(front.window, plan.frames)
        parts = [waiting[(left - held_from) * size :]]
        rows = len(parts[0])
        while rows < (right - left) * size:
            # Resampling may give a sample less than the ratio of the rates implies: repeat the last row.
            parts.append(next(stream, np.repeat(parts[-1][-1:], (right - left) * size - rows, axis=0)))
            rows += len(parts[-1])
        waiting, held_from = np.concatenate(parts), left
        plan.windows.append((left, first, last))
        yield front.shape(front.less_own_mean(waiting[: (right - left) * size]))
    for _ in stream:  # for the energy of a last partial output frame
        pass


def spans(frames: int, window: int, margin: int) -> Iterator[tuple[int, int, int]]:
    """(first frame, range of its frames that count: from, to) of each window of a recording of `frames`."""
    begin = 0
    while begin < frames:
        left = min(max(0, begin - margin), max(0, frames - window))
        right = min(frames, left + window)
        end = frames if right == frames else right - margin
        yield left, begin - left, end - left
        begin = end


SUFFIX = ".posteriors.arrow"
PIECE_FRAMES = 4096
COLUMNS = [
    ("key", pa.int64()),
    ("piece", pa.int32()),
    ("frames", pa.int32()),
    ("costs", pa.large_list(pa.uint8())),
    ("level", pa.large_list(pa.float16())),
]


class PosteriorWriter:
    """Appends recordings to a binary file; close it with `close`."""

    def __init__(self, path: Path, front: FrontEnd, aligner_digest: str) -> None:
        self._schema = pa.schema(COLUMNS).with_metadata(_labels(front, aligner_digest))
        self._writer = pa.ipc.new_file(path, self._schema)

    def add(self, key: int, heard: Heard) -> None:
        """Append a recording."""
        frames = len(heard.posteriors)
        edges = np.append(np.arange(0, max(frames, 1), PIECE_FRAMES), frames)
        level_edges = np.rint(edges * (len(heard.level) / max(frames, 1))).astype(np.int64)
        pieces = len(edges) - 1
        columns = [
            np.full(pieces, key, np.int64),
            np.arange(pieces, dtype=np.int32),
            np.diff(edges).astype(np.int32),
            pa.LargeListArray.from_arrays(edges * heard.posteriors.shape[1], heard.posteriors.reshape(-1)),
            pa.LargeListArray.from_arrays(level_edges, heard.level.astype(np.float16)),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.close()


@contextmanager
def open_posteriors(
    artifact: Artifact, shard: int, front: FrontEnd, aligner_digest: str
) -> Iterator[Callable[[int], Heard | None]]:
    """A reader of one shard of an *alignment*: a recording's posteriors by key; None if the model has not run on it.

    Raises
    ------
    ConfigError: the alignment has none, or they are another aligner's.
    """
    receipt = artifact.receipt(shard)
    if receipt is None or SUFFIX not in receipt.files:
        raise ConfigError(
            f"shard {shard} has no {SUFFIX}", where=artifact.url, remedy="make it with write_posteriors: true"
        )
    with artifact.local(shard, SUFFIX) as path, pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        metadata = file.schema.metadata or {}
        for name, value in _labels(front, aligner_digest).items():
            if metadata.get(name) != value:
                stored = metadata.get(name, b"nothing").decode()
                raise ConfigError(
                    f"{name.decode()} is {stored} for the posteriors, but {value.decode()} for the aligner",
                    where=artifact.url,
                    remedy="use the aligner that made them, or run it again (leave out `posteriors`)",
                )
        batches = (file.get_batch(i) for i in range(file.num_record_batches))
        place = {batch.column(0)[0].as_py(): i for i, batch in enumerate(batches) if len(batch)}

        def read(key: int) -> Heard | None:
            if key not in place:
                return None
            batch = file.get_batch(place[key])
            costs: NDArray[np.uint8] = batch.column(3).flatten().to_numpy()
            level: NDArray[np.float16] = batch.column(4).flatten().to_numpy()
            return Heard(costs.reshape(-1, front.units), level.astype(np.float32))

        yield read


def _labels(front: FrontEnd, aligner_digest: str) -> dict[bytes, bytes]:
    labels = {
        "aligner": aligner_digest,
        "units": front.units,
        "frame_shift_samples": round(front.shift_s * front.rate_hz),
        "rate_hz": front.rate_hz,
    }
    return {name.encode(): str(value).encode() for name, value in labels.items()}
