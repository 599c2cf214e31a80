"""`decode` with damaged, hostile or unsuitable features and models: named, quarantined or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from exported import MELS, TOKENS, model
from made_artifacts import write_artifact
from numpy.typing import NDArray

from megahour.core.errors import ConfigError, MegahourError, StoreError
from megahour.core.schemas import FEATURES
from megahour.core.stage import Context, Task
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.decode.params import DecodeParams
from megahour.decode.stage import Decode
from megahour.features.stack import stack
from megahour.models.configuration import normalisation
from megahour.models.conformer import AttentionContext
from megahour.models.inference import Model, load
from megahour.models.streaming import ModelStream

TRANSDUCER = {"heads": {"transducer": 1.0, "attention": 0.3}, "predictor": "stateless"}
SEARCHES = [("ctc", {}), ("ctc", {"ctc_search": "prefixes"}), ("transducer", {}), ("transducer", {"beams": 1})]
NONE: Mapping[str, Any] = MappingProxyType({})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    folder = tmp_path_factory.mktemp("models")
    heads = {"ctc": {}, "transducer": TRANSDUCER}
    return {name: model(folder / name, "conformer", heads=heads[name]) for name in heads}


def heard(frames: int, *, mels: int = MELS, value: float = 0.0) -> NDArray[np.float16]:
    return np.random.default_rng(frames).normal(value, 1, (frames, mels)).astype(np.float16)


def features(
    folder: Path, spoken: list[NDArray[np.float16]], audio: Mapping[str, Any] = NONE, **changed: Any
) -> Artifact:
    """A features artifact. audio: how it was computed. changed: columns that contradict the others."""
    ends = pa.array(np.cumsum([0, *(each.size for each in spoken)]), pa.int64())
    flat = pa.array(np.concatenate([each.reshape(-1) for each in spoken]))
    columns: dict[str, Any] = {field.name: ["test"] * len(spoken) for field in FEATURES}
    columns |= {"key": list(range(len(spoken))), "frames": [len(each) for each in spoken]}
    columns |= {"features": pa.LargeListArray.from_arrays(ends, flat)} | changed
    table = pa.table({name: column for name, column in columns.items() if column is not None})
    stats = {"mean": [0.0] * MELS, "inv_std": [1.0] * MELS, "audio": dict(audio)}
    return write_artifact(folder, [({"set": "test"}, {".arrow": table})], {"mels": spoken[0].shape[1], **stats})


def decoded(inputs: dict[str, Artifact], folder: Path, search: Mapping[str, Any] = NONE) -> ShardWriter:
    """The shard's writer with its counts."""
    stage, p = Decode(), DecodeParams.model_validate(search)
    stage.plan(p, inputs)
    with ShardWriter(Artifact(folder / "out"), 0, "made") as out:
        stage.run(p, inputs, Task({"shard": 0}), out, Context(work=folder))
        out.commit()
    return out


@pytest.mark.parametrize(("kind", "search"), SEARCHES)
def test_utterances_shorter_than_the_subsampling_have_no_words_and_nan_is_quarantined(
    models: dict[str, Artifact], kind: str, search: dict[str, Any], tmp_path: Path
) -> None:
    """Of 0 frames: dropped; of 1 to 3, from which a conformer makes no row: empty; NaN and infinity: named by key."""
    broken = [heard(40, value=np.nan), heard(40, value=np.inf)]
    given = features(tmp_path / "features", [heard(frames) for frames in (0, 1, 3, 4, 40)] + broken)
    out = decoded({"features": given, "model": models[kind]}, tmp_path, search)
    found = Artifact(tmp_path / "out").read_table(0)
    assert found["key"].to_pylist() == [1, 2, 3, 4]
    assert found["text"].to_pylist()[:2] == ["", ""]
    assert found["frames"].to_pylist() == [0, 0, 1, 10]
    assert out.counts.dropped == {"too-short": 1, "not-searchable": 2}
    lines = (tmp_path / "out" / "quarantine" / "00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["5", "6"]


def test_a_conformer_in_chunks_gives_the_words_of_its_stream(models: dict[str, Artifact], tmp_path: Path) -> None:
    spoken = [heard(frames) for frames in (40, 63)]
    given = features(tmp_path / "features", spoken)
    texts = []
    for search in ({}, {"chunk_ms": 80, "left": 1}):
        folder = tmp_path / f"{len(texts)}"
        decoded({"features": given, "model": models["ctc"]}, folder, search)
        texts.append(Artifact(folder / "out").read_table(0)["text"].to_pylist())
    model = load(models["ctc"].url)
    assert isinstance(model, Model)
    mean, inv_std, size = normalisation(model.config, where="")
    streams = [ModelStream(model, AttentionContext(2, 1))(stack(x, 0, mean, inv_std, size), last=True) for x in spoken]
    best = [[label for label, _ in groupby(rows.argmax(1).tolist()) if label] for rows in streams]
    assert texts[1] == ["".join(TOKENS[label] for label in labels).strip() for labels in best]
    assert texts[1] != texts[0]


@pytest.mark.parametrize(
    ("kind", "search", "what"),
    [
        ("conformer", {"chunk_ms": 10}, "chunk_ms: 10\n.*an output frame of the model has 40 ms"),
        ("lstm", {"chunk_ms": 320}, "only a conformer's attention has chunks"),
    ],
)
def test_chunks_that_the_model_cannot_have_are_refused(
    kind: str, search: dict[str, Any], what: str, tmp_path: Path
) -> None:
    inputs = {"features": features(tmp_path / "features", [heard(40)]), "model": model(tmp_path / "model", kind)}
    with pytest.raises(ConfigError, match=what):
        Decode().plan(DecodeParams.model_validate(search), inputs)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"frames": [40, 4000]}, "utterance 1: 640 values, which are not 4000 frames of 16 mels"),
        ({"frames": [40, -1]}, "utterance 1: 640 values, which are not -1 frames"),
        ({"features": pa.array([[0.0] * 639, [0.0] * 640], pa.large_list(pa.float16()))}, "utterance 0: 639 values"),
        ({"features": pa.array([[0.0] * 640, None], pa.large_list(pa.float16()))}, "utterance 1: None values"),
        ({"features": ["x", "y"]}, "no features as stage `features` writes them"),
        ({"key": [None, 1]}, "no features as stage `features` writes them"),
        ({"frames": None}, "file .*arrow cannot be read: .*frames"),
    ],
)
def test_features_that_are_not_what_their_frames_say_are_refused(
    models: dict[str, Artifact], changed: dict[str, Any], what: str, tmp_path: Path
) -> None:
    given = features(tmp_path / "features", [heard(40), heard(40)], **changed)
    with pytest.raises(StoreError, match=what):
        decoded({"features": given, "model": models["ctc"]}, tmp_path)


def test_features_of_other_mels_are_refused_before_the_model_is_loaded(
    models: dict[str, Artifact], tmp_path: Path
) -> None:
    """Twice 8 mels would pass for 16."""
    given = features(tmp_path / "features", [heard(40, mels=8)])
    with pytest.raises(MegahourError, match=r"trained on 16 mels, but these features have 8\s.*mels: 16"):
        Decode().plan(DecodeParams(), {"features": given, "model": models["ctc"]})


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"rate_hz": 16_000}, "rate_hz: 8000, high_hz: 3600.0, but these are of rate_hz: 16000, high_hz: 7600.0"),
        ({"low_hz": 60.0}, "of low_hz: 20.0, but these are of low_hz: 60.0"),
        ({"scale": "int16"}, "of scale: unit, but these are of scale: int16"),
        ({"mean": "utterance"}, "of mean: causal, but these are of mean: utterance"),
        ({"mean": "utterance", "range_db": 20}, r"causal, but these are of mean: utterance, range_db: 20\n"),
    ],
)
def test_features_of_another_front_end_are_refused_before_the_model_is_loaded(
    models: dict[str, Artifact], changed: dict[str, Any], what: str, tmp_path: Path
) -> None:
    audio = {"rate_hz": 8000, "low_hz": 20.0, "high_hz": 3600.0, "scale": "unit", "prior": 1.0}  # 400 Hz below 4000
    given = features(tmp_path / "same", [heard(40)], audio=audio)
    Decode().plan(DecodeParams(), {"features": given, "model": models["ctc"]})
    other = features(tmp_path / "other", [heard(40)], audio={**audio, "high_hz": -400, **changed})
    with pytest.raises(ConfigError, match=what):
        Decode().plan(DecodeParams(), {"features": other, "model": models["ctc"]})


def test_imported_cepstra_and_features_of_audio_are_not_taken_for_each_other(
    models: dict[str, Artifact], tmp_path: Path
) -> None:
    """They may have as many values a frame, where cepstra were made mels."""
    imported = features(tmp_path / "imported", [heard(40)])
    rewritten(tmp_path / "imported" / "manifest.json", stage="import-features")
    with pytest.raises(ConfigError, match="trained on features of audio, but these are imported cepstra"):
        Decode().plan(DecodeParams(), {"features": imported, "model": models["ctc"]})
    of_cepstra = model(tmp_path / "model", "tdnn", layers=1)
    rewritten(tmp_path / "model" / "shards" / "00000.model.json", audio={})
    Decode().plan(DecodeParams(), {"features": imported, "model": of_cepstra})
    own_mean = features(tmp_path / "own", [heard(40)])
    rewritten(
        tmp_path / "own" / "manifest.json",
        stage="import-features",
        summary={**own_mean.summary, "subtracts": "utterance"},
    )
    with pytest.raises(ConfigError, match="of mean: causal, but these are of mean: utterance"):
        Decode().plan(DecodeParams(), {"features": Artifact(own_mean.url), "model": of_cepstra})
    rewritten(tmp_path / "model" / "shards" / "00000.model.json", subtracts="utterance")
    Decode().plan(DecodeParams(), {"features": Artifact(own_mean.url), "model": of_cepstra})
    rewritten(tmp_path / "model" / "shards" / "00000.model.json", subtracts="causal")
    audio = {"rate_hz": 8000, "low_hz": 20.0, "high_hz": 3600.0, "scale": "unit", "prior": 1.0}
    heard_here = features(tmp_path / "audio", [heard(40)], audio=audio)
    with pytest.raises(ConfigError, match="trained on imported cepstra, but these are features of audio"):
        Decode().plan(DecodeParams(), {"features": heard_here, "model": of_cepstra})


def rewritten(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def set_to(name: str, value: Any) -> Callable[[dict[str, Any]], str]:
    return lambda config: json.dumps({**config, name: value})


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda config: "{", "is not JSON"),
        (lambda config: '{"a":' * 60_000, "is not JSON"),
        (lambda config: "[]", "is a list, not an object"),
        (set_to("tokens", TOKENS[:-1]), "has 10 outputs, but 9 tokens"),
        (set_to("tokens", [1] * 10), "not names"),
        (set_to("tokens", "abc"), "not names"),
        (set_to("tags", ["de", "fr"]), "heads '{}' of the model"),
        (set_to("heads", 5), "heads '5' of the model"),
        (set_to("stats", {}), "not numbers"),
        (set_to("stats", {"mean": [0.0] * 3, "inv_std": [1.0] * 3}), "does not match its stack"),
        (set_to("stats", {"mean": [0.0] * MELS, "inv_std": [float("nan")] * MELS}), "does not match its stack"),
        (set_to("stats", {"mean": [0.0] * MELS, "inv_std": [1.0]}), "does not match its stack"),
        (set_to("stack", 0), "does not match its stack"),
        (set_to("stack", 10**9), "does not match its stack"),
        (set_to("inputs", None), "has None inputs"),
        (lambda config: json.dumps({name: config[name] for name in config if name != "stats"}), "not trained on"),
    ],
)
def test_a_damaged_configuration_is_refused_before_the_model_is_loaded(
    damage: Callable[[dict[str, Any]], str], what: str, tmp_path: Path
) -> None:
    bad, given = model(tmp_path / "model", "tdnn", layers=1), features(tmp_path / "features", [heard(40)])
    path = tmp_path / "model" / "shards" / "00000.model.json"
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(MegahourError, match=what):
        Decode().plan(DecodeParams(), {"features": given, "model": bad})
