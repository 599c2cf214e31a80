"""Reads the audio of utterances from many shards; a speaker's utterances may be in any of them."""

from __future__ import annotations

import io
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from megahour.core.ranges import Span, merged
from megahour.core.store import Artifact
from megahour.core.transfer import is_local
from megahour.corpus.media.audio import Int16
from megahour.corpus.media.tar import WHOLE_BYTES, ShardAudio, read_flac

Row = dict[str, Any]

AHEAD_BYTES = 16 << 20  # of utterances per remote fetch
GAP_BYTES = 4 << 10  # largest gap between utterances of one request: tar headers and little more


class OpenShards:
    """A context manager that keeps open the `most` shards that were read last.

    ``with OpenShards(utterances) as audio: for row in audio.ahead(rows): samples = audio.read(row)``
    """

    def __init__(self, utterances: Artifact, most: int = 32) -> None:
        self._utterances, self._most = utterances, most
        self._open: OrderedDict[int, ShardAudio] = OrderedDict()
        self._fetched: dict[Span, memoryview] = {}  # by shard and offset

    def __enter__(self) -> OpenShards:
        return self

    def __exit__(self, *error: object) -> None:
        for audio in self._open.values():
            audio.__exit__(*error)

    def shard(self, number: int) -> ShardAudio:
        if number not in self._open:
            if len(self._open) == self._most:
                self._open.popitem(last=False)[1].__exit__(None, None, None)
            self._open[number] = ShardAudio(self._utterances, number)
        self._open.move_to_end(number)
        return self._open[number]

    def read(self, row: Row) -> Int16:
        """int16 (samples,) of a row with shard, offset and size. Raises StoreError as `ShardAudio.read` does."""
        shard, offset, size = row["shard"], row["offset"], row["size"]
        data = self._fetched.get((shard, offset))
        if data is None:
            return self.shard(shard).read(offset, size)
        return read_flac(io.BytesIO(data), offset, size, f"{self._utterances.url} shard {shard}")

    def ahead(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows unchanged. Remote audio is fetched ahead, for many rows at once, and then `read`."""
        if is_local(self._utterances.fs):
            yield from rows
            return
        for group in _groups(rows):
            self._fetch([row for row in group if row["size"] <= WHOLE_BYTES])
            yield from group
        self._fetched.clear()

    def _fetch(self, rows: Sequence[Row]) -> None:
        places = defaultdict(list)
        for row in rows:
            places[row["shard"]].append((row["offset"], row["offset"] + row["size"]))
        spans = [(s, start, end) for s in sorted(places) for start, end in merged(places[s], 1 << 62, GAP_BYTES)]
        self._fetched.clear()
        fetched = self._utterances.read_ranges([(s, start, end - start) for s, start, end in spans], ".tar")
        for (shard, first, _), data in zip(spans, fetched, strict=True):
            for start, end in places[shard]:
                if first <= start < first + len(data):
                    self._fetched[shard, start] = memoryview(data)[start - first : end - first]


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    filled = 0
    for row in rows:
        group.append(row)
        filled += row["size"]
        if filled >= AHEAD_BYTES:
            yield group
            group, filled = [], 0
    if group:
        yield group
