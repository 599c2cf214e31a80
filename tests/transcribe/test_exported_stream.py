"""Streams of an exported bundle: its graph carries the state, and the words are the model's own in the same chunks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from exported import SHERPA, model, voice
from numpy.typing import NDArray

from megahour.core.errors import ConfigError, StoreError
from megahour.export.clips import SpokenClip
from megahour.export.model import TrainedModel
from megahour.export.origin import ModelOrigin
from megahour.export.params import ExportModelParams
from megahour.export.write import write_bundle
from megahour.features.params import FeaturesParams
from megahour.transcribe.bundle import Bundle
from megahour.transcribe.bundle_files import MANIFEST
from megahour.transcribe.exported_stream import ExportedEncoder, ExportedStream
from megahour.transcribe.parts import parts_of
from megahour.transcribe.pieces import EndRules
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import Update, stream, transcribe
from megahour.transcribe.streaming import ChunkLengths, plan_of

HEADS: dict[str, dict[str, Any]] = {"ctc": {}, "transducer": {"heads": {"transducer": 1.0}}}
CHUNKS = ChunkLengths(ms=320, left=2)
KINDS = {
    "ctc": ("ctc", "conformer", SHERPA),
    "ctc-of-int16": ("ctc", "conformer", FeaturesParams()),
    "transducer": ("transducer", "conformer", SHERPA),
    "lstm": ("ctc", "lstm", SHERPA),
    "lstm-of-int16": ("ctc", "lstm", FeaturesParams()),
    "lstm-transducer": ("transducer", "lstm", SHERPA),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Recogniser, Recogniser]]:
    """Makes each pair once, whatever the order of the tests."""
    return cache(lambda name: made_pair(*KINDS[name], tmp_path_factory.mktemp("bundle")))


@pytest.fixture(params=KINDS)
def pair(
    request: pytest.FixtureRequest, pairs: Callable[[str], tuple[Recogniser, Recogniser]]
) -> tuple[Recogniser, Recogniser]:
    """A model, and its bundle."""
    return pairs(request.param)


def made_pair(criterion: str, kind: str, features: FeaturesParams, folder: Path) -> tuple[Recogniser, Recogniser]:
    layers = 2 if criterion == "transducer" else 1
    stack = 1 if kind == "conformer" else 4
    made = model(folder / "model", kind, features, heads=HEADS[criterion], stack=stack, layers=layers)
    clips, origin = [SpokenClip("c", voice(1.0, 1))], ModelOrigin({"model": {"digest": "d" * 64}})
    params = ExportModelParams(chunk=8, left=2)
    write_bundle(TrainedModel(parts_of(made.url)), params, origin, clips, (), str(folder / "bundle"))
    return Recogniser(parts_of(made.url)), Recogniser(parts_of(str(folder / "bundle")))


def heard(recogniser: Recogniser, samples: NDArray[np.int16], block: int = 800, **how: Any) -> list[Update]:
    blocks = (samples[start : start + block].astype(np.float32) for start in range(0, len(samples), block))
    return list(stream(recogniser, blocks, **{"chunks": CHUNKS, **how}))


def finals(updates: list[Update]) -> list[tuple[str, float | None, float | None]]:
    return [(word.text, word.start_s, word.end_s) for update in updates if update.final for word in update.words]


@pytest.mark.parametrize("seconds", [3.0, 3.08])
def test_finals_are_the_models_own_offline_in_the_same_chunks(
    pair: tuple[Recogniser, Recogniser], seconds: float
) -> None:
    """Also the last chunk, which is shorter. `test_streaming` compares the model with its masked pass."""
    own, bundle = pair
    samples, ends = voice(seconds, 1), EndRules(longest=20)
    offline = transcribe(samples, own, rate_hz=8000, ends=ends, chunks=CHUNKS)
    found = heard(bundle, samples, ends=ends)
    assert finals(found) == [(word.text, word.start_s, word.end_s) for word in offline.words]
    sure = [word.confidence for update in found if update.final for word in update.words]
    assert sure == pytest.approx([word.confidence for word in offline.words], abs=5e-3)
    assert len(offline.text) > 5
    assert sum(not update.final for update in found) > 3


def test_finals_do_not_depend_on_blocks_nor_on_where_a_piece_is_cut(pair: tuple[Recogniser, Recogniser]) -> None:
    _, bundle = pair
    samples, ends = np.concatenate([voice(3.0, 1), np.zeros(8_000, np.int16), voice(1.0, 2)]), EndRules(longest=1.5)
    offline = transcribe(samples, bundle, rate_hz=8000, ends=ends, chunks=CHUNKS)
    for block in (80, 3001, 10**6):
        found = heard(bundle, samples, block, ends=ends)
        assert finals(found) == [(word.text, word.start_s, word.end_s) for word in offline.words]
    assert sum(update.final for update in found) > 2


def test_every_frame_goes_through_the_graph_once(
    pair: tuple[Recogniser, Recogniser], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bundle = pair
    frames, run = [], ExportedStream.run

    def counted(self: ExportedStream, feed: dict[str, Any]) -> Any:
        frames.append(int(feed["given"][0]) if "given" in feed else next(iter(feed.values())).shape[1])
        return run(self, feed)

    monkeypatch.setattr(ExportedStream, "run", counted)
    heard(bundle, voice(4.0, 1))
    assert max(frames) == 32
    assert sum(frames) <= 400


def test_chunks_are_those_of_the_export_where_nothing_else_is_asked(pair: tuple[Recogniser, Recogniser]) -> None:
    own, bundle = pair
    plan = plan_of(bundle, ChunkLengths())
    assert plan is not None
    assert bundle.exported is not None
    if bundle.exported.lstm:
        assert plan == plan_of(own, ChunkLengths(left=0)), "chunks of 160 ms and three rows of look-ahead"
        assert plan_of(bundle, ChunkLengths(320, 0)) == plan_of(own, ChunkLengths(320, 0))
        return
    assert (plan.rows, plan.context.chunk, plan.context.left, plan.latency_ms) == (32, 8, 2, 320 + 15)
    with pytest.raises(ConfigError, match=r"chunks of 15 ms\s.*40 ms"):
        plan_of(bundle, ChunkLengths(15))
    if bundle.exported.any_chunk:
        other = plan_of(bundle, ChunkLengths(160, 3))
        assert other is not None
        assert (other.rows, other.context.chunk, other.context.left) == (16, 4, 3)
        return
    with pytest.raises(ConfigError, match=r"chunks of 160 ms: .*chunks of 320 ms\s.*--chunk 4"):
        plan_of(bundle, ChunkLengths(160))
    with pytest.raises(ConfigError, match=r"to 3 previous chunks: .*sees 2\s.*--left 3"):
        plan_of(bundle, ChunkLengths(left=3))


def test_memory_does_not_grow_with_the_recording(pair: tuple[Recogniser, Recogniser]) -> None:
    _, bundle = pair
    part, resident = voice(15.0, 4).astype(np.float32), list[float]()
    part[part == 0] = 500.0

    def blocks() -> Iterator[NDArray[np.float32]]:
        for _ in range(4):
            yield from np.split(part, 15)
            resident.append(psutil.Process().memory_info().rss / 2**20)

    how = {"ends": EndRules(longest=5.0), "chunks": ChunkLengths(left=2)}
    assert sum(update.final for update in stream(bundle, blocks(), **how)) >= 4 * 15 // 5
    assert resident[-1] - resident[0] < 4.0, resident


def grown_state(graph: onnx.ModelProto) -> None:
    """What comes back is twice as long: a stream of an hour would have no end of it."""
    output = graph.graph.output[1].name
    last = next(node for node in graph.graph.node if output in node.output)
    last.output[list(last.output).index(output)] = "half"
    graph.graph.node.append(onnx.helper.make_node("Concat", ["half", "half"], [output], axis=0))


def huge_state(graph: onnx.ModelProto) -> None:
    for each in graph.graph.input:
        if each.name in ("attn_cache", "hidden"):
            each.type.tensor_type.shape.dim[0].dim_value = 1 << 40


def no_state(graph: onnx.ModelProto) -> None:
    for each in graph.graph.input:
        each.name = f"not_{each.name}"


@pytest.mark.parametrize(
    ("damage", "what"), [(grown_state, "outputs have|does not run"), (huge_state, "has the shape|cannot be read"),
                         (no_state, "cannot be read|it has no input '(chunk|x)'")],
)  # fmt: skip
def test_a_hostile_graph_is_refused(
    pair: tuple[Recogniser, Recogniser], damage: Callable[[onnx.ModelProto], None], what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    bundle = Bundle.open(pair[1].parts.model)
    graph = onnx.load_from_string(bundle.graph("streaming", "fp32"))
    damage(graph)
    monkeypatch.setattr(Bundle, "graph", lambda *_: graph.SerializeToString())
    with pytest.raises(StoreError, match=what):
        ExportedStream(ExportedEncoder(bundle, "fp32"), 8, 2)(np.zeros((32, 16), np.float32))


def test_a_stream_of_another_kind_than_the_graphs_is_refused(
    pair: tuple[Recogniser, Recogniser], tmp_path: Path
) -> None:
    folder = shutil.copytree(pair[1].parts.model, tmp_path / "bundle")
    manifest = json.loads((folder / MANIFEST).read_text())
    own = manifest["streaming"]["kind"]
    manifest["streaming"]["kind"] = {"lstm": "conformer", "conformer": "lstm"}[own]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="it has no input"):
        assert Recogniser(parts_of(str(folder))).exported


@pytest.mark.parametrize("look_ahead_s", [-0.1, 1e9, float("nan")])
def test_an_impossible_look_ahead_is_refused(
    pair: tuple[Recogniser, Recogniser], look_ahead_s: float, tmp_path: Path
) -> None:
    """As many frames would be fed after the end."""
    folder = shutil.copytree(pair[1].parts.model, tmp_path / "bundle")
    manifest = json.loads((folder / MANIFEST).read_text()) | {"look_ahead_s": look_ahead_s}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="look_ahead_s"):
        Bundle.open(str(folder))


@pytest.mark.parametrize("pair", ["ctc", "transducer"], indirect=True)
def test_a_bundle_of_before_lstms_streamed_still_streams(pair: tuple[Recogniser, Recogniser], tmp_path: Path) -> None:
    """Its manifest does not say the kind: only conformers streamed."""
    folder = shutil.copytree(pair[1].parts.model, tmp_path / "bundle")
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["streaming"]["kind"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    samples = voice(2.0, 1)
    assert finals(heard(Recogniser(parts_of(str(folder))), samples)) == finals(heard(pair[1], samples))


LSTMS = [name for name in KINDS if "lstm" in name]


@pytest.mark.parametrize("pair", LSTMS, indirect=True)
def test_the_loop_of_the_docs_gives_the_golden_outputs(
    pair: tuple[Recogniser, Recogniser], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text("utf-8")
    loop = page.partition("## Streams in onnxruntime alone")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "bundle").symlink_to(pair[1].parts.model)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(loop, "export.md", "exec"), names)
    np.testing.assert_allclose(names["log_probs"], np.load("bundle/golden/000.npy"), atol=1e-3)


def test_a_bundle_without_a_stream_is_recognised_again(tmp_path: Path) -> None:
    made = model(tmp_path / "model", "tdnn")
    clips, origin = [SpokenClip("c", voice(1.0, 1))], ModelOrigin({"model": {"digest": "d" * 64}})
    write_bundle(TrainedModel(parts_of(made.url)), ExportModelParams(), origin, clips, (), str(tmp_path / "bundle"))
    assert json.loads((tmp_path / "bundle" / "bundle.json").read_text())["streaming"] is None
    assert plan_of(Recogniser(parts_of(str(tmp_path / "bundle"))), ChunkLengths()) is None
