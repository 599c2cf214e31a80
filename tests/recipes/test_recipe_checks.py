"""Each stage's checks of parameters and inputs run for every step before the recipe starts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from megahour.core.errors import ConfigError
from megahour.recipes.recipe import load_recipe, resolve

FEATURES, LEXICON = "elsewhere/features", "elsewhere/lexicon"
HYPOTHESES = {"baseline": "elsewhere/a", "student": "elsewhere/b"}
TRUTH = ("raw", "recordings", "utterances")

# A step's stage, inputs and parameters, and the expected message.
STEPS: dict[str, tuple[str, dict[str, str], dict[str, object], str]] = {
    "no source": ("ingest", {}, {}, "step made: no `source` and no input `raw`"),
    "two sources": ("ingest", {"raw": "elsewhere/raw"}, {"source": "talks"}, "both `source` and the input `raw`"),
    "no licence": ("ingest", {}, {"source": "talks", "licences": ["cc by"]}, 'licences: "cc by" is not an SPDX'),
    "no network": ("ingest", {}, {"source": "talks", "allow_private": ["intranet"]}, '"intranet" is not a network'),
    "no pattern": ("ingest", {}, {"source": "talks", "speaker_pattern": "("}, "is not a regular expression"),
    "no group": ("ingest", {}, {"source": "talks", "speaker_pattern": "a"}, '"a" has 0 groups'),
    "no language": ("ingest", {}, {"source": "talks", "text_languages": ["xx"]}, "xx: not known to the language model"),
    "imported licence": (
        "import", {}, {"format": "kaldi", "source": "data", "licences": ["cc by"]}, '"cc by" is not an SPDX',
    ),
    "no clips": ("compose", {}, {}, "clips must come from either `source` or"),
    "clips twice": ("compose", {"clips": "elsewhere/clips"}, {"source": "clips"}, "either `source` or"),
    "passages": (
        "compose", {}, {"source": "clips", "passages": 2, "passage_languages": ["fr"]}, "passages must come from",
    ),
    "too few sentences": ("sentences", {}, {"count": 3, "shards": 4}, "3 sentences are too few for 4 shards"),
    "no words": ("lexicon", {}, {}, "no words"),
    "no dictionary": ("lexicon", {}, {"source": "dictionary"}, "source is dictionary, but `dictionary` is not set"),
    "no text": ("language-model", {}, {}, "step made: no text"),
    "no text on a cluster": ("lm-words", {}, {}, "step made: no text"),
    "no cepstra": ("import-features", {}, {"train": "a.transcription"}, "no source"),
    "no transcriptions": ("import-features", {}, {"source": "an4"}, "no transcriptions"),
    "no units": ("graph", {"lm": "elsewhere/lm", "lexicon": LEXICON}, {}, "topology hmm needs the input `units`"),
    "no model": (
        "graph", {"lm": "elsewhere/lm", "lexicon": LEXICON}, {"topology": "ctc"}, "model is made by train or",
    ),
    "no labels": ("train", {"features": FEATURES}, {}, "criterion ce needs `units`"),
    "senones for ctc": (
        "train", {"features": FEATURES, "targets": "elsewhere/t"}, {"criterion": "ctc"}, "criterion ctc cannot use",
    ),
    "no references": ("score", HYPOTHESES, {}, "step made: no references"),
    "half a truth": (
        "score", {**HYPOTHESES, "features": FEATURES, "raw": "elsewhere/raw"}, {}, "the truth needs the inputs",
    ),
    "nothing to report": ("report", {}, {}, "a report about nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("stage", "inputs", "values", "told"), STEPS.values(), ids=STEPS)
def test_a_step_that_cannot_run_is_refused_with_the_recipe(
    tmp_path: Path, stage: str, inputs: dict[str, str], values: dict[str, object], told: str
) -> None:
    """It comes after a step that would take long."""
    slow = {"stage": "synthesise", "hours": 100}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"steps": {"first": slow, "made": {"stage": stage, "inputs": inputs, **values}}}))
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(f"{path}: step made")
    assert told in str(caught.value)


def test_what_goes_together_is_taken() -> None:
    steps = {
        "ctc": {"stage": "train", "criterion": "ctc", "inputs": {"features": FEATURES}},
        "senones": {"stage": "train", "inputs": {"features": FEATURES, "units": "elsewhere/u", "targets": "else/t"}},
        "words": {"stage": "lexicon", "source": "dictionary", "dictionary": "cmudict"},
        "letters": {"stage": "lexicon", "inputs": {"lm": "elsewhere/lm"}},
        "graph": {"inputs": {"lm": "elsewhere/lm", "lexicon": "letters", "model": "ctc"}, "topology": "ctc"},
        "truth": {"stage": "score", "inputs": {**HYPOTHESES, "selection": "a/s", **dict.fromkeys(TRUTH, "a/x")}},
        "text": {"stage": "language-model", "source": ["text.txt"]},
        "ingest": {"source": "/nowhere", "speaker_pattern": "_([a-z]+)_"},  # to ask reads nothing
    }
    assert len(resolve({"steps": steps}, name="good", where="good.yaml").steps) == len(steps)


@pytest.mark.parametrize(
    ("keep", "audio", "told"),
    [
        ({}, True, "step model, input features: input audio needs features with means"),
        ({"keep": "means"}, False, "step model, input features: the artifact holds means, not features"),
        ({"keep": "both"}, True, ""),
        ({"keep": "means"}, True, ""),
        ({}, False, ""),
    ],
)
def test_a_training_from_audio_needs_what_the_features_step_keeps(keep: dict[str, str], audio: bool, told: str) -> None:
    """The features of a large corpus take hours, after which the training would say so."""
    sound = {"utterances": "elsewhere/utterances", "selection": "elsewhere/selection"}
    inputs = {"features": "features"} | ({"audio": "elsewhere/utterances"} if audio else {})
    steps = {"features": {"inputs": sound, **keep}, "model": {"stage": "train", "criterion": "ctc", "inputs": inputs}}
    with pytest.raises(ConfigError, match=told) if told else nullcontext():
        resolve({"steps": steps}, name="made", where="made.yaml")
