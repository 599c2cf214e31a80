"""The words of several models with each model's values: the 0-shard, which every task reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.stage import Artifact, Batches, Inputs, ShardWriter
from megahour.lm.arpa import parse
from megahour.lm.arpa.read import UNSEEN
from megahour.lm.sharded.models import check_code, pieces_of, read_piece
from megahour.lm.text.arrays import Bytes, Flags, Float64, Int64, save_array, spellings
from megahour.lm.text.pieces import Piece
from megahour.lm.text.tokenise import RESERVED, UNKNOWN, WordTable, padded
from megahour.lm.text.vocabulary import Vocabulary

PIECES = ".pieces.json"
MOST_MODELS = 255  # their numbers in records have a byte


def write_union(names: Sequence[str], inputs: Inputs, piece_bytes: int, out: ShardWriter) -> None:
    """Write the words of all models in order of appearance; `.values.npy` (M, U, 2): log10 p and log10 α, NaN where a
    model lacks a word; and the pieces of the models.

    Raises ConfigError: too many models. MegahourError: a model without words, or an invalid line.
    """
    if len(names) > MOST_MODELS:
        what, remedy = f"{len(names)} models, the limit is {MOST_MODELS}", "mix some of them first, then the mixtures"
        raise ConfigError(what, where="lm-union", remedy=remedy)
    pieces, table = pieces_of(names, inputs, piece_bytes), WordTable()
    models, capitals = [], []
    for number, name in enumerate(names):
        known, found = table.number(b"<UNK>"), _read_words(number, name, pieces, inputs, table)
        capital = table.number(b"<UNK>")
        capitals.append(_capital(found, capital))
        if capitals[-1] and not known:  # no model so far has it as a word
            found, words = np.delete(found, capital, axis=0), table.words()
            table = WordTable.of(words[len(RESERVED) : capital] + words[capital + 1 :])
        models.append(found)
    values = np.full((len(names), len(table), 2), np.nan)
    for own, found in zip(values, models, strict=True):
        own[: len(found)] = found
    orders = [max(_orders(pieces, model, inputs)) for model in range(len(names))]
    for own, order in zip(values, orders, strict=True):
        if order == 1:  # some programs write weights for the highest order
            own[~np.isnan(own[:, 1]), 1] = 0.0
    save_array(out, ".values.npy", values)
    out.table(pa.table({"word": pa.array(table.words(), pa.binary())}), ".arrow")
    out.json(pieces, PIECES)
    out.stats.update(models=list(names), words=len(table), orders=orders, capital_unknown=capitals)
    out.kept_all(len(table))


def _orders(pieces: Sequence[Piece], model: int, inputs: Inputs) -> list[int]:
    own = [piece for piece in pieces if piece["model"] == model]
    return [k for piece in own for k in ([piece["order"]] if piece["order"] else _packed_orders(piece, inputs))]


def _packed_orders(piece: Piece, inputs: Inputs) -> list[int]:
    return sorted({order for order, _ in read_piece(piece, inputs)})


def _read_words(model: int, name: str, pieces: Sequence[Piece], inputs: Inputs, table: WordTable) -> Float64:
    """(n, 2) values of the words of the table in a model, NaN for words that it lacks. New words are appended."""
    values = np.full((1 << 10, 2), np.nan)
    values[: len(RESERVED)] = parse.NEVER, 0.0
    values[UNKNOWN, 0] = UNSEEN
    seen, found = np.zeros(len(values), np.bool_), 0
    for piece in pieces:
        if piece["model"] != model or piece["order"] > 1:
            continue
        for order, data in read_piece(piece, inputs):
            if order > 1:
                break
            table.make_room(len(data))
            room = table.size + data.count(b"\n") + 1 - len(values)
            if room > 0:
                room = max(room, len(values))
                values = np.concatenate([values, np.full((room, 2), np.nan)])
                seen = np.concatenate([seen, np.zeros(room, np.bool_)])
            logp, weight = np.ascontiguousarray(values[:, 0]), np.ascontiguousarray(values[:, 1])
            at, rows, _, table.size, code = parse.parse_unigrams(
                padded(data), 0, len(data), 0, data.count(b"\n"), table.table, table.arena, table.starts,
                table.size, seen, logp, weight,
            )  # fmt: skip
            check_code(code, data, at, name)
            values[:, 0], values[:, 1] = logp, weight
            found += rows
    if not found:
        raise MegahourError("no unigrams", where=name, remedy="check that the ARPA file is complete")
    return values[: table.size]


def _capital(values: Float64, capital: int) -> bool:
    """Whether a model has `<UNK>`, word `capital` of the table, instead of `<unk>`, which then gets its values."""
    if not capital or np.isnan(values[capital, 0]) or values[UNKNOWN, 0] != UNSEEN:
        return False
    values[UNKNOWN], values[capital] = values[capital], np.nan
    return True


def write_sizes(union: Union, batches: Batches, out: ShardWriter) -> None:
    """Write `.json`: numbers of n-grams of each model by order, from `mix.sample_rows`."""
    sizes = np.zeros((len(union.models), union.order + 1), np.int64)
    for batch in batches:
        sizes[batch["model"].to_numpy(), np.arange(union.order + 1)] += batch["count"].to_numpy()
    sizes[:, 1] = [union.size + 1 - lacks for lacks in union.missing]
    found = [own[1 : order + 1].tolist() for own, order in zip(sizes, union.orders, strict=True)]
    out.json(dict(zip(union.models, found, strict=True)))
    out.stats["ngrams"] = found
    out.kept_all(int(sizes.sum()))


class Union:
    """The artifact of `lm-union` as tasks read it."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        stats = artifact.receipt_of(0).stats
        self.models: list[str] = stats["models"]
        self.size: int = stats["words"]
        self.orders: list[int] = stats["orders"]
        self.capital_unknown: list[bool] = stats["capital_unknown"]

    @property
    def order(self) -> int:
        """The longest n-gram of all models."""
        return max(self.orders)

    @cached_property
    def pieces(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.artifact.read_bytes(0, PIECES))
        return found

    def values(self, words: npt.NDArray[np.integer[Any]]) -> Float64:
        """(M, n, 2) log10 p and log10 α of words (n,) in each model, NaN for words that it lacks."""
        with self.artifact.local(0, ".values.npy") as path:
            return np.array(np.load(path, mmap_mode="r")[:, words])

    @cached_property
    def lacks(self) -> Flags:
        """(M, U) which words each model lacks."""
        with self.artifact.local(0, ".values.npy") as path:
            lacks: Flags = np.isnan(np.load(path, mmap_mode="r")[:, :, 0])
        return lacks

    @cached_property
    def missing(self) -> list[int]:
        """The number of words that each model lacks, plus one for `<unk>`."""
        return [int(count) + 1 for count in self.lacks.sum(axis=1)]

    def spelled(self) -> tuple[Bytes, Int64]:
        """arena, starts: the bytes of all words, and where each begins, as in `tokenise.WordTable`."""
        return spellings(self.artifact.read_table(0, ".arrow")["word"])

    def table(self) -> WordTable:
        """The words as a table for look-ups. If `<UNK>` is none of them, it is found as `<unk>`."""
        table = WordTable()
        arena, starts = self.spelled()
        table.arena, table.starts, table.size = arena, np.concatenate([starts, np.zeros(2, np.int64)]), self.size
        table.table = np.zeros(2, np.uint64)
        table.make_room(0)  # builds a table of the right size
        table.take_capital_unknown()
        return table

    def vocabulary(self) -> Vocabulary:
        """The words as text."""
        words = self.artifact.read_table(0, ".arrow")["word"].to_pylist()
        return Vocabulary(word.decode("utf-8", "surrogateescape") for word in words)

    def spell(self, numbers: Sequence[int]) -> str:
        """Words, separated by spaces, for messages."""
        arena, starts = self.spelled()
        return b" ".join(arena[starts[n] : starts[n + 1]].tobytes() for n in numbers).decode("utf-8", "replace")
