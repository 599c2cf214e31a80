"""Clips to test a bundle on: files or artifacts named by the user, or utterances of the model's own run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.kinds import kind_of
from megahour.core.store import Artifact
from megahour.corpus.media.audio import Decoder
from megahour.corpus.media.folders import files_below
from megahour.corpus.media.tar import ShardAudio
from megahour.corpus.text.normalise import normalise
from megahour.corpus.transcripts.pairing import MEDIA
from megahour.transcribe.decoded import LIMITS
from megahour.transcribe.pieces import USUAL_ENDS

HEARD = ("utterances", "recordings")
"""Kinds of artifacts whose audio can be clips."""
AUDIO_REMEDY = "give audio files, folders of them, or artifacts of utterances or recordings, such as RUN/utterances"
AUDIO = ["key", "offset", "size", "samples", "rate_hz", "speaker"]
COLUMNS = ["key", "shard", "offset", "size", "rate_hz", "speaker", "text", "set"]


@dataclass(frozen=True)
class SpokenClip:
    """Mono samples at the model's rate, and their text if known, else ""."""

    name: str
    samples: NDArray[np.int16]
    said: str = ""


def digest(clips: Sequence[SpokenClip]) -> str:
    """SHA-256 of all samples, in order."""
    total = hashlib.sha256()
    for clip in clips:
        total.update(clip.samples.tobytes())
    return total.hexdigest()


def clips_at(paths: Sequence[str], most: int, rate_hz: int, language: str = "en") -> list[SpokenClip]:
    """Clips of audio files, folders of them (`clips_of_files`), and *utterances* or *recordings* (`clips_of_artifact`).

    most: of each artifact. language: of the files' texts. Raises ConfigError: as these two.
    """
    clips = []
    for each in paths:
        artifact = None if Path(each).is_file() else Artifact(each)
        if artifact is not None and artifact.complete and kind_of(artifact) in HEARD:
            clips += clips_of_artifact(artifact, most, rate_hz)
        else:
            clips += clips_of_files([each], rate_hz, language)
    return clips


def clips_of_files(paths: Sequence[str], rate_hz: int, language: str = "en") -> list[SpokenClip]:
    """The audio files at `paths`, those of a folder sorted by name; the text of `talk.wav` is read from `talk.txt`, in
    `language`, and normalised as training texts are: a model's words have no capitals, punctuation or digits.

    Raises
    ------
    ConfigError: no such file, no audio in a folder, or audio or text that cannot be decoded.
    """
    clips = []
    for each in paths:
        found = [each] if Path(each).is_file() else sorted(files_below(each).entries) if Path(each).is_dir() else []
        audio = [path for path in found if path == each or path.lower().endswith(MEDIA)]
        if not audio:
            raise ConfigError("no audio files", where=each, remedy=AUDIO_REMEDY)
        for path in audio:
            clips.append(_clip(Path(path), rate_hz, language))
    return clips


def _clip(path: Path, rate_hz: int, language: str) -> SpokenClip:
    beside = path.with_suffix(".txt")
    try:
        with path.open("rb") as file:
            blocks = list(Decoder(file, rate_hz, limits=LIMITS).blocks())
        said = normalise(beside.read_text("utf-8-sig"), language).text if beside.is_file() else ""
    except BadRecord as bad:
        raise ConfigError(
            f"{bad.reason}: {bad.detail}", where=str(path), remedy="replace this file, or leave it out"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8: {error}", where=str(beside), remedy="save it as UTF-8") from None
    return SpokenClip(path.stem, np.concatenate(blocks)[:, 0], said)


def clips_of_sets(
    selection: str, utterances: str, most: int, rate_hz: int, *, among: Sequence[str] = (), but: Sequence[str] = ()
) -> list[SpokenClip]:
    """Up to `most` utterances of a *selection*, taking one from each speaker in turn.

    among: sets to take them from; all if empty. but: sets to leave out. Only utterances at `rate_hz` count.
    """
    rows = (row for row in _rows(Artifact(selection), among, but) if row["rate_hz"] == rate_hz)
    return [_heard(Artifact(utterances), row, rate_hz) for row in _in_turn(rows, most)]


def clips_of_artifact(audio: Artifact, most: int, rate_hz: int) -> list[SpokenClip]:
    """Up to `most` *utterances* or *recordings*, taking one from each speaker in turn, resampled to `rate_hz`.

    Of a long recording the middle, as long as the longest piece that `transcribe` makes: a graph takes a clip at once.

    Raises ConfigError: the artifact holds no audio.
    """
    spoken = kind_of(audio) == "utterances"
    columns = [*AUDIO, "text"] if spoken else AUDIO
    tables = ((r.shard, audio.read_table(r.shard, columns=columns)) for r in audio.each_receipt())
    rows = ({"text": "", **row, "shard": shard} for shard, table in tables for row in table.to_pylist())
    chosen = _in_turn((row for row in rows if row["samples"]), most)
    clips = [_heard(audio, row if spoken else {**row, "span": _middle(row)}, rate_hz) for row in chosen]
    if not clips:
        raise ConfigError("the artifact holds no audio", where=audio.url, remedy=AUDIO_REMEDY)
    return clips


def _in_turn(rows: Iterable[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The first `most` rows, taking one of each speaker in turn."""
    by_speaker: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if len(by_speaker) == most and row["speaker"] not in by_speaker:
            continue  # of more speakers than clips, the later ones never have their turn
        mine = by_speaker.setdefault(row["speaker"], [])
        if len(mine) < most:
            mine.append(row)
    return [mine[turn] for turn in range(most) for mine in by_speaker.values() if turn < len(mine)][:most]


def _heard(audio: Artifact, row: dict[str, Any], rate_hz: int) -> SpokenClip:
    """The clip of a row, whole or its samples `span`."""
    with ShardAudio(audio, row["shard"]) as shard:
        heard = shard.read(row["offset"], row["size"], *row.get("span", ()))
    if row["rate_hz"] != rate_hz:
        heard = soxr.resample(heard, row["rate_hz"], rate_hz)
    return SpokenClip(str(row["key"]), heard, row["text"])


def _middle(row: dict[str, Any]) -> tuple[int, int]:
    """As many samples as the longest piece that `transcribe` makes has, from the middle of a recording."""
    taken = min(row["samples"], round(USUAL_ENDS.longest * row["rate_hz"]))
    first = (row["samples"] - taken) // 2
    return first, first + taken


def _rows(selection: Artifact, among: Sequence[str], but: Sequence[str]) -> Iterator[dict[str, Any]]:
    for receipt in selection.receipts():
        for row in selection.read_table(receipt.shard, columns=COLUMNS).to_pylist():
            if row["set"] not in but and (not among or row["set"] in among):
                yield row
