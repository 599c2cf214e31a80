"""`megahour lmplz`: the command line of KenLM's lmplz, so that scripts only need `megahour` in front."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import click

from megahour.core.errors import ConfigError
from megahour.lm.cli.command_parts import fast_numba_import, stoppable, threads
from megahour.runner import log

SIZES = "bKMGTPEZY"
SEVERAL = {"prune": "", "discount_fallback": "0.5,1,1.5", "interpolate_unigrams": "1"}
"""Options that take all words up to the next option, with the value for no words."""
IDLE = "Accepted for compatibility, without effect."


class LmplzCommand(click.Command):
    """Takes `--prune 0 0 1`, `--discount_fallback` and unique abbreviations of options, as lmplz does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = [name[2:] for param in self.params for name in param.opts if name.startswith("--")]
        return super().parse_args(ctx, list(_plain(args, [*names, "help"])))


def _plain(args: list[str], names: list[str]) -> Iterator[str]:
    left = args[::-1]
    while left:
        arg = left.pop()
        name, equals, value = arg.removeprefix("--").partition("=")
        if not arg.startswith("--"):
            yield arg
            continue
        alike = [each for each in names if each.startswith(name)]
        name = name if name in names or len(alike) != 1 else alike[0]
        if name not in SEVERAL:
            yield f"--{name}{equals}{value}"
            continue
        values = [value] if equals else []
        while left and not left[-1].startswith("-"):
            values.append(left.pop())
        yield f"--{name}={','.join(values) or SEVERAL[name]}"


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes as in GNU sort: 80%, 4G (or 4GB), 500M; without a unit, K."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(rf"([0-9]+(?:\.[0-9]+)?)([%{SIZES}k]?)B?", str(value))
        if not found:
            self.fail(f"{value!r} is not a size, such as 80%, 4G or 500M", param, ctx)
        number, unit = float(found[1]), (found[2] or "K").replace("k", "K")
        if unit == "%":
            import psutil

            return int(number / 100 * psutil.virtual_memory().total)
        return int(number * 1024 ** SIZES.index(unit))


class Numbers(click.ParamType):  # type: ignore[type-arg]
    """Numbers separated by commas."""

    name = "n,n,…"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._kind(each) for each in value.split(",") if each)
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers", param, ctx)


@click.command("lmplz", cls=LmplzCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--order", type=int, required=True, help="Longest n-gram, in words: 1 … 7.")
@click.option("--text", default="-", metavar="FILE", help="Text file, also .gz .xz .zst. Default: standard input.")
@click.option("--arpa", default="/dev/stdout", metavar="FILE", help="Output file. Default: standard output.")
@click.option(
    "-S",
    "--memory",
    type=Size(),
    default="80%",
    show_default=True,
    help="Memory limit, at least 256M. What does not fit goes to disk.",
)
@click.option(
    "-T", "--temp_prefix", default="", metavar="PATH", help="Folder of temporary files, or prefix of their names."
)
@click.option(
    "--prune", type=Numbers(int), default=(), metavar="N N …",
    help="Drop n-grams that occur at most this often, by order. The last number applies to longer ones.",
)  # fmt: skip
@click.option("--limit_vocab_file", default="", metavar="FILE", help="Drop n-grams with words that are not in FILE.")
@click.option(
    "--discount_fallback", type=Numbers(float), metavar="[D1 D2 D3]",
    help="Discounts for orders whose counts give none, which is an error without this option. "
         "Without numbers: 0.5 1 1.5.",
)  # fmt: skip
@click.option(
    "--interpolate_unigrams", type=bool, default=True, metavar="[0|1]",
    help="0: give the probability freed by discounts to <unk>, as SRILM does. Default: 1.",
)  # fmt: skip
@click.option("--vocab_pad", type=click.IntRange(0), default=0, help="Assume a vocabulary of at least this many words.")
@click.option("--skip_symbols", is_flag=True, help="Skip <s>, </s> and <unk> in the text. Without it they are errors.")
@click.option("--verbose_header", is_flag=True, help="Name text, tokens and smoothing at the head of the file.")
@threads
@click.option("--minimum_block", "--sort_block", "--block_count", "--vocab_estimate", "idle", help=IDLE)
@click.option(
    "--renumber", is_flag=True, help="Accepted for compatibility: the order of lines in an ARPA file has no meaning."
)
@click.option("--intermediate", hidden=True)
@click.option("--collapse_values", is_flag=True, hidden=True)
@log.logged
def lmplz(**values: Any) -> None:
    """Estimate an n-gram model with the options of KenLM's lmplz: text from standard input, ARPA to standard output.

    The numbers are those of lmplz, with lines in another order. Every line is a sentence, also a last line without its
    line break. `megahour lm train` has other names for the same options, and writes compressed and mapped models.

    \b
    megahour lmplz -o 5 -S 80% -T /tmp --prune 0 0 1 < text > lm.arpa
    zcat text.gz | megahour lmplz -o 3 --discount_fallback --arpa lm.arpa
    """
    if values["intermediate"]:
        remedy = "leave it out; models are mixed from ARPA or mapped files: megahour lm interpolate"
        raise ConfigError("lmplz's intermediate files are not written", where="--intermediate", remedy=remedy)
    if values["collapse_values"]:
        remedy = "leave it out: sentences have the same probabilities without it"
        raise ConfigError("this option is not supported", where="--collapse_values", remedy=remedy)
    fast_numba_import()
    from megahour.lm.cli.phases import Phases
    from megahour.lm.lmplz import Built, build

    options = _chosen(values)
    try:
        with stoppable(), Phases() as phases:
            made: Built = build(options, values["threads"], phases)
    except BrokenPipeError:  # the reader of the pipe has ended, such as `head`
        sys.exit(128 + signal.SIGPIPE)
    if log.quiet():
        return
    click.echo(f"Unigram tokens {made.tokens} types {made.types}\nStatistics:", err=True)
    for k, (size, (d1, d2, d3)) in enumerate(zip(made.sizes, made.discounts, strict=True), 1):
        why = f"  (fallback: {made.fallbacks[k]})" if k in made.fallbacks else ""
        click.echo(f"{k} {size} D1={d1:.6g} D2={d2:.6g} D3+={d3:.6g}{why}", err=True)


def _chosen(values: dict[str, Any]) -> Any:
    """Validate the options to `lmplz.LmplzOptions`. Raises ConfigError."""
    from megahour.lm.estimate.discounts import FALLBACK
    from megahour.lm.lmplz import LmplzOptions
    from megahour.lm.params import MAX_ORDER

    order, prune, fallback = values["order"], values["prune"], values["discount_fallback"]
    if not 1 <= order <= MAX_ORDER:
        raise ConfigError(f"order {order} is not in 1 … {MAX_ORDER}", where="-o", remedy="3 is usual")
    if len(prune) > order or list(prune) != sorted(prune) or (prune and prune[0] < 0):
        message = f"{' '.join(map(str, prune))} must be at most {order} numbers that do not decrease"
        raise ConfigError(message, where="--prune", remedy="give a number per order, words first: --prune 0 0 1")
    if fallback is not None:
        fallback = fallback or FALLBACK
        fallback = (*fallback, *[fallback[-1]] * (3 - len(fallback)))
        if len(fallback) > 3 or not all(0 <= d <= j for j, d in enumerate(fallback, 1)):
            message = f"{' '.join(map(str, fallback))} is not D1 ≤ 1, D2 ≤ 2, D3 ≤ 3"
            raise ConfigError(message, where="--discount_fallback", remedy="write --discount_fallback 0.5 1 1.5")
    if values["vocab_pad"] and not values["interpolate_unigrams"]:
        remedy = "leave one of them out"
        raise ConfigError("needs --interpolate_unigrams 1", where="--vocab_pad", remedy=remedy)
    keys = ("text", "arpa", "memory", "temp_prefix", "limit_vocab_file", "interpolate_unigrams", "vocab_pad")
    given = {key: values[key] for key in (*keys, "skip_symbols", "verbose_header")}
    padded = (*prune, *prune[-1:] * (order - len(prune)))
    return LmplzOptions(order, prune=padded, discount_fallback=fallback, **given)
