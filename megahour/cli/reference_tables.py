"""Markdown reference of a corpus's tables and of the side files that `ingest` reads, generated from the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def table_reference() -> Iterator[str]:
    """Lines of Markdown: the columns of each table."""
    from megahour.core.columns import MEANING, TABLES

    yield from (
        "## Tables of a corpus",
        "",
        "Parquet, one file per shard. Times count samples at the table's `rate_hz`.",
        "",
    )
    for name, (place, schema) in TABLES.items():
        yield from (f"### Table: {name}", "", f"{place}.", "", "| column | type | |", "| --- | --- | --- |")
        yield from (f"| `{field.name}` | {_type(field.type)} | {MEANING[field.name]} |" for field in schema)
        yield ""


def side_reference() -> Iterator[str]:
    """Lines of Markdown: the keys and columns that `ingest` knows."""
    from megahour.corpus.ingest import tables
    from megahour.corpus.ingest.side_information import ALIASES
    from megahour.corpus.transcripts.json_cues import WRAPPERS
    from megahour.corpus.transcripts.json_words import SPEAKERS

    yield from ("## What `ingest` reads beside media", "")
    yield from (
        "Side information is a JSON object in a file named like the medium, with the suffix `.json`. The file may also "
        "hold the transcript, as Whisper's does, and the keys may stand under `metadata`. In a table, it is the row. "
        "Of several keys for one value, the first one present is used; column names may be in upper or lower case.",
        "",
        "| what | keys |",
        "| --- | --- |",
    )
    for name, keys in {**ALIASES, "condition": ("condition",), "source": ("source",)}.items():
        yield f"| {name} | {_listed(keys)} |"
    yield from ("", "A table of addresses also has:", "", "| what | columns |", "| --- | --- |")
    bar = tables.SEPARATOR.replace("|", "\\|")  # it also separates cells of Markdown tables
    columns = {
        "address of the medium": tables.AUDIO_COLUMNS,
        f"addresses of transcripts, {bar} between several": tables.TRANSCRIPT_COLUMNS,
        "the transcript itself": tables.TEXT_COLUMNS,
        "name of the recording": tables.NAME_COLUMNS,
        "bytes of the medium, for tasks of equal size": tables.SIZE_COLUMNS,
    }
    yield from (f"| {name} | {_listed(keys)} |" for name, keys in columns.items())
    yield from (
        "",
        f"In a JSON transcript, {_listed(SPEAKERS)} of a cue names the speaker. Known layouts are those of "
        f"`corpus/transcripts/json_cues.py`, alone or within {_listed(WRAPPERS)}.",
        "",
    )


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _type(kind: object) -> str:
    return str(kind).replace("list<item: ", "list<").replace("<", "&lt;").replace(">", "&gt;")
