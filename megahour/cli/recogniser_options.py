"""Options of `transcribe` and `listen` that select and configure the recogniser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megahour.runner.options import FiniteRange

if TYPE_CHECKING:
    from megahour.decode.params import DecodeParams
    from megahour.transcribe.parts import RecogniserParts
    from megahour.transcribe.pieces import EndRules
    from megahour.transcribe.recogniser import Recogniser
    from megahour.transcribe.streaming import ChunkLengths

_OPTIONS = (
    click.option("--model", required=True,
                 help="A run's folder, a recipe that was run, a *model* artifact, or a bundle."),
    click.option("--step", default="",
                 help="With a run: its step `decode`, or `train` of a model of tokens. With a bundle: fp16 or int8."),
    click.option("--graph", default="", help="With a model: the *graph* artifact to decode with."),
    click.option("--units", default="", help="With a graph of senones: its *units*, for word times."),
    click.option("--lexicon", default="", help="With a graph of senones: its *lexicon*, for word times."),
    click.option("--lm", default="",
                 help="With a model of tokens and no graph: an *lm* artifact, of words or of the model's tokens."),
    click.option("--low-order-lm", default="", help="With --lm: an *lm* of tokens whose scores are subtracted (LODR)."),
    click.option("--hot-words", default="", metavar="FILE",
                 help="Words and phrases to expect, one per line: `new york` or, with a bonus of its own, "
                      "`new york :1.5`."),
    click.option("--tell", default="", metavar="TAG",
                 help="Language or other tag of all audio, for a model trained with `tag_told`; or `recognised`."),
    click.option("--set", "settings", multiple=True, metavar="PARAMETER=VALUE",
                 help="(repeatable) A parameter of the stage `decode`, such as beams=8 or lm_scale=0.4."),
    click.option("--threads", type=click.IntRange(1), default=1, show_default=True),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True),
)  # fmt: skip
_CHUNKS = (
    click.option(
        "--chunk-ms",
        type=click.IntRange(0, 10_000),
        default=0,
        help="Process the audio in chunks of this many milliseconds, also without --stream (lstm "
        "and conformer). Shorter chunks give words sooner, but a conformer makes more errors. 0: 640 in streams, 160 "
        "with an lstm, and with a conformer's bundle as exported.",
    ),
    click.option(
        "--left",
        type=click.IntRange(0, 64),
        default=None,
        help="Previous chunks that a conformer's attention sees. By default 4, or those of a bundle's export.",
    ),
)
_ENDS = (
    click.option("--pause-s", type=FiniteRange(0.45, 10), default=0.7, show_default=True,
                 help="Seconds of pause that end a segment. Shorter pauses give final results sooner but "
                      "split sentences."),
    click.option("--longest-s", type=FiniteRange(1, 600), default=20.0, show_default=True,
                 help="Longest segment that the model processes at once, in seconds. Longer speech is cut at "
                      "a quiet place."),
    click.option("--wordless-s", type=FiniteRange(0, 60), default=0.0, show_default=True,
                 help="Also end a stream's segment after this many seconds without a word, for noisy rooms. 0: never."),
)  # fmt: skip

_OF_THE_STAGE = {
    "chunk_ms": "use --chunk-ms",
    "left": "use --left",
    "confidence": "take --format json, which has it",
    **dict.fromkeys(
        ("sets", "model_name", "scales", "composed_lm_scale", "lattice", "batch_frames", "max_bad"),
        "leave it out, or use `megahour decode`",
    ),
}
"""Parameters of `decode` that have no effect on one recording's transcript, with remedies."""
_OF_GRAPHS = ("acoustic_scale", "prior_scale", "beam", "max_active", "min_active")
_WITHOUT_GRAPH = (
    *("beams", "ctc_search", "lm_scale", "word_bonus", "unknown_word", "low_order_scale"),
    *("hot_words", "hot_word_bonus", "attention_weight"),
)


def _with(command: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


recogniser_options = partial(_with, options=_OPTIONS)
"""Decorator: the options of `recogniser_of`; `chunk_options` and `end_options`: the other ones of `taken`."""
chunk_options, end_options = partial(_with, options=_CHUNKS), partial(_with, options=_ENDS)


def taken(values: dict[str, Any]) -> tuple[dict[str, Any], ChunkLengths, EndRules]:
    """Remove these options from a command's values: the arguments of `recogniser_of`, a stream's chunk lengths, and the
    rules that end a segment."""
    from megahour.transcribe.pieces import EndRules
    from megahour.transcribe.streaming import ChunkLengths

    names = ("model", "step", "graph", "units", "lexicon", "lm", "low_order_lm", "hot_words", "tell", "settings")
    which = {name: values.pop(name) for name in (*names, "threads", "device")}
    ends = EndRules(*(values.pop(f"{name}_s") for name in ("pause", "longest", "wordless")))
    return which, ChunkLengths(values.pop("chunk_ms"), values.pop("left")), ends


def recogniser_of(
    model: str,
    step: str,
    threads: int,
    device: str,
    *,
    hot_words: str = "",
    tell: str = "",
    settings: Sequence[str] = (),
    **given: str,
) -> Recogniser:
    """The recogniser that the options select.

    given: graph, units, lexicon, lm, low_order_lm. hot_words: a file. tell: a tag. settings: `parameter=value`, of
    stage `decode`.

    Raises
    ------
    ConfigError: an unknown parameter, one without effect here, or an error of `parts_of` or `Recogniser`.
    """
    from megahour.serve.devices import of_machine
    from megahour.transcribe.recogniser import Recogniser

    parts = _parts(model, step, given)
    parts = replace(parts, search=_searched(parts, hot_words, [*settings, *([f"tell={tell}"] if tell else [])]))
    return Recogniser(parts, threads=threads, device=of_machine((device,), 1)[0])


def _searched(parts: RecogniserParts, hot_words: str, settings: Sequence[str]) -> DecodeParams:
    """The parts' search parameters with the command's overrides."""
    from megahour.core.config import parse
    from megahour.core.errors import ConfigError
    from megahour.core.strict_yaml import parse_yaml

    values = parts.search.model_dump()
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}", where="transcribe", remedy="write it as --set beams=8")
        name = name.replace("-", "_")
        _check_effect(f"--set {name}", name, parts)
        values[name] = parse_yaml(value, f"--set {name}")
    if hot_words:
        _check_effect("--hot-words", "hot_words", parts)
        try:
            values["hot_words"] = Path(hot_words).read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read hot words: {error}", where=hot_words, remedy="give a UTF-8 file") from None
    return parse(type(parts.search), values, where="transcribe", remedy="see `megahour decode --help`")


def _check_effect(option: str, name: str, parts: RecogniserParts) -> None:
    """Raises ConfigError: the parameter `name` of `decode` would change nothing with these parts."""
    from megahour.core.errors import ConfigError

    for applies, what, remedy in (
        (name in _OF_THE_STAGE, "applies only to the stage `decode`", _OF_THE_STAGE.get(name, "")),
        (name in _OF_GRAPHS and not parts.graph, "applies only to a search with a graph", "leave it out, or --graph"),
        (name in _WITHOUT_GRAPH and parts.graph, "applies only to a search without a graph", "leave one of them out"),
        (name == "precision" and parts.precision, "does not apply to a bundle", "use --step fp16 or int8"),
    ):
        if applies:
            raise ConfigError(f"{option} {what}", where="transcribe", remedy=remedy)


def _parts(model: str, step: str, given: dict[str, Any]) -> RecogniserParts:
    """The model's parts; a recipe's name stands for its run."""
    from megahour.core.errors import ConfigError
    from megahour.core.store import Artifact
    from megahour.recipes.recipe import load_recipe
    from megahour.recipes.shipped import names
    from megahour.transcribe.parts import parts_of

    recipe = ""
    if not Path(model).is_dir() and (model in names() or model.endswith((".yaml", ".yml"))):
        run = load_recipe(model).run
        if not (home := Artifact(run)).fs.exists(home.root):
            remedy = f"`megahour run {model}` makes it; or give a run's folder, a *model* artifact or a bundle"
            raise ConfigError(f"the recipe {model} was not run here", where=run, remedy=remedy)
        recipe, model = model, run
    parts = parts_of(model, step, recipe=recipe)
    return replace(parts, **{name: value for name, value in given.items() if value})
