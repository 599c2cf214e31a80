"""A token model that also predicts a tag of the utterance, such as its language, from the same encoder."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from made_artifacts import MELS, Utterance, features_artifact, write_artifact

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Task
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.decode.params import DecodeParams
from megahour.decode.stage import Decode
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.models.build import build
from megahour.train.session import train
from megahour.transcribe.formats import as_dict
from megahour.transcribe.session import Transcription, _tagged

LETTERS = {"de": "aßü", "ru": "дж"}
SMALL = {"kind": "tdnn", "criterion": "ctc", "layers": 2, "hidden": 24, "epochs": 0, "whole_epochs": 20, "threads": 1}
UNKNOWN = (2, 6)  # of which 6 is held out by the seed
TAG = {"tag": "language", "join": 16}


def spoken(n: int, first_key: int = 0) -> list[Utterance]:
    """German and Russian in turn, of two speakers each: letters are loud mels, 12 frames each."""
    rng, made = np.random.default_rng(first_key), []
    for i in range(n):
        language = ("de", "ru")[i % 2]
        letters = rng.integers(0, len(LETTERS[language]), 3)
        features = rng.normal(0, 0.3, (36, MELS))
        for place, letter in enumerate(letters):
            features[12 * place : 12 * place + 8, letter + i % 2] += 3.0
        features[:, MELS - 1] += 2.0 * (i % 2)
        text = "".join(LETTERS[language][letter] for letter in letters)
        about = {"key": first_key + i, "speaker": f"{language}{i % 4}", "frames": 36, "condition": "clean"}
        made.append({**about, "text": text, "features": features.astype(np.float16)})
    return made


def inputs_of(folder: Path, made: dict[str, list[Utterance]]) -> dict[str, Artifact]:
    """Features, and a selection with the languages, a shard for each set; some utterances have no language."""
    selection = []
    for name, some in made.items():
        languages = ["" if each["key"] in UNKNOWN else each["speaker"][:2] for each in some]
        table = pa.table({"key": [each["key"] for each in some], "language": languages})
        selection.append(({"set": name}, {".parquet": table}))
    return {
        "features": features_artifact(folder / "features", list(made.items())),
        "selection": write_artifact(folder / "selection", selection, {}),
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return inputs_of(tmp_path_factory.mktemp("data"), {"labelled": spoken(40), "test": spoken(6, 100)})


def settings(**values: Any) -> TrainParams:
    return TrainParams(**{**SMALL, "criterion_options": TAG, "held_out": 0.2, **values})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Artifact]) -> Artifact:
    folder = tmp_path_factory.mktemp("trained")
    with ShardWriter(Artifact(folder / "model"), 0, "made") as out:
        p = settings(held_out_by="utterance", learning_rate=0.01, rows=2, batch_frames=40)
        train(p, inputs, out, Context(work=folder / "work"))
        receipt = out.commit()
    return write_artifact(
        folder / "finished",
        [({}, {suffix: Artifact(folder / "model").read_bytes(0, suffix) for suffix in receipt.files})],
        {},
    )


def test_one_encoder_learns_letters_of_several_languages_and_which_language_it_is(model: Artifact) -> None:
    config = model.read_json(0, ".model.json")
    assert config["tokens"] == ["<blank>", *sorted("aßüдж")]
    assert (config["tag"], config["tags"], config["heads"]) == ("language", ["de", "ru"], {"ctc": 1.0})
    last = json.loads(model.read_bytes(0, ".curves.jsonl").splitlines()[-1])
    assert last["held_out_tag_accuracy"] == 1.0
    assert last["held_out_cer"] < 0.2


def test_decode_writes_the_tag_with_its_probability(
    tmp_path: Path, inputs: dict[str, Artifact], model: Artifact
) -> None:
    output = Artifact(tmp_path / "hypotheses")
    with ShardWriter(output, 0, "alone") as out:
        Decode().run(
            DecodeParams(confidence=True), {**inputs, "model": model}, Task({"shard": 1}), out, Context(work=tmp_path)
        )
        out.commit()
    rows = output.read_table(0).to_pylist()
    assert [row["tag"] for row in rows] == ["de", "ru"] * 3
    assert all(0.6 < row["tag_probability"] <= 1.0 for row in rows)
    assert list(rows[0]) == ["key", "model", "text", "score", "frames", "confidence", "tag", "tag_probability"]


def test_a_transcript_says_the_tag_of_its_pieces_by_their_length() -> None:
    recogniser = SimpleNamespace(tag="language", tags=("de", "ru"))
    heard = [(300, np.array([0.9, 0.1], np.float32)), (100, np.array([0.1, 0.9], np.float32))]
    found = _tagged(recogniser, Transcription("a.wav", "model"), heard)  # type: ignore[arg-type]
    assert found.tag == ("language", "de", 0.7)
    told = as_dict(found)
    assert (told["language"], told["language_probability"]) == ("de", 0.7)
    assert _tagged(recogniser, Transcription("a.wav", "model"), []).tag is None  # type: ignore[arg-type]


def test_the_loss_is_that_of_the_tokens_and_of_the_tag() -> None:
    """Of the mean of an utterance's own frames; what is -1 does not count."""
    sizes = {"kind": "lstm", "inputs": 3, "outputs": 4, "layers": 1, "units": 8, "join": 6, "context": 2}
    config = {**sizes, "decoder_layers": 1, "heads": {"ctc": 1.0}}
    plain, module = build(config), build({**config, "tags": ["a", "b", "c"], "tag_weight": 0.7})
    module.load_state_dict({**module.state_dict(), **plain.state_dict()})
    features, lengths = torch.randn(3, 9, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([9, 5, 7])
    targets = {
        "tokens": torch.tensor([[1, 2], [3, 0], [1, 1]]),
        "token_lengths": torch.tensor([2, 1, 2]),
        "lengths": lengths,
    }
    tags = torch.tensor([2, 0, -1])
    loss = module(features, lengths, None, {**targets, "tags": tags})
    encoded = module.encode(features, lengths)
    own = [module.tagger(encoded[i, :n].mean(0)).log_softmax(0) for i, n in enumerate(lengths.tolist())]
    tagged = torch.stack([-own[0][2], -own[1][0], torch.zeros(())])
    assert torch.allclose(loss, plain(features, lengths, None, targets) + 0.7 * tagged, atol=1e-5)


def test_what_is_no_tag_of_the_training_counts_as_unknown(inputs: dict[str, Artifact]) -> None:
    job = prepare(settings(held_out=0.0), inputs)
    tags: dict[int, int] = {}
    for number in range(len(job.loaders["labelled"].plan(0))):
        batch = job.loaders["labelled"].batch(0, number, offset=0)
        tags |= dict(zip(batch.keys, batch.targets["tags"].tolist(), strict=True))
    assert tags == {key: -1 if key in UNKNOWN else key % 2 for key in range(40)}


def test_a_layer_for_tags_goes_on_where_they_are_the_same(
    tmp_path: Path, inputs: dict[str, Artifact], model: Artifact
) -> None:
    """The initial model's layer is not used for two other tags."""
    made = {"labelled": [{**each, "speaker": f"x{each['speaker']}"} for each in spoken(40)]}
    for own, same in [(inputs, True), (inputs_of(tmp_path, made), False)]:
        begun = prepare(settings(held_out=0.0), {**own, "initial": model}).module.state_dict()
        fresh = prepare(settings(held_out=0.0), own).module.state_dict()
        assert torch.equal(begun["tagger.weight"], fresh["tagger.weight"]) != same
        assert not torch.equal(begun["ctc.weight"], fresh["ctc.weight"])


def test_a_tag_of_the_features_needs_no_selection(inputs: dict[str, Artifact]) -> None:
    by_speaker = settings(criterion_options={"tag": "speaker"}, held_out=0.0)
    config = prepare(by_speaker, {"features": inputs["features"]}).config
    assert config["tags"] == ["de0", "de2", "ru1", "ru3"]


@pytest.mark.parametrize(
    ("options", "drop", "message"),
    [
        (TAG, "selection", "tag language needs the input `selection`"),
        ({}, "", "`selection` is used only for a tag"),
        ({"tag": "speaker"}, "", "tag speaker is taken from the features"),
        ({"tag": "condition"}, "selection", "1 values of condition, of 2 to 1000"),
    ],
)
def test_what_does_not_fit_is_refused(inputs: dict[str, Artifact], options: Any, drop: str, message: str) -> None:
    given = {role: artifact for role, artifact in inputs.items() if role != drop}
    with pytest.raises(ConfigError, match=message):
        prepare(settings(criterion_options=options), given)


def test_models_without_tags_are_what_they_were(inputs: dict[str, Artifact]) -> None:
    """Neither their configuration nor the job's fingerprint mentions tags."""
    p = settings(criterion_options={"attention": 0.3})
    config = prepare(p, {"features": inputs["features"]}).config
    assert not [name for name in config if name.startswith("tag")]
    assert p.identity()["criterion_options"] == {"attention": 0.3}
