"""FSTs as numpy arrays, read from and written to OpenFst ``const`` files without a Python loop over arcs.

A file is OpenFst's `ConstFst<StdArc>`, version 2, without symbol tables: a header, S state records of 20 bytes, A arc
records of 16 bytes (openfst: fst/const-fst.h). Reading checks every size and never unpickles.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megahour.core.errors import StoreError

MAGIC = 2125659606
EXPANDED = 0x1
ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("weight", "<f4"), ("nextstate", "<i4")])
STATE = np.dtype([("final", "<f4"), ("pos", "<u4"), ("arcs", "<u4"), ("iepsilons", "<u4"), ("oepsilons", "<u4")])

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FstArrays:
    """An FST of A arcs, sorted by source state, and S states.

    source: int32 (A,) state that each arc leaves. arcs: (A,) of dtype ARC. final: float32 (S,), infinite if not final.
    Weights are costs in nats (tropical semiring); label 0 is epsilon.
    """

    start: int
    source: Int32
    arcs: npt.NDArray[np.void]
    final: Float32

    @property
    def states(self) -> int:
        return len(self.final)


def from_columns(
    start: int,
    final: npt.ArrayLike,
    source: npt.ArrayLike,
    ilabel: npt.ArrayLike,
    olabel: npt.ArrayLike,
    weight: npt.ArrayLike,
    nextstate: npt.ArrayLike,
) -> FstArrays:
    """Arrays from parallel columns in any order; arcs of a state are sorted by input, then output label."""
    source_ = np.asarray(source, np.int32)
    arcs = np.empty(len(source_), ARC)
    for name, column in (("ilabel", ilabel), ("olabel", olabel), ("weight", weight), ("nextstate", nextstate)):
        arcs[name] = column
    order = np.lexsort((arcs["nextstate"], arcs["olabel"], arcs["ilabel"], source_))
    return FstArrays(start, source_[order], arcs[order], np.asarray(final, np.float32))


def to_bytes(fst: FstArrays) -> bytes:
    """An OpenFst ``const`` file."""
    states = np.zeros(fst.states, STATE)
    states["final"] = fst.final
    states["arcs"] = np.bincount(fst.source, minlength=fst.states)
    states["pos"] = np.cumsum(states["arcs"]) - states["arcs"]
    states["iepsilons"] = np.bincount(fst.source[fst.arcs["ilabel"] == 0], minlength=fst.states)
    states["oepsilons"] = np.bincount(fst.source[fst.arcs["olabel"] == 0], minlength=fst.states)
    names = b"".join(struct.pack("<i", len(text)) + text for text in (b"const", b"standard"))
    numbers = struct.pack("<iiQqqq", 2, 0, EXPANDED, fst.start, fst.states, len(fst.arcs))
    return struct.pack("<i", MAGIC) + names + numbers + states.tobytes() + fst.arcs.tobytes()


def from_bytes(data: bytes, *, where: str = "") -> FstArrays:
    """Inverse of `to_bytes`. Raises StoreError for another format, a truncated file, or an arc to a missing state."""
    try:
        start, states, arcs, at = _header(data)
    except (struct.error, ValueError) as error:
        raise _damaged(f"not a const FST: {error}", where) from error
    if min(states, arcs) < 0 or not 0 <= start < states or len(data) != at + states * 20 + arcs * 16:
        raise _damaged(f"{len(data)} bytes do not hold {states} states and {arcs} arcs from state {start}", where)
    state_records = np.frombuffer(data, STATE, states, at)
    arc_records = np.frombuffer(data, ARC, arcs, at + states * 20)
    counts = state_records["arcs"].astype(np.int64)
    if counts.sum() != arcs or not np.array_equal(np.cumsum(counts) - counts, state_records["pos"]):
        raise _damaged("its states do not cover its arcs", where)
    if arcs and not (arc_records["nextstate"].min() >= 0 and arc_records["nextstate"].max() < states):
        raise _damaged(f"an arc leaves the {states} states", where)
    source = np.repeat(np.arange(states, dtype=np.int32), counts)
    return FstArrays(start, source, arc_records.copy(), state_records["final"].copy())


def _header(data: bytes) -> tuple[int, int, int, int]:
    """(start, states, arcs, offset of the first state record)."""
    at, names = 4, []
    if struct.unpack_from("<i", data)[0] != MAGIC:
        raise ValueError("wrong magic number")
    for _ in range(2):
        (size,) = struct.unpack_from("<i", data, at)
        if not 0 <= size <= 32:
            raise ValueError(f"type name of {size} bytes")
        names.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    version, flags, _, start, states, arcs = struct.unpack_from("<iiQqqq", data, at)
    if (names, version, flags) != ([b"const", b"standard"], 2, 0):
        raise ValueError(f"type {names}, version {version}, flags {flags}")
    return start, states, arcs, at + 40


def _damaged(message: str, where: str) -> StoreError:
    return StoreError(message, where=where, remedy="make the graph again with `megahour graph`")
