"""Stages `graph` (model, lexicon and units to a decoding graph) and `decode` (features to words)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError
from megahour.core.kinds import makers_of
from megahour.core.receipts import summed
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, SingleShard, Stage, Task
from megahour.decode.params import DecodeParams, GraphParams
from megahour.models.configuration import output_without_graph, read_config, tag_number, warn_untold

if TYPE_CHECKING:
    from megahour.serve.spec import ModelSpec


class MakeGraph(SingleShard[GraphParams]):
    """Writes `.fst` (OpenFst const), `.words.txt` (`word number` lines) and `.json`.

    Inputs: `lm`, `lexicon`, and `units` for topology hmm, or `model` (trained with criterion ctc) for topology ctc. To
    a model of phones the lexicon says how words are pronounced; to one of characters or pieces, only which words there
    are. Words are cut into pieces by the input `tokens`, or without it as the order of the model's pieces shows.
    Topology phones takes `units` alone.
    """

    name = "graph"
    params = GraphParams
    inputs = Input.if_given("lm", "lexicon", "units", "model", "tokens")

    def check(self, p: GraphParams, roles: Collection[str]) -> None:
        needed = {"hmm": ("lm", "lexicon", "units"), "ctc": ("lm", "lexicon", "model"), "phones": ("units",)}[
            p.topology
        ]
        missing = tuple(role for role in needed if role not in roles)
        if missing:
            named = ", ".join(f"`{role}`" for role in missing)
            raise ConfigError(
                f"topology {p.topology} needs the input {named}", where=self.name, remedy=makers_of(missing)
            )

    def plan(self, p: GraphParams, inputs: Inputs) -> list[Task]:
        if p.topology == "ctc":
            from megahour.decode.build import check_ctc

            check_ctc(inputs["model"])
        return super().plan(p, inputs)

    def run(self, p: GraphParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.decode.build import write_graph

        write_graph(p, inputs, out)


class Decode(Stage[DecodeParams]):
    """One task per features shard of the sets. Writes *hypotheses*; its summary names the best of `scales`.

    Without `graph`, a transducer or CTC model spells words in its tokens; the optional input `lm` is a language model
    of words or of these tokens. With `graph`, `lm` replaces `graph_lm`, the small language model that the graph was
    made from, during the search; it may be too large to be compiled into a graph. A run with `scales` on a held-out set
    can be the input `tuned` of the run on the test set: it weighs the acoustics against the graph, or `lm`.
    """

    name = "decode"
    version = 4
    params = DecodeParams
    inputs = (
        Input("features"),
        Input("model"),
        *Input.if_given("graph", "units"),
        Input("tuned", optional=True, kinds=("hypotheses",)),
        Input("lm", optional=True),
        *Input.if_given("graph_lm", "low_order_lm", kinds=("lm",)),
    )

    def check(self, p: DecodeParams, roles: Collection[str]) -> None:
        if "graph" not in roles and "units" in roles:
            what = "`units` applies only to decoding with a graph"
            raise ConfigError(what, where=self.name, remedy=makers_of(("graph",)))
        if not {"graph", "lm"} & set(roles) and (p.scales or "tuned" in roles):
            what = "`scales` and `tuned` need something to weigh: the input `graph`, or without one `lm`"
            raise ConfigError(what, where=self.name, remedy=makers_of(("graph", "lm")))
        if wrong := [scale for scale in p.scales if scale < 0 or ("graph" in roles and scale == 0)]:
            what = f"scales: {wrong[0]:g}"
            raise ConfigError(what, where=self.name, remedy="try values above 0; without a graph also 0")
        if p.differs("min_active") and ("graph" not in roles or "lm" in roles or p.lattice):
            what = "`min_active` applies only to a search of `graph` that neither writes lattices nor takes `lm`"
            raise ConfigError(what, where=self.name, remedy="leave it out")
        alone = {"low_order_lm"} & set(roles) | {
            name for name in ("hot_words", "word_bonus", "attention_weight") if getattr(p, name)
        }
        if "graph" in roles and alone:
            what = f"{', '.join(sorted(alone))}: only for decoding without a graph"
            raise ConfigError(what, where=self.name, remedy="leave them out, or the graph")
        if ("graph_lm" in roles or {"graph", "lm"} <= set(roles)) and not {"graph", "graph_lm", "lm"} <= set(roles):
            what = "`lm` replaces `graph_lm`, the language model that `graph` was made from, so both are needed"
            raise ConfigError(what, where=self.name, remedy="give all three, or `graph` alone, or `lm` alone")
        if "low_order_lm" in roles and "lm" not in roles:
            what = "`low_order_lm` is subtracted from `lm`, which is missing"
            raise ConfigError(what, where=self.name, remedy="give both, or neither")

    def plan(self, p: DecodeParams, inputs: Inputs) -> list[Task]:
        from megahour.decode.match import check_features, check_graph_lm, check_match, with_tuned_scale
        from megahour.features.sets import tasks_of_sets

        check_match(inputs)
        check_graph_lm(inputs)
        check_features(inputs)
        with_tuned_scale(p, inputs)
        config = read_config(inputs["model"])
        tag_number(config, p.tell, where=inputs["model"].url)
        warn_untold(config, p.tell, where=inputs["model"].url)
        _chunk(p, config, where=inputs["model"].url)
        if "graph" not in inputs:
            from megahour.decode.fusion import check_fusion

            check_fusion(p, config, inputs)
        return tasks_of_sets(inputs["features"], p.sets, where=self.name)

    def accelerator(self, p: DecodeParams, inputs: Inputs) -> ModelSpec:
        from megahour.models.service import model_spec

        config = read_config(inputs["model"])
        attention = p.attention_weight > 0
        more: dict[str, Any] = (
            {} if "graph" in inputs else {"outputs": output_without_graph(config, attention=attention)}
        )
        if p.tell:
            more["tell"] = p.tell
        if p.chunk_ms:
            more |= {"chunk": _chunk(p, config, where=inputs["model"].url), "left": p.left}
        return model_spec(inputs["model"], p.batch_frames, precision=p.precision, **more)

    def run(self, p: DecodeParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.decode.run import decode_shard

        decode_shard(p, inputs, task["shard"], self.accelerator(p, inputs), out, ctx)

    def finish(self, p: DecodeParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        numbers = summed(receipt.stats for receipt in receipts)
        summary: dict[str, Any] = {"model": p.model_name, "sets": sorted(p.sets), **numbers}
        if tag := read_config(inputs["model"]).get("tag"):
            summary["tag"] = tag
        if p.lattice:
            from megahour.lattices.table import density_summary

            summary |= density_summary(numbers)
            summary |= _lattice_lm(p, inputs)
        words = numbers.get("reference_words", 0)
        if p.scales and words:
            rates = {scale: numbers[f"errors_at_{scale:g}"] / words for scale in sorted(p.scales)}
            summary["wer_by_scale"] = {f"{scale:g}": round(rate, 6) for scale, rate in rates.items()}
            summary["best_scale"] = min(rates, key=lambda scale: (rates[scale], scale))
            if "graph" not in inputs:
                summary["scales_of"] = "lm_scale"
        return summary


def _lattice_lm(p: DecodeParams, inputs: Inputs) -> dict[str, Any]:
    """The language model of the graph whose costs the lattices have, and its weight: without a graph none, 0."""
    if "graph" not in inputs:
        return {"lattice_lm": "", "lattice_lm_scale": 0.0}
    if "lm" in inputs:
        return {"lattice_lm": inputs["lm"].manifest.digest, "lattice_lm_scale": p.composed_lm_scale}
    return {"lattice_lm": inputs["graph"].manifest.inputs.get("lm", ""), "lattice_lm_scale": 1.0}


def _chunk(p: DecodeParams, config: Mapping[str, Any], *, where: str) -> int:
    """Output frames in a chunk of `chunk_ms`; 0 for 0 ms.

    Raises ConfigError: less than a frame, or the model is no conformer, so that its words do not depend on chunks.
    """
    if not p.chunk_ms:
        return 0
    if config.get("kind") != "conformer":
        what = f"chunk_ms: {p.chunk_ms}, but only a conformer's attention has chunks; this is a model of kind "
        remedy = "leave chunk_ms out; an lstm gives the same words in any chunk"
        raise ConfigError(f"{what}{config.get('kind')}", where=where, remedy=remedy)
    frame_ms = 10 * int(config["stack"]) * int(config["subsample"])
    if not (frames := round(p.chunk_ms / frame_ms)):
        raise ConfigError(
            f"chunk_ms: {p.chunk_ms}", where=where, remedy=f"an output frame of the model has {frame_ms} ms"
        )
    return frames
