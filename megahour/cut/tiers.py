"""Assigns utterances to tiers (or drops them with a reason) and to splits."""

from __future__ import annotations

import math
from typing import Any

from megahour.core.records import key_of
from megahour.corpus.transcripts.speaker_names import one_name
from megahour.cut.limits import ReadingLimits
from megahour.cut.params import CutParams

HASHES = 1 << 63  # of `key_of`


def why_dropped(p: CutParams, row: dict[str, Any], own: ReadingLimits) -> tuple[str, str]:
    """(reason, detail) why a measured utterance is in no tier; ("", "") if it is in one. NaN (unknown) is no reason.

    own: limits of the utterance's recording. If any second reading is accepted (`dirty_cer` of 1 or more), so are all
    edges.
    """
    length = len(row["text"].replace(" ", ""))
    limits = (
        ("high-cer", "cer", own.cer(length)),
        ("high-edge-cer", "edge_cer", own.edge_cer(length)),
        ("untranscribed-sound", "wildcard_share", p.max_wildcard_share),
        ("clipped", "clipped_share", p.max_clipped_share),
    )
    for reason, name, most in limits:
        if row[name] > most:
            why = ": the speech has another text, or is in another language" if reason == "high-cer" else ""
            return reason, f"{name} {row[name]:.3f}, the limit is {most:.3g}{why}"
    if row["snr_db"] < p.min_snr_db:
        return "low-snr", f"snr_db {row['snr_db']:.1f}, the limit min_snr_db is {p.min_snr_db:g}"
    return "", ""


def tier_of(p: CutParams, row: dict[str, Any]) -> str:
    """ "clean" or "dirty" for an utterance that `why_dropped` lets pass; "" where there is no second reading."""
    if math.isnan(row["cer"]):
        return ""
    clean = (
        row["cer"] <= p.clean_cer
        and row["edge_cer"] <= p.clean_edge_cer
        and row["wildcard_share"] <= p.clean_wildcard_share
        and row["clipped_share"] <= p.clean_clipped_share
        and not row["snr_db"] < p.clean_snr_db
    )
    return "clean" if clean else "dirty"


SPLITS = ("test", "dev", "train")  # the strictest first


def split_of(p: CutParams, recording: dict[str, Any]) -> str:
    """train, dev or test, by a hash of the speaker, recording or source alone: other data never moves a record.

    The test split takes the lowest hashes and dev those above it, so that a larger test share keeps its members.
    An unknown speaker or source is held out by the recording's name.
    """
    kind = {"speaker": "speaker", "source": "source", "recording": "name"}[p.split_by]
    value = recording[kind] or ""
    value = one_name(value) if kind == "speaker" else value
    hashed = key_of("split", kind, value) if value else key_of("split", "name", recording["name"])
    quantile = hashed / HASHES
    if quantile < p.test_share:
        return "test"
    return "dev" if quantile < p.test_share + p.dev_share else "train"
