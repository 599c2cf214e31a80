"""Output of stage `graph`: a file that OpenFst reads, its metadata, and errors for inputs that do not fit together."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kaldifst
import numpy as np
import pytest
from made_artifacts import write_artifact

from megahour.core.errors import ConfigError, MegahourError, StageError, StoreError
from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.core.stage import Context, Task
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.decode.build import read_graph
from megahour.decode.match import check_match
from megahour.decode.params import GraphParams
from megahour.decode.stage import MakeGraph
from megahour.lm.estimate.estimate import estimate
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.text.sources import line_blocks
from megahour.units.fst import FstArrays, from_bytes, from_columns, to_bytes
from megahour.units.hmm import Units

# Three states; arcs in the wrong order, two of them without an input label, one without an output label.
COLUMNS = {
    "source": [1, 0, 0, 1, 0],
    "ilabel": [0, 2, 1, 3, 0],
    "olabel": [5, 0, 4, 4, 6],
    "weight": [0.5, 1.5, 2.5, 3.5, 4.5],
    "nextstate": [2, 1, 1, 2, 0],
}
SMALL = from_columns(0, [np.inf, np.inf, 0.25], **COLUMNS)  # type: ignore[arg-type]
HEADER = 4 + (4 + 5) + (4 + 8)  # bytes before version, flags, properties, start, states, arcs


def test_arcs_are_sorted_by_state_and_labels() -> None:
    assert SMALL.states == 3
    assert SMALL.source.tolist() == [0, 0, 0, 1, 1]
    assert SMALL.arcs["ilabel"].tolist() == [0, 1, 2, 0, 3]
    assert SMALL.arcs["weight"].tolist() == [4.5, 2.5, 1.5, 0.5, 3.5]
    assert from_columns(0, [0.0], [0, 0], [1, 1], [2, 1], [0.0, 0.0], [0, 0]).arcs["olabel"].tolist() == [1, 2]


def test_the_file_declares_its_sizes_and_epsilons_to_openfst(tmp_path: Path) -> None:
    path = tmp_path / "small.fst"
    path.write_bytes(to_bytes(SMALL))
    theirs = kaldifst.StdConstFst.read(str(path))
    assert [theirs.num_arcs(state) for state in range(3)] == [3, 2, 0]
    assert [theirs.num_input_epsilons(state) for state in range(3)] == [1, 1, 0]
    written = tmp_path / "theirs.fst"
    kaldifst.StdConstFst(kaldifst.StdVectorFst(theirs)).write(str(written))
    body = HEADER + 40  # states with their counts, then arcs; only the header's properties differ
    assert to_bytes(SMALL)[body:] == written.read_bytes()[body:]
    again = from_bytes(to_bytes(SMALL))
    np.testing.assert_array_equal(again.source, SMALL.source)
    np.testing.assert_array_equal(again.final, SMALL.final)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, struct.pack("<i", 7), "wrong magic number"),
        (4, struct.pack("<i", 33), "type name of 33 bytes"),
        (4, struct.pack("<i", -1), "type name of -1 bytes"),
        (HEADER, struct.pack("<i", 3), "version 3"),
        (HEADER + 4, struct.pack("<i", 1), "flags 1"),
        (HEADER + 16, struct.pack("<q", 3), "do not hold 3 states and 5 arcs from state 3"),
        (HEADER + 16, struct.pack("<q", -1), "from state -1"),
        (HEADER + 24, struct.pack("<q", 4), "do not hold 4 states"),
        (HEADER + 40 + 4, struct.pack("<I", 1), "its states do not cover its arcs"),
        (HEADER + 40 + 8, struct.pack("<I", 2), "its states do not cover its arcs"),
        (HEADER + 40 + 3 * 20 + 12, struct.pack("<i", 3), "an arc leaves the 3 states"),
        (HEADER + 40 + 3 * 20 + 12, struct.pack("<i", -1), "an arc leaves the 3 states"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(at: int, value: bytes, message: str) -> None:
    data = bytearray(to_bytes(SMALL))
    data[at : at + len(value)] = value
    with pytest.raises(StoreError, match=message) as caught:
        from_bytes(bytes(data), where="runs/graph")
    assert caught.value.where == "runs/graph"


def test_a_file_without_arcs_is_one_all_the_same() -> None:
    empty = from_bytes(to_bytes(from_columns(0, [0.0], [], [], [], [], [])))
    assert (empty.states, len(empty.arcs)) == (1, 0)
    with pytest.raises(StoreError):
        from_bytes(to_bytes(SMALL)[:-1])


def text_artifact(folder: Path, files: dict[str, str]) -> Artifact:
    artifact = Artifact(folder)
    with ShardWriter(artifact, 0, "made") as out:
        for suffix, text in files.items():
            out.text(text, suffix)
        receipts = [out.commit()]
    finish(artifact, receipts, Manifest("made", 1, "made", content_digest(receipts, {}), {}, {}, 1, Counts(), {}))
    return artifact


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Artifact]:
    """A model of `a`, `b` and `c`; a lexicon of `a`, `b`, of `c` with a phone that no unit has, and of `d`."""
    arpa = tmp_path / "model.arpa"
    estimate(read_corpus(line_blocks(["a b c", "a c", "b b a", "c a b"], "lines")).corpus, 2, arpa)
    units = Units(("A", "B"), ("SIL", "A", "B"), 0, (0.5, 0.25, 0.25), {"A": {"leaf": 1}, "B": {"leaf": 2}})
    return {
        "lm": text_artifact(tmp_path / "lm", {".arpa": arpa.read_text()}),
        "lexicon": text_artifact(tmp_path / "lexicon", {".lexicon.txt": "a  A\nb  B\nb  B A\nc  A X\nd  A B\n"}),
        "units": text_artifact(tmp_path / "units", {".units.json": units.to_json()}),
        "model": text_artifact(
            tmp_path / "model", {".model.json": json.dumps({"outputs": 3, "tokens": ["<blank>", "a", "b"]})}
        ),
    }


def make(inputs: dict[str, Artifact], folder: Path, p: GraphParams | None = None) -> tuple[Artifact, Receipt]:
    artifact, p = Artifact(folder), p or GraphParams()
    with ShardWriter(artifact, 0, "g") as out:
        MakeGraph().plan(p, inputs)
        MakeGraph().run(p, inputs, Task({}), out, Context(work=folder / "work"))
        receipt = out.commit()
    finish(artifact, [receipt], Manifest("graph", 1, "g", "d", {}, {}, 1, receipt.counts, receipt.stats))
    return artifact, receipt


def test_words_that_are_left_out_are_counted_by_what_they_lack(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    artifact, receipt = make(inputs, tmp_path / "graph")
    assert receipt.counts == Counts(4, 2, 0, {"not-in-language-model": 1, "not-in-units": 1})
    graph, about = read_graph(artifact)
    assert graph.words == ["<eps>", "a", "b"]
    assert receipt.stats["dropped_words"] == ["c"]
    assert MakeGraph().finish(GraphParams(), inputs, [receipt]) == receipt.stats
    assert (about["words"], about["states"], about["arcs"]) == (2, graph.fst.states, len(graph.fst.arcs))
    assert (about["labels"], about["silence"], about["priors"]) == (3, 0, [0.5, 0.25, 0.25])
    assert (about["topology"], about["units_digest"]) == ("hmm", inputs["units"].manifest.digest)


def test_words_of_the_language_model_without_a_pronunciation_are_counted_and_named(
    inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    """They can never be recognised, and a user should not have to conclude that from the error rate."""
    lexicon = text_artifact(tmp_path / "smaller", {".lexicon.txt": "a  A\nd  A B\n"})
    _, receipt = make({**inputs, "lexicon": lexicon}, tmp_path / "graph")
    assert receipt.counts == Counts(4, 1, 0, {"not-in-language-model": 1, "not-in-lexicon": 2})
    assert receipt.stats["words_without_pronunciation"] == ["b", "c"]


def test_a_character_graph_spells_its_words_with_the_models_tokens(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    artifact, receipt = make(inputs, tmp_path / "graph", GraphParams(topology="ctc"))
    graph, about = read_graph(artifact)
    assert graph.words == ["<eps>", "a", "b"]
    assert receipt.stats["dropped_words"] == ["c", "d"]
    assert about | {"states": 0, "arcs": 0} == {
        **{"labels": 3, "tokens": ["<blank>", "a", "b"], "priors": None, "topology": "ctc"},
        **{"words": 2, "states": 0, "arcs": 0},
    }


def test_inputs_that_lack_something_are_named(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    def refused(change: dict[str, Artifact], error: type[MegahourError], p: GraphParams | None = None) -> str:
        with pytest.raises(error) as caught:
            make({**inputs, **change}, tmp_path / "refused", p)
        return caught.value.message

    ctc = GraphParams(topology="ctc")
    for needed, p in (("units", GraphParams()), ("model", ctc)):
        others = {role: artifact for role, artifact in inputs.items() if role != needed}
        with pytest.raises(ConfigError, match=f"topology {p.topology} needs the input `{needed}`"):
            MakeGraph().check(p, others)
    no_tokens = text_artifact(tmp_path / "hybrid", {".model.json": "{}"})
    assert "no tokens" in refused({"model": no_tokens}, ConfigError, ctc)
    for number, priors in enumerate([(0.5, 0.5), (0.5, float("nan"), 0.5), (0.5, -0.1, 0.6)]):
        units = Units(("A", "B"), ("SIL", "A", "B"), 0, priors, {"A": {"leaf": 1}, "B": {"leaf": 2}})
        odd = text_artifact(tmp_path / f"units-{number}", {".units.json": units.to_json()})
        assert f"{len(priors)} priors, 3 senones" in refused({"units": odd}, StageError)


def test_a_graph_whose_words_or_labels_are_not_in_its_lists_is_refused(tmp_path: Path) -> None:
    def read(words: list[str], labels: int, fst: FstArrays) -> Any:
        folder = tmp_path / f"{len(words)}-{labels}"
        artifact = Artifact(folder)
        with ShardWriter(artifact, 0, "g") as out:
            with out.open(".fst") as file:
                file.write(to_bytes(fst))
            out.text("".join(f"{word} {i}\n" for i, word in enumerate(words)), ".words.txt")
            out.json({"labels": labels}, ".json")
            receipts = [out.commit()]
        finish(artifact, receipts, Manifest("graph", 1, "g", "d", {}, {}, 1, Counts(), {}))
        return read_graph(artifact)

    words = ["<eps>", "a", "b\u2028c", "d\x85", *"def"]  # SMALL writes word 6 and reads label 3
    assert read(words, 3, SMALL)[0].words == words
    with pytest.raises(StoreError, match="outputs word 6, but its list has 6"):
        read(words[:6], 3, SMALL)
    with pytest.raises(StoreError):
        read(words, 2, SMALL)


def test_model_graph_and_units_must_speak_of_the_same_labels(tmp_path: Path) -> None:
    hmm: dict[str, Any] = {"labels": 3, "topology": "hmm", "units_digest": "u"}
    ctc: dict[str, Any] = {"labels": 3, "topology": "ctc", "tokens": ["<blank>", "a", "b"]}

    def ask(name: str, graph: dict[str, Any], model: dict[str, Any], *units: Artifact) -> Callable[[], None]:
        found = {
            "graph": write_artifact(tmp_path / name / "graph", [({}, {".json": graph})], {}),
            "model": write_artifact(tmp_path / name / "model", [({}, {".model.json": model})], {}),
        }
        return lambda: check_match({**found, **({"units": units[0]} if units else {})})

    ask("same", hmm, {"outputs": 3, "units_digest": "u"})()
    ask("same-tokens", ctc, {"outputs": 3, "tokens": ["<blank>", "a", "b"]})()
    with pytest.raises(ConfigError, match="4 outputs, but the graph has 3 labels"):
        ask("outputs", hmm, {"outputs": 4, "units_digest": "u"})()
    with pytest.raises(ConfigError, match="different units"):
        ask("digest", hmm, {"outputs": 3, "units_digest": "v"})()
    with pytest.raises(ConfigError, match="tokens are not the graph's"):
        ask("tokens", ctc, {"outputs": 3, "tokens": ["<blank>", "b", "a"]})()
    other = write_artifact(tmp_path / "units", [], {})
    with pytest.raises(ConfigError, match="different units"):
        ask("units", hmm, {"outputs": 3, "units_digest": "u"}, other)()
