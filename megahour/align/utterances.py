"""Worker side of `cut`: the utterances of one recordings shard, as FLAC in a tar with an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.align.cut import Limits, plan_spans
from megahour.align.recordings import Row, cues_by_key
from megahour.core.errors import StoreError
from megahour.core.records import key_of
from megahour.core.schemas import UTTERANCES
from megahour.corpus.audio import encode_flac
from megahour.corpus.tar import ShardAudio, TarWriter, tar_writer

if TYPE_CHECKING:
    from megahour.align.cut_stage import CutParams
    from megahour.core.stage import Context
    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter

INHERITED = ("rate_hz", "speaker", "language", "licence", "attribution", "condition", "created_s")


def cut_shard(
    p: CutParams, recordings: Artifact, alignment: Artifact | None, shard: int, out: ShardWriter, ctx: Context
) -> None:
    """Write one *utterances* shard: `.tar` and `.parquet`."""
    index = recordings.read_table(shard).to_pylist()
    cues = cues_by_key(recordings.read_table(shard, ".cues.parquet"))
    words: dict[int, list[Row]] = {}
    segments: dict[int, list[Row]] = {}
    if alignment is not None:
        words = _grouped(alignment.read_table(shard))
        segments = _grouped(alignment.read_table(shard, ".segments.parquet"))
    rows: list[Row] = []
    with ShardAudio(recordings, shard) as audio, out.open(".tar") as file, tar_writer(file) as tar:
        for done, row in enumerate(index, start=1):
            if alignment is None:
                found = _whole(p, row, cues.get(row["key"], []), out)
            else:
                key = row["key"]
                found = _spans(p, row, cues.get(key, []), words.get(key, []), segments.get(key, []), out)
            for utterance in found:
                rows.append(_stored(utterance, row, audio, tar))
                out.kept()
                out.stat("audio_samples", utterance["samples"])
            out.stat("audio_s", round(row["samples"] / row["rate_hz"], 3))
            ctx.progress(done, len(index), "recordings")
    _check_keys(rows, recordings)
    out.table(pa.Table.from_pylist(rows, UTTERANCES))


def _grouped(table: pa.Table) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = {}
    for row in table.to_pylist():
        groups.setdefault(row["key"], []).append(row)
    return groups


def _whole(p: CutParams, row: Row, cues: list[Row], out: ShardWriter) -> Iterator[Row]:
    """A short recording as one utterance. Its transcript is trusted; word times are unknown (-1)."""
    out.came_in()
    words = " ".join(cue["text"] for cue in cues).split()
    seconds = row["samples"] / row["rate_hz"]
    if not words:
        out.drop("no-transcript")
    elif seconds > p.max_s:
        out.drop("too-long")
    elif seconds < p.min_s:
        out.drop("too-short")
    else:
        raw = " ".join(cue["raw"].strip() for cue in cues)
        unknown = [-1] * len(words)
        yield _utterance(row, 0, row["samples"], raw, words, unknown, unknown, [1.0] * len(words))


def _spans(
    p: CutParams, row: Row, cues: list[Row], words: list[Row], segments: list[Row], out: ShardWriter
) -> Iterator[Row]:
    """Utterances of an aligned recording."""
    start = np.array([word["start_samples"] for word in words], np.int64)
    end = np.array([word["end_samples"] for word in words], np.int64)
    other = [s for s in segments if not s["kept"] and s["start_samples"] >= 0]
    busy = np.array([(s["start_samples"], s["end_samples"]) for s in other], np.int64).reshape(-1, 2)
    limits = _limits(p, row["rate_hz"])
    spans = plan_spans(start, end, _parted(words, segments, start, busy), busy, row["samples"], limits)
    texts = {cue["cue"]: cue for cue in cues}
    for span in spans:
        out.came_in()
        inside = words[span.first : span.last]
        confidence = [float(word["confidence"]) for word in inside]
        reason = span.verdict or ("low-confidence" if np.mean(confidence) < p.min_confidence else "")
        if reason:
            out.drop(reason)
            continue
        relative_start, relative_end = (times[span.first : span.last] - span.start for times in (start, end))
        yield _utterance(
            row,
            span.start,
            span.end,
            raw_text(inside, texts),
            [word["text"] for word in inside],
            relative_start.tolist(),
            relative_end.tolist(),
            confidence,
        )


def _limits(p: CutParams, rate_hz: int) -> Limits:
    lengths = (p.min_s, p.max_s, p.pad_s, p.min_pause_s, p.max_pause_s, 1.0)
    return Limits(*(round(seconds * rate_hz) for seconds in lengths))


def _parted(
    words: list[Row], segments: list[Row], start: NDArray[np.int64], busy: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(W,) whether text or sound is missing between a word and the one before it."""
    left_out = np.sort([s["cue"] for s in segments if not s["kept"] and s["cue"] >= 0])
    cue = np.array([word["cue"] for word in words], np.int64)
    place = np.array([word["word"] for word in words], np.int64)
    gone = np.searchsorted(left_out, cue)
    sounds = np.searchsorted(np.sort(busy[:, 0]), start)
    same = cue[1:] == cue[:-1]
    missing_word = np.where(same, place[1:] != place[:-1] + 1, place[1:] != 0)
    return np.insert((gone[1:] != gone[:-1]) | (sounds[1:] != sounds[:-1]) | missing_word, 0, True)[: len(words)]


def raw_text(words: list[Row], cues: dict[int, Row]) -> str:
    """The transcript's own spelling of neighbouring aligned words, cue after cue."""
    parts: list[str] = []
    for number in dict.fromkeys(word["cue"] for word in words):
        places = [word["word"] for word in words if word["cue"] == number]
        raw, offsets = cues[number]["raw"], cues[number]["offsets"]
        later = [offset for offset in offsets[places[-1] + 1 :] if offset > offsets[places[-1]]]
        parts.append(raw[offsets[places[0]] if places[0] else 0 : later[0] if later else len(raw)].strip())
    return " ".join(part for part in parts if part)


def _utterance(
    row: Row,
    start: int,
    end: int,
    raw: str,
    words: list[str],
    word_start: list[int],
    word_end: list[int],
    confidence: list[float],
) -> Row:
    return {
        "key": key_of(row["key"], start, end),
        "recording": row["key"],
        "start_samples": start,
        "end_samples": end,
        "samples": end - start,
        **{name: row[name] for name in INHERITED},
        "raw": raw,
        "text": " ".join(words),
        "words": words,
        "word_start_samples": word_start,
        "word_end_samples": word_end,
        "word_confidence": confidence,
        "confidence": float(np.mean(confidence)),
        "split": "",
    }


def _stored(utterance: Row, row: Row, audio: ShardAudio, tar: TarWriter) -> Row:
    samples = audio.read(row["offset"], row["size"], utterance["start_samples"], utterance["end_samples"])
    offset, size = tar.add(f"{utterance['key']}.flac", encode_flac(samples, row["rate_hz"]))
    return {**utterance, "offset": offset, "size": size}


def _check_keys(rows: list[Row], recordings: Artifact) -> None:
    keys = [row["key"] for row in rows]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise StoreError(
            f"utterance key {twice} occurs twice", where=recordings.url, remedy="remove the recording's copy"
        )
