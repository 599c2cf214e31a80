"""Finds anchors, reliable matches of text and audio, and aligns a long recording piece by piece between them.

An anchor is a k-mer of characters that occurs once in the text and once in the greedy CTC path. The longest chain of
anchors that rises in both is kept, thinned to those whose neighbours agree. Between two anchors the exact alignment of
`ctc` is a small problem: one hour is 49 M cells instead of 3,600 M. Subtitle times, if any, make k-mers unique within
their neighbourhood and reject distant matches; they never force a path.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.ctc import AlignmentPath, NoPathError, Problem, align, spans


@dataclass(frozen=True, slots=True)
class Anchoring:
    """length: characters of a k-mer. every_frames: shortest piece. max_hint_frames: how far subtitle times may be off;
    second_frames: frames of a second. max_cells: frames x tokens of a piece above which it is refused. max_refused:
    share of the tokens in refused pieces above which the whole is (`align` takes what `min_spoken` leaves)."""

    length: int = 10
    every_frames: int = 1500
    max_hint_frames: float = 2000.0
    second_frames: float = 1000 / 30
    max_cells: float = 4e9
    max_refused: float = 0.7


MOST_REPEATED = 0.85  # share of the k-mers around an anchor that recur; random orders of lines have less
AROUND = 15  # neighbourhood on either side, in lengths of a k-mer


class NoAnchorsError(NoPathError):
    """Text and audio share too few k-mers for a problem of this size, so they probably do not belong together."""


def greedy_path(posteriors: NDArray[Any], blank: int = 0) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The best unit of each frame of (T, V), repeats merged and blanks removed: (N,) units and (N,) first frames."""
    best = (posteriors.argmin(axis=1) if posteriors.dtype == np.uint8 else posteriors.argmax(axis=1)).astype(np.int32)
    first = np.ones(len(best), bool)
    first[1:] = best[1:] != best[:-1]
    frames = np.flatnonzero(first & (best != blank)).astype(np.int32)
    return best[frames], frames


def find_anchors(
    units: NDArray[np.int32],
    frames: NDArray[np.int32],
    problem: Problem,
    settings: Anchoring,
    hint_frames: NDArray[np.float64] | None = None,
) -> list[tuple[int, int]]:
    """Anchors (token, frame), rising in both: the token starts at that frame.

    units, frames: the greedy path. hint_frames: (J,) expected start of each cue, NaN where unknown.
    """
    solid = np.flatnonzero(problem.tokens != problem.free)
    heard = np.flatnonzero(units != problem.free)
    length = settings.length
    text_hash, path_hash = kmers(problem.tokens[solid], length), kmers(units[heard], length)
    expected = None if hint_frames is None else _expected(hint_frames, problem.boundaries, solid[: len(text_hash)])
    in_text, in_path = _matches(text_hash, path_hash, frames[heard], expected, settings.max_hint_frames)
    varied = _varied(text_hash, expected, settings.max_hint_frames, AROUND * length)[in_text]
    in_text, in_path = in_text[varied], in_path[varied]
    chain = longest_chain(in_path)
    middle = length // 2
    anchors: list[tuple[int, int]] = []
    last_frame = 0
    for i in np.flatnonzero(_agreed(in_text[chain], in_path[chain], length)):
        token, frame = int(solid[in_text[chain[i]] + middle]), int(frames[heard[in_path[chain[i]] + middle]])
        apart = token > 0 and problem.tokens[token] != problem.tokens[token - 1]
        if apart and frame - last_frame >= settings.every_frames:
            anchors.append((token, frame))
            last_frame = frame
    return anchors


def anchors_of(
    posteriors: NDArray[Any], problem: Problem, settings: Anchoring, hint_frames: NDArray[np.float64] | None = None
) -> list[tuple[int, int]]:
    """`find_anchors` in the greedy path of posteriors (T, V), without the hints if they leave no anchor."""
    units, frames = greedy_path(posteriors, problem.blank)
    anchors = find_anchors(units, frames, problem, settings, hint_frames)
    if not anchors and hint_frames is not None:
        anchors = find_anchors(units, frames, problem, settings)
    return anchors


def align_pieces(
    posteriors: NDArray[Any], problem: Problem, anchors: list[tuple[int, int]], settings: Anchoring
) -> tuple[AlignmentPath, NDArray[np.bool_]]:
    """`ctc.align` of each piece between `anchors`; returns the path, and (J,) which cues were refused.

    A piece of more than `max_cells` is not aligned: its cues, including those it shares with its neighbours, are
    refused, and its frames are rest. A piece without a path is merged with its neighbours. Raises NoAnchorsError if
    more than `max_refused` of the tokens are in refused pieces, NoPathError if there is no path at all.
    """
    kept = list(anchors)
    while True:
        try:
            return _piecewise(posteriors, problem, kept, settings)
        except _NoPathInPiece as error:
            if not kept:
                raise
            del kept[max(0, error.piece - 1) : error.piece + 1]


class _NoPathInPiece(NoPathError):
    """`piece` counts from 0: it begins at anchor piece-1 and ends at anchor `piece`."""

    def __init__(self, error: NoPathError, piece: int) -> None:
        super().__init__(error.message, where=error.where, remedy=error.remedy)
        self.piece = piece


def _piecewise(
    posteriors: NDArray[Any], problem: Problem, anchors: list[tuple[int, int]], settings: Anchoring
) -> tuple[AlignmentPath, NDArray[np.bool_]]:
    edges = [(0, 0), *anchors, (len(problem.tokens), len(posteriors))]
    states, score = np.empty(len(posteriors), np.int32), 0.0
    refused = np.zeros(len(problem.skip_nats), bool)
    lost_tokens = 0
    for i, ((token, frame), (next_token, next_frame)) in enumerate(pairwise(edges)):
        if (next_frame - frame) * (next_token - token) > settings.max_cells:
            refused[_cues_between(problem, token, next_token)] = True
            states[frame:next_frame] = ~token
            lost_tokens += next_token - token
            if lost_tokens > settings.max_refused * len(problem.tokens):
                size = f"{next_token - token} tokens and {next_frame - frame} frames without an anchor"
                raise NoAnchorsError(size, remedy="check that text and audio belong together, or raise max_cells")
            continue
        try:
            piece = align(posteriors[frame:next_frame], part(problem, token, next_token))
        except NoPathError as error:
            raise _NoPathInPiece(error, i) from error
        states[frame:next_frame] = np.where(piece.states >= 0, piece.states + token, piece.states - token)
        score += piece.score
    silence(states, problem, refused)
    return AlignmentPath(states, *spans(states, len(problem.tokens)), score), refused


def _cues_between(problem: Problem, begin: int, end: int) -> slice:
    """The cues with at least one token in begin .. end-1."""
    first = int(np.searchsorted(problem.boundaries, begin, "right")) - 1
    return slice(first, int(np.searchsorted(problem.boundaries, end)))


def silence(states: NDArray[np.int32], problem: Problem, cues: NDArray[np.bool_]) -> None:
    """Turn all frames inside `cues` (J,) into rest before the cue; an anchor may have cut one in two."""
    if not cues.any():
        return
    token = np.where(states >= 0, states, ~states)
    cue = np.minimum(np.searchsorted(problem.boundaries, token, "right") - 1, len(cues) - 1)
    before = problem.boundaries[cue]
    inside = cues[cue] & ((states >= 0) | (token > before)) & (token < problem.boundaries[-1])
    states[inside] = ~before[inside]


def part(problem: Problem, begin: int, end: int) -> Problem:
    """Tokens begin .. end-1 as a separate problem. A cut cue must be spoken, and the cut has no star."""
    bounds = problem.boundaries
    first, last = int(np.searchsorted(bounds, begin, "right")) - 1, int(np.searchsorted(bounds, end))
    inner = slice(first + 1, last)
    skip_nats = problem.skip_nats[first:last].copy()
    if bounds[first] != begin:
        skip_nats[0] = np.inf
    if bounds[last] != end:
        skip_nats[-1] = np.inf
    left, right = begin == 0 and problem.star[0], bounds[last] == end and problem.star[last]
    return replace(
        problem,
        tokens=problem.tokens[begin:end],
        boundaries=np.concatenate([[0], bounds[inner] - begin, [end - begin]]).astype(np.int32),
        skip_nats=skip_nats,
        star=np.concatenate([[left], problem.star[inner], [right]]),
    )


def kmers(symbols: NDArray[np.int32], length: int) -> NDArray[np.uint64]:
    """A 64-bit polynomial hash of every `length` neighbours, modulo 2^64."""
    count = max(0, len(symbols) - length + 1)
    hashes = np.zeros(count, np.uint64)
    for i in range(length):
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + (symbols[i : i + count].astype(np.uint64) + np.uint64(1))
    return hashes


def _expected(
    hint_frames: NDArray[np.float64], boundaries: NDArray[np.int32], tokens: NDArray[np.intp]
) -> NDArray[np.float64] | None:
    """Frame at which each of `tokens` is expected, between the hints of the cues; None without hints."""
    known = np.isfinite(hint_frames)
    if not known.any():
        return None
    return np.interp(tokens, boundaries[:-1][known], hint_frames[known])


def _matches(
    text_hash: NDArray[np.uint64],
    path_hash: NDArray[np.uint64],
    path_frames: NDArray[np.int32],
    expected: NDArray[np.float64] | None,
    max_hint_frames: float,
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions (text, path) of k-mers with a single match, in text order.

    With hints, pairs too far from them are ignored, since a phrase may recur elsewhere.
    """
    order = np.argsort(path_hash, kind="stable")
    low = np.searchsorted(path_hash[order], text_hash, "left")
    counts = np.searchsorted(path_hash[order], text_hash, "right") - low
    few = np.flatnonzero((counts > 0) & (counts <= 64))
    in_text = np.repeat(few, counts[few])
    offsets = np.arange(len(in_text)) - np.repeat(np.cumsum(counts[few]) - counts[few], counts[few])
    in_path = order[low[in_text] + offsets]
    if expected is not None:
        near = np.abs(path_frames[in_path] - expected[in_text]) <= max_hint_frames
        in_text, in_path = in_text[near], in_path[near]
    once_text = np.bincount(in_text, minlength=1)[in_text] == 1
    once_path = np.bincount(in_path, minlength=1)[in_path] == 1
    return in_text[once_text & once_path], in_path[once_text & once_path]


def _varied(
    text_hash: NDArray[np.uint64], expected: NDArray[np.float64] | None, max_hint_frames: float, around: int
) -> NDArray[np.bool_]:
    """Which k-mers have mostly unrepeated text within `around` of them on either side.

    In a text that repeats itself in order, a k-mer is unique only by accident: a line missing from the text makes two
    others adjacent there, and an unspoken line makes the same two adjacent elsewhere in the audio. With times, a
    recurrence far from a position is not a repetition there.
    """
    order = np.argsort(text_hash, kind="stable")
    same = text_hash[order][1:] == text_hash[order][:-1]
    if expected is not None:
        same &= np.abs(np.diff(expected[order])) <= 2 * max_hint_frames
    again = np.zeros(len(text_hash), bool)
    again[order[1:][same]] = again[order[:-1][same]] = True
    total = np.concatenate([[0], np.cumsum(again)])
    at = np.arange(len(again))
    low, high = np.maximum(at - around, 0), np.minimum(at + around + 1, len(again))
    varied: NDArray[np.bool_] = (total[high] - total[low]) <= MOST_REPEATED * (high - low)
    return varied


def longest_chain(positions: NDArray[np.intp]) -> NDArray[np.intp]:
    """Indices of the longest rising subsequence (patience sorting)."""
    tails: list[int] = []
    tail_values: list[int] = []
    before = np.full(len(positions), -1, np.intp)
    for i, position in enumerate(positions.tolist()):
        slot = bisect_left(tail_values, position)
        before[i] = tails[slot - 1] if slot else -1
        if slot == len(tails):
            tails.append(i)
            tail_values.append(position)
        else:
            tails[slot], tail_values[slot] = i, position
    chain: list[int] = []
    at = tails[-1] if tails else -1
    while at >= 0:
        chain.append(at)
        at = int(before[at])
    return np.array(chain[::-1], np.intp)


def _agreed(in_text: NDArray[np.intp], in_path: NDArray[np.intp], length: int) -> NDArray[np.bool_]:
    """Links of the chain with a near neighbour in the text that is equally near in the path."""
    if len(in_text) < 2:
        return np.zeros(len(in_text), bool)
    text_step, path_step = np.diff(in_text), np.diff(in_path)
    close = (text_step <= 3 * length) & (np.abs(text_step - path_step) <= length // 3)
    agreed: NDArray[np.bool_] = np.append(close, False) | np.insert(close, 0, False)
    return agreed
