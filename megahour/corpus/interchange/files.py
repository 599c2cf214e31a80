"""One FLAC file per utterance, for tools that read nothing else, with plain NeMo and lhotse manifests beside them.

Only if asked for: a corpus of a thousand hours has a million of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from megahour.core.records import canonical_json
from megahour.corpus.interchange.lhotse import cut, jsonl_gz
from megahour.corpus.interchange.nemo import line
from megahour.corpus.interchange.record import Row
from megahour.corpus.interchange.webdataset import Add

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter


@contextmanager
def write_files(out: ShardWriter, prefix: str) -> Iterator[Add]:
    """Writer of `.audio/{key}.flac`, `.files.jsonl` (paths from its own folder) and `.files.cuts.jsonl.gz`."""
    folder = f"{out.shard:05d}.audio"
    with jsonl_gz(out, ".files.cuts.jsonl.gz") as cuts, out.open(".files.jsonl") as manifest:

        def add(record: Row, flac: bytes) -> None:
            name = f"{record['key']}.flac"
            path = out.path(f".audio/{name}")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(flac)
            manifest.write(canonical_json(line(record, f"{folder}/{name}")).encode() + b"\n")
            cuts(cut(record, {"type": "file", "source": f"{prefix}shards/{folder}/{name}"}))

        yield add
