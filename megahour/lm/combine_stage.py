"""Stages `lm-interpolate`, `lm-prune`, `lm-perplexity` and `lm-convert`, which work on finished models."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, ShardWriter, SingleShard, Task
from megahour.lm.params import ConvertParams, InterpolateParams, PerplexityParams, PruneParams, SeveralModels

if TYPE_CHECKING:
    from megahour.lm.arpa.model import NgramModel

MODELS = tuple(Input(f"lm{number}", number > 1, ("lm",)) for number in range(1, 9))
TEXT = Input("text", optional=True)


class Interpolate(SingleShard[InterpolateParams]):
    """Writes `.arpa` and `.vocab.txt`; the summary has the weights, and perplexities of the held-out text."""

    name = "lm-interpolate"
    version = 2
    params = InterpolateParams
    inputs = (*MODELS, TEXT)

    def check(self, p: InterpolateParams, roles: Collection[str]) -> None:
        models = len(_names(p, roles))
        if not p.weights and not p.heldout and "text" not in roles:
            raise ConfigError("no weights", where=self.name, remedy="give weights, or held-out text to tune them on")
        if p.weights and len(p.weights) != models:
            message = f"{len(p.weights)} weights for {models} models"
            raise ConfigError(message, where=self.name, remedy="give one weight per model, those in `files` included")

    def run(self, p: InterpolateParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.combine.interpolate import gather, interpolate, tune
        from megahour.lm.combine.trie import unpack

        names, weights = _names(p, inputs), p.weights
        members = gather(_models(p, inputs), p.unknown)
        if p.heldout or "text" in inputs:
            fitted = tune(members, list(_sentences(p.heldout, inputs)), p.weights or None)
            weights = fitted.weights
            out.stats.update(asdict(fitted))
        out.stats.update(models=names, weights=list(weights))
        _write(unpack(interpolate(members, weights), members.vocabulary), out)


class Prune(SingleShard[PruneParams]):
    """Writes `.arpa` and `.vocab.txt`."""

    name = "lm-prune"
    version = 2
    params = PruneParams
    inputs = (Input("lm"), Input("history", optional=True, kinds=("lm",)), TEXT)

    def check(self, p: PruneParams, roles: Collection[str]) -> None:
        if "history" in roles and (p.history_text or "text" in roles):
            message = "contexts come from the input `history` or from text, not both"
            raise ConfigError(message, where=self.name, remedy="leave one of them out")

    def run(self, p: PruneParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.combine.context_probs import contexts_of_model, contexts_of_text
        from megahour.lm.combine.prune import prune
        from megahour.lm.combine.trie import build, unpack
        from megahour.lm.query.convert import read_lm

        model = read_lm(inputs["lm"])
        trie, contexts = build(model), None
        if "history" in inputs:
            contexts = contexts_of_model(trie, model.vocabulary, read_lm(inputs["history"]))
        elif p.history_text or "text" in inputs:
            contexts = contexts_of_text(trie, model.vocabulary, _sentences(p.history_text, inputs))
        pruned = prune(trie, threshold=p.threshold, size=p.ngrams, shortest=p.shortest, contexts=contexts)
        out.stats.update(before=model.sizes, threshold=pruned.threshold)
        _write(unpack(pruned.trie, model.vocabulary), out)


class Perplexity(SingleShard[PerplexityParams]):
    """Writes `.json`: for each model its size, and perplexities without and with unknown words."""

    name = "lm-perplexity"
    version = 2
    params = PerplexityParams
    inputs = (*MODELS, TEXT)

    def check(self, p: PerplexityParams, roles: Collection[str]) -> None:
        if not p.source and "text" not in roles:
            raise ConfigError("no text", where=self.name, remedy="give the input `text` or the parameter `source`")

    def run(self, p: PerplexityParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.combine.walk import perplexity

        sentences = list(_sentences(p.source, inputs))
        models = zip(_names(p, inputs), _models(p, inputs), strict=True)
        result = {name: {"ngrams": model.sizes, **perplexity(model, sentences)} for name, model in models}
        out.json(result)
        out.stats.update(result)
        out.kept_all(len(sentences))


class Convert(SingleShard[ConvertParams]):
    """Writes `.mlm`, `.arpa`, a compressed `.arpa` or `.kenlm`, and `.vocab.txt`."""

    name = "lm-convert"
    params = ConvertParams
    inputs = (Input("lm"),)

    def run(self, p: ConvertParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.query.convert import convert
        from megahour.lm.query.model_files import lm_file

        with lm_file(inputs["lm"]) as path:
            if p.form == "kenlm-probing" or p.form == "kenlm-trie":
                sizes = convert(path, out.path(".kenlm"), to=p.form)
            else:
                sizes = convert(path, out.path(f".{p.form}"))
        with out.open(".vocab.txt") as file:
            file.write(inputs["lm"].read_bytes(0, ".vocab.txt"))
        _count(sizes, out)


def _names(p: SeveralModels, roles: Collection[str]) -> list[str]:
    return [*sorted(role for role in roles if role.startswith("lm")), *p.files]


def _models(p: SeveralModels, inputs: Inputs) -> list[NgramModel]:
    from megahour.lm.query.convert import read_lm, read_model

    return [read_lm(inputs[name]) if name in inputs else read_model(name) for name in _names(p, inputs)]


def _sentences(sources: Sequence[str], inputs: Inputs) -> Iterator[list[str]]:
    from megahour.lm.combine.walk import sentences
    from megahour.units.texts import input_lines

    return sentences(sources, input_lines({role: inputs[role] for role in inputs if role == "text"}))


def _write(model: NgramModel, out: ShardWriter) -> None:
    from megahour.lm.arpa.model import write_arpa
    from megahour.lm.text.vocabulary import SPECIALS

    with out.open(".arpa") as file:
        write_arpa(model, file)
    words = "".join(f"{word}\n" for word in model.vocabulary.words[len(SPECIALS) :])
    with out.open(".vocab.txt") as file:  # of any encoding
        file.write(words.encode("utf-8", "surrogateescape"))
    _count(model.sizes, out)


def _count(sizes: list[int], out: ShardWriter) -> None:
    out.stats["ngrams"] = sizes
    out.kept_all(sum(sizes))
