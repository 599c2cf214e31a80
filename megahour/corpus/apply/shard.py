"""One shard of `apply`: pass a table to the user's function in batches, check its result, and copy the other files."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from megahour.core.errors import MegahourError, StageError
from megahour.core.hooks import load_function
from megahour.core.store import Artifact
from megahour.core.transfer import is_local
from megahour.core.writer import ShardWriter
from megahour.corpus.apply.params import ApplyParams
from megahour.corpus.text.language_id import canonical

ROWS, CUES = ".parquet", ".cues.parquet"
REASON = "reason"  # a column that the function may add
LEFT_OUT = "left-out-by-function"
# Columns that place a row and its audio: the function must not change them.
FIXED = ("key", "cue", "recording", "offset", "size", "samples", "rate_hz", "channel", "shard", "start_samples",
    "end_samples", "word_start_samples", "word_end_samples")  # fmt: skip


def apply_shard(p: ApplyParams, source: Artifact, shard: int, out: ShardWriter) -> None:
    """Write the shard with the rows that `p.function` returns, without the cues of recordings that it leaves out."""
    receipt = source.receipt_of(shard)
    changed = {ROWS, CUES} if p.table == "rows" and CUES in receipt.files else {CUES if p.table == "cues" else ROWS}
    for suffix in sorted(receipt.files.keys() - changed):
        _same_file(source, shard, suffix, out.path(suffix))
    out.tags.update(receipt.tags)
    suffix = CUES if p.table == "cues" else ROWS
    rows = _mapped(p, source.read_table(shard, suffix), f"{source.url} shard {shard}", out)
    out.table(rows, suffix)
    if ROWS in changed and CUES in changed:
        cues = source.read_table(shard, CUES)
        out.table(cues.filter(pc.is_in(cues["key"], rows["key"].combine_chunks())), CUES)
    if p.table == "rows" and {"samples", "rate_hz"} <= set(rows.schema.names):
        out.stat(
            "audio_s", round(pc.sum(pc.divide(pc.cast(rows["samples"], "double"), rows["rate_hz"])).as_py() or 0, 3)
        )


def _same_file(source: Artifact, shard: int, suffix: str, target: Path) -> None:
    """Artifacts never change: on one disk both may be the same file."""
    if is_local(source.fs):
        try:
            os.link(source.shard_path(shard, suffix), target)
            return
        except OSError:  # another disk, or one without links
            pass
    with source.open(shard, suffix) as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy, 1 << 20)


def _mapped(p: ApplyParams, table: pa.Table, where: str, out: ShardWriter) -> pa.Table:
    function = load_function(p.function, "function")
    parts = []
    out.came_in(table.num_rows)
    for batch in table.combine_chunks().to_batches(max_chunksize=p.batch_rows):
        given = _called(p, function, batch, where)
        try:
            kept, old = _checked(given, batch, out)
            parts.append(_with_places(kept, out) if p.table == "cues" else _with_words(kept, old, out))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise StageError(
                f"{p.function} returned invalid rows: {error}",
                where=where,
                remedy="see docs/corpus.md for what it may return",
            ) from None
    made = pa.concat_tables(parts) if parts else table
    out.kept(made.num_rows)
    return made.combine_chunks()


def _called(p: ApplyParams, function: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, where: str) -> pa.Table:
    try:
        given = function(batch)
    except MegahourError:
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{p.function} raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        again = "a changed file makes all shards again, unless `code_version` is set"
        kept = "finished shards are kept" if p.code_version else again
        raise StageError(message, where=where, remedy=f"fix it and run again; {kept}") from error
    if not isinstance(given, pa.RecordBatch | pa.Table):
        message = f"{p.function} returned a {type(given).__name__}"
        raise StageError(message, where=where, remedy="return a pyarrow.RecordBatch or Table")
    return pa.table(given) if isinstance(given, pa.RecordBatch) else given


def _checked(given: pa.Table, batch: pa.RecordBatch, out: ShardWriter) -> tuple[pa.Table, pa.Table]:
    """The rows that stay, in the schema of `batch`, and as they were; counts the others by their reasons.

    Raises ValueError.
    """
    names = batch.schema.names
    if unknown := sorted(set(given.schema.names) - {*names, REASON}):
        raise ValueError(f"unknown columns {unknown}")
    if missing := [name for name in names if name not in given.schema.names]:
        raise ValueError(f"missing columns {missing}")
    before = {row: place for place, row in enumerate(_ids(pa.table(batch)))}
    places = [before.get(row, -1) for row in _ids(given)]
    if -1 in places or len(set(places)) < len(places):
        raise ValueError("a row whose key is new, or occurs twice")
    out.drop(LEFT_OUT, batch.num_rows - given.num_rows)
    if REASON in given.schema.names and REASON not in names:
        if pa.types.is_boolean(given.schema.field(REASON).type):  # false would leave a row out, as true does
            raise ValueError("a column reason of true and false; it is a text, or null for a row that stays")
        stays = pc.is_null(given[REASON])
        for reason in given[REASON].to_pylist():
            out.drop(str(reason) if reason else LEFT_OUT, int(reason is not None))
        places = [place for place, stay in zip(places, stays.to_pylist(), strict=True) if stay]
        given = given.filter(stays)
    kept = pa.table([given[name].cast(batch.schema.field(name).type) for name in names], schema=batch.schema)
    old = pa.table(batch).take(pa.array(places, pa.int64()))
    kept = _with_nan(_with_tags(kept), old)
    if moved := [name for name in FIXED if name in names and not kept[name].equals(old[name])]:
        raise ValueError(f"changed columns {moved}, which locate the audio")
    if nulls := [name for name in names if kept[name].null_count and not old[name].null_count]:
        raise ValueError(f"nulls in columns {nulls}; leave such rows out")
    return kept, old


def _with_tags(rows: pa.Table) -> pa.Table:
    """Languages as tags: identifiers call one "eng", "English" or "en_us", and each would be a language of its own."""
    if "language" not in rows.schema.names:
        return rows
    place, values = rows.schema.get_field_index("language"), rows["language"].combine_chunks().dictionary_encode()
    tags = pa.array([canonical(tag) for tag in values.dictionary.to_pylist()], values.dictionary.type)
    return rows.set_column(place, rows.schema.field(place), tags.take(values.indices))


def _with_nan(rows: pa.Table, old: pa.Table) -> pa.Table:
    """NaN for null numbers where there were none: it is how tables say "unknown", and pandas makes nulls of it."""
    for place, field in enumerate(rows.schema):
        column, is_list = rows.column(place), pa.types.is_list(field.type)
        if pa.types.is_floating(field.type) and column.null_count and not old.column(place).null_count:
            rows = rows.set_column(place, field, column.fill_null(nan))
        elif is_list and pa.types.is_floating(field.type.value_type) and pc.list_flatten(column).null_count:
            lists = [each and [nan if value is None else value for value in each] for each in column.to_pylist()]
            rows = rows.set_column(place, field, pa.array(lists, field.type))
    return rows


def _ids(table: pa.Table) -> list[tuple[int, ...]]:
    names = [name for name in ("key", "cue", "shard") if name in table.schema.names]
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def _with_words(kept: pa.Table, old: pa.Table, out: ShardWriter) -> pa.Table:
    """Rows whose `words` are those of a changed `text`. As many words keep their times, others have none (-1)."""
    if "words" not in kept.schema.names or (kept["text"].equals(old["text"]) and kept["words"].equals(old["words"])):
        return kept
    rows = []
    for row, before in zip(kept.to_pylist(), old.select(["text", "words"]).to_pylist(), strict=True):
        if (row["text"], row["words"]) != (before["text"], before["words"]):
            words = row["text"].split()
            if row["words"] not in (words, before["words"]):
                raise ValueError(f"words {row['words']} that are not those of text {row['text']!r}")
            row |= {"text": " ".join(words), "words": words}
            if len(words) != len(before["words"]):
                offsets, ends = _places(row["raw"], len(words))
                row |= {"word_offset": offsets, "word_end": ends, "word_confidence": [1.0] * len(words)}
                row |= dict.fromkeys(("word_start_samples", "word_end_samples"), [-1] * len(words))
        rows += [row] if row["text"] else []
    out.drop("no-text", kept.num_rows - len(rows))
    return pa.Table.from_pylist(rows, kept.schema)


def _with_places(cues: pa.Table, out: ShardWriter) -> pa.Table:
    """Cues that have words, each word with its place in the raw text where the function did not say it."""
    rows = [row for row in cues.to_pylist() if (row["text"] or "").split()]
    out.drop("no-text", cues.num_rows - len(rows))
    for row in rows:
        words = row["text"].split()
        row["text"] = " ".join(words)
        if not len(words) == len(row["offsets"] or ()) == len(row["ends"] or ()):
            row["offsets"], row["ends"] = _places(row["raw"], len(words))
    return pa.Table.from_pylist(rows, cues.schema)


def _places(raw: str, words: int) -> tuple[list[int], list[int]]:
    """Of as many words as the raw text has between spaces, their own; else each word may be anywhere in it."""
    parts = raw.split()
    if len(parts) != words:
        return [0] * words, [len(raw)] * words
    offsets, at = [], 0
    for part in parts:
        at = raw.index(part, at)
        offsets.append(at)
        at += len(part)
    return offsets, [offset + len(part) for offset, part in zip(offsets, parts, strict=True)]
