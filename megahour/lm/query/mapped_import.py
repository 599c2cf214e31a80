"""Conversion of ARPA files and arrays of n-grams to mapped models, and back to arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.lm.arpa.direct import ThreadedFile
from megahour.lm.arpa.model import NgramModel
from megahour.lm.arpa.read import ArpaArrays, Progress, read_arrays
from megahour.lm.arpa.rows import histories
from megahour.lm.estimate.history import buckets
from megahour.lm.query.lookup import spell
from megahour.lm.query.mapped import MappedModel, from_bytes
from megahour.lm.query.mapped_build import Builder, DuplicateNgram, Level
from megahour.lm.query.output import MemoryFile
from megahour.lm.text.arrays import Int64
from megahour.lm.text.tokenise import WordTable
from megahour.lm.text.vocabulary import Vocabulary

LARGEST = 1 << 17  # n-grams of a segment, which should fit into the cache
SEGMENTS = 1 << 14
TOKENS = "tokenizer"  # fact of a mapped model: the digest of the tokenizer that its text was spelled with


def load_arpa(path: str | Path, progress: Progress = lambda phase, done, total: None) -> MappedModel:
    """Read an ARPA file to a mapped model in memory. Raises MegahourError as `arpa.read.read_arrays`."""
    file = MemoryFile()
    arrays = read_arrays(path, progress)
    build(arrays, file, str(path), progress, facts_of(arrays))
    return from_bytes(file.data, str(path))


def facts_of(arrays: ArpaArrays) -> dict[str, Any]:
    """The facts of a mapped model that an ARPA file has."""
    return {TOKENS: arrays.tokenizer} if arrays.tokenizer else {}


def build(
    arrays: ArpaArrays,
    file: MemoryFile | ThreadedFile,
    name: str,
    progress: Progress = lambda phase, done, total: None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write the n-grams of arrays as a mapped model. facts: see `MappedModel`.

    Raises MegahourError with `name`: an n-gram occurs twice.
    """
    sizes = [len(grams) for grams in arrays.grams]
    arrays = _with_histories(arrays)
    order, vocabulary = len(arrays.grams), arrays.vocabulary
    after = np.zeros(len(vocabulary), np.int64)
    for grams in arrays.grams[1:]:
        after += np.bincount(grams[:, -2], minlength=len(vocabulary))
    edges = buckets(after, max(LARGEST, int(after.sum()) // SEGMENTS))
    owner = np.repeat(np.arange(len(edges) - 1, dtype=np.uint16), np.diff(edges))
    ngrams = np.add.reduceat(np.append(after, 0), edges[:-1])
    logp, backoff = arrays.logp[0].astype(np.float32), arrays.backoff[0].astype(np.float32)
    builder = Builder(file, vocabulary, order, owner, ngrams, logp, backoff)
    by_order = [_by_segment(arrays, k, owner, len(ngrams)) for k in range(1, order)]
    for number in range(len(ngrams)):
        try:
            builder.fill(number, [_part(levels, number) for levels in by_order])
        except DuplicateNgram as error:
            words = arrays.grams[error.order - 1][error.item]
            text = b" ".join(vocabulary.words()[word] for word in words).decode("utf-8", "replace")
            raise MegahourError(f"the {error.order}-gram {text!r} occurs twice", where=name) from None
        progress("build", number + 1, len(ngrams))
    builder.finish(sizes, facts or {})


def _with_histories(arrays: ArpaArrays) -> ArpaArrays:
    """Add blanks for missing histories of n-grams, and set zero weights to -0.0 for n-grams that are no history."""
    grams, logp, backoff = list(arrays.grams), list(arrays.logp), list(arrays.backoff)
    for k in range(len(grams) - 1, 0, -1):  # from the longest, because blanks need histories, too
        rows = grams[k][:, 0] if k == 1 else histories(grams[k - 1], grams[k])
        missing = np.unique(grams[k][rows < 0, :-1], axis=0)
        goes_on = np.zeros(len(grams[k - 1]), np.bool_)
        goes_on[rows[rows >= 0]] = True
        weights = backoff[k - 1].astype(np.float32)
        weights[weights == 0] = np.where(goes_on, np.float32(0.0), np.float32(-0.0))[weights == 0]
        grams[k - 1] = np.concatenate([grams[k - 1], missing.astype(np.int32)])
        logp[k - 1] = np.append(logp[k - 1], np.full(len(missing), np.nan))
        backoff[k - 1] = np.append(weights, np.zeros(len(missing), np.float32)).astype(np.float64)
    return ArpaArrays(arrays.vocabulary, grams, logp, backoff)


def _by_segment(arrays: ArpaArrays, index: int, owner: npt.NDArray[np.uint16], segments: int) -> tuple[Level, Int64]:
    """The n-grams of an order sorted by segment, as a level, and edges (P + 1,): where those of each segment begin."""
    grams = arrays.grams[index]
    segment = owner[grams[:, -2]]
    at = np.argsort(segment, kind="stable").astype(np.int32)
    edges = np.searchsorted(segment[at], np.arange(segments + 1))
    logp, backoff = (values[index][at].astype(np.float32) for values in (arrays.logp, arrays.backoff))
    return (np.ascontiguousarray(grams[:, ::-1]), at, logp, backoff, len(grams)), edges


def _part(levels: tuple[Level, Int64], number: int) -> Level:
    (windows, at, logp, backoff, _), edges = levels
    own = slice(int(edges[number]), int(edges[number + 1]))
    return windows, at[own], logp[own], backoff[own], own.stop - own.start


def to_arrays(model: MappedModel, progress: Progress = lambda phase, done, total: None) -> NgramModel:
    """Read all n-grams of a mapped model to arrays, in the order of its table."""
    order = model.order
    sizes = np.zeros(order + 1, np.int64)
    none = np.empty((order + 1, 0, order), np.int32), np.empty((order + 1, 0), np.float32)
    segments = model.segments.reshape(-1, 2).tolist()
    grams, logp, backoff = _unigrams(model)
    parts: list[list[Any]] = [[] for _ in range(order + 1)]
    for done, (base, capacity) in enumerate(segments):
        progress("unpack", done, len(segments))
        sizes[:] = 0
        spell(model.entries, model.values, base, capacity, order, none[0], none[1], none[1], sizes)
        room = int(sizes.max())
        windows = np.empty((order + 1, room, order), np.int32)
        result = np.empty((2, order + 1, room), np.float32)
        if room:
            sizes[:] = 0
            spell(model.entries, model.values, base, capacity, order, windows, result[0], result[1], sizes)
        for k in range(2, order + 1):
            n = int(sizes[k])
            parts[k].append((windows[k, :n, :k].copy(), result[0, k, :n].copy(), result[1, k, :n].copy()))
    for k in range(2, order + 1):
        columns = list(zip(*parts[k], strict=True))
        grams.append(np.concatenate(columns[0]))
        logp.append(np.concatenate(columns[1]).astype(np.float64))
        backoff.append(np.concatenate(columns[2]).astype(np.float64))
    return NgramModel(Vocabulary(model.spelled()), grams, logp, backoff)


def _unigrams(model: MappedModel) -> tuple[list[npt.NDArray[np.int32]], list[Any], list[Any]]:
    weights = model.weights.reshape(-1, 4).astype(np.float64)
    return [np.arange(len(weights), dtype=np.int32)[:, None]], [weights[:, 0].copy()], [weights[:, 1].copy()]


def from_model(model: NgramModel) -> MappedModel:
    """Convert a model to a mapped model in memory."""
    file = MemoryFile()
    build(arrays_of(model), file, "model")
    return from_bytes(file.data, "model")


def arrays_of(model: NgramModel) -> ArpaArrays:
    """The arrays of a model as `arpa.read.read_arrays` returns them."""
    table = WordTable()
    for word in model.vocabulary.words:
        table.add(word.encode("utf-8", "surrogateescape"))
    return ArpaArrays(table, model.grams, model.log10_prob, model.log10_backoff)
