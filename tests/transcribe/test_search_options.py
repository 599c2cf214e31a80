"""What `transcribe` searches a model of tokens with: options, of whole recordings and of streams."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from exported import model, voice

from megahour.cli.recogniser_options import _searched, recogniser_of
from megahour.core.errors import ConfigError
from megahour.models.conformer import Conformer
from megahour.models.inference import Model
from megahour.models.streaming import encoder_of
from megahour.transcribe.formats import as_json
from megahour.transcribe.parts import RecogniserParts
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import stream, transcribe
from megahour.transcribe.streaming import ChunkLengths, plan_of

SAMPLES = np.concatenate([voice(2.0, 1), np.zeros(8_000, np.int16), voice(1.0, 2)])
HEADS = {"heads": {"ctc": 0.7, "attention": 0.3}}


def recogniser(folder: Path, *settings: str, hot_words: str = "") -> Recogniser:
    address = str(folder / "model")
    if not (folder / "model").exists():
        model(folder / "model", "conformer", heads=HEADS)
    return recogniser_of(address, "", 1, "cpu", hot_words=hot_words, settings=settings)


def test_hot_words_and_parameters_of_decode_change_what_is_found(tmp_path: Path) -> None:
    (tmp_path / "hot.txt").write_text("*fgf* :3\n\nbag*\n", "utf-8")
    plain = transcribe(SAMPLES, recogniser(tmp_path), rate_hz=8000)
    hot = recogniser(tmp_path, "beams=12", "hot-word-bonus=2", hot_words=str(tmp_path / "hot.txt"))
    assert (hot.parts.search.beams, hot.parts.search.hot_word_bonus) == (12, 2.0)
    found = transcribe(SAMPLES, hot, rate_hz=8000)
    assert found.text.count("fgf") > plain.text.count("fgf")
    assert all(0 <= word.confidence <= 1 for word in found.words)
    assert [word.start_s for word in found.words] == sorted(word.start_s for word in found.words)


def test_json_lists_the_best_texts_of_each_piece(tmp_path: Path) -> None:
    heard = recogniser(tmp_path, "nbest=3", "beams=5")
    found = transcribe(SAMPLES, heard, rate_hz=8000)
    pieces = json.loads(as_json(found))["nbest"]
    assert [piece["start"] for piece in pieces] == sorted(piece["start"] for piece in pieces)
    assert len(pieces) == 2
    assert " ".join(piece["texts"][0]["text"] for piece in pieces) == found.text
    for piece in pieces:
        texts, totals = zip(*((each["text"], each["total"]) for each in piece["texts"]), strict=True)
        assert len(set(texts)) == len(texts) == 3
        assert sorted(totals, reverse=True) == list(totals)
        assert {"score", "lm", "hot_words", "attention"} <= set(piece["texts"][0])
    words = [(word.start_s, word.end_s) for word in found.words]
    assert all(any(each["start"] <= start < end <= each["end"] for each in pieces) for start, end in words)
    plain = recogniser(tmp_path, "beams=5", "ctc-search=prefixes")
    assert "nbest" not in json.loads(as_json(transcribe(SAMPLES, plain, rate_hz=8000)))


def test_a_model_without_vectors_of_tags_takes_none(tmp_path: Path) -> None:
    recogniser(tmp_path)
    with pytest.raises(ConfigError, match="cannot take the tag 'de'"):
        recogniser_of(str(tmp_path / "model"), "", 1, "cpu", tell="de")


def test_a_stream_finds_what_the_whole_search_finds(tmp_path: Path) -> None:
    """With prefixes, hot words and attention, chunk by chunk."""
    (tmp_path / "hot.txt").write_text("*fgf*\n", "utf-8")
    heard = recogniser(tmp_path, "attention_weight=0.4", "beams=6", hot_words=str(tmp_path / "hot.txt"))
    chunks = ChunkLengths(ms=320, left=2)
    plan = plan_of(heard, chunks)
    assert isinstance(heard.model, Model)
    encoder = encoder_of(heard.model.module)
    assert isinstance(encoder, Conformer)
    assert plan is not None
    encoder.context = plan.context
    offline = transcribe(SAMPLES, heard, rate_hz=8000, settled=False)
    blocks = [SAMPLES[start : start + 800].astype(np.float32) for start in range(0, len(SAMPLES), 800)]
    words = [word for update in stream(heard, blocks, chunks=chunks) if update.final for word in update.words]
    assert [(word.text, word.start_s, word.end_s) for word in words] == [
        (word.text, word.start_s, word.end_s) for word in offline.words
    ]
    assert words


def test_what_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "hot.txt").write_text("xylophone\n", "utf-8")
    for settings, hot_words, message in [
        (["beam_s=3"], "", 'unknown key "beam_s"'),
        (["beams"], "", "--set beams.*--set beams=8"),
        (["beams=none"], "", '"beams"'),
        ([], str(tmp_path / "hot.txt"), "'xylophone' has 'l', 'n', 'o'"),
        ([], str(tmp_path / "none.txt"), "cannot read hot words"),
    ]:
        with pytest.raises(ConfigError, match="(?s)" + message):
            recogniser(tmp_path, *settings, hot_words=hot_words)
    with pytest.raises(ConfigError, match="runs/lm: a graph is searched with its own language model"):
        recogniser_of(str(tmp_path / "model"), "", 1, "cpu", graph="runs/graph", lm="runs/lm")


@pytest.mark.parametrize(
    ("setting", "graph", "message"),
    [
        ("chunk_ms=320", "", "--set chunk_ms applies only to the stage `decode`.*use --chunk-ms"),
        ("lattice=6", "runs/graph", "--set lattice applies only to the stage"),
        ("beam=9", "", "--set beam applies only to a search with a graph"),
        ("attention-weight=0.3", "runs/graph", "--set attention_weight applies only to a search without a graph"),
    ],
)
def test_a_parameter_of_decode_that_would_change_nothing_is_named(
    tmp_path: Path, setting: str, graph: str, message: str
) -> None:
    address = model(tmp_path / "plain", "tdnn").url
    with pytest.raises(ConfigError, match="(?s)" + message):
        recogniser_of(address, "", 1, "cpu", settings=[setting], graph=graph)


def test_hot_words_with_a_graph_and_a_bundles_precision_are_named(tmp_path: Path) -> None:
    """Both were ignored."""
    address = model(tmp_path / "plain", "tdnn").url
    with pytest.raises(ConfigError, match="--hot-words applies only to a search without a graph"):
        recogniser_of(address, "", 1, "cpu", graph="runs/graph", hot_words=str(tmp_path / "hot.txt"))
    parts = RecogniserParts("bundle", precision="fp32")
    with pytest.raises(ConfigError, match=r"(?s)--set precision does not apply to a bundle.*--step fp16 or int8"):
        _searched(parts, "", ["precision=bf16"])


def test_hot_words_of_an_editor_that_marks_utf_8_are_read(tmp_path: Path) -> None:
    (tmp_path / "hot.txt").write_text("bag :2\n", "utf-8-sig")
    assert recogniser(tmp_path, hot_words=str(tmp_path / "hot.txt")).parts.search.hot_words == ["bag :2"]


def test_attention_of_a_model_that_has_none_and_a_step_of_a_model_are_named(tmp_path: Path) -> None:
    address = model(tmp_path / "plain", "tdnn").url
    with pytest.raises(ConfigError, match="no attention decoder") as caught:
        recogniser_of(address, "", 1, "cpu", settings=["attention_weight=0.5"])
    assert "leave attention_weight at 0" in caught.value.remedy
    with pytest.raises(ConfigError, match='a model artifact has no step "int8"'):
        recogniser_of(address, "int8", 1, "cpu")
