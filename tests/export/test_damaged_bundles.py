"""A truncated, changed or malicious bundle is refused with its file's name, before its graph is used."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import soundfile
from click.testing import CliRunner, Result
from exported import model, voice

from megahour.cli.main import app
from megahour.cli.transcribe import command
from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import Artifact
from megahour.export.clips import SpokenClip, clips_of_files
from megahour.export.model import TrainedModel
from megahour.export.origin import ModelOrigin
from megahour.export.params import ExportModelParams
from megahour.export.sherpa import tokens_text
from megahour.export.write import write_bundle
from megahour.features.params import FeaturesParams
from megahour.foreign import onnx_session
from megahour.transcribe.bundle import Bundle
from megahour.transcribe.bundle_files import MANIFEST
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
    """Writes a file and its entry in the manifest: an attacker can write both."""
    (folder / name).write_bytes(data)
    files = json.loads((folder / MANIFEST).read_text())["files"]
    files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change(folder, files=files)


def without_tokens(folder: Path) -> None:
    """A graph of another model, with ten tokens where the manifest has nine."""
    tokens = json.loads((folder / MANIFEST).read_text())["tokens"]
    change(folder, tokens=tokens[:-1])


def front_end(folder: Path, **values: float) -> None:
    change(folder, front_end={**json.loads((folder / MANIFEST).read_text())["front_end"], **values})


def golden_text(text: str, folder: Path) -> None:
    first, *others = json.loads((folder / MANIFEST).read_text())["golden"]
    change(folder, golden=[{**first, "texts": {"offline": {"fp32": text}}}, *others])


def link(name: str, to: str, folder: Path) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(to)


def program(kind: str, size: int, value: float, folder: Path) -> None:
    """A graph of a few operators: `x` times a matrix of `value`, after what `kind` does."""
    h, of = onnx.helper, onnx.TensorProto
    numbers = {"size": [size], "first": [0], "axis": [1]}
    given = [h.make_tensor(name, of.INT64, [1], each) for name, each in numbers.items()]
    given += [h.make_tensor("trips", of.INT64, [], [size]), h.make_tensor("w", of.FLOAT, [16, 10], [value] * 160)]
    turn = [h.make_tensor_value_info("on", of.BOOL, []), h.make_tensor_value_info("x_in", of.FLOAT, None)]
    after = [h.make_tensor_value_info("still", of.BOOL, []), h.make_tensor_value_info("x_out", of.FLOAT, None)]
    same = [h.make_node("Identity", ["on"], ["still"]), h.make_node("Neg", ["x_in"], ["x_out"])]
    body = h.make_graph(same, "body", [h.make_tensor_value_info("turn", of.INT64, []), *turn], after)
    first = {
        "ConstantOfShape": [
            h.make_node(kind, ["size"], ["c"]),
            h.make_node("ReduceMax", ["c"], ["most"], keepdims=0),
            h.make_node("Add", ["x", "most"], ["y"]),
        ],
        "Loop": [h.make_node(kind, ["trips", "", "x"], ["y"], body=body)],
        "Neg": [h.make_node(kind, ["x"], ["y"])],
        "Slice": [h.make_node(kind, ["x", "first", "size", "axis"], ["y"])],
    }[kind]
    takes = [h.make_tensor_value_info("x", of.FLOAT, [1, "t", 16]), h.make_tensor_value_info("x_lens", of.INT64, [1])]
    gives = [h.make_tensor_value_info("log_probs", of.FLOAT, [1, "u", 10])]
    graph = h.make_graph([*first, h.make_node("MatMul", ["y", "w"], ["log_probs"])], "program", takes, gives, given)
    made = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    put(folder, "model.onnx", made.SerializeToString())


def weights_elsewhere(place: str, folder: Path) -> None:
    """A graph that makes the runtime read its weights from another file, which exists here."""
    graph = onnx.load(str(folder / "model.onnx"))
    weight = max(graph.graph.initializer, key=lambda each: len(each.raw_data))
    Path("weights.bin").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=place)
    put(folder, "model.onnx", graph.SerializeToString())


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a graph cut short": (
        lambda f: (f / "model.onnx").write_bytes((f / "model.onnx").read_bytes()[:-9]),
        "bytes instead of",
    ),
    "a graph that grew": (lambda f: (f / "model.onnx").write_bytes(bytes(1 << 20)), "1048576 bytes instead of"),
    "a golden clip cut short": (lambda f: os.truncate(f / "golden" / "000.wav", 9), "000.wav: 9 bytes instead of"),
    "another graph of its size": (
        lambda f: (f / "model.onnx").write_bytes(bytes((f / "model.onnx").stat().st_size)),
        "SHA-256",
    ),
    "no graph": (lambda f: (f / "model.onnx").unlink(), "without this file"),
    "a graph that is none": (lambda f: put(f, "model.onnx", b"no graph"), "cannot read the model"),
    "weights out of it": (partial(weights_elsewhere, "../../../../etc/passwd"), "cannot read the model"),
    "weights in the current folder": (partial(weights_elsewhere, "weights.bin"), "cannot read the model"),
    "more memory than there is": (
        partial(program, "ConstantOfShape", 1 << 50, 0.0),
        "Available memory of .* is smaller",
    ),
    "a graph without an end": (partial(program, "Loop", 1 << 60, 0.0), "does not run: .*terminate"),
    "no numbers": (partial(program, "Neg", 0, float("nan")), "not finite"),
    "always 50 rows": (partial(program, "Slice", 50, 0.0), "50 rows of 10 values for 130 frames"),
    "a device for a graph": (partial(link, "model.onnx", "/dev/zero"), "no plain file"),
    "a device for a manifest": (partial(link, MANIFEST, "/dev/zero"), "no plain file"),
    "a pipe": (lambda f: ((f / "model.onnx").unlink(), os.mkfifo(f / "model.onnx")), "no plain file"),
    "a link out of it": (partial(link, MANIFEST, "/etc/passwd"), "outside the bundle.*\n.*cp -rL"),
    "fewer tokens": (without_tokens, "tokens"),
    "no JSON": (lambda f: (f / MANIFEST).write_text("{"), "not JSON"),
    "nested JSON": (lambda f: (f / MANIFEST).write_text("[" * 100_000), "not JSON"),
    "a list": (lambda f: (f / MANIFEST).write_text("[]"), "not an object"),
    "too large": (lambda f: (f / MANIFEST).write_bytes(b" " * ((16 << 20) + 1)), "at most"),
    "of a later format": (lambda f: change(f, format=2), "format"),
    "a rate that no audio has": (lambda f: change(f, front_end={"rate_hz": 10**12}), "front_end.rate_hz"),
    "mels above all frequencies": (partial(front_end, low_hz=4000.0), "mel filters from 4000 to 4000 Hz do not fit"),
    "mels that end before they begin": (partial(front_end, high_hz=10.0), "mel filters from 20 to 10 Hz do not fit"),
    "a token twice": (lambda f: change(f, tokens=["a"] * 10), "twice"),
    "another token in place of the blank": (
        lambda f: change(f, tokens=[*"abcdefghij"]),
        "token 0 is .a., not the blank",
    ),
    "a token for a terminal": (lambda f: change(f, tokens=[*"abcdefghi", "\x1b[2J"]), "control characters"),
    "a token that no file can have": (lambda f: change(f, tokens=[*"abcdefghi", "\ud800"]), "control characters"),
    "a token without an end": (lambda f: change(f, tokens=[*"abcdefghi", "x" * 1001]), "more than 1000"),
    "a form for a terminal": (lambda f: change(f, graphs={"\x1b[2J": {"fp32": "model.onnx"}}), "control characters"),
    "a text for a terminal": (partial(golden_text, "\x1b]0;x\x07"), "control characters"),
    "a path out of it": (lambda f: change(f, graphs={"offline": {"fp32": "../x"}}), "not among its files"),
    "a name out of it": (lambda f: change(f, files={"../x": {"bytes": 1, "sha256": "0" * 64}}), "a file has the name"),
    "no graphs": (lambda f: change(f, graphs={}), "no offline graph"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_bundle_is_refused_by_name(
    what: str, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, message = DAMAGE[what]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(onnx_session, "RUN_S", 0.3)
    monkeypatch.setattr(onnx_session, "AUDIO_TIMES", 0.0)
    shutil.copytree(sound, tmp_path / "bundle")
    damage(tmp_path / "bundle")
    with pytest.raises(StoreError, match=message) as refused:
        Recogniser(parts_of(str(tmp_path / "bundle")))
    assert str(tmp_path / "bundle") in str(refused.value)


@pytest.mark.parametrize(
    "what", ["no joiner", "graphs of each other", "no context", "another width", "another predictor"]
)
def test_a_damaged_transducer_too(what: str, spoken: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(spoken, tmp_path / "bundle")
    graphs = json.loads((folder / MANIFEST).read_text())["graphs"]
    damage: dict[str, tuple[dict[str, Any], str]] = {
        "no joiner": ({"graphs": {name: each for name, each in graphs.items() if name != "joiner"}}, "no joiner graph"),
        "graphs of each other": (
            {"graphs": {**graphs, "joiner": graphs["decoder"], "decoder": graphs["joiner"]}},
            "not a transducer",
        ),
        "no context": ({"context": 0}, "without width or context"),
        "another width": ({"width": 23}, "width 23"),
        "another predictor": ({"predictor": "lstm"}, "not a transducer"),
    }
    values, message = damage[what]
    change(folder, **values)
    with pytest.raises(StoreError, match=message) as refused:
        Recogniser(parts_of(str(folder)))
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ('{"a":' * 60_000, "not JSON"),
        ("[]", "not an object"),
        ('{"stack": 0}', "does not match its stack, 0"),
        ('{"stats": {}}', "mean and inv_std are not numbers"),
        ('{"audio": 5}', "damaged.*AttributeError"),
    ],
)
def test_a_damaged_configuration_of_a_model_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """Of a *model* artifact; what is an object is what changes in its own."""
    made = model(tmp_path, "tdnn", FeaturesParams())
    file = next(tmp_path.rglob("*.model.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | json.loads(text)) if text.endswith("}") else text)
    with pytest.raises(StoreError, match=message) as refused:
        Recogniser(parts_of(made.url))
    assert str(tmp_path) in str(refused.value)


def test_what_the_bundle_does_not_have_is_named(sound: Path) -> None:
    with pytest.raises(ConfigError, match="no offline graph in int8"):
        Recogniser(parts_of(str(sound), "int8"))
    assert "streaming" not in Bundle.open(str(sound)).manifest.graphs


def test_a_bundle_is_not_exported_again(sound: Path, tmp_path: Path) -> None:
    """It used to be "shard 0 has no file *.model.json: megahour verify", which found nothing wrong."""
    done = CliRunner().invoke(app, ["export-model", str(sound), "--out", str(tmp_path / "again")])
    assert isinstance(done.exception, ConfigError)
    assert f"{sound}: a bundle, which is exported already" in str(done.exception)
    assert not (tmp_path / "again").exists()


def test_transcribe_takes_a_bundle(sound: Path) -> None:
    clip = Bundle.open(str(sound)).manifest.golden[0]
    done = CliRunner().invoke(command, [str(sound / clip.file), "--model", str(sound), "--whole"])
    assert (done.exit_code, done.output.split()) == (0, clip.texts["offline"]["fp32"].split())


def test_a_digest_detects_a_bundle_whose_manifest_was_changed_with_its_files(sound: Path, tmp_path: Path) -> None:
    def verified(folder: Path, *words: str) -> Result:
        return CliRunner().invoke(app, ["verify", str(folder), *words])

    digest = Bundle.open(str(sound)).digest
    clips = len(Bundle.open(str(sound)).manifest.golden)
    expected = f"ok  {sound}, {clips} golden clips agree, digest {digest}\n"
    assert verified(sound, "--digest", digest.upper()).output == expected
    changed = shutil.copytree(sound, tmp_path / "bundle")
    (changed / "tokens.txt").write_bytes(b"x" * (changed / "tokens.txt").stat().st_size)
    assert "tokens.txt: its SHA-256 differs" in str(verified(changed).exception)
    put(changed, "tokens.txt", (sound / "tokens.txt").read_bytes())
    change(changed, licences=[{"licence": "CC0", "attribution": "me", "utterances": 1, "hours": 1.0}])
    assert verified(changed).exit_code == 0
    assert f"not {digest}" in str(verified(changed, "--digest", digest).exception)


def swapped(folder: Path) -> None:
    """Tokens in another order in both places: all checksums match, and every word is wrong."""
    tokens = json.loads((folder / MANIFEST).read_text())["tokens"]
    change(folder, tokens=[*tokens[:2], *reversed(tokens[2:])])
    put(folder, "tokens.txt", tokens_text(json.loads((folder / MANIFEST).read_text())["tokens"]).encode())


def pickled(folder: Path) -> None:
    """A pickle whose loading would run code."""
    data = io.BytesIO()
    np.save(data, np.array([Path("x")], dtype=object), allow_pickle=True)
    put(folder, Bundle.open(str(folder)).manifest.golden[0].log_probs, data.getvalue())


@pytest.mark.parametrize(
    ("change_it", "message"),
    [
        (swapped, 'is "[^"]+" in these tokens, but "[^"]+" in the manifest'),
        (lambda folder: put(folder, "tokens.txt", b"other"), "tokens.txt: its tokens are not the manifest's"),
        (lambda folder: front_end(folder, low_hz=300.0), "the graph's output differs from golden/.* by"),
        (lambda folder: put(folder, Bundle.open(str(folder)).manifest.golden[0].file, b"RIFF"), "cannot be read"),
        (pickled, "cannot be read: Object arrays cannot be loaded"),
    ],
)
def test_golden_clips_detect_a_bundle_whose_parts_do_not_belong_together(
    change_it: Callable[[Path], None], message: str, sound: Path, tmp_path: Path
) -> None:
    """Although the checksums match, because the manifest was changed too."""
    changed = shutil.copytree(sound, tmp_path / "bundle")
    change_it(changed)
    error = CliRunner().invoke(app, ["verify", str(changed)]).exception
    assert isinstance(error, StoreError)
    assert re.search(message, str(error)), error


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [("clip.wav", b"RIFF", "unreadable-audio"), ("clip.wav", b"", "zero-length"), ("clip.txt", b"caf\xe9", "UTF-8")],
)
def test_a_golden_clip_that_cannot_be_read_is_named(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "clip.wav", voice(1.0, 1), 8000)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=message) as refused:
        clips_of_files([str(tmp_path)], 8000)
    assert refused.value.where == str(tmp_path / name)
