"""What the steps of a plan do: each reads files, and writes one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import NgramModel, write_arpa
from megahour.lm.combine.context_probs import from_model, from_text
from megahour.lm.combine.interpolate import Members, gather, interpolate, tune
from megahour.lm.combine.prune import prune
from megahour.lm.combine.trie import Float64, Int32, Trie, build, unpack
from megahour.lm.combine.walk import Unknown, encode_sentences, own_walker, walker
from megahour.lm.estimate.reading import lines_of
from megahour.lm.plan import Plan, Step, source_role
from megahour.lm.query.convert import convert, read_model
from megahour.lm.query.model_files import form_of
from megahour.lm.text.sources import blocks
from megahour.lm.text.vocabulary import UNK, Vocabulary
from megahour.lm.train import Job, Progress, train


def work(
    plan: Plan, step: Step, path: Path, *, threads: int = 1, memory: int = 0, progress: Progress = lambda *_: None
) -> None:
    """Do a step and write its output to `path`, whose name ends as the output's.

    threads, memory (bytes, 0: what there is): of estimations; they change no number.
    """
    kinds: dict[str, Callable[[Plan, Step, Path], None]] = {
        "train": partial(_train, threads=threads, memory=memory, progress=progress),
        "weights": _weights,
        "mix": _mix,
        "prune": _prune,
        "evaluate": _evaluate,
        "output": partial(_output, threads=threads, progress=progress),
    }
    kinds[step.kind](plan, step, path)


def read_sentences(sources: list[str]) -> list[list[str]]:
    """Words of the lines of text files, URLs or globs that are not empty.

    Raises MegahourError when there is none.
    """
    found = [words for line in lines_of(blocks(sources)) if (words := line.split())]
    if not found:
        raise MegahourError("no sentences to score", where=", ".join(sources), remedy="give text, one sentence a line")
    return found


def _train(plan: Plan, step: Step, path: Path, *, threads: int, memory: int, progress: Progress) -> None:
    cut, words = step.params["vocabulary"], step.files["vocabulary"]
    train(
        Job(
            sources=step.files["text"],
            out=path,
            order=step.params["order"],
            prune=step.params["cutoffs"],
            vocabulary=cut["words"],
            vocabulary_file=words[0] if words else "",
            min_count=cut["min_count"],
            skip_symbols=step.params["skip_symbols"],
            memory=memory,
            threads=threads,
        ),
        progress,
    )


def _members(plan: Plan, step: Step) -> Members:
    unknown: Unknown = step.params["unknown"]
    return gather([read_model(plan.source(step, source_role(name))) for name in step.params["sources"]], unknown)


def _weights(plan: Plan, step: Step, path: Path) -> None:
    names = step.params["sources"]
    fitted = tune(_members(plan, step), read_sentences(step.files["heldout"]))
    found: dict[str, Any] = asdict(fitted)
    for field in ("weights", "perplexities", "impossible", "shared_perplexities"):
        found[field] = dict(zip(names, found[field], strict=True))
    _write_json(found, path)


def _mix(plan: Plan, step: Step, path: Path) -> None:
    weights = step.params["weights"] or json.loads(plan.source(step, "weights").read_text("utf-8"))["weights"]
    members = _members(plan, step)
    mixed = interpolate(members, [weights[name] for name in step.params["sources"]])
    _write_model(unpack(mixed, members.vocabulary), path)


def _prune(plan: Plan, step: Step, path: Path) -> None:
    model = read_model(plan.source(step, "model"))
    trie, size = build(model), step.params
    contexts = context_log10(
        trie, model.vocabulary, str(plan.source(step, "history")) if "history" in step.files else "",
        step.files.get("history_text", []),
    )  # fmt: skip
    pruned = prune(trie, threshold=size["threshold"], size=size["ngrams"], shortest=size["shortest"], contexts=contexts)
    _write_model(unpack(pruned.trie, model.vocabulary), path)


def context_log10(trie: Trie, vocabulary: Vocabulary, history: str, text: Sequence[str]) -> Float64 | None:
    """p(h) for pruning: of the model `history`, counted in `text`, or None for the model's own."""
    if history:
        other = read_model(history)
        return from_model(trie, walker(build(other), other.vocabulary, vocabulary, "share"))
    if text:
        return from_text(trie, _token_blocks(text, vocabulary))
    return None


def _token_blocks(sources: Sequence[str], vocabulary: Vocabulary) -> Iterator[Int32]:
    """Tokens of text, many sentences at a time."""
    lines = (words for line in lines_of(blocks(sources)) if (words := line.split()))
    while held := list(islice(lines, 10_000)):
        yield encode_sentences(held, vocabulary)


def _evaluate(plan: Plan, step: Step, path: Path) -> None:
    sentences = read_sentences(step.files["text"])
    found: dict[str, dict[str, Any]] = {}
    for role in [*step.inputs, *(role for role in step.files if role != "text")]:
        model = read_model(plan.source(step, role))
        found[role] = {"ngrams": model.sizes, **perplexity(model, sentences)}
    _write_json(found, path)


def perplexity(model: NgramModel, sentences: list[list[str]]) -> dict[str, Any]:
    """Of the tokens that the model knows, with their number; and of all, `unknown` of them being `<unk>`."""
    tokens = encode_sentences(sentences, model.vocabulary)
    log10_probs, known = own_walker(build(model)).tokens(tokens), tokens != UNK
    return {
        "perplexity": float(10.0 ** -log10_probs[known].mean()),
        "tokens": int(known.sum()),
        "perplexity_with_unknown": float(10.0 ** -log10_probs.mean()),
        "unknown": int((~known).sum()),
    }


def _output(plan: Plan, step: Step, path: Path, *, threads: int, progress: Progress) -> None:
    source = plan.source(step, next(iter([*step.inputs, *step.files])))
    if form_of(source) == "arpa" and path.suffix == ".arpa":
        shutil.copyfile(source, path)
    else:
        convert(source, path, threads, progress)


def _write_model(model: NgramModel, path: Path) -> None:
    with path.open("wb") as file:
        write_arpa(model, file)


def _write_json(value: Any, path: Path) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
