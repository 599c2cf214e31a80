"""Markdown reference of a corpus's tables and of the side files that `ingest` reads, generated from the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from megahour.core import schemas

_BESIDES = pa.schema([field for field in schemas.SELECTION if field.name not in schemas.UTTERANCES.names])
TABLES: dict[str, tuple[str, pa.Schema]] = {
    "recordings": ("`.parquet` of *recordings*: a row a recording and channel", schemas.RECORDINGS),
    "cues": ("`.cues.parquet` of *recordings*: a row a cue of each candidate transcript", schemas.CUES),
    "left out": (
        "`.left_out.parquet` of *recordings* from `ingest` and of what `import` makes: all that is not there",
        schemas.LEFT_OUT,
    ),
    "not read": (
        "`.not_read.parquet` of *recordings* from `ingest`: files of the source that belong to no recording",
        schemas.NOT_READ,
    ),
    "words": ("`.parquet` of an *alignment*: a row a word of the cues that are kept", schemas.ALIGNED_WORDS),
    "segments": ("`.segments.parquet` of an *alignment*: a row a cue, kept or not", schemas.ALIGNED_SEGMENTS),
    "heard": ("`.heard.parquet` of an *alignment*: the second reading, a row a recording", schemas.HEARD),
    "utterances": ("`.parquet` of *utterances*", schemas.UTTERANCES),
    "dropped": ("`.dropped.parquet` of *utterances*: what `cut` left out", schemas.DROPPED),
    "duplicates": (
        "`.parquet` of *duplicates*, utterances to leave out, and of *copies*, recordings",
        schemas.DUPLICATES,
    ),
    "selection": ("`.parquet` of a *selection*: the columns of utterances, and", _BESIDES),
}
"""Tables by what they are called here: where each lies, and its schema."""

MEANING: dict[str, str] = {
    "key": "63 bits of a hash, the same in every run; in cues and alignments that of the recording",
    "name": "path in the source without its suffix, or the name that a table gives",
    "offset": "first byte of the FLAC in the shard's `.tar`",
    "size": "bytes of the FLAC",
    "samples": "length",
    "rate_hz": "sampling rate",
    "channel": "of the source file; 0 where channels are mixed",
    "speaker": "by the side file, the path or a parameter, else the source; of cues by labels, of utterances by both",
    "language": "BCP 47; `und` where nothing tells it",
    "licence": "SPDX identifier or expression; in `left out` the one that was refused",
    "attribution": "who is to be named",
    "source": "where it came from: the side file's `source`, else the place in the source",
    "condition": "recording condition",
    "created_s": "Unix time of the recording; 0 unknown",
    "text_language": "language that the transcript is in; empty where it is unsure",
    "text_language_probability": "how sure that is, 0 to 1",
    "cue": "number of the cue over all transcripts of the recording; in segments -1: no cue's",
    "start_samples": "first sample in the recording; -1 unknown; in `heard` of each token",
    "end_samples": "sample behind the last one; -1 unknown",
    "raw": "as it was written, with its markup",
    "text": "spoken words, a space between two; of a word, the word itself",
    "offsets": "first character in `raw` of each word of `text`",
    "ends": "character behind the last one",
    "transcript": "number of the candidate transcript that the text is from; -1: what a recogniser wrote",
    "word": "number of the word in its cue",
    "confidence": "of the alignment, 0 to 1",
    "token_start_samples": "start of each of the word's tokens",
    "token_confidence": "confidence of each of them",
    "kept": "whether the cue was kept",
    "reason": "why it was left out; empty where it was kept",
    "loss": "nats per token; NaN unknown",
    "tokens": "that were heard",
    "recording": "key of the recording",
    "words": "of `text`",
    "word_start_samples": "in the utterance; -1 without an alignment",
    "word_end_samples": "in the utterance; -1 without an alignment",
    "word_confidence": "of each word, 0 to 1",
    "split": "train, dev or test",
    "word_offset": "first character in `raw` of each word",
    "word_end": "character behind the last one",
    "heard": "second reading, made without the transcript",
    "cer": "character error rate between `text` and `heard`",
    "edge_cer": "the same at both ends, the larger one",
    "wildcard_share": "of the tokens of `heard`, those outside of words",
    "snr_db": "signal to noise; NaN unknown",
    "clipped_share": "of the samples, those at full scale",
    "tier": "clean or dirty; empty unknown",
    "detail": "what was found, with numbers",
    "bad": "whether it is in the quarantine too; else a policy left it out",
    "seconds": "length by the file's header; NaN where it does not say or was not asked",
    "duplicate_of": "key of the utterance, or recording, that stays",
    "kind": "audio or text: what is nearly the same; recording: the sound is equal; in `not read` the kind of file",
    "similarity": "0 to 1",
    "set": "name of the set",
    "shard": "of the utterances artifact",
}


def table_reference() -> Iterator[str]:
    """Lines of Markdown: the columns of each table."""
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
    from megahour.corpus.ingest.side_information import ALIASES, OF_PAGE
    from megahour.corpus.transcripts.json_cues import WRAPPERS
    from megahour.corpus.transcripts.json_words import SPEAKERS

    yield from ("## What `ingest` reads beside media", "")
    yield from (
        "Side information is a JSON object in a file named like the medium, with the suffix `.json`. The file may also "
        "hold the transcript, as Whisper's does, and the keys may stand under `metadata`. In a table, it is the row. "
        "What these leave open may be in yt-dlp's `NAME.info.json`, and then, with `--pairing folder`, in a file "
        "`metadata.json` or `*_meta.json`. "
        "Of several keys for one value, the first one present is used; column names may be in upper or lower case.",
        "",
        "| what | keys |",
        "| --- | --- |",
    )
    for name, keys in ALIASES.items():
        page = f"; `{OF_PAGE[name]}` in a `.info.json`" if name in OF_PAGE else ""
        yield f"| {name} | {_listed(keys)}{page} |"
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
