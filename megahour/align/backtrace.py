"""The compiled loops that trace the path of `ctc` back, in the notation of its docstring."""

from __future__ import annotations

import numpy as np

from megahour.align.kernels import UNREACHABLE
from megahour.core.compiled import compiled

_FROM_EMIT, _STAY, _FROM_REST, _FROM_PREVIOUS, _SKIPPED = 1, 0, 2, 4, 8


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


@compiled
def replay(posteriors, scale, trellis, low, rest, emit, peak, resting, moves):  # type: ignore[no-untyped-def]
    """Recompute columns low .. low+W-1 of a block, noting each cell's move (frames, W); the end state's score."""
    blank, free, star_nats, tokens, repeat, boundaries, star, skip_nats = trellis
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
