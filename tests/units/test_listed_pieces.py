"""Words are cut into pieces as the tokenizers cut them whose lists these are."""

from __future__ import annotations

import re
import time
from collections import Counter
from pydoc_data.topics import topics

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from megahour.align.document import spell_pieces
from megahour.units.listed_pieces import ListedPieces, cut_for
from megahour.units.params import TokensParams
from megahour.units.pieces import learn
from megahour.units.tokens import MARK

WORDS = [word for name in sorted(topics) for word in re.findall(r"[a-z']+", topics[name].lower())]
"""Of Python's own language reference."""
HEARD, OTHERS = WORDS[: len(WORDS) // 2], Counter(WORDS[len(WORDS) // 2 :])


def tokenizer(method: str, size: int) -> sentencepiece.SentencePieceProcessor:
    lines = [" ".join(HEARD[i : i + 12]) for i in range(0, len(HEARD), 12)]
    model = learn(TokensParams(method=method, size=size), lines, where="here")
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def otherwise(theirs: dict[str, list[str]], units: list[str], *, longest_first: bool = False) -> float:
    """Share of the running words that we cut otherwise than `theirs`."""
    cut = cut_for(units, longest_first=longest_first)
    wrong = sum(n for word, n in OTHERS.items() if [units[i] for i in cut(MARK + word)] != theirs[word])
    return wrong / OTHERS.total()


@pytest.mark.parametrize(
    ("method", "size", "at_most"),
    [("bpe", 100, 0.0), ("bpe", 1000, 0.0), ("unigram", 500, 0.005), ("unigram", 1000, 0.005)],
)
def test_words_are_cut_as_sentencepiece_cuts_them(method: str, size: int, at_most: float) -> None:
    """With these unigram models 0.003 and 0.15 % differ, with the fewest pieces 1.2 and 1.2 %."""
    pieces = tokenizer(method, size)
    units = ["<blank>", *(pieces.id_to_piece(i) for i in range(1, pieces.get_piece_size()))]
    theirs = {word: pieces.encode(word, out_type=str) for word in OTHERS}
    assert otherwise(theirs, units) <= at_most


def test_words_are_cut_as_wordpiece_cuts_them() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    alphabet = list("abcdefghijklmnopqrstuvwxyz'")
    special = ["[UNK]", *alphabet, *(f"##{letter}" for letter in alphabet)]  # each letter, wherever it stands
    made.train_from_iterator([" ".join(HEARD)], trainers.WordPieceTrainer(vocab_size=500, special_tokens=special))
    of_number = {number: token for token, number in made.get_vocab().items()}
    ours = {i: name[2:] if name.startswith("##") else MARK + name for i, name in of_number.items()}
    units = ["<blank>", *(ours[i] for i in sorted(ours))]
    words = made.model
    theirs = {word: [ours[token.id] for token in words.tokenize(word)] for word in OTHERS}
    assert otherwise(theirs, units, longest_first=True) == 0
    assert otherwise(theirs, units) > 0.01  # in the order of merges they are others


def test_a_long_line_without_spaces_is_cut_soon() -> None:
    """A transcript in Thai or Japanese may be one line. One merge at a time, 16,000 letters took 20 s."""
    pieces = tokenizer("bpe", 1000)
    units = ["<blank>", *(pieces.id_to_piece(i) for i in range(1, pieces.get_piece_size()))]
    began = time.process_time()
    cut = cut_for(units)(MARK + "".join(HEARD)[:16_000])
    assert time.process_time() - began < 8
    assert "".join(units[number] for number in cut) == MARK + "".join(HEARD)[:16_000]


def test_signs_do_not_count() -> None:
    """Bytes come before the pieces, and would shift the ranks by 256: 0.6 % of the running words were others."""
    pieces = tokenizer("unigram", 500)
    listed = [pieces.id_to_piece(i) for i in range(1, pieces.get_piece_size())]
    units = ["<blank>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *listed, "<sos/eos>"]
    assert otherwise({word: pieces.encode(word, out_type=str) for word in OTHERS}, units) <= 0.003


def test_merges_are_known_beside_symbols_of_the_user() -> None:
    pieces = tokenizer("bpe", 300)
    listed = [pieces.id_to_piece(i) for i in range(1, pieces.get_piece_size())]
    units = ["<blank>", *(f"noise-{letter}" for letter in "abcdefghijklmnopqrst"), *listed]
    assert otherwise({word: pieces.encode(word, out_type=str) for word in OTHERS}, units) == 0


@pytest.mark.parametrize(("method", "at_most"), [("bpe", 0.12), ("unigram", 0.1)])
def test_an_alphabetical_list_is_not_one_of_merges(method: str, at_most: float) -> None:
    """WeNet sorts its pieces, with <sos/eos> behind them. Taken for merges, 14 % of the running words were others."""
    pieces = tokenizer(method, 500)
    listed = sorted(pieces.id_to_piece(i) for i in range(1, pieces.get_piece_size()))
    units = ["<blank>", "<unk>", *listed, "<sos/eos>"]
    assert otherwise({word: pieces.encode(word, out_type=str) for word in OTHERS}, units) <= at_most


def test_an_alphabetical_list_gives_the_fewest_pieces() -> None:
    """Its order says nothing about probabilities: by rank, ▁abc would lose against ▁ and its letters."""
    units = ["<blank>", *sorted(["a", "b", "c", "cab", f"{MARK}abc", "bcab", MARK])]
    assert [units[i] for i in cut_for(units)(f"{MARK}abccab")] == [f"{MARK}abc", "cab"]


PIECES = ["<blank>", "\u2581", "\u2581the", "\u2581t", "re", "he", *"abcdefghijklmnopqrstuvwxyz"]


def test_a_character_in_no_piece_is_left_out() -> None:
    document = spell_pieces([(3, 1.5, "the there è tree")], ListedPieces(PIECES))
    spelled = [[PIECES[t] for t in document.tokens[document.token_word == w]] for w in range(4)]
    assert spelled == [["\u2581the"], ["\u2581the", "re"], ["\u2581"], ["\u2581t", "re", "e"]]
    assert document.words == ["the", "there", "è", "tree"]
    assert document.word_index.tolist() == [0, 1, 2, 3]


MERGES = ["<blank>", "th", "he", "\u2581th", "re", "\u2581the", *"abcdefghijklmnopqrstuvwxyz\u2581"]


@pytest.mark.parametrize(("units", "longest_first"), [(PIECES, False), (MERGES, False), (PIECES, True)])
@given(words=st.lists(st.text("thereabcè", min_size=1, max_size=12), min_size=1, max_size=6))
def test_pieces_spell_their_words(units: list[str], longest_first: bool, words: list[str]) -> None:
    document = spell_pieces([(0, np.nan, " ".join(words))], ListedPieces(units, longest_first=longest_first))
    assert "".join(units[t] for t in document.tokens) == "".join("\u2581" + word.replace("è", "") for word in words)
    assert document.words == words


def test_a_text_is_spellable_if_its_pieces_spell_all_of_it() -> None:
    pieces = ListedPieces(PIECES)
    assert pieces.spellable("the there")
    assert not pieces.spellable("the è")
    assert not pieces.spellable(" ")
    assert [PIECES[token] for token in pieces.encode("the tèe")] == ["\u2581the", "\u2581t", "e"]
