"""Stores posteriors on disk, in the order of their keys, so that `align` need not run the model again.

`.posteriors.arrow` is an Arrow file with one record batch per recording and one row per piece: ``key``, ``piece``,
``frames``, ``costs`` (T, V) uint8 in 1/16 nat, and ``level``, the mean log-mel energy of the piece's 10 ms frames,
float16. The schema's metadata name the aligner: ``aligner`` (digest), ``units`` V, ``frame_shift_samples`` and
``rate_hz``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray

from megahour.align.frontend import FrontEnd
from megahour.align.posteriors import Heard
from megahour.core.errors import ConfigError
from megahour.core.store import Artifact

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
