"""Kaldi data directories whose `wav.scp` points into archives of WAV by byte offset.

Kaldi reads `file.ark:offset` itself, so no file per utterance and no command is needed. Ids are `speaker-key`. Speakers
use `[0-9A-Za-z_.]` (other bytes are `.hex`). These characters sort after the hyphen, so a file sorted by utterance is
also sorted by speaker, as `utils/validate_data_dir.sh` demands (in the C locale).

Import reads `wav.scp` with plain paths and `archive:offset`, `segments`, `text`, `utt2spk` and `utt2lang`, and holds
only the lines of the wanted recordings in memory. Commands in data are never run: of a pipe that only decodes a file,
the file is read, and other pipes are refused.
"""

from __future__ import annotations

import io
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import soundfile

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.records import canonical_json, key_of
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange.commands import decoding
from megahour.corpus.interchange.record import CUSTOM, Row, json_ready
from megahour.corpus.interchange.untrusted import Audio, Entry, Root, custom, duration, first_places, json_object
from megahour.corpus.interchange.webdataset import Add

ARK = ".kaldi.ark"
WAV_HEADER_BYTES = 44
NAMES = ("wav.scp", "segments", "text", "utt2spk", "utt2dur", "utt2lang", "spk2utt", "utt2megahour")
UNKNOWN = ".unknown"  # no escaped speaker is equal to it: "un" is not hexadecimal


def speaker_id(speaker: str) -> str:
    """The speaker as a unique Kaldi id; `.unknown` for an empty name.

    >>> speaker_id("Ann Lee"), speaker_id("")
    ('Ann.20Lee', '.unknown')
    """
    plain = "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or byte == 95) else f".{byte:02x}"
        for byte in speaker.encode()
    )
    return plain or UNKNOWN


def utterance_id(record: Row) -> str:
    """`speaker-key`, with the key in 19 digits."""
    return f"{speaker_id(record['speaker'])}-{record['key']:019d}"


def entry_bytes(record: Row) -> tuple[int, int]:
    """(bytes before the WAV, total bytes) of a record's entry in an archive, computed without its audio."""
    head = len(utterance_id(record)) + 1
    return head, head + WAV_HEADER_BYTES + 2 * int(record["samples"])


@contextmanager
def write_ark(out: ShardWriter) -> Iterator[Add]:
    """Writer of `.kaldi.ark`: for each utterance its id, a space and a 16-bit WAV."""
    with out.open(ARK) as file:

        def add(record: Row, flac: bytes) -> None:
            samples, rate_hz = soundfile.read(io.BytesIO(flac), dtype="int16")
            wav = io.BytesIO()
            soundfile.write(wav, samples, rate_hz, format="WAV", subtype="PCM_16")
            entry = utterance_id(record).encode() + b" " + wav.getvalue()
            if len(entry) != entry_bytes(record)[1]:
                raise AssertionError(f"utterance {record['key']}: {len(entry)} bytes, not {entry_bytes(record)[1]}")
            file.write(entry)

        yield add


def sort_line(record: Row, audio: str) -> bytes:
    """An utterance for `write_directory`, as a line that sorts by its id. `audio` is `path:offset`."""
    return f"{utterance_id(record)} {canonical_json({**json_ready(record), 'audio': audio})}".encode()


def write_directory(out: ShardWriter, lines: Iterable[tuple[str, Row]]) -> None:
    """Write the directory `.kaldi/` in one pass over (id, record with `audio`), sorted by id.

    In `segments`, each utterance is a whole archive entry. `utt2megahour` has the fields that Kaldi has no file for.
    """
    with ExitStack() as stack:
        files = {}
        for name in NAMES:
            path = out.path(f".kaldi/{name}")
            path.parent.mkdir(exist_ok=True)
            files[name] = stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
        speaker = ""
        for utterance, record in lines:
            audio = record.pop("audio")
            length = f"{record['samples'] / record['rate_hz']:.6f}"
            spoken_by = speaker_id(record["speaker"])
            values = {
                "wav.scp": audio,
                "segments": f"{utterance} 0.0 {length}",
                "text": " ".join(record["text"].split()),  # validate_text.pl refuses all other white space
                "utt2spk": spoken_by,
                "utt2dur": length,
                "utt2lang": record["language"] or "und",
                "utt2megahour": canonical_json(record),
            }
            for name, value in values.items():
                files[name].write(f"{utterance} {value}".rstrip() + "\n")
            end = "\n" if speaker else ""
            files["spk2utt"].write(f" {utterance}" if spoken_by == speaker else f"{end}{spoken_by} {utterance}")
            speaker = spoken_by
        files["spk2utt"].write("\n" if speaker else "")


class KaldiSegment(NamedTuple):
    """An utterance's place: without `length_s` it ends with the recording; `channel` None is the mean of all."""

    recording: str
    start_s: float = 0.0
    length_s: float | None = None
    channel: int | None = None


Lines = Iterator["str | BadRecord"]
_PLACE = re.compile(r"(.+):(\d{1,18})$")


def read_kaldi(
    open_lines: Callable[[str], Lines], root: Root, wanted: Callable[[str], bool], *, first: bool
) -> Iterator[Entry | BadRecord]:
    """Entries of the recordings for which `wanted` is true, and a BadRecord for each bad line.

    Parameters
    ----------
    open_lines: returns the lines of a file of the directory; none if the file is missing.
    first: whether to report unreadable lines, which every part of the directory reads.
    """
    places, bad = _table(open_lines("wav.scp"), wanted, "wav.scp", first=first)
    segments, also_bad = _segments(open_lines("segments"), wanted, first=first)
    yield from [*bad, *also_bad]
    spans = {name: KaldiSegment(name) for name in places} if segments is None else segments
    tables = {}
    for name in ("text", "utt2spk", "utt2lang", "utt2megahour"):
        tables[name], bad = _table(open_lines(name), spans.__contains__, name, first=first)
        yield from bad
    for utterance, span in spans.items():
        try:
            if span.recording not in places:
                raise BadRecord("missing-audio", f"{span.recording} is not in wav.scp")
            own = tables["utt2megahour"].get(utterance)
            audio, only = _audio(places[span.recording], root)
            if only is not None and span.channel:
                raise BadRecord("missing-channel", f"channel {span.channel} of one that wav.scp takes from a file")
            yield Entry(
                id=utterance,
                audio=audio,
                recording=span.recording,
                text=tables["text"].get(utterance, ""),
                start_s=span.start_s,
                duration_s=span.length_s,
                channel=span.channel if only is None else only,
                speaker=tables["utt2spk"].get(utterance, ""),
                language=tables["utt2lang"].get(utterance, ""),
                record=custom({CUSTOM: json_object(own)}) if own else None,
            )
        except RECORD_FAULTS as error:
            error = bad_record(error)
            error.record = utterance
            yield error


def _audio(place: str, root: Root) -> tuple[Audio, int | None]:
    """The audio at a place of `wav.scp`, and the only channel of it that counts; None: all."""
    if place.rstrip().endswith("|") or place.lstrip().startswith("|"):
        if (file := decoding(place)) is None:
            raise BadRecord(
                "command-refused",
                "wav.scp has a pipe that does more than decode a file, and commands are never run; write the audio to "
                "files first",
            )
        return root.audio(file.path), file.channel
    match = _PLACE.fullmatch(place)
    return root.archive_entry(match[1], int(match[2])) if match else root.audio(place), None


def _table(
    lines: Lines, wanted: Callable[[str], bool], name: str, *, first: bool
) -> tuple[dict[str, str], list[BadRecord]]:
    """The value of each wanted id, and the bad lines: unreadable ones and ``duplicate-id``."""
    rest_of: dict[str, str] = {}
    bad: list[BadRecord] = []
    for line in lines:
        if isinstance(line, BadRecord):
            bad += [line] * first
            continue
        key, _, rest = line.strip().partition(" ")
        key, tab, after = key.partition("\t")
        rest = f"{after} {rest}".strip() if tab else rest.strip()
        if not wanted(key):
            continue
        if key in rest_of:
            bad.append(BadRecord("duplicate-id", f"{key} occurs twice in {name}", record=key))
        else:
            rest_of[key] = rest
    return rest_of, bad


def _segments(
    lines: Lines, wanted: Callable[[str], bool], *, first: bool
) -> tuple[dict[str, KaldiSegment] | None, list[BadRecord]]:
    """The spans by utterance, None for a directory without segments; and the bad lines."""
    segments: dict[str, KaldiSegment] = {}
    bad: list[BadRecord] = []
    empty = True  # not so if all lines are of other parts
    others = array("q")  # hashes of the utterances of other parts: one of ours may be among them
    before: dict[str, int] = {}  # how many of them come before each of ours
    for line in lines:
        empty = False
        if isinstance(line, BadRecord):
            bad += [line] * first
            continue
        parts = line.split()
        try:
            if not wanted(parts[1] if len(parts) > 1 else ""):
                others.append(key_of(*parts[:1]))
                continue
            again = "".join(parts[:1]) in before
            before.setdefault("".join(parts[:1]), len(others))
            if len(parts) not in (4, 5):
                raise BadRecord(
                    "bad-line", f"a line of segments has {len(parts)} columns instead of 4", record="".join(parts[:1])
                )
            utterance, recording = parts[:2]
            start_s, end_s = (_number(part) for part in parts[2:4])
            if again:
                raise BadRecord("duplicate-id", f"{utterance} occurs twice in segments", record=utterance)
            length_s = None if end_s < 0 else end_s - start_s  # Kaldi: -1 is the recording's end
            if length_s is not None and length_s <= 0:
                raise BadRecord(
                    "bad-time", f"in segments it ends at {end_s} s, before its start at {start_s} s", record=utterance
                )
            channel = _channel(parts[4]) if len(parts) > 4 else None
            segments[utterance] = KaldiSegment(recording, duration(start_s, "start"), length_s, channel)
        except RECORD_FAULTS as error:
            bad.append(bad_record(error, "".join(parts[:1])))
    places = first_places([key_of(utterance) for utterance in segments], others)
    for utterance in [each for each in segments if places.get(key_of(each), len(others)) < before[each]]:
        del segments[utterance]
        bad.append(BadRecord("duplicate-id", f"{utterance} occurs twice in segments", record=utterance))
    return None if empty else segments, bad


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadRecord("bad-time", f"{text[:40]!r} is not a number") from None
    return -1.0 if value == -1 else duration(value, "time")


def _channel(text: str) -> int | None:
    """Kaldi's fifth column of `segments`: channels count from 0, and -1 is none in particular."""
    if text == "-1":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise BadRecord("bad-field", f"the channel {text[:40]!r} in segments is not a number from 0")
    return int(text)
