"""Python functions that are called without numba's wrapper.

At each call the wrapper unpacks a tuple, asks for buffers and gives up the interpreter's lock, which takes longer than
to score a short sentence. A function here gets the addresses of its arguments (METH_FASTCALL), reads them and makes its
result by Python's stable C API:

    @Direct
    def times(own, arguments, count):
        return new_int(int_of(own) * int_of(int64_at(arguments)))

    times.bound(5)(21)                # 105

It holds the lock, so it has to be short, and must not raise: exceptions of such code are lost. Nothing checks that a
caller gives as many arguments as it reads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from typing import Any

from llvmlite import ir
from numba import float64, int32, int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from megahour.core.compiled import compiled
from megahour.core.jit import dispatcher

_FASTCALL = 0x80  # METH_FASTCALL
_SIGNATURE = int64(int64, int64, int64)


class Direct:
    """A compiled function of (own, arguments, count): the addresses of the object that it is bound to and of an array
    of its arguments' addresses, and their number. It returns the address of a new object."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._code, self._name = dispatcher(function, for_c=True), function.__name__

    def bound(self, own: object) -> Callable[..., Any]:
        """The Python function, bound to an object."""
        made: Callable[..., Any] = _new_function(ctypes.addressof(self._method), own, None)
        return made

    @cached_property
    def _method(self) -> ctypes.Structure:
        """Made on first use. It and the code last as long as the process."""
        made = self._code.get_compile_result(_SIGNATURE)
        address = made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)
        return _Method(self._name.encode(), address, _FASTCALL, None)


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
_new_function.restype = ctypes.py_object

new_float = types.ExternalFunction("PyFloat_FromDouble", int64(float64))
new_int = types.ExternalFunction("PyLong_FromLongLong", int64(int64))
is_true = types.ExternalFunction("PyObject_IsTrue", int32(int64))
_as_int = types.ExternalFunction("PyLong_AsLongLong", int64(int64))
_forget_error = types.ExternalFunction("PyErr_Clear", types.void())
_new_tuple = types.ExternalFunction("PyTuple_New", int64(int64))
_put = types.ExternalFunction("PyTuple_SetItem", int32(int64, int64, int64))  # takes over the reference
_address = ir.IntType(64)
CONTENT = bytes.__basicsize__ - 1
"""Where the bytes of a `bytes` object begin, from its address on."""


@compiled
def int_of(thing):  # type: ignore[no-untyped-def]
    """The number of an int, -1 for everything that is none."""
    value = _as_int(thing)
    if value == -1:
        _forget_error()
    return value


@compiled
def text_of(thing):  # type: ignore[no-untyped-def]
    """Address and length of the UTF-8 of a str, which has a zero behind it; the address is 0 if it has none, as a str
    with surrogates, or if it is no str."""
    address, size = _text_of(thing)
    if address == 0:
        _forget_error()
    return address, size


@compiled
def new_triple(first, second, third):  # type: ignore[no-untyped-def]
    """A tuple of three new objects, given by their addresses."""
    made = _new_tuple(3)
    _put(made, 0, first)
    _put(made, 1, second)
    _put(made, 2, third)
    return made


@intrinsic
def _text_of(typingctx, thing):  # type: ignore[no-untyped-def]
    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(_address, [_address, _address.as_pointer()])
        call = cgutils.get_or_insert_function(builder.module, kind, "PyUnicode_AsUTF8AndSize")
        size = cgutils.alloca_once_value(builder, _address(0))
        address = builder.call(call, [args[0], size])
        return context.make_tuple(builder, signature.return_type, [address, builder.load(size)])

    return types.UniTuple(types.int64, 2)(types.int64), codegen
