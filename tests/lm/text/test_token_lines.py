"""Models of tokens: the tokens that spell a text are counted, scored and looked up by a search."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from lm_command import megahour
from models import SMALL, entries

from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import read_arpa
from megahour.lm.query.scorer import NgramScorer
from megahour.lm.text.token_lines import TokenLines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As icefall makes its pieces: a blank, a mark of sentences, and the unknown token, before them. And a text."""
    folder, made = tmp_path_factory.mktemp("tokens"), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SMALL), model_writer=made, vocab_size=60, hard_vocab_limit=False, minloglevel=2,
        user_defined_symbols=["<blk>", "<sos/eos>"], unk_id=2, bos_id=-1, eos_id=-1, model_type="bpe",
    )  # fmt: skip
    (folder / "bpe.model").write_bytes(made.getvalue())
    (folder / "text").write_text("\n".join([*SMALL, "what is 5?", ""]), "utf-8")
    return folder


def spelled_by_sentencepiece(folder: Path, form: str) -> list[str]:
    own = sentencepiece.SentencePieceProcessor(model_file=str(folder / "bpe.model"))
    write = {"pieces": own.id_to_piece, "ids": str, "nemo": lambda number: chr(number + 100)}[form]
    return [" ".join(write(number) for number in own.encode(line)) for line in SMALL]


@pytest.mark.parametrize("form", ["pieces", "ids", "nemo"])
def test_a_model_of_tokens_is_that_of_the_spelled_text(form: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "spelled").write_text("\n".join(spelled_by_sentencepiece(folder, form)) + "\n", "utf-8")
    assert megahour("train", tmp_path / "spelled", "--out", tmp_path / "a.arpa").exit_code == 0
    given = [folder / "text", "--tokenizer", folder / "bpe.model", "--token-form", form]
    done = megahour("train", *given, "--out", tmp_path / "b.arpa")
    comment, _, model = (tmp_path / "b.arpa").read_bytes().partition(b"\n")
    assert (comment[:13], model) == (b"# tokenizer: ", (tmp_path / "a.arpa").read_bytes())
    tokens = sum(len(line.split(" ")) for line in spelled_by_sentencepiece(folder, form))
    assert f"175 words in {tokens} tokens; skipped 1 lines that the tokens cannot spell" in done.output
    if form == "ids":
        bounded = megahour("train", *given, "--memory", "1GB", "--out", tmp_path / "c.arpa")
        assert (tmp_path / "c.arpa").read_bytes() == (tmp_path / "b.arpa").read_bytes()
        assert f"175 words in {tokens} tokens; skipped 1 lines" in bounded.output


def test_scores_are_those_of_the_spelled_text_and_by_word(folder: Path, tmp_path: Path) -> None:
    model, spelled = tmp_path / "a.mlm", tmp_path / "spelled"
    given = ["--tokenizer", folder / "bpe.model"]
    assert megahour("train", folder / "text", *given, "--out", model).exit_code == 0
    spelled.write_text("\n".join(spelled_by_sentencepiece(folder, "pieces")) + "\n", "utf-8")
    expected = megahour("score", model, spelled).stdout
    found = megahour("score", model, folder / "text", *given)
    assert found.stdout.startswith(expected)
    log10_prob = float(expected.splitlines()[-1].split("\t")[1])
    by_word = float(found.stdout.splitlines()[-1].removeprefix("Perplexity by word:\t"))
    assert by_word == pytest.approx(10 ** (-log10_prob / (175 + len(SMALL))), rel=1e-5)
    assert "skipped 1 lines" in found.stderr
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    with pytest.raises(MegahourError, match="latin: not UTF-8"):
        megahour("score", model, tmp_path / "latin", *given)


@pytest.mark.parametrize("form", ["pieces", "ids", "nemo"])
def test_a_model_of_other_tokens_is_not_scored(form: str, folder: Path, tmp_path: Path) -> None:
    """With numbers of the same tokens the file tells: a fact of a mapped model, a comment in an ARPA file."""
    (tmp_path / "letters.txt").write_text("\n".join(["<blk>", "|", *"abcdefghijklmnopqrstuvwxyz'"]))
    given = ["--token-form", form, "--tokenizer"]
    for model in (tmp_path / "a.mlm", tmp_path / "a.arpa"):
        assert megahour("train", folder / "text", *given, folder / "bpe.model", "--out", model).exit_code == 0
        assert megahour("score", model, folder / "text", *given, folder / "bpe.model").exit_code == 0
        with pytest.raises(MegahourError, match=r"a\.(mlm|arpa): .* made of other tokens\n.*--token-form"):
            megahour("score", model, folder / "text", *given, tmp_path / "letters.txt")
    few, letters = (
        [tmp_path / name for name in ("few.mlm", "few.arpa", "copy.arpa", "copy.mlm")],
        tmp_path / "letters.txt",
    )
    (tmp_path / "abc").write_text("abc cab\n" * 5)
    for model, copy in zip(few[:2], few[2:], strict=True):
        assert megahour("train", tmp_path / "abc", *given, letters, "--order", 2, "--out", model).exit_code == 0
        assert megahour("convert", model, copy).exit_code == 0
    letters.write_text("\n".join(reversed(letters.read_text().split("\n"))))
    for model in few:
        with pytest.raises(MegahourError, match=rf"{model.name}: the tokens of .*letters\.txt differ"):
            megahour("score", model, tmp_path / "abc", *given, letters)


def test_a_search_asks_for_all_tokens_at_once(folder: Path, tmp_path: Path) -> None:
    """As a step of shallow fusion: each hypothesis' state, each token."""
    model, lines = tmp_path / "a.arpa", TokenLines.open(str(folder / "bpe.model"))
    assert megahour("train", folder / "text", "--tokenizer", folder / "bpe.model", "--out", model).exit_code == 0
    lm = NgramScorer.open(model)
    numbers = np.array([lm.number(name) for name in lines.names])
    states = np.array([lm.begin(), lm.score(lm.begin(), lines.names[5])[2]])
    found = lm.score_states(states[:, None], numbers)
    assert found.log10_prob.shape == (2, len(lines.names))
    for i, name in enumerate(lines.names):
        assert found.log10_prob[1, i] == pytest.approx(lm.score(int(states[1]), name)[0], abs=1e-6)
    known = {gram[0] for gram in entries(read_arpa(model)) if len(gram) == 1}
    assert {name for name in lines.names if name in lm} == known & set(lines.names) - {"<unk>"}


def test_a_file_that_is_no_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MegahourError, match="tokens cannot be read"):
        megahour("train", folder / "text", "--tokenizer", folder / "gone.model", "--out", tmp_path / "a.arpa")
    (tmp_path / "x.model").write_text("x")
    with pytest.raises(MegahourError, match="not a sentencepiece model"):
        megahour("train", folder / "text", "--tokenizer", tmp_path / "x.model", "--out", tmp_path / "a.arpa")
    assert not (tmp_path / "a.arpa").exists()
