"""Forced alignment of labelled utterances with a neural network, on posteriors divided by priors.

The posteriors of a stacked frame are those of its middle 10 ms frame. The outputs for all offsets that the model was
trained with are interleaved, so that labels stay at 10 ms and phones keep their minimum duration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from megahour.batches.labels import SenoneLabels
from megahour.batches.pseudo_texts import texts_of
from megahour.core.errors import ConfigError
from megahour.core.receipts import Receipt
from megahour.core.stage import Context, Inputs, Task
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.features.sets import frame_seconds_of
from megahour.features.stack import stack
from megahour.models.configuration import read_config
from megahour.models.service import open_session
from megahour.serve.spec import ModelSpec
from megahour.teach.params import RealignParams
from megahour.teach.targets import trained_statistics
from megahour.units.align_shard import TOO_SHORT, ShardAlignment
from megahour.units.alignment_model import Alignment
from megahour.units.hmm import PRIOR_FLOOR, SILENCE, StatePath, Units, read_units, viterbi
from megahour.units.lexicon import read_lexicon
from megahour.units.noises import Noises
from megahour.units.paths import path_of
from megahour.units.utterances import Dropped, LabelledCorpus, Utterance

if TYPE_CHECKING:
    import pyarrow as pa

WORST = -1e4  # floor of log-likelihoods, so that a path exists even if the model rules out a senone
LONGEST_SHIFT = 50  # in 10 ms frames; longer shifts are counted as this one


def check_units(p: RealignParams, model: Artifact, units: Artifact) -> None:
    """Raises ConfigError if the model was not trained on these units, or they lack the phone `unknown`."""
    if read_config(model).get("units_digest") != units.manifest.digest:
        what = "the model was not trained on these units"
        raise ConfigError(what, where=model.url, remedy="give the `units` that it was trained on")
    if p.unknown and p.unknown not in (phones := [*read_units(units).phones, SILENCE]):
        what = f"unknown = {p.unknown!r} is no phone of the units, which have {phones}"
        raise ConfigError(what, where=units.url, remedy="make the units with `unknown`, or leave it out")


def realign_shard(
    p: RealignParams, inputs: Inputs, task: Task, spec: ModelSpec, out: ShardWriter, ctx: Context
) -> None:
    """Write a *units* shard with new alignments of a features shard. Dropped utterances are counted by reason.

    The task has `shard`. If it also has the matching pseudo-labels shard `beside`, their texts replace those of the
    features.
    """
    units_artifact = inputs["units"]
    mean, inv_std, size = trained_statistics(inputs["features"], inputs["model"])
    offsets = list(read_config(inputs["model"]).get("offsets", [0]))
    units, text = read_units(units_artifact), units_artifact.read_bytes(0, ".lexicon.txt").decode()
    lexicon = read_lexicon(text, where=units_artifact.url)
    corpus = LabelledCorpus(inputs["features"], lexicon, p.unknown, Noises(units.noises))
    texts = None if task.spec.get("beside") is None else texts_of(inputs["pseudo_labels"], task["beside"])
    paths = Paths(units, p.prior_scale)
    dropped, failed = Dropped(), dict[int, str]()
    waiting: dict[int, _Waiting] = {}
    result = ShardAlignment(len(units.phones), units.size)

    def sequences() -> Iterator[tuple[int, NDArray[np.float32]]]:
        number = 0
        for utterance in corpus.utterances(task["shard"], 1.0, dropped, texts):
            path = paths.of(utterance)
            if len(utterance.features) < max(path.shortest, size + max(offsets)):
                dropped.reasons[TOO_SHORT] += 1
                continue
            waiting[number] = _Waiting(utterance, path, len(offsets))
            for i, offset in enumerate(offsets):
                yield number * len(offsets) + i, stack(utterance.features, offset, mean, inv_std, size)
            number += 1

    with open_session(ctx.service, spec) as session:
        for number, outputs in session.infer(sequences(), ordered=True, on_failure=failed.__setitem__):
            row, i = divmod(number, len(offsets))
            one = waiting[row]
            one.put(paths.likelihoods(one.path, next(iter(outputs.values()))), offsets[i] + size // 2, size)
            if one.missing == 0:
                if (alignment := one.align()) is None:
                    dropped.reasons["not-finite"] += 1
                else:
                    result.add(one.utterance, alignment, paths.senones(one.path)[alignment.slots])
                del waiting[row]
    reasons = {number // len(offsets): reason for number, reason in sorted(failed.items())}
    for row, one in waiting.items():
        out.quarantine(one.utterance.key, "inference-failed", reasons[row], inputs["features"].url)
        out.came_in()
    result.write(out, dropped, frame_seconds_of(inputs["features"]))
    _compare(units_artifact, result, out)
    if out.shard == 0:
        out.text(units.to_json(), ".units.json")
        out.text(text, ".lexicon.txt")


class Paths:
    """Makes state paths of transcripts; a path's scores have one column for each senone that occurs in it."""

    def __init__(self, units: Units, prior_scale: float) -> None:
        self.units = units
        self._column = {phone: i for i, phone in enumerate([*units.phones, SILENCE])}
        self._log_priors = prior_scale * np.log(np.maximum(units.priors, PRIOR_FLOOR)).astype(np.float32)

    def of(self, utterance: Utterance) -> StatePath:
        path = path_of(self.units, utterance.pronunciations, self._column)
        _, local = np.unique(self.senones(path), return_inverse=True)
        return replace(path, emission=local[path.slot].astype(np.int32))

    def senones(self, path: StatePath) -> NDArray[np.int32]:
        """(slots,) the senone of each phone slot."""
        return np.array([self.units.senone_of(*triple) for triple in path.slots], np.int32)

    def likelihoods(self, path: StatePath, log_posteriors: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """(T', senones) log-posteriors → (T', n) log-likelihoods of the path's senones, up to a constant per frame."""
        used = np.unique(self.senones(path))
        result: NDArray[np.float32] = log_posteriors[:, used].astype(np.float32) - self._log_priors[used]
        return np.maximum(result, WORST)


@dataclass
class _Waiting:
    """An utterance that waits for the outputs of all its offsets, which arrive one by one."""

    utterance: Utterance
    path: StatePath
    missing: int
    scores: NDArray[np.float32] | None = None

    def put(self, likelihoods: NDArray[np.float32], first: int, step: int) -> None:
        frames = len(self.utterance.features)
        if self.scores is None:
            self.scores = np.full((frames, likelihoods.shape[1]), np.nan, np.float32)
        self.scores[first : first + step * len(likelihoods) : step] = likelihoods
        self.missing -= 1

    def align(self) -> Alignment | None:
        """The alignment. A frame without posteriors uses those of the nearest frame. None if none is finite."""
        assert self.scores is not None
        known = np.flatnonzero(np.isfinite(self.scores).all(axis=1))
        if not len(known):
            return None
        frames = np.arange(len(self.scores))
        after = np.minimum(np.searchsorted(known, frames), len(known) - 1)
        before = np.maximum(after - 1, 0)
        nearer = frames - known[before] < known[after] - frames
        found = viterbi(self.scores[known[np.where(nearer, before, after)]], self.path)
        return None if found is None else Alignment(self.path, *found)


def _compare(before: Artifact, result: ShardAlignment, out: ShardWriter) -> None:
    """Count changed frames, changed paths, and boundary shifts by size, in the statistics of the shard."""
    old = _old_labels(before, result.keys)
    frames = changed = paths = 0
    shifts = np.zeros(LONGEST_SHIFT + 1, np.int64)
    for key, new in zip(result.keys, result.labels, strict=True):
        if key not in old or len(old[key]) != len(new):
            continue
        frames += len(new)
        changed += int((old[key] != new).sum())
        starts = [np.flatnonzero(np.diff(labels, prepend=-1)) for labels in (old[key], new)]
        if np.array_equal(old[key][starts[0]], new[starts[1]]):
            moved = np.minimum(np.abs(starts[0] - starts[1])[1:], LONGEST_SHIFT)
            shifts += np.bincount(moved, minlength=LONGEST_SHIFT + 1)
        else:
            paths += 1
    out.stats["compared"] = {"utterances": len(old), "frames": frames, "changed": changed, "paths": paths}
    out.stats["shifts"] = shifts.tolist()


def _old_labels(units: Artifact, keys: list[int]) -> Mapping[int, NDArray[np.int16]]:
    places = SenoneLabels(units, 1).find(np.array(keys, np.int64))
    tables: dict[int, pa.Table] = {}
    old = {}
    for key, place in zip(keys, places.tolist(), strict=True):
        if place >= 0:
            shard = place >> 32
            if shard not in tables:
                tables[shard] = units.read_table(shard, ".alignments.arrow")
            old[key] = tables[shard]["senones"][place & 0xFFFFFFFF].values.to_numpy()
    return old


def changes(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """The shares of frames and of paths that changed.

    For utterances with an unchanged path, also the median boundary shift in frames and the share of moved boundaries.
    """
    names = ("utterances", "frames", "changed", "paths")
    total = {name: sum(r.stats["compared"][name] for r in receipts) for name in names}
    shifts = np.cumsum(np.sum([r.stats["shifts"] for r in receipts], axis=0))
    median = int(np.searchsorted(shifts, (shifts[-1] + 1) // 2)) if shifts[-1] else 0
    return {
        "frames_changed": round(total["changed"] / max(1, total["frames"]), 6),
        "paths_changed": round(total["paths"] / max(1, total["utterances"]), 6),
        "boundary_shift_median_frames": median,
        "boundaries_moved": round(1 - float(shifts[0]) / max(1, int(shifts[-1])), 6),
    }
