"""Inputs made wrong on purpose: bytes, lines and JSON values changed by a seeded generator, for tests of readers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

TOKENS = [
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x1a", b"\r", b"\x0b"),
    *("\u2028\u200d\u202e\u200f\u0130\ufeff\u0345\U000e0041\ufdfa\u0e33½٣".encode(), "e\u0301".encode() * 99, b"\x85"),
    *(b"\\ud800", b"\\u0000", b'"', b"'", b"{", b"[", b"}", b"]", b",", b":", b"\t", b"|", b"\n\n", b" --> ", b";"),
    *(b"NaN", b"Infinity", b"1e999", b"-1", b"-0", b"0", b"9" * 25, b"9" * 5000, b"1e-400", b"99:99:99,999", b"0x1F"),
    *(b"null", b"true", b"<v ", b"<script>", b"&#0;", b"&#55296;", b"&#1114112;", b"\\N{", b">>", b"[[" * 40, b"1_0"),
    *(b"/etc/passwd", b"../..", b"file:///x", b"http://[::1", b"s3://", b"data:,x", b"C:\\x", b"~", b"%00", b"((" * 40),
    *(b"[" * 5000, b'{"a":' * 3000, b"(" * 3000, b"<" * 3000, b"&" * 3000, b"-" * 3000, b"1." * 2000, b"CC-BY AND ("),
]  # fmt: skip
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1e308, -1e308, 10**30, -(10**400), 2**63, 2**31, 0.1, 1e-320, float("nan")),
    *("", " ", "\ud800", "\0", "x" * 2000, "1e999", "-1", "NaN", "١٢", "\u202e", "a\nb", "2024-13-99", "9" * 13),
    *([], {}, [[]], [None], [{}], {"": None}, {"text": {}}, ["\udfff"], [1, [2, [3]]], {"start": []}, float("inf")),
]  # fmt: skip


class Mutator:
    """Random changes from a seed, the same on every machine."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def bytes(self, data: bytes, head: int = 0) -> bytes:
        """`data` with one to four changes; with `head`, most of them within the first bytes, as headers are."""
        for _ in range(self._random.choice((1, 1, 1, 2, 4))):
            data = self._random.choice(_CHANGES)(self._random, data, head)
        return data

    def text(self, data: bytes) -> bytes:
        """A text: changed bytes or, where it is JSON, whole or by lines, more often a changed value of it."""
        changes = [lambda: self.bytes(data), lambda: self._lines(data), lambda: self.json(data)]
        return self._random.choice([*changes, changes[-1]])()

    def json(self, data: bytes) -> bytes:
        try:
            return _dumped(self._value(json.loads(data)))
        except ValueError:
            pass
        lines = data.splitlines(keepends=True)
        which = self._random.randrange(len(lines)) if lines else 0
        try:
            lines[which] = _dumped(self._value(json.loads(lines[which]))) + b"\n"
        except (ValueError, IndexError):
            return self.bytes(data)
        return b"".join(lines)

    def _lines(self, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        if len(lines) < 2:
            return self.bytes(data)
        a, b = (self._random.randrange(len(lines)) for _ in range(2))
        kind = self._random.randrange(4)
        if kind == 0:
            lines[a], lines[b] = lines[b], lines[a]
        elif kind == 1:
            del lines[a]
        elif kind == 2:
            lines.insert(b, lines[a])
        else:
            lines[a] = lines[a].rstrip(b"\r\n")
        return b"".join(lines)

    def _value(self, value: Any) -> Any:
        """`value` with a part of it replaced, removed, duplicated or renamed."""
        inner = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
        if not inner or self._random.random() < 0.1:
            return self._random.choice(VALUES)
        at = self._random.choice(inner)
        if isinstance(value[at], dict | list) and self._random.random() < 0.7:
            value[at] = self._value(value[at])
        elif self._random.random() < 0.6:
            value[at] = self._random.choice(VALUES)
        elif isinstance(value, list):
            value[at : at + 1] = self._random.choice(([], [value[at]] * 3))
        else:
            kept = value.pop(at)
            value.update(self._random.choice(({}, {self._random.choice(("x", "\ud801", "text", "")): kept})))
        return value


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def _place(random: random.Random, data: bytes, head: int) -> int:
    return random.randrange(min(len(data), head) + 1 if head and random.random() < 0.8 else len(data) + 1)


def _insert(random: random.Random, data: bytes, head: int) -> bytes:
    at = _place(random, data, head)
    return data[:at] + random.choice(TOKENS) + data[at:]


def _overwrite(random: random.Random, data: bytes, head: int) -> bytes:
    at = _place(random, data, head)
    new = random.choice((random.choice(TOKENS)[:8], random.randbytes(4), b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"))
    return data[:at] + new + data[at + len(new) :]


def _flip(random: random.Random, data: bytes, head: int) -> bytes:
    at = _place(random, data[:-1], head)
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :] if data else data


def _cut(random: random.Random, data: bytes, head: int) -> bytes:
    return data[: _place(random, data, 0)]


def _delete(random: random.Random, data: bytes, head: int) -> bytes:
    at = _place(random, data, head)
    return data[:at] + data[at + random.choice((1, 2, 7, 100)) :]


def _repeat(random: random.Random, data: bytes, head: int) -> bytes:
    a, b = sorted(_place(random, data, head) for _ in range(2))
    return data[:b] + data[a:b] * random.choice((1, 3, 50)) + data[b:]


_Change = Callable[[random.Random, bytes, int], bytes]
_CHANGES: Sequence[_Change] = (_insert, _insert, _overwrite, _flip, _cut, _delete, _repeat)
