"""Any CTC model works: ONNX and TorchScript files with their token lists, imported and used by `align`."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tone_models import TOKENS, MelTones, Tones, onnx_model, onnx_of_mels, torchscript
from tones import LETTERS, RATE_HZ, sentences, speak, write, write_recordings

from megahour.align.params import AlignParams
from megahour.align.stage import Align
from megahour.core.config import parse
from megahour.core.errors import ConfigError, StoreError
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.features.fbank import log_mel
from megahour.foreign.aligner_stage import ImportAligner
from megahour.foreign.model import quantised
from megahour.foreign.params import ImportAlignerParams
from megahour.foreign.token_list import read_tokens
from megahour.serve.local import serve_in_process

PARAMS = AlignParams(window_s=8.0, margin_s=0.5, anchor_every_s=10.0, anchor_length=6)
MELS = 40


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.txt"
    path.write_text("\n".join(TOKENS) + "\n")
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rng = np.random.default_rng(21)
    spoken = sentences(12, rng)
    samples, words, _ = speak(spoken, rng)
    written = [*spoken[:4], "feed fade cafe dead bead face", *spoken[4:]]
    folder = tmp_path_factory.mktemp("corpus")
    return write_recordings(folder, [("tones", samples, written, words)])[0], words


def imported(folder: Path, **values: Any) -> Artifact:
    values = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    p = parse(ImportAlignerParams, values, where="import-aligner")
    stage = ImportAligner()
    (task,) = stage.plan(p, {})
    return write(folder, lambda out: stage.run(p, {}, task, out, Context(folder)))


def align(folder: Path, recordings: Artifact, aligner: Artifact) -> Artifact:
    inputs = {"recordings": recordings, "aligner": aligner}
    return write(folder, lambda out: Align().run(PARAMS, inputs, Align().plan(PARAMS, inputs)[0], out, Context(folder)))


def assert_right(alignment: Artifact, words: list[tuple[str, int, int]], most_ms: float) -> None:
    """Every word is there at its time; the unspoken cue is not.

    A tone near the Nyquist frequency has little energy over all mels, so a word may begin after it.
    """
    table = alignment.read_table(0)
    assert table["text"].to_pylist() == [word for word, _, _ in words]
    errors = table["start_samples"].to_numpy() - np.array([start for _, start, _ in words])
    errors_ms = np.abs(errors) * 1000 / RATE_HZ
    assert np.percentile(errors_ms, 90) <= most_ms
    assert errors_ms.max() <= 200
    segments = alignment.read_table(0, ".segments.parquet").to_pylist()
    assert [s["cue"] for s in segments if s["reason"] == "unspoken"] == [4]
    (heard,) = alignment.read_table(0, ".heard.parquet")["tokens"].to_pylist()
    assert "".join(heard).replace(" ", "") == "".join(word for word, _, _ in words)


def test_an_onnx_model_of_another_rate_aligns(tmp_path: Path, tokens: Path, corpus: Any) -> None:
    """8 kHz, logits: the recordings' 16 kHz are resampled."""
    model = onnx_model(tmp_path / "tones.onnx", 8000, 160)
    aligner = imported(tmp_path / "aligner", model=model, tokens=tokens, rate_hz=8000, frame_shift_samples=160)
    config = aligner.read_json(0, ".model.json")
    assert config["tokens"] == ["<blank>", " ", *LETTERS, "<unk>"]
    assert config["order"] == [8, 0, 1, 2, 3, 4, 5, 6, 7]
    assert_right(align(tmp_path / "alignment", corpus[0], aligner), corpus[1], 60)


@pytest.mark.parametrize(("author", "high_hz"), [("k2-fsa", -400.0), ("", 0.0)])
def test_an_onnx_graph_declares_its_own_input(tmp_path: Path, tokens: Path, author: str, high_hz: float) -> None:
    """Filters, their number, the length input and the frame shift are detected; settings of the user win."""
    model = onnx_of_mels(tmp_path / "mels.onnx", 80, 4, author)
    config = imported(tmp_path / "aligner", model=model, tokens=tokens).read_json(0, ".model.json")
    heard = {"input": "log-mel", "mels": 80, "frame_shift_samples": 640, "high_hz": high_hz}
    assert heard.items() <= config["audio"].items()
    assert config["run"]["length_name"] == "x_lens"
    with pytest.raises(ConfigError, match=r"(?s)frame_shift_samples = 480.*probably 640"):
        imported(tmp_path / "other", model=model, tokens=tokens, frame_shift_samples=480)


@pytest.mark.parametrize("shift", [316, 325])
def test_a_frame_shift_near_the_default_is_measured(tmp_path: Path, tokens: Path, shift: int) -> None:
    """Taken for 320 samples, times would be off by up to 0.4 s in a window of 30 s."""
    model = onnx_model(tmp_path / "tones.onnx", RATE_HZ, shift)
    config = imported(tmp_path / "aligner", model=model, tokens=tokens).read_json(0, ".model.json")
    assert config["audio"]["frame_shift_samples"] == pytest.approx(shift, abs=1)
    with pytest.raises(ConfigError, match="10 more seconds add"):
        imported(tmp_path / "other", model=model, tokens=tokens, frame_shift_samples=318 if shift < 320 else 322)


def test_a_torchscript_model_aligns(tmp_path: Path, corpus: Any) -> None:
    """Log posteriors, a token list as JSON, an integer sample scale."""
    listed = tmp_path / "vocabulary.json"
    listed.write_text(json.dumps({token: i for i, token in enumerate(TOKENS)}))
    model = torchscript(tmp_path / "tones.pt", Tones(RATE_HZ, 320), torch.zeros(1, 16000))
    aligner = imported(tmp_path / "aligner", model=model, tokens=listed, output="log-probs")
    assert_right(align(tmp_path / "alignment", corpus[0], aligner), corpus[1], 60)


def test_a_model_of_log_mels_aligns(tmp_path: Path, tokens: Path, corpus: Any) -> None:
    """Mels first, a length as second argument, every second frame an output."""
    t = np.arange(RATE_HZ) / RATE_HZ
    tones = [6000 * np.sin(2 * np.pi * 300 * 1.6**i * t) for i in range(len(LETTERS))]
    bins = [int(log_mel(tone, RATE_HZ, MELS).mean(axis=0).argmax()) for tone in tones]
    model = torchscript(tmp_path / "mels.ts", MelTones(bins))
    given = {"input": "log-mel", "mels": MELS, "layout": "mels-first", "length_name": "length", "scale": "int16"}
    aligner = imported(tmp_path / "aligner", model=model, tokens=tokens, **given)
    alignment = align(tmp_path / "alignment", corpus[0], aligner)
    assert alignment.receipts()[0].counts.kept == 1
    words = alignment.read_table(0)
    assert words["text"].to_pylist() == [word for word, _, _ in corpus[1]]
    errors = words["start_samples"].to_numpy() - np.array([start for _, start, _ in corpus[1]])
    assert np.abs(errors).max() <= 0.06 * RATE_HZ


def test_token_times_lie_in_their_words_and_rise(tmp_path: Path, tokens: Path, corpus: Any) -> None:
    model = onnx_model(tmp_path / "tones.onnx", RATE_HZ, 320)
    aligner = imported(tmp_path / "aligner", model=model, tokens=tokens)
    for word in align(tmp_path / "alignment", corpus[0], aligner).read_table(0).to_pylist():
        starts = word["token_start_samples"]
        assert len(starts) == len(word["token_confidence"]) == len(word["text"])
        assert word["start_samples"] <= starts[0] <= starts[-1] <= word["end_samples"]
        assert starts == sorted(set(starts))
        assert all(0.3 <= confidence <= 1 for confidence in word["token_confidence"])


def test_8_bit_costs_are_those_of_the_aligner(tmp_path: Path, tokens: Path, corpus: Any) -> None:
    rng = np.random.default_rng(0)
    aligner = imported(tmp_path / "aligner", model=onnx_model(tmp_path / "t.onnx", RATE_HZ, 320), tokens=tokens)
    waveform = rng.normal(0, 0.1, (50, 320)).astype(np.float32)
    found = {}
    for outputs in ("log_probs", "costs"):
        from megahour.models.service import model_spec

        with serve_in_process(model_spec(aligner, 8192, outputs=outputs)) as session:
            ((_, found[outputs]),) = session.infer([(1, waveform)])
    assert found["costs"]["costs"].dtype == np.uint8
    assert np.array_equal(found["costs"]["costs"], quantised(found["log_probs"]["log_probs"]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": TOKENS[1:]}, "the model has 9 outputs, but the list has 8 tokens"),
        ({"frame_shift_samples": 160}, "the shift is probably 320 samples"),
        ({"input_name": "audio"}, 'the model has no "audio", only waveform'),
        ({"output_name": "posteriors"}, 'the model has no "posteriors", only logits'),
        ({"input": "log-mel", "frame_shift_samples": 320}, "fails on 1 s of noise"),
        ({"output": "log-probs"}, "not log posteriors"),
        ({"blank": "<nothing>"}, "no token '<nothing>'"),
        ({"tokens": [*TOKENS[:-1], "q"]}, "set `blank` to the right token"),
        ({"tokens": [*TOKENS[:-2], "A", "<pad>"]}, "'A' occurs more than once"),
        ({"tokens": [*TOKENS[:-2], "a", "<pad>"], "case": "upper"}, "two tokens are 'a' in lower case"),
        ({"tokens": {token: 2 * i for i, token in enumerate(TOKENS)}}, "not numbered 0 … 8"),
        ({"format": "torchscript"}, "torch.jit cannot read"),
        ({"model": "absent.onnx"}, "no such file"),
        ({"model": "absent"}, "absent: no such file or folder"),
        ({"frame_shift_samples": 200, "input": "log-mel"}, "not a multiple of the 10 ms"),
    ],
)
def test_what_does_not_fit_is_reported_at_once(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    model = onnx_model(tmp_path / "tones.onnx", RATE_HZ, 320)
    listed = tmp_path / "tokens.json"
    listed.write_text(json.dumps(values.get("tokens", TOKENS)))
    with pytest.raises(Exception, match=message.replace("(", r"\(")) as caught:
        imported(tmp_path / "aligner", **({"model": model} | values | {"tokens": listed}))
    assert isinstance(caught.value, ConfigError) or "jit" in message
    assert not Artifact(tmp_path / "aligner").complete


def test_a_model_that_gives_nan_is_refused(tmp_path: Path, tokens: Path) -> None:
    broken = Tones(RATE_HZ, 320)
    broken.bias.data[2] = float("nan")
    model = torchscript(tmp_path / "broken.pt", broken, torch.zeros(1, 16000))
    with pytest.raises(ConfigError, match="NaN or infinity for 1 s of noise"):
        imported(tmp_path / "aligner", model=model, tokens=tokens)


def test_a_pickle_is_refused_as_a_model(tmp_path: Path, tokens: Path) -> None:
    """`torch.save` files hold pickles: torch.jit does not run them."""
    torch.save({"weights": torch.zeros(3)}, tmp_path / "weights.pt")
    with pytest.raises(Exception, match=r"torch.jit cannot read"):
        imported(tmp_path / "aligner", model=tmp_path / "weights.pt", tokens=tokens)


def test_a_torchscript_model_that_would_unpack_to_much_more_is_refused(tmp_path: Path, tokens: Path) -> None:
    """torch stores weights as they are and reads compressed ones, too: 0.4 MB became 400."""
    stored = torchscript(tmp_path / "stored.pt", Tones(RATE_HZ, 320), torch.zeros(1, 16000))
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
        target.writestr("packed/data/9", bytes(80 << 20))
    with pytest.raises(StoreError, match=r"the model has \d+ bytes, but would unpack to 83\d+\n.*get the model again"):
        imported(tmp_path / "none", model=packed, tokens=tokens)


def test_a_token_that_a_numbered_list_has_twice_is_named(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("<blk> 0\na 1\nb 2\na 3\n")
    with pytest.raises(ConfigError, match="'a' occurs more than once"):
        read_tokens(str(tokens))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("latin.txt", "ä 0\n".encode("latin-1"), "latin.txt: not UTF-8"),
        ("deep.json", b"[" * 100_000, "not JSON"),
        ("folder.txt", None, "a folder, not a file"),
    ],
)
def test_a_file_that_is_no_token_list_is_refused_by_name(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    file = tmp_path / name
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        read_tokens(str(file))


def test_numbers_may_follow_a_tab(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text(" \t2\n<blk>\t0\na\t1\n")
    assert read_tokens(str(tokens)) == ["<blk>", "a", " "]


@pytest.mark.parametrize(("name", "kind"), [("x_lens", "INT32"), ("x", "FLOAT16")])
def test_a_graph_gets_the_number_formats_of_its_inputs(tmp_path: Path, tokens: Path, name: str, kind: str) -> None:
    """Exporters write 32-bit lengths, and half-precision features for GPUs."""
    graph = onnx.load(onnx_of_mels(tmp_path / "mels.onnx", 80, 4))
    due = imported(tmp_path / "due", model=tmp_path / "mels.onnx", tokens=tokens)
    wide = "a_lens" if name == "x_lens" else "a"
    back = onnx.TensorProto.INT64 if name == "x_lens" else onnx.TensorProto.FLOAT
    for node in graph.graph.node:
        node.input[:] = [wide if each == name else each for each in node.input]
    graph.graph.node.insert(0, onnx.helper.make_node("Cast", [name], [wide], to=back))
    for each in graph.graph.input:
        if each.name == name:
            each.type.tensor_type.elem_type = getattr(onnx.TensorProto, kind)
    onnx.save(graph, tmp_path / "other.onnx")
    model = imported(tmp_path / "model", model=tmp_path / "other.onnx", tokens=tokens)
    assert model.read_json(0, ".model.json") == due.read_json(0, ".model.json")


@pytest.mark.parametrize("output", ["logits", "log-probs"])
def test_probabilities_are_not_taken_for_logits(tmp_path: Path, tokens: Path, output: str) -> None:
    """Their softmax is almost flat: each text would go equally well with all audio."""
    graph = onnx.load(onnx_model(tmp_path / "tones.onnx", RATE_HZ, 320))
    graph.graph.node[-1].output[:] = ["scores"]
    graph.graph.node.append(onnx.helper.make_node("Softmax", ["scores"], ["logits"], axis=2))
    onnx.save(graph, tmp_path / "other.onnx")
    with pytest.raises(ConfigError, match=r"(?s)the outputs are probabilities.*export the model with logits"):
        imported(tmp_path / "model", model=tmp_path / "other.onnx", tokens=tokens, output=output)


@pytest.mark.parametrize(
    ("axis", "size", "says"), [(1, 300, "only inputs of 300 frames"), (0, 4, "only inputs of 4 sequences")]
)
def test_a_graph_of_one_length_is_refused_with_the_way_out(
    tmp_path: Path, tokens: Path, axis: int, size: int, says: str
) -> None:
    graph = onnx.load(onnx_of_mels(tmp_path / "mels.onnx", 80, 4))
    graph.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    onnx.save(graph, tmp_path / "other.onnx")
    with pytest.raises(ConfigError, match=f"(?s){says}.*dynamic axes"):
        imported(tmp_path / "model", model=tmp_path / "other.onnx", tokens=tokens)


@pytest.mark.parametrize(
    ("low_hz", "high_hz", "says"), [(7000, 100, "7000 to 100"), (20, 12_000, "20 to 12000"), (20, -7990, "20 to 10")]
)
def test_filters_that_the_audio_has_no_frequencies_for_are_refused(
    tmp_path: Path, tokens: Path, low_hz: float, high_hz: float, says: str
) -> None:
    """`align` then heard other frequencies, or none, without a word."""
    model = onnx_of_mels(tmp_path / "mels.onnx", 80, 4)
    given: dict[str, Any] = {"low_hz": float(low_hz), "high_hz": float(high_hz)}
    with pytest.raises(ConfigError, match=f"mel filters from {says} Hz do not fit below 8000 Hz"):
        imported(tmp_path / "model", model=model, tokens=tokens, **given)
