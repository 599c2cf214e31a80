"""Machine code as Python functions, without numba's wrapper."""

from __future__ import annotations

import sys

from numba import int64, types
from numba.extending import intrinsic

from megahour.lm.query.direct import Direct, int_of, new_float, new_int, new_triple, text_of


@intrinsic
def at(typingctx, place, index):  # type: ignore[no-untyped-def]
    """The index-th of the numbers at an address."""
    from llvmlite import ir

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load(builder.gep(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), [args[1]]))

    return types.int64(int64, int64), codegen


@Direct
def times(own, arguments, count):  # type: ignore[no-untyped-def]
    return new_int(int_of(own) * int_of(at(arguments, 0)))


@Direct
def described(own, arguments, count):  # type: ignore[no-untyped-def]
    address, size = text_of(at(arguments, 0))
    return new_triple(new_float(size / 2), new_int(address != 0), new_int(count))


def test_a_function_knows_its_object_and_its_arguments() -> None:
    five = times.bound(5)
    assert (five(21), five(True), times.bound(-3)(1 << 40)) == (105, 5, -3 << 40)
    assert [five(each) for each in ("21", None, 1 << 64)] == [-5] * 3  # no ints, and no error is left behind
    assert five.__name__ == "times"


def test_text_is_what_has_utf_8() -> None:
    described_here = described.bound(None)
    assert described_here("whale") == (2.5, 1, 1)
    assert described_here("Wäl", 0) == (2.0, 1, 2)
    for other in ("\udce4", b"whale", 5):
        assert described_here(other)[1] == 0


def test_no_reference_is_left_or_lost() -> None:
    text = "".join(["never ", "seen"])
    held, describe = sys.getrefcount(text), described.bound(text)
    results = [describe(text) for _ in range(100)]
    assert sys.getrefcount(text) == held + 1
    assert all(sys.getrefcount(each) == 3 for each in results)  # the list's, this loop's and the argument's
