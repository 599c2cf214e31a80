"""How the tokens of imported models spell texts."""

from __future__ import annotations

import numpy as np
import pytest

from megahour.align.document import spell_pieces
from megahour.foreign.params import ImportAlignerParams
from megahour.foreign.token_list import ordered
from megahour.units.listed_pieces import ListedPieces


def test_wordpieces_begin_words_as_sentencepieces_do() -> None:
    """NeMo's tokenizers of type wpe. Letters that begin words were taken for all letters."""
    about = ordered(ImportAlignerParams(), ["[UNK]", "T", "##T", "THE", "##RE", "##E", "<blank>"])
    assert about["tokens"] == ["<blank>", "[UNK]", "\u2581t", "t", "\u2581the", "re", "e"]
    assert about["marks"]
    document = spell_pieces([(0, np.nan, "there te")], ListedPieces.of(about))
    assert document.tokens.tolist() == [4, 5, 2, 6]


@pytest.mark.parametrize(("more", "space"), [(["<unk>", "<0x41>"], " "), (["th"], "\u2581")])
def test_a_lone_mark_is_the_space_among_characters(more: list[str], space: str) -> None:
    """Among pieces it is one of them, with which words begin."""
    about = ordered(ImportAlignerParams(), ["<blk>", "a", "\u2581", "b", *more])
    assert about["tokens"] == ["<blank>", "a", space, "b", *more]
    assert about["marks"] == (space != " ")


def test_capitals_with_an_eszett_are_capitals() -> None:
    about = ordered(ImportAlignerParams(), ["<blank>", "A", "S", "\u00df", "|"])
    assert about["tokens"] == ["<blank>", "a", "s", "\u00df", " "]
    about = ordered(ImportAlignerParams(), ["<blank>", "a", "A", "\u00df", "|"])
    assert about["tokens"] == ["<blank>", "a", "A", "\u00df", " "]


def test_no_other_token_has_the_name_of_the_space_or_the_blank() -> None:
    """Texts were spelled with the last of the name, which the model was not trained to give between words."""
    about = ordered(
        ImportAlignerParams(blank="<pad>"), ["<pad>", "<blank>", "|", "A", " ", "\ud800", "\x1b[2J", "\u200c"]
    )
    assert about["tokens"] == ["<blank>", "<1>", " ", "a", "<4>", "<5>", "<6>", "\u200c"]
