"""Scores by lines of a composed recording, small enough to count by hand. All times are at 1000 samples a second."""

from __future__ import annotations

import pytest

from megahour.score.sentences import Row, SentenceTally, Truth, compare_lines, compare_untranscribed, sentence_table

SENTENCES = [
    {"sentence": 0, "spoken": "press one", "in_transcript": True, "start_samples": 1000, "end_samples": 2000},
    {"sentence": 1, "spoken": "press two", "in_transcript": False, "start_samples": 3000, "end_samples": 4000},
    {"sentence": 2, "spoken": "goodbye", "in_transcript": True, "start_samples": 9000, "end_samples": 9500},
]
LINES = [
    {"line": 0, "text": "Press one.", "sentence": 0},
    {"line": 1, "text": "Press three.", "sentence": -1},
    {"line": 2, "text": "Goodbye!", "sentence": 2},
]
PASSAGES = [{"language": "fr", "start_samples": 5000, "end_samples": 8000}]
TRUTH = Truth([], SENTENCES, LINES, PASSAGES)
CUES = [{"cue": 0, "text": "press one"}, {"cue": 1, "text": "press three"}, {"cue": 2, "text": "goodbye"}]


def word(cue: int, place: int, start: int, end: int) -> Row:
    return {"cue": cue, "word": place, "start_samples": start, "end_samples": end}


FIRST = [word(0, 0, 1150, 1400), word(0, 1, 1400, 1990)]


def by_line(words: list[Row], cues: list[Row] = CUES, truth: Truth = TRUTH) -> Row:
    tally = SentenceTally()
    compare_lines(truth, cues, words, "en", (1.0, 1.0), tally)
    return tally.row()


def test_starts_and_ends_of_lines() -> None:
    row = by_line([*FIRST, word(2, 0, 11_500, 9500)])
    assert row["sentences"] == 2
    assert (row["sentence_start_within_200_ms"], row["sentence_start_far"]) == (0.5, 0.5)
    assert row["sentence_end_median_ms"] == pytest.approx(5)
    assert (row["unspoken_lines_kept"], row["unspoken_lines"]) == (0, 1)
    assert (row["spoken_lines_dropped"], row["spoken_lines"]) == (0, 2)


def test_an_unspoken_line_shares_words_with_its_neighbours() -> None:
    """ "press three" was never said, though "press" was, twice; half of a line's words are enough to keep it."""
    row = by_line([*FIRST, word(1, 0, 3000, 3300), word(1, 1, 3300, 4000)])
    assert (row["unspoken_lines_kept"], row["spoken_lines_dropped"]) == (1, 1)


def test_half_of_a_lines_words_keep_it_and_a_line_without_words_is_dropped() -> None:
    """Where its first or last word is not aligned, there is no time to compare."""
    row = by_line([FIRST[0], word(1, 1, 3300, 4000)])
    assert (row["spoken_lines_dropped"], row["unspoken_lines_kept"]) == (1, 1)
    assert (row["sentences"], row["sentence_end_median_ms"]) == (1, None)
    lines = [{"line": 0, "text": "…", "sentence": 0}, *LINES[1:]]
    row = by_line([word(2, 0, 9000, 9500)], CUES[1:], Truth([], SENTENCES, lines, []))
    assert (row["spoken_lines"], row["spoken_lines_dropped"], row["sentences"]) == (2, 1, 1)


def test_cues_may_be_cut_otherwise_than_the_lines() -> None:
    """A reader of plain text made all three lines one cue."""
    words = [word(0, 0, 1000, 1400), word(0, 1, 1400, 2000), word(0, 4, 9000, 9500)]
    row = by_line(words, [{"cue": 0, "text": "press one press three goodbye"}])
    assert (row["sentences"], row["sentence_start_within_50_ms"], row["sentence_end_within_50_ms"]) == (2, 1.0, 1.0)
    assert (row["unspoken_lines_kept"], row["spoken_lines_dropped"]) == (0, 0)


def test_misheard_first_words_have_no_time_to_compare() -> None:
    lines = [{**LINES[0], "text": "Dress one."}, *LINES[1:]]
    cues = [{"cue": 0, "text": "dress one"}, *CUES[1:]]
    row = by_line(FIRST, cues, Truth([], SENTENCES, lines, []))
    assert row["sentences"] == 0
    assert row["sentence_end_median_ms"] == pytest.approx(10)


def test_truth_at_another_rate() -> None:
    tally = SentenceTally()
    doubled = [{**w, "start_samples": 2 * w["start_samples"], "end_samples": 2 * w["end_samples"]} for w in FIRST]
    compare_lines(TRUTH, CUES, doubled, "en", (1.0, 0.5), tally)
    assert tally.start_ms == [150]


def untranscribed(segments: list[tuple[int, int, int]], words: list[Row]) -> Row:
    tally = SentenceTally()
    rows = [
        {"cue": cue, "reason": "untranscribed" if cue < 0 else "", "start_samples": start, "end_samples": end}
        for cue, start, end in segments
    ]
    compare_untranscribed(TRUTH, words, rows, 1000, 1000, tally)
    return tally.row()


def test_untranscribed_speech_by_time() -> None:
    """4 s have no text; the alignment reports 2 s of them, and 2 s of silence."""
    row = untranscribed([(-1, 4000, 7000), (0, 1000, 2000), (-1, 8000, 9000)], FIRST)
    assert (row["untranscribed_precision"], row["untranscribed_recall"]) == (0.5, 0.5)
    assert (row["passages_kept"], row["passages"]) == (0, 1)


def test_a_passage_is_kept_when_words_lie_in_it() -> None:
    assert untranscribed([], [word(2, 0, 4000, 6100)])["passages_kept"] == 1
    assert untranscribed([], [word(2, 0, 4000, 5900)])["passages_kept"] == 0
    assert untranscribed([], [word(2, 0, 4000, 6000)])["passages_kept"] == 1  # its middle begins the passage
    assert untranscribed([], [word(2, 0, 7000, 9000)])["passages_kept"] == 0  # its middle ends it
    assert untranscribed([], [])["untranscribed_precision"] is None


def test_the_table_reads_well() -> None:
    tally = SentenceTally(start_ms=[10, 300], end_ms=[50, 60], spoken=3, spoken_dropped=1, unspoken=2, passages=5)
    text = sentence_table([{"condition": "clean", **tally.row()}])
    assert text.splitlines()[2] == "| clean | 2 | 50.0% | 0.00% | 0/2 | 1/3 | – / – | 0/5 | 55 |"
    assert sentence_table([{"condition": "clean", **SentenceTally().row()}]) == ""
