"""Character tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megahour.units.tokens import BLANK, Characters


@given(st.lists(st.text(min_size=1), min_size=1))
def test_every_text_of_the_inventory_survives_a_path_with_blanks(texts):
    characters = Characters.of(texts)
    assert characters.tokens[0] == BLANK
    assert list(characters.tokens[1:]) == sorted(set("".join(texts)))
    for text in texts:
        path = [unit for token in characters.encode(text) for unit in (token, token, 0)]
        assert characters.decode(path) == text


def test_decode_merges_equal_neighbours_only():
    characters = Characters((BLANK, "a", "b"))
    assert characters.decode([0, 1, 1, 0, 1, 2, 2, 0]) == "aab"


def test_a_foreign_character_is_named():
    with pytest.raises(KeyError, match="'é'"):
        Characters.of(["cafe"]).encode("café")


@pytest.mark.parametrize("tokens", [(), ("a",), (BLANK, "a", "a"), (BLANK, "ab")])
def test_a_wrong_inventory_is_refused(tokens):
    with pytest.raises(ValueError):
        Characters(tokens)
