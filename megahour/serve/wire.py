"""Message formats on the network and on the workers' pipes: Arrow record batches, numbers and JSON, never pickle.

Requests: ``key int64, length int32 (frames), features list<float16 or float32>`` with T*F values per row. A client that
shares memory with the service (`segment`) sends messages without a batch instead: first `ASK` and the number of bytes,
which the service answers with a `segment.Handle` as JSON (null: refused); then `PLACES` and rows of `PLACE_ROW`. A call
may mix both kinds of request.

Replies:  ``key int64, error string (null on success), frames int32, payload large_binary``; the payload of a row is its
outputs one after the other, each C-contiguous of shape (frames, tail...), as described by the JSON that accompanies the
batch: ``[{"name", "dtype", "tail"}, ...]``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from megahour.serve.spec import AcceleratorError

REPLY_SCHEMA = pa.schema(
    [("key", pa.int64()), ("error", pa.string()), ("frames", pa.int32()), ("payload", pa.large_binary())]
)
ASK, PLACES = b"ask ", b"rows"
PLACE_ROW = np.dtype([("key", "<i8"), ("offset", "<i8"), ("frames", "<i4"), ("dim", "<i4"), ("width", "<i4")])
FLOATS: dict[Any, np.dtype] = {pa.float16(): np.dtype(np.float16), pa.float32(): np.dtype(np.float32)}
Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Keyed:
    """One keyed sequence: features (T, F), float16 or float32."""

    key: int
    features: np.ndarray

    @property
    def frames(self) -> int:
        return int(self.features.shape[0])

    @property
    def dim(self) -> int:
        return int(self.features.shape[1])

    @property
    def dtype(self) -> np.dtype:
        return self.features.dtype


class SegmentPlace(NamedTuple):
    """Position of features (frames, dim), `width` bytes per value: `offset` bytes into the client's segment."""

    key: int
    offset: int
    frames: int
    dim: int
    width: int


@dataclass(frozen=True)
class Placed:
    """A sequence whose features are in the segment at `path`."""

    place: SegmentPlace
    path: str

    @property
    def key(self) -> int:
        return self.place.key

    @property
    def frames(self) -> int:
        return self.place.frames

    @property
    def dim(self) -> int:
        return self.place.dim

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(f"f{self.place.width}")


def numbers(values: Sequence[int] | np.ndarray, kind: Any) -> pa.Array:
    """Like `pa.array`, which would import pandas and cost a process half a second."""
    flat = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(flat), [None, pa.py_buffer(flat)])


def _values(array: pa.Array, dtype: np.dtype) -> np.ndarray:
    """A view of an array without nulls."""
    buffer, end = array.buffers()[1] or b"", array.offset + len(array)
    if len(buffer) < end * dtype.itemsize:
        raise AcceleratorError(f"a column of {end} values has {len(buffer)} bytes")
    return np.frombuffer(buffer, dtype, end)[array.offset :]


def _bounds(parts: Sequence[Sized]) -> np.ndarray:
    """Offsets of the parts in their concatenation, and its end; int64."""
    return np.cumsum([0, *map(len, parts)], dtype=np.int64)


def request_schema(dtype: np.dtype) -> pa.Schema:
    """Raises AcceleratorError for element types other than float16 and float32."""
    for arrow, numpy_type in FLOATS.items():
        if numpy_type == dtype:
            return pa.schema([("key", pa.int64()), ("length", pa.int32()), ("features", pa.large_list(arrow))])
    raise AcceleratorError(f"features of type {dtype} are not accepted", remedy="pass float16 or float32")


def encode_request(sequences: Sequence[Keyed]) -> pa.RecordBatch:
    """Record batch of sequences of one dtype and one feature dimension."""
    schema = request_schema(sequences[0].features.dtype)
    flat = [np.ascontiguousarray(s.features).reshape(-1) for s in sequences]
    values = numbers(np.concatenate(flat) if len(flat) > 1 else flat[0], schema.field("features").type.value_type)
    columns = [
        numbers([s.key for s in sequences], pa.int64()),
        numbers([s.frames for s in sequences], pa.int32()),
        pa.LargeListArray.from_arrays(numbers(_bounds(flat), pa.int64()), values),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def decode_request(batch: pa.RecordBatch) -> Iterator[Keyed]:
    """Sequences of a record batch, as views of its memory.

    Raises
    ------
    AcceleratorError: wrong columns, or a row whose values are not a whole number of frames.
    """
    if batch.schema.names != ["key", "length", "features"]:
        raise AcceleratorError(f"a request has the columns {batch.schema.names}, expected key, length, features")
    features = batch.column(2)
    if not pa.types.is_large_list(features.type) or features.type.value_type not in FLOATS:
        raise AcceleratorError(
            f"features have the Arrow type {features.type}, expected large_list of float16 or float32"
        )
    if features.values.null_count or any(batch.column(i).null_count for i in range(3)):
        raise AcceleratorError("a request has null values")
    values = _values(features.values, FLOATS[features.type.value_type])
    offsets = _values(features.offsets, np.dtype(np.int64))
    for row, (key, length) in enumerate(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)):
        row_values = values[offsets[row] : offsets[row + 1]]
        if length < 1 or len(row_values) == 0 or len(row_values) % length:
            raise AcceleratorError(
                f"sequence {key}: {len(row_values)} values do not make {length} frames of equal size"
            )
        yield Keyed(key, row_values.reshape(length, -1))


def encode_ask(n_bytes: int) -> bytes:
    """A request for a segment."""
    return ASK + str(n_bytes).encode()


def encode_places(places: Sequence[SegmentPlace]) -> bytes:
    """A request of sequences in the call's segment."""
    return PLACES + np.array(places, PLACE_ROW).tobytes()


def decode_message(data: bytes) -> int | list[SegmentPlace]:
    """Parse a message without a batch: the requested number of bytes, or places, not yet checked.

    Raises
    ------
    AcceleratorError: neither of the two.
    """
    kind, rest = data[: len(ASK)], data[len(ASK) :]
    if kind == ASK and rest.isdigit() and len(rest) < 20:
        return int(rest)
    if kind == PLACES and len(rest) % PLACE_ROW.itemsize == 0:
        return [SegmentPlace(*row) for row in np.frombuffer(rest, PLACE_ROW).tolist()]
    raise AcceleratorError(f"a message of {len(data)} bytes is neither a request for a segment nor rows within one")


def encode_work(sequences: Sequence[Keyed | Placed]) -> tuple[bytes, pa.Buffer | bytes]:
    """A worker's input: the position of each sequence, as JSON, and a request of those not in a segment."""
    rows = [[*s.place, s.path] if isinstance(s, Placed) else None for s in sequences]
    inline = [s for s in sequences if isinstance(s, Keyed)]
    return json.dumps(rows).encode(), to_bytes(encode_request(inline)) if inline else b""


def decode_work(header: bytes, inline: bytes) -> list[Keyed | Placed]:
    """The sequences of `encode_work`, in their order."""
    keyed = decode_request(from_bytes(inline)) if inline else iter(())
    return [next(keyed) if row is None else Placed(SegmentPlace(*row[:-1]), row[-1]) for row in json.loads(header)]


def merge_replies(replies: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of replies that share a layout."""
    if len(replies) == 1:
        return replies[0]
    return pa.Table.from_batches(replies).combine_chunks().to_batches()[0]


def encode_reply(keys: Sequence[int], outputs: Sequence[Outputs]) -> tuple[pa.RecordBatch, bytes]:
    """Record batch and its description; all rows have outputs of the same names, dtypes and tails."""
    first = outputs[0]
    layout = [{"name": n, "dtype": a.dtype.str, "tail": list(a.shape[1:])} for n, a in first.items()]
    rows = [b"".join(np.ascontiguousarray(array).tobytes() for array in row.values()) for row in outputs]
    frames = [len(next(iter(row.values()))) for row in outputs]
    columns = [numbers(keys, pa.int64()), pa.nulls(len(keys), pa.string()), numbers(frames, pa.int32())]
    bounds, payload = pa.py_buffer(_bounds(rows)), pa.py_buffer(b"".join(rows))
    columns.append(pa.Array.from_buffers(pa.large_binary(), len(rows), [None, bounds, payload]))
    return pa.RecordBatch.from_arrays(columns, schema=REPLY_SCHEMA), json.dumps(layout).encode()


def encode_failures(keys: Sequence[int], reason: str) -> tuple[pa.RecordBatch, bytes]:
    """Record batch of failed keys with the reason."""
    n = len(keys)
    columns = [list(keys), [reason] * n, [0] * n, [b""] * n]
    arrays = [pa.array(values, type=column.type) for values, column in zip(columns, REPLY_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REPLY_SCHEMA), b"[]"


def decode_reply(batch: pa.RecordBatch, description: bytes) -> Iterator[tuple[int, Outputs | str]]:
    """(key, outputs) of successful rows, (key, error text) of others. Arrays are read-only views."""
    layout = [(d["name"], np.dtype(d["dtype"]), tuple(d["tail"])) for d in json.loads(description)]
    keys, errors, frames = (batch.column(i).to_pylist() for i in range(3))
    for row, payload in enumerate(batch.column(3)):
        if errors[row] is not None:
            yield keys[row], errors[row]
            continue
        buffer, at, outputs = payload.as_buffer(), 0, {}
        for name, dtype, tail in layout:
            count = frames[row] * math.prod(tail)
            outputs[name] = np.frombuffer(buffer, dtype, count, at).reshape(frames[row], *tail)
            at += count * dtype.itemsize
        yield keys[row], outputs


def to_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """An Arrow IPC stream of one batch, for pipes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def from_bytes(data: bytes) -> pa.RecordBatch:
    """The batch of `to_bytes`, as views of `data`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
