"""The one format on the network and on the workers' pipes: Arrow record batches, never pickle.

Requests: ``key int64, length int32 (frames), features list<float16 or float32>`` with T*F values per row.
Replies:  ``key int64, error string (null when all is well), frames int32, payload large_binary``; the payload of a row
is its outputs one after the other, each C-contiguous of shape (frames, tail...), as described by the JSON that travels
beside the batch: ``[{"name", "dtype", "tail"}, ...]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from megahour.engine.accelerator.spec import AcceleratorError

REPLY_SCHEMA = pa.schema(
    [("key", pa.int64()), ("error", pa.string()), ("frames", pa.int32()), ("payload", pa.large_binary())]
)
FLOATS = {pa.float16(): np.dtype(np.float16), pa.float32(): np.dtype(np.float32)}
Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Keyed:
    """One keyed sequence: features (T, F), float16 or float32."""

    key: int
    features: np.ndarray

    @property
    def frames(self) -> int:
        return int(self.features.shape[0])


def request_schema(dtype: np.dtype) -> pa.Schema:
    """Raises AcceleratorError for other element types than float16 and float32."""
    for arrow, numpy_type in FLOATS.items():
        if numpy_type == dtype:
            return pa.schema([("key", pa.int64()), ("length", pa.int32()), ("features", pa.large_list(arrow))])
    raise AcceleratorError(f"features of type {dtype} are not accepted", remedy="pass float16 or float32")


def encode_request(sequences: Sequence[Keyed]) -> pa.RecordBatch:
    """Record batch of sequences of one dtype and one feature dimension."""
    schema = request_schema(sequences[0].features.dtype)
    flat = [np.ascontiguousarray(s.features).reshape(-1) for s in sequences]
    offsets = np.concatenate([[0], np.cumsum([len(values) for values in flat])]).astype(np.int64)
    values = pa.array(np.concatenate(flat) if len(flat) > 1 else flat[0], type=schema.field("features").type.value_type)
    columns = [
        pa.array([s.key for s in sequences], pa.int64()),
        pa.array([s.frames for s in sequences], pa.int32()),
        pa.LargeListArray.from_arrays(pa.array(offsets), values),
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
    values = features.values.to_numpy()
    offsets = features.offsets.to_numpy()
    for row, (key, length) in enumerate(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)):
        row_values = values[offsets[row] : offsets[row + 1]]
        if length < 1 or len(row_values) == 0 or len(row_values) % length:
            raise AcceleratorError(
                f"sequence {key}: {len(row_values)} values do not make {length} frames of equal size"
            )
        yield Keyed(key, row_values.reshape(length, -1))


def encode_reply(keys: Sequence[int], outputs: Sequence[Outputs]) -> tuple[pa.RecordBatch, bytes]:
    """Record batch and its description; all rows have outputs of the same names, dtypes and tails."""
    first = outputs[0]
    layout = [{"name": n, "dtype": a.dtype.str, "tail": list(a.shape[1:])} for n, a in first.items()]
    rows = [b"".join(np.ascontiguousarray(array).tobytes() for array in row.values()) for row in outputs]
    frames = [len(next(iter(row.values()))) for row in outputs]
    columns = [pa.array(keys, pa.int64()), pa.nulls(len(keys), pa.string()), pa.array(frames, pa.int32())]
    columns.append(pa.array(rows, pa.large_binary()))
    return pa.RecordBatch.from_arrays(columns, schema=REPLY_SCHEMA), json.dumps(layout).encode()


def encode_failures(keys: Sequence[int], reason: str) -> tuple[pa.RecordBatch, bytes]:
    """Record batch that tells the client which keys failed, and why."""
    n = len(keys)
    columns = [list(keys), [reason] * n, [0] * n, [b""] * n]
    arrays = [pa.array(values, type=column.type) for values, column in zip(columns, REPLY_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REPLY_SCHEMA), b"[]"


def decode_reply(batch: pa.RecordBatch, description: bytes) -> Iterator[tuple[int, Outputs | str]]:
    """(key, outputs) of rows that went well, (key, error text) of others. Arrays are read-only views."""
    layout = [(d["name"], np.dtype(d["dtype"]), tuple(d["tail"])) for d in json.loads(description)]
    keys, errors, frames = (batch.column(i).to_pylist() for i in range(3))
    for row, payload in enumerate(batch.column(3)):
        if errors[row] is not None:
            yield keys[row], errors[row]
            continue
        buffer, at, outputs = payload.as_buffer(), 0, {}
        for name, dtype, tail in layout:
            count = frames[row] * int(np.prod(tail, dtype=np.int64))
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
