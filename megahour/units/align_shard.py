"""The last pass: the senone of every frame of a features shard, and which pronunciations its words had."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from megahour.core.schemas import SENONE_ALIGNMENTS
from megahour.core.writer import ShardWriter
from megahour.units.alignment_model import Alignment, AlignmentModel
from megahour.units.utterances import Corpus, Dropped, Utterance

NAMED = 100  # words that no one can pronounce, in a shard's statistics
TOO_SHORT = "too-short-for-text"
SPOKEN = pa.schema([("word", pa.string()), ("pronunciation", pa.string()), ("count", pa.int64())])


class SpokenWords:
    """How often each pronunciation was the best, of words that have several."""

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


def align_shard(corpus: Corpus, model: AlignmentModel, shard: int, out: ShardWriter) -> None:
    """Write `.alignments.arrow` and `.spoken.parquet`; utterances that cannot be aligned are counted by reason."""
    assert model.units is not None
    dropped, spoken = Dropped(), SpokenWords()
    keys, labels, score = [], [], 0
    for utterance in corpus.utterances(shard, 1.0, dropped):
        if (alignment := model.align(utterance)) is None:
            dropped.reasons[TOO_SHORT] += 1
            continue
        spoken.add(utterance, alignment)
        keys.append(utterance.key)
        labels.append(model.senones(alignment.path)[alignment.slots].astype(np.int16))
        score += round(alignment.score * 1000)  # whole numbers add up to the same in any shards
    out.table(alignments(keys, labels), ".alignments.arrow")
    out.table(spoken.table(), ".spoken.parquet")
    out.kept(len(keys))
    out.came_in(len(keys) + dropped.reasons.total())
    for reason, count in sorted(dropped.reasons.items()):
        out.drop(reason, count)
    frames = sum(map(len, labels))
    out.stats.update(frames=frames, phones=len(model.phones), log_likelihood_1000=score)
    out.stats["senone_frames"] = senone_frames(labels, model.units.size)
    if dropped.missing:
        out.stats["missing_words"] = dict(sorted(dropped.missing.items(), key=lambda item: (-item[1], item[0]))[:NAMED])
    out.stat("audio_s", round(frames / 100, 2))


def alignments(keys: list[int], labels: list[np.ndarray]) -> pa.Table:
    """A table of `SENONE_ALIGNMENTS`, of labels (T,) of each utterance."""
    columns = [keys, [len(row) for row in labels], labels]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SENONE_ALIGNMENTS, strict=True)]
    return pa.table(arrays, SENONE_ALIGNMENTS)


def senone_frames(labels: list[np.ndarray], senones: int) -> list[int]:
    """Frames of each senone."""
    flat = np.concatenate(labels) if labels else np.zeros(0, np.int64)
    return [int(count) for count in np.bincount(flat, minlength=senones)]
