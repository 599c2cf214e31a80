"""Comparison of a key with a whole cache line of slots at once, which numba lacks. `lookup` uses it."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from megahour.lm.query.lookup import LINE

_KEYS = 0b01010101  # of the eight numbers of a line


@intrinsic
def matches(typingctx, keys, index, key):  # type: ignore[no-untyped-def]
    """Which keys of the line from keys[index] on equal `key`: bit 2 i is set for slot i. Bounds are not checked."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return _compare(builder, builder.gep(data, [args[1]]), args[2])

    return types.uint64(keys, types.intp, types.uint64), codegen


@intrinsic
def matches_at(typingctx, address, key):  # type: ignore[no-untyped-def]
    """The same for the line at an address."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _compare(builder, builder.inttoptr(args[0], ir.IntType(64).as_pointer()), args[1])

    return types.uint64(types.int64, types.uint64), codegen


def _compare(builder: Any, place: Any, key: Any) -> Any:
    vector, lanes = ir.VectorType(ir.IntType(64), 2 * LINE), ir.VectorType(ir.IntType(32), 2 * LINE)
    line = builder.load(builder.bitcast(place, vector.as_pointer()), align=8)
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, key, ir.IntType(32)(0))
    every = builder.shuffle_vector(first, nothing, ir.Constant(lanes, [0] * 2 * LINE))
    bits = builder.bitcast(builder.icmp_unsigned("==", line, every), ir.IntType(2 * LINE))
    return builder.zext(builder.and_(bits, ir.IntType(2 * LINE)(_KEYS)), ir.IntType(64))
