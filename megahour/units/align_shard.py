"""The final alignment pass: one senone per frame of a features shard, and counts of the pronunciations used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.errors import StageError
from megahour.core.receipts import Receipt
from megahour.core.schemas import SENONE_ALIGNMENTS
from megahour.core.stage import Task
from megahour.core.writer import ShardWriter
from megahour.features.sets import frame_seconds_of
from megahour.units.alignment_model import Alignment, AlignmentModel
from megahour.units.utterances import Dropped, LabelledCorpus, Utterance

NAMED = 100  # words missing from the lexicon that a shard's statistics list at most
TOO_SHORT = "too-short-for-text"
SPOKEN = pa.schema([("word", pa.string()), ("pronunciation", pa.string()), ("count", pa.int64())])


class SpokenWords:
    """Counts the pronunciations that alignment chose, for words with more than one."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def add(self, utterance: Utterance, alignment: Alignment) -> None:
        used = {alignment.path.variants[slot] for slot in np.unique(alignment.slots).tolist()}
        for word, variant in used - {(-1, -1)}:
            variants = utterance.pronunciations[word]
            if len(variants) > 1:
                self.counts[utterance.words[word], " ".join(variants[variant])] += 1

    def table(self) -> pa.Table:
        rows = sorted(self.counts.items())
        return pa.table([[word for (word, _), _ in rows], [way for (_, way), _ in rows], [n for _, n in rows]], SPOKEN)


class ShardAlignment:
    """The alignments of a shard in order: for each utterance its key and its senones (T,)."""

    def __init__(self, phones: int, senones: int) -> None:
        self.phones, self.senones = phones, senones
        self.keys: list[int] = []
        self.labels: list[NDArray[np.int16]] = []
        self._spoken, self._score = SpokenWords(), 0

    def add(self, utterance: Utterance, alignment: Alignment, senones: NDArray[np.int32]) -> None:
        """senones: (T,)."""
        self._spoken.add(utterance, alignment)
        self._score += round(alignment.score * 1000)  # integers, so that the total does not depend on the sharding
        self.keys.append(utterance.key)
        self.labels.append(senones.astype(np.int16))

    def write(self, out: ShardWriter, dropped: Dropped, frame_s: float) -> None:
        """Write `.alignments.arrow` and `.spoken.parquet`, and count the dropped utterances by reason.

        frame_s: seconds from one frame to the next.
        """
        columns = [self.keys, [len(row) for row in self.labels], self.labels]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, SENONE_ALIGNMENTS, strict=True)]
        out.table(pa.table(arrays, SENONE_ALIGNMENTS), ".alignments.arrow")
        out.table(self._spoken.table(), ".spoken.parquet")
        out.kept(len(self.keys))
        out.came_in(len(self.keys) + dropped.reasons.total())
        for reason, count in sorted(dropped.reasons.items()):
            out.drop(reason, count)
        flat = np.concatenate(self.labels) if self.labels else np.zeros(0, np.int64)
        out.stats.update(frames=len(flat), phones=self.phones, log_likelihood_1000=self._score)
        out.stats["senone_frames"] = np.bincount(flat, minlength=self.senones).tolist()
        if dropped.missing:
            often = sorted(dropped.missing.items(), key=lambda item: (-item[1], item[0]))
            out.stats["missing_words"] = dict(often[:NAMED])
        out.stat("audio_s", round(len(flat) * frame_s, 2))


def align_shard(corpus: LabelledCorpus, model: AlignmentModel, task: Task, out: ShardWriter) -> None:
    """Align a features shard with `model` and write the result. The task has `shard`, and perhaps `beside`."""
    assert model.units is not None
    dropped, result = Dropped(), ShardAlignment(len(model.phones), model.units.size)
    for utterance in corpus.utterances(task["shard"], 1.0, dropped, beside=task.spec.get("beside")):
        if (alignment := model.align(utterance)) is None:
            dropped.reasons[TOO_SHORT] += 1
        else:
            result.add(utterance, alignment, model.senones(alignment.path)[alignment.slots])
    result.write(out, dropped, frame_seconds_of(corpus.features))


def summary(receipts: Sequence[Receipt], *, where: str) -> dict[str, Any]:
    """Totals over the shards that `ShardAlignment` wrote. `priors` are the senones' shares of all aligned frames.

    Raises StageError: nothing was aligned.
    """
    frames = sum(receipt.stats["frames"] for receipt in receipts)
    if not frames:
        raise StageError("no utterance could be aligned", where=where, remedy="see the counts")
    counts = np.maximum(np.sum([receipt.stats["senone_frames"] for receipt in receipts], axis=0), 1)
    score = sum(receipt.stats["log_likelihood_1000"] for receipt in receipts) / 1000
    return {
        **{"senones": len(counts), "phones": receipts[0].stats["phones"], "frames": frames},
        "log_likelihood": round(score / frames, 4),
        "priors": [float(f"{share:.9g}") for share in counts / counts.sum()],
    }
