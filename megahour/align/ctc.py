"""Exact Viterbi alignment of a text with CTC posteriors, without a table of back-pointers.

Notation: T frames, V units, U tokens y[0..U), J cues (sentences, subtitle cues); cue j is y[B[j] .. B[j+1]), so
boundary j stands before token B[j] and boundary J after the last token. a[v] = log p(v|t) - max_v log p(v|t) <= 0.

    emit[t, u]   best score of a path whose frame t is token u
    rest[t, u]   best score of a path whose frame t is silence between token u-1 and token u      (u = 0 .. U)

    emit[t, u] = a[y[u]] + max(emit[t-1, u], rest[t-1, u], emit[t-1, u-1] if y[u-1] != y[u])      (Graves 2006, eq. 6)
    rest[t, u] = a[blank] + max(rest[t-1, u], emit[t-1, u-1])

Two arcs are added at the boundaries, because transcripts of long recordings are never exact:

    star   a frame at a boundary may cost `star_nats` instead of -a[blank]: speech without a transcript
    skip   rest[t, B[j+1]] may come from rest[t, B[j]] at `skip_nats[j]`: a cue that is not spoken

Memory: only the two score rows of every K-th frame are kept (T/K * 2U * 4 bytes: 56 MB for one hour at T = 120,000,
U = 30,000, K = 512). The path is traced back block by block from those rows, recomputing a window of columns left of
the block's end state. The window is exact when its score of the end state equals the saved one to the last bit;
otherwise it is doubled. Posteriors of 8 bits (1/16 nat) make every sum exact in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.backtrace import replay, walk
from megahour.align.kernels import GROUP, UNREACHABLE, Trellis, forward
from megahour.core.errors import MegahourError

U8_NATS = 1.0 / 16.0
"""Size of one step of 8-bit posteriors: log p = -U8_NATS * value."""
NARROW, WIDE = 64, 512
"""Frames between checkpoints: a narrow block is traced back faster, since the window to recompute is as narrow."""
SMALL_CELLS = 2e8
"""Frames x tokens up to which narrow blocks are kept, 25 MB of them."""
_REACHABLE = np.float32(-1e29)  # scores below are no path's


class NoPathError(MegahourError):
    """No sequence of frames can carry these tokens (more tokens than frames, and no cue may be skipped)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A text to align with a stretch of audio, and what deviations cost.

    tokens: (U,) int32 unit of each token, never the blank. boundaries: (J+1,) int32, rising from 0 to U.
    skip_nats: (J,) float32 cost of leaving out cue j (inf: it must be spoken). star: (J+1,) bool, where untranscribed
    speech is allowed. star_nats: cost of a frame of it. free: a unit (the word space) that costs nothing at a star
    boundary, or -1.
    """

    tokens: NDArray[np.int32]
    boundaries: NDArray[np.int32]
    skip_nats: NDArray[np.float32]
    star: NDArray[np.bool_]
    star_nats: float = 1.0
    blank: int = 0
    free: int = -1

    def __post_init__(self) -> None:
        cues = len(self.skip_nats)
        if len(self.boundaries) != cues + 1 or len(self.star) != cues + 1:
            raise ValueError(
                f"{cues} cues need {cues + 1} boundaries and stars, not {len(self.boundaries)}, {len(self.star)}"
            )
        if self.boundaries[0] != 0 or self.boundaries[-1] != len(self.tokens) or np.any(np.diff(self.boundaries) <= 0):
            raise ValueError("boundaries must rise strictly from 0 to the number of tokens: leave empty cues out")
        if np.any(self.tokens == self.blank):
            raise ValueError(f"the blank (unit {self.blank}) cannot be a token of the text")


@dataclass(frozen=True, slots=True)
class AlignmentPath:
    """The best path. states: (T,) int32, u where frame t speaks token u, ~u where it rests before token u.

    start_frames, end_frames: (U,) int32 first frame and frame after the last of each token; -1 for tokens of skipped
    cues. score: sum over frames of a (nats, <= 0) less the costs of stars and skips.
    """

    states: NDArray[np.int32]
    start_frames: NDArray[np.int32]
    end_frames: NDArray[np.int32]
    score: float

    def moved(self, states: NDArray[np.int32]) -> AlignmentPath:
        """A path of other `states`, with the same score."""
        return AlignmentPath(states, *spans(states, len(self.start_frames)), self.score)


def scale_of(posteriors: NDArray[Any]) -> np.float32:
    """Factor from stored values to nats: 1 for float32 log posteriors, -1/16 for 8-bit costs."""
    if posteriors.dtype == np.uint8:
        return np.float32(-U8_NATS)
    if posteriors.dtype == np.float32:
        return np.float32(1.0)
    raise TypeError(f"posteriors are float32 (nats) or uint8 (1/16 nat), not {posteriors.dtype}")


def frame_costs(posteriors: NDArray[Any], problem: Problem) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(T, V) nats by which each unit is below its frame's best, and (T,) cost of each frame at a star boundary."""
    costs = posteriors.astype(np.float32) * -scale_of(posteriors)
    costs -= costs.min(axis=1, keepdims=True)
    star = np.minimum(costs[:, problem.blank], problem.star_nats)
    return costs, np.minimum(star, costs[:, problem.free]) if problem.free >= 0 else star


def align(posteriors: NDArray[Any], problem: Problem, checkpoint_frames: int = 0) -> AlignmentPath:
    """The best path of `problem` through posteriors (T, V), float32 log posteriors or uint8 costs of 1/16 nat.

    Exact. Time O(T U), memory T / checkpoint_frames * 8 U bytes; 0 chooses checkpoints that are fast where they are few
    and spare memory where they are many. Raises NoPathError when no path exists.
    """
    frames, tokens = len(posteriors), len(problem.tokens)
    if frames == 0:
        raise NoPathError(f"no frames for {tokens} tokens: is the audio empty?")
    posteriors = posteriors.view()
    posteriors.flags.writeable = False  # as those from files are: the kernels are compiled for each kind
    scale, trellis = scale_of(posteriors), _trellis(problem)
    every = checkpoint_frames or (NARROW if frames * tokens <= SMALL_CELLS else WIDE)
    blocks = -(-frames // every)
    rests = np.empty((blocks + 1, tokens + 1), np.float32)
    emits = np.empty((blocks + 1, tokens + 1), np.float32)
    peaks = np.zeros(blocks + 1, np.float32)
    forward(posteriors, scale, trellis, every, _table(posteriors, every), rests, emits, peaks)
    resting = bool(rests[blocks, tokens] >= emits[blocks, tokens])
    final = max(rests[blocks, tokens], emits[blocks, tokens])
    if final < _REACHABLE:
        raise NoPathError(
            f"{tokens} tokens do not fit in {frames} frames; allow cues to be skipped, or check the pairing"
        )
    states = np.empty(frames, np.int32)
    _trace(posteriors, scale, trellis, every, rests, emits, peaks, resting, states)
    start_frames, end_frames = spans(states, tokens)
    return AlignmentPath(
        states, start_frames, end_frames, float(final) + float(peaks[:blocks].astype(np.float64).sum())
    )


def align_tokens(
    posteriors: NDArray[Any],
    problem: Problem,
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    skip_nats: NDArray[np.float32],
    rests: tuple[int, int],
    star: tuple[bool, bool] = (True, True),
) -> tuple[NDArray[np.int32], float] | None:
    """States (T,) of frames that speak only these `tokens` of `problem`, and their score; None if they do not fit.

    posteriors: (T, V) of the frames. lengths, skip_nats: (J,) tokens of each cue, and the cost of skipping it. rests:
    tokens of `problem` before which the frames at the beginning and at the end rest. star: whether speech without a
    text may be at the beginning and at the end; between cues it always may.
    """
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    stars = np.ones(len(bounds), bool)
    stars[[0, -1]] = star
    piece = replace(problem, tokens=problem.tokens[tokens], boundaries=bounds, skip_nats=skip_nats, star=stars)
    try:
        path = align(posteriors, piece)
    except NoPathError:  # too few frames
        return None
    own, resting = path.states, np.append(tokens, rests[1]).astype(np.int32)
    resting[0] = rests[0]
    states: NDArray[np.int32] = np.where(own >= 0, tokens[np.maximum(own, 0)], ~resting[np.maximum(~own, 0)])
    return states, path.score


def align_cue(
    posteriors: NDArray[Any], problem: Problem, cue: int, tokens: NDArray[np.int32] | None = None
) -> NDArray[np.int32] | None:
    """States (T,) of frames in which `cue` is spoken, or these `tokens` of it; None if they do not fit."""
    begin, end = problem.boundaries[cue : cue + 2].tolist()
    spoken = np.arange(begin, end, dtype=np.int32) if tokens is None else tokens
    lengths, skip_nats = np.array([len(spoken)], np.int32), np.array([np.inf], np.float32)
    placed = align_tokens(posteriors, problem, spoken, lengths, skip_nats, (begin, end))
    return None if placed is None else placed[0]


def spans(states: NDArray[np.int32], tokens: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """First frame and frame after the last of each token of a path's `states` (T,); -1 where a token is not spoken."""
    start_frames, end_frames = np.full(tokens, -1, np.int32), np.full(tokens, -1, np.int32)
    spoken = np.flatnonzero(states >= 0).astype(np.int32)
    start_frames[states[spoken[::-1]]] = spoken[::-1]
    end_frames[states[spoken]] = spoken + 1
    return start_frames, end_frames


def cue_frames(path: AlignmentPath, boundaries: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(J,) first frame of each cue, and the frame after its last; -1 for skipped cues."""
    late = np.where(path.start_frames < 0, np.iinfo(np.int32).max, path.start_frames)
    last = np.maximum.reduceat(path.end_frames, boundaries[:-1])
    return np.where(last < 0, -1, np.minimum.reduceat(late, boundaries[:-1])).astype(np.int32), last


def _trellis(problem: Problem) -> Trellis:
    """The problem as the kernels' arguments."""
    tokens = np.ascontiguousarray(problem.tokens, np.int32)
    repeat = np.zeros(len(tokens), np.float32)
    repeat[1:][tokens[1:] == tokens[:-1]] = UNREACHABLE
    skip_nats = np.minimum(problem.skip_nats, -UNREACHABLE).astype(np.float32)
    star_nats = np.float32(problem.star_nats)
    return Trellis(problem.blank, problem.free, star_nats, tokens, repeat, problem.boundaries, problem.star, skip_nats)


def _table(posteriors: NDArray[Any], every: int) -> NDArray[Any]:
    """Space for the costs of a block's frames: the argument `table` of `kernels.forward`."""
    units = posteriors.shape[1]
    if posteriors.dtype == np.uint8:
        return np.empty((-(-every // GROUP), units), np.int32)
    return np.empty((-(-every // GROUP) * GROUP, units), np.float32)


def _trace(
    posteriors: NDArray[Any],
    scale: np.float32,
    trellis: Trellis,
    every: int,
    rests: NDArray[np.float32],
    emits: NDArray[np.float32],
    peaks: NDArray[np.float32],
    resting: bool,
    states: NDArray[np.int32],
) -> None:
    """Fill `states` (T,) block by block from the end, widening a block's window until it explains the saved score."""
    frames, column = len(posteriors), rests.shape[1] - 1  # `column`: index of the end state in rests or emits
    width = every // 2 + 1
    for block in range(len(rests) - 2, -1, -1):
        begin, end = block * every, min((block + 1) * every, frames)
        target = (rests if resting else emits)[block + 1, column]
        while True:
            low = max(0, column - width)
            window = slice(low, column + 1)
            moves = np.empty((end - begin, column + 1 - low), np.uint8)
            reached = replay(
                posteriors[begin:end],
                scale,
                trellis,
                low,
                rests[block, window],
                emits[block, window],
                peaks[block],
                resting,
                moves,
            )
            if reached == target:
                break
            if low == 0:
                raise AssertionError(f"block {block}: replay reached {reached}, forward {target}")
            width *= 2
        resting, column = walk(moves, low, trellis.boundaries, resting, column, states[begin:end])
        width = max(every // 2 + 1, width // 2)
