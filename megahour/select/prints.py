"""Worker side of `duplicates`, first half: what utterances are compared by, and where it is sent.

An utterance is looked up by its buckets: the landmarks of its sound and the bands of its text. A partition gets each
utterance with a bucket in it, with these buckets alone; a second of speech has a dozen landmarks, so that most
partitions get most of the utterances of a shard. Rows with all buckets are made once for each shard.

Near-duplicate texts are found by MinHash (Broder 1997) and banding, on sets of character shingles. Two texts whose
shingle sets have Jaccard similarity s agree in each value of a signature with probability s, and in at least one of
`BANDS` bands of `ROWS` values with probability 1 - (1 - s^ROWS)^BANDS: 0.9996 for s = 0.8, 0.08 for 0.3. Texts that
share a band are compared exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megahour.core.records import key_of
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.media.tar import ShardAudio
from megahour.select.fingerprints import Fingerprint, fingerprint, landmarks, scattered
from megahour.select.params import DuplicatesParams
from megahour.select.voices import voice_of

SHINGLE = 5  # characters
BANDS, ROWS = 15, 4
_SEEDS = scattered(np.arange(1, BANDS * ROWS + 1, dtype=np.uint64))


def shingles(text: str) -> NDArray[np.uint64]:
    """Sorted, unique hashes of the character 5-grams of a text; a shorter text gives one hash."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    if len(codes) < SHINGLE:
        codes = np.append(codes, np.zeros(SHINGLE - len(codes), np.uint64))
    value = np.zeros(len(codes) - SHINGLE + 1, np.uint64)
    for i in range(SHINGLE):
        value = scattered(value ^ codes[i : i + len(value)])
    result: NDArray[np.uint64] = np.unique(value)
    return result


def buckets(text: str, salt: int) -> NDArray[np.uint64]:
    """(BANDS,) bucket numbers. Similar texts with the same `salt` very likely share at least one."""
    signature = scattered(shingles(text)[:, None] ^ _SEEDS).min(axis=0).reshape(BANDS, ROWS)
    value = scattered(np.arange(BANDS, dtype=np.uint64) ^ np.uint64(salt))
    for row in range(ROWS):
        value = scattered(value ^ signature[:, row])
    return value


def jaccard(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    """Jaccard similarity of two sets of shingles."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / max(1, len(one) + len(other) - both)


COLUMNS = ["key", "offset", "size", "rate_hz", "speaker", "recording", "text", "loss"]
SENT = pa.schema(
    [
        ("key", pa.int64()),
        ("loss", pa.float32()),
        ("home", pa.bool_()),  # true in exactly one row per utterance, for counting
        ("audio_buckets", pa.list_(pa.uint64())),  # landmarks
        ("bits", pa.binary()),  # of the fingerprint, little-endian
        ("sounding", pa.binary()),
        ("text_buckets", pa.list_(pa.uint64())),
        ("text", pa.string()),
    ]
)
BUCKETS = ("audio_buckets", "text_buckets")
BLANK = {"bits": ("audio_buckets", b""), "sounding": ("audio_buckets", b""), "text": ("text_buckets", "")}
"""Values that are blank where the row has none of these buckets."""
Row = dict[str, Any]


def print_shard(p: DuplicatesParams, utterances: Artifact, shard: int, out: ShardWriter) -> None:
    """Write a row of `SENT` with all buckets for each utterance of a shard."""
    rows = utterances.read_table(shard, columns=COLUMNS).to_pylist()
    with ShardAudio(utterances, shard) if p.audio and rows else nullcontext() as audio:
        printed = [_printed(p, row, audio) for row in rows]
    out.kept_all(len(rows))
    out.table(pa.Table.from_pylist(printed, SENT))


def _printed(p: DuplicatesParams, row: Row, audio: ShardAudio | None) -> Row:
    heard = Fingerprint(np.zeros(0, np.uint32), np.zeros(0, np.bool_))
    if audio is not None:
        heard = fingerprint(audio.read(row["offset"], row["size"]), row["rate_hz"])
    by_sound = landmarks(heard, p.landmark_every).astype(np.uint64)
    compared = p.text != "never" and len(row["text"]) >= p.min_text_chars
    return {
        **{"key": row["key"], "loss": row["loss"], "home": True, "audio_buckets": by_sound},
        "bits": heard.bits.astype("<u4").tobytes() if len(by_sound) else b"",
        "sounding": heard.sounding.tobytes() if len(by_sound) else b"",
        "text_buckets": buckets(row["text"], _salt(p, row)) if compared else [],
        "text": row["text"] if compared else "",
    }


def _salt(p: DuplicatesParams, row: Row) -> int:
    """A hash that is equal for rows whose texts may be duplicates of each other."""
    if p.text == "any-speaker":
        return 0
    return key_of("speaker", voice_of(row["speaker"], row["recording"]))


@dataclass
class _Buckets:
    """A list column whose values go to places. A pair, place · rows + row, says which row goes where."""

    pairs: NDArray[np.int64]  # (V,) rising
    values: NDArray[np.uint64]  # (V,) those of a pair in the order of the row's list

    @staticmethod
    def of(lists: pa.ListArray, partitions: int, size: int) -> _Buckets:
        values = lists.flatten().to_numpy()
        rows = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy())
        mixed = scattered(values ^ np.uint64(0x5851F42D4C957F2D))
        pairs = (mixed % np.uint64(partitions)).astype(np.int64) // size * len(lists) + rows
        order = np.argsort(pairs, kind="stable")
        return _Buckets(pairs[order], values[order])

    def lists(self, pairs: NDArray[np.int64]) -> pa.ListArray:
        """The values of each of these pairs, which are rising and those of one place."""
        first, last = (np.searchsorted(self.pairs, pairs, side) for side in ("left", "right"))
        offsets = np.append(first, last[-1:]) - first[0]
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), self.values[first[0] : last[-1]])


def to_places(table: pa.Table, partitions: int, size: int = 1) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(place, rows) of a table of `SENT`: places are partitions, or with `size` above 1 groups of that many.

    A row goes to each place with one of its buckets, and to its home, so that it is counted; places it was not sent to
    are left out. The rows of one place are held at a time.
    """
    table = table.combine_chunks()
    count = table.num_rows
    if not count:
        return
    home = table["key"].to_numpy() % partitions // size
    at_home = (home * count + np.arange(count))[table["home"].to_numpy()]
    found = {name: _Buckets.of(table[name].combine_chunks(), partitions, size) for name in BUCKETS}
    pairs = np.unique(np.concatenate([at_home, *(own.pairs for own in found.values())]))
    for own in np.split(pairs, np.flatnonzero(np.diff(pairs // count)) + 1):
        rows = pa.array(own % count)
        sent = {name: own_buckets.lists(own) for name, own_buckets in found.items()}
        sent |= {name: table[name].take(rows) for name in ("key", "loss")} | {"home": pa.array(np.isin(own, at_home))}
        for name, (needed, blank) in BLANK.items():
            has_any = pc.greater(pc.list_value_length(sent[needed]), 0)
            sent[name] = pc.if_else(has_any, table[name].take(rows), blank)
        for batch in pa.table([sent[name] for name in SENT.names], schema=SENT).combine_chunks().to_batches():
            yield int(own[0] // count), batch
