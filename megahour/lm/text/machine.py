"""The functions of `intrinsics` for compiled code. They are loaded on first use, because `intrinsics` imports numba."""

from __future__ import annotations

from typing import Any

from megahour.core.machine_code import Later

_INTRINSICS = "megahour.lm.text.intrinsics"
carray: Any = Later("numba", "carray")
load8: Any = Later(_INTRINSICS, "load8")
store8: Any = Later(_INTRINSICS, "store8")
lines64: Any = Later(_INTRINSICS, "lines64")
parts64: Any = Later(_INTRINSICS, "parts64")
copy16: Any = Later(_INTRINSICS, "copy16")
trailing_zeros: Any = Later(_INTRINSICS, "trailing_zeros")
prefetch: Any = Later(_INTRINSICS, "prefetch")
address_of: Any = Later(_INTRINSICS, "address_of")
pointer: Any = Later(_INTRINSICS, "pointer")
int32_at: Any = Later(_INTRINSICS, "int32_at")
int64_at: Any = Later(_INTRINSICS, "int64_at")
uint64_at: Any = Later(_INTRINSICS, "uint64_at")
float32_at: Any = Later(_INTRINSICS, "float32_at")
prefetch_at: Any = Later(_INTRINSICS, "prefetch_at")
room_for_64: Any = Later(_INTRINSICS, "room_for_64")
room_for_128: Any = Later(_INTRINSICS, "room_for_128")
room_for_512: Any = Later(_INTRINSICS, "room_for_512")
