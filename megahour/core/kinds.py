"""Kinds of artifacts: which stage makes each, and which an input role accepts; wrong inputs fail unread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from megahour.core.stage import Input, Stage
    from megahour.core.store import Artifact

MAKERS: dict[str, tuple[str, ...]] = {
    "clips": ("fetch-prompts",),
    "raw": ("synthesise", "compose"),
    "text": ("sentences",),
    "recordings": ("ingest", "import with kind=recordings"),
    "copies": ("copies",),
    "alignment": ("align",),
    "utterances": ("cut", "import", "speak", "combine"),
    "duplicates": ("duplicates",),
    "selection": ("select",),
    "export": ("export", "export-lattices"),
    "features": ("features", "import-features"),
    "lm": ("language-model", "lm-arpa", "lm-bounded", "lm-join", "lm-interpolate", "lm-prune", "lm-convert"),
    "perplexity": ("lm-perplexity",),
    "words": ("lm-words",),
    "vocabulary": ("lm-vocabulary",),
    "round": ("lm-shards", "lm-reshard"),
    "tally": ("lm-tally",),
    "lines": ("lm-estimate", "lm-mix", "lm-renormalise"),
    "union": ("lm-union",),
    "ranges": ("lm-ranges",),
    "gathered": ("lm-gather",),
    "weights": ("lm-weights",),
    "sorted_ngrams": ("lm-sort",),
    "history_counts": ("lm-history-counts",),
    "losses": ("lm-losses",),
    "threshold": ("lm-threshold",),
    "lexicon": ("lexicon", "pronunciations"),
    "tokens": ("tokens",),
    "units": ("senones", "realign"),
    "voice_data": ("tts-data",),
    "model": ("train", "import-aligner"),
    "targets": ("targets",),
    "partitions": ("repartition",),
    "graph": ("graph",),
    "hypotheses": ("decode", "lattices", "import-lattices", "import-hypotheses"),
    "pseudo_labels": ("pseudo-label",),
    "score": ("score",),
    "score_alignment": ("score-alignment",),
    "speech_score": ("score-speech",),
    "listening_test": ("listening-test",),
    "report": ("report",),
}
"""Kinds, and the stages that make them; the architecture page describes their contents."""
_KIND_OF_STAGE = {maker: kind for kind, makers in MAKERS.items() for maker in makers}
# Files unique to a kind, for artifacts of unlisted stages; utterances have a `.tar` and a `.parquet`.
_OWN_FILES = {".cues.parquet": "recordings", ".segments.parquet": "alignment", ".truth.parquet": "raw"}


def made_by(stage: str, params: Mapping[str, Any]) -> str:
    """The kind that a stage makes with these parameters; "" for an unlisted stage."""
    if stage == "import":
        return str(params.get("kind", "utterances"))
    return _KIND_OF_STAGE.get(stage, "")


def taken_by(spec: Input) -> tuple[str, ...]:
    """The kinds that a role accepts: those it names, else the kind with the role's name. (): any."""
    return spec.kinds or ((spec.role,) if spec.role in MAKERS else ())


def makers_of(kinds: tuple[str, ...]) -> str:
    """For a remedy: `model is made by train or import-aligner`."""
    return "; ".join(f"{kind} is made by {' or '.join(MAKERS[kind])}" for kind in kinds)


def kind_of(artifact: Artifact) -> str:
    """The kind of an artifact; "" if neither its stage nor its files identify it."""
    manifest = artifact.manifest
    if kind := made_by(manifest.stage, manifest.params):
        return kind
    if manifest.stage == "apply":  # its output is of its input's kind
        return str(manifest.summary.get("kind", ""))
    first = artifact.receipt(0) if manifest.shards else None
    files = first.files if first else {}
    own = next((kind for suffix, kind in _OWN_FILES.items() if suffix in files), "")
    return own or ("utterances" if {".tar", ".parquet"} <= set(files) else "")


def check_roles(stage: Stage[Any], given: Collection[str]) -> None:
    """Raise ConfigError for a role that the stage does not have, and for a required role that is missing."""
    roles = {spec.role: spec for spec in stage.inputs}
    for role in given:
        if role not in roles:
            remedy = f"its inputs are {', '.join(roles)}" if roles else "it has no inputs"
            raise ConfigError(f'stage {stage.name} has no input "{role}"{nearest(role, roles)}', remedy=remedy)
    missing = [spec for spec in stage.inputs if not spec.optional and spec.role not in given]
    if missing:
        kinds = tuple(kind for spec in missing for kind in taken_by(spec))
        names = " and ".join(spec.role for spec in missing)
        raise ConfigError(f"stage {stage.name} needs the input {names}", remedy=makers_of(kinds))


def check_kinds(stage: Stage[Any], inputs: Mapping[str, Artifact]) -> None:
    """Raise ConfigError for an artifact that is clearly of another kind than its role accepts."""
    for spec in stage.inputs:
        if spec.role not in inputs or not (wanted := taken_by(spec)):
            continue
        artifact = inputs[spec.role]
        kind = kind_of(artifact)
        if kind and kind not in wanted:
            actual = f"{artifact.url} is an artifact of {artifact.manifest.stage} ({kind})"
            raise ConfigError(
                f"{actual}; this input takes {' or '.join(wanted)}",
                where=f"stage {stage.name}, input {spec.role}",
                remedy=makers_of(wanted),
            )


def made_with(inputs: Mapping[str, Artifact]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """The stage that made each input, and its parameters, for `Stage.check_made`."""
    return {role: (artifact.manifest.stage, artifact.manifest.params) for role, artifact in inputs.items()}


def sets_learnt(params: Mapping[str, Any], roles: Collection[str]) -> tuple[str, ...]:
    """Sets that a model learns from, those with labels of a teacher or a recogniser among them.

    params, roles: parameters and inputs of its stage.
    """
    labelled_by_models = not {"targets", "pseudo_labels"}.isdisjoint(roles)
    return (*params.get("sets", ()), *(params.get("unlabelled_sets", ()) if labelled_by_models else ()))
