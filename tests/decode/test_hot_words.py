"""Hot words letter by letter: a partial match counts, and is taken back if the word continues otherwise."""

from __future__ import annotations

import pytest

from megahour.core.errors import ConfigError
from megahour.decode.fusion import check_fusion
from megahour.decode.hot_words import HotWord, automaton, parse
from megahour.decode.params import DecodeParams


def totals(words: list[str], text: str, *, spaces: bool = True) -> list[float]:
    """Nats after each character of `text`, which stands at the beginning."""
    hot, given, found = automaton(parse(words, 1.0), spaces=spaces), 0.0, []
    state = hot.start
    for character in text:
        for byte in character.encode():
            state = int(hot.next[state, hot.classes[byte]])
            given += float(hot.reward[state])
        found.append(given + float(hot.value[state]))
    return found


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        (["abc"], "abc ", [1, 2, 3, 3]),
        (["abc"], "abx ", [1, 2, 0, 0]),
        (["abc"], "abcd", [1, 2, 3, 0]),
        (["abc"], "xabc ", [0, 0, 0, 0, 0]),
        (["abc*"], "abcd", [1, 2, 3, 3]),
        (["*abc"], "xabc ", [0, 1, 2, 3, 3]),
        (["ab cd"], "ab ab cd ", [1, 2, 3, 1, 2, 3, 4, 5, 5]),
        (["ab", "ab cd"], "ab cd ", [1, 2, 3, 4, 5, 7]),
        (["ab cd", "ab"], "ab cd ", [1, 2, 3, 4, 5, 7]),
        (["ab :2"], "ab ", [2, 4, 4]),
        (["öl"], "öl ", [1, 2, 2]),
        (["東京"], "東京都", [1, 2, 2]),
    ],
)
def test_totals(words: list[str], text: str, expected: list[float]) -> None:
    assert totals(words, text) == expected


def test_without_spaces_phrases_are_found_anywhere() -> None:
    assert totals(["ab"], "xabx", spaces=False) == [0, 1, 2, 2]


def test_lines_have_weights_of_their_own() -> None:
    assert parse([" new  york :2.5", "", "a", "a :3"], 0.5) == [HotWord("new york", 2.5), HotWord("a", 3.0)]
    assert parse(["a :-.5", "b :1."], 0.5) == [HotWord("a", -0.5), HotWord("b", 1.0)]
    assert parse(["a :1.2.3", "b :.", "c :-"], 0.5) == [HotWord(text, 0.5) for text in ("a :1.2.3", "b :.", "c :-")]


def test_the_most_that_a_token_adds() -> None:
    """In the best state; a token that begins a word may complete the one before it."""
    hot = automaton(parse(["abc", "bd* :3"], 1.0), spaces=True)
    assert [hot.most(text, after_space=False) for text in ("c", "bc", "bd", "z")] == [1.0, 2.0, 6.0, 0.0]
    assert hot.most("bd", after_space=True) == 6.0
    assert automaton([], spaces=True).most("a", after_space=True) == 0.0


PIECES = ["<blank>", "<unk>", "\u2581one", "\u2581nine", "ty", "\u2581\u6771\u4eac"]


@pytest.mark.parametrize("word", ["one", "ninety", "nine one", "on*", "*ne", "\u4eac"])
def test_words_that_tokens_spell_may_be_hot(word: str) -> None:
    check_fusion(DecodeParams(hot_words=[word]), {"tokens": PIECES, "marks": True}, {})


@pytest.mark.parametrize(("word", "lost"), [("ten", "ten"), ("one nineteen", "nineteen"), ("ty :2", "ty")])
def test_words_that_no_tokens_spell_are_refused(word: str, lost: str) -> None:
    """Models whose tokens are whole words have the letters of words that they can never give."""
    with pytest.raises(
        ConfigError, match=f"(?s)has '{lost}', which no tokens of the model spell.*pieces or characters"
    ):
        check_fusion(DecodeParams(hot_words=[word]), {"tokens": PIECES, "marks": True}, {})
