"""Stage `language-model`: from text files or transcripts to a model that reads back."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from made_artifacts import write_artifact
from models import SMALL, entries, estimate_text

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.store import Artifact
from megahour.engine.base import TaskFailed
from megahour.engine.local import LocalEngine
from megahour.lm.arpa.model import read_arpa
from megahour.lm.combine_stage import Interpolate
from megahour.lm.params import InterpolateParams, LanguageModelParams
from megahour.lm.stage import LanguageModel
from megahour.runner.runner import run_stage
from megahour.units.params import TokensParams
from megahour.units.pieces import Pieces, learn


def test_files_globs_and_gzip_give_one_model(tmp_path: Path, engine: LocalEngine) -> None:
    (tmp_path / "a.txt").write_text("\n".join(SMALL[:10]) + "\n", "utf-8")
    with gzip.open(tmp_path / "b.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(SMALL[10:]))
    params = LanguageModelParams(source=[f"{tmp_path}/*.txt", f"{tmp_path}/b.txt.gz"])
    output = Artifact(tmp_path / "lm")
    manifest = run_stage(LanguageModel(), params, {}, output, engine, work=tmp_path / "work")
    with output.local(0, ".arpa") as path:
        found = entries(read_arpa(path))
    expected = entries(estimate_text(SMALL).model)
    assert found.keys() == expected.keys()
    assert all(found[gram] == pytest.approx(expected[gram], abs=1e-6) for gram in expected)
    assert output.read_bytes(0, ".vocab.txt").decode().split()[:4] == ["the", "boat", "left", "harbour"]
    assert (manifest.summary["words"], manifest.counts.kept) == (sum(len(line.split()) for line in SMALL), len(SMALL))
    assert manifest.summary["fallbacks"] == {}


def test_changed_text_is_counted_again_and_moved_text_is_not(tmp_path: Path, engine: LocalEngine) -> None:
    text, output = tmp_path / "text.txt", Artifact(tmp_path / "lm")

    def run(path: Path) -> str:
        params = LanguageModelParams(source=[str(path)])
        return run_stage(LanguageModel(), params, {}, output, engine, work=tmp_path / "work").digest

    text.write_text("a b c\nb c\n", "utf-8")
    first = run(text)
    assert run(text) == first
    text.write_text("a b c\nb c c\n", "utf-8")
    assert run(text) != first


def test_raw_text_is_normalised_on_request(tmp_path: Path, engine: LocalEngine) -> None:
    (tmp_path / "raw.txt").write_text("It was 5 o'clock, said Ann.\n", "utf-8")
    output = Artifact(tmp_path / "lm")
    params = LanguageModelParams(source=[f"{tmp_path}/raw.txt"], language="en")
    run_stage(LanguageModel(), params, {}, output, engine, work=tmp_path / "work")
    words = output.read_bytes(0, ".vocab.txt").decode().split()
    assert "five" in words
    assert "5" not in words


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({}, ConfigError, "no text"),
        ({"source": ["TEXT"], "max_words": 3}, TaskFailed, "more than 3 words"),
        ({"source": ["TEXT.gone"]}, ConfigError, "no file matches"),
        ({"source": ["TEXT.latin1"]}, TaskFailed, "not UTF-8"),
        ({"source": ["TEXT.reserved"]}, TaskFailed, "text.txt.reserved:2"),
    ],
)
def test_impossible_jobs_are_refused(
    values: dict[str, object], error: type[Exception], message: str, tmp_path: Path, engine: LocalEngine
) -> None:
    (tmp_path / "text.txt").write_text("a b c\nd e\n", "utf-8")
    (tmp_path / "text.txt.reserved").write_text("a b c\nd <s> e\n", "utf-8")
    (tmp_path / "text.txt.latin1").write_bytes("schön\n".encode("latin1"))
    if "source" in values:
        values = {**values, "source": [str(values["source"][0]).replace("TEXT", f"{tmp_path}/text.txt")]}  # type: ignore[index]
    with pytest.raises(error, match=message):
        run_stage(
            LanguageModel(),
            LanguageModelParams.model_validate(values),
            {},
            Artifact(tmp_path / "lm"),
            engine,
            work=tmp_path / "work",
        )


def test_a_list_of_words_may_have_any_encoding(tmp_path: Path, engine: LocalEngine) -> None:
    (tmp_path / "words").write_bytes(b"boat\ncaf\xe9\n")
    (tmp_path / "text").write_text("the boat\n")
    params = LanguageModelParams(source=[f"{tmp_path}/text"], vocabulary_file=f"{tmp_path}/words", order=2)
    run_stage(LanguageModel(), params, {}, made := Artifact(tmp_path / "lm"), engine, work=tmp_path / "work")
    assert made.read_bytes(0, ".vocab.txt") == b"boat\ncaf\xe9\n"
    copied = {"lm1": made}
    run_stage(
        Interpolate(),
        InterpolateParams(weights=[1.0]),
        copied,
        out := Artifact(tmp_path / "mixed"),
        engine,
        work=tmp_path,
    )
    assert out.read_bytes(0, ".vocab.txt") == b"boat\ncaf\xe9\n"


def test_vocabularies_given_cut_and_limited(tmp_path: Path, engine: LocalEngine) -> None:
    (tmp_path / "text.txt").write_text("\n".join(SMALL) + "\n", "utf-8")
    (tmp_path / "words.txt").write_text("<s> the boat\nzebra\n", "utf-8")

    def unigrams(**values: object) -> set[str]:
        params = LanguageModelParams.model_validate({"source": [f"{tmp_path}/text.txt"], "order": 2, **values})
        output = Artifact(tmp_path / "-".join(values))
        manifest = run_stage(LanguageModel(), params, {}, output, engine, work=tmp_path / "work")
        assert (manifest.summary["unknown_words"] > 0) == ("limit_vocabulary" not in values)
        with output.local(0, ".arpa") as path:
            return {gram[0] for gram in entries(read_arpa(path)) if len(gram) == 1} - {"<s>", "</s>", "<unk>"}

    assert unigrams(vocabulary_file=f"{tmp_path}/words.txt") == {"the", "boat", "zebra"}
    assert unigrams(limit_vocabulary=f"{tmp_path}/words.txt") == {"the", "boat"}
    assert unigrams(vocabulary=2) == {"the", "boat"}
    assert unigrams(min_count=12) == {"the"}
    (tmp_path / "words.txt").write_text("THE\nBOAT\n", "utf-8")
    with pytest.raises(MegahourError, match="every word of the text is unknown"):
        unigrams(vocabulary_file=f"{tmp_path}/words.txt", order=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prune": [1]}, "must begin with 0"),
        ({"prune": [0, 2, 1]}, "not decrease"),
        ({"prune": [0, 0, 0, 1]}, "is for orders 1 to 4, but order is 3"),
        ({"vocabulary": 5, "vocabulary_file": "words"}, "lists the words to keep"),
        ({"smoothing": "stupid", "limit_vocabulary": "words"}, "takes vocabulary_file"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LanguageModelParams.model_validate(values)


@pytest.mark.parametrize("pieces", ["", "rules", "list"])
def test_a_model_of_tokens_is_made_of_spelled_text(tmp_path: Path, engine: LocalEngine, pieces: str) -> None:
    """The space of characters is written as sentencepiece writes it; what cannot be spelled is counted."""
    lines = ["the cat", "a  hat", "that hat", "Zoë"]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n", "utf-8")
    if pieces:
        learnt = learn(TokensParams(size=14, method="bpe"), lines[:3], where="test")
        spell = Pieces(learnt, where="test")
        listed = {"tokens": list(spell.tokens), "marks": True}
        files = {".spm.model": learnt} if pieces == "rules" else {".model.json": listed}
        tokens = write_artifact(tmp_path / "tokens", [({}, files)], {})
        expected = [
            " ".join(spell.tokens[token] for token in spell.encode(" ".join(line.split()))) for line in lines[:3]
        ]
    else:
        tokens = write_artifact(tmp_path / "tokens", [({}, {".model.json": {"tokens": ["<blank>", *" acehtz"]}})], {})
        expected = [" ".join(" ".join(line.split()).replace(" ", "\u2581")) for line in lines[:3]]
    output = Artifact(tmp_path / "lm")
    params = LanguageModelParams(source=[f"{tmp_path}/text.txt"], order=2)
    manifest = run_stage(LanguageModel(), params, {"tokens": tokens}, output, engine, work=tmp_path / "work")
    with output.local(0, ".arpa") as path:
        found, wanted = entries(read_arpa(path)), entries(estimate_text(expected, order=2).model)
    assert found.keys() == wanted.keys()
    assert all(found[gram] == pytest.approx(wanted[gram], abs=1e-6) for gram in wanted)
    assert manifest.counts.dropped == {"not-spellable": 1}
