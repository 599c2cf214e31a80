"""Operations that numba lacks: unaligned loads and stores of several bytes, prefetches, the lowest bit, addresses."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_BYTES = ir.VectorType(ir.IntType(8), 64)


def _place(context: Any, builder: Any, signature: Any, args: Any, array: int, index: int, kind: Any) -> Any:
    """A pointer to `kind` at args[index] of the array args[array]."""
    data = context.make_array(signature.args[array])(context, builder, args[array]).data
    return builder.bitcast(builder.gep(data, [args[index]]), kind.as_pointer())


@intrinsic
def load8(typingctx, array, index):  # type: ignore[no-untyped-def]
    """Load eight bytes of a uint8 array from `index` on as a little-endian uint64. Bounds are not checked."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = _place(context, builder, signature, args, 0, 1, ir.IntType(64))
        return builder.load(pointer, align=1)

    return types.uint64(array, types.intp), codegen


@intrinsic
def store8(typingctx, array, index, value):  # type: ignore[no-untyped-def]
    """Store a uint64 as eight bytes of a uint8 array from `index` on. Bounds are not checked."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = _place(context, builder, signature, args, 0, 1, ir.IntType(64))
        builder.store(args[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


def _among(builder: Any, pointer: Any, chars: bytes) -> Any:
    """Bit i of the result is set where byte i of 64 at a pointer is one of `chars`."""
    found = None
    piece = builder.load(pointer, align=1)
    for char in chars:
        same = builder.icmp_unsigned("==", piece, ir.Constant(_BYTES, [char] * 64))
        found = same if found is None else builder.or_(found, same)
    return builder.bitcast(found, ir.IntType(64))


@intrinsic
def parts64(typingctx, array, index):  # type: ignore[no-untyped-def]
    """Compare 64 bytes of a uint8 array from `index` on: bit i of the result is set where byte i separates words."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _among(builder, _place(context, builder, signature, args, 0, 1, _BYTES), b" \n\t\r\0")

    return types.uint64(array, types.intp), codegen


@intrinsic
def lines64(typingctx, array, index):  # type: ignore[no-untyped-def]
    """The same for bytes that end lines."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _among(builder, _place(context, builder, signature, args, 0, 1, _BYTES), b"\n")

    return types.uint64(array, types.intp), codegen


@intrinsic
def copy16(typingctx, target, at, source, index):  # type: ignore[no-untyped-def]
    """Copy 16 bytes from source[index] (any type) to the uint8 array `target` from `at` on. Bounds are not checked."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = ir.VectorType(ir.IntType(64), 2)
        piece = builder.load(_place(context, builder, signature, args, 2, 3, vector), align=1)
        builder.store(piece, _place(context, builder, signature, args, 0, 1, vector), align=1)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp), codegen


@intrinsic
def trailing_zeros(typingctx, value):  # type: ignore[no-untyped-def]
    """Index of the lowest bit that is set in a uint64; undefined for 0."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), codegen


def _prefetch(builder: Any, place: Any) -> None:
    flags = [ir.Constant(ir.IntType(32), value) for value in (0, 3, 1)]  # to read, in all caches, data
    kinds = [place.type, *(flag.type for flag in flags)]
    call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0i8")
    builder.call(call, [place, *flags])


@intrinsic
def prefetch(typingctx, array, index):  # type: ignore[no-untyped-def]
    """Prefetch the cache line of array[index], of a one-dimensional array. Any index is harmless."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _prefetch(builder, _place(context, builder, signature, args, 0, 1, ir.IntType(8)))
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def address_of(typingctx, data):  # type: ignore[no-untyped-def]
    """The address of an array's or of `bytes`' first element. It is valid as long as the caller keeps the object."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, args[0]).data, ir.IntType(64))

    return types.int64(data), codegen


@intrinsic
def pointer(typingctx, address):  # type: ignore[no-untyped-def]
    """Convert an address to a pointer for `numba.carray`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


def _load(kind: Any, made: ir.Type) -> Any:
    @intrinsic
    def load(typingctx, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.load(builder.inttoptr(args[0], made.as_pointer()))

        return kind(types.int64), codegen

    return load


int32_at = _load(types.int32, ir.IntType(32))
int64_at = _load(types.int64, ir.IntType(64))
uint64_at = _load(types.uint64, ir.IntType(64))
float32_at = _load(types.float32, ir.FloatType())
"""Load the number at an address. Reads through arrays count references, which costs more than the read itself."""


@intrinsic
def prefetch_at(typingctx, address):  # type: ignore[no-untyped-def]
    """Prefetch the cache line of an address. Any address is harmless."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _prefetch(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _room(numbers: int) -> Any:
    @intrinsic
    def room(typingctx):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            place = cgutils.alloca_once(builder, ir.IntType(64), size=ir.Constant(ir.IntType(32), numbers))
            return builder.bitcast(place, ir.IntType(8).as_pointer())

        return types.voidptr(), codegen

    return room


room_for_64, room_for_128, room_for_512 = _room(64), _room(128), _room(512)
"""A pointer to that many numbers of eight bytes on the caller's stack, which needs no allocation."""
