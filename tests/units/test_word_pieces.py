"""Pieces of words: learnt from text, the same for the same text, and refused where token 0 means something else."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import sentencepiece
from made_artifacts import features_artifact, utterances

from megahour.core.errors import ConfigError, StageError, StoreError
from megahour.core.store import Artifact
from megahour.engine.local import LocalEngine
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.runner.loss_limits import check_kept
from megahour.runner.runner import run_stage
from megahour.units.params import TokensParams
from megahour.units.pieces import Pieces, learn
from megahour.units.tokens import BLANK, MARK, spelled_words
from megahour.units.tokens_stage import MakeTokens

TEXTS = ["one two three", "two three four", "three four five", "one one two two"] * 5


@pytest.mark.parametrize("method", ["unigram", "bpe"])
def test_texts_are_spelled_and_read_back(method: str) -> None:
    model = learn(TokensParams(method=method, size=24), TEXTS, where="texts")
    assert learn(TokensParams(method=method, size=24), TEXTS, where="texts") == model
    pieces = Pieces(model, where="texts")
    assert pieces.tokens[0] == BLANK
    assert any(len(token.strip(MARK)) > 1 for token in pieces.tokens[1:]), "pieces are longer than characters"
    for text in TEXTS:
        tokens = pieces.encode(text)
        assert pieces.spellable(text)
        assert 0 not in tokens
        assert len(tokens) < len(text)
        path = [label for token in tokens for label in (token, 0)]
        assert " ".join(word.text for word in spelled_words(path, pieces.tokens, MARK)) == text
    assert not pieces.spellable("one zebra")
    assert not pieces.spellable("")


def test_whole_words_are_tokens_the_most_frequent_of_them() -> None:
    """A text with a rarer word, or one that no text has, is not spellable."""
    whole = Pieces(learn(TokensParams(method="word"), TEXTS, where="texts"), where="texts")
    assert sorted(whole.tokens[1:]) == sorted(f"{MARK}{word}" for word in ("one", "two", "three", "four", "five"))
    assert [whole.tokens[token] for token in whole.encode("two five")] == [f"{MARK}two", f"{MARK}five"]
    assert not whole.spellable("two fives")
    few = Pieces(
        learn(TokensParams(method="word", size=8), [*TEXTS, "six seven eight nine"], where="texts"), where="texts"
    )
    assert len(few) == 8
    assert few.spellable("one two three four five")
    assert not few.spellable("six seven eight nine")


def test_no_text_and_no_room_are_named() -> None:
    with pytest.raises(StageError, match="sentencepiece"):
        learn(TokensParams(size=24), [], where="texts")
    with pytest.raises(StageError, match="sentencepiece"):
        learn(TokensParams(size=8, method="bpe"), TEXTS, where="texts")


def test_files_that_are_something_else_are_refused() -> None:
    with pytest.raises(StoreError, match="not a sentencepiece model"):
        Pieces(b"\x80\x04pickle", where="file")
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=made,
        vocab_size=24,
        hard_vocab_limit=False,
        minloglevel=2,
        bos_id=0,
        unk_id=1,
        eos_id=2,
    )
    with pytest.raises(StoreError, match="token 0 must be the unknown one or a blank, not '<s>'"):
        Pieces(made.getvalue(), where="file")


def test_a_model_learns_the_pieces_of_the_stage(tmp_path: Path, engine: LocalEngine) -> None:
    """Texts of letters without spaces are single words."""
    features = features_artifact(tmp_path / "features", [("labelled", utterances(20))])
    tokens = Artifact(tmp_path / "tokens")
    run_stage(MakeTokens(), TokensParams(size=16), {"features": features}, tokens, engine, work=tmp_path / "work")
    listed = tokens.read_bytes(0, ".tokens.txt").decode().split()
    p = TrainParams(criterion="ctc", hidden=8, layers=1, held_out=0.0)
    job = prepare(p, {"features": features, "tokens": tokens})
    assert job.config["tokens"] == listed
    assert job.config["marks"]
    assert job.outputs == len(listed)
    batch = job.loaders["labelled"].batch(0, 0, offset=0)
    text = next(u["text"] for u in utterances(20) if u["key"] == batch.keys[0])
    spelled = batch.targets["tokens"][0, : batch.targets["token_lengths"][0]]
    assert "".join(listed[token] for token in spelled) == MARK + text
    with pytest.raises(ConfigError, match="not `tokens`"):
        TrainParams().check_roles(["features", "tokens", "units"])


def test_words_for_which_there_is_no_room_are_counted_with_the_remedy(tmp_path: Path, engine: LocalEngine) -> None:
    features = features_artifact(tmp_path / "features", [("labelled", utterances(20))])
    p, tokens = TokensParams(method="word", size=8), Artifact(tmp_path / "tokens")
    run_stage(MakeTokens(), p, {"features": features}, tokens, engine, work=tmp_path / "work")
    assert len(tokens.read_bytes(0, ".tokens.txt").decode().split()) == 8
    receipts = list(tokens.each_receipt())
    lost = tokens.manifest.counts.dropped["not-spellable"]
    assert 0 < lost < 20
    assert "raise `size`, or take" in check_kept("tokens", MakeTokens().remedies(p, receipts), receipts, tokens)
    assert check_kept("tokens", MakeTokens().remedies(TokensParams(), receipts), receipts, tokens).endswith("`size`")
    given = MakeTokens().remedies(TokensParams(file="tokens.txt", method="word"), receipts)
    assert "the letters and the case" in check_kept("tokens", given, receipts, tokens)
