"""Finds the parts of a recogniser: a model, optionally with a graph, units and lexicon, by address or from a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import RESOLVED, Artifact
from megahour.decode.match import with_tuned_scale
from megahour.decode.params import DecodeParams
from megahour.transcribe.bundle import PRECISIONS, Bundle


@dataclass(frozen=True)
class RecogniserParts:
    """Addresses of artifacts, and search parameters.

    graph: decoding graph with words and their language model. Without one the model must output tokens (CTC or
    transducer), from which words are spelled. lm, low_order_lm: language models for these, as in stage `decode`. units,
    lexicon: for senones; without them words have no times. model_name: name to show. precision: if `model` is the
    address of an exported bundle; "": an artifact.
    """

    model: str
    graph: str = ""
    units: str = ""
    lexicon: str = ""
    model_name: str = ""
    search: DecodeParams = field(default_factory=lambda: DecodeParams.model_validate({}))
    precision: str = ""
    lm: str = ""
    low_order_lm: str = ""

    def models(self) -> dict[str, Artifact]:
        """The given language models, by role."""
        given = {"lm": self.lm, "low_order_lm": self.low_order_lm}
        return {role: Artifact(address) for role, address in given.items() if address}


def parts_of(address: str, step: str = "", *, recipe: str = "") -> RecogniserParts:
    """The parts at an address: a bundle, a *model* artifact, or a run's folder.

    step: of a run, the name of a `decode` step, or of a `train` step with criterion ctc or transducer; "": the last
    `decode` step without `scales` or, if there is none, the last token model. Of a bundle: a precision; "": fp32.
    recipe: that made the run, if known, for remedies.

    Raises
    ------
    ConfigError: there is no recogniser; for a run the message lists usable steps. StoreError: the bundle is damaged.
    """
    home = Artifact(address)
    if Bundle.at(address):
        name = Bundle.open(home.url).manifest.name
        return RecogniserParts(home.url, model_name=name, precision=step or PRECISIONS[0])
    if home.complete:
        if home.manifest.stage not in ("train", "import-aligner"):
            message = f"an artifact of stage {home.manifest.stage}, not a model"
            raise ConfigError(message, where=home.url, remedy="give a model, or the folder of a run")
        if step:
            raise ConfigError(f'a model artifact has no step "{step}"', where=home.url, remedy="leave --step out")
        return RecogniserParts(home.url, model_name=home.url)
    if not home.fs.exists(home.path(RESOLVED)):
        raise ConfigError(
            "neither a model nor a run",
            where=home.url,
            remedy="give a *model* artifact, an exported bundle, a run's folder, or a recipe",
        )
    steps = steps_of_run(home)
    fit = [name for name, each in steps.items() if _decodes(each)] or [n for n, each in steps.items() if _reads(each)]
    name = step or (fit[-1] if fit else "")
    if name not in steps or not (_decodes(steps[name]) or _reads(steps[name])):
        what = (
            f'the step "{step}" is not one that recognises speech' if step else "no step of this run recognises speech"
        )
        raise ConfigError(
            what, where=home.url, remedy=f"name one of {', '.join(fit)} with --step" if fit else "run a recipe first"
        )
    if missing := _missing(home, name, steps[name]):
        ready = [each for each in fit if not _missing(home, each, steps[each])]
        remedy = f"; or name a step whose parts are there with --step: {', '.join(ready)}" if ready else ""
        raise ConfigError("not made yet", where=missing[0], remedy=f"{how_to_finish(home.url, recipe)}{remedy}")
    if _reads(steps[name]):
        return RecogniserParts(f"{home.url}/{name}", model_name=name)
    return _of_decode(steps[name], {f"{home.url}/{other}": each for other, each in steps.items()}, name)


def how_to_finish(run: str, recipe: str = "") -> str:
    """The remedy for a run that is not finished."""
    return f"finish the run first: megahour run {recipe or f'RECIPE run={run}'}"


def steps_of_run(home: Artifact) -> dict[str, dict[str, Any]]:
    """The run's steps. Inputs made by the run are looked up below its current address: it may have been moved.

    Raises StoreError: the file with its recipe is damaged.
    """
    where = home.path(RESOLVED)
    try:
        recipe = yaml.safe_load(home.fs.cat_file(where))
        own = f"{recipe['run']}/"
        return {
            name: {
                **step,
                "inputs": {
                    role: f"{home.url}/{url.removeprefix(own)}" if url.startswith(own) else url
                    for role, url in step["inputs"].items()
                },
            }
            for name, step in recipe["steps"].items()
        }
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError) as error:
        remedy = "run the recipe again, which writes it, or name one of the run's artifacts"
        raise StoreError("not the recipe of a run, but damaged", where=where, remedy=remedy) from error


def _decodes(step: Mapping[str, Any]) -> bool:
    return step["stage"] == "decode" and not step.get("scales")


def _reads(step: Mapping[str, Any]) -> bool:
    return step["stage"] == "import-aligner" or (
        step["stage"] == "train" and step.get("criterion") in ("ctc", "transducer")
    )


def _of_decode(step: Mapping[str, Any], made: Mapping[str, Mapping[str, Any]], name: str) -> RecogniserParts:
    inputs: dict[str, str] = step["inputs"]
    search = DecodeParams.model_validate(
        {key: value for key, value in step.items() if key in DecodeParams.model_fields}
    )
    search = with_tuned_scale(search, {role: Artifact(url) for role, url in inputs.items()})
    graph = made.get(inputs.get("graph", ""), {}).get("inputs", {})
    lexicon, units = graph.get("lexicon", ""), graph.get("units", "")
    return RecogniserParts(
        inputs["model"],
        inputs.get("graph", ""),
        units if units and Artifact(units).complete else "",
        lexicon if lexicon and Artifact(lexicon).complete else "",
        search.model_name or name,
        search,
        lm=inputs.get("lm", ""),
        low_order_lm=inputs.get("low_order_lm", ""),
    )


def _missing(home: Artifact, name: str, step: Mapping[str, Any]) -> list[str]:
    """Addresses that a step's recogniser needs and that are not complete."""
    roles = ("tuned", "model", "graph", "lm", "low_order_lm")
    needed = (
        [f"{home.url}/{name}"] if _reads(step) else [step["inputs"][role] for role in roles if role in step["inputs"]]
    )
    return [address for address in needed if not Artifact(address).complete]
