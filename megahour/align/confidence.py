"""Aligns a document with calibrated costs, and measures confidence: word posteriors, cue losses, refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import Anchoring, align_pieces, anchors_of
from megahour.align.ctc import AlignmentPath, Problem, cue_frames, scale_of
from megahour.align.document import BLANK, Document
from megahour.align.edges import runs
from megahour.align.evidence import extra_cost_of_others
from megahour.align.hints import apply_hints
from megahour.align.recover_cues import drop_unspoken_words, recover_cues
from megahour.align.timed import with_cuts


@dataclass(frozen=True, slots=True)
class Costs:
    """Nats: `star` per frame of untranscribed speech; `skip_cue` + `skip_token` per token of an unspoken cue.

    `skip_token` is where calibration starts, high enough that nothing spoken is skipped. It ends at `skip_ratio` times
    the document's median loss per token, but at least at `least_token`, and at most at the share `toward_wrong` of the
    extra cost of any other text.
    """

    star: float = 1.0
    skip_cue: float = 4.0
    skip_token: float = 4.0
    skip_ratio: float = 2.0
    least_token: float = 0.75
    toward_wrong: float = 0.7


@dataclass(frozen=True, slots=True)
class Aligned:
    """A document's path and its costs. skip_token: calibrated cost. frame_loss: (T,) nats less than the best unit of
    each frame; frame_posterior: (T,) probability of the path's unit; cue_loss: (J,) mean loss per token, NaN for
    skipped cues; refused: (J,) bool, cues of stretches too large to be aligned without an anchor, which are skipped."""

    path: AlignmentPath
    problem: Problem
    skip_token: float
    frame_loss: NDArray[np.float32]
    frame_posterior: NDArray[np.float32]
    cue_loss: NDArray[np.float64]
    refused: NDArray[np.bool_]

    @property
    def spoken(self) -> NDArray[np.bool_]:
        """(J,) whether each cue is on the path."""
        return np.isfinite(self.cue_loss)

    @property
    def median_loss(self) -> float:
        """Median over spoken cues of the loss per token, nats; inf if none is spoken."""
        return float(np.median(self.cue_loss[self.spoken])) if self.spoken.any() else float("inf")


def align_document(
    posteriors: NDArray[Any],
    document: Document,
    costs: Costs,
    anchoring: Anchoring | None = None,
    hint_frames: NDArray[np.float64] | None = None,
    *,
    exact: bool = False,
    hint_tolerance: float = np.inf,
    said_chance: float = 0.1,
) -> Aligned:
    """Align with the starting costs, estimate the document's loss per token, and align again with fitted costs.

    posteriors: (T, V) float32 log posteriors or uint8 costs. Both alignments use the same anchors, independent of
    costs. exact: use anchors only to estimate the loss, and align the whole document at once with the fitted costs.
    hint_tolerance: frames that a short cue may always be off its hint (see `hints`). said_chance: see `recover_cues`.
    Raises NoPathError and NoAnchorsError.
    """
    anchoring = anchoring or Anchoring()
    problem = first_problem(document, costs)
    anchors = anchors_of(posteriors, problem, anchoring, hint_frames)
    if hint_frames is not None:
        anchors = with_cuts(posteriors, problem, anchors, hint_frames, anchoring)
    path, refused = align_pieces(posteriors, problem, anchors, anchoring)
    aligned = scored(posteriors, problem, path, costs.skip_token, refused)
    fitted = _fitted(posteriors, aligned, costs)
    fits = 0.9 <= fitted / costs.skip_token <= 1.0
    skip_token = costs.skip_token if fits else fitted
    problem = _problem(document, costs, skip_token)
    joined = min(MOST_CELLS, anchoring.max_cells)
    free = [] if exact else unforced(anchors, problem, aligned.cue_loss, len(posteriors), joined)
    if not fits or free != anchors:
        path, refused = align_pieces(posteriors, problem, free, anchoring)
    if hint_frames is not None:
        path = apply_hints(posteriors, problem, path, hint_frames, hint_tolerance)
    if path is not aligned.path:
        aligned = scored(posteriors, problem, path, skip_token, refused)
    path = drop_unspoken_words(posteriors, problem, path, aligned.frame_loss)
    path = recover_cues(posteriors, problem, path, refused, hint_frames, hint_tolerance, said_chance)
    return aligned if path is aligned.path else scored(posteriors, problem, path, skip_token, refused)


def _fitted(posteriors: NDArray[Any], aligned: Aligned, costs: Costs) -> float:
    """Fitted cost per token of skipping a cue, from the token costs of spoken cues and of other texts."""
    usual = aligned.median_loss
    if not np.isfinite(usual):
        return costs.skip_token
    most = usual + costs.toward_wrong * extra_cost_of_others(posteriors, aligned.problem, aligned.path)
    most = most if np.isfinite(most) else costs.skip_token
    return float(np.clip(costs.skip_ratio * usual, costs.least_token, max(costs.least_token, most)))


MISSED_RUN = 3  # cues in a row left out beside an anchor, that cast doubt on it
MOST_CELLS = 5e8  # frames x tokens of two pieces to join


def unforced(
    anchors: list[tuple[int, int]],
    problem: Problem,
    cue_loss: NDArray[np.float64],
    frames: int,
    most_cells: float = MOST_CELLS,
) -> list[tuple[int, int]]:
    """The anchors (token, frame) without those that force a cue to be spoken although skipping it would be better, or
    that may force cues to be skipped.

    If only some words of a cue are spoken, an anchor among them cuts the cue in two halves that cannot be skipped, and
    the unspoken half takes up the speech of neighbouring cues. A phrase that is spoken twice but written once may be
    an anchor at the wrong place, and no time is left for the cues on one side of it; so an anchor beside `MISSED_RUN`
    skipped cues goes, unless the two pieces that it separates have more than `most_cells`.
    """
    skipped = ~np.isfinite(cue_loss)
    cost = np.nan_to_num(cue_loss) * np.diff(problem.boundaries)
    kept, ends = list[tuple[int, int]](), [*anchors[1:], (len(problem.tokens), frames)]
    for i, (token, frame) in enumerate(anchors):
        cue = int(np.searchsorted(problem.boundaries, token, "right")) - 1
        if problem.boundaries[cue] != token and cost[cue] > problem.skip_nats[cue]:
            continue
        before, after = kept[-1] if kept else (0, 0), ends[i]
        beside = (skipped[max(0, cue - MISSED_RUN) : cue], skipped[cue + 1 : cue + 1 + MISSED_RUN])
        missed = any(len(run) == MISSED_RUN and run.all() for run in beside)
        if not missed or (after[0] - before[0]) * (after[1] - before[1]) > most_cells:
            kept.append((token, frame))
    return kept


def first_problem(document: Document, costs: Costs) -> Problem:
    """The document before its costs are calibrated."""
    return _problem(document, costs, costs.skip_token)


def _problem(document: Document, costs: Costs, skip_token: float) -> Problem:
    lengths = np.diff(document.boundaries)
    return Problem(
        document.tokens,
        document.boundaries,
        (costs.skip_cue + skip_token * lengths).astype(np.float32),
        np.ones(len(document.boundaries), bool),
        costs.star,
        BLANK,
        document.space,
    )


def scored(
    posteriors: NDArray[Any], problem: Problem, path: AlignmentPath, skip_token: float, refused: NDArray[np.bool_]
) -> Aligned:
    """A path with its costs."""
    loss, posterior = frame_scores(posteriors, path, problem)
    return Aligned(path, problem, skip_token, loss, posterior, cue_losses(path, problem, loss), refused)


def frame_scores(
    posteriors: NDArray[Any], path: AlignmentPath, problem: Problem
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Per frame: nats by which the path's unit is below the best unit, and the probability of the path's unit."""
    scale = scale_of(posteriors)
    unit = np.where(path.states >= 0, problem.tokens[np.maximum(path.states, 0)], problem.blank)
    own = posteriors[np.arange(len(unit)), unit].astype(np.float32) * scale
    best = (posteriors.min(axis=1) if scale < 0 else posteriors.max(axis=1)).astype(np.float32) * scale
    return best - own, np.exp(own)


def cue_losses(path: AlignmentPath, problem: Problem, frame_loss: NDArray[np.float32]) -> NDArray[np.float64]:
    """(J,) loss per spoken token over each cue's frames, from first to last; NaN for skipped cues."""
    first, last = cue_frames(path, problem.boundaries)
    total = np.concatenate([[0.0], np.cumsum(frame_loss, dtype=np.float64)])
    spoken = np.add.reduceat((path.start_frames >= 0).astype(np.int32), problem.boundaries[:-1])
    losses = (total[last] - total[first]) / np.maximum(spoken, 1)
    return np.where(first >= 0, losses, np.nan)


def word_frames(path: AlignmentPath, document: Document) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(W,) first frame and frame after the last of each word; -1 for words of skipped cues."""
    first, _, _, last = _word_tokens(document)
    return path.start_frames[first], path.end_frames[last]


def _word_tokens(document: Document) -> tuple[NDArray[np.intp], ...]:
    """(W,) index of each word's first, second, second-to-last and last token."""
    letters = np.flatnonzero(document.token_word >= 0)
    _, first, counts = np.unique(document.token_word[letters], return_index=True, return_counts=True)
    last = first + counts - 1
    return letters[first], letters[np.minimum(first + 1, last)], letters[np.maximum(last - 1, first)], letters[last]


def inner_frames(path: AlignmentPath, document: Document) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(W,) frame at which each word's second token starts, and at which its second-to-last one ends; -1 if skipped.

    A word of one token gives its end and its start.
    """
    first, second, inner, last = _word_tokens(document)
    start, end = path.start_frames, path.end_frames
    return np.where(first == last, end[first], start[second]), np.where(first == last, start[first], end[inner])


def outer_doubts(aligned: Aligned, document: Document) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(W,) whether each word's first token is less probable than its second, and its last than its second-to-last."""
    sure = mean_between(aligned.frame_posterior, aligned.path.start_frames, aligned.path.end_frames)
    first, second, inner, last = _word_tokens(document)
    return sure[first] < sure[second], sure[last] < sure[inner]


def mean_between(values: NDArray[np.float32], start: NDArray[np.int32], end: NDArray[np.int32]) -> NDArray[np.float32]:
    """Mean of values (T,) over frames start[i] .. end[i]-1; 0 where start is -1."""
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    means = (total[end] - total[start]) / np.maximum(end - start, 1)
    return np.where(start >= 0, means, 0.0).astype(np.float32)


def untranscribed(
    path: AlignmentPath, problem: Problem, frame_loss: NDArray[np.float32], least_frames: int
) -> NDArray[np.int32]:
    """(R, 2) frames [start, end) of untranscribed speech between cues: at least `least_frames` of star.

    A frame of rest counts as silence unless its loss is at least that of the star.
    """
    at_star = np.zeros(len(problem.tokens) + 1, bool)
    at_star[problem.boundaries[problem.star]] = True
    resting = (path.states < 0) & at_star[np.maximum(~path.states, 0)]
    starred = resting & (frame_loss >= problem.star_nats)
    regions = []
    for begin, end in runs(resting):
        inside = begin + np.flatnonzero(starred[begin:end])
        if len(inside) >= least_frames:
            regions.append((inside[0], inside[-1] + 1))
    return np.array(regions, np.int32).reshape(-1, 2)


def refusals(
    aligned: Aligned, document: Document, *, max_loss_nats: float, longest_word_frames: int
) -> NDArray[np.str_]:
    """(J,) why each cue is refused, "" if it is not.

    `unspoken`: the path skips it. `no-anchor`: it is in a stretch too large to be aligned without an anchor.
    `high-loss`: more nats per token than `max_loss_nats`. `endless-word`: one of its words lasts longer than
    `longest_word_frames`, ignoring an outer token far from the others, which `edges` corrects.
    """
    endless = np.zeros(len(document.cues), bool)
    lasting = word_lengths(aligned, document)
    of_word = np.searchsorted(document.cues, document.word_cue)
    endless[of_word[lasting > longest_word_frames]] = True
    with np.errstate(invalid="ignore"):  # unspoken cues have the loss NaN
        costly = aligned.cue_loss > max_loss_nats
    reasons = ["no-anchor", "unspoken", "endless-word", "high-loss"]
    return np.select([aligned.refused, ~aligned.spoken, endless, costly], reasons, "")


def word_lengths(aligned: Aligned, document: Document) -> NDArray[np.int32]:
    """(W,) frames of each word from its second to its second-to-last token (whole up to three tokens); 0 if unspoken.

    Outer tokens are ignored because one that the model missed may lie anywhere in the adjacent pause.
    """
    start, end = word_frames(aligned.path, document)
    second, inner = inner_frames(aligned.path, document)
    tokens = np.bincount(document.token_word[document.token_word >= 0], minlength=len(document.words))
    return np.where(start < 0, 0, np.where(tokens > 3, inner - second, end - start)).astype(np.int32)
