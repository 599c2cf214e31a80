"""Side information of a recording: what its `.json` says, what the parameters say for all, and what may be used."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megahour.core.errors import BadRecord
from megahour.corpus.licences import check_licence

if TYPE_CHECKING:
    from megahour.corpus.sources import Item
    from megahour.corpus.stage import IngestParams

MAX_BYTES = 64 << 20  # a side file may hold the transcript as well
ALIASES = {
    "licence": ("licence", "license", "licenseurl", "license_url"),
    "attribution": ("attribution", "creator", "author", "credits"),
    "speaker": ("speaker", "speaker_id", "spk"),
    "language": ("language", "lang"),
    "created_s": ("created_s", "created", "date"),
}


@dataclass(frozen=True)
class SideInfo:
    """Who speaks what language under which licence (SPDX), and where it came from.

    `source` is what the side file says, else the path; `created_s` is Unix time, 0 when unknown; `fields` is the file.
    """

    speaker: str
    language: str
    licence: str
    attribution: str
    condition: str
    source: str
    created_s: int
    fields: dict[str, Any]


def side_info(item: Item, p: IngestParams) -> SideInfo:
    """Read, complete and check an item's side information.

    A recording whose speaker nobody names is a speaker of its own: two unknown voices must not count as one.

    Raises
    ------
    BadRecord: ``unreadable-side-information``, ``licence-unknown``, ``licence-forbidden``.
    """
    fields = _fields(item)
    found = {name: next((fields[key] for key in keys if fields.get(key)), "") for name, keys in ALIASES.items()}
    licence = check_licence(_text(found["licence"]) or p.licence, p.licences)
    return SideInfo(
        speaker=_text(found["speaker"]) or _speaker_in_path(item.source, p.speaker_pattern) or p.speaker or item.source,
        language=_text(found["language"]) or p.language,
        licence=licence,
        attribution=_text(found["attribution"]) or p.attribution,
        condition=_text(fields.get("condition", "")) or p.condition,
        source=_text(fields.get("source", "")) or item.source,
        created_s=_unix_time(found["created_s"]),
        fields=fields,
    )


def _fields(item: Item) -> dict[str, Any]:
    if item.info is None:
        return {}
    try:
        value = json.loads(item.info.read(MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise BadRecord("unreadable-side-information", f"{item.info.path}: {error}") from error
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return str(value).strip() if isinstance(value, str | int) else ""


def _speaker_in_path(source: str, pattern: str) -> str:
    match = re.search(pattern, source) if pattern else None
    return match[1] or "" if match else ""


def _unix_time(value: Any) -> int:
    """Seconds of a number or an ISO 8601 date (UTC unless it says otherwise)."""
    if isinstance(value, int | float):
        return int(value)
    if not value:
        return 0
    try:
        moment = datetime.datetime.fromisoformat(str(value))
    except ValueError as error:
        raise BadRecord("unreadable-side-information", f"{value!r} is no date") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp())
