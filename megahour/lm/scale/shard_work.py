"""The work on one shard: its counts, and later, with the discounts from all shards, its lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from megahour.lm.estimate.discounts import Smoothing
from megahour.lm.estimate.kept_ngrams import Kept
from megahour.lm.estimate.smooth import smooth
from megahour.lm.estimate.sweep import ALL_WORDS, CHARACTERS, KEPT, SUMS, TALLIES, open_contexts, store, sweep_from
from megahour.lm.scale.shard_files import Swept, SweptFiles
from megahour.lm.scale.shard_kernels import take_contexts
from megahour.lm.scale.shard_lines import LineBlock, LineSpeller, by_target, columns, name_table
from megahour.lm.scale.shard_parts import Rows, Sorter
from megahour.lm.scale.shard_types import NAME, SHARE, Counted, Shared, Text
from megahour.lm.scale.shards import HistoryShard, ShardTree
from megahour.lm.scale.shared_context import Closed, split_lines
from megahour.lm.text.arrays import Float32, Float64, Int32, Int64, Records


class ShardWorker:
    """Counts and smooths shards in the scratch arrays of one thread.

    swept: files in which `count` keeps its partitions for `smooth`. Without them `smooth` computes them a second time.
    """

    def __init__(self, text: Text, tree: ShardTree, swept: SweptFiles | None = None) -> None:
        self._text, self._tree, self._swept = text, tree, swept
        self._room = 0
        self._chain: Float64 = np.empty((text.order, 0))
        self._unigrams = np.zeros(text.size, np.int64)
        self._no_tokens = np.empty(0, np.int32)  # `smooth` reads the text only if some words are not allowed
        self._lines = LineSpeller(text)

    def count(self, shard: HistoryShard, rows: Rows) -> Counted:
        """Count a shard."""
        order = self._text.order
        self._clear()
        total = np.zeros((order + 1, TALLIES), np.int64)
        names, targets, words, word_sums = [], [], [np.empty(0, np.int32)], [np.empty((0, SUMS), np.int64)]
        share = np.empty(0, SHARE)
        keeping = self._swept.write(shard.number) if self._swept is not None else None
        for part in rows.parts(shard):
            self._make_room(len(part.positions))
            windows, positions = self._sorter.sort(shard, part)
            tally = np.zeros((order + 1, TALLIES), np.int64)
            n, grams = self._sweep(shard.floor, windows, positions, tally)
            total += tally
            short, short_sums, long, to = self._contexts(n, windows)
            words.append(short)
            word_sums.append(short_sums)
            names.append(long)
            targets.append(to)
            share = self._share(shard.floor, positions)
            if keeping is not None:
                keeping.put_partition(Swept(windows, positions, self._kept.taken(grams, n), tally))
        if keeping is not None:
            keeping.close()
        unigrams = np.flatnonzero(self._unigrams).astype(np.int32)
        adjusted = self._unigrams[unigrams]
        ordered, edges = by_target(self._tree, names, targets)
        joined = np.concatenate(words), np.concatenate(word_sums)
        dropped = _dropped(order, joined[1], ordered)
        return Counted(total, *joined, unigrams, adjusted, ordered, edges, share, dropped)

    def smooth(
        self,
        shard: HistoryShard,
        rows: Rows,
        smoothing: Smoothing,
        shared: Shared | None,
        table: tuple[Int64, Float32],
        places: Sequence[int],
    ) -> Iterator[LineBlock]:
        """The lines of a shard, in the order of the file within each order. A block is valid until the next one.

        table: of `smooth.fill_names`, with log10 γ of the contexts that the shard prints. places: of its lines in the
        file, by order.
        """
        text, order, place = self._text, self._text.order, list(places)
        sizes = np.zeros(order + 1, np.int64)
        for windows, positions, kept, tally in self._swept_parts(shard, rows):
            if shared is not None:
                self._share_chain(shard.floor, shared)
            smooth(
                shard.floor, windows, positions, self._no_tokens, order, text.cutoffs, ALL_WORDS, smoothing.discounts,
                smoothing.unigram, *kept, len(kept.nodes), self._open.seats, self._chain, *table, self._at,
                self._logp, self._backoff, sizes,
            )  # fmt: skip
            for k in range(shard.floor + 2, order + 1):
                lines = int(tally[k, KEPT])
                if lines != sizes[k]:
                    raise AssertionError(f"shard {shard.number}: {sizes[k]} {k}-grams, not {lines}")
                entries = windows, self._at[k], self._logp[k], self._backoff[k]
                piece = self._lines.spell(k, *entries, lines, int(tally[k, CHARACTERS]), place[k])
                place[k] += piece.end - piece.begin
                yield piece

    def lines(
        self,
        target: int,
        rows: Rows,
        closed: Sequence[Closed],
        smoothing: Smoothing,
        shared: Sequence[Shared],
        names: Records,
        places: Sequence[int],
    ) -> Iterator[LineBlock]:
        """The lines of a target, a shard or a split (numbered after the shards). closed, shared: of all splits."""
        table, shards = name_table(names, smoothing.discounts), self._tree.shards
        if target < len(shards):
            shard = shards[target]
            yield from self.smooth(shard, rows, smoothing, shared[shard.parent] if shard.floor else None, table, places)
        else:
            split, own = self._tree.splits[target - len(shards)], target - len(shards)
            yield split_lines(self._text, split, closed[own], shared[own], smoothing.discounts, table, places)

    def _clear(self) -> None:
        """Clear what the last shard, or a task that failed within one, left behind."""
        self._unigrams[:] = 0
        if self._room:
            self._open.sizes[:] = 0

    def _sweep(self, floor: int, windows: Int32, positions: Int64 | Int32, tally: Int64) -> tuple[int, int]:
        text = self._text
        grams, nodes = self._kept
        n, held, _ = sweep_from(
            floor, windows, positions, text.order, text.cutoffs, ALL_WORDS, text.lengths, *self._open,
            *self._store._replace(grams=grams), nodes, self._unigrams, tally, False,
        )  # fmt: skip
        return int(n), int(held)

    def _swept_parts(self, shard: HistoryShard, rows: Rows) -> Iterator[Swept]:
        """The partitions that `count` kept, or computed again."""
        if self._swept is not None:
            yield from self._swept.read(shard.number, self._room_of)
            return
        self._clear()
        for part in rows.parts(shard):
            self._make_room(len(part.positions))
            windows, positions = self._sorter.sort(shard, part)
            tally = np.zeros((self._text.order + 1, TALLIES), np.int64)
            n, grams = self._sweep(shard.floor, windows, positions, tally)
            self._open.sizes[:] = 0
            yield Swept(windows, positions, self._kept.taken(grams, n), tally)

    def _room_of(self, m: int, kind: npt.DTypeLike) -> tuple[Int32, Int32 | Int64, Kept]:
        self._make_room(m)
        return *self._sorter.sorted_room(m, kind), self._kept

    def _contexts(self, n: int, windows: Int32) -> tuple[Int32, Int64, Records, Int32]:
        """Of n contexts: words and sums of those of one word; names and targets of the longer ones."""
        words, word_sums = np.empty(n, np.int32), np.empty((n, SUMS), np.int64)
        names, targets, rows = np.empty(n, NAME), np.empty(n, np.int32), np.empty(n, np.int32)
        store = self._store
        short, long = take_contexts(
            store.nodes, n, store.sums, store.first, windows, self._tree.shard_of, words, word_sums, columns(names),
            targets, rows,
        )  # fmt: skip
        names, targets, rows = names[:long], targets[:long], rows[:long]
        deeper = np.flatnonzero(targets < 0)
        if len(deeper):
            targets[deeper] = self._tree.route(windows[rows[deeper]], names["key"][deeper] & 7)
        return words[:short], word_sums[:short], names, targets

    def _share(self, floor: int, positions: Int64 | Int32) -> Records:
        if floor == 0:
            return np.empty(0, SHARE)
        rows = self._open.sets[floor, : self._open.sizes[floor]]
        share = np.empty(len(rows), SHARE)
        share["word"], share["adjusted"], share["raw"] = rows[:, 0], rows[:, 2], rows[:, 3]
        share["first"] = positions[rows[:, 1]]
        return share

    def _share_chain(self, floor: int, shared: Shared) -> None:
        if self._chain.shape[1] < len(shared.words):
            self._chain = np.empty((self._text.order, len(shared.words) + 1))
        self._open.seats[shared.words, floor - 1] = np.arange(len(shared.words))
        self._chain[floor, : len(shared.words)] = shared.probability

    def _make_room(self, m: int) -> None:
        if m <= self._room:
            return
        order, size = self._text.order, self._text.size
        # For the largest shard at once: untouched pages take no memory, but growing would waste the touched ones.
        self._room = room = max([m, *(shard.rows for shard in self._tree.shards)])
        self._sorter = Sorter(order, size, room)
        self._open = open_contexts(order, size, room)
        self._chain = np.empty((order, min(size, room) + 1))
        self._store = store(order, room)
        self._kept = Kept.room(order, room)
        shape = (order + 1, room + 1)
        self._at, self._logp, self._backoff = (np.empty(shape, kind) for kind in (np.int32, np.float32, np.float32))


def _dropped(order: int, word_sums: Int64, names: Records) -> Int64:
    """`Counted.dropped`, from the sums of contexts of one word and the names of longer ones."""
    result = np.zeros((order + 1, 2), np.int64)
    lengths, held = names["key"] & 7, names["sums"][:, -1]
    result[1:, 0] = np.bincount(lengths[held > 0], minlength=order)[:order]
    result[1:, 1] = np.bincount(lengths, held, order)[:order]
    if order > 1:
        result[2] += (np.count_nonzero(word_sums[:, -1]), word_sums[:, -1].sum())
    return result
