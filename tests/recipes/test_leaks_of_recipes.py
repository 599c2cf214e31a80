"""A recipe with several selections: no voice of a test set trains a model that the test scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from made_utterances import utterance, write_utterances

from megahour.core.errors import StageError
from megahour.recipes.leaks import kept_apart
from megahour.recipes.recipe import Recipe, load_recipe
from megahour.recipes.run import execute
from megahour.runner.monitor import Monitor

TALK = ("ann", 1), ("bob", 2), ("cy", 3)
SETS = [{"name": "test", "named": ["ann"]}, {"name": "labelled", "named": ["bob"]}, {"name": "unlabelled"}]


def recipe(
    folder: Path,
    prompts: tuple[tuple[str, int], ...],
    *,
    sets: list[dict[str, Any]] | None = None,
    known_voices: bool = False,
    **aligner: Any,
) -> Recipe:
    """Long recordings are aligned by a model that learns from prompts; nothing after the selections has to run."""
    for name, rows in (("talk", TALK), ("read", prompts)):
        made = [utterance(f"{name}{n}", who, recording=n, name=f"{n}.wav") for who, n in rows]
        write_utterances(folder / name, [made])
    learns = {"stage": "train", "criterion": "ctc", "kind": "tdnn", "sets": ["prompts"], **aligner}
    decoded = {"stage": "decode", "inputs": {"features": "talk-features", "model": "aligner", "graph": "graph"}}
    steps = {
        "prompts": {
            "stage": "select",
            "inputs": {"utterances": f"{folder}/read"},
            "sets": sets or [{"name": "prompts"}],
        },
        "talk": {"stage": "select", "inputs": {"utterances": f"{folder}/talk"}, "sets": SETS},
        "prompts-features": {"stage": "features", "inputs": {"selection": "prompts", "utterances": f"{folder}/read"}},
        "talk-features": {"stage": "features", "inputs": {"selection": "talk", "utterances": f"{folder}/talk"}},
        "aligner": {"inputs": {"features": "prompts-features"}, **learns},
        "lm": {"stage": "language-model", "inputs": {"selection": "talk"}, "sets": ["labelled"]},
        "lexicon": {"inputs": {"lm": "lm"}},
        "graph": {"inputs": {"lm": "lm", "lexicon": "lexicon", "model": "aligner"}, "topology": "ctc"},
        "baseline": decoded,
        "student": decoded,
        "score": {"inputs": {"baseline": "baseline", "student": "student", "selection": "talk"}},
    }
    steps["score"] |= {"known_voices": True} if known_voices else {}
    path = folder / "two.yaml"
    path.write_text(yaml.safe_dump({"run": f"{folder}/run", "engine": {"workers": 1}, "steps": steps}, sort_keys=False))
    return load_recipe(path)


def selections(made: Recipe) -> list[str]:
    """Run both selections; the steps that ran without an error."""
    return [done.step.name for _, done in zip(range(2), execute(made, lambda step: Monitor()), strict=False)]


def test_a_test_speaker_in_the_prompts_of_the_aligner_is_refused(tmp_path: Path) -> None:
    made = recipe(tmp_path, (("Ann", 11), ("dora", 12)))
    with pytest.raises(StageError) as error:
        selections(made)
    text = str(error.value)
    assert "ann: in sets ['test'] of talk, which score scores, and in sets ['prompts'] of prompts" in text
    assert "which aligner learns from" in text
    assert "let the first set of prompts name them" in text
    with pytest.raises(StageError, match="ann"):
        selections(made)  # the selections are there now, the leak still is


def test_a_test_recording_under_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="dora: in sets"):
        selections(recipe(tmp_path, (("dora", 1),)))


def test_other_voices_and_sets_that_teach_nobody_pass(tmp_path: Path) -> None:
    assert selections(recipe(tmp_path / "a", (("bob", 2), ("dora", 12)))) == ["prompts", "talk"]
    aside = [{"name": "aside", "named": ["ann"]}, {"name": "prompts"}]
    assert selections(recipe(tmp_path / "b", (("ann", 11), ("dora", 12)), sets=aside)) == ["prompts", "talk"]


@pytest.mark.parametrize(("role", "criterion"), [("pseudo_labels", "ctc"), ("targets", "ce")])
def test_sets_that_a_recogniser_or_a_teacher_labels_are_learnt_from_too(
    tmp_path: Path, role: str, criterion: str
) -> None:
    given = {"features": "prompts-features", role: f"{tmp_path}/labels"}
    given |= {"units": f"{tmp_path}/units"} if criterion == "ce" else {}
    made = recipe(tmp_path, TALK, inputs=given, criterion=criterion, unlabelled_sets=["other"])
    assert [pair.sets for pair in kept_apart(made) if pair.learner.name == "aligner"] == [("prompts", "other")]


def test_voices_that_are_meant_to_be_known_pass_but_not_their_recordings(tmp_path: Path) -> None:
    heard = (("ann", 11), ("dora", 12))
    assert selections(recipe(tmp_path / "a", heard, known_voices=True)) == ["prompts", "talk"]
    with pytest.raises(StageError, match="ann: in sets"):
        selections(recipe(tmp_path / "b", (("ann", 1), ("dora", 12)), known_voices=True))


def test_the_shipped_recipes_say_what_they_keep_apart(tmp_path: Path) -> None:
    pairs = {(pair.tested.name, pair.taught.name, pair.sets) for pair in kept_apart(load_recipe("demo"))}
    assert pairs == {("selection", "prompts", ("prompts",))}
