"""Worker side of `senones`: flat start, Viterbi training of monophones, the tree, and the labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.errors import StageError
from megahour.core.schemas import SENONE_ALIGNMENTS
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.features.sets import need_frames
from megahour.units.gmm import Mixtures, Statistics, observations
from megahour.units.hmm import SILENCE, StatePath, transcript_path, viterbi
from megahour.units.lexicon import Lexicon, read_lexicon
from megahour.units.params import SenonesParams
from megahour.units.tree import Triple, TripleStatistics, grow

EDGE = 0.08  # share of an utterance taken as silence at each end where no word times are known
Times = Mapping[int, tuple[NDArray[np.int64], NDArray[np.int64]]]  # key → first and last frames of its words


@dataclass(frozen=True)
class Utterance:
    """Observations (T, D) and the pronunciations of an utterance's words."""

    key: int
    x: NDArray[np.float32]
    pronunciations: list[list[list[str]]]


@dataclass
class Aligner:
    """Streams the labelled utterances and aligns them with the present model."""

    features: Artifact
    sets: Sequence[str]
    lexicon: Lexicon
    column: dict[str, int]

    def utterances(self, out: ShardWriter | None = None) -> Iterator[Utterance]:
        """All usable utterances in order; counts them into `out` when it is given."""
        dims = len(self.features.summary["mean"])
        for receipt in self.features.receipts():
            if receipt.tags.get("set") not in self.sets:
                continue
            table = self.features.read_table(receipt.shard, ".arrow", columns=["key", "text", "features"])
            for row in range(table.num_rows):
                words = (table["text"][row].as_py() or "").split()
                missing = next((word for word in words if word not in self.lexicon), None)
                if out is not None:
                    out.came_in()
                if missing is not None or not words:
                    if out is not None:
                        out.drop("no-pronunciation" if words else "no-text")
                    continue
                flat = table["features"][row].values.to_numpy()
                pronunciations = [self.lexicon[word] for word in words]
                yield Utterance(table["key"][row].as_py(), observations(flat.reshape(-1, dims)), pronunciations)

    def align(self, utterance: Utterance, model: Mixtures) -> tuple[StatePath, NDArray[np.int32], float] | None:
        """Path, slot of every frame, and log-likelihood; None when the words do not fit into the frames."""
        path = transcript_path(utterance.pronunciations, self.column)
        states = viterbi(model.scores(utterance.x), path)
        return None if states is None else (path, *states)


def make_units(
    p: SenonesParams,
    features: Artifact,
    lexicon_artifact: Artifact,
    selection: Artifact | None,
    out: ShardWriter,
    ctx: Context,
) -> None:
    """Write `.units.json`, `.lexicon.txt` and `.alignments.arrow`."""
    need_frames(features, where="senones")
    text = lexicon_artifact.read_bytes(0, ".lexicon.txt").decode()
    lexicon = read_lexicon(text, where=lexicon_artifact.url)
    phones = sorted({phone for variants in lexicon.values() for variant in variants for phone in variant} - {SILENCE})
    column = {phone: i for i, phone in enumerate([*phones, SILENCE])}
    aligner = Aligner(features, p.sets, lexicon, column)
    model = _first_model(aligner, word_times(selection, p.sets) if selection is not None else {})
    passes = p.iterations
    while True:
        for _ in range(passes):
            model = _viterbi_pass(aligner, model)
            ctx.progress(model.means.shape[1], p.mixtures, "mixtures")
        if model.means.shape[1] >= p.mixtures:
            break
        model, passes = model.split(), 2
    _write(p, aligner, model, phones, text, out)


def _first_model(aligner: Aligner, times: Times) -> Mixtures:
    """One Gaussian per phone from words cut into equal phones."""
    statistics: Statistics | None = None
    for utterance in aligner.utterances():
        labels = first_labels(utterance, times, aligner.column)
        statistics = statistics or Statistics(len(aligner.column), 1, utterance.x.shape[1])
        statistics.add(utterance.x, labels, None)
    if statistics is None:
        raise StageError(
            "no utterance to learn from", where=aligner.features.url, remedy="check `sets` and the lexicon's words"
        )
    return statistics.estimate()


def first_labels(utterance: Utterance, times: Times, column: dict[str, int]) -> NDArray[np.int32]:
    """(T,) phone columns: word by word where times are known, over the whole utterance otherwise; silence elsewhere."""
    frames = utterance.x.shape[0]
    labels = np.full(frames, column[SILENCE], np.int32)
    words = [variants[0] for variants in utterance.pronunciations]
    if utterance.key in times and len(times[utterance.key][0]) == len(words):
        spans = [(int(a), int(b), word) for a, b, word in zip(*times[utterance.key], words, strict=True)]
    else:
        edge = int(frames * EDGE)
        spans = [(edge, frames - edge, [phone for word in words for phone in word])]
    for start, stop, word in spans:
        bounds = np.linspace(start, max(stop, start + 1), len(word) + 1).round().astype(int)
        for phone, a, b in zip(word, bounds[:-1], bounds[1:], strict=True):
            labels[max(a, 0) : max(b, 0)] = column[phone]
    return labels


def word_times(selection: Artifact, sets: Sequence[str]) -> Times:
    """First and last 10 ms frames of the words of each utterance whose word times are known."""
    times = {}
    columns = ["key", "rate_hz", "word_start_samples", "word_end_samples"]
    for receipt in selection.receipts():
        if receipt.tags.get("set") in sets:
            for row in selection.read_table(receipt.shard, columns=columns).to_pylist():
                shift = row["rate_hz"] // 100
                starts = np.array(row["word_start_samples"], np.int64)
                if (starts >= 0).all():  # -1: cut without an alignment
                    ends = np.array(row["word_end_samples"], np.int64)
                    times[row["key"]] = (starts // shift, ends // shift)
    return times


def _viterbi_pass(aligner: Aligner, model: Mixtures) -> Mixtures:
    phones, mixtures, dims = model.means.shape
    statistics = Statistics(phones, mixtures, dims)
    for utterance in aligner.utterances():
        states = aligner.align(utterance, model)
        if states is not None:
            path, slots, _ = states
            column = np.array([aligner.column[phone] for _, phone, _ in path.slots], np.int32)
            statistics.add(utterance.x, column[slots], model)
    if not statistics.occupancy.any():
        raise StageError(
            "no utterance has room for its words", where=aligner.features.url, remedy="check transcripts and lexicon"
        )
    return statistics.estimate()


def _write(
    p: SenonesParams, aligner: Aligner, model: Mixtures, phones: list[str], lexicon_text: str, out: ShardWriter
) -> None:
    """Last pass: alignments, the tree from their triphones, senone labels."""
    stats = TripleStatistics(model.means.shape[2])
    aligned: list[tuple[int, tuple[Triple, ...], NDArray[np.int32]]] = []
    total = 0.0
    for utterance in aligner.utterances(out):
        states = aligner.align(utterance, model)
        if states is None:
            out.drop("too-short-for-text")
            continue
        path, slots, score = states
        out.kept()
        total += score
        order = np.argsort(slots, kind="stable")
        used, starts = np.unique(slots[order], return_index=True)
        for slot, frames in zip(used, np.split(order, starts[1:]), strict=True):
            stats.add(path.slots[slot], utterance.x[frames])
        aligned.append((utterance.key, path.slots, slots))
    if not aligned:
        raise StageError("no utterance could be aligned", where=aligner.features.url)
    units = grow(stats, phones, p.senones, p.min_frames)
    out.text(units.to_json(), ".units.json")
    out.text(lexicon_text, ".lexicon.txt")
    labels = []
    for _, triples, slots in aligned:
        senones = np.array([units.senone_of(*triple) for triple in triples], np.int16)
        labels.append(senones[slots])
    columns = [[key for key, _, _ in aligned], [len(row) for row in labels], labels]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SENONE_ALIGNMENTS, strict=True)]
    out.table(pa.table(arrays, SENONE_ALIGNMENTS), ".alignments.arrow")
    frames_total = sum(len(row) for row in labels)
    out.stats.update(senones=units.size, phones=len(phones), frames=frames_total)
    out.stats["log_likelihood"] = round(total / frames_total, 4)
    out.stat("audio_s", round(frames_total / 100, 2))
