"""A model with a tag as input, such as the language, which decides how the same sounds are spelled."""

from __future__ import annotations

import json
from pathlib import Path
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
from megahour.models.configuration import tag_number
from megahour.models.inference import Model, load, restore
from megahour.models.streaming import encoder_of
from megahour.score.references import read_references
from megahour.score.tags import tag_scores
from megahour.train.session import train

LETTERS = {"de": "aß", "ru": "дж"}
OPTIONS = {"tag": "language", "tag_told": 0.5, "join": 16, "attention": 0.5}


def spoken(n: int, first_key: int = 0) -> list[Utterance]:
    """Two sounds that each language writes with its own letters; the audio does not reveal the language."""
    rng, made = np.random.default_rng(first_key), []
    for i in range(n):
        language = ("de", "ru")[i % 2]
        sounds = rng.integers(0, 2, 3)
        features = rng.normal(0, 0.3, (36, MELS))
        for place, sound in enumerate(sounds):
            features[12 * place : 12 * place + 8, sound] += 3.0
        text = "".join(LETTERS[language][sound] for sound in sounds)
        about = {"key": first_key + i, "speaker": f"{language}{i % 4}", "frames": 36, "condition": "clean"}
        made.append({**about, "text": text, "features": features.astype(np.float16)})
    return made


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    folder, made = tmp_path_factory.mktemp("data"), {"labelled": spoken(40), "test": spoken(8, 100)}
    selection = []
    for name, some in made.items():
        table = pa.table({"key": [each["key"] for each in some], "language": [each["speaker"][:2] for each in some]})
        selection.append(({"set": name}, {".parquet": table}))
    return {
        "features": features_artifact(folder / "features", list(made.items())),
        "selection": write_artifact(folder / "selection", selection, {}),
    }


def settings(**values: Any) -> TrainParams:
    small = {"kind": "tdnn", "criterion": "ctc", "layers": 2, "hidden": 24, "epochs": 0, "whole_epochs": 20}
    run = {"threads": 1, "learning_rate": 0.01, "rows": 2, "batch_frames": 40, "held_out": 0.0}
    return TrainParams(**{**small, **run, "criterion_options": OPTIONS, **values})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Artifact]) -> Artifact:
    folder = tmp_path_factory.mktemp("trained")
    with ShardWriter(Artifact(folder / "model"), 0, "made") as out:
        train(settings(), inputs, out, Context(work=folder / "work"))
        receipt = out.commit()
    files = {suffix: Artifact(folder / "model").read_bytes(0, suffix) for suffix in receipt.files}
    return write_artifact(folder / "finished", [({}, files)], {})


def decoded(folder: Path, inputs: dict[str, Artifact], model: Artifact, **values: Any) -> Artifact:
    """Of the test set, with its summary."""
    given, p = {**inputs, "model": model}, DecodeParams(**values)
    Decode().plan(p, {"features": inputs["features"], "model": model})
    with ShardWriter(Artifact(folder / "alone"), 0, "alone") as out:
        Decode().run(p, given, Task({"shard": 1}), out, Context(work=folder))
        receipt = out.commit()
    table = Artifact(folder / "alone").read_table(0)
    return write_artifact(
        folder / "heard", [({"set": "test"}, {".parquet": table})], Decode().finish(p, given, [receipt])
    )


@pytest.mark.parametrize("attention", [0.0, 1.0])
def test_the_given_tag_decides_how_sounds_are_written(
    tmp_path: Path, inputs: dict[str, Artifact], model: Artifact, attention: float
) -> None:
    """By CTC, and reranked by the attention decoder: the same sounds in the letters of either language."""
    wanted = ["".join("01"["aßдж".index(letter) % 2] for letter in each["text"]) for each in spoken(8, 100)]
    for language, letters in LETTERS.items():
        heard = decoded(tmp_path / language, inputs, model, tell=language, beams=4, attention_weight=attention)
        texts = heard.read_table(0)["text"].to_pylist()
        right = [
            text == "".join(letters[int(sound)] for sound in sounds) for text, sounds in zip(texts, wanted, strict=True)
        ]
        assert sum(right) >= 7


def test_a_model_can_use_the_tag_that_it_recognises(inputs: dict[str, Artifact], model: Artifact) -> None:
    """Each utterance of a batch uses its most likely tag, with the same result as if given that tag."""
    features = np.random.default_rng(4).normal(0, 1, (6, 12, 3 * MELS)).astype(np.float32)
    lengths = np.array([12, 12, 9, 12, 7, 12])
    own = load(model.url, tell="recognised")
    assert isinstance(own, Model)
    with torch.no_grad():  # the model cannot hear which language it is: of half of them it shall say each
        encoded = own.module.encode(torch.from_numpy(features), torch.from_numpy(lengths))
        logits = own.module.tagged(encoded, torch.from_numpy(lengths))
        own.module.tagger.bias[0] += (logits[:, 1] - logits[:, 0]).median()
    outputs, _ = own(features, lengths)
    tags = outputs["tags"][:, 0].argmax(1)
    assert set(tags.tolist()) == {0, 1}
    told = [load(model.url, tell=name)(features, lengths)[0]["log_probs"] for name in ("de", "ru")]
    for row, tag in enumerate(tags.tolist()):
        n = lengths[row]
        np.testing.assert_allclose(outputs["log_probs"][row, :n], told[tag][row, :n], atol=1e-4)
        assert np.abs(told[0][row, :n] - told[1][row, :n]).max() > 0.1
    assert encoder_of(own.module) is None
    with pytest.raises(ConfigError, match="cannot take the tag 'recognised'"):
        tag_number({"tags": ["de", "ru"]}, "recognised", where="here")


def test_a_model_without_a_given_tag_is_the_stored_one(model: Artifact) -> None:
    """The tagger's output does not depend on the given tag; the decoder's start and the frames do."""
    config, data = model.read_json(0, ".model.json"), model.read_bytes(0, ".safetensors")
    plain, told = restore(config, data, where="here").eval(), restore(config, data, where="here", tell="ru").eval()
    features, lengths = (
        torch.randn(2, 12, config["inputs"], generator=torch.Generator().manual_seed(1)),
        torch.tensor([12, 9]),
    )
    with torch.no_grad():
        before, after = (module.encode(features, lengths) for module in (plain, told))
        prompt = plain.tag_prompt.weight[1]
        assert prompt.abs().max() > 0.01
        assert torch.allclose(after, before + prompt, atol=1e-5)
        assert torch.allclose(told.tagged(after, lengths), plain.tagged(before, lengths), atol=1e-4)
        tokens, ends = torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1])
        begun = plain.tag_start.weight[1].expand(2, -1)
        wanted = plain.decoder.log_likelihoods(tokens, ends, after, lengths, first=begun)
        assert torch.allclose(told.decoder.log_likelihoods(tokens, ends, after, lengths), wanted, atol=1e-4)
        assert not torch.allclose(plain.decoder.log_likelihoods(tokens, ends, after, lengths), wanted, atol=1e-2)


def test_a_share_of_the_utterances_is_trained_with_the_given_tag() -> None:
    """All, by a share of 1; none of unknown tags, and none without a generator, as held-out data are scored."""
    sizes = {"kind": "lstm", "inputs": 3, "outputs": 4, "layers": 1, "units": 8, "join": 6, "context": 2}
    config = {**sizes, "decoder_layers": 1, "tags": ["a", "b"], "tag_told": 1.0}
    config["heads"] = {"transducer": 1.0, "ctc": 0.3, "attention": 0.5}
    module = build(config)
    for table in (module.tag_prompt, module.tag_start):
        assert not table.weight.any()
        torch.nn.init.normal_(table.weight, generator=torch.Generator().manual_seed(2))
    features, lengths = torch.randn(3, 9, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([9, 5, 7])
    targets = {
        "tokens": torch.tensor([[1, 2], [3, 0], [1, 1]]),
        "token_lengths": torch.tensor([2, 1, 2]),
        "lengths": lengths,
    }
    tags = torch.tensor([1, 0, -1])
    drawn = torch.Generator().manual_seed(3)
    loss = module(features, lengths, drawn, {**targets, "tags": tags})
    for row, tag in enumerate(tags.tolist()):
        told = build(config)
        told.load_state_dict(module.state_dict())
        if tag >= 0:
            told.tell(tag)
        assert torch.allclose(told(features, lengths, None, {**targets, "tags": tags})[row], loss[row], atol=1e-5)
    assert module.draws
    module.tag_told = 1e-9
    few = module(features, lengths, drawn, {**targets, "tags": tags})
    assert torch.equal(few, module(features, lengths, None, {**targets, "tags": tags}))


def test_scores_say_how_often_the_language_is_right(
    tmp_path: Path, inputs: dict[str, Artifact], model: Artifact
) -> None:
    """Of utterances whose language is known; what was not decoded counts as wrong."""
    heard = decoded(tmp_path, inputs, model)
    assert heard.summary["tag"] == "language"
    said = dict(zip(*(heard.read_table(0)[name].to_pylist() for name in ("key", "tag")), strict=True))
    references = read_references(inputs["features"], ".arrow", ["test"])
    right = sum(said[each["key"]] == each["speaker"][:2] for each in spoken(8, 100))
    found = tag_scores(references, inputs["selection"], {"student": heard})["student"]
    assert (found["column"], found["utterances"], found["right"]) == ("language", 8, right)
    assert sum(n for *_, n in found["heard"]) == 8
    assert found["accuracy"] == pytest.approx(right / 8)
    assert tag_scores(references, None, {"student": heard}) == {}
    shorter = heard.read_table(0).slice(2)
    part = write_artifact(tmp_path / "part", [({"set": "test"}, {".parquet": shorter})], {"tag": "language"})
    lacking = tag_scores(references, inputs["selection"], {"student": part})["student"]
    assert lacking["utterances"] == 8
    assert [entry for entry in lacking["heard"] if entry[1] == ""] == [["de", "", 1], ["ru", "", 1]]


def test_tags_that_the_model_was_not_trained_with_are_refused(inputs: dict[str, Artifact], model: Artifact) -> None:
    with pytest.raises(ConfigError, match="cannot take the tag 'fr'") as error:
        Decode().plan(DecodeParams(tell="fr"), {"features": inputs["features"], "model": model})
    assert "(language): de, ru" in error.value.remedy
    with pytest.raises(ConfigError, match="cannot take the tag 'de'") as error:
        tag_number({"tags": ["de", "ru"]}, "de", where="here")
    assert "tag_told" in error.value.remedy
    with pytest.raises(ConfigError, match="tag_told needs a tag"):
        _ = settings(criterion_options={"tag_told": 0.5}).goal
    with pytest.raises(ConfigError, match="without tags"):
        build({"kind": "tdnn", "inputs": 3, "outputs": 4, "layers": 1, "units": 8, "join": 6, "context": 2,
               "decoder_layers": 1, "heads": {"ctc": 1.0}, "tag_told": 0.5})  # fmt: skip


def test_vectors_of_other_tags_begin_new(inputs: dict[str, Artifact], model: Artifact) -> None:
    by_speaker = settings(criterion_options={**OPTIONS, "tag": "speaker"})
    begun = prepare(by_speaker, {"features": inputs["features"], "initial": model}).module.state_dict()
    assert not begun["tag_prompt.weight"].any()
    same = prepare(settings(), {**inputs, "initial": model}).module.state_dict()
    assert same["tag_prompt.weight"].any()
    assert json.loads(model.read_bytes(0, ".model.json"))["tag_told"] == 0.5


@pytest.mark.parametrize(("share", "tell", "warns"), [(1.0, "", True), (1.0, "de", False), (0.5, "", False)])
def test_a_model_that_was_always_told_warns_if_it_is_told_nothing(
    share: float, tell: str, warns: bool, inputs: dict[str, Artifact], model: Artifact, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It was recognised, and exported, in a way that its training never saw, without a word."""
    files = {suffix: model.read_bytes(0, suffix) for suffix in (".model.json", ".safetensors")}
    files[".model.json"] = json.dumps({**json.loads(files[".model.json"]), "tag_told": share}).encode()
    told = write_artifact(tmp_path / "model", [({}, files)], {}, stage="train")
    Decode().plan(DecodeParams(tell=tell), {"features": inputs["features"], "model": told})
    assert ("it was always given the language" in caplog.text) == warns
    assert ("--tell takes one of de, ru, or `recognised`" in caplog.text) == warns
