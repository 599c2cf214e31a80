"""Worker of `lattices`: rescores a shard's lattices and writes the best texts with word confidences and times."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from megahour.core.schemas import CONFIDENCE, HYPOTHESES
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange.record import recording_id
from megahour.corpus.text.edit_distance import align
from megahour.decode.build import pronounced
from megahour.decode.lattice_search import scorers as lm_scorers
from megahour.decode.params import LatticesParams
from megahour.lattices.edits import confidences, oracle_errors
from megahour.lattices.lattice import Lattice, pruned
from megahour.lattices.n_best import BestPath, best_texts
from megahour.lattices.rescore import UnknownWordError, rescored
from megahour.lattices.table import SUFFIX, LatticeRow, density, read_rows, to_table
from megahour.runner.beside import rows_beside
from megahour.units.hmm import read_units
from megahour.units.lexicon import lexicon_of

Span = tuple[int, int]


def word_spans(
    words: Sequence[str], labels: Sequence[int], ways: Mapping[str, Sequence[Sequence[int]]], pauses: Collection[int]
) -> list[Span] | None:
    """First frame of each word and the frame behind its last; None where the labels do not spell the words.

    ways: pronunciations as labels, each of which lasts a frame or more. pauses: labels that may lie around words.
    """
    ends: dict[int, Any] = {0: ()}  # where the words so far may end, with their spans: ((begin, end), those before)
    for word in words:
        after: dict[int, Any] = {}
        for end, before in ends.items():
            for begin in _behind_pauses(labels, end, pauses):
                for way in ways.get(word, ()):
                    for stop in _stops(labels, begin, way):
                        after.setdefault(stop, ((begin, stop), before))
        ends = after
    for end, spans in ends.items():
        if all(label in pauses for label in labels[end:]):
            found = []
            while spans:
                span, spans = spans
                found.append(span)
            return found[::-1]
    return None


def _behind_pauses(labels: Sequence[int], frame: int, pauses: Collection[int]) -> list[int]:
    """The frame, and those that pauses lead to; the last first, so that words are short where several fit."""
    stop = frame
    while stop < len(labels) and labels[stop] in pauses:
        stop += 1
    return list(range(stop, frame - 1, -1))


def _stops(labels: Sequence[int], frame: int, way: Sequence[int]) -> list[int]:
    """Where a pronunciation that begins at a frame may end."""
    stops = {frame}
    for label in way:
        after = set()
        for stop in stops:
            while stop < len(labels) and labels[stop] == label:
                stop += 1
                after.add(stop)
        stops = after
    return sorted(stops, reverse=True)


Inputs = Mapping[str, Artifact]


@dataclass(frozen=True)
class WordSpeller:
    """Each word's pronunciations as sequences of labels, and the labels of silence and noises."""

    ways: Mapping[str, Sequence[Sequence[int]]]
    pauses: Collection[int]


def lattices_shard(p: LatticesParams, inputs: Inputs, shard: int, out: ShardWriter, ctx: Context) -> None:
    """Write the *hypotheses* of a shard's lattices, `.lattices.parquet` and `.ctm`.

    `confidence` is the mean over the words. Lattices without a path, or with words that the graph's language model
    lacks, are quarantined. Statistics: errors of the texts and of the oracle if `features` are given; words without
    exact times; words unknown to `lm`.
    """
    scorers = lm_scorers(inputs["lm"].url, inputs["graph_lm"].url) if "lm" in inputs else None
    speller = _speller(inputs)
    texts = _texts(inputs["texts"], shard) if "features" in inputs else {}
    places = _places(inputs["places"], shard) if "selection" in inputs else {}
    rows, kept, listed = [], [], []
    ctm: list[tuple[tuple[str, float] | tuple[()], list[str]]] = []
    for row in read_rows(inputs["lattices"], shard):
        out.came_in()
        scale = p.acoustic_scale or row.scale
        try:
            lattice = row.lattice
            if scorers is not None:
                weights = {"lm_scale": p.lm_scale, "word_bonus": p.word_bonus, "scale": scale}
                lattice = rescored(lattice, scorers[0], scorers[1], **weights, finished=row.finished)
                out.stat("unknown_words", sum(not scorers[1].knows(w) for w in set(lattice.text(range(lattice.arcs)))))
            lattice = _as_kept(pruned(lattice, scale, p.beam or np.inf))
        except ValueError as error:
            reason = "not-in-graph-lm" if isinstance(error, UnknownWordError) else "no-path"
            out.quarantine(row.key, reason, str(error), inputs["lattices"].url)
            continue
        found = best_texts(lattice, scale, max(1, p.nbest))
        best = found[0]
        sure = confidences(lattice, best.arcs, scale)
        mean = sum(sure) / len(sure) if sure else None
        rows.append((row.key, p.model_name, " ".join(best.words), -best.cost, lattice.frames, mean))
        kept.append(LatticeRow(row.key, lattice, scale, row.frame_s, row.finished))
        spans, exact = _spans(lattice, best, speller)
        out.stat("words_without_exact_times", 0 if exact else len(best.words))
        place = places.get(row.key, (f"{row.key} 1", 0.0))
        ctm.append((place if places else (), _ctm(*place, best.words, spans, sure, row.frame_s)))
        if p.nbest:
            listed.append(_nbest_line(row.key, found))
        if row.key in texts:
            _count(out, texts[row.key].split(), best.words, lattice)
        out.kept()
        ctx.progress(len(rows), 0, "lattices")
    schema = pa.schema([*HYPOTHESES, CONFIDENCE])
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema.names)
    out.table(pa.table([pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)], schema=schema))
    out.table(to_table(kept), SUFFIX)
    out.text("".join(line for _, lines in sorted(ctm, key=lambda each: each[0]) for line in lines), ".ctm")
    if p.nbest:
        out.text("".join(listed), ".nbest.jsonl")
    out.stats.update(density([row.lattice for row in kept]))
    receipt = inputs["lattices"].receipt(shard)
    out.tags.update({**(receipt.tags if receipt else {}), "model": p.model_name})


def _speller(inputs: Inputs) -> WordSpeller | None:
    if "lexicon" not in inputs:
        return None
    units = read_units(inputs["units"])
    lexicon = lexicon_of(inputs["lexicon"])
    return WordSpeller(pronounced(lexicon, units), units.pauses)


def _texts(texts: Artifact, shard: int) -> dict[int, str]:
    """Reference texts by key for a shard of lattices, laid out by `Lattices.layouts`."""
    table = rows_beside(texts, shard)
    return dict(zip(table["key"].to_pylist(), table["text"].to_pylist(), strict=True))


def _as_kept(lattice: Lattice) -> Lattice:
    """The lattice with its costs rounded to float32, as the table stores them."""
    graph, acoustic = (each.astype(np.float32).astype(np.float64) for each in (lattice.graph, lattice.acoustic))
    return replace(lattice, graph=graph, acoustic=acoustic)


def _spans(lattice: Lattice, best: BestPath, speller: WordSpeller | None) -> tuple[list[tuple[int, int]], bool]:
    """First and end frame of each word, and whether these are exact.

    Exact ones follow from the labels and the word's pronunciation, the others from where the lattice's arcs meet.
    """
    if speller is not None and len(lattice.labels):
        labels = lattice.labels_of(best.arcs).tolist()
        spans = word_spans(best.words, labels, speller.ways, speller.pauses)
        if spans is not None:
            return spans, True
    arcs = [arc for arc in best.arcs if lattice.word[arc]]
    ends = lattice.frame[lattice.source[arcs]].tolist(), lattice.frame[lattice.target[arcs]].tolist()
    return list(zip(*ends, strict=True)), False


def _places(places: Artifact, shard: int) -> dict[int, tuple[str, float]]:
    """By utterance: its recording and channel as in the CTM lines of `export`, and its start there in seconds."""
    rows = rows_beside(places, shard).to_pylist()
    return {
        row["key"]: (f"{recording_id(row)} {row['channel'] + 1}", row["start_samples"] / row["rate_hz"]) for row in rows
    }


def _ctm(
    place: str,
    start_s: float,
    words: Sequence[str],
    spans: Sequence[tuple[int, int]],
    sure: Sequence[float],
    frame_s: float,
) -> list[str]:
    """Lines in NIST's CTM format: recording or utterance, channel, start and duration in seconds, word, confidence."""
    return [
        f"{place} {start_s + begin * frame_s:.3f} {(end - begin) * frame_s:.3f} {word} {confidence:.4f}\n"
        for word, (begin, end), confidence in zip(words, spans, sure, strict=True)
    ]


def _nbest_line(key: int, found: Sequence[BestPath]) -> str:
    """An n-best list in the format of `megahour lm rescore`; its `score` is the acoustic score."""
    items = [
        {
            "text": " ".join(each.words),
            "total": round(-each.cost, 4),
            "score": round(each.graph - each.cost, 4),
            "graph": round(-each.graph, 4),
        }
        for each in found
    ]
    return json.dumps({"id": str(key), "nbest": items}, ensure_ascii=False) + "\n"


def _count(out: ShardWriter, reference: Sequence[str], words: Sequence[str], lattice: Lattice) -> None:
    out.stat("reference_words", len(reference))
    out.stat("errors", align(reference, words).errors)
    out.stat("oracle_errors", oracle_errors(lattice, reference))


def rates(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Word error rates of the texts and of the oracle, for the summary."""
    words = numbers.get("reference_words", 0)
    return {f"{name}wer": round(numbers[f"{name}errors"] / words, 6) for name in ("", "oracle_") if words}
