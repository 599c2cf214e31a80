"""Worker side of `cut`: writes the utterances of one recordings shard, as FLAC in a tar with an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.align.tables import UNTRANSCRIBED
from megahour.core.errors import StoreError
from megahour.core.records import key_of
from megahour.core.schemas import BY_RECOGNISER, DROPPED, UTTERANCES
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.media.tar import ShardAudio, TarWriter, tar_writer
from megahour.cut.aligned import AlignedRecording, Row, Tables
from megahour.cut.limits import ReadingLimits, limits_of
from megahour.cut.params import NO_ANCHORS, CutParams
from megahour.cut.pauses import CutLimits, Span, plan_spans
from megahour.cut.second_reading import rates
from megahour.cut.sound_quality import clipped_share, snr_db
from megahour.cut.speakers import Speakers
from megahour.cut.tiers import tier_of, why_dropped

INHERITED = ("rate_hz", "language", "licence", "attribution", "condition", "created_s", "name", "channel", "source")
SLACK_S = 0.1  # by which a recognised token may be off its word
UNKNOWN = float("nan")


@dataclass
class Losses:
    """Dropped utterances, counted by reason and listed with time span and detail."""

    out: ShardWriter
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row, reason: str, detail: str, start: int, end: int, text: str = "", cue: int = -1) -> None:
        self.out.drop(reason)
        self.out.stat(f"dropped_s_{reason}", round((end - start) / row["rate_hz"], 3))
        where = {"recording": row["key"], "name": row["name"], "cue": cue, "start_samples": start, "end_samples": end}
        self.rows.append({**where, "text": text, "reason": reason, "detail": detail})


def cut_shard(
    p: CutParams, recordings: Artifact, alignment: Artifact | None, shard: int, out: ShardWriter, ctx: Context
) -> None:
    """Write one *utterances* shard: `.tar`, `.parquet` and `.dropped.parquet`."""
    index = recordings.read_table(shard).to_pylist()
    cues = _cues_by_key(recordings.read_table(shard, ".cues.parquet"))
    tables = None if alignment is None else Tables.read(alignment, shard)
    losses = Losses(out)
    rows: list[Row] = []
    with ShardAudio(recordings, shard) as audio, out.open(".tar") as file, tar_writer(file) as tar:
        for done, row in enumerate(index, start=1):
            own = cues.get(row["key"], [])
            if tables is None:
                utterances = list(_whole(p, row, own, losses))
            else:
                utterances = list(_spans(p, row, tables.of(row["key"], own), losses))
            limits = limits_of(p, utterances)
            _count_read(out, utterances)
            for utterance in utterances:
                if stored := _stored(p, utterance, limits, row, audio, tar, losses):
                    rows.append(stored)
                    out.kept()
                    out.stat("audio_samples", stored["samples"])
                    out.stat(f"tier_{stored['tier'] or 'unknown'}", 1)
                    out.stat("texts_of_recogniser", int(stored["transcript"] == BY_RECOGNISER))
            out.stat("audio_s", round(row["samples"] / row["rate_hz"], 3))
            ctx.progress(done, len(index), "recordings")
    _check_keys(rows, recordings)
    out.table(pa.Table.from_pylist(rows, UTTERANCES))
    out.table(pa.Table.from_pylist(losses.rows, DROPPED), ".dropped.parquet")


def _cues_by_key(table: pa.Table) -> dict[int, list[Row]]:
    """Cues of each recording, by number."""
    cues: dict[int, list[Row]] = {}
    for row in table.to_pylist():
        cues.setdefault(row["key"], []).append(row)
    for rows in cues.values():
        rows.sort(key=lambda row: int(row["cue"]))
    return cues


def _whole(p: CutParams, row: Row, cues: list[Row], losses: Losses) -> Iterator[Row]:
    """A short recording as one utterance, with its first transcript (a recogniser's if there is no other); word times
    are unknown (-1)."""
    losses.out.came_in()
    number = _first_transcript(cues)
    cues = [cue for cue in cues if (cue.get("transcript") or 0) == number]
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
    speakers, labels = Speakers(row, cues), {str(cue.get("speaker") or "") for cue in cues}
    unknown = [-1] * len(words)
    yield {
        **_inherited(p, speakers, labels, 0, row["samples"]),
        "cue": cues[0]["cue"],
        **{"raw": raw, "word_offset": offsets, "word_end": ends, "text": " ".join(words), "words": words},
        **{"word_start_samples": unknown, "word_end_samples": unknown},
        **{"word_confidence": [1.0] * len(words), "confidence": 1.0, "loss": UNKNOWN},
        **{"heard": "", "cer": UNKNOWN, "edge_cer": UNKNOWN, "wildcard_share": UNKNOWN},
        "transcript": number,
    }


def _first_transcript(cues: list[Row]) -> int:
    numbers = {cue.get("transcript") or 0 for cue in cues}
    return min(numbers - {BY_RECOGNISER}, default=BY_RECOGNISER if numbers else 0)


def _spans(p: CutParams, row: Row, spoken: AlignedRecording, losses: Losses) -> Iterator[Row]:
    """Utterances of an aligned recording."""
    _left_out(row, spoken, losses)
    other = [s for s in spoken.segments if not s["kept"] and s["start_samples"] >= 0]
    busy = np.array([(s["start_samples"], s["end_samples"]) for s in other], np.int64).reshape(-1, 2)
    limits = _limits(p, row["rate_hz"])
    split_before = _split_before(spoken, busy, limits.least_pause)
    speakers = Speakers(row, spoken.cues.values())
    for span in plan_spans(spoken.start, spoken.end, split_before, busy, row["samples"], limits):
        losses.out.came_in()
        confidence = float(np.mean(spoken.confidence[span.first : span.last]))
        if span.verdict:
            detail = f"{(span.end - span.start) / row['rate_hz']:.2f} s, the limits are {p.min_s:g} to {p.max_s:g} s"
            text = " ".join(spoken.text[span.first : span.last].to_pylist())
            cue = int(spoken.cue[span.first])
            losses.add(row, span.verdict, detail, span.start, span.end, text, cue)
        else:
            yield _utterance(p, speakers, spoken, span, confidence)


def _left_out(row: Row, spoken: AlignedRecording, losses: Losses) -> None:
    """List what `align` refused: whole recordings, cues, and untranscribed speech."""
    refused = [s for s in spoken.segments if not s["kept"]]
    for segment in refused:
        losses.out.came_in()
        cue = segment["cue"]
        if segment["reason"] == UNTRANSCRIBED:
            detail = "speech that no cue writes down"
        elif cue < 0:
            detail = f"align refused the whole recording of {len(spoken.cues)} cues"
            detail += f": {NO_ANCHORS}" if segment["reason"] == "no-anchors" else ""
        else:
            detail = f"cue {cue}, confidence {segment['confidence']:.3f}"
        text = spoken.cues[cue]["text"] if cue in spoken.cues else ""
        reason = segment["reason"] if segment["reason"] != "low-confidence" else "low-confidence-cue"
        losses.add(row, reason, detail, segment["start_samples"], segment["end_samples"], text, cue)
    if not spoken.segments:
        losses.out.came_in()
        reason = "not-aligned" if spoken.cues else "no-transcript"
        detail = f"{len(spoken.cues)} cues; see the alignment's quarantine for the cause"
        losses.add(row, reason, detail if spoken.cues else "no cues", 0, row["samples"])


def _utterance(p: CutParams, speakers: Speakers, spoken: AlignedRecording, span: Span, confidence: float) -> Row:
    """An utterance's columns before its audio is read, and its first `cue`."""
    row = speakers.recording
    part = slice(span.first, span.last)
    words = spoken.text[part].to_pylist()
    text = " ".join(words)
    raw, offsets, ends = raw_text(
        list(zip(spoken.cue[part].tolist(), spoken.word[part].tolist(), strict=True)), spoken.cues
    )
    heard = spoken.reading.between(span.start, span.end)
    second = rates(text, heard, spaced=spoken.reading.spaced)
    times = np.stack([spoken.start[part], spoken.end[part]], axis=1)
    slack = round(SLACK_S * row["rate_hz"])
    return {
        **_inherited(p, speakers, spoken.speakers(span.first, span.last), span.start, span.end),
        "cue": int(spoken.cue[span.first]),
        **{"raw": raw, "word_offset": offsets, "word_end": ends, "text": text, "words": words},
        "word_start_samples": (spoken.start[part] - span.start).tolist(),
        "word_end_samples": (spoken.end[part] - span.start).tolist(),
        "word_confidence": spoken.confidence[part].tolist(),
        "confidence": confidence,
        "loss": spoken.loss(span.first, span.last),
        **{"heard": heard, "cer": second.cer, "edge_cer": second.edge_cer},
        "wildcard_share": spoken.reading.wildcard_share(span.start, span.end, times, slack),
        "transcript": spoken.cues[int(spoken.cue[span.first])].get("transcript") or 0,
    }


def _inherited(p: CutParams, speakers: Speakers, labels: set[str], start: int, end: int) -> Row:
    """Key, times, the recording's columns, the speaker of cues with these `labels`, and the split."""
    row, speaker = speakers.recording, speakers.of(labels)
    return {
        "key": key_of(row["key"], start, end),
        **{"recording": row["key"], "start_samples": start, "end_samples": end, "samples": end - start},
        **{name: row[name] for name in INHERITED},
        "speaker": speaker,
        "split": speakers.split(p, speaker),
    }


def _limits(p: CutParams, rate_hz: int) -> CutLimits:
    lengths = (p.min_s, p.max_s, p.pad_s, p.least_pause_s, p.min_pause_s, p.max_pause_s, 1.0)
    return CutLimits(*(round(seconds * rate_hz) for seconds in lengths))


def _split_before(spoken: AlignedRecording, busy: NDArray[np.int64], least_pause: int) -> NDArray[np.bool_]:
    """(W,) whether text or sound is missing before a word, or another speaker begins with it.

    Speakers are separated only if there is a pause to cut in.
    """
    left_out = np.sort([s["cue"] for s in spoken.segments if not s["kept"] and s["cue"] >= 0])
    cue, word = spoken.cue, spoken.word
    gone = np.searchsorted(left_out, cue)
    sounds = np.searchsorted(np.sort(busy[:, 0]), spoken.start)
    same = cue[1:] == cue[:-1]
    missing_word = np.where(same, word[1:] != word[:-1] + 1, word[1:] != 0)
    who = np.array([spoken.cues[number].get("speaker") or "" for number in cue.tolist()], object)
    turn = (who[1:] != who[:-1]) & (who[1:] != "") & (who[:-1] != "")
    turn &= spoken.start[1:] - spoken.end[:-1] >= least_pause
    apart = (gone[1:] != gone[:-1]) | (sounds[1:] != sounds[:-1]) | missing_word | turn
    return np.insert(apart.astype(bool), 0, True)[: len(cue)]


def _count_read(out: ShardWriter, utterances: Sequence[Row]) -> None:
    """Count characters with a second reading, and those read differently."""
    for row in utterances:
        if row["cer"] == row["cer"]:  # NaN without a reading
            out.stat("characters_read", len(row["text"]))
            out.stat("characters_misread", round(row["cer"] * len(row["text"]), 1))


def _stored(
    p: CutParams, utterance: Row, limits: ReadingLimits, row: Row, audio: ShardAudio, tar: TarWriter, losses: Losses
) -> Row | None:
    """The utterance with its measured sound and its position in the tar; None if it is in no tier."""
    start, end = utterance["start_samples"], utterance["end_samples"]
    if utterance["confidence"] < limits.confidence:
        detail = f"{utterance['confidence']:.3f}, the limit is {limits.confidence:.3g}"
        losses.add(row, "low-confidence", detail, start, end, utterance["text"], utterance["cue"])
        return None
    samples = audio.read(row["offset"], row["size"], start, end)
    measured = {**utterance, "snr_db": snr_db(samples, row["rate_hz"]), "clipped_share": clipped_share(samples)}
    reason, detail = why_dropped(p, measured, limits)
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


Places = tuple[str, list[int], list[int]]  # raw text; each word's first character and the one after its last


def raw_text(words: Sequence[tuple[int, int]], cues: Mapping[int, Mapping[str, Any]]) -> Places:
    """The raw text of `words` (cue, word within the cue), cue by cue, separated by a space.

    A cue taken from its first word, or to its last, keeps the marks around it. Words spoken for one token ("$5") have
    the same position. Raises IndexError for a word that its cue does not have.
    """
    text, starts, ends = "", [], []
    for cue, group in groupby(words, key=lambda word: word[0]):
        places = [word for _, word in group]
        raw, offsets = cues[cue]["raw"], cues[cue]["offsets"]
        begin = offsets[places[0]] if places[0] else 0
        later = [offset for offset in offsets[places[-1] + 1 :] if offset > offsets[places[-1]]]
        stop = later[0] if later else len(raw)
        begin = min(begin + len(raw[begin:stop]) - len(raw[begin:stop].lstrip()), offsets[places[0]])
        part = raw[begin:stop].rstrip()
        shift = len(text) + bool(text) - begin
        starts += [offsets[index] + shift for index in places]
        ends += [min(cues[cue]["ends"][index], begin + len(part)) + shift for index in places]
        text = f"{text} {part}" if text else part
    return text, starts, ends
