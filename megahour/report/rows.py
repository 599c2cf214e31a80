"""The table's rows as one JSON object of columns, small enough for a page, and audio for some of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from megahour.core.store import Artifact
from megahour.corpus.media.tar import ShardAudio
from megahour.report.clips import Coding, ReportClip, encode
from megahour.report.counters import scattered
from megahour.report.survey import Survey

Row = dict[str, Any]
NAMES = ("speaker", "language", "licence", "source", "tier", "split", "set", "condition", "attribution", "name")
TEXTS = ("raw", "text", "heard")
NUMBERS = {  # column: digits after the point
    "confidence": 3,
    "cer": 4,
    "edge_cer": 4,
    "wildcard_share": 3,
    "snr_db": 1,
    "clipped_share": 5,
    "loss": 3,
}
PLACES = ("key", "offset", "size", "samples", "rate_hz", "recording", "start_samples", "channel")
WORDS = ("words", "word_start_samples", "word_end_samples", "word_confidence", "word_offset", "word_end")
LONGEST_TEXT = 2000  # characters of a transcript that the page holds
MOST_WORDS = 400  # and words


def chosen_rows(artifact: Artifact, found: Survey) -> list[Row]:
    """The sampled rows, in the order of the artifact, each with its `shard`."""
    wanted = {*NAMES, *TEXTS, *NUMBERS, *PLACES, *WORDS}
    columns = [name for name in found.columns if name in wanted]
    rows: list[Row] = []
    for shard, places in found.rows.by_shard().items():
        table = artifact.read_table(shard, columns=columns).take(places)
        rows += [{**row, "shard": shard} for row in table.to_pylist()]
    return rows


def clips(
    artifact: Artifact, rows: Sequence[Row], *, count: int, longest_s: float, seed: int, coding: Coding
) -> dict[int, ReportClip]:
    """Clips by row number, for the `count` rows no longer than `longest_s` with the smallest key hashes."""
    short = [i for i, row in enumerate(rows) if 0 < row["samples"] <= longest_s * row["rate_hz"]]
    hashes = scattered(np.array([rows[i]["key"] for i in short], np.int64), seed + 1)
    chosen = sorted(short[i] for i in np.argsort(hashes, kind="stable")[:count])
    with_sound = {receipt.shard for receipt in artifact.each_receipt() if ".tar" in receipt.files}
    clips_by_key: dict[int, ReportClip] = {}
    for shard in sorted({rows[i]["shard"] for i in chosen} & with_sound):
        with ShardAudio(artifact, shard) as audio:
            for i in (i for i in chosen if rows[i]["shard"] == shard):
                sound = audio.read(rows[i]["offset"], rows[i]["size"])
                clips_by_key[i] = encode(f"u{i}", sound, rows[i]["rate_hz"], coding)
    return clips_by_key


def payload(rows: Sequence[Row], sounds: Mapping[int, ReportClip]) -> dict[str, Any]:
    """Columns of the table: names as indices into a list, times in milliseconds, unknown numbers as None."""
    seconds = [round(row["samples"] / max(row["rate_hz"], 1), 3) for row in rows]
    columns: dict[str, Any] = {
        "key": [str(row["key"]) for row in rows],  # 63 bits do not fit in a JavaScript number
        "names": {name: coded([str(row.get(name) or "") for row in rows]) for name in NAMES if _known(rows, name)},
        "texts": {name: [_shortened(row.get(name) or "") for row in rows] for name in TEXTS if _known(rows, name)},
        "numbers": {"seconds": seconds}
        | {
            name: [_rounded(row.get(name), digits) for row in rows]
            for name, digits in NUMBERS.items()
            if _known(rows, name)
        },
        "words": [_words(row) for row in rows],
        "waves": [sounds[i].wave if i in sounds else "" for i in range(len(rows))],
    }
    if _known(rows, "start_samples"):
        columns["start"] = [round(row["start_samples"] / max(row["rate_hz"], 1), 2) for row in rows]
    spoken = [len(row.get("words") or []) for row in rows]
    if any(spoken):
        rates = [n / s if s > 0 else None for n, s in zip(spoken, seconds, strict=True)]
        columns["numbers"]["words_per_s"] = [_rounded(rate, 2) for rate in rates]
    return columns


def _known(rows: Sequence[Row], name: str) -> bool:
    values = [row.get(name) for row in rows]
    return any(math.isfinite(value) if isinstance(value, float) else value not in (None, "") for value in values)


def coded(values: Sequence[str]) -> dict[str, Any]:
    """Dictionary-coded names: `of` has each name once, `at` the index of each row's name."""
    names = sorted(set(values))
    numbers = {name: i for i, name in enumerate(names)}
    return {"of": [_shortened(name) for name in names], "at": [numbers[value] for value in values]}


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _words(row: Row) -> list[list[Any]]:
    """Words, starts and ends in ms (-1 unknown), confidences in percent, and places in `raw` where they are known."""
    words = [_shortened(word) for word in (row.get("words") or [])[:MOST_WORDS]]
    n, rate = len(words), max(row["rate_hz"], 1)
    times = [
        [-1 if at is None or at < 0 else round(1000 * at / rate) for at in (row.get(name) or [-1] * n)[:n]]
        for name in ("word_start_samples", "word_end_samples")
    ]
    rounded = [_rounded(value, 4) for value in (row.get("word_confidence") or [])[:n]]
    sure = [-1 if value is None else round(100 * value) for value in rounded]
    offsets, ends = ((row.get(name) or [])[:n] for name in ("word_offset", "word_end"))
    inside = n and len(offsets) == len(ends) == n and all(0 <= a <= b for a, b in zip(offsets, ends, strict=True))
    return [words, *times, sure, *([offsets, ends] if inside else [[], []])]
