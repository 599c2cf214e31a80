"""Chooses training and held-out utterances, and builds their loaders."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.augment import Augment
from megahour.batches.cache import Cache
from megahour.batches.from_audio import FromAudio
from megahour.batches.index import shelves, small_columns
from megahour.batches.labels import Labels, TopK
from megahour.batches.loader import Loader
from megahour.batches.near import Near
from megahour.batches.pseudo_texts import PseudoTexts
from megahour.batches.window import FeatureSource, Front, Shelf, Stored
from megahour.core.errors import ConfigError, StageError
from megahour.core.records import key_of
from megahour.core.stage import Inputs
from megahour.core.store import Artifact
from megahour.core.transfer import is_local
from megahour.features.cepstra_mels import are_cepstra
from megahour.features.kept import check_kept
from megahour.features.sets import names_of_sets
from megahour.learn.options import CtcOptions
from megahour.learn.params import TrainParams
from megahour.learn.schedule import Data

LOG = logging.getLogger(__name__)
Rule = Callable[[pa.Table], NDArray[np.bool_]]


def choose(
    p: TrainParams, inputs: Inputs, labels: Labels, front: Front
) -> tuple[dict[Data, Loader], Loader | None, Counter[str]]:
    """Loaders of labelled (and unlabelled) training data and of held-out data, and the dropped utterances by reason."""
    features = inputs["features"]
    _warn(p, features)
    held = held_out_rule(p, features)
    masks = p.time_masks, p.time_mask_frames, p.mel_masks, p.mel_mask
    augment = Augment(*masks, p.warp, p.noise, p.channel, are_cepstra(features)) or None
    source = _sources(p, inputs, len(front.mean))
    load = partial(
        Loader,
        features,
        front=front,
        seed=p.seed,
        batch_frames=p.batch_frames,
        window_shards=p.window_shards,
        lanes=p.lanes_in_use,
        open_windows=_open_windows(p),
    )
    dropped: Counter[str] = Counter()
    keep = None if held is None else lambda table: ~held(table)
    own, shelf = _trained_on(p, inputs, labels, keep, dropped)
    two_views = isinstance(p.goal, CtcOptions) and p.goal.consistency > 0
    changed = partial(load, augment=augment, tempo=p.tempo)
    loaders: dict[Data, Loader] = {
        "labelled": changed(shelf, own, two_views=two_views, source=source(own, p.waveform.changes))
    }
    if not loaders["labelled"].utterances:
        remedy = f"the features have sets {names_of_sets(features)}; check `sets` and the labels"
        why = ", ".join(f"{reason} {n}" for reason, n in dropped.items() if n) or "they are empty"
        raise StageError(
            f"no utterance of sets {p.sets} can be trained on: {why}",
            where=features.url,
            remedy=f"lower `held_out`, which is {p.held_out:g}" if dropped["held-out"] else remedy,
        )
    if "targets" in inputs:
        targets = _targets(p, features, inputs["targets"])
        shelf = shelves(features, _others(p), targets, p.stack, None, dropped)
        again = sorted(set(p.unlabelled_sets) & set(p.sets))
        shelf += shelves(features, again, targets, p.stack, keep)  # those left out are counted above
        loaders["unlabelled"] = changed(shelf, targets, source=source(targets, p.waveform.changes))
        if not loaders["unlabelled"].utterances:
            raise StageError(
                f"no utterance of sets {p.unlabelled_sets} has targets",
                where=inputs["targets"].url,
                remedy="make targets for these sets, or check `unlabelled_sets`",
            )
    if held is None:
        if p.held_out:
            what = "nothing is held out, and no curve shows errors on new data: sets %s have one speaker; "
            LOG.warning(what + "set held_out_by: utterance, or held_out: 0", p.sets)
        return loaders, None, dropped
    rest = load(shelves(features, p.sets, labels, p.stack, held), labels, source=source(labels, False))
    return loaders, rest if rest.utterances else None, dropped


def _trained_on(
    p: TrainParams, inputs: Inputs, labels: Labels, keep: Rule | None, dropped: Counter[str]
) -> tuple[Labels, list[Shelf]]:
    """The labels (true and pseudo-labels), and the labelled utterances that are not held out."""
    features = inputs["features"]
    if "pseudo_labels" not in inputs:
        return labels, shelves(features, p.sets, labels, p.stack, keep, dropped)
    labelled = {r.shard for r in features.each_receipt() if r.tags.get("set") in p.sets}
    own = PseudoTexts(labels, inputs["pseudo_labels"], labelled, p.confidence_power)
    found = shelves(features, p.sets, own, p.stack, keep, dropped)
    keep = keep if p.held_out_by == "speaker" else None  # in other sets only whole speakers are held out
    others = shelves(features, _others(p), own, p.stack, keep, dropped)
    if _others(p) and not any(shelf.utterances for shelf in others):
        raise StageError(
            f"no utterance of sets {_others(p)} has a usable pseudo-label",
            where=inputs["pseudo_labels"].url,
            remedy="make pseudo-labels for these sets of these features, of letters or words that the model's tokens "
            "spell and no longer than the audio; or check `unlabelled_sets`",
        )
    return own, found + others


def _others(p: TrainParams) -> list[str]:
    """Sets without true labels: they have only targets or pseudo-labels."""
    return sorted(set(p.unlabelled_sets) - set(p.sets))


def _sources(p: TrainParams, inputs: Inputs, mels: int) -> Callable[[Labels, bool], FeatureSource]:
    """The feature source of a loader, given its labels and whether to augment audio: stored features, or `audio`."""
    features = inputs["features"]
    if "audio" not in inputs:
        check_kept(features.summary.get("keep", "frames"), False, where=features.url)
        return lambda labels, changed: Stored(features, mels)
    from megahour.features.clips import Clips
    from megahour.features.on_the_fly import OnTheFly
    from megahour.features.perturb import Perturb

    noises, rooms = (Clips(inputs[role], role) if role in inputs else None for role in ("noises", "rooms"))
    perturb = Perturb(p.waveform, p.seed, noises, rooms)

    def source(labels: Labels, changed: bool) -> FeatureSource:
        return FromAudio(OnTheFly(features, inputs["audio"], perturb if changed else None), labels, p.stack)

    return source


@contextmanager
def near(p: TrainParams, inputs: Inputs, work: Path) -> Iterator[Inputs]:
    """The inputs, with a cache on this machine for remote ones."""
    cache = Cache(Path(p.cache).expanduser() if p.cache else work / "cache", int(p.cache_gb * 1e9))
    try:
        yield {role: Near(artifact.url, cache) for role, artifact in inputs.items()}
    finally:
        cache.closed.set()  # pending downloads would delay the end of the process


def _warn(p: TrainParams, features: Artifact) -> None:
    """Warn if settings make workers read an object store more often than necessary."""
    if is_local(features.fs):
        return
    lanes, in_step = p.lanes_in_use, p.synchroniser.in_step
    if p.nodes > 1 and (lanes % p.workers or not in_step):
        remedy = f"set `lanes` to {p.workers} or a multiple" if in_step else f"use another trainer than {p.trainer}"
        LOG.warning("each machine will read all of %s; to avoid that, %s", features.url, remedy)
    largest = max((info.bytes for r in features.each_receipt() for info in r.files.values()), default=0)
    in_use_gb = 2 * -(-lanes // p.nodes) * p.window_shards * largest / 1e9
    if in_use_gb > p.cache_gb:
        LOG.warning("shards will be fetched repeatedly: %.1f GB are in use at a time; raise `cache_gb`", in_use_gb)


def _open_windows(p: TrainParams) -> int:
    """Windows that a worker has open at a time, including the next ones."""
    lanes = p.lanes_in_use
    return lanes // (math.gcd(lanes, p.workers) if p.synchroniser.in_step else 1) + 1


def _targets(p: TrainParams, features: Artifact, artifact: Artifact) -> TopK:
    together = "targets" in features.summary or "targets" in artifact.summary
    if together and features.manifest.digest != artifact.manifest.digest:
        raise ConfigError(
            "shards of `repartition` have features and targets together, but the other input is another artifact",
            where=artifact.url,
            remedy="give the same artifact as both `features` and `targets`",
        )
    targets = TopK(artifact)
    if missing := sorted(set(p.offsets) - set(targets.offsets)):
        remedy = "make targets with these offsets, or leave the offsets out"
        raise ConfigError(f"no targets at offsets {missing}", where=artifact.url, remedy=remedy)
    return targets


def held_out_rule(p: TrainParams, features: Artifact) -> Rule | None:
    """Predicate of the rows of a features table that are held out for the curves; None if none are.

    Raises ConfigError for a voice of which whole speakers would be held out: it would speak as them, untrained.
    """
    if p.held_out == 0.0:
        return None
    if p.held_out_by == "utterance":
        limit = int(p.held_out * 2**63)
        return lambda table: np.array(
            [key_of("held-out", p.seed, key) < limit for key in table["key"].to_pylist()], bool
        )
    speakers = held_out_speakers(_speakers(features, p.sets), p.held_out, p.seed)
    if speakers and p.criterion == "speech":
        what = f"the voice would not learn to speak as {', '.join(speakers)}, whose utterances would all be held out"
        raise ConfigError(what, where=features.url, remedy="set held_out_by: utterance, or held_out: 0")
    return (lambda table: np.isin(np.asarray(table["speaker"].to_pylist(), dtype=str), speakers)) if speakers else None


def held_out_speakers(speakers: Sequence[str], share: float, seed: int) -> list[str]:
    """`share` of the speakers, at least one and never all; none if there is only one."""
    if share == 0.0 or len(speakers) < 2:
        return []
    n = min(len(speakers) - 1, max(1, round(share * len(speakers))))
    return sorted(speakers, key=lambda speaker: key_of("held-out", seed, speaker))[:n]


def _speakers(features: Artifact, sets: Sequence[str]) -> list[str]:
    found: set[str] = set()
    for _, table in small_columns(features, sets):
        found.update(table.column("speaker").unique().to_pylist())
    return sorted(found)
