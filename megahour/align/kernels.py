"""The compiled loops of `ctc`, in the notation of its docstring."""

from __future__ import annotations

import numpy as np
from numba import int32
from numba.extending import overload

from megahour.align.compiled import compiled

UNREACHABLE = np.float32(-1e30)
TILE = 512  # columns whose rows fit the first-level cache
GROUP = 4  # frames whose 8-bit costs fit an int32
LANES = 64  # columns of an unrolled vector loop, at most
_FROM_EMIT, _STAY, _FROM_REST, _FROM_PREVIOUS, _SKIPPED = 1, 0, 2, 4, 8


@compiled
def _frame(frame, scale, blank, free, star_nats, t, table):  # type: ignore[no-untyped-def]
    """Put frame t into `table`; return a[blank] and the score of a frame at a star boundary."""
    best = frame.min() if scale < 0 else frame.max()
    costs = frame - best
    _pack(costs, t, table)  # type: ignore[no-untyped-call]
    silence = np.float32(costs[blank]) * scale
    starred = max(silence, -star_nats)
    if free >= 0:
        starred = max(starred, np.float32(costs[free]) * scale)
    return silence, starred


@compiled
def _emissions(frame, scale, blank, free, star_nats, emission):  # type: ignore[no-untyped-def]
    """Fill `emission` (V,) with a[v]; return a[blank] and the score of a frame at a star boundary."""
    best = np.float32(frame[0]) * scale
    for v in range(frame.shape[0]):
        emission[v] = np.float32(frame[v]) * scale
        best = max(best, emission[v])
    for v in range(frame.shape[0]):
        emission[v] -= best
    silence = emission[blank]
    starred = max(silence, -star_nats)
    if free >= 0:
        starred = max(starred, emission[free])
    return silence, starred


def _pack(costs, t, table):  # type: ignore[no-untyped-def]
    """Put a frame's `costs` (V,), in units of the posteriors below its best, where `_gather` looks for frame t."""
    raise NotImplementedError("compiled code only")


def _gather(table, group, tokens, scale, costs):  # type: ignore[no-untyped-def]
    """Fill `costs` (GROUP, n) with a[y[u]] in nats of the group's frames.

    Looking up a unit a cell costs more than the cell, and keeps LLVM from vectorising what is around it. So tokens are
    looked up apart from the recursion, and 8-bit costs four frames at a time.
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
        table[t, :] = costs

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
def forward(  # type: ignore[no-untyped-def]
    posteriors,
    scale,
    blank,
    free,
    star_nats,
    tokens,
    repeat,
    boundaries,
    star,
    skip_nats,
    every,
    table,
    rests,
    emits,
    peaks,
):
    """Fill rests, emits (blocks+1, U+1): the rows before frame block*every; row u of emits is token u-1.

    table: space for a block's costs, (every / GROUP, V) int32 for 8-bit posteriors, (every, V) float32 for others. A
    block starts from its row less the row's peak, so that scores stay small enough for float32. Within a block the
    columns are worked through tile by tile, each over all frames, so that rows stay in the cache; the last tile is
    filled up to whole vectors with columns that nothing depends on.
    """
    n = tokens.shape[0]
    rests[0], emits[0] = UNREACHABLE, UNREACHABLE
    rests[0, 0] = np.float32(0.0)
    for j in range(skip_nats.shape[0]):
        rests[0, boundaries[j + 1]] = max(rests[0, boundaries[j + 1]], rests[0, boundaries[j]] - skip_nats[j])
    columns = -(-(n + 1) // LANES) * LANES
    filled, blocked = np.zeros(columns, np.int32), np.full(columns, UNREACHABLE)
    filled[:n], blocked[:n] = tokens, repeat
    before = np.full(star.shape[0], -UNREACHABLE)  # cost of the cue before each boundary
    before[1:] = skip_nats
    silences, starreds = np.empty(every, np.float32), np.empty(every, np.float32)
    previous, left = np.empty(every, np.float32), np.empty(every + 1, np.float32)
    for block in range(rests.shape[0] - 1):
        begin = block * every
        frames = min(every, posteriors.shape[0] - begin)
        for t in range(frames):
            silences[t], starreds[t] = _frame(posteriors[begin + t], scale, blank, free, star_nats, t, table)
        peaks[block] = max(rests[block].max(), emits[block].max())
        previous[:], left[:] = UNREACHABLE, UNREACHABLE
        j = 0
        for low in range(0, columns, TILE):
            stop = min(low + TILE, columns)
            known, high = min(stop, n + 1), j
            while high < boundaries.shape[0] and boundaries[high] < stop:
                high += 1
            rest, row = np.full(stop - low, UNREACHABLE), np.full(stop - low + 1, UNREACHABLE)
            rest[: known - low] = rests[block, low:known] - peaks[block]
            row[: known - low] = emits[block, low:known] - peaks[block]
            if known < n + 1:
                row[known - low] = emits[block, known] - peaks[block]
            left[0] = row[0]
            row = _tile(
                table,
                scale,
                silences[:frames],
                starreds[:frames],
                filled[low:stop],
                blocked[low:stop],
                boundaries[j:high] - np.int32(low),
                star[j:high],
                before[j:high],
                previous[:frames],
                left[: frames + 1],
                rest,
                row,
            )
            rests[block + 1, low:known] = rest[: known - low]
            emits[block + 1, low + 1 : known] = row[1 : known - low]
            if known < n + 1:
                emits[block + 1, known] = row[known - low]
            j = high
        emits[block + 1, 0] = UNREACHABLE


@compiled
def replay(  # type: ignore[no-untyped-def]
    posteriors,
    scale,
    blank,
    free,
    star_nats,
    tokens,
    repeat,
    boundaries,
    star,
    skip_nats,
    low,
    rest,
    emit,
    peak,
    resting,
    moves,
):
    """Recompute columns low .. low+W-1 of a block, noting each cell's move (frames, W); the end state's score."""
    width = moves.shape[1]
    emission = np.empty(posteriors.shape[1], np.float32)
    rest, emit = rest - peak, emit - peak
    rest_out, emit_out = rest.copy(), emit.copy()
    first = np.searchsorted(boundaries, low)
    for t in range(posteriors.shape[0]):
        silence, starred = _emissions(posteriors[t], scale, blank, free, star_nats, emission)
        emit_out[0] = UNREACHABLE
        for i in range(width):
            before, stay = emit[i], rest[i]
            move = _FROM_EMIT if before > stay else _STAY
            rest_out[i] = silence + max(stay, before)
            if i + 1 < width:
                u = low + i
                best, previous = emit[i + 1], before + repeat[u]
                if stay > best and stay >= previous:
                    best, move = stay, move | _FROM_REST
                elif previous > best:
                    best, move = previous, move | _FROM_PREVIOUS
                emit_out[i + 1] = emission[tokens[u]] + best
            moves[t, i] = move
        for j in range(first, star.shape[0]):
            i = boundaries[j] - low
            if i >= width:
                break
            if star[j]:
                rest_out[i] = starred + max(rest[i], emit[i])
            if j > first:
                skipped = rest_out[boundaries[j - 1] - low] - skip_nats[j - 1]
                if skipped > rest_out[i]:
                    rest_out[i] = skipped
                    moves[t, i] |= _SKIPPED
        rest, rest_out = rest_out, rest
        emit, emit_out = emit_out, emit
    return rest[width - 1] if resting else emit[width - 1]


@compiled
def walk(moves, low, boundaries, resting, column, states):  # type: ignore[no-untyped-def]
    """Follow the moves from the end state to the block's first frame; return the state before it."""
    for t in range(moves.shape[0] - 1, -1, -1):
        if resting:
            while moves[t, column - low] & _SKIPPED:
                column = boundaries[np.searchsorted(boundaries, column) - 1]
            states[t] = ~column
            resting = (moves[t, column - low] & _FROM_EMIT) == 0
        else:
            states[t] = column - 1
            move = moves[t, column - 1 - low]
            if move & _FROM_REST:
                resting, column = True, column - 1
            elif move & _FROM_PREVIOUS:
                column -= 1
    return resting, column
