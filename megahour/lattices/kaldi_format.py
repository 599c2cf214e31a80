"""Kaldi's compact lattices in binary and text form, and its plain lattices: archives of OpenFst `vector` FSTs.

An entry is a key, a space and an FST, which begins with OpenFst's magic number if binary, or with a newline if text.
Weights are (graph cost, acoustic cost). In compact lattices they include a string of transition ids, one per frame;
these are our labels + 1. The formats are defined in Kaldi's lat/kaldi-lattice.h and fstext/lattice-weight.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from megahour.lattices.lattice import Lattice
from megahour.lattices.loose import WeightedLink, from_links
from megahour.units.fst import MAGIC

COMPACT, PLAIN = b"compactlattice44", b"lattice4"
TO_COMPACT = "convert with lattice-copy --write-compact=true"
MOST = 1 << 26  # most states, arcs of a state, or labels of an arc to read
Numbers = Mapping[str, int]


def compact_bytes(lattice: Lattice, numbers: Numbers) -> bytes:
    """A binary compact lattice. numbers: of each word in Kaldi's words.txt. Raises ValueError: a word has no number."""
    first, words, strings = _columns(lattice, numbers)
    closing, states = _closing(lattice)
    parts = [_header(COMPACT, states, lattice.arcs - len(closing))]
    for state in range(lattice.states - 1):
        last = closing.get(state)
        arcs = [arc for arc in range(first[state], first[state + 1]) if arc != last]
        final = (np.inf, np.inf, ()) if last is None else (lattice.graph[last], lattice.acoustic[last], strings[last])
        parts.append(_weight(*final) + struct.pack("<q", len(arcs)))
        for arc in arcs:
            weight = _weight(lattice.graph[arc], lattice.acoustic[arc], strings[arc])
            parts.append(struct.pack("<ii", words[arc], words[arc]) + weight + struct.pack("<i", lattice.target[arc]))
    if states == lattice.states:
        parts.append(_weight(0.0, 0.0, ()) + struct.pack("<q", 0))
    return b"".join(parts)


def compact_text(lattice: Lattice, numbers: Numbers) -> str:
    """A compact lattice as text: lines `source target word graph,acoustic,1_2_3` (arcs) and `state weight` (final)."""
    _, words, strings = _columns(lattice, numbers)
    closing, states = _closing(lattice)
    lines = ["\n"]
    for arc in range(lattice.arcs):
        string = "_".join(map(str, strings[arc]))
        weight = f"{lattice.graph[arc]:.9g},{lattice.acoustic[arc]:.9g},{string}"
        source, target = int(lattice.source[arc]), int(lattice.target[arc])
        last = closing.get(source) == arc
        lines.append(f"{source}\t{weight}\n" if last else f"{source}\t{target}\t{words[arc]}\t{weight}\n")
    if states == lattice.states:
        lines.append(f"{lattice.states - 1}\n")
    return "".join([*lines, "\n"])


def _closing(lattice: Lattice) -> tuple[dict[int, int], int]:
    """By state, its arc that becomes the weight with which it is final; and how many states are written.

    An arc into the last state with a word, or beside another such arc, stays an arc, and the last state a state: other
    recognisers' lattices have these.
    """
    into = np.flatnonzero(lattice.target == lattice.states - 1)
    closing = {int(lattice.source[arc]): int(arc) for arc in into[::-1] if not lattice.word[arc]}
    return closing, lattice.states - (len(closing) == len(into))


def plain_bytes(lattice: Lattice, numbers: Numbers) -> bytes:
    """A plain lattice for readers of Kaldi's `lattice4` arcs: an arc per transition id.

    The first of a word's arcs has the word and the weights.
    """
    _, words, strings = _columns(lattice, numbers)
    out: list[list[tuple[int, int, float, float, int]]] = [[] for _ in range(lattice.states)]
    for arc in range(lattice.arcs):
        state, target, string = int(lattice.source[arc]), int(lattice.target[arc]), strings[arc] or (0,)
        for place, label in enumerate(string):
            after = target if place == len(string) - 1 else len(out)
            if after == len(out):
                out.append([])
            weight = (lattice.graph[arc], lattice.acoustic[arc]) if not place else (0.0, 0.0)
            out[state].append((label, 0 if place else words[arc], *weight, after))
            state = after
    parts = [_header(PLAIN, len(out), sum(map(len, out)))]
    for state, arcs in enumerate(out):
        final = 0.0 if state == lattice.states - 1 else np.inf
        parts.append(struct.pack("<ffq", final, final, len(arcs)))
        parts += [struct.pack("<iiffi", *arc) for arc in arcs]
    return b"".join(parts)


def _columns(lattice: Lattice, numbers: Numbers) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
    """The first arc of each state, and each arc's word number and transition ids."""
    first = np.searchsorted(lattice.source, np.arange(lattice.states + 1)).tolist()
    spelled = [lattice.words[word] if word else None for word in lattice.word.tolist()]
    if missing := {word for word in spelled if word is not None} - numbers.keys():
        raise ValueError(f"{sorted(missing)[0]!r} is not in the graph's words.txt")
    lengths = (lattice.frame[lattice.target] - lattice.frame[lattice.source]).tolist()
    ids, at, strings = (lattice.labels + 1).tolist(), 0, []
    for length in lengths if ids else ():
        strings.append(tuple(ids[at : at + length]))
        at += length
    return first, [0 if word is None else numbers[word] for word in spelled], strings or [()] * lattice.arcs


def _header(kind: bytes, states: int, arcs: int) -> bytes:
    names = b"".join(struct.pack("<i", len(name)) + name for name in (b"vector", kind))
    return struct.pack("<i", MAGIC) + names + struct.pack("<iiQqqq", 2, 0, 3, 0, states, arcs)


def _weight(graph: float, acoustic: float, string: Sequence[int]) -> bytes:
    return struct.pack(f"<ffi{len(string)}i", graph, acoustic, len(string), *string)


def read_archive(file: BinaryIO, words: Sequence[str]) -> Iterator[tuple[str, Lattice | ValueError]]:
    """Keys and compact lattices of an archive with binary or text entries; an error in place of an unusable lattice.

    words: the word of each number. Raises ValueError: the archive is damaged, so that nothing after that is readable.
    """
    while key := _key(file):
        begins = file.read(1)
        is_binary = begins == struct.pack("<i", MAGIC)[:1]
        if begins == b"\r":  # of a text with lines as in Windows
            file.readline()
        entry = _binary(file) if is_binary else None  # a text entry always ends at an empty line
        lines = [] if is_binary else list(iter(lambda: file.readline().rstrip(), b""))
        try:
            yield key, from_links(*(entry or _text(lines)), words)
        except ValueError as error:
            yield key, error
        except (ArithmeticError, LookupError) as error:
            yield key, ValueError(f"a number is out of range: {error}")


def _key(file: BinaryIO) -> str:
    key = bytearray()
    while (c := file.read(1)) and not (c.isspace() and key):
        key += c.strip()
        if len(key) > 1 << 12:
            raise ValueError("a key has more than 4,096 bytes, so this is not a Kaldi archive")
    if c == b"\n":
        file.seek(-1, 1)  # the newline belongs to the text entry
    return key.decode("utf-8", "replace")


Read = tuple[list[WeightedLink], dict[int, WeightedLink]]


def _binary(file: BinaryIO) -> Read:
    """Links and final weights of a binary entry whose first byte has been read."""
    (_,) = _unpack(file, "3s")
    names = [file.read(_bounded(_unpack(file, "i")[0], 64)) for _ in range(2)]
    if names != [b"vector", COMPACT]:
        raise ValueError(f"an FST of type {names}, not a compact lattice: {TO_COMPACT}")
    _, flags, _, start, states, _ = _unpack(file, "iiQqqq")
    if flags:
        raise ValueError(f"an FST with symbol tables (flags {flags}) is not supported")
    links, finals = [], {}
    for state in range(_bounded(states)):
        weight = _read_weight(file)
        if weight[0] < np.inf and weight[1] < np.inf:
            finals[state] = WeightedLink(state, -1, 0, *weight)
        for _ in range(_bounded(_unpack(file, "q")[0])):
            _, word = _unpack(file, "ii")
            weight = _read_weight(file)
            links.append(WeightedLink(state, _unpack(file, "i")[0], word, *weight))
    return _from_start(links, finals, start)


def _from_start(links: list[WeightedLink], finals: dict[int, WeightedLink], start: int) -> Read:
    """States `start` and 0 trade numbers, because lattices begin in state 0; an FST without a start has no path."""
    if start <= 0:
        return ([], {}) if start else (links, finals)
    number = {start: 0, 0: start}

    def renumbered(link: WeightedLink) -> WeightedLink:
        source, target = (number.get(state, state) for state in (link.source, link.target))
        return link._replace(source=source, target=target)

    return [*map(renumbered, links)], {number.get(state, state): renumbered(link) for state, link in finals.items()}


def _read_weight(file: BinaryIO) -> tuple[float, float, tuple[int, ...]]:
    graph, acoustic, length = _unpack(file, "ffi")
    return graph, acoustic, _unpack(file, f"{_bounded(length)}i")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    data = file.read(struct.calcsize(f"<{form}"))
    if len(data) != struct.calcsize(f"<{form}"):
        raise ValueError("the archive ends within a lattice")
    return struct.unpack(f"<{form}", data)


def _bounded(number: int, most: int = MOST) -> int:
    if not 0 <= number <= most:
        raise ValueError(f"it declares {number} states, arcs or labels, so the archive is damaged")
    return number


def _text(lines: Iterable[bytes]) -> Read:
    """Links and final weights of a text entry, which begins in the state of its first line."""
    links, finals, start = [], {}, None
    for line in lines:
        fields = line.decode("utf-8", "replace").split()
        if len(fields) == 5:
            raise ValueError(f"{line[:60]!r} is a line of a plain lattice: {TO_COMPACT}")
        try:
            graph, acoustic, string = fields[-1].split(",") if len(fields) in (2, 4) else ("0", "0", "")
            weight = float(graph), float(acoustic), tuple(map(int, string.split("_"))) if string else ()
            state = int(fields[0])
            start = state if start is None else start
            if len(fields) < 3:
                finals[state] = WeightedLink(state, -1, 0, *weight)
            else:
                links.append(WeightedLink(state, int(fields[1]), int(fields[2]), *weight))
        except (ValueError, IndexError):
            raise ValueError(f"{line[:60]!r} is not a line of a compact lattice") from None
    return _from_start(links, finals, start or 0)
