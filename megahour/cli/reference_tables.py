"""Markdown reference of a corpus's tables and of the side files that `ingest` reads, generated from the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def table_reference() -> Iterator[str]:
    """Lines of Markdown."""
    from megahour.core.columns import MEANING, TABLES

    yield from (
        "## Tables of a corpus",
        "",
        "Parquet, a file a shard. Times count samples at the table's `rate_hz`.",
        "",
    )
    for name, (place, schema) in TABLES.items():
        yield from (f"### Table: {name}", "", f"{place}.", "", "| column | type | |", "| --- | --- | --- |")
        yield from (f"| `{field.name}` | {_type(field.type)} | {MEANING[field.name]} |" for field in schema)
        yield ""


def side_reference() -> Iterator[str]:
    """Lines of Markdown."""
    from megahour.corpus.ingest import tables
    from megahour.corpus.ingest.side_information import ALIASES
    from megahour.corpus.transcripts.json_cues import WRAPPERS
    from megahour.corpus.transcripts.json_words import SPEAKERS

    yield from ("## What `ingest` reads beside media", "")
    yield from (
        "Side information is the object in a `.json` of the medium's name, which may hold the transcript as well, as "
        "Whisper's does; what stands under `metadata` counts too. In a table it is the row. The first key that is "
        "there counts; capitals in a table's heads do not matter.",
        "",
        "| what | keys |",
        "| --- | --- |",
    )
    for name, keys in {**ALIASES, "condition": ("condition",), "source": ("source",)}.items():
        yield f"| {name} | {_listed(keys)} |"
    yield from ("", "A table of addresses has besides:", "", "| what | columns |", "| --- | --- |")
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
        f"In a JSON transcript {_listed(SPEAKERS)} of a cue names who speaks. The shapes that are known are those of "
        f"`corpus/transcripts/json_cues.py`, alone or within {_listed(WRAPPERS)}.",
        "",
    )


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _type(kind: object) -> str:
    return str(kind).replace("list<item: ", "list<").replace("<", "&lt;").replace(">", "&gt;")
