"""Stages `language-model`, `lexicon`, `graph`, `decode` and `score` in a row; the model's weights say what it hears.

Mel m of the features is loud while senone m is spoken, and the model's logits are the mels of the middle of its three
frames: posteriors are right but for the noise in the features.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import exported
import kaldifst
import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch
from engine_here import with_layouts
from made_artifacts import write_artifact

from megahour.batches.labels import Arrays, Piece
from megahour.batches.lattice_labels import OpenLatticeLabels
from megahour.batches.loader import Batch
from megahour.core.errors import ConfigError
from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.core.schemas import FEATURES
from megahour.core.stage import Context, Stage, Task
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.decode.build import _in_tokens, read_graph
from megahour.decode.lattice_search import composed_graph
from megahour.decode.lattice_shard import lattices_shard
from megahour.decode.lattice_stage import Lattices
from megahour.decode.params import (
    DecodeParams,
    GraphParams,
    LatticesParams,
)
from megahour.decode.stage import Decode, MakeGraph
from megahour.engine.base import TaskFailed
from megahour.engine.local import LocalEngine
from megahour.foreign.lattice_files_stage import ExportLattices, ImportLattices
from megahour.foreign.params import ExportLatticesParams, ImportLatticesParams
from megahour.lattices.kaldi_format import read_archive
from megahour.lattices.lattice import Lattice
from megahour.lattices.n_best import best_paths
from megahour.lattices.table import LatticeRow, read_rows
from megahour.learn.criteria import on_device
from megahour.lm.params import LanguageModelParams
from megahour.lm.query.rescore import read_jsonl
from megahour.lm.stage import LanguageModel
from megahour.losses.lattices import lattice_sums
from megahour.models.build import build
from megahour.models.inference import load
from megahour.runner.runner import run_stage
from megahour.units.hmm import Units
from megahour.units.lexicon_stage import MakeLexicon
from megahour.units.params import LexiconParams, TokensParams
from megahour.units.pieces import Pieces, learn
from megahour.units.texts import listed_words

SENTENCES = ["red boat", "red red boat", "old boat", "old red boat", "boat", "tea boat", "red tea", "old tea tea"]
DICTIONARY = {"red": "R E D", "boat": "B O T", "old": "O L D", "tea": "T I"}
PHONES = ("B", "D", "E", "I", "L", "O", "R", "T")
SENONES = 1 + len(PHONES)  # silence first
TOKENS = ["<blank>", " ", *"abdelort"]


def heard(labels: list[int], mels: int, rng: np.random.Generator, noise: float = 0.1) -> np.ndarray:
    """Features (3 · T, mels) float16 of labels at 30 ms."""
    features = rng.normal(0, noise, (3 * len(labels), mels))
    features[np.arange(len(features)), np.repeat(labels, 3)] += 1.0
    return features.astype(np.float16)


def senones(sentence: str) -> list[int]:
    phones = [0, 0]
    for word in sentence.split():
        phones += [1 + PHONES.index(phone) for phone in DICTIONARY[word].split() for _ in range(2)] + [0]
    return phones


def characters(sentence: str) -> list[int]:
    return [label for c in sentence for label in (TOKENS.index(c), TOKENS.index(c), 0)]


def features_artifact(folder: Path, spoken: Any, mels: int) -> Artifact:
    """Two test shards and a `tune` shard; each test shard begins with an utterance that is too short."""
    rng, shards = np.random.default_rng(1), []
    for shard, name in enumerate(("test", "test", "tune")):
        sentences = SENTENCES[:2] if name == "tune" else SENTENCES[4 * shard : 4 * shard + 4]
        values = [] if name == "tune" else [("", np.zeros((2, mels), np.float16))]
        values += [(sentence, heard(spoken(sentence), mels, rng)) for sentence in sentences]
        flat = pa.array(np.concatenate([array.reshape(-1) for _, array in values]))
        ends = pa.array(np.cumsum([0, *(array.size for _, array in values)]), pa.int64())
        columns = {
            "key": [100 * shard + i for i in range(len(values))],
            "speaker": ["s"] * len(values),
            "frames": [len(array) for _, array in values],
            "text": [text for text, _ in values],
            "set": [name] * len(values),
            "condition": ["clean"] * len(values),
            "features": pa.LargeListArray.from_arrays(ends, flat),
        }
        shards.append(({"set": name}, {".arrow": pa.table(columns).cast(FEATURES)}))
    return write_artifact(folder, shards, {"mels": mels, "mean": [0.0] * mels, "inv_std": [1.0] * mels})


def model_artifact(folder: Path, outputs: int, extra: Mapping[str, Any]) -> Artifact:
    """A network whose logit m is 8 times mel m of the second of three stacked frames; of a transducer about that."""
    sizes = {"kind": "tdnn", "inputs": 3 * outputs, "outputs": outputs, "layers": 1, "units": outputs, "lookahead": 0}
    module = build(sizes | dict(extra))
    weights = {name: torch.zeros_like(tensor) for name, tensor in module.state_dict().items()}
    encoder = "encoder." if "heads" in extra else ""
    weights[f"{encoder}entry.weight"][:, outputs : 2 * outputs] = torch.eye(outputs)
    weights[f"{encoder}head.weight"] = (1 if encoder else 8) * torch.eye(outputs)
    if encoder:
        weights["joiner.weight"] = 10 * torch.eye(outputs)
    stats = {"mean": [0.0] * outputs, "inv_std": [1.0] * outputs}
    artifact = Artifact(folder)
    with ShardWriter(artifact, 0, "made") as out:
        out.json({**sizes, "stack": 3, "stats": stats, **extra}, ".model.json")
        with out.open(".safetensors") as file:
            file.write(safetensors.torch.save(weights))
        receipts = [out.commit()]
    finish(artifact, receipts, Manifest("made", 1, "made", content_digest(receipts, {}), {}, {}, 1, Counts(), {}))
    return artifact


def recorded(folder: Path) -> Artifact:
    """A selection: places of the utterances of `features_artifact` in two channels of a recording, the last first."""
    keys = [key for first in (0, 100) for key in range(first, first + 5)]
    columns = {
        "key": pa.array(keys, pa.int64()),
        "name": ["a talk" if key % 2 else "" for key in keys],
        "recording": pa.array([7] * len(keys), pa.int64()),
        "channel": pa.array([key % 2 for key in keys], pa.int32()),
        "start_samples": pa.array([16_000 * (91 - key % 100) for key in keys], pa.int64()),
        "rate_hz": pa.array([16_000] * len(keys), pa.int32()),
    }
    return write_artifact(folder, [({}, {".parquet": pa.table(columns)})], {})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, engine: LocalEngine) -> dict[str, Artifact]:
    """All artifacts up to the graphs, for senones and for characters."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text("\n".join(SENTENCES) + "\n", "utf-8")
    entries = [f"{word.upper()}  {phones}" for word, phones in DICTIONARY.items() if word != "tea"]
    (folder / "my.dic").write_text("\n".join([*entries, "TEA  T I", "TEA(2)  T E", "WHALE  L"]) + "\n", "utf-8")
    leaves = {phone: {"leaf": 1 + i} for i, phone in enumerate(PHONES)}
    units = Units(PHONES, ("SIL", *PHONES), 0, (0.2, *[0.8 / len(PHONES)] * len(PHONES)), leaves)
    found = {"units": write_artifact(folder / "units", [({}, {".units.json": json.loads(units.to_json())})], {})}

    def run(name: str, stage: Stage[Any], params: Any, *roles: str, **inputs: Artifact) -> None:
        inputs |= {role: found[role] for role in roles}
        found[name] = Artifact(folder / name)
        run_stage(stage, params, inputs, found[name], engine, work=folder / "work")

    run("lm", LanguageModel(), LanguageModelParams(source=[str(folder / "text.txt")]))
    run("lexicon", MakeLexicon(), LexiconParams(source="dictionary", dictionary=str(folder / "my.dic")), "lm")
    run("graph", MakeGraph(), GraphParams(), "lm", "lexicon", "units")
    digest = {"units_digest": found["units"].manifest.digest}
    found["model"] = model_artifact(folder / "model", SENONES, digest)
    found["features"] = features_artifact(folder / "features", senones, SENONES)
    found["ctc_model"] = model_artifact(folder / "ctc-model", len(TOKENS), {"tokens": TOKENS})
    found["ctc_features"] = features_artifact(folder / "ctc-features", characters, len(TOKENS))
    run("ctc_graph", MakeGraph(), GraphParams(topology="ctc"), "lm", "lexicon", model=found["ctc_model"])
    return found


def roles(made: Mapping[str, Artifact], *names: str, prefix: str = "") -> dict[str, Artifact]:
    return {name: made[prefix + name if prefix + name in made else name] for name in names}


def texts(hypotheses: Artifact) -> dict[int, str]:
    tables = [hypotheses.read_table(receipt.shard) for receipt in hypotheses.receipts()]
    return {row["key"]: row["text"] for table in tables for row in table.to_pylist()}


EXPECTED = {100 * (i // 4) + i % 4 + 1: sentence for i, sentence in enumerate(SENTENCES)}


def test_a_graph_artifact_is_an_openfst_file_with_its_words(made: dict[str, Artifact]) -> None:
    graph, about = read_graph(made["graph"])
    with made["graph"].local(0, ".fst") as path:
        theirs = kaldifst.StdVectorFst(kaldifst.StdConstFst.read(str(path)))
    assert theirs.num_states == graph.fst.states == made["graph"].summary["states"]
    assert graph.words == ["<eps>", "boat", "old", "red", "tea"]
    assert about["labels"] == SENONES
    assert about["priors"][0] == 0.2


def test_senones_are_decoded_the_same_with_the_service_and_without(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    inputs, params = roles(made, "features", "model", "graph", "units"), DecodeParams(model_name="student")
    output = Artifact(tmp_path / "hypotheses")
    manifest = run_stage(Decode(), params, inputs, output, engine, work=tmp_path / "work")
    assert texts(output) == EXPECTED
    assert manifest.counts == Counts(10, 8, 0, {"too-short": 2})
    frames = [
        frames for shard in (0, 1) for frames in made["features"].read_table(shard, ".arrow")["frames"].to_pylist()
    ]
    assert manifest.summary["audio_s"] == pytest.approx(sum(n for n in frames if n >= 3) / 100)
    assert manifest.summary["decoded_frames"] == sum(n // 3 for n in frames)
    assert manifest.summary["unfinished"] == 0  # every sentence was read to its end
    assert output.read_table(0)["model"].to_pylist() == ["student"] * 4
    assert output.read_table(0)["frames"].to_pylist() == [n // 3 for n in frames[1:5]]
    assert [receipt.tags for receipt in output.receipts()] == [{"set": "test", "model": "student"}] * 2
    with ShardWriter(Artifact(tmp_path / "alone"), 0, "alone") as out:
        Decode().run(params, inputs, Task({"shard": 0}), out, Context(work=tmp_path))
        out.commit()
    assert Artifact(tmp_path / "alone").read_bytes(0, ".parquet") == output.read_bytes(0, ".parquet")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from megahour.core.store import Artifact
from megahour.decode import run, stage
inputs = {"model": Artifact(sys.argv[1])}
stage.Decode().accelerator(stage.DecodeParams(), inputs)
run._token_searchers(inputs, stage.DecodeParams(), [1.0])
"""


def test_what_searches_a_models_outputs_imports_no_torch(made: dict[str, Artifact]) -> None:
    """The model's own process has it; it would take each worker two seconds of CPU and 180 MB."""
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, made["ctc_model"].url], check=True)


def test_utterances_too_long_for_a_batch_go_to_quarantine(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    """The others are still decoded, with the service and without."""
    inputs, output = roles(made, "features", "model", "graph", "units"), Artifact(tmp_path / "hypotheses")
    params = DecodeParams(batch_frames=len(senones("old boat")), max_bad=1.0)
    run_stage(Decode(), params, inputs, output, engine, work=tmp_path / "work")
    fitting = {key: text for key, text in EXPECTED.items() if len(senones(text)) <= params.batch_frames}
    assert texts(output) == fitting
    assert 0 < len(fitting) < len(EXPECTED)
    bad = {int(record["id"]): record["reason"] for record in output.bad_records()}
    assert bad == {key: "inference-failed" for key in EXPECTED if key not in fitting}
    with ShardWriter(Artifact(tmp_path / "alone"), 0, "alone") as out:
        Decode().run(params, inputs, Task({"shard": 0}), out, Context(work=tmp_path))
        assert out.commit().files == output.receipts()[0].files


def test_characters_are_decoded_with_a_ctc_graph(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    inputs, output = roles(made, "features", "model", "graph", prefix="ctc_"), Artifact(tmp_path / "hypotheses")
    run_stage(Decode(), DecodeParams(), inputs, output, engine, work=tmp_path / "work")
    assert texts(output) == EXPECTED


def test_phones_are_decoded_with_the_lexicons_pronunciations(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    """The language model chooses between homophones, and second pronunciations count; a phone model needs a graph."""
    tokens = ["<blank>", *sorted(PHONES)]

    def spoken(sentence: str) -> list[int]:
        phones = [phone for word in sentence.split() for phone in DICTIONARY[word].split()]
        return [label for phone in phones for label in (tokens.index(phone), 0)]

    inputs = {
        "model": model_artifact(tmp_path / "model", len(tokens), {"tokens": tokens, "phones": True}),
        "features": features_artifact(tmp_path / "features", spoken, len(tokens)),
        "graph": Artifact(tmp_path / "graph"),
    }
    roles_ = {"model": inputs["model"], "lm": made["lm"], "lexicon": made["lexicon"]}
    run_stage(MakeGraph(), GraphParams(topology="ctc"), roles_, inputs["graph"], engine, work=tmp_path / "work")
    output = Artifact(tmp_path / "hypotheses")
    run_stage(Decode(), DecodeParams(), inputs, output, engine, work=tmp_path / "work")
    assert texts(output) == EXPECTED
    del inputs["graph"]
    with pytest.raises(ConfigError, match="the model outputs phones, which need a graph"):
        run_stage(Decode(), DecodeParams(), inputs, Artifact(tmp_path / "no"), engine, work=tmp_path / "work")


def test_words_that_pieces_cannot_spell_are_not_in_a_graph() -> None:
    config = {"tokens": ["<blank>", "\u2581", "a", "b", "\u2581ab"], "marks": True}
    assert _in_tokens(config, {}, {"abb": [], "aéb": []}) == {"abb": [["\u2581ab", "b"]], "aéb": []}


def test_pieces_are_decoded_with_a_graph_of_the_model_they_are_from(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    texts_ = [*SENTENCES, "whale"]
    learnt = learn(TokensParams(size=16, method="bpe"), texts_, where="texts")
    pieces = Pieces(learnt, where="texts")
    assert any(len(token) > 3 for token in pieces.tokens)

    def spoken(sentence: str) -> list[int]:
        return [label for token in pieces.encode(sentence) for label in (token, 0)]

    config = {"tokens": list(pieces.tokens), "marks": True}
    inputs = {
        "model": model_artifact(tmp_path / "model", len(pieces), config),
        "features": features_artifact(tmp_path / "features", spoken, len(pieces)),
        "graph": Artifact(tmp_path / "graph"),
    }
    asked = {"model": inputs["model"], "lm": made["lm"], "lexicon": made["lexicon"]}
    listed = Artifact(tmp_path / "listed")  # an imported model has no rules, but the order of its list shows the merges
    run_stage(MakeGraph(), GraphParams(topology="ctc"), asked, listed, engine, work=tmp_path)
    others = learn(TokensParams(size=14, method="bpe"), SENTENCES, where="texts")
    asked["tokens"] = write_artifact(tmp_path / "others", [({}, {".spm.model": others})], {})
    with pytest.raises(TaskFailed, match="its pieces are not the model's"):
        run_stage(MakeGraph(), GraphParams(topology="ctc"), asked, Artifact(tmp_path / "no2"), engine, work=tmp_path)
    asked["tokens"] = write_artifact(tmp_path / "tokens", [({}, {".spm.model": learnt})], {})
    run_stage(MakeGraph(), GraphParams(topology="ctc"), asked, inputs["graph"], engine, work=tmp_path / "work")
    assert listed.manifest.digest == inputs["graph"].manifest.digest
    output = Artifact(tmp_path / "hypotheses")
    run_stage(Decode(), DecodeParams(), inputs, output, engine, work=tmp_path / "work")
    assert texts(output) == EXPECTED


@pytest.mark.parametrize("beams", [1, 4])
def test_a_model_of_tokens_is_decoded_without_a_graph(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path, beams: int
) -> None:
    """Equal neighbours are one character for CTC and two for a transducer."""
    output = Artifact(tmp_path / "ctc")
    run_stage(Decode(), DecodeParams(), roles(made, "features", "model", prefix="ctc_"), output, engine, work=tmp_path)
    assert texts(output) == EXPECTED
    heads = {"tokens": TOKENS, "heads": {"transducer": 1.0}, "join": len(TOKENS), "context": 2, "decoder_layers": 1}
    inputs = {
        "model": model_artifact(tmp_path / "model", len(TOKENS), heads),
        "features": features_artifact(tmp_path / "features", lambda text: list(map(TOKENS.index, text)), len(TOKENS)),
    }
    output = Artifact(tmp_path / "transducer")
    manifest = run_stage(Decode(), DecodeParams(beams=beams), inputs, output, engine, work=tmp_path)
    assert texts(output) == EXPECTED
    assert manifest.counts == Counts(10, 8, 0, {"too-short": 2})
    asked = roles(made, "lm", "lexicon") | {"model": inputs["model"]}
    with pytest.raises(ConfigError, match=r"(?s)has no posteriors of single frames.*, or decode without a graph"):
        run_stage(MakeGraph(), GraphParams(topology="ctc"), asked, Artifact(tmp_path / "graph"), engine, work=tmp_path)
    with pytest.raises(ConfigError, match="need something to weigh"):
        run_stage(Decode(), DecodeParams(scales=[1.0]), inputs, output, engine, work=tmp_path)
    with pytest.raises(ConfigError, match="which need a graph"):
        run_stage(Decode(), DecodeParams(), roles(made, "features", "model"), output, engine, work=tmp_path)


def nbest(hypotheses: Artifact, *shards: int) -> dict[int, list[dict[str, Any]]]:
    lines = (hypotheses.read_bytes(shard, ".nbest.jsonl").decode().splitlines() for shard in shards)
    return {int(row["id"]): row["nbest"] for some in lines for row in map(json.loads, some)}


def test_a_language_model_hot_words_and_an_n_best_list_go_with_a_model_of_tokens(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    """The scores in the list add up, and `megahour lm rescore` reads it."""
    inputs, output = roles(made, "features", "model", "lm", prefix="ctc_"), Artifact(tmp_path / "hypotheses")
    values = {"beams": 6, "nbest": 3, "lm_scale": 0.3, "word_bonus": 0.5, "hot_words": ["old boat"]}
    run_stage(Decode(), DecodeParams(**values), inputs, output, engine, work=tmp_path / "work")
    assert texts(output) == EXPECTED
    found, scores = nbest(output, 0, 1), output.read_table(0)["score"].to_pylist()
    assert list(found) == list(EXPECTED)
    for key, items in found.items():
        assert items[0]["text"] == EXPECTED[key]
        assert 1 < len({item["text"] for item in items}) <= 3
        for item in items:
            total = item["score"] + 0.3 * item["lm"] + 0.5 * item["words"] + item["hot_words"]
            assert item["total"] == pytest.approx(total, abs=1e-3)
            assert item["hot_words"] == (0.5 * len("old boat") if " old boat " in f" {item['text']} " else 0.0)
    assert [found[key][0]["total"] for key in (1, 2, 3, 4)] == pytest.approx(scores, abs=1e-3)
    with output.local(0, ".nbest.jsonl") as path, path.open("rb") as lines:
        assert next(read_jsonl(lines, "n-best")).texts[0] == EXPECTED[1]
    for change, roles_of, message in [
        ({"attention_weight": 0.5}, {}, "no attention decoder"),
        ({"hot_words": ["Boot"]}, {}, "'Boot' has 'B'"),
        ({}, {"graph": made["ctc_graph"]}, "hot_words.*only for decoding without a graph"),
    ]:
        with pytest.raises(ConfigError, match=message):
            run_stage(
                Decode(), DecodeParams(**{**values, **change}), {**inputs, **roles_of}, output, engine, work=tmp_path
            )


@pytest.mark.parametrize("head", ["ctc", "transducer"])
def test_texts_without_a_graph_are_written_in_the_forms_of_a_graphs(
    made: dict[str, Artifact], tmp_path: Path, head: str
) -> None:
    """As lattices whose paths they are: for confidences, CTM lines, and Kaldi's and HTK's files."""
    inputs = roles(made, "features", "model", "lm", prefix="ctc_")
    if head == "transducer":
        heads = {"tokens": TOKENS, "heads": {"transducer": 1.0}, "join": len(TOKENS), "context": 2, "decoder_layers": 1}
        inputs["model"] = model_artifact(tmp_path / "model", len(TOKENS), heads)
        spelled = features_artifact(tmp_path / "features", lambda text: list(map(TOKENS.index, text)), len(TOKENS))
        inputs["features"] = spelled
    p = DecodeParams(beams=6, nbest=6, lattice=1000.0, lm_scale=0.3, word_bonus=0.5)
    output = alone(Decode(), p, inputs, tmp_path / "hypotheses")
    listed, rows = nbest(output, 0), list(read_rows(output, 0))
    assert [row.key for row in rows] == list(listed) == [key for key in EXPECTED if key < 100]
    for row in rows:
        assert (row.scale, row.frame_s, row.finished) == (1.0, 0.03, True)
        paths = list(best_paths(row.lattice, 1.0))
        assert [" ".join(path.words) for path in paths] == [item["text"] for item in listed[row.key]]
        assert len(paths) > 1
        for path, item in zip(paths, listed[row.key], strict=True):
            assert (-path.cost, path.graph - path.cost) == pytest.approx((item["total"], item["score"]), abs=1e-3)
            assert len(row.lattice.labels_of(path.arcs)) == row.lattice.frames
    nearer = p.model_copy(update={"lattice": listed[1][0]["total"] - listed[1][1]["total"] - 1e-3})
    few = alone(Decode(), nearer, inputs, tmp_path / "few")
    assert next(read_rows(few, 0)).lattice.arcs == len(EXPECTED[1].split()) + 1, "the best text alone"

    again = alone(Lattices(), LatticesParams(), {"lattices": output}, tmp_path / "lattices")
    assert texts(again) == {key: EXPECTED[key] for key in listed}
    ctm = [line.split() for line in again.read_bytes(0, ".ctm").decode().splitlines()]
    assert [line[4] for line in ctm] == [word for key in listed for word in EXPECTED[key].split()]
    assert 0 < min(again.read_table(0)["confidence"].to_pylist()) <= 1
    with pytest.raises(ConfigError, match=r"(?s)have no `graph_lm` to replace.*megahour lm rescore"):
        Lattices().plan(LatticesParams(), {"lattices": output, "lm": made["lm"], "graph_lm": made["lm"]})

    written = alone(ExportLattices(), ExportLatticesParams(formats=["kaldi"]), {"lattices": output}, tmp_path / "files")
    words = listed_words(written.read_bytes(0, ".words.txt").decode())
    assert words[0] == "<eps>"
    found = dict(read_archive(io.BytesIO(written.read_bytes(0, ".lat.ark")), words))
    for row in rows:
        of_kaldi = found[str(row.key)]
        assert isinstance(of_kaldi, Lattice)
        assert [path.words for path in best_paths(of_kaldi, 1.0)] == [p.words for p in best_paths(row.lattice, 1.0)]


def alone(stage: Any, p: Any, inputs: Mapping[str, Artifact], folder: Path) -> Artifact:
    """The first shard of a stage, made in this process."""
    output = Artifact(folder)
    with ShardWriter(output, 0, "made") as out:
        stage.run(p, inputs, Task({"shard": 0}), out, Context(work=folder))
        receipts = [out.commit()]
    summary = stage.finish(p, inputs, receipts)
    finish(
        output,
        receipts,
        Manifest(stage.name, 1, "made", content_digest(receipts, summary), {}, {}, 1, Counts(), summary),
    )
    return output


def test_a_large_language_model_takes_the_place_of_the_graphs_during_the_search(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    """Replacing the model by itself changes nothing; another model changes the words in its favour."""
    inputs = roles(made, "features", "model", "graph", "units")
    both = {**inputs, "lm": made["lm"], "graph_lm": made["lm"]}
    scores = []
    for name, given, params in (
        ("alone", inputs, DecodeParams(acoustic_scale=0.5)),
        ("composed", both, DecodeParams(acoustic_scale=0.5, lattice=3.0, nbest=2, scales=[0.5, 1.0])),
        ("without", both, DecodeParams(acoustic_scale=0.5, composed_lm_scale=0.0)),
    ):
        output = Artifact(tmp_path / name)
        run_stage(Decode(), params, given, output, engine, work=tmp_path / "work")
        assert texts(output) == EXPECTED
        scores.append(output.read_table(0)["score"].to_pylist())
    alone, composed, without = map(np.array, scores)
    assert alone == pytest.approx(composed, abs=0.05), "a graph backs off where that is cheaper, the model does not"
    assert (without > composed + 1.0).all(), "no language model at all costs less"
    assert (tmp_path / "composed" / "shards" / "00000.lattices.parquet").is_file()
    assert not (tmp_path / "without" / "shards" / "00000.lattices.parquet").exists()
    for given in ({**inputs, "lm": made["lm"]}, {**inputs, "graph_lm": made["lm"]}):
        with pytest.raises(ConfigError, match="`lm` replaces `graph_lm`"):
            run_stage(Decode(), DecodeParams(), given, output, engine, work=tmp_path)
    (tmp_path / "teas.txt").write_text("red tea\nold tea tea\nred old tea\n", "utf-8")
    other, params = Artifact(tmp_path / "teas-lm"), LanguageModelParams(source=[str(tmp_path / "teas.txt")])
    run_stage(LanguageModel(), params, {}, other, engine, work=tmp_path)
    with pytest.raises(ConfigError, match="made of another language model than this `graph_lm`"):
        run_stage(Decode(), DecodeParams(), {**both, "graph_lm": other}, output, engine, work=tmp_path)
    with pytest.raises(ConfigError, match="words that this language model lacks, such as"):
        composed_graph(read_graph(made["graph"])[0], {"lm": made["lm"], "graph_lm": other}, 1.0)


def test_an_n_best_list_of_a_graph(made: dict[str, Artifact], tmp_path: Path) -> None:
    inputs = roles(made, "features", "model", "graph", "units")
    with ShardWriter(Artifact(tmp_path / "hypotheses"), 0, "alone") as out:
        Decode().run(DecodeParams(nbest=2), inputs, Task({"shard": 0}), out, Context(work=tmp_path))
        out.commit()
    for key, items in nbest(Artifact(tmp_path / "hypotheses"), 0).items():
        assert items[0]["text"] == EXPECTED[key]
        for item in items:
            assert item["total"] == pytest.approx(item["score"] + item["graph"], abs=1e-3)


@pytest.mark.parametrize("prefix", ["", "ctc_"])
def test_a_hypothesis_has_its_confidence_where_it_is_asked_for(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path, prefix: str
) -> None:
    """The mean probability of the path's labels except blanks, with and without a graph."""
    inputs = roles(made, "features", "model", *([] if prefix else ["graph", "units"]), prefix=prefix)
    output = Artifact(tmp_path / "hypotheses")
    run_stage(Decode(), DecodeParams(confidence=True), inputs, output, engine, work=tmp_path / "work")
    assert texts(output) == EXPECTED
    model = load(inputs["model"].url)
    features = inputs["features"].read_table(0, ".arrow").to_pylist()
    for row in output.read_table(0).to_pylist():
        values = next(each for each in features if each["key"] == row["key"])
        rows = np.array(values["features"], np.float32).reshape(row["frames"], -1)  # stacked by three
        best = np.exp(model(rows[None], np.array([len(rows)]))[0]["log_probs"][0])
        counted = best.max(1)[best.argmax(1) != 0] if prefix else best.max(1)
        assert row["confidence"] == pytest.approx(counted.mean(), abs=2e-3)


def test_finished_runs_stay_valid() -> None:
    """Parameters added later are not part of a job's fingerprint at their defaults."""
    assert DecodeParams().identity().keys() == {
        *("sets", "model_name", "acoustic_scale", "prior_scale", "beam", "max_active", "scales", "batch_frames")
    }


def test_scales_are_tried_on_their_own_set_and_the_best_is_used(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    inputs = roles(made, "features", "model", "graph", "units")
    tuned = Artifact(tmp_path / "tuned")
    params = DecodeParams(sets=["tune"], scales=[0.001, 0.5])
    summary = run_stage(Decode(), params, inputs, tuned, engine, work=tmp_path / "work").summary
    assert summary["best_scale"] == 0.5
    assert summary["wer_by_scale"]["0.5"] == 0.0 < summary["wer_by_scale"]["0.001"]
    output = Artifact(tmp_path / "hypotheses")
    bad = DecodeParams(acoustic_scale=0.001)
    run_stage(Decode(), bad, {**inputs, "tuned": tuned}, output, engine, work=tmp_path / "work")
    assert texts(output) == EXPECTED


def test_mismatched_inputs_are_refused_before_anything_runs(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    output = Artifact(tmp_path / "hypotheses")
    good = roles(made, "features", "model", "graph")
    other = model_artifact(tmp_path / "other", SENONES, {"units_digest": "other"})
    for change, params, message in [
        ({"model": made["ctc_model"]}, DecodeParams(), "10 outputs, but the graph has 9 labels"),
        ({"model": other}, DecodeParams(), "different units"),
        ({}, DecodeParams(sets=["best"]), r"is in sets \['best'\]; its sets are \['test', 'tune'\]"),
    ]:
        with pytest.raises(ConfigError, match=message):
            run_stage(Decode(), params, {**good, **change}, output, engine, work=tmp_path / "work")


def test_the_fewest_active_paths_are_refused_where_the_search_has_no_such_number(made: dict[str, Artifact]) -> None:
    Decode().check(DecodeParams(min_active=1000), {"features", "model", "graph"})
    for roles_, more in [
        ({"features", "model"}, {}),
        ({"features", "model", "graph"}, {"lattice": 6.0}),
        ({"features", "model", "graph", "lm", "graph_lm"}, {}),
    ]:
        with pytest.raises(ConfigError, match="`min_active` applies only to a search of `graph`"):
            Decode().check(DecodeParams(min_active=1000, **more), roles_)


def test_an_utterance_that_cannot_be_searched_goes_to_quarantine_and_the_next_is_decoded(
    made: dict[str, Artifact], tmp_path: Path
) -> None:
    """Its features hold a NaN, and so do its posteriors; another has just the three frames of one step."""
    table = made["features"].read_table(0, ".arrow")
    rows = table.to_pylist()[1:4]
    rows[1]["features"][0] = float("nan")
    rows[2] |= {"frames": 3, "features": rows[2]["features"][: 3 * SENONES], "text": ""}
    features = write_artifact(
        tmp_path / "features", [({"set": "test"}, {".arrow": pa.Table.from_pylist(rows, FEATURES)})], {}
    )
    inputs = {**roles(made, "model", "graph"), "features": features}
    with ShardWriter(Artifact(tmp_path / "hypotheses"), 0, "alone") as out:
        Decode().run(DecodeParams(), inputs, Task({"shard": 0}), out, Context(work=tmp_path))
        receipt = out.commit()
    found = Artifact(tmp_path / "hypotheses").read_table(0).to_pylist()
    assert [(row["key"], row["text"]) for row in found] == [(1, EXPECTED[1]), (3, "")]
    assert [row["frames"] for row in found] == [len(senones(EXPECTED[1])), 1]
    assert (receipt.counts.kept, receipt.counts.bad, sum(receipt.counts.dropped.values())) == (2, 1, 1)


@dataclass(frozen=True)
class Alignments:
    """`OpenLabels` of the frames that the features were made of."""

    timed: ClassVar[Mapping[str, int]] = {"labels": -1}

    def shortest(self, arrays: Arrays) -> np.ndarray:
        return np.ones(len(arrays["labels"]), np.int64)

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        made = np.full((len(pieces), frames), -1)
        for row, piece in zip(made, pieces, strict=True):
            row[: piece.length] = senones(piece.text)
        return {"labels": made}


def _learnt_against(rows: Sequence[LatticeRow]) -> None:
    """Sequence training finds the aligned senones in each lattice, and sums over the other paths."""
    pieces = [Piece(row.key, 0, row.lattice.frames, 3 * row.lattice.frames, EXPECTED[row.key]) for row in rows]
    longest = max(piece.length for piece in pieces)
    labels = OpenLatticeLabels(Alignments(), {row.key: row for row in rows}, add_aligned=False)
    batch = Batch(np.zeros((len(rows), longest, 3), np.float32), np.array([p.length for p in pieces]), [*EXPECTED],
                  labels.arrays(pieces, 0, longest))  # fmt: skip
    moved = on_device(batch, sentences=True)
    assert moved.lattices is not None
    wanted, real = moved.targets["labels"], moved.targets["labels"] >= 0
    scores = 4.0 * torch.nn.functional.one_hot(wanted.clamp(min=0), SENONES)
    found = lattice_sums(moved.lattices, scores, wanted)
    assert torch.allclose(found.occupation.sum(2)[real], torch.ones(1, dtype=torch.float64))
    assert (found.gain / real.sum(1)).min() > 0.9


def test_lattices_are_written_beside_the_hypotheses_and_read_back_as_they_were(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    """Texts are the same, the summary gives their density, and a rebuilt shard has the same bytes."""
    inputs, output = roles(made, "features", "model", "graph", "units"), Artifact(tmp_path / "hypotheses")
    params = DecodeParams(lattice=25.0, acoustic_scale=0.5, nbest=4)
    summary = run_stage(Decode(), params, inputs, output, engine, work=tmp_path / "work").summary
    assert texts(output) == EXPECTED
    rows = [row for shard in (0, 1) for row in read_rows(output, shard)]
    assert [row.key for row in rows] == list(EXPECTED)
    listed = nbest(output, 0, 1)
    for row, score in zip(
        rows, [*output.read_table(0)["score"].to_pylist(), *output.read_table(1)["score"].to_pylist()], strict=True
    ):
        assert (row.scale, row.frame_s, row.finished) == (0.5, 0.03, True)
        paths = list(islice(best_paths(row.lattice, row.scale), 4))
        assert paths[0].cost == pytest.approx(-score, abs=1e-3)
        assert [" ".join(path.words) for path in paths] == [item["text"] for item in listed[row.key]]
        assert len(row.lattice.labels_of(paths[0].arcs)) == row.lattice.frames
    _learnt_against(rows)
    arcs, frames = sum(row.lattice.arcs for row in rows), sum(row.lattice.frames for row in rows)
    assert summary["lattice_arcs_per_frame"] == round(arcs / frames, 4) > 0.1
    assert summary["lattice_depth"] == round(summary["lattice_arc_frames"] / frames, 4)
    with ShardWriter(Artifact(tmp_path / "alone"), 0, "alone") as out:
        Decode().run(params, inputs, Task({"shard": 0}), out, Context(work=tmp_path))
        assert out.commit().files == output.receipts()[0].files
    given = {
        "lattices": output,
        "selection": recorded(tmp_path / "selection"),
        "lm": made["lm"],
        "graph_lm": made["lm"],
        **roles(made, "features", "lexicon", "units"),
    }
    again = Artifact(tmp_path / "lattices")
    summary = run_stage(
        Lattices(), LatticesParams(nbest=2, beam=9.0), given, again, engine, work=tmp_path / "work"
    ).summary
    assert texts(again) == EXPECTED
    assert (summary["wer"], summary["oracle_wer"], summary["words_without_exact_times"]) == (0.0, 0.0, 0)
    assert summary["lattice_arcs"] < arcs
    assert [items[0]["text"] for items in nbest(again, 0, 1).values()] == SENTENCES
    assert min(again.read_table(0)["confidence"].to_pylist()) > 0.9
    fields = [line.split() for line in again.read_bytes(0, ".ctm").decode().splitlines()]
    first = next(line for line in fields if line[0] == "a%20talk.1" and float(line[2]) > 90)
    assert (first[1], first[4]) == ("2", SENTENCES[0].split()[0])
    assert (float(first[2]), float(first[3])) == (90 + 2 * 0.03, 6 * 0.03), "after two frames of silence, three sounds"
    assert [line[0] for line in fields] == sorted(line[0] for line in fields), "as sclite wants them"
    talk = [float(line[2]) for line in fields if line[0] == "a%20talk.1"]
    assert talk == sorted(talk)
    (tmp_path / "teas.txt").write_text("red tea\nold tea tea\nred old tea\n", "utf-8")
    teas = Artifact(tmp_path / "teas-lm")
    run_stage(
        LanguageModel(), LanguageModelParams(source=[str(tmp_path / "teas.txt")]), {}, teas, engine, work=tmp_path
    )
    with ShardWriter(Artifact(tmp_path / "misfit"), 0, "alone") as out:
        p, misfits = LatticesParams(), {**given, "graph_lm": teas}
        inputs = with_layouts(Lattices(), p, misfits, tmp_path / "layouts")
        lattices_shard(p, inputs, 0, out, Context(work=tmp_path))
        counts = out.commit().counts
    assert counts.dropped == {"not-in-graph-lm": counts.bad}
    assert (counts.came_in, counts.kept) == (4, 4 - counts.bad)
    assert counts.bad > 0
    files, back = Artifact(tmp_path / "files"), Artifact(tmp_path / "back")
    exporting = ExportLatticesParams(formats=["kaldi", "kaldi-text", "lattice4", "slf"])
    run_stage(ExportLattices(), exporting, {"lattices": output, "graph": made["graph"]}, files, engine, work=tmp_path)
    archives = [str(Path(files.url) / "shards" / name) for name in ("00000.lat.ark", "00001.lat.txt")]
    common = {"words": str(Path(files.url) / "shards" / "00000.words.txt"), "acoustic_scale": 0.5, "frame_s": 0.03}
    importing = ImportLatticesParams(source=archives, **common)
    counts = run_stage(ImportLattices(), importing, roles(made, "features"), back, engine, work=tmp_path).counts
    assert counts == Counts(10, 8, 0, {"no-lattice": 2})
    for one, other in zip(rows, [row for shard in (0, 1) for row in read_rows(back, shard)], strict=True):
        assert [path.words for path in best_paths(one.lattice, 0.5)] == [
            path.words for path in best_paths(other.lattice, 0.5)
        ]
        assert sorted(one.lattice.graph) == pytest.approx(sorted(other.lattice.graph), abs=1e-6)
    with tarfile.open(Path(files.url) / "shards" / "00000.slf.tar") as tar:
        assert tar.getnames() == ["1.lat", "2.lat", "3.lat", "4.lat"]
        tar.extractall(tmp_path / "slf")
    slf = ImportLatticesParams(source=[str(tmp_path / "slf" / "*.lat")], format="slf", acoustic_scale=0.5, frame_s=0.03)
    run_stage(ImportLattices(), slf, roles(made, "features"), Artifact(tmp_path / "of-slf"), engine, work=tmp_path)
    assert texts(Artifact(tmp_path / "of-slf")) == {key: text for key, text in EXPECTED.items() if key < 100}
    whole = ImportLatticesParams(
        source=[str(Path(files.url) / "shards" / "*.slf.tar")], format="slf", acoustic_scale=0.5, frame_s=0.03
    )
    run_stage(ImportLattices(), whole, roles(made, "features"), Artifact(tmp_path / "of-tar"), engine, work=tmp_path)
    assert Artifact(tmp_path / "of-tar").receipts()[0].files == Artifact(tmp_path / "of-slf").receipts()[0].files
    with pytest.raises(ConfigError, match="made of another language model than this `graph_lm`"):
        run_stage(Lattices(), LatticesParams(), {**given, "graph_lm": teas}, again, engine, work=tmp_path)
    weighed = Artifact(tmp_path / "weighed")
    run_stage(Lattices(), LatticesParams(lm_scale=0.5), given, weighed, engine, work=tmp_path)
    with pytest.raises(ConfigError, match=r"was weighed by 0\.5, and can no longer be replaced"):
        run_stage(Lattices(), LatticesParams(), {**given, "lattices": weighed}, again, engine, work=tmp_path)
    for wrong in ({"lattices": output, "lm": made["lm"]}, {"lattices": output, "lexicon": made["lexicon"]}):
        with pytest.raises(ConfigError, match="give both"):
            run_stage(Lattices(), LatticesParams(), wrong, again, engine, work=tmp_path)
    with pytest.raises(ConfigError, match="the hypotheses have no lattices"):
        next(read_rows(made["features"], 0))


def test_a_frame_of_a_lattice_is_a_row_of_the_model_in_whole_samples(made: dict[str, Artifact], tmp_path: Path) -> None:
    """A conformer makes a row of four frames, and at 22,050 Hz a frame has 220 samples."""
    spoken = made["ctc_features"]
    conformer = exported.model(tmp_path / "model", "conformer", tokens=TOKENS, mels=len(TOKENS))
    with ShardWriter(Artifact(tmp_path / "graph"), 0, "made") as out:
        of_graph = {"model": conformer, "lm": made["lm"], "lexicon": made["lexicon"]}
        MakeGraph().run(GraphParams(topology="ctc"), of_graph, Task({}), out, Context(work=tmp_path))
        exported.closed(Artifact(tmp_path / "graph"), [out.commit()], "graph", {})
    summary = {**spoken.summary, "audio": {"rate_hz": 22_050}}
    shard = {"set": "test"}, {".arrow": spoken.read_table(0, ".arrow")}
    inputs = {"features": write_artifact(tmp_path / "features", [shard], summary), "model": conformer}
    inputs["graph"] = Artifact(tmp_path / "graph")
    with ShardWriter(Artifact(tmp_path / "hypotheses"), 0, "made") as out:
        Decode().run(DecodeParams(lattice=4.0), inputs, Task({"shard": 0}), out, Context(work=tmp_path))
        exported.closed(Artifact(tmp_path / "hypotheses"), [out.commit()], "decode", {})
    found = [row.frame_s for row in read_rows(Artifact(tmp_path / "hypotheses"), 0)]
    assert found == [pytest.approx(4 * 220 / 22_050)] * 4


def test_without_a_graph_scales_are_those_of_the_language_model(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    """At a weight of 50 the language model outvotes the acoustics."""
    inputs = roles(made, "features", "model", prefix="ctc_") | {"lm": made["lm"]}
    tuned, output = Artifact(tmp_path / "tuned"), Artifact(tmp_path / "hypotheses")
    p = DecodeParams(sets=["tune"], scales=[50.0, 0.1, 50.0])
    summary = run_stage(Decode(), p, inputs, tuned, engine, work=tmp_path).summary
    once = DecodeParams(sets=["tune"], scales=[50.0, 0.1])
    assert run_stage(Decode(), once, inputs, Artifact(tmp_path / "once"), engine, work=tmp_path).summary == summary
    assert (summary["best_scale"], summary["scales_of"]) == (0.1, "lm_scale")
    assert summary["wer_by_scale"]["0.1"] == 0.0 < summary["wer_by_scale"]["50"]
    outvoted = DecodeParams(lm_scale=50.0)
    run_stage(Decode(), outvoted, inputs, Artifact(tmp_path / "outvoted"), engine, work=tmp_path)
    assert texts(Artifact(tmp_path / "outvoted")) != EXPECTED
    run_stage(Decode(), outvoted, {**inputs, "tuned": tuned}, output, engine, work=tmp_path)
    assert texts(output) == EXPECTED
    graph = roles(made, "features", "model", "graph", prefix="ctc_") | {"tuned": tuned}
    with pytest.raises(ConfigError, match="values of lm_scale, not of acoustic_scale"):
        run_stage(Decode(), DecodeParams(), graph, output, engine, work=tmp_path)
    with pytest.raises(ConfigError, match=r"scales: -1"):
        run_stage(Decode(), DecodeParams(scales=[-1.0]), inputs, output, engine, work=tmp_path)


def test_the_best_scale_has_the_fewest_errors_and_is_the_smallest_of_equal_ones(made: dict[str, Artifact]) -> None:
    params = DecodeParams(sets=["tune", "dev"], scales=[2.0, 0.5, 1.0], model_name="m")

    def finished(words: int, **errors: int) -> dict[str, Any]:
        stats = {"reference_words": words, **{f"errors_at_{name}": n for name, n in errors.items()}}
        receipts = [Receipt(i, "f", Counts(), {}, {name: n // 2 for name, n in stats.items()}, {}) for i in range(2)]
        return Decode().finish(params, roles(made, "model"), receipts)

    summary = finished(10, **{"2": 4, "1": 2, "0.5": 2})
    assert summary["wer_by_scale"] == {"0.5": 0.2, "1": 0.2, "2": 0.4}
    assert (summary["best_scale"], summary["sets"], summary["model"]) == (0.5, ["dev", "tune"], "m")
    assert "best_scale" not in finished(0, **{"2": 0, "1": 0, "0.5": 0}), "without words there are no rates"


def test_hypotheses_that_tried_no_scales_cannot_tune(made: dict[str, Artifact], tmp_path: Path) -> None:
    inputs = roles(made, "features", "model", "graph") | {"tuned": write_artifact(tmp_path / "tuned", [], {})}
    with (
        ShardWriter(Artifact(tmp_path / "hypotheses"), 0, "alone") as out,
        pytest.raises(ConfigError, match="tried no scales"),
    ):
        Decode().run(DecodeParams(), inputs, Task({"shard": 0}), out, Context(work=tmp_path))
