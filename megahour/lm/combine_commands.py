"""`megahour lm interpolate | prune | loglinear | plan | run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megahour.core.errors import ConfigError

if TYPE_CHECKING:
    from megahour.lm.arpa.model import NgramModel
    from megahour.lm.combine.mixture import Fit
    from megahour.lm.plan import Verdict

MODEL = click.Path(exists=True, dir_okay=False)
_out = click.option(
    "--out", required=True, type=click.Path(dir_okay=False), help="the new model: .arpa, .arpa.gz .xz .zst, or .mlm"
)
_heldout = click.option("--heldout", multiple=True, metavar="FILE", help="text to tune weights on, or to judge them")
_weights = click.option("--weights", default="", metavar="W,W,…", help="one of each model; without: tuned on --heldout")
_unknown = click.option(
    "--unknown",
    type=click.Choice(["zero", "share"]),
    default="zero",
    show_default=True,
    help="what a model says of words that only others know: nothing, or its <unk>'s probability shared",
)


@click.command("interpolate")
@click.argument("models", nargs=-1, required=True, type=MODEL, metavar="MODEL…")
@_out
@_weights
@_heldout
@_unknown
def interpolate(models: tuple[str, ...], out: str, weights: str, heldout: tuple[str, ...], unknown: Any) -> None:
    """Merge models into one back-off model: p = Σ λ p over the n-grams of all, weights given or tuned.

    Back-off weights are computed anew, so that every context sums to one.
    """
    from megahour.lm.combine.interpolate import gather
    from megahour.lm.combine.interpolate import interpolate as merge
    from megahour.lm.combine.trie import unpack
    from megahour.lm.query.convert import read_model
    from megahour.lm.query.model_files import form_to_write

    _need_weights(weights, heldout)
    form_to_write(out)
    members = gather([read_model(path) for path in models], unknown)
    given, fitted = _fit(members, weights, heldout)
    if fitted:
        _say_fit(models, fitted)
    merged = unpack(merge(members, given), members.vocabulary)
    _write(merged, out)
    click.echo(f"{out}: {_sizes(merged.sizes)}")


@click.command("loglinear")
@click.argument("models", nargs=-1, required=True, type=MODEL, metavar="MODEL…")
@click.option("--weights", required=True, metavar="W,W,…", help="exponents, one of each model")
@click.option("--text", required=True, multiple=True, metavar="FILE", help="sentences to score")
@click.option("--normalise/--no-normalise", default=False, show_default=True, help="divide by each context's sum")
def loglinear(models: tuple[str, ...], weights: str, text: tuple[str, ...], normalise: bool) -> None:
    """Score sentences by a log-linear mix, Σ λ log10 p: a line each with the score and the sentence.

    Without --normalise these are no probabilities: good for ranking, useless for perplexities.
    """
    from megahour.lm.combine.interpolate import gather
    from megahour.lm.combine.loglinear import LogLinear
    from megahour.lm.plan_work import read_sentences
    from megahour.lm.query.convert import read_model

    mix = LogLinear(gather([read_model(path) for path in models], "share"), _numbers(weights))
    total, tokens = 0.0, 0
    for words in read_sentences(list(text)):
        score = mix.sentence(words, normalised=normalise)
        total, tokens = total + score, tokens + len(words) + 1
        click.echo(f"{score:.6f}\t{' '.join(words)}")
    if normalise:
        click.echo(f"perplexity {10 ** (-total / tokens):.3f}, {tokens:,} tokens", err=True)


@click.command("prune")
@click.argument("model", type=MODEL, metavar="MODEL")
@_out
@click.option("--threshold", type=click.FloatRange(0.0), default=0.0, help="drop what changes the perplexity by less")
@click.option("--ngrams", type=click.IntRange(0), default=0, help="keep at most so many n-grams")
@click.option("--shortest", type=click.IntRange(2), default=2, show_default=True, help="shorter n-grams stay")
@click.option("--history", type=MODEL, default=None, help="another model for the probabilities of contexts")
@click.option(
    "--history-text", multiple=True, metavar="FILE", help="or text to count contexts in, best what trained it"
)
@click.option("--heldout", multiple=True, metavar="FILE", help="text for perplexities before and after")
def prune(
    model: str,
    out: str,
    threshold: float,
    ngrams: int,
    shortest: int,
    history: str | None,
    history_text: tuple[str, ...],
    heldout: tuple[str, ...],
) -> None:
    """Leave out the n-grams that the model misses least (Stolcke 1998), to a threshold or a size.

    Kneser-Ney models lose less with --history-text: their own short contexts do not say how often they occur.
    """
    from megahour.lm.combine.prune import prune as make_smaller
    from megahour.lm.combine.trie import build, unpack
    from megahour.lm.plan_work import context_log10, perplexity, read_sentences
    from megahour.lm.query.convert import read_model
    from megahour.lm.query.model_files import form_to_write

    if (threshold > 0) == (ngrams > 0):
        raise click.UsageError("give one of --threshold (such as 1e-8) and --ngrams, above 0")
    if history and history_text:
        raise click.UsageError("give one of --history and --history-text")
    form_to_write(out)
    sentences = read_sentences(list(heldout)) if heldout else []
    whole = read_model(model)
    trie = build(whole)
    contexts = context_log10(trie, whole.vocabulary, history or "", history_text)
    pruned = make_smaller(trie, threshold=threshold, size=ngrams, shortest=shortest, contexts=contexts)
    smaller = unpack(pruned.trie, whole.vocabulary)
    _write(smaller, out)
    for name, shown in ((model, whole), (out, smaller)):
        said = f", perplexity {perplexity(shown, sentences)['perplexity']:.3f}" if sentences else ""
        click.echo(f"{name}: {_sizes(shown.sizes)}{said}")
    click.echo(f"threshold {pruned.threshold:.6g}")


@click.command("plan")
@click.argument("config", type=click.Path())
def plan(config: str) -> None:
    """What CONFIG.yaml needs done, in which order, what is there already, and what it does without."""
    from megahour.engine.console import output_console
    from megahour.lm.plan import Plan
    from megahour.lm.plan_config import load_config

    output_console().print(_plan_table(Plan(load_config(config)).verdicts()))


@click.command("run")
@click.argument("config", type=click.Path())
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True, help="of estimations")
@click.option("--memory", default="", metavar="SIZE", help="of estimations, such as 4GB; the rest goes to disk")
def run(config: str, threads: int, memory: str) -> None:
    """Make what CONFIG.yaml describes: only what is missing or changed. Killed and started again, it goes on."""
    import sys
    from functools import partial

    from megahour.lm.phases import Phases
    from megahour.lm.plan import Plan
    from megahour.lm.plan_config import load_config
    from megahour.lm.plan_work import work
    from megahour.lm.train import parse_bytes

    loaded = Plan(load_config(config))
    try:
        with Phases() as phases:
            todo = partial(work, threads=threads, memory=parse_bytes(memory) if memory else 0, progress=phases)
            count = len(list(loaded.execute(todo, _say_verdict)))
    except KeyboardInterrupt:
        click.echo(f"\nStopped. Finished steps are kept in {loaded.folder}: the same command goes on.", err=True)
        sys.exit(130)
    click.echo(f"{count} steps ran; in {loaded.folder}: {', '.join(loaded.config.outputs)}")


def _say_verdict(verdict: Verdict) -> None:
    said = {"done": "is there", "run": "runs", "unneeded": "not needed"}[verdict.state]
    click.echo(f"{verdict.step.name}: {said}{': ' if verdict.why else ''}{verdict.why}")


def _plan_table(verdicts: list[Verdict]) -> Any:
    from rich.table import Table

    said = {"done": "is there", "run": "runs", "after": "perhaps", "unneeded": "not needed"}
    table = Table()
    for heading in ("step", "", "why", "output"):
        table.add_column(heading)
    for verdict in verdicts:
        output = "" if verdict.state == "unneeded" else verdict.step.output
        table.add_row(verdict.step.name, said[verdict.state], verdict.why, output)
    return table


def _need_weights(weights: str, heldout: tuple[str, ...]) -> None:
    if not weights and not heldout:
        raise click.UsageError("give --weights, or --heldout text to tune them on")


def _fit(members: Any, weights: str, heldout: tuple[str, ...]) -> tuple[list[float], Fit | None]:
    from megahour.lm.combine.interpolate import tune
    from megahour.lm.plan_work import read_sentences

    given = _numbers(weights) if weights else None
    fitted = tune(members, read_sentences(list(heldout)), given) if heldout else None
    return (fitted.weights if fitted else given or []), fitted


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"weights {text!r} are not numbers", remedy="write them as 0.7,0.3") from None


def _say_fit(models: tuple[str, ...], fitted: Fit) -> None:
    rows = zip(models, fitted.weights, fitted.shared_perplexities, fitted.impossible, strict=True)
    click.echo(f"perplexities of the {fitted.shared:,} tokens that all models allow:")
    for name, weight, perplexity, impossible in rows:
        missing = f", {impossible:,} other tokens impossible" if impossible else ""
        click.echo(f"{name}: weight {weight:.6f}, perplexity {perplexity:.3f}{missing}")
    click.echo(f"mixture: perplexity {fitted.shared_perplexity:.3f}")
    tuned = f", {fitted.iterations} iterations" if fitted.iterations else ""
    unknown = f", {fitted.left_out:,} unknown tokens left out" if fitted.left_out else ""
    click.echo(f"mixture, of {fitted.tokens:,} tokens{unknown}: perplexity {fitted.perplexity:.3f}{tuned}")


def _sizes(sizes: list[int]) -> str:
    return f"{sum(sizes):,} n-grams ({', '.join(f'{size:,}' for size in sizes)})"


def _write(model: NgramModel, out: str) -> None:
    """In the form that the name says; there when whole."""
    from megahour.lm.arpa.model import write_arpa
    from megahour.lm.query.convert import convert
    from megahour.lm.query.model_files import replacing

    path = Path(out)
    plain = path if path.suffix == ".arpa" else path.with_name(f".{path.name}.arpa")
    try:
        with replacing(plain) as making, making.open("wb") as file:
            write_arpa(model, file)
        if plain != path:
            convert(plain, path)
    finally:
        if plain != path:
            plain.unlink(missing_ok=True)
