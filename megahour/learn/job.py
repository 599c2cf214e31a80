"""Prepares a training run from parameters and inputs: data, model and schedule, identical on every worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from megahour.batches.index import small_columns
from megahour.batches.labels import Labels, SenoneLabels, TopK
from megahour.batches.lattice_labels import LatticeLabels
from megahour.batches.loader import Loader
from megahour.batches.sound_labels import SoundLabels
from megahour.batches.tags import TagColumn, TaggedLabels
from megahour.batches.token_labels import TokenLabels
from megahour.batches.voice_labels import VoiceLabels
from megahour.batches.window import Front
from megahour.core.errors import ConfigError, StageError
from megahour.core.records import fingerprint
from megahour.core.stage import Inputs
from megahour.core.store import Artifact
from megahour.features.mel_spectrum import MelSpectrum
from megahour.features.sets import names_of_sets
from megahour.lattices.table import SUFFIX
from megahour.learn import data
from megahour.learn.criteria import SequenceGoal
from megahour.learn.initial import InitialModel
from megahour.learn.options import IN_FEATURES, SequenceOptions, TransducerOptions
from megahour.learn.params import SOUNDING, TrainParams
from megahour.learn.schedule import Data, Phase, scheduled, supervised
from megahour.models.build import KINDS, WITH_LOOKAHEAD, build, skeleton
from megahour.units.hmm import PRIOR_FLOOR, read_units
from megahour.units.phones import Phones
from megahour.units.spellers import speller_of
from megahour.units.tokens import MARK, Characters, TokenSpeller

CHECKPOINT = "checkpoint 2"  # change it with the contents of checkpoints: older ones are then ignored


@dataclass(frozen=True)
class Goal:
    """What the model predicts: the labels, the number of outputs, and their part of the configuration."""

    labels: Labels
    outputs: int
    config: dict[str, Any]


@dataclass(frozen=True)
class TrainingJob:
    """Everything that workers agree on before the first step. `fingerprint` covers all that shapes the result.

    module: without values if workers hold parts of it. vocoder: the address of a held-out voice's; "": Griffin-Lim.
    """

    params: TrainParams
    module: nn.Module
    config: dict[str, Any]
    outputs: int
    loaders: dict[Data, Loader]
    held_out: Loader | None
    phases: list[Phase]
    dropped: Counter[str]
    fingerprint: str
    sequence: SequenceGoal | None = None
    vocoder: str = ""

    @property
    def audio_s(self) -> float:
        """Seconds of audio in the schedule, counting every pass."""
        passes = ((self.loaders[phase.data], phase) for phase in self.phases)
        frames = sum(loader.frames * len(phase) / max(1, len(loader.plan(phase.epoch))) for loader, phase in passes)
        return round(frames / 100, 2)


def prepare(p: TrainParams, inputs: Inputs) -> TrainingJob:
    """The job of `p` on `inputs`, the same on every worker.

    Raises
    ------
    ConfigError, StageError: inputs and parameters do not fit, or nothing is left to train on.
    """
    features = inputs["features"]
    goal = _goal(p, inputs)
    front = _front(p, features)
    initial = InitialModel(inputs["initial"]) if "initial" in inputs else None
    front = front if initial is None else initial.front(front)
    loaders, held_out, dropped = data.choose(p, inputs, goal.labels, front)
    config = _config(p, goal, front, features)
    module = build(config, seed=p.seed) if p.parallel.shard == 1 else skeleton(config)
    if initial is not None:
        initial.fill(module, config)
    digests = {role: artifact.manifest.digest for role, artifact in inputs.items()}
    return TrainingJob(
        p,
        module,
        config,
        goal.outputs,
        loaders,
        held_out,
        _phases(p, loaders),
        dropped,
        fingerprint([CHECKPOINT, p.identity(), digests]),
        _sequence(p, inputs, initial),
        inputs["vocoder"].url if "vocoder" in inputs else "",
    )


def _goal(p: TrainParams, inputs: Inputs) -> Goal:
    p.check_roles(inputs)
    if (p.kind in SOUNDING) != ("symbols" in inputs["features"].summary):
        what = f"criterion {p.criterion} cannot use these features"
        remedy = "criteria speech and sound take *voice_data* of `tts-data`, the others take *features*"
        raise ConfigError(what, where=inputs["features"].url, remedy=remedy)
    if p.kind in SOUNDING:
        return _voice(p, inputs["features"])
    if not p.of_senones:
        speller = _speller(p, inputs)
        between = "ctc" in (p.criterion, *p.goal.heads)
        every_place = isinstance(p.goal, TransducerOptions) and not p.goal.prune
        labels: Labels = TokenLabels(speller, _subsample(p), between, every_place)
        marked = "tokens" in inputs and any(token.startswith(MARK) for token in speller.tokens)
        kind = {"marks": True} if marked else {"phones": True} if "lexicon" in inputs else {}
        if marked and getattr(speller, "longest_first", False):
            kind["longest_first"] = True
        config = {"tokens": list(speller.tokens), **kind, **_heads(p)}
        if p.tag:
            labels = _tagged(p, inputs, labels)
            config["tags"] = list(labels.names)
        return Goal(labels, len(speller.tokens), config)
    units = inputs["units"]
    senones = int(units.summary["senones"])
    outputs = TopK(inputs["targets"]).outputs if "targets" in inputs else senones
    if outputs != senones:
        raise ConfigError(
            f"the teacher has {outputs} outputs, but the units have {senones} senones",
            where=inputs["targets"].url,
            remedy="train the teacher with the same units",
        )
    own: Labels = SenoneLabels(units, p.stack)
    if "lattices" in inputs:
        own = _with_lattices(p, inputs, SenoneLabels(units, p.stack))
    return Goal(own, senones, {"senones": senones, "units_digest": units.manifest.digest})


def _with_lattices(p: TrainParams, inputs: Inputs, labels: SenoneLabels) -> LatticeLabels:
    """Labels with lattices. Raises ConfigError: they are of other features or units, or there are none."""
    assert isinstance(p.goal, SequenceOptions)
    lattices = inputs["lattices"]
    for role in ("features", "units"):
        made_of = lattices.manifest.inputs.get(role, "")
        if made_of and made_of != inputs[role].manifest.digest:
            what = f"the lattices were made from other {role} than this training's"
            raise ConfigError(what, where=lattices.url, remedy=f"decode these {role}, with `lattice: 6`")
    if not any(SUFFIX in receipt.files for receipt in lattices.each_receipt()):
        what = "the hypotheses have no lattices"
        raise ConfigError(what, where=lattices.url, remedy="decode with `lattice: 6`, the beam of the lattices")
    return LatticeLabels(labels, lattices, p.goal.add_aligned)


def _voice(p: TrainParams, data: Artifact) -> Goal:
    if p.kind == "vocoder":
        config = {name: data.summary[name] for name in ("spectrum", "licences", "attributions")}
        shift = MelSpectrum.from_config(config["spectrum"]).shift
        return Goal(SoundLabels(data, shift), data.summary["mels"], config | p.goal.model_dump())
    labels = VoiceLabels(data)
    names = ("symbols", "spectrum", "language", "scripts", "licences", "attributions", "pitch", "energy")
    rules = {"rules": data.summary["rules"]} if "rules" in data.summary else {}
    config = {**{name: data.summary[name] for name in names}, **rules, **p.goal.model_dump()}
    return Goal(labels, data.summary["mels"], config | {"voices": labels.voices, "languages": labels.languages})


def _sequence(p: TrainParams, inputs: Inputs, initial: InitialModel | None) -> SequenceGoal | None:
    """The goal of sequence training. Raises ConfigError: a graph or an initial model of other units."""
    if p.criterion not in ("mmi", "smbr"):
        return None
    from megahour.learn.denominator import read_denominator

    assert isinstance(p.goal, SequenceOptions)
    artifact = inputs["units"]
    if initial is not None and initial.config.get("units_digest") != artifact.manifest.digest:
        what = "the initial model has other units, which sequence training cannot change"
        raise ConfigError(what, where=initial.url, remedy="train it with criterion: ce and the same `units`")
    units = read_units(artifact)
    log_priors = np.log(np.maximum(units.priors, PRIOR_FLOOR)).astype(np.float32)
    graph = read_denominator(inputs["graph"], artifact) if "graph" in inputs else None
    return SequenceGoal(p.criterion, p.goal, graph, torch.from_numpy(log_priors), units.pauses)


def _tagged(p: TrainParams, inputs: Inputs, labels: Labels) -> TaggedLabels:
    """`labels` with tags."""
    column = TagColumn(p.tag, inputs["features"], None if p.tag in IN_FEATURES else inputs["selection"])
    sets = {*p.sets, *(p.unlabelled_sets if "pseudo_labels" in inputs else ())}
    shards = [r.shard for r in inputs["features"].each_receipt() if r.tags.get("set") in sets]
    return TaggedLabels(labels, column, column.values(shards))


def _speller(p: TrainParams, inputs: Inputs) -> TokenSpeller:
    """The speller of tokens: pieces of words, phones, or the characters of the labelled texts."""
    if "tokens" in inputs:
        return speller_of(inputs["tokens"])
    if "lexicon" in inputs:
        return Phones.read(inputs["lexicon"])
    characters = Characters.of(_texts(inputs, p.sets))
    if len(characters) < 2:
        remedy = f"the features have sets {names_of_sets(inputs['features'])}; check `sets`"
        raise StageError(f"no utterance in sets {p.sets} has a text", where=inputs["features"].url, remedy=remedy)
    return characters


def _heads(p: TrainParams) -> dict[str, Any]:
    """The encoder's heads, as part of the configuration."""
    if not p.goal.heads:
        return {}
    options = p.goal.model_dump(exclude={"consistency", "ctc", "attention", "prune_after"})
    unsaid = ("prune", "intermediate", "tag", "tag_told")
    options = {name: value for name, value in options.items() if value or name not in unsaid}
    if not p.tag:
        del options["tag_weight"]
    return {"predictor": "stateless", "context": 2, **options, "heads": p.goal.heads}


def _texts(inputs: Inputs, sets: Sequence[str]) -> Iterator[str]:
    """Texts of the labelled sets and of pseudo-labels, a few shards at a time in memory."""
    for _, table in small_columns(inputs["features"], sets):
        yield from table.column("text").to_pylist()
    if (pseudo := inputs.get("pseudo_labels")) is not None:
        for receipt in pseudo.each_receipt():
            yield from pseudo.read_table(receipt.shard, columns=["text"])["text"].to_pylist()


def _front(p: TrainParams, features: Artifact) -> Front:
    mean, inv_std = (np.asarray(features.summary[name], dtype=np.float32) for name in ("mean", "inv_std"))
    if mean.shape != inv_std.shape or not (np.isfinite(mean).all() and np.isfinite(inv_std).all()):
        raise StageError("mean and inv_std of the features differ in length or are not finite", where=features.url)
    if not len(mean):
        raise StageError(
            "the features have no global mean and variance: their sets have no frames",
            where=features.url,
            remedy="check `stats_sets` of the features, and what earlier stages dropped",
        )
    return Front(p.stack, mean, inv_std)


def _config(p: TrainParams, goal: Goal, front: Front, features: Artifact) -> dict[str, Any]:
    return {
        "format": 1,
        "kind": p.kind,
        "inputs": p.stack * len(front.mean),
        "outputs": goal.outputs,
        "layers": p.layers,
        "units": p.hidden,
        "lookahead": p.lookahead if p.kind in WITH_LOOKAHEAD else 0,
        "dropout": p.dropout,
        "criterion": p.criterion,
        **({"subsample": _subsample(p)} if _subsample(p) > 1 else {}),
        "stack": p.stack,
        "offsets": list(p.offsets),
        "mels": len(front.mean),
        "frame_shift_ms": features.summary.get("frame_shift_ms", 10),
        **_audio(features),
        "stats": {"mean": front.mean.tolist(), "inv_std": front.inv_std.tolist()},
        **goal.config,
    }


def _subsample(p: TrainParams) -> int:
    frames: int = KINDS[p.kind].subsample
    return frames


def _audio(features: Artifact) -> dict[str, Any]:
    """How the features were computed (rate_hz, low_hz, high_hz, prior), for `align`; of imported ones their mean."""
    if audio := features.summary.get("audio"):
        return {"audio": {"input": "stacked", **audio}}
    return {name: features.summary[name] for name in ("subtracts", "range_db") if name in features.summary}


def _phases(p: TrainParams, loaders: dict[Data, Loader]) -> list[Phase]:
    def batches(data: Data, epoch: int) -> int:
        return len(loaders[data].plan(epoch))

    chunk = p.chunk_frames if p.of_senones else 0  # a text belongs to a whole utterance
    if "unlabelled" not in loaders:
        return supervised(batches, p.offsets, epochs=p.epochs, whole_epochs=p.whole_epochs, chunk=chunk)
    return scheduled(
        batches,
        p.offsets,
        epochs=p.unlabelled_epochs,
        sub_epochs=p.sub_epochs,
        whole_sub_epochs=p.whole_sub_epochs,
        chunk=chunk,
        labelled_gain=p.labelled_gain,
    )
