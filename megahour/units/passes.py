"""The passes over the labelled speech that train an alignment model. Each maps over shards and sums exactly.

flat      one Gaussian per phone, from words cut into phones of equal length
phones    Viterbi training of the phone Gaussians
tree      triphone statistics for the decision trees
lda       LDA on spliced cepstra, with the senones of the first trees as classes; the trees are then grown again on it
mllt      MLLT rotation for the senone Gaussians, which are initialised from the leaves of the trees
senones   Viterbi training of the senone Gaussians
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from megahour.core.errors import StageError
from megahour.core.stage import Task
from megahour.core.store import Artifact
from megahour.units.alignment_model import Alignment, AlignmentModel
from megahour.units.gmm import Mixtures, collect, estimate, occupancies
from megahour.units.params import SenonesParams
from megahour.units.sums import ExactSums
from megahour.units.transforms import collect_lda, collect_mllt, lda, mllt, spliced
from megahour.units.tree import TripleStatistics, grow
from megahour.units.utterances import Dropped, LabelledCorpus, Times, Utterance, first_labels, share_of, word_times

LEAST_FRAMES = 60.0  # a senone's Gaussian is split only with at least this many frames
SEARCHES = 2  # Viterbi passes after each doubling


@dataclass(frozen=True)
class Pass:
    """One pass. `split`: double the mixture components after it."""

    what: Literal["flat", "phones", "tree", "lda", "mllt", "senones"]
    split: bool = False


def passes_of(p: SenonesParams) -> list[Pass]:
    """All passes in order. They depend only on the parameters."""
    phones = _training("phones", p.iterations, p.mixtures)
    trees = [Pass("tree")]
    if p.transform != "none":
        trees += [Pass("lda"), Pass("tree")]
    if p.transform == "lda-mllt":
        trees += [Pass("mllt")]
    senones = _training("senones", 1, p.senone_mixtures) if p.senone_mixtures else []
    return [Pass("flat"), *phones, *trees, *senones]


def _training(what: Literal["phones", "senones"], first: int, components: int) -> list[Pass]:
    passes = [Pass(what)] * first
    reached = 1
    while reached < components:
        passes[-1] = Pass(what, split=True)
        passes += [Pass(what)] * SEARCHES
        reached *= 2
    return passes


@dataclass(frozen=True)
class PassWork:
    """Collects the statistics of the next pass of `model` over shards of the corpus."""

    p: SenonesParams
    corpus: LabelledCorpus
    model: AlignmentModel
    selection: Artifact | None

    def measure(self, task: Task) -> ExactSums:
        """Statistics of the utterances of one shard.

        The task has `shard`, `frames` (those of all shards) and `beside`, the matching shard of the selection.
        """
        step = passes_of(self.p)[self.model.done]
        hours = self.p.phone_hours if step.what in ("flat", "phones") else self.p.tree_hours
        share = share_of(task["frames"], hours)
        utterances = self.corpus.utterances(task["shard"], share, Dropped(), beside=task.spec.get("beside"))
        if step.what == "flat":
            times = word_times(self.selection, task["beside"]) if self.selection is not None else {}
            return self._flat(utterances, times)
        sums: ExactSums | None = None
        add: Callable[[ExactSums, Utterance, Alignment], None] = getattr(self, f"_{step.what}")
        for utterance in utterances:
            if (alignment := self.model.align(utterance)) is not None:
                sums = sums or ExactSums(self._width(step, utterance))
                add(sums, utterance, alignment)
        return sums or ExactSums(0)

    def _width(self, step: Pass, utterance: Utterance) -> int:
        if step.what == "lda":
            return 1 + len(spliced(utterance.cepstra[:1], self.p.splice)[0])
        dims = len((utterance.with_differences if step.what == "phones" else self.model.observed(utterance))[0])
        return dims if step.what == "mllt" else 1 + 2 * dims

    def _flat(self, utterances: Iterable[Utterance], times: Times) -> ExactSums:
        sums: ExactSums | None = None
        for utterance in utterances:
            x = utterance.with_differences
            sums = sums or ExactSums(1 + 2 * x.shape[1])
            collect(sums, x, first_labels(utterance, times, self.model.column, self.model.noises), None)
        return sums or ExactSums(0)

    def _phones(self, sums: ExactSums, utterance: Utterance, alignment: Alignment) -> None:
        columns = np.array([self.model.column[phone] for _, phone, _ in alignment.path.slots], np.int32)
        collect(sums, utterance.with_differences, columns[alignment.slots], self.model.by_phone)

    def _tree(self, sums: ExactSums, utterance: Utterance, alignment: Alignment) -> None:
        codes = np.array([self.model.code(triple) for triple in alignment.path.slots], np.int64)
        collect(sums, self.model.observed(utterance), codes[alignment.slots], None)

    def _lda(self, sums: ExactSums, utterance: Utterance, alignment: Alignment) -> None:
        senones = self.model.senones(alignment.path)[alignment.slots]
        collect_lda(sums, spliced(utterance.cepstra, self.p.splice), senones)

    def _mllt(self, sums: ExactSums, utterance: Utterance, alignment: Alignment) -> None:
        assert self.model.by_senone is not None
        senones = self.model.senones(alignment.path)[alignment.slots]
        collect_mllt(sums, self.model.observed(utterance), senones, self.model.by_senone)

    def _senones(self, sums: ExactSums, utterance: Utterance, alignment: Alignment) -> None:
        senones = self.model.senones(alignment.path)[alignment.slots]
        collect(sums, self.model.observed(utterance), senones, self.model.by_senone)


def learn(p: SenonesParams, model: AlignmentModel, sums: ExactSums, *, where: str) -> AlignmentModel:
    """The model after its next pass, from the statistics of all shards. Raises StageError: nothing could be aligned."""
    passes = passes_of(p)
    step = passes[model.done]
    if not sums.width:
        what, remedy = "no utterance has room for its words", "check transcripts and lexicon"
        if step.what == "flat":
            what, remedy = "no utterance to learn from", "check `sets` and the lexicon's words"
        raise StageError(what, where=where, remedy=remedy)
    model = replace(model, done=model.done + 1)
    if step.what == "flat":
        _check_noises(model, sums, where=where)
    if step.what in ("flat", "phones"):
        return replace(model, by_phone=_trained(sums, len(model.column), model.by_phone, step, 0.0))
    if step.what == "tree":
        return _grown(p, model, sums)
    if step.what == "lda":
        return replace(model, transform=lda(sums, p.lda_dims), splice=p.splice, units=None)
    assert model.by_senone is not None
    assert model.units is not None
    if step.what == "mllt":
        turn = mllt(sums)
        assert model.transform is not None
        turned = Mixtures(model.by_senone.weights, model.by_senone.means @ turn.T, model.by_senone.variances)
        return replace(model, transform=turn @ model.transform, by_senone=turned)
    trained = _trained(sums, model.units.size, model.by_senone, step, LEAST_FRAMES)
    counts = occupancies(sums, model.units.size, model.by_senone.components).sum(axis=1)
    return replace(model, by_senone=trained, units=model.units.with_frames(counts))


def _check_noises(model: AlignmentModel, sums: ExactSums, *, where: str) -> None:
    """Raises StageError: no transcript tags a noise, so that nothing says how it sounds."""
    frames = occupancies(sums, len(model.column), 1)[:, 0]
    if silent := [noise for noise in model.noises if not frames[model.column[noise]]]:
        raise StageError(
            f"no transcript has a tag of the noise {silent[0]}",
            where=where,
            remedy="import features with `fillers: true`, or give the input selection; or take it out of `noises`",
        )


def _trained(sums: ExactSums, classes: int, before: Mixtures | None, step: Pass, least: float) -> Mixtures:
    components = before.components if before is not None else 1
    model = estimate(sums, classes, components, before)
    return model.split(occupancies(sums, classes, components), least) if step.split else model


def _grown(p: SenonesParams, model: AlignmentModel, sums: ExactSums) -> AlignmentModel:
    """Grow the trees; if senone Gaussians are trained next, initialise them from the leaves."""
    keys = sums.keys()
    rows = dict(zip(map(model.triple, keys.tolist()), sums.rows(keys), strict=True))
    dims = (sums.width - 1) // 2
    units = grow(TripleStatistics(dims, rows), model.phones, p.senones, p.min_frames, model.noises)
    units = replace(units, noises=dict(p.noises), cross_word=p.cross_word)
    grown = replace(model, units=units)
    following = passes_of(p)[model.done :]
    if not following or following[0].what not in ("senones", "mllt"):
        return grown
    leaves = ExactSums(sums.width)
    for triple, row in rows.items():
        leaves.add([units.senone_of(*triple)], [row])
    return replace(grown, by_senone=estimate(leaves, units.size, 1))
