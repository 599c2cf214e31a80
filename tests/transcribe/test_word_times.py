"""Word times from paths of frame labels, against paths whose times are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megahour.core.errors import MegahourError
from megahour.transcribe.word_times import phone_spans, word_spans
from megahour.units.tokens import spelled_words

TOKENS = ("<blank>", " ", "a", "b")
SILENCE = 9
PRONUNCIATIONS = {"one": [[1, 2], [1, 3, 2]], "two": [[4, 5, 6]], "too": [[4, 5]], "o": [[7]]}


@given(
    st.lists(
        st.tuples(st.text("ab", min_size=1, max_size=4), st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=5
    )
)
def test_a_spelled_path_gives_back_its_words_and_frames(words: list[tuple[str, int, int]]) -> None:
    """Each token lasts some frames; blanks stand between equal neighbours, and after words."""
    labels: list[int] = []
    expected = []
    for word, frames, blanks in words:
        start = len(labels)
        for position, letter in enumerate(word):
            if position and letter == word[position - 1]:
                labels.append(0)
            labels += [TOKENS.index(letter)] * frames
        expected.append((word, (start, len(labels))))
        labels += [0] * blanks + [1] + [0] * blanks
    assert [(word.text, word.span) for word in spelled_words(labels, TOKENS)] == expected


def test_marked_tokens_begin_words() -> None:
    tokens = ("<blank>", "▁", "▁he", "llo", "a")
    words = spelled_words([2, 2, 0, 3, 1, 4, 4, 0, 4, 2], tokens, "▁")
    assert [(word.text, word.span) for word in words] == [("hello", (0, 4)), ("aa", (5, 9)), ("he", (9, 10))]


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(PRONUNCIATIONS)), st.integers(0, 1), st.integers(1, 3), st.integers(0, 2)),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 2),
)
def test_a_path_of_states_gives_back_its_words_and_frames(words: list[tuple[str, int, int, int]], before: int) -> None:
    """With any pronunciation, durations and silences; between the same word twice there is silence."""
    labels = [SILENCE] * before
    expected = []
    last = ""
    for word, variant, frames, after in words:
        if last == word:
            labels.append(SILENCE)
        pronunciation = PRONUNCIATIONS[word][variant % len(PRONUNCIATIONS[word])]
        expected.append((len(labels), len(labels) + frames * len(pronunciation)))
        labels += [label for label in pronunciation for _ in range(frames)]
        labels += [SILENCE] * after
        last = "" if after else word
    assert word_spans([word for word, *_ in words], labels, PRONUNCIATIONS, [SILENCE]) == expected


def test_silence_and_noises_in_any_order_are_of_no_word() -> None:
    labels = [8, SILENCE, 8, 1, 2, 8, 8, SILENCE, 7, SILENCE, 8]
    assert word_spans(["one", "o"], labels, PRONUNCIATIONS, [SILENCE, 8]) == [(3, 5), (8, 9)]


def test_words_that_an_unfinished_path_has_not_come_to_are_empty_at_its_end() -> None:
    assert word_spans(["one", "two"], [1, 1, 2], PRONUNCIATIONS, [SILENCE]) == [(0, 3), (3, 3)]


def test_a_word_twice_in_frames_of_one_label_is_there_twice() -> None:
    """One long word and one that the path has not come to would fit the labels, too."""
    assert word_spans(["o", "o"], [7, 7], PRONUNCIATIONS, [SILENCE]) == [(0, 1), (1, 2)]


def test_a_path_of_other_words_is_refused() -> None:
    with pytest.raises(MegahourError, match="frame 1 of the path matches no state"):
        word_spans(["one"], [1, 4], PRONUNCIATIONS, [SILENCE])


def test_phones_of_a_ctc_path_belong_to_words_and_blanks_to_none() -> None:
    labels = [0, 1, 0, 0, 2, 2, 0, 3, 0, 0]
    pronunciations = {"one": [[1, 2]], "two": [[3], [4]]}
    assert phone_spans(["one", "two"], labels, pronunciations) == [(1, 6), (7, 8)]
    assert phone_spans(["one", "two"], labels[:6], pronunciations) == [(1, 6), (6, 6)]
