"""Side information of a recording, from its row of a table, its `.json` files and the parameters."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass
from typing import Any

from megahour.core.errors import BadRecord
from megahour.core.unicode import load_json
from megahour.corpus.ingest.licences import LicenceRefused, check_licence
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.sources import Item
from megahour.corpus.media.addresses import Blob, masked
from megahour.corpus.text.language_id import canonical
from megahour.corpus.transcripts import pairing

MAX_BYTES = 64 << 20  # a side file may hold the transcript as well
MAX_UNIX_S = 1 << 62
_DAY = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")  # 20210304: a date, not August 1970
OF_PAGE = {"attribution": "uploader", "created_s": "upload_date", "source": "webpage_url"}  # yt-dlp's names
ALIASES = {
    "licence": ("licence", "license", "licenseurl", "license_url"),
    "attribution": ("attribution", "credits", "creator", "author", "artist", "publisher"),
    "speaker": ("speaker", "speaker_id", "spk", "client_id"),
    "language": ("language", "lang", "locale"),
    "created_s": ("created_s", "created", "date"),
    "condition": ("condition",),
    "source": ("source",),
}


@dataclass(frozen=True)
class SideInfo:
    """Speaker, language, licence and origin of a recording.

    `language` is a BCP 47 tag and `licence` an SPDX identifier. `source` is that of the side file, else the path.
    `created_s` is Unix time, 0 if unknown; `has_odd_date` is set if a date is given that cannot be parsed,
    `escapes_pattern` if nothing names the speaker and `speaker_pattern` does not match the path.
    """

    speaker: str
    language: str
    licence: str
    attribution: str
    condition: str
    source: str
    created_s: int
    has_odd_date: bool
    escapes_pattern: bool


def side_info(item: Item, p: IngestParams) -> SideInfo:
    """Read an item's side information, fill gaps from the parameters, and check its licence.

    A recording without a named speaker gets its path as speaker: two unknown voices must not count as one.

    Raises
    ------
    BadRecord: ``unreadable-side-information``, ``licence-unknown``, ``licence-forbidden`` (a `LicenceRefused`).
    """
    layers = [item.fields, *map(_fields, item.infos)]
    values = {}
    for name, keys in ALIASES.items():
        values[name] = next((layer[key] for layer in layers for key in keys if _tells(layer.get(key), name)), "")
    created_s = _unix_time(values["created_s"])
    try:
        licence = check_licence(_text(values["licence"]) or p.licence, p.licences)
    except LicenceRefused as refused:
        if not values["licence"]:  # e.g. a recogniser's output, which has no licence
            for info, fields in zip(item.infos, layers[1:], strict=True):
                has = ", ".join(list(fields)[:8]) or "no fields"
                refused.detail += f"; {info.path} has {has}, and none of {', '.join(ALIASES['licence'])}"
        raise
    speaker = _text(values["speaker"]) or _speaker_in_path(item.source, p.speaker_pattern) or p.speaker
    return SideInfo(
        speaker=speaker or item.source,
        language=canonical(_text(values["language"]) or p.language),
        licence=licence,
        attribution=_text(values["attribution"]) or p.attribution,
        condition=_text(values["condition"]) or p.condition,
        source=masked(_text(values["source"])) or item.source,
        created_s=created_s or 0,
        has_odd_date=created_s is None,
        escapes_pattern=bool(p.speaker_pattern) and not speaker,
    )


def _fields(info: Blob) -> dict[str, Any]:
    """The fields of a side file; none if it is of another form."""
    try:
        value = load_json(info.read(MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise BadRecord("unreadable-side-information", f"{info.path}: {error}") from error
    if not isinstance(value, dict):
        return {}
    if info.path.lower().endswith(f".{pairing.OF_PAGE}{pairing.INFO}"):
        return {**{ours: value.get(theirs) for ours, theirs in OF_PAGE.items()}, **value}
    nested = value.get("metadata")  # as archive.org writes it
    return {**nested, **value} if isinstance(nested, dict) else value


def _tells(value: Any, name: str) -> bool:
    """Whether a field holds something. The number 0 is the first speaker of many data sets; else it stands for none."""
    if isinstance(value, float) and math.isnan(value):  # a missing value of a table
        return False
    return bool(value) or (name == "speaker" and isinstance(value, int | float) and not isinstance(value, bool))


def _text(value: Any) -> str:
    """A value, or a list of values, as one line. Numbers are floats in columns of which some value is missing."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return ", ".join(filter(None, (_text(each) for each in value)))
    return " ".join(str(value).split()) if isinstance(value, str | int) else ""


def _speaker_in_path(source: str, pattern: str) -> str:
    match = re.search(pattern, source) if pattern else None
    return match[1] or "" if match else ""


def _unix_time(value: Any) -> int | None:
    """Unix time of a number or an ISO 8601 date (UTC by default); 0 of an empty value, None if it is not a date."""
    if isinstance(value, int | float) and not _DAY.fullmatch(str(value)):
        return int(value) if abs(value) < MAX_UNIX_S else None  # false for NaN; a long integer may not fit a float
    if not (text := str(value).strip()):
        return 0
    if re.fullmatch(r"\d{4}(?:-\d\d)?", text):  # a year or a month, as archives have them
        text += "-01" * (2 if len(text) == 4 else 1)
    elif re.fullmatch(r"-?\d{5,12}", text) and not _DAY.fullmatch(text):  # a number in a text file
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp())
