"""The compiled loops of the forward pass of `ctc`, in the notation of its docstring."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int32
from numba.extending import overload
from numpy.typing import NDArray

from megahour.core.compiled import compiled, put

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
UNREACHABLE = np.float32(-1e30)
TILE = 512  # columns whose rows fit the first-level cache
GROUP = 4  # frames whose 8-bit costs fit an int32
LANES = 64  # columns of an unrolled vector loop, at most


class Trellis(NamedTuple):
    """A `ctc.Problem` as arguments of the kernels.

    repeat: (U,) score of entering each token directly from the one before: 0, or UNREACHABLE if the two are the same.
    """

    blank: int
    free: int
    star_nats: np.float32
    tokens: Int32
    repeat: Float32
    boundaries: Int32
    star: NDArray[np.bool_]
    skip_nats: Float32


@compiled
def _frame(frame, scale, blank, free, star_nats, t, table):  # type: ignore[no-untyped-def]
    """Store the costs of frame t in `table`; return a[blank] and the score of a frame at a star boundary."""
    best = frame.min() if scale < 0 else frame.max()
    costs = frame - best
    _pack(costs, t, table)  # type: ignore[no-untyped-call]
    silence = np.float32(costs[blank]) * scale
    starred = max(silence, -star_nats)
    if free >= 0:
        starred = max(starred, np.float32(costs[free]) * scale)
    return silence, starred


def _pack(costs, t, table):  # type: ignore[no-untyped-def]
    """Store a frame's `costs` (V,), in units of the posteriors below its best, where `_gather` reads frame t."""
    raise NotImplementedError("compiled code only")


def _gather(table, group, tokens, scale, costs):  # type: ignore[no-untyped-def]
    """Fill `costs` (GROUP, n) with a[y[u]] in nats of the group's frames.

    Looking up the unit of each cell is slower than the recursion itself and keeps LLVM from vectorising it. So tokens
    are looked up beforehand, 8-bit costs for four frames at a time.
    """
    raise NotImplementedError("compiled code only")


@overload(_pack)
def _pack_for(costs, t, table):  # type: ignore[no-untyped-def]
    if table.dtype == int32:

        def packed(costs, t, table):  # type: ignore[no-untyped-def]
            group, shift = t // GROUP, np.int32(8 * (t % GROUP))
            for v in range(costs.shape[0]):
                value = np.int32(costs[v]) << shift
                table[group, v] = np.int32(value if shift == 0 else table[group, v] | value)

        return packed

    def plain(costs, t, table):  # type: ignore[no-untyped-def]
        put(table[t], costs)

    return plain


@overload(_gather)
def _gather_for(table, group, tokens, scale, costs):  # type: ignore[no-untyped-def]
    if table.dtype == int32:

        def packed(table, group, tokens, scale, costs):  # type: ignore[no-untyped-def]
            row, n = table[group], tokens.shape[0]
            first, second, third, fourth = costs[0], costs[1], costs[2], costs[3]
            four = np.empty(n, np.int32)
            for i in range(n):
                four[i] = row[tokens[i]]
            for i in range(n):
                first[i] = np.float32(np.int32(four[i] & 255)) * scale
                second[i] = np.float32(np.int32((four[i] >> 8) & 255)) * scale
                third[i] = np.float32(np.int32((four[i] >> 16) & 255)) * scale
                fourth[i] = np.float32(np.int32((four[i] >> 24) & 255)) * scale

        return packed

    def plain(table, group, tokens, scale, costs):  # type: ignore[no-untyped-def]
        for k in range(GROUP):
            row, out = table[group * GROUP + k], costs[k]
            for i in range(tokens.shape[0]):
                out[i] = row[tokens[i]] * scale

    return plain


@compiled
def _step(costs, silence, repeat, rest, emit, emit_next, emit_out):  # type: ignore[no-untyped-def]
    """One frame of a tile. `emit_next`, `emit_out` are rows shifted by one: plain indices let LLVM vectorise."""
    for i in range(costs.shape[0]):
        before, stay = emit[i], rest[i]
        emit_out[i] = costs[i] + max(emit_next[i], max(stay, before + repeat[i]))
        rest[i] = silence + max(stay, before)


@compiled
def _tile(  # type: ignore[no-untyped-def]
    table, scale, silences, starreds, tokens, repeat, at, star, skip_nats, previous, left, rest, row
):
    """One block's frames for n neighbouring columns, few enough for the cache.

    at: the tile's boundaries, counted from its first column; skip_nats: cost of the cue before each, and star: whether
    it may be untranscribed speech. previous (frames,): rest at the boundary before; becomes that of the tile's last
    one. left (frames+1,): emit of the token before the tile, from the row before the block on; becomes that of the
    tile's last token. rest (n,), row (n+1,): rest, and emit shifted by one, before the block; rest becomes that after
    it, and the row after it is returned.
    """
    n = tokens.shape[0]
    row_out, costs, stays = np.empty(n + 1, np.float32), np.empty((GROUP, n), np.float32), np.empty(len(at), np.float32)
    frames = silences.shape[0]
    for t in range(frames):
        if t % GROUP == 0:
            _gather(table, t // GROUP, tokens, scale, costs)  # type: ignore[no-untyped-call]
        row[0], left[t] = left[t], row[n]
        for k in range(at.shape[0]):  # the step overwrites rest; the star needs it
            stays[k] = max(rest[at[k]], row[at[k]])
        _step(costs[t % GROUP], silences[t], repeat, rest, row, row[1:], row_out[1:])
        skipped = previous[t]
        for k in range(at.shape[0]):
            skipped = max((starreds[t] if star[k] else silences[t]) + stays[k], skipped - skip_nats[k])
            rest[at[k]] = skipped
        previous[t] = skipped
        row, row_out = row_out, row
    left[frames] = row[n]
    return row


@compiled
def _sweep(  # type: ignore[no-untyped-def]
    block, table, scale, silences, starreds, tokens, repeat, boundaries, star, before, peak, rests, emits
):
    """Work through a block's columns, filled up to whole vectors: row block of rests and emits gives row block+1."""
    n, columns, j = rests.shape[1] - 1, tokens.shape[0], 0
    previous, left = np.full(silences.shape[0], UNREACHABLE), np.full(silences.shape[0] + 1, UNREACHABLE)
    for low in range(0, columns, TILE):
        stop = min(low + TILE, columns)
        known, high = min(stop, n + 1), j
        while high < boundaries.shape[0] and boundaries[high] < stop:
            high += 1
        rest, row = np.full(stop - low, UNREACHABLE), np.full(stop - low + 1, UNREACHABLE)
        for i in range(known - low):
            rest[i], row[i] = rests[block, low + i] - peak, emits[block, low + i] - peak
        if known < n + 1:
            row[known - low] = emits[block, known] - peak
        left[0] = row[0]
        row = _tile(
            table,
            scale,
            silences,
            starreds,
            tokens[low:stop],
            repeat[low:stop],
            boundaries[j:high] - np.int32(low),
            star[j:high],
            before[j:high],
            previous,
            left,
            rest,
            row,
        )
        put(rests[block + 1, low:], rest[: known - low])
        put(emits[block + 1, low + 1 :], row[1 : known - low])
        if known < n + 1:
            emits[block + 1, known] = row[known - low]
        j = high


@compiled
def forward(posteriors, scale, trellis, every, table, rests, emits, peaks):  # type: ignore[no-untyped-def]
    """Fill rests, emits (blocks+1, U+1): the rows before frame block*every; row u of emits is token u-1.

    table: space for a block's costs, (every / GROUP, V) int32 for 8-bit posteriors, (every, V) float32 for others. A
    block starts from its row less the row's peak, so that scores stay small enough for float32. Within a block the
    columns are worked through tile by tile, each over all frames, so that rows stay in the cache; the last tile is
    filled up to whole vectors with columns that nothing depends on.
    """
    blank, free, star_nats, tokens, repeat, boundaries, star, skip_nats = trellis
    n = tokens.shape[0]
    rests[0], emits[0] = UNREACHABLE, UNREACHABLE
    rests[0, 0] = np.float32(0.0)
    for j in range(skip_nats.shape[0]):
        rests[0, boundaries[j + 1]] = max(rests[0, boundaries[j + 1]], rests[0, boundaries[j]] - skip_nats[j])
    columns = -(-(n + 1) // LANES) * LANES
    filled, blocked = np.zeros(columns, np.int32), np.full(columns, UNREACHABLE)
    put(filled, tokens)
    put(blocked, repeat)
    before = np.full(star.shape[0], -UNREACHABLE)  # cost of the cue before each boundary
    put(before[1:], skip_nats)
    silences, starreds = np.empty(every, np.float32), np.empty(every, np.float32)
    for block in range(rests.shape[0] - 1):
        begin = block * every
        frames = min(every, posteriors.shape[0] - begin)
        for t in range(frames):
            silences[t], starreds[t] = _frame(posteriors[begin + t], scale, blank, free, star_nats, t, table)
        peaks[block] = max(rests[block].max(), emits[block].max())
        _sweep(
            block,
            table,
            scale,
            silences[:frames],
            starreds[:frames],
            filled,
            blocked,
            boundaries,
            star,
            before,
            peaks[block],
            rests,
            emits,
        )
        emits[block + 1, 0] = UNREACHABLE
