"""`megahour lm score | info | convert | rescore`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.cli.command_parts import orders_table, say_model, stoppable, threads
from megahour.runner import log
from megahour.runner.options import FiniteRange, repeatable

if TYPE_CHECKING:
    from megahour.lm.kenlm.write import KenlmForm
    from megahour.lm.query.mapped import MappedModel
    from megahour.lm.text.token_lines import TokenForm, TokenLines

Check = Callable[["MappedModel", str], None]
"""Checks a model, given its file's name."""
SHOWN = ("print_sentences", "print_words", "print_srilm")  # of `score_output`, by option


@click.command("info")
@click.argument("model", metavar="MODEL")
@click.option(
    "--verify", is_flag=True, help="Read the whole file: the checksums of a mapped model, every line of an ARPA file."
)
def info(model: str, verify: bool) -> None:
    """Show orders, sizes, discounts if the file has them, and the memory that scoring takes."""
    from megahour.lm.arpa.read import read_arrays, read_sizes
    from megahour.lm.query.kenlm_model import KenlmModel
    from megahour.lm.query.mapped import open_mapped
    from megahour.lm.query.model_files import form_of

    form, size = form_of(model), Path(model).stat().st_size
    if form == "kenlm":
        click.echo(f"{model}: KenLM's binary format, order {KenlmModel(model).order}, {size / 1e6:,.1f} MB")
        return
    if form == "arpa":
        sizes = [len(each) for each in read_arrays(model).grams] if verify else read_sizes(model)
        click.echo(f"{model}: ARPA, {sum(sizes):,} n-grams, {size / 1e6:,.1f} MB; scoring reads it completely: ")
        click.echo(f"about {sum(sizes) * 26 / 1e6:,.0f} MB of memory; megahour lm convert makes a mapped file")
        orders_table(sizes, [], {})
        return
    mapped = open_mapped(model)
    if verify:
        mapped.verify()
    click.echo(f"{model}: mapped, {sum(mapped.sizes):,} n-grams, {size / 1e6:,.1f} MB, shared between processes")
    facts = dict(mapped.facts)
    orders_table(mapped.sizes, facts.pop("discounts", []), facts.pop("fallbacks", {}), facts.pop("wildcards", []))
    for key, value in facts.items():
        click.echo(f"{key}: {value}")
    if verify:
        click.echo("all checksums are correct")


@click.command("convert")
@click.argument("model", metavar="MODEL")
@click.argument("out", metavar="OUT")
@click.option(
    "--to",
    type=click.Choice(["kenlm-probing", "kenlm-trie"]),
    help="Write KenLM's binary format, for programs built on KenLM: probing is faster, the trie "
    "takes a third of the memory. Default: the format of OUT's suffix.",
)
@threads
@log.logged
def convert(model: str, out: str, to: KenlmForm | None, threads: int) -> None:
    """Convert MODEL to the format of OUT's suffix: .mlm (mapped), .arpa, .arpa.gz .xz .zst.

    \b
    megahour lm convert lm.arpa.gz lm.mlm
    megahour lm convert lm.mlm lm.binary --to kenlm-trie
    """
    from megahour.lm.cli.phases import Phases
    from megahour.lm.query.convert import convert as make

    with stoppable(), Phases() as phases:
        sizes = make(model, out, threads, phases, to)
    phases.say_summary()
    say_model(out, sizes)


@click.command("score")
@click.argument("model", metavar="MODEL")
@click.argument("texts", nargs=-1, metavar="[TEXT]…")
@click.option("--sentences", is_flag=True, help="Print one line per sentence: log10 p, words, unknown words, sentence.")
@click.option(
    "--words", is_flag=True, help="Print each word with its number, n-gram length and log10 p, as KenLM's query."
)
@click.option("--srilm", is_flag=True, help="Print as SRILM's ngram -ppl -debug 2, without unknown words.")
@repeatable("--mix", metavar="MODEL", text="Another model: p is the weighted sum over all models.")
@click.option(
    "--weights", metavar="W,W,…", help="Weights of MODEL and the models of --mix, summing to 1. Default: equal weights."
)
@click.option(
    "--classes", metavar="FILE", help="With a class model: file with lines CLASS [p] WORD …, as SRILM's -classes."
)
@click.option(
    "--tokenizer", metavar="FILE", help="With a model of tokens: spell the text in the tokens of FILE, as in lm train."
)
@click.option("--token-form", type=click.Choice(["pieces", "ids", "nemo"]), default="pieces", show_default=True)
@threads
@log.logged
def score(
    model: str, texts: tuple[str, ...], sentences: bool, words: bool, srilm: bool, mix: tuple[str, ...],
    weights: str | None, classes: str | None, tokenizer: str | None, token_form: TokenForm, threads: int,
) -> None:  # fmt: skip
    """Compute the perplexity of TEXT (one sentence per line; default: standard input), with and without unknown words.

    MODEL: mapped, ARPA, or KenLM's binary format (through the kenlm package).
    """
    from megahour.lm.cli import score_output
    from megahour.lm.query.batch import TextScore
    from megahour.lm.query.model_files import lines_of

    shown = [show for given, show in zip((sentences, words, srilm), SHOWN, strict=True) if given]
    if len(shown) > 1:
        raise click.UsageError("give one of --sentences, --words and --srilm")
    for text in texts:
        if text != "-" and (Path(text).is_dir() or not Path(text).exists()):
            what = "a folder, not a file" if Path(text).is_dir() else "no such file"
            raise ConfigError(what, where=text, remedy="give texts, one sentence per line")
    with stoppable():
        spelled = _token_lines(tokenizer, token_form)
        check = partial(_check_tokens, spelled, tokenizer or "")
        scorer = _classes(model, classes, mix, weights) if classes else _mixture((model, *mix), weights, threads, check)
        total, count = TextScore(), 0
        for text in texts or ("-",):
            for given in lines_of(text):
                lines = [f"{line}\n".encode() for line in spelled(_decoded(given, text))] if spelled else given
                result = scorer(b"".join(lines))
                total, count = total + result.total, count + len(result)
                for show in shown:
                    getattr(score_output, show)(lines, result)
    if not total.tokens:
        raise MegahourError(
            "no sentences to score: the text is empty", where=", ".join(texts) or "standard input",
            remedy="give one sentence per line; an empty line is a sentence, too",
        )  # fmt: skip
    if srilm:
        score_output.srilm_total(" ".join(texts) or "-", total, count)
        return
    click.echo(f"Perplexity including OOVs:\t{total.perplexity:.8g}")
    click.echo(f"Perplexity excluding OOVs:\t{total.perplexity_known:.8g}")
    click.echo(f"OOVs:\t{total.oov}\nTokens:\t{total.tokens}")
    click.echo(f"log10 p:\t{total.log10_prob:.6f}")
    if spelled:
        ends = total.tokens - spelled.tokens
        click.echo(f"Perplexity by word:\t{10 ** (-total.log10_prob / (spelled.words + ends)):.8g}")
        click.echo(spelled.summary(), err=True)


def _mixture(models: tuple[str, ...], weights: str | None, threads: int, check: Check) -> Any:
    """A function from lines (bytes) to scores by a mixture. Raises UsageError: invalid weights."""
    from megahour.lm.query.mixed import mixed

    if len(models) == 1:
        if weights:
            raise click.UsageError("--weights goes with --mix, which names the other models")
        return _scorer(models[0], threads, check)
    try:
        given = [float(each) for each in weights.split(",")] if weights else [1 / len(models)] * len(models)
    except ValueError:
        given = []
    if len(given) != len(models) or min(given) < 0 or not abs(sum(given) - 1) <= 1e-6:  # nan is no weight
        raise click.UsageError(f"--weights needs {len(models)} numbers ≥ 0 that sum to 1, got {weights!r}")
    return mixed([_scorer(each, threads, check) for each in models], given)


def _classes(model: str, classes: str, mix: tuple[str, ...], weights: str | None) -> Any:
    """A function from lines (bytes) to scores by a class model. Raises UsageError: a mixture is requested."""
    from megahour.lm.query.classes import ClassScorer, read_classes
    from megahour.lm.query.scorer import NgramScorer

    if mix or weights:
        raise click.UsageError("--classes scores one model; to mix it with others, expand it first: megahour lm expand")
    return ClassScorer(NgramScorer.open(model), read_classes(classes)).score_lines


def _token_lines(tokenizer: str | None, form: TokenForm) -> TokenLines | None:
    if not tokenizer:
        return None
    from megahour.lm.text.token_lines import TokenLines

    return TokenLines.open(tokenizer, form)


def _decoded(lines: list[bytes], name: str) -> list[str]:
    """Lines as text. Raises MegahourError: not UTF-8."""
    try:
        return [line.decode().removesuffix("\n") for line in lines]
    except UnicodeDecodeError as error:
        remedy = "convert the file (iconv -f latin1 -t utf-8 …)"
        raise MegahourError(f"not UTF-8: {error.object[:60]!r}", where=name, remedy=remedy) from None


def _check_tokens(spelled: TokenLines | None, file: str, model: MappedModel, where: str) -> None:
    """Raises ConfigError: the model was made of other tokens than those of the tokenizer's `file`."""
    from megahour.lm.text.tokenise import RESERVED
    from megahour.lm.train import TOKENS

    if spelled is not None:
        spelled.check(model.spelled()[len(RESERVED) :], model.facts.get(TOKENS, ""), where=where, file=file)


def _scorer(model: str, threads: int, check: Check = lambda model, where: None) -> Any:
    """A function from lines (bytes) to scores by one model, after a `check` of it."""
    from megahour.lm.query.model_files import form_of, open_model

    if form_of(model) == "kenlm":
        from megahour.lm.query.kenlm_model import KenlmModel

        return KenlmModel(model).score_lines
    from megahour.lm.cli.phases import Phases
    from megahour.lm.query.batch import score_lines

    with Phases() as phases:
        opened: MappedModel = open_model(model, phases)
    check(opened, model)
    return lambda lines: score_lines(opened, lines, threads)


@click.command("rescore")
@click.argument("model", metavar="MODEL")
@click.argument("nbest", metavar="NBEST")
@click.option("--out", default="-", metavar="FILE", help="Output file. Default: standard output.")
@click.option("--form", type=click.Choice(["jsonl", "kaldi"]), default="jsonl", show_default=True)
@click.option("--costs", default="", metavar="FILE", help="With --form kaldi: acoustic costs, lines UTTERANCE-N COST.")
@click.option(
    "--weight", type=FiniteRange(), default=1.0, show_default=True, help="Weight of the language model's ln p."
)
@click.option("--penalty", type=FiniteRange(), default=0.0, show_default=True, help="Score added per word, in nats.")
@click.option("--best", is_flag=True, help="Write only the best hypothesis: lines UTTERANCE word …")
@threads
@log.logged
def rescore(
    model: str, nbest: str, out: str, form: str, costs: str, weight: float, penalty: float, best: bool, threads: int
) -> None:
    """Sort n-best lists by score + WEIGHT · ln p + PENALTY · words (score: the recogniser's, in nats).

    jsonl: lines {"id": …, "nbest": [{"text": …, "score": …}, …]}. kaldi: lines UTTERANCE-N word word …
    """
    import json

    from megahour.lm.query.model_files import lines_of, replacing
    from megahour.lm.query.rescore import Weights, read_jsonl, read_kaldi
    from megahour.lm.query.rescore import rescore as sort

    def rows(path: str) -> Iterator[bytes]:
        return (line for lines in lines_of(path) for line in lines)

    for path in (nbest, costs):
        if path not in ("", "-") and not Path(path).is_file():
            raise ConfigError("no such file", where=path, remedy="check the path; - is standard input")
    with stoppable():
        scorer = _scorer(model, threads)
        if form == "kaldi":
            utterances = read_kaldi(rows(nbest), rows(costs) if costs else None, nbest, costs)
        else:
            utterances = read_jsonl(rows(nbest), nbest)
        scored = sort(utterances, lambda texts: scorer(_joined(texts)), Weights(weight, penalty))
        lines = (
            f"{u.id} {u.texts[0] if u.texts else ''}" if best else json.dumps(u.whole, ensure_ascii=False)
            for u in scored
        )
        if out == "-":
            for line in lines:
                click.echo(line)
            return
        with replacing(out) as making, making.open("w", encoding="utf-8", errors="surrogateescape") as file:
            count = sum(1 for line in lines if file.write(f"{line}\n"))
    log.say_last(f"{out}: {count:,} utterances", facts={"path": out, "utterances": count})


def _joined(texts: list[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogateescape")
