"""A Kaldi data directory whose audio lies in archives of WAV: `wav.scp` points into them by byte offset.

Kaldi reads `file.ark:offset` itself, so there is neither a file per utterance nor a command to run. Ids are
`speaker-key`: speakers are written in `[0-9A-Za-z_.]` (other bytes as `.hex`), all of which sort after the hyphen, so
that files sorted by utterance are sorted by speaker too (`utils/validate_data_dir.sh` demands both, in the C locale).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import soundfile

from megahour.core.records import canonical_json
from megahour.corpus.interchange.record import Row, json_ready
from megahour.corpus.interchange.webdataset import Add

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter

ARK = ".kaldi.ark"
WAV_HEADER_BYTES = 44
NAMES = ("wav.scp", "segments", "text", "utt2spk", "utt2dur", "utt2lang", "spk2utt", "utt2megahour")
UNKNOWN = ".unknown"  # no speaker is escaped to this: "un" is not hexadecimal


def speaker_id(speaker: str) -> str:
    """The speaker as Kaldi's id; unique, and `.unknown` for the unnamed."""
    plain = "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or byte == 95) else f".{byte:02x}"
        for byte in speaker.encode()
    )
    return plain or UNKNOWN


def utterance_id(record: Row) -> str:
    return f"{speaker_id(record['speaker'])}-{record['key']:019d}"


def entry_bytes(record: Row) -> tuple[int, int]:
    """(bytes before the WAV, bytes in all) of a record's entry in an archive: pure arithmetic, without its audio."""
    head = len(utterance_id(record)) + 1
    return head, head + WAV_HEADER_BYTES + 2 * int(record["samples"])


@contextmanager
def write_ark(out: ShardWriter) -> Iterator[Add]:
    """Writer of `.kaldi.ark`: `id `, then the utterance as 16-bit WAV, and so on."""
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
    """What `write_directory` needs of an utterance, as a line that sorts by its id. `audio` is `path:offset`."""
    return f"{utterance_id(record)} {canonical_json({**json_ready(record), 'audio': audio})}".encode()


def write_directory(out: ShardWriter, lines: Iterable[tuple[str, Row]]) -> None:
    """The directory `.kaldi/` from (id, record with `audio`) in the order of the ids, in one pass.

    `segments` spans each archive entry whole. `utt2megahour` has all that Kaldi has no file for.
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
