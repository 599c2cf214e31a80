"""Worker side of `cut`: the utterances of one recordings shard, as FLAC in a tar with an index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.align.cut import Limits, Span, plan_spans
from megahour.align.quality import clipped_share, snr_db
from megahour.align.rawtext import raw_text
from megahour.align.reading import rates
from megahour.align.recordings import Row, cues_by_key
from megahour.align.spoken import Spoken, Tables
from megahour.align.tables import UNTRANSCRIBED
from megahour.align.tiers import one_name, split_of, tier_of, why_dropped
from megahour.core.errors import StoreError
from megahour.core.records import key_of
from megahour.core.schemas import DROPPED, UTTERANCES
from megahour.corpus.audio import encode_flac
from megahour.corpus.speakers import names_nobody
from megahour.corpus.tar import ShardAudio, TarWriter, tar_writer

if TYPE_CHECKING:
    from megahour.align.cut_stage import CutParams
    from megahour.core.stage import Context
    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter

INHERITED = ("rate_hz", "language", "licence", "attribution", "condition", "created_s", "name", "channel", "source")
SLACK_S = 0.1  # by which a heard token may lie beside its word
UNKNOWN = float("nan")


@dataclass
class Losses:
    """What is left out: counted by reason, and listed with its place and why."""

    out: ShardWriter
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row, reason: str, detail: str, start: int, end: int, text: str = "", cue: int = -1) -> None:
        self.out.drop(reason)
        place = {"recording": row["key"], "name": row["name"], "cue": cue, "start_samples": start, "end_samples": end}
        self.rows.append({**place, "text": text, "reason": reason, "detail": detail})


def cut_shard(
    p: CutParams, recordings: Artifact, alignment: Artifact | None, shard: int, out: ShardWriter, ctx: Context
) -> None:
    """Write one *utterances* shard: `.tar`, `.parquet` and `.dropped.parquet`."""
    index = recordings.read_table(shard).to_pylist()
    cues = cues_by_key(recordings.read_table(shard, ".cues.parquet"))
    tables = None if alignment is None else Tables.read(alignment, shard)
    losses = Losses(out)
    rows: list[Row] = []
    with ShardAudio(recordings, shard) as audio, out.open(".tar") as file, tar_writer(file) as tar:
        for done, row in enumerate(index, start=1):
            own = cues.get(row["key"], [])
            if tables is None:
                found = _whole(p, row, own, losses)
            else:
                found = _spans(p, row, tables.of(row["key"], own), losses)
            for utterance in found:
                if stored := _stored(p, utterance, row, audio, tar, losses):
                    rows.append(stored)
                    out.kept()
                    out.stat("audio_samples", stored["samples"])
                    out.stat(f"tier_{stored['tier'] or 'unknown'}", 1)
            out.stat("audio_s", round(row["samples"] / row["rate_hz"], 3))
            ctx.progress(done, len(index), "recordings")
    _check_keys(rows, recordings)
    out.table(pa.Table.from_pylist(rows, UTTERANCES))
    out.table(pa.Table.from_pylist(losses.rows, DROPPED), ".dropped.parquet")


def _whole(p: CutParams, row: Row, cues: list[Row], losses: Losses) -> Iterator[Row]:
    """A short recording as one utterance. Its transcript is trusted; word times are unknown (-1)."""
    losses.out.came_in()
    places = [(cue["cue"], word) for cue in cues for word in range(len(cue["text"].split()))]
    raw, offsets, ends = raw_text(places, {cue["cue"]: cue for cue in cues})
    words = " ".join(cue["text"] for cue in cues).split()
    seconds = row["samples"] / row["rate_hz"]
    reason, detail = "", f"{seconds:.2f} s, the limits are {p.min_s:g} to {p.max_s:g} s"
    if not words:
        reason, detail = "no-transcript", f"{len(cues)} cues without words"
    elif seconds > p.max_s:
        reason = "too-long"
    elif seconds < p.min_s:
        reason = "too-short"
    if reason:
        losses.add(row, reason, detail, 0, row["samples"], " ".join(words), cues[0]["cue"] if cues else -1)
        return
    speakers = {str(cue.get("speaker") or "") for cue in cues}
    unknown = [-1] * len(words)
    yield {
        **_inherited(p, row, speakers, 0, row["samples"]),
        "cue": cues[0]["cue"],
        **{"raw": raw, "word_offset": offsets, "word_end": ends, "text": " ".join(words), "words": words},
        **{"word_start_samples": unknown, "word_end_samples": unknown},
        **{"word_confidence": [1.0] * len(words), "confidence": 1.0, "loss": UNKNOWN},
        **{"heard": "", "cer": UNKNOWN, "edge_cer": UNKNOWN, "wildcard_share": UNKNOWN},
    }


def _spans(p: CutParams, row: Row, spoken: Spoken, losses: Losses) -> Iterator[Row]:
    """Utterances of an aligned recording."""
    _left_out(row, spoken, losses)
    other = [s for s in spoken.segments if not s["kept"] and s["start_samples"] >= 0]
    busy = np.array([(s["start_samples"], s["end_samples"]) for s in other], np.int64).reshape(-1, 2)
    limits = _limits(p, row["rate_hz"])
    parted = _parted(spoken, busy, limits.least_pause)
    for span in plan_spans(spoken.start, spoken.end, parted, busy, row["samples"], limits):
        losses.out.came_in()
        confidence = float(np.mean(spoken.confidence[span.first : span.last]))
        detail = f"{(span.end - span.start) / row['rate_hz']:.2f} s, the limits are {p.min_s:g} to {p.max_s:g} s"
        reason: str = span.verdict
        if not reason and confidence < p.min_confidence:
            reason, detail = "low-confidence", f"{confidence:.3f}, the limit min_confidence is {p.min_confidence:g}"
        if reason:
            text = " ".join(spoken.text[span.first : span.last].to_pylist())
            cue = int(spoken.cue[span.first])
            losses.add(row, reason, detail, span.start, span.end, text, cue)
        else:
            yield _utterance(p, row, spoken, span, confidence)


def _left_out(row: Row, spoken: Spoken, losses: Losses) -> None:
    """List what `align` refused: whole recordings, cues, and speech that no cue writes down."""
    refused = [s for s in spoken.segments if not s["kept"]]
    for segment in refused:
        losses.out.came_in()
        cue = segment["cue"]
        if segment["reason"] == UNTRANSCRIBED:
            detail = "speech that no cue writes down"
        elif cue < 0:
            detail = f"the whole recording of {len(spoken.cues)} cues, refused by align"
        else:
            detail = f"cue {cue}, confidence {segment['confidence']:.3f}"
        text = spoken.cues[cue]["text"] if cue in spoken.cues else ""
        reason = segment["reason"] if segment["reason"] != "low-confidence" else "low-confidence-cue"
        losses.add(row, reason, detail, segment["start_samples"], segment["end_samples"], text, cue)
    if not spoken.segments:
        losses.out.came_in()
        reason = "not-aligned" if spoken.cues else "no-transcript"
        detail = f"{len(spoken.cues)} cues; the alignment's quarantine may say why"
        losses.add(row, reason, detail if spoken.cues else "no cues", 0, row["samples"])


def _utterance(p: CutParams, row: Row, spoken: Spoken, span: Span, confidence: float) -> Row:
    """What is known of an utterance before its sound is read, and its first `cue`."""
    part = slice(span.first, span.last)
    words = spoken.text[part].to_pylist()
    text = " ".join(words)
    raw, offsets, ends = raw_text(
        list(zip(spoken.cue[part].tolist(), spoken.word[part].tolist(), strict=True)), spoken.cues
    )
    heard = spoken.reading.between(span.start, span.end)
    found = rates(text, heard, spaced=spoken.reading.spaced)
    times = np.stack([spoken.start[part], spoken.end[part]], axis=1)
    slack = round(SLACK_S * row["rate_hz"])
    return {
        **_inherited(p, row, spoken.speakers(span.first, span.last), span.start, span.end),
        "cue": int(spoken.cue[span.first]),
        **{"raw": raw, "word_offset": offsets, "word_end": ends, "text": text, "words": words},
        "word_start_samples": (spoken.start[part] - span.start).tolist(),
        "word_end_samples": (spoken.end[part] - span.start).tolist(),
        "word_confidence": spoken.confidence[part].tolist(),
        "confidence": confidence,
        "loss": spoken.loss(span.first, span.last),
        **{"heard": heard, "cer": found.cer, "edge_cer": found.edge_cer},
        "wildcard_share": spoken.reading.wildcard_share(span.start, span.end, times, slack),
    }


def _inherited(p: CutParams, row: Row, speakers: set[str], start: int, end: int) -> Row:
    """Key, place and the recording's columns; the speaker is the cues' if they agree on one.

    A label such as "ANNA:" is no other person than the recording's speaker "anna", and "Speaker 1" of two recordings
    are two.
    """
    speaker = next(iter(speakers)) if len(speakers) == 1 else ""
    speaker = f"{row['speaker']}/{speaker}" if names_nobody(speaker) else speaker
    same = not speaker or one_name(speaker) == one_name(row["speaker"])
    who = {**row, "speaker": row["speaker"] if same else speaker}
    return {
        "key": key_of(row["key"], start, end),
        **{"recording": row["key"], "start_samples": start, "end_samples": end, "samples": end - start},
        **{name: row[name] for name in INHERITED},
        "speaker": who["speaker"],
        "split": split_of(p, who),
    }


def _limits(p: CutParams, rate_hz: int) -> Limits:
    lengths = (p.min_s, p.max_s, p.pad_s, p.least_pause_s, p.min_pause_s, p.max_pause_s, 1.0)
    return Limits(*(round(seconds * rate_hz) for seconds in lengths))


def _parted(spoken: Spoken, busy: NDArray[np.int64], least_pause: int) -> NDArray[np.bool_]:
    """(W,) whether text or sound is missing between a word and the one before it, or another speaker begins.

    Speakers are parted only where there is a pause to cut in.
    """
    left_out = np.sort([s["cue"] for s in spoken.segments if not s["kept"] and s["cue"] >= 0])
    cue, place = spoken.cue, spoken.word
    gone = np.searchsorted(left_out, cue)
    sounds = np.searchsorted(np.sort(busy[:, 0]), spoken.start)
    same = cue[1:] == cue[:-1]
    missing_word = np.where(same, place[1:] != place[:-1] + 1, place[1:] != 0)
    who = np.array([spoken.cues[number].get("speaker") or "" for number in cue.tolist()], object)
    turn = (who[1:] != who[:-1]) & (who[1:] != "") & (who[:-1] != "")
    turn &= spoken.start[1:] - spoken.end[:-1] >= least_pause
    apart = (gone[1:] != gone[:-1]) | (sounds[1:] != sounds[:-1]) | missing_word | turn
    return np.insert(apart.astype(bool), 0, True)[: len(cue)]


def _stored(p: CutParams, utterance: Row, row: Row, audio: ShardAudio, tar: TarWriter, losses: Losses) -> Row | None:
    """The utterance with its measured sound and its place in the tar, or None if it is in no tier."""
    start, end = utterance["start_samples"], utterance["end_samples"]
    samples = audio.read(row["offset"], row["size"], start, end)
    measured = {**utterance, "snr_db": snr_db(samples, row["rate_hz"]), "clipped_share": clipped_share(samples)}
    reason, detail = why_dropped(p, measured)
    if reason:
        losses.add(row, reason, detail, start, end, utterance["text"], utterance["cue"])
        return None
    offset, size = tar.add(f"{utterance['key']}.flac", encode_flac(samples, row["rate_hz"]))
    return {**measured, "tier": tier_of(p, measured), "offset": offset, "size": size}


def _check_keys(rows: list[Row], recordings: Artifact) -> None:
    keys = [row["key"] for row in rows]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise StoreError(
            f"utterance key {twice} occurs twice", where=recordings.url, remedy="remove the recording's copy"
        )
