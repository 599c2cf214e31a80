"""lhotse: cuts with recordings, supervisions and word alignments, as Shar or as manifests of FLAC files.

The layout is that of lhotse 1.3x: `cuts.jsonl.gz` has a cut a line; in Shar's `recording.tar` the JSON of a recording
follows its FLAC, in the order of the cuts. Import also reads recordings with supervisions. Sources of the type
`command` are never run: of one that only decodes a file, the file is read, and others are refused.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.records import canonical_json, key_of
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange.commands import decoding
from megahour.corpus.interchange.record import CUSTOM, Row, json_ready, timed_words
from megahour.corpus.interchange.untrusted import Audio, Entry, custom, duration, json_object, string
from megahour.corpus.interchange.webdataset import Add
from megahour.corpus.media.tar import tar_writer


def recording(record: Row, source: dict[str, Any]) -> Row:
    """A lhotse Recording of one channel that is exactly the utterance."""
    return {
        "id": str(record["key"]),
        "sources": [{**source, "channels": [0]}],
        "sampling_rate": record["rate_hz"],
        "num_samples": record["samples"],
        "duration": record["samples"] / record["rate_hz"],
        "channel_ids": [0],
    }


def cut(record: Row, source: dict[str, Any]) -> Row:
    """A MonoCut with one supervision; its custom field is the whole record."""
    key, rate_hz = str(record["key"]), record["rate_hz"]
    length = record["samples"] / rate_hz
    words = [
        [word, start / rate_hz, (end - start) / rate_hz, json_ready({"": confidence})[""]]
        for word, start, end, confidence in timed_words(record)
    ]
    supervision = {
        "id": key,
        "recording_id": key,
        "start": 0.0,
        "duration": length,
        "channel": 0,
        "text": record["text"],
        "language": record["language"],
        "speaker": record["speaker"],
        **({"alignment": {"word": words}} if words else {}),
    }
    return {
        "id": key,
        "start": 0.0,
        "duration": length,
        "channel": 0,
        "supervisions": [supervision],
        "recording": recording(record, source),
        "custom": {CUSTOM: json_ready(record)},
        "type": "MonoCut",
    }


@contextmanager
def jsonl_gz(out: ShardWriter, suffix: str) -> Iterator[Callable[[Row], None]]:
    """A writer of gzipped JSON lines, without date and name: equal lines give equal bytes."""
    with out.open(suffix) as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        yield lambda value: void(file.write(canonical_json(value).encode() + b"\n"))


def void(_: object) -> None:
    """Discard a value, in a callback that returns None."""


@contextmanager
def write_shar(out: ShardWriter) -> Iterator[Add]:
    """Writer of `.shar.cuts.jsonl.gz` and `.shar.recording.tar`."""
    with (
        jsonl_gz(out, ".shar.cuts.jsonl.gz") as line,
        out.open(".shar.recording.tar") as file,
        tar_writer(file) as tar,
    ):

        def add(record: Row, flac: bytes) -> None:
            made = cut(record, {"type": "shar", "source": ""})
            line(made)
            tar.add(f"{record['key']}.flac", flac)
            tar.add(f"{record['key']}.json", canonical_json(made["recording"]).encode())

        yield add


Find = Callable[[str], Audio]
Resolve = Callable[[dict[str, Any]], Audio]


def audio_of(recording: dict[str, Any], find: Find) -> Audio:
    """The audio of a Recording. Raises BadRecord ``unsupported-source``, ``command-refused``, ``bad-field``."""
    changes = recording.get("transforms") or []
    listed = changes if isinstance(changes, list) else [changes]
    names = [string(each, "name") if isinstance(each, dict) else "?" for each in listed]
    if changed := [name for name in names if name != "Resample"]:  # times are in seconds, and we resample anyway
        what = f"the recording is changed by {', '.join(changed)[:80]}, which are not applied"
        raise BadRecord("unsupported-source", f"{what}; import the cuts before that, or save their audio")
    sources = recording.get("sources")
    if not isinstance(sources, list) or len(sources) != 1 or not isinstance(sources[0], dict):
        raise BadRecord("unsupported-source", "a recording must have one source; several files are not supported")
    kind, source = string(sources[0], "type"), sources[0].get("source")
    if kind == "command":
        made = decoding(source) if isinstance(source, str) else None
        if made is None or made.channel is not None:
            raise BadRecord(
                "command-refused", "the source is a command that does more than decode a whole file; none is run"
            )
        return find(made.path)
    if kind == "file" and isinstance(source, str):
        return find(source)
    if kind == "memory" and isinstance(source, str):
        return _inline(string(recording, "id"), source)
    raise BadRecord("unsupported-source", f"a source of type {kind[:40]!r} is not supported")


def _inline(name: str, encoded: str) -> Audio:
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRecord("unsupported-source", f"the audio in memory is not base64: {error}") from None
    # Cuts that lhotse moved to memory keep the id of their recording.
    return Audio(f"memory:{name}:{key_of(encoded)}", lambda: io.BytesIO(data))


def read_cuts(lines: Iterator[str | BadRecord], audio: Resolve) -> Iterator[Entry | BadRecord]:
    """Entries of cuts, one per supervision, and a BadRecord for each bad line. `audio` returns the audio of a cut."""
    for number, line in enumerate(lines, start=1):
        try:
            cut = json_object(line)
            yield from list(_of_cut(cut, audio(cut)))
        except RECORD_FAULTS as error:
            yield bad_record(error, f"line {number}")


def recording_of(cut: dict[str, Any]) -> dict[str, Any]:
    """A cut's recording. Raises BadRecord ``unsupported-cut`` for mixed and padding cuts."""
    if string(cut, "type") not in ("MonoCut", "MultiCut", "Cut", ""):
        raise BadRecord("unsupported-cut", f"{string(cut, 'type')}: only cuts of one recording are supported")
    recording = cut.get("recording")
    if not isinstance(recording, dict):
        hint = "; it is a recording: name the supervisions, too (`supervisions`)" if "sources" in cut else ""
        raise BadRecord("bad-field", f"the cut has no recording{hint}")
    return recording


def _of_cut(cut: dict[str, Any], audio: Audio) -> Iterator[Entry | BadRecord]:
    recording = recording_of(cut)
    start_s, length_s = duration(cut.get("start", 0.0), "start"), duration(cut.get("duration"), "duration")
    own = custom(_mapping(cut, "custom"))
    supervisions = cut.get("supervisions") or []
    if not isinstance(supervisions, list):
        raise BadRecord("bad-field", "supervisions is not a list")
    if own is not None and len(supervisions) == 1:
        yield _entry(string(cut, "id"), audio, recording, supervisions[0], start_s, length_s, own)
        return
    for number, supervision in enumerate(supervisions):
        try:
            if not isinstance(supervision, dict):
                raise BadRecord("bad-field", "a supervision is not an object")
            begin_s = start_s + _signed(supervision.get("start", 0.0))
            spoken_s = duration(supervision.get("duration"), "duration")
            yield _entry(string(supervision, "id"), audio, recording, supervision, begin_s, spoken_s, None)
        except RECORD_FAULTS as error:  # the others can be used
            yield bad_record(error, f"{string(cut, 'id')} supervision {number}")


def _signed(value: Any) -> float:
    """Seconds that may be negative: a supervision can begin before its cut, or a little before its recording."""
    return -duration(-value, "start") if isinstance(value, int | float) and value < 0 else duration(value, "start")


def supervision_entry(recording: dict[str, Any], supervision: dict[str, Any], audio: Audio) -> Entry:
    """The entry of a supervision whose times count from the start of the recording."""
    start_s = _signed(supervision.get("start", 0.0))
    length_s = duration(supervision.get("duration"), "duration")
    own = custom(_mapping(supervision, "custom"))
    return _entry(string(supervision, "id"), audio, recording, supervision, start_s, length_s, own)


def _entry(
    name: str,
    audio: Audio,
    recording: dict[str, Any],
    supervision: dict[str, Any],
    start_s: float,
    length_s: float,
    own: Any,
) -> Entry:
    if not name:
        raise BadRecord("bad-field", "the supervision has no id")
    extra = _mapping(supervision, "custom")
    return Entry(
        id=name,
        audio=audio,
        recording=string(recording, "id"),
        text=string(supervision, "text"),
        start_s=start_s,
        duration_s=length_s,
        channel=_channel(supervision.get("channel", 0), name),
        speaker=string(supervision, "speaker"),
        language=string(supervision, "language"),
        licence=string(extra, "licence", "license"),
        attribution=string(extra, "attribution"),
        source=string(extra, "source"),
        words=_words(supervision),
        record=own,
    )


def _channel(value: Any, name: str) -> int | None:
    """A supervision's channel; None, the mean of all, for one that a MultiCut has on several."""
    listed = value if isinstance(value, list) and value else [value]
    for channel in listed:
        if not isinstance(channel, int) or isinstance(channel, bool) or not 0 <= channel < 1 << 15:
            raise BadRecord("bad-field", f"channel = {str(value)[:40]} is not the number of a channel", record=name)
    return listed[0] if len(listed) == 1 else None


def _mapping(value: dict[str, Any], name: str) -> dict[str, Any]:
    mapping = value.get(name)
    return mapping if isinstance(mapping, dict) else {}


def _words(supervision: dict[str, Any]) -> tuple[tuple[str, float, float, float], ...]:
    """Aligned words as in `Entry.words`."""
    items = _mapping(supervision, "alignment").get("word") or []
    begin_s = supervision.get("start", 0.0)
    words = []
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, list) or len(item) not in (3, 4) or not isinstance(item[0], str):
            raise BadRecord("bad-field", "the alignment of a word is not [word, start, duration, score]")
        start_s, length_s = duration(item[1], "word start"), duration(item[2], "word duration")
        score = item[3] if len(item) == 4 and isinstance(item[3], int | float) else 1.0
        words.append((item[0], start_s - begin_s, length_s, float(score)))
    return tuple(words)
