"""Decoding one features shard: posteriors through the accelerator service, search here, as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from megahour.batches.ragged import Ragged
from megahour.core.errors import ConfigError
from megahour.core.schemas import HYPOTHESES
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.text.edit_distance import align
from megahour.decode.arrays import to_kaldifst
from megahour.decode.build import read_graph
from megahour.decode.params import DecodeParams
from megahour.decode.search import Hypothesis, Searcher, SearchOptions
from megahour.features.stack import stack
from megahour.models.service import open_session
from megahour.serve.spec import ModelSpec

if TYPE_CHECKING:
    from megahour.models.token_search import TokenSearcher

FRAME_S = 0.01
Float32 = npt.NDArray[np.float32]
Search = Callable[[Sequence[Float32]], list[list[Hypothesis] | ValueError]]


def decode_shard(
    p: DecodeParams, inputs: Mapping[str, Artifact], shard: int, spec: ModelSpec, out: ShardWriter, ctx: Context
) -> None:
    """One *hypotheses* shard: a row per utterance of features shard `shard`, in its order, at the acoustic scale.

    Utterances too short for one stacked frame are dropped; those without posteriors, because they are too long for a
    batch or the model fails on them, and those whose posteriors cannot be searched are quarantined.
    With `scales`, statistics `errors_at_…` count word errors against the features' text at each.
    """
    model = inputs["model"].read_json(0, ".model.json")
    table = inputs["features"].read_table(shard, ".arrow", columns=["key", "text", "frames", "features"])
    mean, inv_std = (np.asarray(model["stats"][name], np.float32) for name in ("mean", "inv_std"))
    size = int(model["stack"])
    frames = table["frames"].to_numpy()
    rows = np.flatnonzero(frames >= size).tolist()
    values = Ragged(table["features"], len(mean))
    out.came_in(len(table))
    out.drop("too-short", len(table) - len(rows))
    out.stat("audio_s", round(int(frames[rows].sum()) * FRAME_S, 2))

    def sequences() -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for row in rows:
            yield row, stack(values.row(row), 0, mean, inv_std, size)

    scales, search, together = _search(p, inputs)
    keys, texts = table["key"].to_numpy(), table["text"]
    hypotheses: list[tuple[int, str, str, float, int]] = []
    failed: dict[int, str] = {}
    with open_session(ctx.service, spec) as session:
        answers = session.infer(sequences(), ordered=True, on_failure=failed.__setitem__)
        for some in iter(lambda: list(islice(answers, together)), []):
            found = search([next(iter(outputs.values())) for _, outputs in some])
            for (row, _), hypothesis in zip(some, found, strict=True):
                key = int(keys[row])
                if isinstance(hypothesis, ValueError):
                    out.quarantine(key, "not-searchable", str(hypothesis))
                    continue
                best = hypothesis[0]
                hypotheses.append((key, p.model_name, " ".join(best.words), best.score, len(best.labels)))
                _count(out, p, scales, hypothesis, texts[row].as_py())
            ctx.progress(len(hypotheses), len(rows), "utterances")
    for row, reason in sorted(failed.items()):
        out.quarantine(int(keys[row]), "inference-failed", reason, inputs["features"].url)
    columns = zip(*hypotheses, strict=True) if hypotheses else ([] for _ in HYPOTHESES.names)
    out.table(pa.table([pa.array(c, t) for c, t in zip(columns, HYPOTHESES.types, strict=True)], schema=HYPOTHESES))
    out.tags["set"] = next(r.tags["set"] for r in inputs["features"].receipts() if r.shard == shard)
    out.tags["model"] = p.model_name


def _count(out: ShardWriter, p: DecodeParams, scales: Sequence[float], found: Sequence[Hypothesis], text: str) -> None:
    """Statistics of an utterance: what was found at each scale, the one whose words are kept first."""
    for scale, hypothesis in zip(scales, found, strict=True) if p.scales else ():
        out.stat(f"errors_at_{scale:g}", align(text.split(), hypothesis.words).errors)
    out.stat("reference_words", len(text.split()) if p.scales else 0)
    out.stat("decoded_frames", len(found[0].labels))
    out.stat("unfinished", int(not found[0].final))
    out.kept()


def _search(p: DecodeParams, inputs: Mapping[str, Artifact]) -> tuple[list[float], Search, int]:
    """Acoustic scales, what gives a hypothesis for each of them, and how many utterances it wants at a time."""
    if "graph" not in inputs:
        tokens = _token_searcher(inputs["model"], p)

        def spell(outputs: Sequence[Float32]) -> list[list[Hypothesis] | ValueError]:
            return [
                path
                if isinstance(path, ValueError)
                else [Hypothesis(tuple(w.text for w in tokens.words(path.labels)), path.score, path.labels, final=True)]
                for path in tokens(outputs)
            ]

        return [p.acoustic_scale], spell, tokens.together
    searchers = _searchers(p, inputs)

    def search(outputs: Sequence[Float32]) -> list[list[Hypothesis] | ValueError]:
        return [_with_each(searchers.values(), log_probs) for log_probs in outputs]

    return list(searchers), search, 1


def _token_searcher(model: Artifact, p: DecodeParams) -> TokenSearcher:
    from megahour.models.inference import output_without_graph, restore
    from megahour.models.token_search import TokenSearcher  # graphs need no torch

    config = model.read_json(0, ".model.json")
    if output_without_graph(config) == "log_probs":
        return TokenSearcher(config, None, beams=p.beams)
    module: Any = restore(config, model.read_bytes(0, ".safetensors"), where=model.url).eval()
    return TokenSearcher(config, module, beams=p.beams)


def _with_each(searchers: Iterable[Searcher], log_probs: Float32) -> list[Hypothesis] | ValueError:
    try:
        return [searcher(log_probs) for searcher in searchers]
    except ValueError as error:
        return error


def _searchers(p: DecodeParams, inputs: Mapping[str, Artifact]) -> dict[float, Searcher]:
    """A searcher of the graph per acoustic scale, the one whose hypotheses are kept first."""
    graph, about = read_graph(inputs["graph"])
    fst = to_kaldifst(graph.fst)
    chosen = p.acoustic_scale
    if "tuned" in inputs:
        if "best_scale" not in inputs["tuned"].summary:
            raise ConfigError("`tuned` tried no scales", where=inputs["tuned"].url, remedy="give that step `scales`")
        chosen = float(inputs["tuned"].summary["best_scale"])
    prior_scale = p.prior_scale if about["priors"] is not None else 0.0
    return {
        scale: Searcher(graph, about["priors"], SearchOptions(p.beam, p.max_active, scale, prior_scale), fst)
        for scale in (chosen, *(scale for scale in p.scales if scale != chosen))
    }
