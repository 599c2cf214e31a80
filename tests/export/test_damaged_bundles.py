"""A bundle that was cut short, changed or made to harm is refused with its file's name, before its graph is used."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from exported import model, voice

from megahour.cli.transcribe import command
from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import Artifact
from megahour.export.clips import SpokenClip
from megahour.export.model import TrainedModel
from megahour.export.origin import ModelOrigin
from megahour.export.params import ExportModelParams
from megahour.export.write import write_bundle
from megahour.features.params import FeaturesParams
from megahour.transcribe.bundle import MANIFEST, Bundle
from megahour.transcribe.parts import parts_of
from megahour.transcribe.recogniser import Recogniser


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = model(tmp_path_factory.mktemp("model"), "tdnn", FeaturesParams())
    return exported(made, tmp_path_factory.mktemp("sound") / "bundle")


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transducer's."""
    made = model(tmp_path_factory.mktemp("model"), "tdnn", layers=1, heads={"heads": {"transducer": 1.0}})
    return exported(made, tmp_path_factory.mktemp("spoken") / "bundle")


def exported(made: Artifact, folder: Path) -> Path:
    clips, origin = [SpokenClip("c", voice(1.0, 1))], ModelOrigin({"model": {"digest": "d" * 64}})
    write_bundle(TrainedModel(parts_of(made.url)), ExportModelParams(), origin, clips, (), str(folder))
    return folder


def change(folder: Path, **values: Any) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **values}))


def put(folder: Path, name: str, data: bytes) -> None:
    """A file, and what the manifest has to say of it: whoever can write one can write the other."""
    (folder / name).write_bytes(data)
    files = json.loads((folder / MANIFEST).read_text())["files"]
    files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change(folder, files=files)


def without_tokens(folder: Path) -> None:
    """A graph of another model: ten tokens, where the manifest has nine."""
    tokens = json.loads((folder / MANIFEST).read_text())["tokens"]
    change(folder, tokens=tokens[:-1])


def weights_elsewhere(folder: Path) -> None:
    """A graph that asks the runtime to read another file for its weights."""
    graph = onnx.load(str(folder / "model.onnx"))
    weight = max(graph.graph.initializer, key=lambda each: len(each.raw_data))
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../../../etc/passwd")
    put(folder, "model.onnx", graph.SerializeToString())


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a graph cut short": (lambda f: (f / "model.onnx").write_bytes((f / "model.onnx").read_bytes()[:-9]), "bytes of"),
    "a graph that grew": (lambda f: (f / "model.onnx").write_bytes(bytes(1 << 20)), "at most"),
    "another graph of its size": (
        lambda f: (f / "model.onnx").write_bytes(bytes((f / "model.onnx").stat().st_size)),
        "SHA-256",
    ),
    "no graph": (lambda f: (f / "model.onnx").unlink(), "without this file"),
    "a graph that is none": (lambda f: put(f, "model.onnx", b"no graph"), "cannot read the model"),
    "weights elsewhere": (weights_elsewhere, "cannot read the model"),
    "fewer tokens": (without_tokens, "tokens"),
    "no JSON": (lambda f: (f / MANIFEST).write_text("{"), "not JSON"),
    "nested JSON": (lambda f: (f / MANIFEST).write_text("[" * 100_000), "not JSON"),
    "a list": (lambda f: (f / MANIFEST).write_text("[]"), "not an object"),
    "too large": (lambda f: (f / MANIFEST).write_bytes(b" " * ((16 << 20) + 1)), "at most"),
    "of a later format": (lambda f: change(f, format=2), "format"),
    "a rate that no audio has": (lambda f: change(f, front_end={"rate_hz": 10**12}), "front_end.rate_hz"),
    "a path out of it": (lambda f: change(f, graphs={"offline": {"fp32": "../x"}}), "not among its files"),
    "a name out of it": (lambda f: change(f, files={"../x": {"bytes": 1, "sha256": "0" * 64}}), "a file named"),
    "no graphs": (lambda f: change(f, graphs={}), "no offline graph"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_bundle_is_refused_by_name(what: str, sound: Path, tmp_path: Path) -> None:
    damage, message = DAMAGE[what]
    shutil.copytree(sound, tmp_path / "bundle")
    damage(tmp_path / "bundle")
    with pytest.raises(StoreError, match=message) as refused:
        Recogniser(parts_of(str(tmp_path / "bundle")))
    assert str(tmp_path / "bundle") in str(refused.value)


@pytest.mark.parametrize("what", ["no joiner", "graphs of each other", "no context", "another width"])
def test_a_damaged_transducer_too(what: str, spoken: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(spoken, tmp_path / "bundle")
    graphs = json.loads((folder / MANIFEST).read_text())["graphs"]
    damage: dict[str, tuple[dict[str, Any], str]] = {
        "no joiner": ({"graphs": {name: each for name, each in graphs.items() if name != "joiner"}}, "no joiner graph"),
        "graphs of each other": (
            {"graphs": {**graphs, "joiner": graphs["decoder"], "decoder": graphs["joiner"]}},
            "no transducer",
        ),
        "no context": ({"context": 0}, "without width or context"),
        "another width": ({"width": 23}, "width 23"),
    }
    values, message = damage[what]
    change(folder, **values)
    with pytest.raises(StoreError, match=message) as refused:
        Recogniser(parts_of(str(folder)))
    assert str(folder) in str(refused.value)


def test_what_the_bundle_does_not_have_is_named(sound: Path) -> None:
    with pytest.raises(ConfigError, match="no offline graph in int8"):
        Recogniser(parts_of(str(sound), "int8"))
    assert "streaming" not in Bundle.open(str(sound)).manifest.graphs


def test_transcribe_takes_a_bundle(sound: Path) -> None:
    clip = Bundle.open(str(sound)).manifest.golden[0]
    done = CliRunner().invoke(command, [str(sound / clip.file), "--model", str(sound), "--whole"])
    assert (done.exit_code, done.output.split()) == (0, clip.texts["offline"]["fp32"].split())
