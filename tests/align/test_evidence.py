"""Whether a cue is spoken at its place, judged by the model's scores of other texts there."""

from __future__ import annotations

import numpy as np
import pytest
from speech import UNITS, say, sentences

from megahour.align.anchors import Anchoring
from megahour.align.choice import Refused, trusted
from megahour.align.confidence import Aligned, Costs, align_document
from megahour.align.ctc import AlignmentPath, Problem, spans
from megahour.align.document import Document, spell
from megahour.align.evidence import (
    SURE,
    deviations,
    extra_cost_of_others,
    is_of_another,
    speech_around,
    unheard,
)
from megahour.align.params import AlignParams
from megahour.align.posteriors import Heard
from megahour.foreign.model import quantised

ERRORS = [0.05, 0.3, 0.5]


def lines(seed: int, count: int = 30) -> list[str]:
    return sentences(count, np.random.default_rng(seed), words=4)


def made(spoken: list[str], written: list[str], errors: float, ratio: float = 3.0) -> tuple[Aligned, Document, Heard]:
    said = say(spoken, np.random.default_rng(5), errors)
    text, posteriors = spell([(i, float("nan"), line) for i, line in enumerate(written)], UNITS), said.log_probs
    heard = Heard(quantised(posteriors), np.zeros(1, np.float32))
    return align_document(heard.posteriors, text, Costs(skip_ratio=ratio), Anchoring()), text, heard


@pytest.mark.parametrize("errors", ERRORS)
def test_said_and_unsaid_cues_lie_apart_whatever_the_model(errors: float) -> None:
    """The same limits of deviations hold for a model that reads one letter of twenty wrong, and one of two."""
    right, _, heard = made(lines(1), lines(1), errors)
    z = deviations(heard.posteriors, right.problem, right.path, 8)
    assert np.median(z) < SURE
    assert np.quantile(z, 0.9) < -2
    foreign, _, _ = made(lines(1), lines(2), errors)
    z = deviations(heard.posteriors, foreign.problem, foreign.path, 8)
    assert np.nanmedian(z) > SURE / 2
    assert extra_cost_of_others(heard.posteriors, right.problem, right.path) > 0.5


@pytest.mark.parametrize("errors", ERRORS)
def test_another_recordings_transcript_is_refused_and_its_own_is_not(errors: float) -> None:
    p = AlignParams(decoy_margin=0)
    _, text, heard = made(lines(1), lines(1), errors)
    aligned, unsure = trusted(p, heard, text, 0.03, doubtful=True)
    assert np.mean(aligned.spoken & ~unsure) >= 0.9
    _, foreign, _ = made(lines(1), lines(2), errors)
    with pytest.raises(Refused, match="wrong-transcript"):
        trusted(p, heard, foreign, 0.03, doubtful=True)
    _, unsure = trusted(p.model_copy(update={"false_accept": 0}), heard, foreign, 0.03, doubtful=True)
    assert not unsure.any(), "nothing is compared"


def digits(seed: int, count: int = 30) -> list[str]:
    rng, names = np.random.default_rng(seed), ["zero", "one", "two", "three", "four", "five", "six", "seven"]
    return [" ".join(rng.choice(names, rng.integers(2, 6))) for _ in range(count)]


@pytest.mark.parametrize("noise", [2.6, 2.7])
def test_the_order_of_the_lines_shows_whose_text_a_model_reads_that_is_sure_of_few(noise: float) -> None:
    """Eight words, and a model that is sure of less than half of the lines: no line tells much, all of them do."""
    p, rng = AlignParams(), np.random.default_rng(9)
    log_probs = say(digits(1), np.random.default_rng(5), 0.5).log_probs
    log_probs = log_probs + rng.normal(0, noise, log_probs.shape).astype(np.float32)
    log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
    heard = Heard(quantised(log_probs), np.zeros(1, np.float32))
    right, wrong = (spell([(i, float("nan"), line) for i, line in enumerate(digits(seed))], UNITS) for seed in (1, 2))
    aligned, _ = trusted(p, heard, right, 0.03, doubtful=False)
    z, lengths = deviations(heard.posteriors, aligned.problem, aligned.path, 8), np.diff(right.boundaries)
    assert 0.3 < lengths[z <= SURE].sum() / lengths.sum() < 0.5
    assert is_of_another(z, lengths, 0.3), "by its lines alone"
    with pytest.raises(Refused, match="wrong-transcript"):
        trusted(p, heard, wrong, 0.03, doubtful=False)


def test_a_doubtful_text_too_long_to_be_compared_with_its_reversal_is_judged_by_its_lines() -> None:
    """Hours of repeated sentences: anchors cut the text, but none cuts its decoy."""
    _, text, heard = made(lines(1, 40), lines(1, 40), 0.05)
    cells = len(heard.posteriors) * len(text.tokens)
    p = AlignParams(max_cells=cells / 4, anchor_every_s=3)
    aligned, unsure = trusted(p, heard, text, 0.03, doubtful=True)
    assert np.mean(aligned.spoken & ~unsure) > 0.95


def test_the_rates_set_the_limits() -> None:
    lengths = np.full(20, 16)
    z = np.r_[np.linspace(-9, -7, 18), -3.5, -1.0]
    assert list(np.flatnonzero(unheard(z, lengths, 0.1, 0.0))) == [19]
    assert list(np.flatnonzero(unheard(z, lengths, 0.1, 0.02))) == [18, 19]
    assert not unheard(z, lengths, 0.49, 0.0)[18:19].any()
    assert not unheard(np.full(20, np.nan), lengths, 0.1, 0.02).any()
    assert list(np.flatnonzero(unheard(z[10:], lengths[10:], 0.1, 0.005))) == [8, 9], "ten are enough"
    assert not unheard(z[-2:], lengths[-2:], 0.2, 0.4).any(), "two cues tell nothing of their document"


def test_a_cue_that_leaves_speech_over_beside_it_must_be_surer() -> None:
    """An unspoken line takes the place of speech without a text, which is seldom as long as it is."""
    lengths, z = np.full(20, 16), np.full(20, -2.0)
    speech = np.r_[np.full(18, 1.1), 1.8, 9.0]
    assert list(np.flatnonzero(unheard(z, lengths, 0.3, 0.0, speech))) == [18, 19]
    assert not unheard(np.full(20, SURE), lengths, 0.3, 0.0, speech).any(), "no speech outweighs a sure cue"
    assert unheard(z, lengths, 0.01, 0.0, np.ones(20)).all(), "the rate holds without any left over"


@pytest.mark.parametrize("errors", [0.05, 0.4])
def test_a_line_without_a_time_that_is_said_twice_is_unsure(errors: float) -> None:
    """Of the two sayings neither text nor sound tells which is the line's; a time does, and so does a second line."""
    spoken = lines(1, 30)
    spoken.insert(11, spoken[10])
    heard = Heard(quantised(say(spoken, np.random.default_rng(5), errors).log_probs), np.zeros(1, np.float32))

    def refused(texts: list[str], *, timed: bool) -> list[int]:
        hints = [9.0 * i if timed else np.nan for i in range(len(texts))]
        text = spell([*zip(range(len(texts)), hints, texts, strict=True)], UNITS)
        return [*map(int, np.flatnonzero(trusted(AlignParams(), heard, text, 0.03, doubtful=False)[1]))]

    once = [*spoken[:10], *spoken[11:]]
    assert refused(once, timed=False) == [10]
    assert refused(once, timed=True) == []
    assert refused(spoken, timed=False) == []


def test_speech_around_a_cue_is_what_is_heard_up_to_its_neighbours_per_token() -> None:
    """Cues of two tokens; of the first and last as many are heard, around the second six, around the third one."""
    tokens, free, blank = np.array([2, 3] * 5, np.int32), 1, 0
    problem = Problem(
        tokens, np.arange(0, 11, 2, dtype=np.int32), np.ones(5, np.float32), np.ones(6, bool), 1.0, blank, free
    )
    states, best = np.full(60, ~10, np.int32), np.zeros(60, np.int64)
    for cue, at in enumerate((2, 20, 30, 50)):
        states[[at, at + 2]] = 2 * cue, 2 * cue + 1
    best[[2, 4, 14, 16, 18, 19, 20, 21, 22, 26, 50, 52]] = [2, 3, 2, 3, 2, free, 3, 2, 3, 2, 2, 3]
    posteriors = np.full((60, 4), 99, np.uint8)
    posteriors[np.arange(60), best] = 0
    path = AlignmentPath(states, *spans(states, len(tokens)), 0.0)
    assert speech_around(posteriors, problem, path, 5).tolist()[:4] == [1.0, 3.0, 0.5, 1.0]
    assert np.isnan(speech_around(posteriors, problem, path, 5)[4])
    silent = np.full((60, 4), 99, np.uint8)
    silent[:, blank] = 0
    assert speech_around(silent, problem, path, 5).tolist()[:4] == [1.0] * 4, "nothing is heard, so nothing is left"


def test_a_transcript_is_anothers_by_what_is_placed_and_by_the_whole() -> None:
    lengths = np.full(10, 20)
    sure, unsure, absent = -8.0, -1.0, np.nan
    assert not is_of_another(np.array([sure] * 4 + [absent] * 6), lengths, 0.3)
    assert is_of_another(np.array([sure] * 2 + [absent] * 8), lengths, 0.3)
    assert is_of_another(np.array([sure] * 4 + [unsure] * 6), lengths, 0.3)
    assert not is_of_another(np.full(10, np.nan), lengths, 0.3), "nothing to compare with"


def test_what_is_sure_and_the_order_of_the_cues_count_together() -> None:
    """Of a text without word spaces, or of several cues whose words are in order."""

    def other(sure: int, count: int, order: float | None, words: float | None = None) -> bool:
        z = np.array([SURE] * sure + [SURE + 0.1] * (count - sure))
        return is_of_another(z, np.full(count, 8), 0.3, lambda: words, lambda: order)

    assert not other(4, 10, 2.0), "the order decides where a model is sure of few"
    assert other(4, 10, 1.0)
    assert other(5, 10, 0.0), "chance, where lines resemble each other"
    assert not other(5, 10, None), "where there is no order, half are enough"
    assert not other(9, 10, 0.5), "nearly all are sure"
    assert other(4, 40, 0.9, 20.0), "a sentence that recordings share has many words in order, but is one cue"
    assert other(4, 40, 20.0, 20.0), "lines that recordings of a series share"
    assert other(9, 19, 3.0, 3.9)
    assert not other(9, 19, 3.0, 4.0), "several lines must have their words in order, too"
    assert not other(20, 40, -9.0, -9.0), "of many, half are enough"


def test_the_words_of_few_cues_must_be_in_order() -> None:
    def other(sure: int, words: float) -> bool:
        z = np.array([SURE] * sure + [SURE + 0.1] * (8 - sure))
        return is_of_another(z, np.full(8, 8), 0.3, lambda: words, lambda: 9.0)

    assert other(6, 0.7), "strings of the same digits: most lines are sure, whatever their order"
    assert not other(6, 2.0)
    assert other(8, 1.9)
    assert other(2, 4.2)
    assert not other(2, 4.3)


def test_few_cues_must_nearly_all_be_sure_and_of_many_half() -> None:
    def other(sure: int, unsure: int) -> bool:
        z = np.array([SURE] * sure + [SURE + 0.1] * unsure)
        return is_of_another(z, np.full(len(z), 8), 0.0)

    least = {
        count: next(sure for sure in range(count + 1) if not other(sure, count - sure)) for count in (1, 2, 10, 40)
    }
    assert least == {1: 1, 2: 2, 10: 5, 40: 20}


def test_a_single_cue_is_compared_with_its_own_letters_in_other_orders() -> None:
    aligned, _, heard = made(lines(1)[:1], lines(1)[:1], 0.3)
    assert deviations(heard.posteriors, aligned.problem, aligned.path, 8)[0] < SURE
    other, _, _ = made(lines(1)[:1], lines(2)[:1], 0.3, ratio=100.0)
    assert not deviations(heard.posteriors, other.problem, other.path, 8)[0] < SURE
