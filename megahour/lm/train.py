"""`megahour lm train`: text to a model's file in one call."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.estimate.estimate import Smoothing, estimate, thresholds
from megahour.lm.estimate.katz_model import estimate_katz
from megahour.lm.estimate.reading import Reading, allowed_words, read_corpus, vocabulary_of
from megahour.lm.estimate.sweep import Words
from megahour.lm.query.mapped_sink import estimate_mapped
from megahour.lm.query.model_files import PACKED, form_to_write, pack, replacing
from megahour.lm.text.sources import Block, blocks, is_stream, sources_digest, text_bytes

BYTES_PER_WORD = 75  # of memory, for a corpus in it; see `stage`
TEXT_BYTES_PER_WORD = 4  # of plain text, at least
MOST_TEXT_BYTES = 6  # the same, at most: what would not fit even then is refused
PACKED_FACTOR = 3  # what compressed text grows to
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Job:
    """sources: files, globs, URLs, pipes, `FILE.parquet:COLUMN`. out: .arpa, packed or not, or .mlm. vocabulary: so
    many most frequent words, 0 all. memory: bytes, 0 what there is: then the corpus is held in memory. smoothing:
    kneser-ney, good-turing or stupid. scratch: directory for what does not fit into `memory`; empty: that of `out`.
    vocabulary_file, limit_vocabulary: lists of words; others are `<unk>` with the first, and with the second they
    are counted, but n-grams that have them are left out."""

    sources: Sequence[str]
    out: Path
    order: int = 3
    prune: Sequence[int] = ()
    vocabulary: int = 0
    vocabulary_file: str = ""
    min_count: int = 1
    skip_symbols: bool = False
    memory: int = 0
    threads: int = 1
    smoothing: str = "kneser-ney"
    scratch: str = ""
    limit_vocabulary: str = ""


@dataclass(frozen=True)
class Trained:
    """sizes: n-grams by order. discounts, fallbacks: see `estimate.Model`. text: counts of the text, where known.
    wildcards: of `Model`, where n-grams were cut off; notes: what else to tell."""

    sizes: list[int]
    discounts: list[Any]
    fallbacks: dict[int, str]
    text: dict[str, int] = field(default_factory=dict)
    wildcards: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parse_bytes(text: str) -> int:
    """``4GB`` → 4,000,000,000, ``4G`` → 4,294,967,296. Raises ConfigError."""
    number = text.strip().upper()
    factor = 1
    for unit, value in UNITS.items():
        if number.endswith(unit):
            number, factor = number.removesuffix(unit), value
            break
    try:
        size = int(float(number) * factor)
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise ConfigError(f"{text!r} is no size", remedy="write it as 500MB, 4GB or 4G")
    return size


def train(job: Job, progress: Progress = lambda phase, done, total: None) -> Trained:
    """Estimate a model and write it; `out` appears when it is whole.

    Raises
    ------
    ConfigError: a source matches nothing, the output's name or directory is wrong, a parameter is out of range; before
    any work. MegahourError: the text cannot be used, or memory or disk cannot hold the job.
    """
    form = form_to_write(job.out)
    try:
        thresholds(job.order, job.prune)
    except ValueError as error:
        raise ConfigError(str(error), where="lm train") from None
    size = text_bytes(job.sources)
    if job.vocabulary_file and (job.vocabulary or job.min_count > 1):
        raise ConfigError("--vocabulary-file lists the words to keep; leave --vocabulary and --min-count out")
    if job.memory and form == "mapped":
        raise ConfigError(
            "--memory writes ARPA files only", where=str(job.out), remedy="train to .arpa, then: megahour lm convert"
        )
    _check_smoothing(job, form)
    if job.limit_vocabulary and (job.memory or job.smoothing != "kneser-ney"):
        other = "--memory" if job.memory else f"--smoothing {job.smoothing}"
        raise ConfigError(f"--limit-vocabulary does not go with {other}", remedy="leave one out, or --vocabulary-file")
    if any(source.endswith(PACKED) or ".parquet" in source for source in job.sources):
        size *= PACKED_FACTOR
    if job.scratch and not Path(job.scratch).is_dir():
        raise ConfigError("no such directory", where=job.scratch, remedy="make it, or leave --scratch out")
    if not job.memory:
        _check_memory(size, _free_memory())
    with replacing(job.out) as making:
        if job.memory:
            return _packed(job, making, lambda path: _bounded(job, path, size, progress), progress)
        reading = _read(job, size, progress)
        if not reading.words:
            raise MegahourError("the text has no words", where=", ".join(job.sources)[:200], remedy="give other text")
        if form == "mapped":
            return _mapped(job, making, reading, progress)
        return _packed(job, making, lambda path: _arpa(job, path, reading, progress), progress)


def _check_smoothing(job: Job, form: str) -> None:
    if job.smoothing == "kneser-ney":
        return
    if job.memory:
        raise ConfigError(
            f"--smoothing {job.smoothing} holds the text in memory", remedy="leave --memory out, or use kneser-ney"
        )
    if form == "mapped":
        raise ConfigError(
            f"--smoothing {job.smoothing} writes ARPA files only",
            where=str(job.out),
            remedy="train to .arpa, then: megahour lm convert",
        )


def _check_memory(size: int, free: int) -> None:
    """Raises MegahourError where so much text surely does not fit into so much memory."""
    need = size // TEXT_BYTES_PER_WORD * BYTES_PER_WORD
    if size // MOST_TEXT_BYTES * BYTES_PER_WORD > free:
        raise MegahourError(
            f"about {size / 1e9:.1f} GB of text need up to {need / 1e9:.0f} GB of memory, {free / 1e9:.1f} GB are free",
            remedy=f"give --memory {max(free * 0.7 / 1e9, 0.5):.1f}GB: what does not fit then goes to disk",
        )


def _free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _read(job: Job, size: int, progress: Progress) -> Reading:
    progress("read", 0, size)
    words = vocabulary_of(blocks([job.vocabulary_file])) if job.vocabulary_file else None
    done, free = 0, _free_memory()

    def counted() -> Iterable[Block]:
        nonlocal done
        for block in blocks(job.sources):
            yield block
            done += block.end
            if done > size:  # what is packed or comes through a pipe may be of any size
                _check_memory(done, free)
            progress("read", done, max(size, done) if size else 0)

    return read_corpus(
        counted(),
        vocabulary=words,
        most_frequent=job.vocabulary,
        min_count=job.min_count,
        skip_symbols=job.skip_symbols,
        room=size // TEXT_BYTES_PER_WORD + 1,
    )


def _text(reading: Reading) -> dict[str, int]:
    return {key: int(value) for key, value in vars(reading).items() if isinstance(value, int | np.integer)}


def _arpa(job: Job, path: Path, reading: Reading, progress: Progress) -> Trained:
    options: dict[str, Any] = {"prune": job.prune, "threads": job.threads, "progress": progress}
    if job.smoothing == "good-turing":
        model = estimate_katz(reading.corpus, job.order, path, **options)
    else:
        smoothing: Smoothing = "stupid" if job.smoothing == "stupid" else "kneser-ney"
        model = estimate(
            reading.corpus, job.order, path, allowed=_allowed(job, reading), smoothing=smoothing, **options
        )
    return Trained(model.sizes, model.discounts, model.fallbacks, _text(reading), model.wildcards)


def _mapped(job: Job, path: Path, reading: Reading, progress: Progress) -> Trained:
    text = _text(reading)
    options: dict[str, Any] = {"prune": job.prune, "threads": job.threads, "progress": progress}
    allowed = _allowed(job, reading)
    model = estimate_mapped(reading.corpus, job.order, path, allowed=allowed, facts={"text": text}, **options)
    return Trained(model.sizes, model.discounts, model.fallbacks, text, model.wildcards)


def _allowed(job: Job, reading: Reading) -> Words:
    """(V,) which words n-grams may have; None: all."""
    if not job.limit_vocabulary:
        return None
    return allowed_words(reading.corpus, vocabulary_of(blocks([job.limit_vocabulary])))


def _bounded(job: Job, path: Path, size: int, progress: Progress) -> Trained:
    from megahour.lm.scale.bounded import estimate_bounded

    options: dict[str, Any] = {"most_frequent": job.vocabulary, "min_count": job.min_count}
    if job.vocabulary_file:
        options["vocabulary"] = vocabulary_of(blocks([job.vocabulary_file]))
    scratch = (Path(job.scratch) if job.scratch else job.out.parent) / f".{job.out.name}.scratch"
    if any(map(is_stream, job.sources)):
        identity = str(uuid4())  # nobody can tell whether a pipe brings the same text again
    else:
        identity = f"{sources_digest(job.sources)} {job.vocabulary_file and sources_digest([job.vocabulary_file])}"
    try:
        made = estimate_bounded(
            lambda: blocks(job.sources),
            job.order,
            path,
            scratch,
            memory_bytes=job.memory,
            prune=job.prune,
            threads=job.threads,
            skip_symbols=job.skip_symbols,
            identity=identity,
            expected_bytes=size,
            progress=progress,
            **options,
        )
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        full = min((scratch.parent, path.parent), key=lambda folder: shutil.disk_usage(folder).free)
        raise MegahourError(
            "the disk is full", where=str(full), remedy="free some space and run the same command, which goes on"
        ) from None
    held = "in memory" if made.in_memory else "on disk"
    sharding = made.sharding
    notes = [
        f"positions {held}, {sum(sharding.shards)} shards in {sharding.rounds} round(s), largest / median "
        f"{sharding.skew:.2f}, {made.shared_ngrams:,} n-grams shared; scratch {made.spilled_bytes / 1e6:,.0f} MB"
    ]
    text = {"tokens": made.tokens, "types": made.types}
    return Trained(made.sizes, made.discounts, made.fallbacks, text, made.wildcards, notes)


def _packed(job: Job, making: Path, write: Callable[[Path], Trained], progress: Progress) -> Trained:
    """Write, then compress if the output's name says so."""
    if not job.out.name.endswith(PACKED):
        return write(making)
    plain = making.with_name(f"{making.name}.plain")
    try:
        trained = write(plain)
        progress("compress", 0, 1)
        pack(plain, making, job.out.name, job.threads)
        progress("compress", 1, 1)
    finally:
        plain.unlink(missing_ok=True)
    return trained
