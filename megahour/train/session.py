"""What the stage `train` does: choose data, build the model, run the schedule, write the *model* artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import safetensors.torch
from numpy.typing import NDArray

from megahour.batches.augment import Augment
from megahour.batches.labels import Labels, Senones, Spelling, TopK
from megahour.batches.loader import COLUMNS, Front, Loader, Shelf, shelves
from megahour.core.errors import ConfigError, StageError
from megahour.core.records import fingerprint, key_of
from megahour.core.stage import Context, Inputs
from megahour.core.store import Artifact
from megahour.models.build import build
from megahour.train.fit import Run, Settings
from megahour.train.loop import Trainer
from megahour.train.meters import Log
from megahour.train.schedule import Data, Phase, scheduled, supervised
from megahour.train.stage import TrainParams
from megahour.units.tokens import Characters

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter

Keep = Callable[[pa.Table], NDArray[np.bool_]]


@dataclass(frozen=True)
class Goal:
    """What the model predicts: labels of the labelled sets, number of outputs, and their part of the configuration."""

    labels: Labels
    outputs: int
    config: dict[str, Any]


def train(p: TrainParams, inputs: Inputs, out: ShardWriter, ctx: Context) -> None:
    """Run the training of `p` and write weights, configuration and curves through `out`."""
    features = inputs["features"]
    goal = _goal(p, inputs)
    front = _front(p, features)
    loaders, held_out = _data(p, inputs, goal, front, out)
    phases = _phases(p, loaders)
    config = _config(p, goal, front, features)
    module = build(config, seed=p.seed)
    print_of_run = fingerprint([p.identity(), {role: artifact.manifest.digest for role, artifact in inputs.items()}])
    settings = Settings(p.learning_rate, p.final_learning_rate, p.warm_up, p.checkpoint_s, p.rows, print_of_run)
    log = Log(ctx.work, p.tensorboard)
    try:
        with Trainer(module, threads=p.threads, clip=p.clip, seed=p.seed, weight_decay=p.weight_decay) as trainer:
            curves = Run(trainer, loaders, held_out, phases, settings, ctx.work, log, ctx.progress).execute()
    finally:
        log.close()
    with out.open(".safetensors") as file:
        file.write(safetensors.torch.save({name: tensor.contiguous() for name, tensor in module.state_dict().items()}))
    out.json(config, ".model.json")
    out.text(curves.jsonl(), ".curves.jsonl")
    out.stats.update({name: value for name, value in curves.rows[-1].items() if name not in ("data", "epoch")})
    out.stats["parameters"] = sum(parameter.numel() for parameter in module.parameters())
    out.stats["outputs"] = goal.outputs


def _goal(p: TrainParams, inputs: Inputs) -> Goal:
    if p.criterion == "ctc":
        if "targets" in inputs:
            raise ConfigError("targets are a teacher's senones; they do not go with criterion ctc", where="train")
        characters = Characters.of(_texts(inputs["features"], p.sets))
        if len(characters) < 2:
            raise StageError(f"no text in sets {p.sets}", where=inputs["features"].url, remedy="check `sets`")
        return Goal(Spelling(characters), len(characters), {"tokens": list(characters.tokens)})
    if "units" not in inputs:
        raise ConfigError(
            "criterion ce needs `units`", where="train", remedy="give units: an artifact, or criterion: ctc"
        )
    units = inputs["units"]
    senones = int(units.summary["senones"])
    if "targets" in inputs and int(inputs["targets"].summary["outputs"]) != senones:
        raise ConfigError(
            f"the teacher has {inputs['targets'].summary['outputs']} outputs, the units {senones} senones",
            where=inputs["targets"].url,
            remedy="train the teacher with the same units",
        )
    return Goal(Senones(units, p.stack), senones, {"senones": senones, "units_digest": units.manifest.digest})


def _texts(features: Artifact, sets: Sequence[str]) -> list[str]:
    """Distinct texts, shard by shard, of the labelled sets."""
    found: set[str] = set()
    for receipt in features.receipts():
        if receipt.tags.get("set") in sets:
            found.update(features.read_table(receipt.shard, ".arrow", columns=["text"]).column("text").to_pylist())
    return sorted(found)


def _front(p: TrainParams, features: Artifact) -> Front:
    mean, inv_std = (np.asarray(features.summary[name], dtype=np.float32) for name in ("mean", "inv_std"))
    if mean.shape != inv_std.shape or not (np.isfinite(mean).all() and np.isfinite(inv_std).all()):
        raise StageError("mean and inv_std of the features are unequal in length or not finite", where=features.url)
    return Front(p.stack, mean, inv_std)


def _config(p: TrainParams, goal: Goal, front: Front, features: Artifact) -> dict[str, Any]:
    return {
        "format": 1,
        "kind": p.kind,
        "inputs": p.stack * len(front.mean),
        "outputs": goal.outputs,
        "layers": p.layers,
        "units": p.hidden,
        "lookahead": p.lookahead if p.kind == "lstm" else 0,
        "dropout": p.dropout,
        "criterion": p.criterion,
        "stack": p.stack,
        "offsets": list(p.offsets),
        "mels": len(front.mean),
        "frame_shift_ms": features.summary.get("frame_shift_ms", 10),
        "stats": {"mean": front.mean.tolist(), "inv_std": front.inv_std.tolist()},
        **goal.config,
    }


def _data(
    p: TrainParams, inputs: Inputs, goal: Goal, front: Front, out: ShardWriter
) -> tuple[dict[Data, Loader], Loader | None]:
    """Loaders of the labelled (and unlabelled) training data and of the held-out speakers; counts go to `out`."""
    features = inputs["features"]
    held = held_out_speakers(_speakers(features, p.sets), p.held_out, p.seed)
    augment = Augment(p.time_masks, p.time_mask_frames, p.mel_masks, p.mel_mask, p.warp, p.noise) or None

    def loader(found: list[Shelf], labels: Labels, augment: Augment | None = None) -> Loader:
        return Loader(
            features,
            found,
            labels,
            front,
            seed=p.seed,
            batch_frames=p.batch_frames,
            window_shards=p.window_shards,
            augment=augment,
        )

    dropped: Counter[str] = Counter()
    shelf = shelves(features, p.sets, goal.labels, p.stack, lambda table: ~_spoken_by(table, held), dropped)
    loaders: dict[Data, Loader] = {"labelled": loader(shelf, goal.labels, augment)}
    if not loaders["labelled"].utterances:
        sets = sorted({receipt.tags.get("set", "") for receipt in features.receipts()})
        raise StageError(
            f"no utterance of sets {p.sets} can be trained on ({dict(dropped)})",
            where=features.url,
            remedy=f"the features have sets {sets}; check `sets` and the labels",
        )
    if "targets" in inputs:
        targets = TopK(inputs["targets"])
        if missing := sorted(set(p.offsets) - set(targets.offsets)):
            raise ConfigError(
                f"no targets at offsets {missing}", where=targets.targets.url, remedy="make them there too"
            )
        shelf = shelves(features, p.unlabelled_sets, targets, p.stack, None, dropped)
        loaders["unlabelled"] = loader(shelf, targets, augment)
    kept = sum(loader.utterances for loader in loaders.values())
    out.came_in(kept + dropped.total())
    out.kept(kept)
    for reason, n in sorted(dropped.items()):
        out.drop(reason, n)
    if not held:
        return loaders, None
    return loaders, loader(
        shelves(features, p.sets, goal.labels, p.stack, lambda table: _spoken_by(table, held)), goal.labels
    )


def _speakers(features: Artifact, sets: Sequence[str]) -> list[str]:
    found: set[str] = set()
    for receipt in features.receipts():
        if receipt.tags.get("set") in sets:
            column = features.read_table(receipt.shard, ".arrow", columns=COLUMNS).column("speaker")
            found.update(column.unique().to_pylist())
    return sorted(found)


def held_out_speakers(speakers: Sequence[str], share: float, seed: int) -> list[str]:
    """The speakers kept for the curves: `share` of them, at least one and never all; none when there is only one."""
    if share == 0.0 or len(speakers) < 2:
        return []
    n = min(len(speakers) - 1, max(1, round(share * len(speakers))))
    return sorted(speakers, key=lambda speaker: key_of("held-out", seed, speaker))[:n]


def _spoken_by(table: pa.Table, speakers: Sequence[str]) -> NDArray[np.bool_]:
    return np.isin(np.asarray(table.column("speaker").to_pylist(), dtype=str), np.asarray(speakers, dtype=str))


def _phases(p: TrainParams, loaders: dict[Data, Loader]) -> list[Phase]:
    def batches(data: Data, epoch: int) -> int:
        return len(loaders[data].plan(epoch))

    if "unlabelled" not in loaders:
        return supervised(batches, p.offsets, epochs=p.epochs, whole_epochs=p.whole_epochs, chunk=p.chunk_frames)
    return scheduled(
        batches,
        p.offsets,
        epochs=p.unlabelled_epochs,
        sub_epochs=p.sub_epochs,
        whole_sub_epochs=p.whole_sub_epochs,
        chunk=p.chunk_frames,
        labelled_gain=p.labelled_gain,
    )
