"""NeMo manifests, plain (paths from the manifest's folder) and tarred (members of the tar of the same place)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from megahour.core.errors import BadRecord
from megahour.corpus.interchange.outside import Audio, Entry, custom, duration, json_object, string


def read_nemo(lines: Iterator[str | BadRecord], find: Callable[[str], Audio]) -> Iterator[Entry | BadRecord]:
    """Entries of a manifest's lines; `find` opens an `audio_filepath`."""
    for number, line in enumerate(lines, start=1):
        try:
            value = json_object(line)
            yield _entry(value, find, f"line {number}")
        except BadRecord as bad:
            bad.record = bad.record or f"line {number}"
            yield bad


def _entry(value: dict[str, Any], find: Callable[[str], Audio], where: str) -> Entry:
    path = string(value, "audio_filepath", "audio_file")
    if not path:
        raise BadRecord("bad-field", "no audio_filepath", record=where)
    start_s = duration(value.get("offset") or 0.0, "offset")
    length_s = None if value.get("duration") is None else duration(value["duration"], "duration")
    return Entry(
        id=f"{path}@{start_s:.6f}",
        audio=find(path),
        recording=path,
        text=string(value, "raw_text", "text"),
        start_s=start_s,
        duration_s=length_s,
        speaker=string(value, "speaker", "speaker_id"),
        language=string(value, "lang", "language", "source_lang"),
        licence=string(value, "license", "licence"),
        attribution=string(value, "attribution"),
        source=string(value, "source"),
        record=custom(value),
    )
