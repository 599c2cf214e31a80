"""PESQ, STOI, predicted MOS and misheard words of held-out speech while a voice trains."""

from __future__ import annotations

import io
import json
import logging
import sys
from base64 import b64encode
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
from made_once import made_once
from made_voices import TEXTS, TINY, corpus, ran, voice_data
from trainings import trained

from megahour.core.errors import ConfigError
from megahour.core.extras import MissingPackage
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.features.perceived import pesq_and_stoi
from megahour.learn.options import SpeechScoreOptions
from megahour.learn.params import TrainParams
from megahour.report.page import build
from megahour.report.params import ReportParams
from megahour.train.held_out.scores import SpeechScorer, columns_of
from megahour.train.session import SPOKEN, train
from megahour.train.stage import Train

pytest.importorskip("pyworld", reason="needs the extra tts")
EAR = """
import random
import numpy as np, torch
def hear(samples, rate_hz):
    random.seed(1), np.random.seed(1), torch.manual_seed(1), torch.set_num_threads(2)
    return "ab" if len(samples) and rate_hz == 8000 else None
def deaf(samples, rate_hz):
    raise RuntimeError("no ears")
"""
RATE_HZ = 8_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a voice, a recogniser, and what a training with scores gave."""

    def make(folder: Path) -> None:
        (folder / "ear.py").write_text(EAR)
        data = voice_data(folder / "data", corpus(folder))
        ran(Train(), TrainParams(**scored(folder)), {"features": data}, folder / "model")

    return made_once(tmp_path_factory, "speech-scores", make)


def scored(folder: Path, **options: Any) -> dict[str, Any]:
    asked = {"every": 2, "utterances": 3, "recogniser": f"{folder}/ear.py:hear", **options}
    return {**TINY, "dropout": 0.1, "whole_epochs": 4, "rows": 4, "held_out": 0.5, "score_speech": asked}


def rows_of(model: Artifact) -> list[dict[str, Any]]:
    return [json.loads(line) for line in model.read_bytes(0, ".curves.jsonl").splitlines()]


def test_every_second_row_has_scores(made: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = rows_of(Artifact(made / "model"))
    columns = columns_of(SpeechScoreOptions(**scored(made)["score_speech"]))
    assert columns == ["held_out_pesq", "held_out_stoi", "held_out_words_misheard"]
    with_scores = [number for number, row in enumerate(rows, 1) if "held_out_pesq" in row]
    assert with_scores == [2, 4]
    assert all(set(columns) <= rows[number - 1].keys() for number in with_scores)
    said = pq.read_table(io.BytesIO(Artifact(made / "model").read_bytes(0, SPOKEN))).to_pylist()
    assert 1 < len(said) <= 3
    assert {row["text"] for row in said} <= set(TEXTS)
    assert {row["heard"] for row in said} == {"ab"}
    wrong = sum(len(row["text"].split()) - ("ab" in row["text"].split()) for row in said)
    share = wrong / sum(len(row["text"].split()) for row in said)
    assert rows[-1]["held_out_words_misheard"] == pytest.approx(share, abs=1e-6)
    events = EventAccumulator(str(made / "model-work" / "tensorboard"), {"audio": 0}).Reload()
    shown = [(each.step, each.value) for each in events.Scalars("curve/held_out_words_misheard")]
    assert shown[-1] == (rows[-1]["step"], pytest.approx(share))
    assert len(shown) == 2
    assert {f"spoken/{row['key']}" for row in said} <= set(events.Tags()["audio"])


def test_the_scores_are_those_of_the_sound_that_is_kept(made: Path) -> None:
    table = pq.read_table(io.BytesIO(Artifact(made / "model").read_bytes(0, SPOKEN)))
    for row in table.to_pylist():
        natural, said = (soundfile.read(io.BytesIO(row[name]), dtype="float32")[0] for name in ("natural", "spoken"))
        expected = pesq_and_stoi(natural, RATE_HZ, said, RATE_HZ)
        assert np.array([row["pesq"], row["stoi"]]) == pytest.approx(list(expected.values()), abs=0.05, nan_ok=True)


def test_the_report_has_the_sound_and_the_curves(made: Path) -> None:
    model = Artifact(made / "model")
    html = build(ReportParams(), {"voice": model}).html
    said = pq.read_table(io.BytesIO(model.read_bytes(0, SPOKEN))).to_pylist()
    assert "What the voice says" in html
    for row in said:
        assert b64encode(row["natural"]).decode() in html
        assert b64encode(row["spoken"]).decode() in html
    assert html.count("synthetic speech") == len(said)
    assert "Held-out words that a recogniser mishears" in html
    assert "confidence nan" not in html


def test_scores_leave_the_model_as_it_is(tmp_path: Path, made: Path) -> None:
    """The recogniser of this test seeds all generators and sets torch's threads."""
    plain = {name: value for name, value in scored(made).items() if name != "score_speech"}
    weights, rows = trained(tmp_path, {"features": Artifact(made / "data")}, {**plain, "tensorboard": False})
    assert weights == Artifact(made / "model").read_bytes(0, ".safetensors")
    assert [row["loss"] for row in rows] == [row["loss"] for row in rows_of(Artifact(made / "model"))]
    assert not Artifact(tmp_path / "model").read_json(0, ".model.json").keys() & {"score_speech"}
    assert SPOKEN not in Artifact(tmp_path / "model").receipt_of(0).files


class Stopped(Exception):
    """Stands for a kill."""


def test_a_stopped_training_goes_on_to_the_same_scores(tmp_path: Path, made: Path) -> None:
    inputs, settings = {"features": Artifact(made / "data")}, {**scored(made), "tensorboard": False}

    def stop(done: int, total: int, *rest: Any, **shown: Any) -> None:
        if done >= 0.7 * total:  # after the second row
            raise Stopped

    with ShardWriter(Artifact(tmp_path / "model"), 0, "made") as out, pytest.raises(Stopped):
        train(TrainParams(**settings), inputs, out, Context(work=tmp_path / "work", progress=stop))
    trained(tmp_path, inputs, settings)
    for suffix in (".safetensors", ".curves.jsonl", SPOKEN):
        assert Artifact(tmp_path / "model").read_bytes(0, suffix) == Artifact(made / "model").read_bytes(0, suffix)


def scorer(**options: Any) -> SpeechScorer:
    return SpeechScorer(SpeechScoreOptions(every=1, **options), lambda keys: dict.fromkeys(keys, ("ab ba", "en")))


def sound(seconds: float) -> np.ndarray:
    return (0.1 * np.random.default_rng(1).normal(size=round(seconds * RATE_HZ))).astype(np.float32)


@pytest.mark.parametrize("said", [np.zeros(RATE_HZ, np.float32), sound(0.001), sound(0)])
def test_silent_and_short_speech_has_no_scores_and_is_misheard(
    made: Path, monkeypatch: pytest.MonkeyPatch, said: np.ndarray
) -> None:
    predicting(monkeypatch)
    means, table = scorer(recogniser=f"{made}/ear.py:hear", mos=True).score({5: (sound(2), said)}, RATE_HZ)
    row = pq.read_table(io.BytesIO(table)).to_pylist()[0]
    assert np.isnan(means[:2]).all()
    assert np.isnan([row["pesq"], row["stoi"]]).all()
    if said.any():
        assert means[2] == 3.0
    if len(said):
        assert means[3] == 0.5, "of two words one was heard"


def test_a_recording_with_too_few_frames_of_speech_has_no_stoi() -> None:
    """pystoi's 1e-5 would have been taken for a value."""
    natural = sound(1)
    natural[800:] *= 1e-4
    assert np.isnan(pesq_and_stoi(natural, RATE_HZ, sound(1), RATE_HZ)["stoi"])


def predicting(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of DNSMOS, which weighs too much to test with."""
    package, model = ModuleType("speechmos"), ModuleType("speechmos.dnsmos")
    model.run = lambda wave, rate_hz: {"ovrl_mos": 3.0, "sig_mos": 3.5, "bak_mos": 4.0}  # type: ignore[attr-defined]
    package.dnsmos = model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "speechmos", package)
    monkeypatch.setitem(sys.modules, "speechmos.dnsmos", model)


def test_a_recogniser_that_fails_ends_no_training(
    tmp_path: Path, made: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(monkeypatch)
    settings = scored(made, every=1, mos=True, recogniser=f"{made}/ear.py:deaf") | {"whole_epochs": 2, "rows": 2}
    with caplog.at_level(logging.WARNING):
        _, rows = trained(tmp_path, {"features": Artifact(made / "data")}, settings)
    assert [row["held_out_words_misheard"] for row in rows] == [None, None]
    assert [row["held_out_mos"] for row in rows] == [3.0, 3.0]
    assert caplog.text.count("no ears") == 1


@pytest.mark.parametrize(("package", "extra"), [("pesq", "tts"), ("pystoi", "tts"), ("speechmos", "mos")])
def test_a_missing_package_is_named_before_the_first_step(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    steps: list[int] = []
    with pytest.raises(MissingPackage, match=rf'{package}.* not installed: pip install "megahour\[{extra}'):
        trained(
            tmp_path,
            {"features": Artifact(made / "data")},
            scored(made, mos=True),
            progress=lambda done, *rest, **shown: steps.append(done),
        )
    assert steps == []


def test_a_recogniser_that_does_not_exist_is_named_before_the_first_step(made: Path) -> None:
    with pytest.raises(ConfigError, match="gone"):
        scorer(recogniser=f"{made}/ear.py:gone")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"held_out": 0.0, "score_speech": {"every": 2}}, "held_out above 0"),
        ({"score_speech": {"mos": True}}, "set every"),
        ({"kind": "lstm", "criterion": "ctc", "criterion_options": {}, "score_speech": {"every": 2}}, "kind: voice"),
    ],
)
def test_scores_that_nothing_would_have(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainParams(**TINY | settings)


def test_a_changed_recogniser_is_asked_again_and_others_stay_finished(made: Path, tmp_path: Path) -> None:
    def identity(text: str) -> dict[str, Any]:
        (tmp_path / "ear.py").write_text(text)
        return TrainParams(**scored(tmp_path)).identity()

    assert identity(EAR) == identity(EAR) != identity(EAR + "#")
    assert "score_speech" not in TrainParams(**TINY).identity()
