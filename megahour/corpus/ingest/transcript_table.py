"""The file of all transcripts (`transcripts`) as an artifact from which each task reads only its part.

The file is parsed once and sorted by name, in blocks. A task reads the index, which has the first name of each block,
and the blocks with its recordings' names.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Inputs, SingleShard, Task
from megahour.core.store import Artifact
from megahour.corpus.ingest.params import TranscriptTableParams
from megahour.corpus.transcripts.read import read_table

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter

BLOCK_ROWS = 256
BLOCKS = 64  # cached by a task; the recordings of a folder or an archive have neighbouring names
INDEX, TEXTS = ".index.parquet", ".texts"
MAX_BYTES = 1 << 30  # of the file, which is read into memory


class LayOutTranscripts(SingleShard[TranscriptTableParams]):
    """`.texts` has blocks of names and texts, sorted by name; `.index.parquet` the first name and the end of each."""

    name = "lay-out-transcripts"
    params = TranscriptTableParams
    inputs = ()
    version = 2
    local = True  # the driver reports errors of the file

    def run(self, p: TranscriptTableParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        rows = sorted(read_transcripts(p.transcripts, p.language).items())
        first, ends = [], []
        with out.open(TEXTS) as file:
            for start in range(0, len(rows), BLOCK_ROWS):
                names, texts = zip(*rows[start : start + BLOCK_ROWS], strict=True)
                block = pa.BufferOutputStream()
                pa.parquet.write_table(pa.table({"name": names, "text": texts}), block, compression="zstd")
                file.write(block.getvalue())
                first.append(names[0])
                ends.append(file.tell())
        out.table(pa.table({"name": pa.array(first, pa.string()), "end": pa.array(ends, pa.int64())}), INDEX)


def read_transcripts(url: str, language: str) -> dict[str, str]:
    """Transcripts by name. Raises ConfigError if the file is larger than `MAX_BYTES`."""
    import fsspec

    with fsspec.open(url, "rb", compression="infer") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        remedy = "give the texts in a table of addresses (source=TABLE, column `text`), or in files beside the media"
        raise ConfigError(f"the file has more than {MAX_BYTES >> 30} GiB", where=url, remedy=remedy)
    return read_table(data, language=language)


class TranscriptsByName:
    """Looks up transcripts by name in the artifact of `LayOutTranscripts`."""

    def __init__(self, artifact: Artifact) -> None:
        index = artifact.read_table(0, INDEX)
        self._artifact, self._first = artifact, index["name"].to_pylist()
        self._places = list(pairwise([0, *index["end"].to_pylist()]))
        self._block = lru_cache(maxsize=BLOCKS)(self._read)

    def get(self, name: str) -> str | None:
        """The transcript of a name, None if there is none."""
        at = bisect_right(self._first, name) - 1
        return self._block(at).get(name) if at >= 0 else None

    def _read(self, at: int) -> dict[str, str]:
        import pyarrow as pa
        import pyarrow.parquet

        start, end = self._places[at]
        (data,) = self._artifact.read_ranges([(0, start, end - start)], TEXTS)
        table = pa.parquet.read_table(pa.BufferReader(data))
        return dict(zip(table["name"].to_pylist(), table["text"].to_pylist(), strict=True))
