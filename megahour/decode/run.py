"""Decodes one features shard: the accelerator service computes posteriors; this process searches as they arrive."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from megahour.batches.ragged import frames_of
from megahour.core.schemas import CONFIDENCE, HYPOTHESES, TAG
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.text.edit_distance import align
from megahour.decode.build import read_graph
from megahour.decode.graph import to_kaldifst
from megahour.decode.lattice_search import LatticeSearcher, composed_graph
from megahour.decode.match import with_tuned_scale
from megahour.decode.nbest import Text, as_items
from megahour.decode.params import DecodeParams
from megahour.decode.search import Hypothesis, Searcher, SearchOptions
from megahour.features.sets import frame_seconds_of, set_of
from megahour.features.stack import stack
from megahour.lattices.table import SUFFIX, LatticeRow, density, to_table
from megahour.models.configuration import normalisation, output_without_graph, read_config
from megahour.models.paths import confidence, most_likely
from megahour.models.service import open_session
from megahour.serve.spec import ModelSpec

if TYPE_CHECKING:
    from megahour.decode.token_search import TokenReading, TokenSearcher

Float32 = npt.NDArray[np.float32]
Search = Callable[[Sequence[Float32]], list[list[Hypothesis] | ValueError]]


def decode_shard(
    p: DecodeParams, inputs: Mapping[str, Artifact], shard: int, spec: ModelSpec, out: ShardWriter, ctx: Context
) -> None:
    """Write one *hypotheses* shard: a row per utterance of features shard `shard`, in its order.

    Rows hold the hypotheses at the acoustic scale. Utterances too short for one stacked frame are dropped. Utterances
    are quarantined if they are too long for a batch, if the model fails on them, or if the search of their posteriors
    fails. With `nbest`, `.nbest.jsonl` has a line for each row; with `lattice`, `.lattices.parquet` has a row. With
    `scales`, the statistics `errors_at_…` count the word errors at each scale against the features' text.
    """
    model = read_config(inputs["model"])
    table = inputs["features"].read_table(shard, ".arrow", columns=["key", "text", "frames", "features"])
    mean, inv_std, size = normalisation(model, where=inputs["model"].url)
    tags = model.get("tags", [])
    frames = table["frames"].to_numpy()
    rows = np.flatnonzero(frames >= size).tolist()
    values = frames_of(table, len(mean), where=inputs["features"].url)
    out.came_in(len(table))
    out.drop("too-short", len(table) - len(rows))
    frame_s = frame_seconds_of(inputs["features"])
    out.stat("audio_s", round(int(frames[rows].sum()) * frame_s, 2))
    frame_s *= size * model.get("subsample", 1)

    def sequences() -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for row in rows:
            yield row, stack(values.row(row), 0, mean, inv_std, size)

    scales, search, together = _search(with_tuned_scale(p, inputs), inputs)
    listed: list[str] = []
    lattices: list[LatticeRow] = []
    keys, texts = table["key"].to_numpy(), table["text"]
    hypotheses: list[tuple[Any, ...]] = []
    failed: dict[int, str] = {}
    with open_session(ctx.service, spec) as session:
        answers = session.infer(sequences(), ordered=True, on_failure=failed.__setitem__)
        for some in iter(lambda: list(islice(answers, together)), []):
            found = search([next(iter(outputs.values())) for _, outputs in some])
            for (row, outputs), hypothesis in zip(some, found, strict=True):
                key = int(keys[row])
                if isinstance(hypothesis, ValueError):
                    out.quarantine(key, "not-searchable", str(hypothesis))
                    continue
                best = hypothesis[0]
                hypotheses.append(_row(p, key, best, most_likely(outputs["tags"], tags) if tags else ()))
                if best.lattice is not None:
                    scale = scales[0] if "graph" in inputs else 1.0
                    lattices.append(LatticeRow(key, best.lattice, scale, frame_s, best.final))
                if p.nbest:
                    listed.append(_nbest_line(key, best.nbest[: p.nbest]))
                _count(out, p, scales, hypothesis, texts[row].as_py())
            ctx.progress(len(hypotheses), len(rows), "utterances")
    for row, reason in sorted(failed.items()):
        out.quarantine(int(keys[row]), "inference-failed", reason, inputs["features"].url)
    schema = pa.schema([*HYPOTHESES, *([CONFIDENCE] if p.confidence else []), *(TAG if tags else [])])
    columns = zip(*hypotheses, strict=True) if hypotheses else ([] for _ in schema.names)
    out.table(pa.table([pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)], schema=schema))
    if p.nbest:
        out.text("".join(listed), ".nbest.jsonl")
    if p.lattice:
        out.table(to_table(lattices), SUFFIX)
        out.stats.update(density([row.lattice for row in lattices]))
    out.tags["set"] = set_of(inputs["features"], shard)
    out.tags["model"] = p.model_name


def _row(p: DecodeParams, key: int, best: Hypothesis, tag: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row in the order of the table's columns. tag: the tag and its probability; empty for a model without tags."""
    sure = (best.confidence,) if p.confidence else ()
    return (key, p.model_name, " ".join(best.words), best.score, len(best.labels), *sure, *tag)


def _nbest_line(key: int, texts: Sequence[Text]) -> str:
    return json.dumps({"id": str(key), "nbest": as_items(texts)}, ensure_ascii=False) + "\n"


def _count(out: ShardWriter, p: DecodeParams, scales: Sequence[float], found: Sequence[Hypothesis], text: str) -> None:
    """Add an utterance to the statistics. found: its hypothesis at each scale; the first is the one that is kept."""
    for scale, hypothesis in zip(scales, found, strict=True) if p.scales else ():
        out.stat(f"errors_at_{scale:g}", align(text.split(), hypothesis.words).errors)
    out.stat("reference_words", len(text.split()) if p.scales else 0)
    out.stat("decoded_frames", len(found[0].labels))
    out.stat("unfinished", int(not found[0].final))
    out.kept()


def _search(p: DecodeParams, inputs: Mapping[str, Artifact]) -> tuple[list[float], Search, int]:
    """The scales to try, the search, and how many utterances to pass it at a time.

    The search gives a hypothesis per scale, or the error, for each utterance. The first scale's hypotheses are kept.
    """
    if "graph" not in inputs:
        from megahour.decode.token_search import TOGETHER  # graphs need no torch

        scales = list(dict.fromkeys([p.lm_scale, *p.scales]))
        tokens = _token_searchers(inputs, p, scales)

        def spell(outputs: Sequence[Float32]) -> list[list[Hypothesis] | ValueError]:
            found = zip(*(searcher(outputs) for searcher in tokens), strict=True)
            return [_spelled(tokens[0], readings, p) for readings in found]

        return scales, spell, TOGETHER
    searchers = _searchers(p, inputs)
    blank = bool(read_config(inputs["model"]).get("tokens"))

    def search(outputs: Sequence[Float32]) -> list[list[Hypothesis] | ValueError]:
        return [_with_each(list(searchers.values()), log_probs, p.nbest, blank=blank) for log_probs in outputs]

    return list(searchers), search, 1


def _token_searchers(inputs: Mapping[str, Artifact], p: DecodeParams, scales: Sequence[float]) -> list[TokenSearcher]:
    """A searcher for each weight of the language model; they share the model."""
    from megahour.decode.token_search import TokenSearcher

    model = inputs["model"]
    config = read_config(model)
    module = None
    if output_without_graph(config, attention=p.attention_weight > 0) != "log_probs":
        from megahour.models.inference import restore

        module = restore(config, model.read_bytes(0, ".safetensors"), where=model.url, tell=p.tell).eval()
    return [TokenSearcher(config, module, p.model_copy(update={"lm_scale": scale}), inputs) for scale in scales]


def _spelled(
    tokens: TokenSearcher, found: Sequence[list[TokenReading] | ValueError], p: DecodeParams
) -> list[Hypothesis] | ValueError:
    """A hypothesis from each scale's readings of an utterance, best first, or the error.

    The first one has its n-best list and its lattice.
    """
    hypotheses: list[Hypothesis] = []
    for readings in found:
        if isinstance(readings, ValueError):
            return readings
        best = readings[0]
        words = tuple(word.text for word in tokens.words(best.path.labels))
        sure = confidence(best.path.labels, best.path.chances, blank=True)
        found_all = Hypothesis(words, best.score, best.path.labels, final=True, confidence=sure)
        if p.nbest and not hypotheses:
            found_all = replace(found_all, nbest=tokens.texts(readings, p.nbest))
        if p.lattice and not hypotheses:
            found_all = replace(found_all, lattice=tokens.lattice(readings, p.lattice))
        hypotheses.append(found_all)
    return hypotheses


def _with_each(
    searchers: Sequence[Searcher | LatticeSearcher], log_probs: Float32, nbest: int, *, blank: bool
) -> list[Hypothesis] | ValueError:
    """Each searcher's best hypothesis, or the error; the first one's has its n-best list and its confidence.

    blank: label 0 is the blank, which confidence ignores.
    """
    try:
        found = [searcher(log_probs) for searcher in searchers]
        if nbest and isinstance(searchers[0], Searcher):
            found[0] = replace(found[0], nbest=searchers[0].texts(log_probs, nbest))
        labels = found[0].labels
        chances = np.exp(log_probs[np.arange(len(labels)), list(labels)]).tolist()
        found[0] = replace(found[0], confidence=confidence(labels, chances, blank=blank))
    except ValueError as error:
        return error
    return found


def _searchers(p: DecodeParams, inputs: Mapping[str, Artifact]) -> dict[float, Searcher | LatticeSearcher]:
    """A searcher of the graph for each acoustic scale; first the scale whose hypotheses are kept."""
    graph, about = read_graph(inputs["graph"])
    fst = to_kaldifst(graph.fst)
    chosen = p.acoustic_scale
    prior_scale = p.prior_scale if about["priors"] is not None else 0.0
    options = SearchOptions(p.beam, p.max_active, chosen, prior_scale, p.min_active)
    searchers = {
        scale: Searcher(graph, about["priors"], replace(options, acoustic_scale=scale), fst)
        for scale in (chosen, *(scale for scale in p.scales if scale != chosen))
    }
    if "lm" in inputs:
        composed = composed_graph(graph, inputs, p.composed_lm_scale)
        wanted = {scale: (p.lattice, p.nbest) if scale == chosen else (0.0, 0) for scale in searchers}
        return {scale: LatticeSearcher(graph, searchers[scale], *wanted[scale], composed) for scale in searchers}
    near = {chosen: LatticeSearcher(graph, searchers[chosen], p.lattice, p.nbest)} if p.lattice else {}
    return {**searchers, **near}
