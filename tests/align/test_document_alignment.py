"""Whole documents: flawed transcripts, calibrated costs, anchors."""

from __future__ import annotations

import numpy as np
import pytest
from speech import UNITS, say, sentences

from megahour.align.anchors import Anchoring, NoAnchorsError, find_anchors, greedy_path
from megahour.align.confidence import Costs, align_document, mean_between, untranscribed, word_frames
from megahour.align.ctc import AlignmentPath, Problem
from megahour.align.document import Document, spell
from megahour.align.params import AlignParams
from megahour.align.tables import Clock, segments_of, time_words
from megahour.foreign.model import quantised

EXACT = Anchoring(every_frames=10**9)
ANCHORED = Anchoring(every_frames=500)


def document(cues: list[str], hints: list[float] | None = None) -> Document:
    return spell([(i, hints[i] if hints else np.nan, cue) for i, cue in enumerate(cues)], UNITS)


def first_frames(path: AlignmentPath, text: Document) -> list[int]:
    return word_frames(path, text)[0].tolist()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize("settings", [EXACT, ANCHORED])
def test_missing_and_extra_text_are_found(rng: np.random.Generator, settings: Anchoring) -> None:
    spoken = sentences(40, rng)
    extra = sentences(6, rng)
    said = say(spoken, rng)
    written = [cue for i, cue in enumerate(spoken) if i not in (7, 20, 21)]  # three spoken sentences without text
    for at, cue in zip((3, 9, 15, 22, 30, 37), extra, strict=True):  # six sentences that nobody said
        written.insert(at, cue)
    text = document(written)
    aligned = align_document(quantised(said.log_probs), text, Costs(), settings)
    assert [written[j] in extra for j in range(len(written))] == (~aligned.spoken).tolist()
    assert len(untranscribed(aligned.path, aligned.problem, aligned.frame_loss, 10)) == 2  # 20 and 21 are one stretch
    starts = first_frames(aligned.path, text)
    true = {cue: frames[0] for cue, frames in zip(spoken, said.letter_frames, strict=True)}
    first_words = np.flatnonzero(text.word_index == 0)
    errors = [abs(starts[w] - true[written[j]]) for j, w in enumerate(first_words) if aligned.spoken[j]]
    assert np.median(errors) == 0
    assert max(errors) <= 30


@pytest.mark.parametrize("errors", [0.05, 0.3])
def test_costs_follow_the_documents_own_errors(rng: np.random.Generator, errors: float) -> None:
    spoken = sentences(40, rng)
    aligned = align_document(quantised(say(spoken, rng, errors).log_probs), document(spoken), Costs(), EXACT)
    assert aligned.spoken.all()
    calibrated = np.clip(2 * aligned.median_loss, 0.75, 4.0)
    assert aligned.skip_token == pytest.approx(calibrated, rel=0.1)


def test_anchored_alignment_equals_the_exact_one(rng: np.random.Generator) -> None:
    spoken = sentences(60, rng)
    posteriors = quantised(say(spoken, rng).log_probs)
    text = document(spoken)
    exact, anchored = (align_document(posteriors, text, Costs(), settings).path for settings in (EXACT, ANCHORED))
    same = np.abs(exact.start_frames - anchored.start_frames) <= 1
    assert same.mean() > 0.995
    assert anchored.score <= exact.score
    assert anchored.score == pytest.approx(exact.score, rel=0.002)


def problem_of(text: Document) -> Problem:
    cues = len(text.cues)
    stars, skips = np.ones(cues + 1, bool), np.full(cues, 50, np.float32)
    return Problem(text.tokens, text.boundaries, skips, stars, free=text.space)


def test_anchors_are_where_the_text_was_said(rng: np.random.Generator) -> None:
    spoken = sentences(60, rng)
    said = say(spoken, rng)
    text = document(spoken)
    anchors = find_anchors(*greedy_path(said.log_probs), problem_of(text), ANCHORED)
    letters = np.flatnonzero(text.tokens != text.space)
    true = dict(zip(letters.tolist(), np.concatenate(said.letter_frames).tolist(), strict=True))
    assert len(anchors) >= 10
    assert all(true[token] == frame for token, frame in anchors)


def test_subtitle_times_distinguish_repeated_texts(rng: np.random.Generator) -> None:
    refrain = sentences(1, rng)[0]
    spoken = [refrain] * 40  # no k-mer is unique in the text
    said = say(spoken, rng, errors=0.05)
    frames, problem = greedy_path(said.log_probs), problem_of(document(spoken))
    drifting = np.array([0.98 * f[0] + 20 for f in said.letter_frames], np.float64)
    near = Anchoring(every_frames=500, max_hint_frames=100.0)
    assert find_anchors(*frames, problem, near) == []
    assert len(find_anchors(*frames, problem, near, drifting)) >= 5


def test_a_problem_too_large_without_anchors_is_refused(rng: np.random.Generator) -> None:
    said, other = say(sentences(30, rng), rng), document(sentences(30, rng))
    with pytest.raises(NoAnchorsError, match="without an anchor"):
        align_document(said.log_probs, other, Costs(), Anchoring(max_cells=1e6))


def test_a_foreign_text_has_a_high_loss(rng: np.random.Generator) -> None:
    said, other = say(sentences(30, rng), rng), document(sentences(30, rng))
    aligned = align_document(said.log_probs, other, Costs(), EXACT)
    kept = np.diff(other.boundaries)[aligned.spoken].sum() / len(other.tokens)
    assert aligned.median_loss > 3.0 or kept < 0.3


def test_unknown_characters_are_left_out_and_counted() -> None:
    text = spell([(4, 0.0, "naïve ж b"), (5, 1.0, "жж"), (6, 2.0, "")], UNITS)
    assert "".join(UNITS[token] for token in text.tokens) == "nave b"
    assert (text.words, text.word_cue.tolist(), text.word_index.tolist()) == (["naïve", "b"], [4, 4], [0, 2])
    assert (text.cues.tolist(), text.unspellable) == ([4], [5])


def test_confidence_is_the_mean_posterior_of_the_words_frames() -> None:
    values = np.array([1.0, 0.5, 0.0, 0.25], np.float32)
    means = mean_between(values, np.array([0, 1, -1], np.int32), np.array([2, 4, -1], np.int32))
    assert means.tolist() == [0.75, 0.25, 0.0]


def test_speech_without_text_counts_from_its_smallest_length_on(rng: np.random.Generator) -> None:
    spoken = sentences(12, rng)
    text = document([cue for i, cue in enumerate(spoken) if i != 5])
    aligned = align_document(quantised(say(spoken, rng).log_probs), text, Costs(), EXACT)
    ((begin, end),) = untranscribed(aligned.path, aligned.problem, aligned.frame_loss, 10)
    starred = int((aligned.frame_loss[begin:end] >= aligned.problem.star_nats).sum())
    clock = Clock(shift_s=0.02, rate_hz=16000, samples=1_000_000)
    timed = time_words(text, aligned, np.full(2 * len(aligned.frame_loss), 10.0, np.float32), clock)

    def found(least_s: float) -> list[tuple[int, int]]:
        rows = segments_of(
            text,
            aligned,
            timed,
            {},
            clock,
            AlignParams(longest_word_s=60.0, min_untranscribed_s=least_s),
            np.zeros(len(text.cues), bool),
        ).to_pylist()
        return [(row["start_samples"], row["end_samples"]) for row in rows if row["reason"] == "untranscribed"]

    assert found(0.02 * starred) == [(320 * begin, 320 * end)]
    assert found(0.02 * (starred + 1)) == []
