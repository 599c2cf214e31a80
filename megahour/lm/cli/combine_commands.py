"""`megahour lm interpolate | prune | loglinear | expand`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from megahour.lm.cli.command_parts import parsed, say_model, stoppable
from megahour.lm.cli.on_engine import OPTIONS, engine_options, interpolate_on, prune_on_engine
from megahour.lm.params import InterpolateParams, PruneParams
from megahour.runner import log
from megahour.runner.options import OptionCommand, options, repeatable

if TYPE_CHECKING:
    from megahour.lm.combine.mixture import Fit

MODEL = click.Path(exists=True, dir_okay=False)
STEPS = click.Path(exists=True)
_models = click.argument("models", nargs=-1, required=True, type=MODEL, metavar="MODEL…")
_out = click.option("--out", required=True, type=click.Path(), help="Output file: .arpa, .arpa.gz .xz .zst, or .mlm.")


@options(InterpolateParams, but=("files", "heldout"))
@click.command("interpolate", cls=OptionCommand)
@click.argument("models", nargs=-1, required=True, type=STEPS, metavar="MODEL…")
@_out
@engine_options
@repeatable("--heldout", metavar="FILE", text="Text to tune the weights on, or to evaluate given ones.")
@log.logged
def interpolate(models: tuple[str, ...], out: str, **values: Any) -> None:
    """Merge models into one back-off model: p = Σ λ p for the n-grams of all models, with given or tuned weights.

    Back-off weights are recomputed, so that every context sums to one.
    """
    engine = {key: values.pop(key) for key in OPTIONS}
    from megahour.lm.combine.interpolate import gather, tune
    from megahour.lm.combine.interpolate import interpolate as merge
    from megahour.lm.combine.trie import unpack
    from megahour.lm.combine.walk import sentences
    from megahour.lm.query.convert import read_model, write_model
    from megahour.lm.query.model_files import form_to_write

    chosen = parsed(InterpolateParams, values, "interpolate")
    if not chosen.weights and not chosen.heldout:
        raise click.UsageError("give --weights, or --heldout text to tune them on")
    if engine["engine"]:
        interpolate_on(models, out.rstrip("/"), chosen, engine)
        return
    form_to_write(out)
    with stoppable():
        members, weights = gather([read_model(path) for path in models], chosen.unknown), chosen.weights
        if chosen.heldout:
            fitted = tune(members, list(sentences(chosen.heldout)), weights or None)
            weights = fitted.weights
            _say_fit(models, fitted)
        merged = unpack(merge(members, weights), members.vocabulary)
        write_model(merged, out)
    say_model(out, merged.sizes)


@click.command("loglinear")
@_models
@click.option("--weights", required=True, metavar="W,W,…", help="Exponents, one per model.")
@click.option("--text", required=True, multiple=True, metavar="FILE", help="(repeatable) File of sentences to score.")
@click.option(
    "--normalise/--no-normalise",
    default=False,
    show_default=True,
    help="Normalise: divide by the sum over each context.",
)
@log.logged
def loglinear(models: tuple[str, ...], weights: str, text: tuple[str, ...], normalise: bool) -> None:
    """Score sentences by a log-linear mix of models, Σ λ log10 p. Prints the score and the sentence.

    Without --normalise the scores are not probabilities: use them for ranking, not for perplexities.
    """
    from megahour.lm.combine.interpolate import gather
    from megahour.lm.combine.loglinear import LogLinear
    from megahour.lm.combine.walk import sentences
    from megahour.lm.query.convert import read_model

    chosen = parsed(InterpolateParams, {"weights": weights.split(",")}, "loglinear")
    total, tokens = 0.0, 0
    with stoppable():
        mix = LogLinear(gather([read_model(path) for path in models], "share"), chosen.weights)
        for words in sentences(text):
            score = mix.sentence(words, normalised=normalise)
            total, tokens = total + score, tokens + len(words) + 1
            click.echo(f"{score:.6f}\t{' '.join(words)}")
    if normalise:
        perplexity = 10 ** (-total / tokens)
        text_line = f"perplexity {perplexity:.3f}, {tokens:,} tokens"
        log.say("finished", text_line, {"perplexity": perplexity, "tokens": tokens})


@options(PruneParams, but=("history_text",))
@click.command("prune", cls=OptionCommand)
@click.argument("model", type=STEPS, metavar="MODEL")
@_out
@engine_options
@click.option("--history", type=MODEL, default=None, help="Another model for the probabilities of contexts.")
@repeatable("--history-text", metavar="FILE", text="Alternatively, text to count contexts in, best the training text.")
@repeatable("--heldout", metavar="FILE", text="Text to compute perplexities on, before and after.")
@log.logged
def prune(model: str, out: str, history: str | None, heldout: tuple[str, ...], **values: Any) -> None:
    """Prune the n-grams that change the model least (Stolcke 1998), to a threshold or a size.

    Kneser-Ney models lose less with --history-text: their short contexts have no realistic probabilities.
    """
    engine = {key: values.pop(key) for key in OPTIONS}
    from megahour.lm.combine.context_probs import contexts_of_model, contexts_of_text
    from megahour.lm.combine.prune import prune as make_smaller
    from megahour.lm.combine.trie import build, unpack
    from megahour.lm.combine.walk import perplexity, sentences
    from megahour.lm.query.convert import read_model, write_model
    from megahour.lm.query.model_files import form_to_write

    chosen = parsed(PruneParams, values, "prune")
    if history and chosen.history_text:
        raise click.UsageError("give one of --history and --history-text")
    if engine["engine"]:
        if history or heldout:
            remedy = "use --history-text for contexts, and megahour lm score for perplexities"
            raise click.UsageError(f"--engine does not take --history and --heldout: {remedy}")
        prune_on_engine(model, out.rstrip("/"), chosen, engine)
        return
    form_to_write(out)
    with stoppable():
        text = list(sentences(heldout)) if heldout else []
        large = read_model(model)
        trie, contexts = build(large), None
        if history:
            contexts = contexts_of_model(trie, large.vocabulary, read_model(history))
        elif chosen.history_text:
            contexts = contexts_of_text(trie, large.vocabulary, sentences(chosen.history_text))
        pruned = make_smaller(
            trie, threshold=chosen.threshold, size=chosen.ngrams, shortest=chosen.shortest, contexts=contexts
        )
        small = unpack(pruned.trie, large.vocabulary)
        write_model(small, out)
    for name, shown in ((model, large), (out, small)):
        judged = f", perplexity {perplexity(shown, text)['perplexity']:.3f}" if text else ""
        _say(f"{name}: {sum(shown.sizes):,} n-grams ({', '.join(f'{size:,}' for size in shown.sizes)}){judged}")
    _say(f"threshold {pruned.threshold:.6g}")
    say_model(out, small.sizes)


@click.command("expand")
@click.argument("model", type=MODEL, metavar="MODEL")
@_out
@click.option(
    "--classes",
    required=True,
    type=MODEL,
    metavar="FILE",
    help="File with lines CLASS [p] WORD …, as SRILM's -classes.",
)
@click.option(
    "--order", type=click.IntRange(1), default=None, help="Longest n-gram of words. Default: the class model's."
)
@log.logged
def expand(model: str, out: str, classes: str, order: int | None) -> None:
    """Expand a class n-gram MODEL into a word model, for tools that do not support classes.

    The result equals the class model if classes have single words, each in one class. `lm score --classes` scores with
    any class model, without expansion.
    """
    from megahour.lm.combine.expand import expand as spell
    from megahour.lm.query.classes import ClassScorer, read_classes
    from megahour.lm.query.convert import read_model, write_model
    from megahour.lm.query.model_files import form_to_write
    from megahour.lm.query.scorer import NgramScorer

    form_to_write(out)
    with stoppable():
        large = spell(read_model(model), ClassScorer(NgramScorer.open(model), read_classes(classes)), order or 0)
        write_model(large, out)
    say_model(out, large.sizes)


def _say(line: str) -> None:
    if not log.quiet():
        click.echo(line)


def _say_fit(models: Sequence[str], fitted: Fit) -> None:
    rows = zip(models, fitted.weights, fitted.shared_perplexities, fitted.impossible, strict=True)
    _say(f"perplexities of the {fitted.shared:,} tokens that all models allow:")
    for name, weight, perplexity, impossible in rows:
        missing = f", {impossible:,} other tokens impossible" if impossible else ""
        _say(f"{name}: weight {weight:.6f}, perplexity {perplexity:.3f}{missing}")
    _say(f"mixture: perplexity {fitted.shared_perplexity:.3f}")
    tuned = f", {fitted.iterations} iterations" if fitted.iterations else ""
    unknown = f", {fitted.left_out:,} unknown tokens left out" if fitted.left_out else ""
    _say(f"mixture, of {fitted.tokens:,} tokens{unknown}: perplexity {fitted.perplexity:.3f}{tuned}")
