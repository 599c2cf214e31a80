"""`megahour lmplz`: estimation with the options of KenLM's lmplz, from a file or a pipe to an ARPA file or a pipe.

A text that surely fits into memory is held there. Larger texts, and pipes, are estimated within the given memory, with
files in the temporary folder, which are always removed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.surroundings import explaining
from megahour.lm.arpa.read import Progress
from megahour.lm.estimate.discounts import FALLBACK, Discount, KneserNey
from megahour.lm.estimate.estimate import estimate
from megahour.lm.estimate.reading import CountedCorpus, allowed_words, read_corpus, word_list
from megahour.lm.query.model_files import PACKED, replacing
from megahour.lm.text.sources import STDIN, blocks, is_stream, text_bytes
from megahour.lm.train import BYTES_PER_WORD, PACKED_FACTOR, TEXT_BYTES_PER_WORD, check_memory, free_memory

if TYPE_CHECKING:
    from megahour.lm.text.arrays import Bytes

STDOUT = "/dev/stdout"
LEAST_BYTES = 256 << 20  # smallest memory limit
COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class LmplzOptions:
    """The options of lmplz, under its names. memory: bytes, 0 for half of the free memory. discount_fallback: discounts
    of orders whose counts give none; None makes such an order an error."""

    order: int
    text: str = STDIN
    arpa: str = STDOUT
    memory: int = 0
    temp_prefix: str = ""
    prune: tuple[int, ...] = ()
    limit_vocab_file: str = ""
    discount_fallback: Discount | None = FALLBACK
    interpolate_unigrams: bool = True
    vocab_pad: int = 0
    skip_symbols: bool = False
    verbose_header: bool = False


@dataclass(frozen=True)
class Built:
    """Facts about the model. tokens: number of words; types: different words, with `<unk>`, `<s>` and `</s>`. sizes:
    n-grams by order. discounts: by order; fallbacks: by order with given discounts, the reason."""

    tokens: int
    types: int
    sizes: list[int]
    discounts: list[Discount]
    fallbacks: dict[int, str]


def build(options: LmplzOptions, threads: int, progress: Progress = lambda phase, done, total: None) -> Built:
    """Estimate a model with these options. A regular output file appears when it is complete.

    Raises
    ------
    ConfigError: no such file. MegahourError: the text is unusable, discounts cannot be estimated, or memory or disk is
    too small.
    """
    if options.text != STDIN and not Path(options.text).exists():
        raise ConfigError("no such file", where=options.text, remedy="give a text, or leave --text out to read a pipe")
    folder, prefix = temporary(options.temp_prefix)
    with explaining(folder, folder, resumes=False):
        scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    try:
        with _written(options, scratch) as (path, finish):
            with explaining(scratch, folder, resumes=False):
                made = _in_memory(options, path, threads, progress)
                made = made or _bounded(options, path, scratch / "work", threads, progress)
            finish(made.tokens)
            return made
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def temporary(prefix: str) -> tuple[Path, str]:
    """(folder, prefix of names) of temporary files. Like lmplz -T, takes a folder, or a prefix of paths."""
    if not prefix:
        return Path(tempfile.gettempdir()), "lmplz"
    path = Path(prefix)
    folder, name = (path, "lmplz") if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir():
        raise ConfigError("no such directory", where=str(folder), remedy="create it, or give another -T")
    return folder, name


@contextmanager
def _written(options: LmplzOptions, scratch: Path) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """(path for the ARPA file, function to call with the number of tokens when it is written)."""
    with replacing(options.arpa, scratch) as making:
        if not options.verbose_header:
            yield making, lambda tokens: None
            return
        whole = scratch / "model.arpa"

        def headed(tokens: int) -> None:
            name = "/dev/stdin" if options.text == STDIN else options.text
            text = f"# Input file: {name}\n# Token count: {tokens}\n# Smoothing: Modified Kneser-Ney\n"
            with whole.open("rb") as file, making.open("wb") as out:
                out.write(text.encode("utf-8", "surrogateescape"))
                shutil.copyfileobj(file, out, COPY_BYTES)

        yield whole, headed


def _kneser_ney(options: LmplzOptions) -> KneserNey:
    return KneserNey(options.discount_fallback, options.interpolate_unigrams, options.vocab_pad)


def _in_memory(options: LmplzOptions, path: Path, threads: int, progress: Progress) -> Built | None:
    """Estimate in memory; None if the text may not fit. Texts with lists of words are always held in memory."""
    listed = bool(options.limit_vocab_file) or options.prune[:1] > (0,)
    size = text_bytes([options.text])
    if options.text.endswith(PACKED):
        size *= PACKED_FACTOR
    need = size // TEXT_BYTES_PER_WORD * BYTES_PER_WORD
    if not listed and (is_stream(options.text) or need > min(options.memory or need, free_memory())):
        return None
    check_memory(size, free_memory())
    progress("read", 0, size)
    room = size // TEXT_BYTES_PER_WORD + 1
    reading = read_corpus(blocks([options.text]), skip_symbols=options.skip_symbols, room=room)
    if not reading.words:
        raise MegahourError("the text has no words", where=options.text, remedy="give other text")
    made = estimate(
        reading.corpus, options.order, path, cutoffs=(0, *options.prune[1:]), allowed=_allowed(options, reading),
        how=_kneser_ney(options), threads=threads, progress=progress,
    )  # fmt: skip
    return Built(reading.words, reading.corpus.size, made.sizes, made.discounts, made.fallbacks)


def _allowed(options: LmplzOptions, reading: CountedCorpus) -> Bytes | None:
    """(V,) 1 for the words that n-grams may contain: those of --limit_vocab_file, and above the cut-off of --prune."""
    corpus = reading.corpus
    allowed = None
    if options.limit_vocab_file:
        allowed = allowed_words(corpus, word_list(options.limit_vocab_file))
    if options.prune[:1] > (0,):
        frequent = np.bincount(corpus.tokens, minlength=corpus.size) > options.prune[0]
        allowed = frequent.astype(np.uint8) if allowed is None else allowed * frequent
    return allowed


def _bounded(options: LmplzOptions, path: Path, scratch: Path, threads: int, progress: Progress) -> Built:
    from megahour.lm.scale.bounded import estimate_bounded

    memory_bytes = max(options.memory or free_memory() // 2, LEAST_BYTES)
    made = estimate_bounded(
        lambda: blocks([options.text]), options.order, path, scratch, memory_bytes=memory_bytes, cutoffs=options.prune,
        threads=threads, skip_symbols=options.skip_symbols, how=_kneser_ney(options), resumes=False,
        expected_bytes=text_bytes([options.text]), progress=progress,
    )  # fmt: skip
    return Built(made.words, made.types, made.sizes, made.discounts, made.fallbacks)
