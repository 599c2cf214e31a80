"""Tokenizers that other toolkits have made are used as they are: their tokens spell the same texts here."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import sentencepiece
from engine_here import EngineHere
from made_artifacts import features_artifact, utterances
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import Artifact
from megahour.engine.local import LocalEngine
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.runner.runner import run_stage
from megahour.units.hugging_face import HuggingFaceTokens
from megahour.units.listed_pieces import ListedPieces
from megahour.units.params import TokensParams
from megahour.units.pieces import Pieces
from megahour.units.spellers import from_elsewhere, speller, speller_of
from megahour.units.tokens import BLANK, MARK, spelled_words
from megahour.units.tokens_stage import MakeTokens

TEXTS = ["one two three", "two three four", "three four fivé", "don't one one two two"] * 5
TORCHAUDIO = ["-", "|", "E", "T", "A", "O", "N", "I", "H", "S", "R", "D", "L", "U", "W", "F", "V", "'", "É"]


def hugging_face(kind: str, texts: list[str] = TEXTS) -> Tokenizer:
    """A tokenizer of pieces, learnt from the texts by the library itself."""
    special = ["<unk>", "<s>", "</s>"]
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordPieceTrainer(vocab_size=50, special_tokens=special)
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=40, special_tokens=special, unk_token="<unk>")
    else:
        tokenizer = Tokenizer(models.BPE())
        prefixed = kind == "bytes, prefixed"
        parts = [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=prefixed)]
        tokenizer.pre_tokenizer = parts[1] if prefixed else pre_tokenizers.Sequence(parts)
        trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=special)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bytes", "bytes, prefixed"])
def test_hugging_faces_tokens_read_as_the_texts(kind: str) -> None:
    tokenizer = hugging_face(kind)
    ours = HuggingFaceTokens(tokenizer.to_str().encode(), where="tokenizer.json")
    assert ours.tokens[0] == BLANK
    assert len(ours) == len(set(ours.tokens)) == tokenizer.get_vocab_size() + 1
    for text in TEXTS:
        tokens = ours.encode(text)
        assert ours.spellable(text) or "é" in text
        if ours.spellable(text):
            path = [label for token in tokens for label in (token, 0)]
            assert " ".join(word.text for word in spelled_words(path, ours.tokens, MARK)) == text
        assert [token - 1 for token in tokens] == tokenizer.encode(
            " " + text if kind == "bytes" else text, add_special_tokens=False
        ).ids
        listed = ListedPieces.of({"tokens": ours.tokens, "longest_first": ours.longest_first})
        assert listed.encode(text) == tokens or "é" in text
    assert any(len(token.strip(MARK)) > 1 for token in ours.tokens if not token.startswith("<"))
    one = ours.encode("one")
    assert ours.encode("two one")[-len(one) :] == one, "a word is spelled alike wherever it stands"
    assert not ours.spellable("one zebra")
    assert not ours.spellable("ONE")
    assert not ours.spellable("")


@pytest.mark.parametrize(
    "cut",
    [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.CharDelimiterSplit(" "), pre_tokenizers.Split(" ", "removed")],
)
def test_tokens_that_are_words_read_as_the_texts(cut: pre_tokenizers.PreTokenizer) -> None:
    """They carry no mark: all texts of two words and more used to be dropped."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = cut
    tokenizer.train_from_iterator(TEXTS, trainers.WordLevelTrainer(special_tokens=["<unk>"]))
    ours = HuggingFaceTokens(tokenizer.to_str().encode(), where="tokenizer.json")
    for text in TEXTS:
        assert ours.spellable(text)
        path = [label for token in ours.encode(text) for label in (token, 0)]
        assert " ".join(word.text for word in spelled_words(path, ours.tokens, MARK)) == text
    assert not ours.spellable("one zebra")


@pytest.mark.parametrize("kind", ["wordpiece", "bytes, prefixed"])
def test_a_model_knows_how_its_words_are_cut(tmp_path: Path, engine: LocalEngine, kind: str) -> None:
    """Its list alone does not show that WordPiece takes the longest piece first."""
    features = features_artifact(tmp_path / "features", [("labelled", utterances(20))])
    hugging_face(kind, [utterance["text"] for utterance in utterances(20)]).save(str(tmp_path / "tokenizer.json"))
    tokens = Artifact(tmp_path / "tokens")
    p = TokensParams(file=str(tmp_path / "tokenizer.json"))
    run_stage(MakeTokens(), p, {"features": features}, tokens, engine, work=tmp_path / "work")
    job = prepare(
        TrainParams(criterion="ctc", hidden=8, layers=1, held_out=0.0), {"features": features, "tokens": tokens}
    )
    assert job.config["marks"]
    assert job.config.get("longest_first", False) == (kind == "wordpiece")


def test_pieces_that_go_on_with_a_prefix_are_not_words_prefixed() -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=50, special_tokens=["<unk>"], continuing_subword_prefix="##")
    tokenizer.train_from_iterator(TEXTS, trainer)
    ours = HuggingFaceTokens(tokenizer.to_str().encode(), where="tokenizer.json")
    assert all(ours.spellable(text) for text in TEXTS)
    assert not ours.spellable("one zebra")


def test_what_a_tokenizer_does_to_a_text_first_does_not_hide_what_it_cannot_spell() -> None:
    """It writes small letters for capitals: the texts of a training must have them already."""
    tokenizer = hugging_face("wordpiece")
    tokenizer.normalizer = normalizers.Lowercase()
    ours = HuggingFaceTokens(tokenizer.to_str().encode(), where="tokenizer.json")
    assert ours.spellable("one two")
    assert not ours.spellable("One two")


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_control_characters_among_tokens_do_not_break_lists_of_them(kind: str, tmp_path: Path) -> None:
    """All bytes are tokens of GPT-2's kind, and others have `\\n`: lists of a token per line had more lines, and no
    model of them could be exported."""
    tokenizer = hugging_face(kind)
    tokenizer.add_tokens(["\u010a\u010a", "\u00e2\u0138\u0123"] if kind == "bytes" else ["\n\n", "\u0085"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    p, tokens = TokensParams(file=str(tmp_path / "tokenizer.json")), Artifact(tmp_path / "tokens")
    run_stage(MakeTokens(), p, {}, tokens, EngineHere(), work=tmp_path / "work")
    listed, ours = tokens.read_bytes(0, ".tokens.txt").decode(), speller_of(tokens)
    assert listed.splitlines() == list(ours.tokens)
    size = tokenizer.get_vocab_size()
    assert ours.tokens[-2:] == (f"<{size - 2}>", "<\u00e2\u0138\u0123>" if kind == "bytes" else f"<{size - 1}>")
    assert len(set(ours.tokens)) == len(ours.tokens) == size + 1
    assert ours.spellable("one two three")


def test_no_two_tokens_have_the_same_name() -> None:
    """A model learnt them for hours, and was then called damaged."""
    pieces = {"<unk>": 0, "<blank>": 1, "|": 2, "a": 3, "##b": 4}
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="<unk>"))
    ours = HuggingFaceTokens(tokenizer.to_str().encode(), where="tokenizer.json")
    assert ours.tokens == (BLANK, "<unk>", "<1>", " ", "a", "##b")
    spaces = Tokenizer(models.WordLevel({**pieces, " ": 5}, unk_token="<unk>"))
    marks = Tokenizer(models.WordPiece({**pieces, f"##{MARK}a": 5}, unk_token="<unk>"))
    for tokenizer, name in ((spaces, " "), (marks, f"{MARK}a")):
        with pytest.raises(StoreError, match=f"tokenizer.json: two of its tokens are '{name}'"):
            HuggingFaceTokens(tokenizer.to_str().encode(), where="tokenizer.json")


def test_truncation_and_padding_of_the_file_do_not_count() -> None:
    tokenizer = hugging_face("unigram")
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=64)
    assert HuggingFaceTokens(tokenizer.to_str().encode(), where="tokenizer.json").spellable("one two three four one")


def test_files_that_are_something_else_or_mark_ends_of_words_are_refused(tmp_path: Path) -> None:
    ends = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    with pytest.raises(StoreError, match="its tokens mark the ends of words, with '</w>'"):
        HuggingFaceTokens(ends.to_str().encode(), where="file")
    for wrong in (b"{}", b"\xff", b"[1]", b'{"model": {"type": "Other"}}'):
        with pytest.raises(StoreError, match="not a tokenizer"):
            HuggingFaceTokens(wrong, where="file")
    for name, content, what in [
        ("a.json", b"3", "not a list of tokens"),
        ("b.json", b'{"a": "x", "b": 1}', "not a list of tokens"),
        ("c.txt", b"\xff", "not a list of tokens"),
        ("d.json", b"{}", "no label that is a character"),
        ("e.txt", b"<pad>\n\n", "no label that is a character"),
        ("d.txt", b"-\nth\n", "label 'th' is not one character"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=what):
            from_elsewhere(str(tmp_path / name))
    with pytest.raises(ConfigError, match="check the path"):
        from_elsewhere(str(tmp_path / "none.json"))


def test_a_list_with_numbers_is_in_their_order(tmp_path: Path) -> None:
    """As icefall's and Kaldi's tokens.txt; "label 'b 3' is not one character" was all that it got."""
    (tmp_path / "tokens.txt").write_text("<blk> 0\nb 3\n<unk> 1\n▁ 2\na\t4\n#0 5\n")
    ours = speller(*from_elsewhere(str(tmp_path / "tokens.txt")), where="tokens.txt")
    assert ours.tokens == (BLANK, " ", "b", "a")
    (tmp_path / "twice.txt").write_text("<blk> 0\na 1\na 2\n")
    with pytest.raises(ConfigError, match="the token 'a' occurs more than once"):
        from_elsewhere(str(tmp_path / "twice.txt"))
    (tmp_path / "shared.txt").write_text("<blk> 0\na 1\nb 1\n")
    with pytest.raises(ConfigError, match="2 tokens have the number 1"):
        from_elsewhere(str(tmp_path / "shared.txt"))


@pytest.mark.parametrize("form", ["labels.txt", "vocab.json"])
def test_characters_of_torchaudio_and_wav2vec2(tmp_path: Path, form: str) -> None:
    names = TORCHAUDIO if form == "labels.txt" else ["<pad>", "<s>", "</s>", "<unk>", *TORCHAUDIO[1:]]
    text = "\n".join(names) + "\n" if form == "labels.txt" else json.dumps({name: i for i, name in enumerate(names)})
    (tmp_path / form).write_text(text)
    ours = speller(*from_elsewhere(str(tmp_path / form)), where=form)
    assert ours.tokens == (BLANK, " ", *(name.lower() for name in TORCHAUDIO[2:]))
    assert ours.spellable("don't one")
    assert ours.encode("to a") == [3, 5, 1, 4]


def test_control_characters_of_a_vocabulary_are_left_out(tmp_path: Path) -> None:
    """One made of all characters of a file of texts has its line ends: no model of it could be exported."""
    (tmp_path / "vocab.json").write_text(json.dumps({"\n": 0, "a": 1, "|": 2, "\t": 3, "\u200c": 4, "[PAD]": 5}))
    form, file = from_elsewhere(str(tmp_path / "vocab.json"))
    assert speller(form, file, where="vocab.json").tokens == (BLANK, "a", " ", "\u200c")


def test_sentencepiece_models_of_others_are_used_with_their_specials() -> None:
    """NeMo's have the unknown piece first, and icefall's a blank, an end of sentences, and the unknown one."""
    nemo = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    icefall = {"unk_id": 2, "bos_id": -1, "eos_id": -1, "user_defined_symbols": ["<blk>", "<sos/eos>"]}
    lines = {**nemo, "user_defined_symbols": ["\n", "<blank>"]}  # Gemma's has \n
    for specials, second in ((nemo, "<s>"), (icefall, "<sos/eos>"), (lines, "<s>")):
        made = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS), model_writer=made, vocab_size=24, hard_vocab_limit=False, minloglevel=2,
            **specials,
        )  # fmt: skip
        ours = Pieces(made.getvalue(), where="file")
        assert ours.tokens[:2] == (BLANK, second)
        assert len(ours) == len(set(ours.tokens)) == len("\n".join(ours.tokens).splitlines())
        assert ours.spellable("one two three")
        assert not ours.spellable("one zebra")
    assert ours.tokens[3:5] == ("<3>", "<4>")


def test_a_model_learns_the_tokens_of_a_file(tmp_path: Path, engine: LocalEngine) -> None:
    features = features_artifact(tmp_path / "features", [("labelled", utterances(20))])
    letters = sorted({letter for utterance in utterances(20) for letter in utterance["text"]})
    (tmp_path / "labels.txt").write_text("\n".join(["-", "|", *letters[1:]]))
    tokens = Artifact(tmp_path / "tokens")
    p = TokensParams(file=str(tmp_path / "labels.txt"))
    run_stage(MakeTokens(), p, {"features": features}, tokens, engine, work=tmp_path / "work")
    left_out = sum(letters[0] in utterance["text"] for utterance in utterances(20))
    assert tokens.manifest.counts.kept == 20 - left_out
    assert tokens.manifest.counts.dropped == {"not-spellable": left_out}
    job = prepare(
        TrainParams(criterion="ctc", hidden=8, layers=1, held_out=0.0), {"features": features, "tokens": tokens}
    )
    assert job.config["tokens"] == list(speller_of(tokens).tokens) == [BLANK, " ", *letters[1:]]
    assert not job.config.get("marks")
    assert TokensParams(file=str(tmp_path / "labels.txt")).identity() != TokensParams().identity()
    before = p.identity()
    (tmp_path / "labels.txt").write_text("-\n|\n")
    assert p.identity() != before
