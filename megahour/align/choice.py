"""Chooses the transcript of a recording to align, and decides whether the alignment can be trusted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import Anchoring, NoAnchorsError, part
from megahour.align.candidates import evidence, in_turn
from megahour.align.confidence import Aligned, Costs, align_document, first_problem
from megahour.align.ctc import NoPathError
from megahour.align.document import Document
from megahour.align.evidence import deviations, is_of_another, speech_around, unheard
from megahour.align.params import AlignParams
from megahour.align.posteriors import Heard
from megahour.align.tables import Clock, Timed, time_words
from megahour.align.transcripts import SpelledTranscript, why_nothing
from megahour.align.wrong_transcript import belongs, foreign_cues, in_order
from megahour.core.schemas import BY_RECOGNISER

AROUND_S = 0.25  # margin on either side of a cue that belongs to its place
SPEECH_S = 0.75  # on either side, whose speech an unspoken cue leaves over
LEAST_HEARD = 0.02  # recognised tokens per token of the text, below which there is no speech


class Refused(Exception):
    """The alignment of a recording cannot be trusted; `reason` is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class PlacedTranscript:
    """An aligned and trusted transcript; unsure: (J,) cues that the audio does not support at their place."""

    transcript: SpelledTranscript
    aligned: Aligned
    unsure: NDArray[np.bool_]
    timed: Timed


def best_transcript(
    p: AlignParams, transcripts: list[SpelledTranscript], units: NDArray[np.int32], heard: Heard, clock: Clock
) -> PlacedTranscript:
    """The candidate that fits the greedy reading `units` best; if it cannot be trusted, the next one.

    Raises Refused with the first one's reason if none can be trusted, or if hardly any speech was recognised.
    """
    why = Refused("no-transcript")
    for number, (transcript, doubtful) in enumerate(in_turn(p, transcripts, units)):
        try:
            return _placed(p, transcript, units, heard, clock, doubtful=doubtful)
        except Refused as refused:
            why = why if number else refused
    raise why


def recognised(
    p: AlignParams, transcripts: list[SpelledTranscript], units: NDArray[np.int32], heard: Heard, clock: Clock
) -> PlacedTranscript | None:
    """A recogniser's transcript, aligned; None if there is none that can be trusted."""
    for transcript in transcripts:
        if transcript.number == BY_RECOGNISER and not why_nothing([transcript]):
            doubtful = not evidence(transcript.document, units, p.anchor_length).sure
            try:
                return _placed(p, transcript, units, heard, clock, doubtful=doubtful)
            except Refused:
                break
    return None


def _placed(
    p: AlignParams,
    transcript: SpelledTranscript,
    units: NDArray[np.int32],
    heard: Heard,
    clock: Clock,
    *,
    doubtful: bool,
) -> PlacedTranscript:
    if len(units) < LEAST_HEARD * len(transcript.document.tokens):
        raise Refused("no-speech")
    aligned, unsure = trusted(p, heard, transcript.document, clock.shift_s, doubtful=doubtful)
    return PlacedTranscript(transcript, aligned, unsure, time_words(transcript.document, aligned, heard.level, clock))


def trusted(
    p: AlignParams, heard: Heard, document: Document, frame_s: float, *, doubtful: bool
) -> tuple[Aligned, NDArray[np.bool_]]:
    """Align a document; returns (aligned, (J,) cues without support in the audio). Raises Refused if it is not trusted.

    A `doubtful` document, of which the greedy reading shows nothing (as may happen in noise), must cost clearly less
    than another text would.
    """
    costs = Costs(p.star_nats, p.skip_cue_nats, p.skip_token_nats, p.skip_ratio)
    anchoring = Anchoring(
        p.anchor_length, round(p.anchor_every_s / frame_s), p.max_hint_error_s / frame_s, 1 / frame_s, p.max_cells
    )
    problem = first_problem(document, costs)
    try:
        aligned = align_document(
            heard.posteriors,
            document,
            costs,
            anchoring,
            document.hint_s / frame_s,
            hint_tolerance=p.hint_tolerance_s / frame_s,
            said_chance=p.said_chance,
        )
        asked = doubtful and p.decoy_margin > 0
        if asked and not belongs(heard.posteriors, problem, anchoring, p.decoy_margin):
            raise Refused("wrong-transcript")
    except NoAnchorsError:
        raise Refused("no-anchors") from None
    except NoPathError:
        raise Refused("no-path") from None
    lengths = np.diff(document.boundaries)
    spoken = float(lengths[aligned.spoken].sum()) / len(document.tokens)
    if aligned.median_loss > p.max_loss_nats or spoken < p.min_spoken:
        raise Refused("text-mismatch")
    if not p.false_accept:
        return aligned, np.zeros(len(lengths), bool)
    z = deviations(heard.posteriors, aligned.problem, aligned.path, round(AROUND_S / frame_s))
    if is_of_another(z, lengths, p.min_spoken, lambda: in_order(heard.posteriors, problem)):
        raise Refused("wrong-transcript")
    path = aligned.path

    def fits(first: int, last: int) -> bool | None:
        """Whether these cues fit the audio between their neighbours on the path in this order alone."""
        begin, end = document.boundaries[first], document.boundaries[last]
        low, high = path.end_frames[:begin].max(initial=0), path.start_frames[end:]
        frames = slice(int(low), int(high[high >= 0].min(initial=len(heard.posteriors))))
        return in_order(heard.posteriors[frames], part(problem, int(begin), int(end)))

    foreign = foreign_cues(z, lengths, fits)
    speech = speech_around(heard.posteriors, aligned.problem, path, round(SPEECH_S / frame_s))
    return aligned, foreign | unheard(z, lengths, p.false_accept, p.false_reject, speech)
