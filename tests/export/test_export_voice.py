"""A voice's bundle speaks like the voice, sample by sample, in onnxruntime and sherpa-onnx, or it is not written."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import onnx
import pyarrow as pa
import pytest
import soundfile
import torch
import yaml
from click.testing import CliRunner
from exported import closed, stored
from numpy.typing import NDArray

from megahour.cli.main import app
from megahour.core.errors import ConfigError, StoreError
from megahour.core.schemas import SELECTION
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.generate.params import SynthesiseParams
from megahour.corpus.generate.sentences import Sentence, vocabulary
from megahour.export import command, voice_files
from megahour.export.command import export_voice, voice_address
from megahour.export.lexicon import looked_up, written
from megahour.export.origin import ModelOrigin
from megahour.export.params import ExportModelParams
from megahour.export.play import SherpaVoice
from megahour.export.voice import write_voice_bundle
from megahour.features.mel_spectrum import MelSpectrum
from megahour.foreign import onnx_session
from megahour.models import read_vocoder
from megahour.models.build import build
from megahour.models.griffin_lim import GriffinLim
from megahour.transcribe.bundle import Bundle
from megahour.tts.exported import ExportedSpeaker
from megahour.tts.own_voices import own_voices
from megahour.tts.speaking import AnySpeaker, Manner, Speaker
from megahour.tts.voice_bundle import Form, VoiceBundle
from megahour.units.lexicon import read_lexicon

pytest.importorskip("pyworld", reason="needs the extra tts")
WORDS = "ab  a b\nba  b a\na  a\nb  b\n"
ORIGIN = ModelOrigin({"model": {"digest": "d" * 64}})
TEXT = "ab ba, a. B ab"
MELS = 12


def voice(folder: Path, **settings: Any) -> Artifact:
    """An untrained *model* of two voices, which hums each phone differently."""
    spectrum = asdict(MelSpectrum(8_000, MELS))
    config: dict[str, Any] = {
        **{"kind": "voice", "inputs": MELS, "outputs": MELS, "layers": 1, "units": 8, "decoder": "flow"},
        **{"decoder_layers": 1, "symbols": ["", " ", "a", "b"], "voices": ["x", "y"], "languages": ["en"]},
        **{"language": "", "scripts": ["LATIN"], "licences": ["CC-BY-4.0"], "spectrum": spectrum, "pitch": [5.0, 0.2]},
        **{"stats": {"mean": [2.0] * MELS, "inv_std": [0.7] * MELS}},
        **settings,
    }
    module = build(config, seed=3)
    with torch.no_grad():
        module.get_parameter("symbol.weight").mul_(3.0)
    return stored(folder, module, config, "own")


def run(folder: Path) -> None:
    """A run of a voice, whose data were made by another run."""
    rows = []
    for key, (text, name) in enumerate([("ab ba a b", "own"), ("ba", "own"), ("zebra", "test")]):
        row = {field.name: [] if pa.types.is_list(field.type) else None for field in SELECTION}
        row |= {"key": key, "samples": 8000, "rate_hz": 8000, "text": text, "licence": "CC-BY-4.0", "set": name}
        rows.append({**row, "attribution": "Mel Piper, melodist"})
    with ShardWriter(Artifact(folder / "data/selection"), 0, "made") as out:
        out.table(pa.Table.from_pylist(rows, SELECTION))
        receipts = [out.commit()]
    closed(Artifact(folder / "data/selection"), receipts, "select", {})
    for name in ("utterances", "speech"):
        closed(Artifact(folder / "data" / name), [], name, {})
    data, own = f"{folder}/data", f"{folder}/run"
    steps = {"speech": {"stage": "tts-data", "inputs": {n: f"{data}/{n}" for n in ("selection", "utterances")}}}
    train = {"stage": "train", "criterion": "speech", "inputs": {"features": f"{data}/speech"}}
    voice(folder / "run/model")
    for place, its in ((data, steps), (own, {"model": train})):
        (Path(place) / "recipe.resolved.yaml").write_text(yaml.safe_dump({"run": place, "steps": its}))


def speaker(made: Artifact) -> Speaker:
    return Speaker(made.url, lexicon=read_lexicon(WORDS))


def said(by: AnySpeaker, text: str, **manner: Any) -> NDArray[np.float32]:
    return np.concatenate([each.samples for each in by.say(text, Manner(spread=0.0, **manner))])


@pytest.fixture(scope="module", autouse=True)
def few_rounds() -> Iterator[None]:
    """Few rounds of Griffin-Lim, because a graph of 32 takes seconds to trace and load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_vocoder, "GriffinLim", partial(GriffinLim, rounds=3))
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and its voice exported from the command line."""
    folder = tmp_path_factory.mktemp("voice")
    run(folder)
    (folder / "words.txt").write_text(WORDS)
    options = [
        "--lexicon",
        str(folder / "words.txt"),
        "--matcha",
        "--precisions",
        "[fp16, int8]",
        "--most-mcd-db",
        "40",
    ]
    done = CliRunner().invoke(app, ["export-model", str(folder / "run"), "--out", str(folder / "bundle"), *options])
    assert done.exit_code == 0, done.output
    assert "1 golden sentences agree" in done.output
    assert "megahour say 'ab ba a b' --voice" in done.output
    assert "int8" in done.output
    return folder


@pytest.mark.parametrize("form", ["vits", "matcha"])
def test_sherpa_onnx_says_what_the_model_says(made: Path, form: Form) -> None:
    pytest.importorskip("sherpa_onnx", reason="pip install sherpa-onnx")
    own = speaker(Artifact(made / "run/model"))
    client = SherpaVoice(VoiceBundle.open(str(made / "bundle")), spread=0.0, form=form)
    text = TEXT if form == "vits" else TEXT.replace(".", ";")  # Matcha's form takes all sentences at once
    for number, name, pace in ((0, "x", 1.0), (1, "y", 1.6)):
        mine = said(own, text, speaker=name, pace=pace)
        other = client.say(text.replace("ba,", "ba unheard,"), number, pace)
        assert mine.shape == other.shape
        np.testing.assert_allclose(other, mine, atol=1e-2)
        assert mine.std() > 0.02, "it says something"
    assert not np.array_equal(client.say("ab", 0)[:400], client.say("ab", 1)[:400])


def test_say_with_a_bundle(made: Path, tmp_path: Path) -> None:
    mine, bundle = said(speaker(Artifact(made / "run/model")), TEXT), str(made / "bundle")
    out = tmp_path / "said.wav"
    done = CliRunner().invoke(app, ["say", TEXT, "--voice", bundle, "--spread", "0", "--out", str(out)])
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(soundfile.read(out)[0], mine, atol=1e-2)
    small = CliRunner().invoke(
        app, ["say", TEXT, "--voice", bundle, "--precision", "int8", "--out", str(tmp_path / "8.wav")]
    )
    assert small.exit_code == 0, small.output
    assert (tmp_path / "8.wav").read_bytes() != out.read_bytes()
    none = CliRunner().invoke(
        app, ["say", TEXT, "--voice", str(made / "run/model"), "--precision", "int8", "--out", "x.wav"]
    )
    assert f"export-model {made}/run/model --precisions '[int8]' --out BUNDLE, and" in str(
        getattr(none.exception, "remedy", "")
    )
    drawn = [next(ExportedSpeaker(bundle).say("ab", Manner(seed=seed))).samples for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    with pytest.raises(ConfigError, match="pitch and number of steps are fixed"):
        next(ExportedSpeaker(bundle).say("ab", Manner(semitones=2.0)))
    with pytest.raises(ConfigError, match="'z' is not one of the model's voices"):
        next(ExportedSpeaker(bundle).say("ab", Manner(speaker="z")))


def test_tokens_of_spaces_and_marks(made: Path) -> None:
    """As sherpa-onnx writes them: spaces are ignored, repeated pauses merge, an end has silence after it."""
    exported = ExportedSpeaker(str(made / "bundle"))
    plain, frames = exported.run([1, 2, 3, 1, 2, 1])
    spaced, same = exported.run([0, 2, 0, 3, 0, 1, 1, 0, 2])
    assert frames == same
    assert np.array_equal(plain, spaced)
    assert len(plain) == 80 * (sum(frames) - 1)
    ended, _ = exported.run([2, 3, 1, 2, 4, 0])
    assert np.array_equal(ended, np.concatenate((plain, np.zeros(2000, np.float32))))
    assert len(exported.run([1, 4, 0])[0]) == 0


def test_a_bundle_narrates_generated_recordings_by_its_name_and_licence(made: Path) -> None:
    """What it says depends on the recording alone, not on what it said before."""
    p = SynthesiseParams(bundles=[str(made / "bundle")])
    own = own_voices(p, {})
    assert [(each.name, each.licence) for each in own] == [("x", "CC-BY-4.0"), ("y", "CC-BY-4.0")]
    assert "Mel Piper, melodist" in own[0].attribution

    def narrated() -> tuple[bytes, list[tuple[str, int, int]]]:
        with own[1].speaking(np.random.default_rng(1)) as say:
            spoken = say(Sentence("Ab ba.", "ab ba."), np.random.default_rng(2))
        return spoken.samples.tobytes(), spoken.words

    first = narrated()
    assert narrated() == first
    assert [word for word, _, _ in first[1]] == ["ab", "ba"]
    with own[0].speaking(np.random.default_rng(1)) as say, pytest.raises(ConfigError, match="cannot say 'zebra"):
        say(Sentence("Zebra.", "zebra."), np.random.default_rng(2))


def test_what_a_bundle_says_of_itself(made: Path) -> None:
    bundle = VoiceBundle.open(str(made / "bundle"))
    manifest = bundle.manifest
    assert bundle.problems() == []
    assert manifest.licences[0]["attribution"] == "Mel Piper, melodist"
    assert [each.text for each in manifest.golden] == ["ab ba a b"]
    samples = np.load(made / "bundle" / manifest.golden[0].samples)
    assert len(samples) == 80 * (sum(manifest.golden[0].frames) - 1)
    assert set(manifest.quantisation) == {"fp16", "int8", "matcha fp16", "matcha int8"}
    assert 0 < manifest.quantisation["int8"]["mcd_db"] < 40
    assert manifest.quantisation["fp16"]["share_of_fp32"] < 0.8
    for graph in ("model.onnx", "model.int8.onnx", "matcha/acoustic.onnx", "matcha/acoustic.int8.onnx"):
        own = {each.key: each.value for each in onnx.load(made / "bundle" / graph).metadata_props}
        assert own["comment"] == manifest.notice == "synthetic speech, made by megahour"
        assert (own["license"], own["attribution"]) == ("CC-BY-4.0", "Mel Piper, melodist")
    lexicon = read_lexicon((made / "bundle/lexicon.txt").read_text())
    assert lexicon["ab"] == [["a", "b"]]
    assert "zebra" not in lexicon
    done = CliRunner().invoke(app, ["verify", str(made / "bundle"), "--digest", bundle.digest])
    assert done.exit_code == 0, done.output


def test_matcha_is_the_same_graph_in_two(made: Path) -> None:
    """Mels in one file, sound in the other; silence after a sentence goes through the mels."""
    bundle = str(made / "bundle")
    whole, pair = (ExportedSpeaker(bundle, form=form) for form in get_args(Form))
    for tokens in ([2, 3, 1, 2, 4], [2, 0, 3, 1, 3]):
        (one, frames), (other, same) = whole.run(tokens), pair.run(tokens)
        assert frames == same
        np.testing.assert_allclose(other, one, atol=1e-4)
    small = ExportedSpeaker(bundle, form="matcha", precision="int8").run([2, 3, 1, 2, 4])[0]
    assert not np.array_equal(small, pair.run([2, 3, 1, 2, 4])[0])


def test_a_voice_does_not_transcribe(made: Path) -> None:
    with pytest.raises(ConfigError, match="the bundle of a voice, not of a recogniser"):
        Bundle.open(str(made / "bundle"))


def test_loading_a_graph_is_not_time_to_speak(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manner = Manner(seed=5)
    ready = ExportedSpeaker(str(made / "bundle"))
    ready.ready(manner)
    monkeypatch.delattr("onnxruntime.InferenceSession")
    assert len(next(ready.say("ab", manner)).samples)


def test_a_lexicon_of_another_encoding(made: Path, tmp_path: Path) -> None:
    bundle, data = tmp_path / "bundle", "é\ta b\n".encode("latin-1")
    shutil.copytree(made / "bundle", bundle)
    values = json.loads((bundle / "bundle.json").read_text())
    values["files"]["lexicon.txt"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (bundle / "lexicon.txt").write_bytes(data)
    (bundle / "bundle.json").write_text(json.dumps(values))
    with pytest.raises(StoreError, match="not UTF-8"):
        ExportedSpeaker(str(bundle))


def rogue(bundle: Path, kind: str) -> None:
    """A graph of the bundle's inputs and outputs that runs without an end, takes all memory, or reads another file."""
    h, of = onnx.helper, onnx.TensorProto
    samples = onnx.numpy_helper.from_array(np.ones((1, 8000), np.float32), "samples")
    frames = onnx.numpy_helper.from_array(np.ones((1, 4), np.int64), "held")
    size = onnx.numpy_helper.from_array(np.array([1 << 50]), "size")
    trips = onnx.numpy_helper.from_array(np.array(1 << 60), "trips")
    if kind == "file":
        Path("weights.bin").write_bytes(samples.raw_data)
        samples.ClearField("raw_data")
        samples.data_location = of.EXTERNAL
        samples.external_data.add(key="location", value="weights.bin")
    turn = [h.make_tensor_value_info("turn", of.INT64, []), h.make_tensor_value_info("on", of.BOOL, [])]
    held = [h.make_tensor_value_info(name, of.FLOAT, None) for name in ("in", "out")]
    body = [h.make_node("Identity", ["on"], ["still"]), h.make_node("Neg", ["in"], ["out"])]
    still = [h.make_tensor_value_info("still", of.BOOL, []), held[1]]
    loop = h.make_graph(body, "body", [*turn, held[0]], still)
    first = {
        "loop": [h.make_node("Loop", ["trips", "", "samples"], ["y"], body=loop)],
        "memory": [
            h.make_node("ConstantOfShape", ["size"], ["c"]),
            h.make_node("ReduceMax", ["c"], ["most"], keepdims=0),
            h.make_node("Add", ["samples", "most"], ["y"]),
        ],
        "file": [h.make_node("Neg", ["samples"], ["y"])],
    }[kind]
    nodes = [*first, h.make_node("Add", ["held", "x"], ["frames"])]
    x = h.make_tensor_value_info("x", of.INT64, [1, "n"])
    gives = [h.make_tensor_value_info("y", of.FLOAT, [1, "s"]), h.make_tensor_value_info("frames", of.INT64, None)]
    graph = h.make_graph(nodes, "rogue", [x], gives, [samples, frames, size, trips])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    data = model.SerializeToString()
    values = json.loads((bundle / "bundle.json").read_text())
    values["files"]["model.onnx"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (bundle / "model.onnx").write_bytes(data)
    (bundle / "bundle.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("kind", "says"),
    [("loop", "cannot be run: .*terminate"), ("memory", "Available memory of"), ("file", "cannot load a graph")],
)
def test_a_rogue_graph_is_ended(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, says: str
) -> None:
    """As those of recognisers' bundles. It ran for ever, or read a file of the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(onnx_session, "RUN_S", 0.3)
    monkeypatch.setattr(onnx_session, "AUDIO_TIMES", 0.0)
    bundle = shutil.copytree(made / "bundle", tmp_path / "bundle")
    rogue(bundle, kind)
    with pytest.raises(StoreError, match=says):
        ExportedSpeaker(str(bundle)).run([2, 3, 2, 3])


def test_a_damaged_manifest(made: Path, tmp_path: Path) -> None:
    values = json.loads((made / "bundle/bundle.json").read_text())
    for wrong in ({"graphs": {}}, {"graphs": {"fp32": "../model.onnx"}}, {"name": "\x1b[2J"}, {"symbols": ["a"]}):
        (tmp_path / "bundle.json").write_text(json.dumps(values | {"files": {}} | wrong))
        with pytest.raises(StoreError):
            VoiceBundle.open(str(tmp_path))


def refused(made: Artifact, out: Path, **params: Any) -> str:
    p = ExportModelParams.model_validate(params)
    with pytest.raises(ConfigError) as refusal:
        write_voice_bundle(speaker(made), p, ORIGIN, ["ab"], [], str(out))
    assert not out.exists()
    assert list(out.parent.glob(".*.partial")) == []
    return refusal.value.message


class Quieter(voice_files.VocoderGraph):
    """A second half that is wrong."""

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        return super().forward(mel) * 0.5


def test_what_is_not_written(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whose = voice(tmp_path / "model", licences=["CC0-1.0", "CC-BY-ND-4.0"])
    assert "forbids derivatives" in refused(whose, tmp_path / "out")
    model = Artifact(made / "run/model")
    assert "is not one of the model's languages" in refused(model, tmp_path / "out", tell="de")
    assert "differs from fp32 by" in refused(model, tmp_path / "out", precisions=["int8"], most_mcd_db=1e-6)
    with monkeypatch.context() as patch:
        patch.setattr(voice_files, "VocoderGraph", Quieter)
        assert "(matcha)" in refused(model, tmp_path / "out", matcha=True)
    monkeypatch.setattr(voice_files, "STEPS", 1)
    assert "differently from the model" in refused(model, tmp_path / "out")


@pytest.mark.parametrize(("rules", "tell", "usual"), [("en-us", "en-GB", True), ("", "en", False), ("de", "de", False)])
def test_everyday_words_come_with_a_voice_of_english_that_has_rules_for_them(
    rules: str, tell: str, usual: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(by: Any, params: Any, origin: Any, texts: list[str], words: list[str], out: str) -> Any:
        assert texts == ["zebra zoo"]
        return words

    known = SimpleNamespace(rules=rules, lexicon={"ab": [["a"]]})
    monkeypatch.setattr(command, "Speaker", lambda *_, **__: SimpleNamespace(languages=[tell], pronounce=known))
    monkeypatch.setattr(command, "write_voice_bundle", write)
    monkeypatch.setattr(command, "origin_of", lambda artifact: ORIGIN)
    (tmp_path / "golden.txt").write_text("zebra zoo\n")
    words: Any = export_voice(str(tmp_path), ExportModelParams(), [str(tmp_path / "golden.txt")], [], "", "", "out")
    assert words[-1] == "ab"
    assert words[:-1] == (vocabulary() if usual else [])


def test_which_model_of_a_run(made: Path, tmp_path: Path) -> None:
    home = f"{made}/run"
    assert voice_address(home, "") == voice_address(home, "model") == voice_address(f"{home}/model", "")
    assert voice_address(home, "model").endswith("run/model")
    assert voice_address(f"{made}/data", "") == voice_address(str(tmp_path), "") == ""


def test_texts_that_are_read_so_again(made: Path) -> None:
    reader = speaker(Artifact(made / "run/model")).reader()
    assert [written(piece, reader) for piece in reader.pieces("Ab; ba! a, b {a b} a. ab {aː}")] == [
        *("ab, ba.", "a, b a b a.", "")
    ]
    assert [looked_up(word) for word in ("don't", "größe", "привет", "twenty-one", "şey")] == [True, True] + [False] * 3
