"""`megahour lm train` and the stage `language-model`: estimate a model from text and write its file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import numpy as np

from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.arpa.read import Progress
from megahour.lm.arpa.write import comment
from megahour.lm.estimate.estimate import Estimated, estimate
from megahour.lm.estimate.katz_model import estimate_katz
from megahour.lm.estimate.partitions import Corpus
from megahour.lm.estimate.reading import CountedCorpus, allowed_words, lines_of, read_corpus, word_list
from megahour.lm.estimate.sweep import Words
from megahour.lm.query.mapped_import import TOKENS as TOKENS
from megahour.lm.query.mapped_sink import estimate_mapped
from megahour.lm.query.model_files import PACKED, form_to_write, packing, replacing
from megahour.lm.text.cut import WordCut
from megahour.lm.text.sources import Block, blocks, is_stream, line_blocks, sources_digest, text_bytes
from megahour.lm.text.tokenise import END, RESERVED, UNKNOWN

if TYPE_CHECKING:
    from megahour.lm.counts.estimate import CountSmoothing
    from megahour.lm.counts.table import NgramCounts
    from megahour.lm.params import CountOptions, ModelOptions, TrainOptions

BYTES_PER_WORD = 75  # memory for a word of a corpus in memory
TEXT_BYTES_PER_WORD = 4  # plain text, lower limit
MOST_TEXT_BYTES = 6  # plain text, upper limit; a text that does not fit even then is refused
PACKED_FACTOR = 3  # growth of compressed text
TOKENS_FACTOR = 2  # growth of text that is spelled in tokens


@dataclass(frozen=True)
class Trained:
    """Facts about a trained model. sizes: n-grams by order. discounts, fallbacks, wildcards: see `estimate.Estimated`.
    text: counts of the text, if known. notes: lines for the user about the estimation."""

    sizes: list[int]
    discounts: list[Any]
    fallbacks: dict[int, str]
    text: dict[str, int] = field(default_factory=dict)
    wildcards: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Text = Callable[[], Iterable[Block]]


def train(
    options: TrainOptions, memory_bytes: int = 0, progress: Progress = lambda phase, done, total: None
) -> Trained:
    """Estimate a model and write it. The file `options.out` appears when it is complete.

    memory_bytes: `options.memory` as a number; 0: hold the text in memory.

    Raises
    ------
    ConfigError, before any work: a source matches nothing, or the name or directory of the output is wrong.
    MegahourError: the text is unusable, or memory or disk is too small.
    """
    if options.counts:
        return _train_counts(options, progress)
    if not options.tokenizer:
        return _train(options, lambda: blocks(options.source), memory_bytes, progress)
    from megahour.lm.text.token_lines import TokenLines

    spelled = TokenLines.open(options.tokenizer, options.token_form)

    def text() -> Iterator[Block]:
        spelled.begin()
        return line_blocks(spelled(lines_of(blocks(options.source))), f"{_sources(options)} in tokens")

    made = _train(options, text, memory_bytes, progress, {TOKENS: spelled.digest})
    return replace(made, notes=[*made.notes, spelled.summary()])


def _train(
    options: TrainOptions, text: Text, memory_bytes: int, progress: Progress, facts: Mapping[str, Any] | None = None
) -> Trained:
    out = Path(options.out)
    form = form_to_write(out)
    size = text_bytes(options.source) * (TOKENS_FACTOR if options.tokenizer else 1)
    if any(source.endswith(PACKED) or ".parquet" in source for source in options.source):
        size *= PACKED_FACTOR
    if options.scratch and not Path(options.scratch).is_dir():
        raise ConfigError("no such directory", where=options.scratch, remedy="create it, or leave --scratch out")
    if not memory_bytes:
        check_memory(size, free_memory())
    with replacing(out) as making:
        if memory_bytes:
            with packing(making, options.out, options.threads, progress) as path:
                try:
                    made = _bounded(options, text, path, memory_bytes, size, progress)
                except MegahourError as error:
                    error.where = error.where or _sources(options)
                    raise
                _prepend(comment((facts or {}).get(TOKENS, "")), path)
                return made
        reading = read(options, _counted(text, size, progress), room=size // TEXT_BYTES_PER_WORD + 1)
        if not reading.words:
            raise MegahourError("the text has no words", where=_sources(options), remedy="give other text")
        if form == "mapped":
            facts, allowed = {"text": _text(reading), **(facts or {})}, allowed_of(options, reading.corpus)
            model = estimate_mapped(
                reading.corpus, options.order, making, allowed=allowed, facts=facts, cutoffs=options.prune,
                threads=options.threads, progress=progress,
            )  # fmt: skip
            return _trained(model, reading)
        with packing(making, options.out, options.threads, progress) as path:
            fitted = fit(options, reading, path, options.threads, progress)
            _prepend(comment((facts or {}).get(TOKENS, "")), path)
            return _trained(fitted, reading)


def _sources(options: TrainOptions) -> str:
    return ", ".join(options.source)[:200]


def _prepend(text: bytes, path: Path) -> None:
    """Put text before that of a file."""
    if not text:
        return
    rest = path.with_name(f"{path.name}.rest")
    path.replace(rest)
    try:
        with rest.open("rb") as file, path.open("wb") as out:
            out.write(text)
            shutil.copyfileobj(file, out, 1 << 22)
    finally:
        rest.unlink()


def read(options: ModelOptions, text: Iterable[Block], **limits: Any) -> CountedCorpus:
    """Number the words of a text with these options; `limits` are passed to `read_corpus`.

    Raises MegahourError: the options keep no word of the text, or as `read_corpus`.
    """
    listed = word_list(options.vocabulary_file) if options.vocabulary_file else None
    cut = WordCut(options.vocabulary, options.min_count)
    reading = read_corpus(text, vocabulary=listed, cut=cut, skip_symbols=options.skip_symbols, **limits)
    if reading.words and reading.unknown == reading.words:
        remedy = "write its words as the text does" if listed else "lower min_count"
        raise MegahourError("every word of the text is unknown", where=options.vocabulary_file, remedy=remedy)
    return reading


def fit(options: ModelOptions, reading: CountedCorpus, path: Path, threads: int, progress: Progress) -> Estimated:
    """Estimate the model of a text in memory, and write it as an ARPA file."""
    shared: dict[str, Any] = {"cutoffs": options.prune, "threads": threads, "progress": progress}
    if options.smoothing == "good-turing":
        return estimate_katz(reading.corpus, options.order, path, **shared)
    if options.smoothing == "witten-bell" or options.smoothing == "witten-bell-backoff":
        from megahour.lm.counts.table import count_corpus

        progress("count", 0, 1)
        return _fit_counts(options, count_corpus(reading.corpus, options.order), path, progress)
    allowed = allowed_of(options, reading.corpus)
    return estimate(reading.corpus, options.order, path, allowed=allowed, smoothing=options.smoothing, **shared)


def _fit_counts(options: ModelOptions, counts: NgramCounts, path: Path, progress: Progress) -> Estimated:
    from megahour.lm.arpa.model import write_arpa
    from megahour.lm.counts.estimate import estimate_counts

    smoothing = cast("CountSmoothing", options.smoothing)
    made = estimate_counts(counts, smoothing, options.prune)
    with path.open("wb") as file:
        write_arpa(made.model, file, progress)
    return Estimated(counts.order, made.model.sizes, made.discounts, made.fallbacks, (1, counts.tokens, counts.tokens))


def _train_counts(options: TrainOptions, progress: Progress) -> Trained:
    """Estimate a model from counts of n-grams."""
    form_to_write(Path(options.out))
    with replacing(options.out) as making, packing(making, options.out, options.threads, progress) as path:
        counts = counts_of(options, progress)
        model = _fit_counts(options, counts, path, progress)
    words = counts.tokens - int(counts.counts[0][END])
    facts = {"words": words, "types": counts.words - len(RESERVED), "unknown": int(counts.counts[0][UNKNOWN])}
    return Trained(model.sizes, model.discounts, model.fallbacks, facts)


def counts_of(options: TrainOptions | CountOptions, progress: Progress) -> NgramCounts:
    """Read files of n-gram counts, or count text. Raises as `counts.files.read_counts` and `read_corpus`."""
    from megahour.lm.counts.files import read_counts
    from megahour.lm.counts.table import count_corpus

    listed = word_list(options.vocabulary_file) if options.vocabulary_file else None
    cut = WordCut(options.vocabulary, options.min_count)
    progress("read", 0, 1)
    if options.counts:
        return read_counts(options.source, options.order, vocabulary=listed, cut=cut)
    size = text_bytes(options.source)
    reading = read_corpus(
        _counted(lambda: blocks(options.source), size, progress), vocabulary=listed, cut=cut,
        skip_symbols=options.skip_symbols, room=size // TEXT_BYTES_PER_WORD + 1,
    )  # fmt: skip
    return count_corpus(reading.corpus, options.order)


def allowed_of(options: ModelOptions, corpus: Corpus) -> Words:
    """(V,) 1 for the words that n-grams may contain; None: all words."""
    listed = options.limit_vocabulary
    return allowed_words(corpus, word_list(listed)) if listed else None


def check_memory(size: int, free: int) -> None:
    """Raises MegahourError: `size` bytes of text cannot fit into `free` bytes of memory."""
    need = size // TEXT_BYTES_PER_WORD * BYTES_PER_WORD
    if size // MOST_TEXT_BYTES * BYTES_PER_WORD > free:
        raise MegahourError(
            f"{size / 1e9:.1f} GB of text needs up to {need / 1e9:.0f} GB of memory; {free / 1e9:.1f} GB are free",
            remedy=f"give --memory {max(free * 0.7 / 1e9, 0.5):.1f}GB, to keep the remaining data on disk",
        )


def free_memory() -> int:
    """Bytes that can be taken without swapping."""
    with suppress(OSError, StopIteration):  # psutil, which reads the same line, takes as long to import as a small text
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    import psutil

    return int(psutil.virtual_memory().available)


def _counted(text: Text, size: int, progress: Progress) -> Iterator[Block]:
    """The blocks of a text, with progress. Raises MegahourError: it does not fit into memory."""
    done, free = 0, free_memory()
    progress("read", 0, size)
    for block in text():
        yield block
        done += block.end
        if done > size:  # compressed text and pipes can have any size
            check_memory(done, free)
        progress("read", done, max(size, done) if size else 0)


def _text(reading: CountedCorpus) -> dict[str, int]:
    return {key: int(value) for key, value in vars(reading).items() if isinstance(value, int | np.integer)}


def _trained(model: Estimated, reading: CountedCorpus) -> Trained:
    return Trained(model.sizes, model.discounts, model.fallbacks, _text(reading), model.wildcards)


def _bounded(
    options: TrainOptions, text: Text, path: Path, memory_bytes: int, size: int, progress: Progress
) -> Trained:
    from megahour.lm.scale.bounded import estimate_bounded

    out, listed = Path(options.out), options.vocabulary_file
    scratch = (Path(options.scratch) if options.scratch else out.parent) / f".{out.name}.scratch"
    resumes = not any(map(is_stream, options.source))
    if not resumes:
        identity = str(uuid4())  # a pipe can have another text next time
    else:
        files = [sources_digest([file]) if file else "" for file in (listed, options.tokenizer)]
        identity = " ".join([sources_digest(options.source), *files, options.token_form])
    made = estimate_bounded(
        text,
        options.order,
        path,
        scratch,
        memory_bytes=memory_bytes,
        cutoffs=options.prune,
        threads=options.threads,
        vocabulary=word_list(listed) if listed else None,
        cut=WordCut(options.vocabulary, options.min_count),
        skip_symbols=options.skip_symbols,
        identity=identity,
        resumes=resumes,
        expected_bytes=size,
        progress=progress,
    )
    where, sharding = "in memory" if made.in_memory else "on disk", made.sharding
    notes = [
        f"positions {where}, {sum(sharding.shards)} shards in {sharding.rounds} round(s), largest / median "
        f"{sharding.skew:.2f}, {made.shared_ngrams:,} n-grams shared; scratch {made.spilled_bytes / 1e6:,.0f} MB"
    ]
    counts = {"tokens": made.tokens, "types": made.types}
    return Trained(made.sizes, made.discounts, made.fallbacks, counts, made.wildcards, notes)
