"""The compiled loops of `ctc`, in the notation of its docstring."""

from __future__ import annotations

import numpy as np
from numba import njit

UNREACHABLE = np.float32(-1e30)
TILE = 512
_FROM_EMIT, _STAY, _FROM_REST, _FROM_PREVIOUS, _SKIPPED = 1, 0, 2, 4, 8


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _step(emission, silence, tokens, repeat, rest, emit, emit_next, rest_out, emit_out):  # type: ignore[no-untyped-def]
    """One frame of a tile. `emit_next`, `emit_out` are rows shifted by one: plain indices let LLVM vectorise."""
    for u in range(tokens.shape[0]):
        before, stay = emit[u], rest[u]
        rest_out[u] = silence + max(stay, before)
        emit_out[u] = emission[tokens[u]] + max(emit_next[u], max(stay, before + repeat[u]))


@njit(cache=True, nogil=True)
def _tile(emissions, silences, tokens, repeat, column, left, rest, emit):  # type: ignore[no-untyped-def]
    """One block's frames for n neighbouring columns, small enough for the cache.

    column (frames,): the finished first column of rest. left (frames+1,): emit of the token before the tile, from
    the row before the block on; becomes that of the tile's last token. rest, emit (n,): rows of rest and of the
    tile's own tokens before the block; become those after it.
    """
    n = tokens.shape[0]
    row, row_out = np.empty(n + 1, np.float32), np.empty(n + 1, np.float32)
    stay, stay_out = rest.copy(), np.empty_like(rest)
    row[1:] = emit
    for t in range(column.shape[0]):
        row[0], left[t] = left[t], row[n]
        _step(emissions[t], silences[t], tokens, repeat, stay, row, row[1:], stay_out, row_out[1:])
        stay_out[0] = column[t]
        row, row_out = row_out, row
        stay, stay_out = stay_out, stay
    left[column.shape[0]] = row[n]
    rest[:], emit[:] = stay, row[1:]


@njit(cache=True, nogil=True)
def _boundary(silences, starreds, star, skip, left, previous, rest, column):  # type: ignore[no-untyped-def]
    """Fill `column` (frames,) with rest at the first column of a tile, whose row before the block is `rest`.

    previous: (frames,) rest at the cue boundary before it, from which `skip` leads here.
    """
    for t in range(column.shape[0]):
        rest = (starreds[t] if star else silences[t]) + max(rest, left[t])
        rest = max(rest, previous[t] - skip)
        column[t] = rest


@njit(cache=True, nogil=True)
def forward(  # type: ignore[no-untyped-def]
    posteriors, scale, blank, free, star_nats, tokens, repeat, boundaries, star, skip_nats, every, rests, emits, peaks
):
    """Fill rests, emits (blocks+1, U+1): the rows before frame block*every; row u of emits is token u-1.

    A block starts from its row less the row's peak, so that scores stay small enough for float32. Within a block the
    columns are worked through tile by tile, each over all frames, so that rows stay in the cache.
    """
    n, units = tokens.shape[0], posteriors.shape[1]
    rests[0], emits[0] = UNREACHABLE, UNREACHABLE
    rests[0, 0] = np.float32(0.0)
    for j in range(skip_nats.shape[0]):
        rests[0, boundaries[j + 1]] = max(rests[0, boundaries[j + 1]], rests[0, boundaries[j]] - skip_nats[j])
    emissions = np.empty((every, units), np.float32)
    silences, starreds = np.empty(every, np.float32), np.empty(every, np.float32)
    column, previous, left = np.empty(every, np.float32), np.empty(every, np.float32), np.empty(every + 1, np.float32)
    for block in range(rests.shape[0] - 1):
        begin = block * every
        frames = min(every, posteriors.shape[0] - begin)
        for t in range(frames):
            silences[t], starreds[t] = _emissions(posteriors[begin + t], scale, blank, free, star_nats, emissions[t])
        peaks[block] = max(rests[block].max(), emits[block].max())
        rest, emit = rests[block + 1], emits[block + 1]
        rest[:] = rests[block] - peaks[block]
        emit[:] = emits[block] - peaks[block]
        left[:] = UNREACHABLE
        previous[:] = UNREACHABLE
        left[0] = emit[0]
        u, j = 0, 0
        while True:
            at_boundary = u == boundaries[j]
            skip = skip_nats[j - 1] if at_boundary and j > 0 else -UNREACHABLE
            starred = at_boundary and star[j]
            _boundary(silences, starreds, starred, skip, left, previous, rest[u], column[:frames])
            if at_boundary:
                previous[:frames] = column[:frames]
                j += 1
            if u == n:
                rest[n] = column[frames - 1]
                break
            stop = min(boundaries[j], u + TILE)
            _tile(
                emissions,
                silences,
                tokens[u:stop],
                repeat[u:stop],
                column[:frames],
                left[: frames + 1],
                rest[u:stop],
                emit[u + 1 : stop + 1],
            )
            u = stop
        emit[0] = UNREACHABLE


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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
