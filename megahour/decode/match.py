"""Checks, before anything runs and from JSON files alone, that a model, a graph and units belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.kinds import makers_of
from megahour.core.store import Artifact
from megahour.decode.params import DecodeParams
from megahour.models.configuration import normalisation, read_config, subtracted_mean

Inputs = Mapping[str, Artifact]


def check_match(inputs: Inputs) -> None:
    """Raises ConfigError if model, graph and units use different labels, or if a senone or phone model has no graph."""
    model = read_config(inputs["model"])
    if "graph" not in inputs:
        if not model.get("tokens") or model.get("phones"):
            raise ConfigError(
                f"the model outputs {'phones' if model.get('phones') else 'senones'}, which need a graph to give words",
                where=inputs["model"].url,
                remedy=makers_of(("graph",)),
            )
        return
    graph = inputs["graph"].read_json(0, ".json")
    if int(model["outputs"]) != graph["labels"]:
        raise ConfigError(
            f"the model has {model['outputs']} outputs, but the graph has {graph['labels']} labels",
            where=inputs["model"].url,
            remedy="make the graph with the units (or tokens) that the model was trained with",
        )
    if graph["topology"] == "ctc":
        if model.get("tokens") != graph["tokens"]:
            what, remedy = "the model's tokens are not the graph's", "make the graph with this model"
            raise ConfigError(what, where=inputs["model"].url, remedy=remedy)
        return
    digests = {"graph": graph["units_digest"], "model": model.get("units_digest")}
    if "units" in inputs:
        digests["units"] = inputs["units"].manifest.digest
    if len(set(digests.values())) > 1:
        remedy = "train the model and make the graph with the same units"
        raise ConfigError(f"different units: {digests}", where="decode", remedy=remedy)


def with_tuned_scale(p: DecodeParams, inputs: Inputs) -> DecodeParams:
    """`p` with the best scale of the input `tuned`, if given: of `acoustic_scale` with a graph, else of `lm_scale`.

    Raises ConfigError: `tuned` tried no scales, or those of the other kind of decoding.
    """
    if "tuned" not in inputs:
        return p
    tuned, name = inputs["tuned"], "acoustic_scale" if "graph" in inputs else "lm_scale"
    if "best_scale" not in tuned.summary:
        what = "the decoding for `tuned` tried no scales"
        raise ConfigError(what, where=tuned.url, remedy="run that step with `scales`")
    if (found := tuned.summary.get("scales_of", "acoustic_scale")) != name:
        what = f"the decoding for `tuned` tried values of {found}, not of {name}"
        raise ConfigError(what, where=tuned.url, remedy="decode both with a graph, or both without one")
    return p.model_copy(update={name: float(tuned.summary["best_scale"])})


def check_graph_lm(inputs: Inputs) -> None:
    """Raises ConfigError: the graph was made of another language model than `graph_lm`."""
    if "graph_lm" in inputs:
        made_of = inputs["graph"].manifest.inputs.get("lm", "")
        _same_lm(inputs["graph_lm"], made_of, f"the graph {inputs['graph'].url}")


def check_lattice_lm(inputs: Inputs) -> None:
    """Raises ConfigError: the costs of the lattices are not those of `graph_lm`, so it cannot be replaced, or no graph
    was searched.

    Lattices of other recognisers do not say what they are made of, and are not checked.
    """
    summary = inputs["lattices"].summary
    if "graph_lm" in inputs and "lattice_lm" in summary:
        if summary.get("lattice_lm_scale") == 0 and not summary["lattice_lm"]:
            raise ConfigError(
                "these lattices list texts of a search without a graph: they have no `graph_lm` to replace",
                where=inputs["lattices"].url,
                remedy="rescore their n-best lists, of `decode --nbest`, by `megahour lm rescore`",
            )
        _same_lm(inputs["graph_lm"], summary["lattice_lm"], "lattices")
        if (scale := summary.get("lattice_lm_scale", 1.0)) != 1:
            raise ConfigError(
                f"the language model of these lattices was weighed by {scale:g}, and can no longer be replaced exactly",
                where=inputs["lattices"].url,
                remedy="rescore the lattices that these were made of",
            )


def _same_lm(given: Artifact, made_of: str, what: str) -> None:
    if made_of and given.manifest.digest != made_of:
        raise ConfigError(
            f"{what}: made of another language model than this `graph_lm`, whose scores would be taken off wrongly",
            where=given.url,
            remedy="give the one that the graph was made of, or that lattices were last rescored with",
        )


def check_features(inputs: Inputs) -> None:
    """Raises ConfigError: the model was trained on features of other sizes or of another front end, or on none;
    StoreError: it is damaged."""
    model, features = inputs["model"], inputs["features"]
    config = read_config(model)
    mels = len(normalisation(config, where=model.url)[0])
    if (given := features.summary.get("mels", mels)) != mels:
        what = f"the model was trained on {mels} mels, but these features have {given}"
        remedy = f"make features with mels: {mels}"
        raise ConfigError(what, where=features.url, remedy=remedy)
    if (trained := subtracted_mean(config)) != (given := subtracted_mean(features.summary)):
        raise ConfigError(
            f"the model was trained on features of mean: {trained}, but these are of mean: {given}",
            where=features.url,
            remedy=f"make features with mean: {trained}",
        )
    heard, own = (_front_end(each.get("audio") or {}) for each in (config, features.summary))
    if (heard and features.manifest.stage == "import-features") or (own and not config.get("audio")):
        sound, cepstra = "features of audio", "imported cepstra"
        trained, given = (sound, cepstra) if heard else (cepstra, sound)
        raise ConfigError(
            f"the model was trained on {trained}, but these are {given}, which have other values",
            where=features.url,
            remedy="make features in the way of those that the model was trained on",
        )
    if heard and own and (other := [name for name in heard if heard[name] != own[name]]):
        trained, given = (", ".join(f"{name}: {each[name]}" for name in other) for each in (heard, own))
        raise ConfigError(
            f"the model was trained on features of {trained}, but these are of {given}",
            where=features.url,
            remedy="make features with the parameters and the sampling rate of those that the model was trained on",
        )


def _front_end(audio: Mapping[str, Any]) -> dict[str, Any]:
    """What gives other values for the same sounds; {} if audio had several rates or nothing is recorded."""
    rate_hz = audio.get("rate_hz")
    if not rate_hz or not {"low_hz", "high_hz"} <= audio.keys():
        return {}
    high_hz = audio["high_hz"]
    top_hz = high_hz if high_hz > 0 else rate_hz / 2 + high_hz
    return {"rate_hz": rate_hz, "low_hz": audio["low_hz"], "high_hz": top_hz, "scale": audio.get("scale", "int16")}
