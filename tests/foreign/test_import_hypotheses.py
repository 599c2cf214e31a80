"""Other recognisers' JSON becomes hypotheses with confidences."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from made_artifacts import features_artifact, utterances, write_artifact

from megahour.core.errors import BadRecord, MegahourError
from megahour.core.store import Artifact
from megahour.corpus.transcripts.recognised import Recognised, named, recognised, utterance_id
from megahour.engine.local import LocalEngine
from megahour.foreign.hypotheses import ReadHypotheses, matched
from megahour.foreign.hypotheses_stage import ImportHypotheses
from megahour.foreign.named_records import endings
from megahour.foreign.params import ImportHypothesesParams
from megahour.runner.runner import run_stage

ANY = ImportHypothesesParams(source=["any"])
MADE = utterances(6)
WHISPER = {
    "text": " Two dogs.",
    "segments": [
        {"start": 0, "end": 3, "text": " Two", "avg_logprob": math.log(0.9), "no_speech_prob": 0.01},
        {"start": 3, "end": 4, "text": " dogs.", "avg_logprob": math.log(0.5)},
    ],
}

WHISPER_CPP = {  # as --output-json-full
    "result": {"language": "en"},
    "transcription": [
        {"text": " Two", "tokens": [{"text": "[_BEG_]", "p": 0.1}, {"text": " Two", "p": 0.9}]},
        {"text": " dogs.", "tokens": [{"text": " dogs.", "p": 0.7}, {"text": "[_TT_50]", "p": 0.1}]},
    ],
}


@pytest.mark.parametrize(
    ("value", "text", "confidence"),
    [
        ({"audio_filepath": "a/7.wav", "text": "the truth", "pred_text": "the tooth"}, "the tooth", None),
        ({"pred_text": "a b", "word_confidence": [0.5, 0.7]}, "a b", 0.6),
        (WHISPER, " Two dogs.", 0.8),
        ({"text": "a b", "words": [{"word": "a", "confidence": 1}, {"word": "b", "confidence": 0.5}]}, "a b", 0.75),
        ({"text": "a", "confidence": 0.4, "language": {"score": 2}}, "a", 0.4),
        ({"result": [{"word": "a", "conf": 0.5, "start": 0, "end": 1}], "text": "a"}, "a", 0.5),
        (
            {
                "results": [
                    {"alternatives": [{"transcript": "a", "confidence": 0.9}, {"transcript": "b", "confidence": 0.1}]}
                ]
            },
            "a",
            0.9,
        ),
        ({"text": ""}, "", None),
        (WHISPER_CPP, " Two  dogs.", 0.8),
    ],
    ids=["nemo", "nemo-words", "whisper", "ours", "whole", "vosk", "google", "nothing", "whisper.cpp"],
)
def test_text_and_confidence_of_many_recognisers(value: Any, text: str, confidence: float | None) -> None:
    assert recognised(value) == Recognised(text, confidence if confidence is None else pytest.approx(confidence))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"text": "a", "confidence": 1.2}, "bad-confidence"),
        ({"text": "a", "confidence": True}, "bad-confidence"),
        ({"text": "a", "words": [{"word": "a", "probability": -0.1}]}, "bad-confidence"),
        ({"segments": [{"text": "a", "avg_logprob": 0.5}]}, "bad-confidence"),
        ({"duration": 3}, "no-text"),
        ({"audio_filepath": "1.wav", "text": "the truth", "pred_text": None}, "no-text"),
        ({"chunks": [{"timestamp": [0, 1]}]}, "no-text"),
    ],
)
def test_what_cannot_be_used_has_a_reason(value: Any, reason: str) -> None:
    with pytest.raises(BadRecord) as caught:
        recognised(value)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("value", "name"),
    [({"audio_filepath": "clips/7.flac"}, "7"), ({"key": 7}, "7"), ({"file": "an4.12.wav"}, "an4.12"), ({}, "")],
)
def test_which_utterance_it_is_of(value: Any, name: str) -> None:
    assert utterance_id(named(value)) == name


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Artifact]:
    """Utterances 0, 1 and 2, 3 in two shards; 1 is of recording `one`, 2 and 3 of `two`."""
    names = [["zero", "one"], ["two", "two"]]
    selection = [
        ({"set": "unlabelled"}, {".parquet": pa.table({"key": [2 * s, 2 * s + 1], "name": names[s]})}) for s in (0, 1)
    ]
    shards = [("unlabelled", MADE[:2]), ("labelled", MADE[4:]), ("unlabelled", MADE[2:4])]
    return {
        "features": features_artifact(tmp_path / "features", shards),
        "selection": write_artifact(tmp_path / "selection", selection, {}),
    }


def selected(folder: Path, names: list[list[str]]) -> dict[str, Artifact]:
    """Features and selection of two shards of three utterances each, with the names of their recordings."""
    shards = [("unlabelled", MADE[:3]), ("unlabelled", MADE[3:])]
    tables = [pa.table({"key": [3 * s + n for n in range(3)], "name": names[s]}) for s in (0, 1)]
    selection = [({"set": "unlabelled"}, {".parquet": table}) for table in tables]
    return {
        "features": features_artifact(folder / "features", shards),
        "selection": write_artifact(folder / "selection", selection, {}),
    }


def imported(folder: Path, source: list[Path], inputs: dict[str, Artifact], engine: LocalEngine) -> Artifact:
    output = Artifact(folder / "hypotheses")
    p = ImportHypothesesParams(source=list(map(str, source)), max_bad=1.0)
    run_stage(ImportHypotheses(), p, inputs, output, engine, work=folder / "work")
    return output


def found(artifact: Artifact) -> list[tuple[int, str, float | None]]:
    rows = [row for receipt in artifact.receipts() for row in artifact.read_table(receipt.shard).to_pylist()]
    return [(row["key"], row["text"], row["confidence"]) for row in rows]


def test_a_manifest_and_files_of_utterances(tmp_path: Path, inputs: dict[str, Artifact], engine: LocalEngine) -> None:
    """Numbers are spelled out as in transcripts; records without an utterance are counted."""
    lines: list[Any] = [
        {"audio_filepath": "x/0.flac", "pred_text": "At 5.", "confidence": 0.5},
        {"audio_filepath": "x/0.flac", "pred_text": "the first one counts", "confidence": 0.9},
        {"audio_filepath": "x/two.flac", "pred_text": "of two utterances"},
        {"audio_filepath": "x/77.flac", "pred_text": "of none"},
        {"id": 3, "text": "sure", "confidence": 7},
        {"pred_text": "whose?"},
    ]
    manifest = tmp_path / "manifest.json.gz"
    manifest.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in [*lines, "{"]).encode()))
    whisper = tmp_path / "one.json"
    whisper.write_text(json.dumps(WHISPER, indent=1))
    output = imported(tmp_path, [manifest, whisper], inputs, engine)
    assert found(output) == [(0, "at five", 0.5), (1, "two dogs", pytest.approx(0.8))]
    assert output.manifest.counts.dropped == {"several-utterances": 1, "bad-confidence": 1, "no-id": 1, "bad-json": 1}
    assert output.summary["unknown"] == 3, "77, and the two that name no utterance"
    assert [(receipt.shard, receipt.tags) for receipt in output.receipts()] == [
        (0, {"set": "unlabelled", "model": "recogniser"}),
        (1, {"set": "unlabelled", "model": "recogniser"}),
    ]


def test_without_a_selection_only_keys_are_known(
    tmp_path: Path, inputs: dict[str, Artifact], engine: LocalEngine
) -> None:
    several = tmp_path / "list.json"
    several.write_text(json.dumps([{"file": "one.wav", "text": "a"}, {"file": "2.wav", "text": "b"}]))
    assert found(imported(tmp_path, [several], {"features": inputs["features"]}, engine)) == [(2, "b", None)]


def test_a_source_of_other_utterances_is_an_error_with_a_remedy(
    tmp_path: Path, inputs: dict[str, Artifact], engine: LocalEngine
) -> None:
    (tmp_path / "99.json").write_text('{"text": "a"}')
    with pytest.raises(MegahourError, match=r"(?s)not-recognised 4.*name utterances by their keys"):
        imported(tmp_path, [tmp_path / "99.json"], inputs, engine)
    (tmp_path / "two.json").write_text('{"segments": [{"start": 0, "end": 9, "text": "all of a recording"}]}')
    with pytest.raises(MegahourError, match=r"(?s)several-utterances 2.*is not cut.*export --formats files"):
        imported(tmp_path, [tmp_path / "two.json"], inputs, engine)
    with pytest.raises(MegahourError, match="no file matches"):
        imported(tmp_path, [tmp_path / "nothing*"], inputs, engine)


def test_equal_names_in_several_folders_each_get_their_own_text(tmp_path: Path, engine: LocalEngine) -> None:
    """One shard had the text of the other's utterance, with which only its name without the folder agreed."""
    names = [["ann/u1.wav", "ann/u2.wav", "ann/u3.wav"], ["bob/u1.wav", "bob/u2.wav", "bob/u3.wav"]]
    inputs = selected(tmp_path, names)
    manifest = tmp_path / "manifest.json"
    heard = {"/x/bob/u1.flac": "b one", "/x/ann/u1.flac": "a one", "/x/ann/u2.flac": "a two", "bob/u3": "b three"}
    lines = [json.dumps({"audio_filepath": path, "pred_text": text}) for path, text in heard.items()]
    manifest.write_text("\n".join(lines))
    output = imported(tmp_path, [manifest], inputs, engine)
    assert found(output) == [(0, "a one", None), (1, "a two", None), (3, "b one", None), (5, "b three", None)]
    assert output.manifest.counts.dropped == {"ambiguous-name": 2}, "no text of ann/u3 and bob/u2"


def test_what_a_name_means_in_other_shards_is_known(tmp_path: Path, engine: LocalEngine) -> None:
    """A recording whose utterances lie in two shards, and two recordings of one name, each in its own shard."""
    names = [["ann/long.wav", "ann/u1.wav", "ann/u2.wav"], ["ann/long.wav", "bob/u1.wav", "bob/u3.wav"]]
    inputs = selected(tmp_path, names)
    manifest = tmp_path / "manifest.json"
    heard = {"long": "all of it", "u1": "whose?", "u2": "two", "bob/u3": "three", "u4": "of none"}
    manifest.write_text("\n".join(json.dumps({"audio": path, "text": text}) for path, text in heard.items()))
    output = imported(tmp_path, [manifest], inputs, engine)
    assert found(output) == [(2, "two", None), (5, "three", None)]
    assert output.manifest.counts.dropped == {"several-utterances": 2, "ambiguous-name": 2}
    assert output.summary["unknown"] == 1


def test_folders_that_end_alike_in_several_shards_are_told_apart(tmp_path: Path, engine: LocalEngine) -> None:
    """`c/u1` may be a/c/u1 or b/c/u1; d/u1 ends like no other recording; z/u2 and u2 are whole paths."""
    names = [["a/c/u1.wav", "a/d/u1.wav", "z/u2.wav"], ["b/c/u1.wav", "u2.wav", "y/z/u2.wav"]]
    inputs = selected(tmp_path, names)
    manifest = tmp_path / "manifest.json"
    heard = {"c/u1": "whose?", "d/u1": "the other", "z/u2": "whole", "u2": "bare"}
    manifest.write_text("\n".join(json.dumps({"audio": path, "text": text}) for path, text in heard.items()))
    output = imported(tmp_path, [manifest], inputs, engine)
    assert found(output) == [(1, "the other", None), (2, "whole", None), (4, "bare", None)]
    assert output.manifest.counts.dropped == {"ambiguous-name": 3}
    assert output.summary["unknown"] == 0


@pytest.mark.parametrize(
    ("path", "dropped"),
    [("ann/u1", {"ambiguous-name": 1, "not-recognised": 4}), ("other/u1", {"not-recognised": 4})],
)
def test_other_folders_are_others_where_any_shard_has_the_named_ones(
    tmp_path: Path, engine: LocalEngine, path: str, dropped: dict[str, int]
) -> None:
    """A source that names ann's folder means another u5 by x/u5 than bob's, though bob is in another shard."""
    names = [["ann/u1.wav", "ann/u2.wav", "ann/u3.wav"], ["bob/u4.wav", "bob/u5.wav", "bob/u6.wav"]]
    manifest = tmp_path / "manifest.json"
    heard = {path: "one", "x/u5": "whose?"}
    manifest.write_text("\n".join(json.dumps({"audio": path, "text": text}) for path, text in heard.items()))
    output = imported(tmp_path, [manifest], selected(tmp_path, names), engine)
    assert output.manifest.counts.dropped == dropped


@pytest.mark.parametrize(
    ("own", "records", "expected"),
    [
        ({7: "a/1.wav"}, {"out/1": "x"}, {7: "x"}),  # other folders, none of which is the recordings'
        ({7: "1.wav"}, {"p/1": "x", "q/1": "y"}, {7: "x"}),  # the first one counts
        ({7: "1.wav"}, {"p/1": "x", "1": "y"}, {7: "y"}),  # but for the whole path
        ({7: "a/1.wav"}, {"p/1": "x", "q/1": "y"}, {7: None}),
        ({7: "a/1.wav", 8: "b/1.wav"}, {"1": "x"}, {7: None, 8: None}),
        ({7: "a/c/1.wav", 8: "b/c/1.wav"}, {"z/b/c/1": "x", "z/a/c/1": "y"}, {7: "y", 8: "x"}),
        ({7: "a/c/1.wav", 8: "b/c/1.wav"}, {"c/1": "x"}, {7: None, 8: None}),
        ({1: "a/b"}, {"p/1": "x", "q/1": "y"}, {1: "x"}),  # a key
    ],
)
def test_a_path_finds_its_utterance(own: dict[int, str], records: dict[str, str], expected: dict[int, Any]) -> None:
    several = [set(endings(path)) for path in own.values()]
    alike = max((end.count("/") for end in set.intersection(*several)), default=-1) if len(several) > 1 else -1
    ends = {end for path in own.values() for end in endings(path) if "/" in end}
    by_folder = any(end in ends for path in records for end in endings(path))
    assert matched({"1": own}, {"1": records}, dict.fromkeys(own.values(), alike), by_folder=by_folder) == expected


FASTER_WHISPER = [
    {"id": 1, "seek": 0, "start": 0.0, "end": 3.0, "text": " Two", "avg_logprob": math.log(0.9)},
    {"id": 2, "seek": 0, "start": 3.0, "end": 4.0, "text": " dogs.", "avg_logprob": math.log(0.5)},
]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("without", [(), ("id",)])
def test_a_list_of_segments_is_one_utterance(tmp_path: Path, without: tuple[str, ...], indent: int | None) -> None:
    """As faster-whisper's. The first segment was all of the text, or each was of the utterance of its number."""
    segments = [{name: value for name, value in each.items() if name not in without} for each in FASTER_WHISPER]
    (tmp_path / "7.json").write_text(json.dumps(segments, indent=indent))
    ((name, row),) = [each[:2] for each in ReadHypotheses().records(ANY, str(tmp_path / "7.json"))]
    assert (name, " ".join(row["text"].split())) == ("7", "Two dogs.")
    assert row["confidence"] == pytest.approx(0.8)


def test_a_file_of_several_values_names_none_of_them(tmp_path: Path) -> None:
    """The first of several segments, a line each, was the text of the utterance."""
    lines = [{"start": 0.0, "text": "two"}, {"start": 3.0, "text": "dogs"}, {"id": 7, "text": "a cat"}]
    (tmp_path / "9.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = list(ReadHypotheses().records(ANY, str(tmp_path / "9.jsonl")))
    assert [(each.name, each.row.get("reason")) for each in found] == [("", "no-id"), ("", "no-id"), ("7", None)]
    named = [{**line, "id": name} for line, name in zip(lines, ("a", "b", "c"), strict=True)]
    (tmp_path / "9.json").write_text(json.dumps(named))
    assert [each.name for each in ReadHypotheses().records(ANY, str(tmp_path / "9.json"))] == ["a", "b", "c"]
