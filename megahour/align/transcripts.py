"""Spells a recording's transcripts as documents, and drops cues that cannot be in the audio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from megahour.align.document import BLANK, Document, spell, spell_pieces
from megahour.units.listed_pieces import ListedPieces

LEAST_KNOWN = 0.5  # share of a transcript's letters and digits that the model must know
LONGEST_WORD = 100  # characters: the longest words of German dictionaries have 80
LATE_SHARE = 0.05  # of a recording's length, by which drifting cue times (of films at another speed) may pass its end
COLUMNS = ["key", "cue", "start_samples", "text", "transcript"]
Hinted = tuple[int, float, str]  # cue, start in seconds or NaN, text


@dataclass(frozen=True)
class SpelledTranscript:
    """A candidate transcript as a document. number: as in the cues. known: share of its letters and digits among the
    model's tokens. left_out: reason of each cue that is not in `document`."""

    number: int
    document: Document
    known: float
    left_out: dict[int, str]


def by_recording(table: pa.Table) -> dict[int, pa.Table]:
    """Cues of each recording, in order of (transcript, cue)."""
    order = [("key", "ascending"), ("transcript", "ascending"), ("cue", "ascending")]
    table = table.set_column(4, "transcript", table["transcript"].fill_null(0)).sort_by(order)
    keys, first = np.unique(table["key"].to_numpy(), return_index=True)
    bounds = [*first.tolist(), len(table)]
    return {int(key): table.slice(bounds[i], bounds[i + 1] - bounds[i]) for i, key in enumerate(keys)}


class Speller:
    """Spells texts in a model's tokens, by characters or by pieces."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """config: the model's."""
        tokens: list[str] = config["tokens"]
        self._tokens, self._pieces = tokens, ListedPieces.of(config) if config.get("marks") else None
        self._characters = set("".join(tokens[:BLANK] + tokens[BLANK + 1 :]))

    def read(self, cues: pa.Table, rate_hz: int, samples: int, late_s: float) -> list[SpelledTranscript]:
        """All candidate transcripts of a recording, by number.

        cues: of one recording. late_s: how far after the end of the audio a cue's time may begin.
        """
        late = samples + max(late_s * rate_hz, LATE_SHARE * samples)
        cues_of: dict[int, list[Hinted]] = {}
        left_out: dict[int, dict[int, str]] = {}
        for row in cues.select(COLUMNS[1:]).to_pylist():
            number, start = row["transcript"], row["start_samples"]
            cues_of.setdefault(number, [])
            endless = max(map(len, row["text"].split()), default=0) > LONGEST_WORD
            reason = "past-end" if start > late else "endless-word" if endless else ""
            if reason:
                left_out.setdefault(number, {})[row["cue"]] = reason
            else:
                cues_of[number].append((row["cue"], start / rate_hz if start >= 0 else np.nan, row["text"]))
        return [self._transcript(number, cues_of[number], left_out.get(number, {})) for number in sorted(cues_of)]

    def _transcript(self, number: int, cues: list[Hinted], left_out: dict[int, str]) -> SpelledTranscript:
        letters = known = 0
        for _, _, text in cues:
            written = [character for character in text if character.isalnum()]
            letters += len(written)
            known += sum(character in self._characters for character in written)
        document = spell_pieces(cues, self._pieces) if self._pieces else spell(cues, self._tokens)
        left_out = left_out | dict.fromkeys(document.unspellable, "unspellable")
        return SpelledTranscript(number, document, known / letters if letters else 0.0, left_out)


def why_nothing(transcripts: list[SpelledTranscript]) -> str:
    """Why a recording is refused if none of its transcripts can be spelled; "" if one can.

    Of a transcript in another script less than half can be spelled, and those few letters would match anywhere.
    """
    if any(len(each.document.tokens) and each.known >= LEAST_KNOWN for each in transcripts):
        return ""
    if any(len(each.document.tokens) for each in transcripts):
        return "other-script"
    reasons = [reason for each in transcripts for reason in each.left_out.values()]
    return max(sorted(set(reasons)), key=reasons.count) if reasons else "no-transcript"
