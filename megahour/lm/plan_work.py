"""What the steps of a plan do: each reads files, and writes one."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from megahour.core.errors import MegahourError
from megahour.lm.arpa import NgramModel, read_arpa, write_arpa
from megahour.lm.context_probs import from_model, from_text
from megahour.lm.estimate import Progress, estimate
from megahour.lm.interpolate import Members, gather, interpolate, tune
from megahour.lm.plan import Plan, Step, source_role
from megahour.lm.prune import prune
from megahour.lm.reading import lines_of, read_corpus, vocabulary_of
from megahour.lm.text import blocks
from megahour.lm.trie import Float64, Int32, Trie, build, unpack
from megahour.lm.vocabulary import UNK, Vocabulary
from megahour.lm.walk import Unknown, encode_sentences, own_walker, walker


def work(plan: Plan, step: Step, path: Path, *, threads: int = 1, progress: Progress = lambda *_: None) -> None:
    """Do a step and write its output to `path`."""
    kinds: dict[str, Callable[[Plan, Step, Path], None]] = {
        "train": partial(_train, threads=threads, progress=progress),
        "weights": _weights,
        "mix": _mix,
        "prune": _prune,
        "evaluate": _evaluate,
        "output": _output,
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


def _train(plan: Plan, step: Step, path: Path, *, threads: int, progress: Progress) -> None:
    cut = step.params["vocabulary"]
    words = step.files["vocabulary"]
    reading = read_corpus(
        blocks(step.files["text"]),
        vocabulary=vocabulary_of(blocks(words)) if words else None,
        most_frequent=cut["words"],
        min_count=cut["min_count"],
        utf8=True,
    )
    estimate(
        reading.corpus, step.params["order"], path, prune=step.params["cutoffs"], threads=threads, progress=progress
    )


def _members(plan: Plan, step: Step) -> Members:
    unknown: Unknown = step.params["unknown"]
    return gather([read_arpa(plan.source(step, source_role(name))) for name in step.params["sources"]], unknown)


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
    model = read_arpa(plan.source(step, "model"))
    trie, size = build(model), step.params
    contexts = context_log10(
        trie, model.vocabulary, str(plan.source(step, "history")) if "history" in step.files else "",
        step.files.get("history_text", []),
    )  # fmt: skip
    pruned = prune(trie, threshold=size["threshold"], size=size["ngrams"], shortest=size["shortest"], contexts=contexts)
    _write_model(unpack(pruned.trie, model.vocabulary), path)


def context_log10(trie: Trie, vocabulary: Vocabulary, history: str, text: Sequence[str]) -> Float64 | None:
    """p(h) for pruning: of the ARPA file `history`, counted in `text`, or None for the model's own."""
    if history:
        other = read_arpa(history)
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
        model = read_arpa(plan.source(step, role))
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


def _output(plan: Plan, step: Step, path: Path) -> None:
    source = plan.source(step, next(iter([*step.inputs, *step.files])))
    with source.open("rb") as model, path.open("wb") as file:
        if not str(step.params["name"]).endswith(".gz"):
            shutil.copyfileobj(model, file, 1 << 20)
            return
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:  # no name and no time: equal bytes
            shutil.copyfileobj(model, cast(BinaryIO, packed), 1 << 20)


def _write_model(model: NgramModel, path: Path) -> None:
    with path.open("wb") as file:
        write_arpa(model, file)


def _write_json(value: Any, path: Path) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
