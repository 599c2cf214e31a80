"""WebDataset: uncompressed tars of `{key}.flac`, `{key}.json` and, if asked, `{key}.txt`, with a byte index.

Layout: the members of a sample follow each other and share the name before the first dot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from megahour.corpus.interchange.record import Row, record_json
from megahour.corpus.tar import tar_writer

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter

Add = Callable[[Row, bytes], None]
INDEX = pa.schema(
    [(name, pa.int64()) for name in ("key", "flac_offset", "flac_size", "json_offset", "json_size", "samples")]
    + [("text", pa.string())]
)


@contextmanager
def write_webdataset(out: ShardWriter, *, with_text: bool) -> Iterator[Add]:
    """Writer of `.tar` and `.index.parquet` (where each FLAC and JSON lies, so that one sample is one range read)."""
    index: list[Row] = []
    with out.open(".tar") as file, tar_writer(file) as tar:

        def add(record: Row, flac: bytes) -> None:
            key = record["key"]
            flac_offset, flac_size = tar.add(f"{key}.flac", flac)
            json_offset, json_size = tar.add(f"{key}.json", record_json(record).encode())
            if with_text:
                tar.add(f"{key}.txt", record["text"].encode())
            place = (key, flac_offset, flac_size, json_offset, json_size, record["samples"], record["text"])
            index.append(dict(zip(INDEX.names, place, strict=True)))

        yield add
    out.table(pa.Table.from_pylist(index, INDEX), ".index.parquet")
