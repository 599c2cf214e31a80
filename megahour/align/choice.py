"""Chooses the transcript of a recording to align, and decides whether the alignment can be trusted.

The candidates are scored by the greedy reading alone, without an alignment: k-mers that occur once in the text and once
in the reading are matched. For the right text most matches rise in both; for any other they are in random order. The
longest falling chain of the same matches estimates chance, so

    score = (longest rising chain - longest falling chain) / k-mers of the text

is near (1 - errors)^k for the right text, near 0 for a wrong one, and needs no threshold that depends on the language.

A recogniser's text is a candidate, too, if no other fits, and else a second reading. Sequence-to-sequence recognisers
such as Whisper write good text, but their times may be seconds off. So their text is aligned to the audio like any
transcript, which gives its words times and refuses a text of another recording. Where it is right, its text at an
utterance is a better second reading than the aligner's own letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.align.anchors import Anchoring, NoAnchorsError, kmers, longest_chain, part
from megahour.align.confidence import Aligned, Costs, align_document, first_problem, scored
from megahour.align.ctc import NoPathError
from megahour.align.document import Document
from megahour.align.edges import LONGEST_GAP
from megahour.align.evidence import deviations, is_of_another, said_beside, speech_around, unheard
from megahour.align.params import AlignParams
from megahour.align.posteriors import Heard
from megahour.align.rejoin import rejoin, sounding
from megahour.align.tables import Clock, Timed, time_words
from megahour.align.transcripts import SpelledTranscript, why_nothing
from megahour.align.wrong_transcript import (
    FEWEST_CUES,
    belongs,
    foreign_cues,
    order_deviation,
    spoken_part,
    without_ends,
)
from megahour.core.schemas import BY_RECOGNISER, HEARD
from megahour.corpus.text.edit_distance import distance_within

LEAST_LINKS = 3
LEAST_SCORE = 0.001  # for 10-mers, with half of all characters wrong


@dataclass(frozen=True, slots=True)
class Evidence:
    """kmers of a text; rising, falling: longest chains of matches."""

    kmers: int
    rising: int
    falling: int

    @property
    def score(self) -> float:
        return (self.rising - self.falling) / self.kmers if self.kmers else 0.0

    @property
    def sure(self) -> bool:
        """Whether more matches than by chance. A short text, or one in noise, may have no match: see `choice`."""
        return self.rising - self.falling >= LEAST_LINKS and self.score >= LEAST_SCORE


def evidence(document: Document, units: NDArray[np.int32], length: int) -> Evidence:
    """How well a text goes with the greedy reading `units` (N,), by k-mers of `length` tokens without word spaces."""
    text = kmers(document.tokens[document.token_word >= 0], length)
    heard = kmers(units[units != document.space], length)
    in_text, in_heard = _once(text), _once(heard)
    order = in_heard[np.argsort(heard[in_heard])]  # positions in the reading, by hash
    at = np.minimum(np.searchsorted(heard[order], text[in_text]), max(0, len(order) - 1))
    positions = order[at][heard[order][at] == text[in_text]] if len(order) else order
    return Evidence(len(text), len(longest_chain(positions)), len(longest_chain(-positions)))


def choose(documents: Sequence[Document], units: NDArray[np.int32], length: int) -> tuple[int, Evidence]:
    """Index of the transcript with the best score (the first of equal ones), and its evidence."""
    scores = [evidence(document, units, length) for document in documents]
    best = max(range(len(scores)), key=lambda i: (scores[i].score, -i))
    return best, scores[best]


def _once(hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Positions of the values that occur once, in order."""
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    return np.sort(first[counts == 1])


FEWEST_LETTERS = 4  # of a cue that a reading can confirm: shorter ones occur anywhere
BESIDE_FRAMES = 50  # of 10 ms, by which the recogniser's words may be off the cue that they confirm


def in_turn(
    p: AlignParams, transcripts: Sequence[SpelledTranscript], units: NDArray[np.int32]
) -> list[tuple[SpelledTranscript, bool]]:
    """The transcripts to try, in order: the best human one, and the recogniser's as `p.recognised` says.

    Each comes with whether the greedy reading `units` shows hardly anything of it.
    """
    written = [each for each in transcripts if not why_nothing([each])]
    groups = [[each for each in written if each.number != BY_RECOGNISER]]
    if p.recognised != "reading":
        groups.append([each for each in written if each.number == BY_RECOGNISER])
    best: list[tuple[SpelledTranscript, Evidence]] = []
    for group in filter(None, groups):
        at, score = choose([each.document for each in group], units, p.anchor_length)
        best.append((group[at], score))
    if p.recognised == "better":
        best.sort(key=lambda each: -each[1].score)
    return [(transcript, not score.sure) for transcript, score in best]


SKIPPED_S = 5.0  # without a word of the recogniser, while the aligner hears something


def reading_of(document: Document, timed: Timed, clock: Clock, letters: pa.Table) -> pa.Table:
    """HEARD (without the key) of one recording: one row with the recogniser's words that are in the audio.

    Sequence-to-sequence recognisers skip stretches, Whisper windows of half a minute. There the aligner's own `letters`
    (HEARD, too) are the reading: `cut` drops utterances of which nothing is heard.
    """
    spoken = np.flatnonzero(timed.start >= 0)
    starts, ends = (
        np.maximum.accumulate(clock.of_energy_frames(frames[spoken])) for frames in (timed.start, timed.end)
    )
    at = letters["start_samples"].combine_chunks().flatten().to_numpy()
    following = np.searchsorted(starts, at, "right")
    since, until = np.append(0, ends)[following], np.append(starts, clock.samples)[following]
    skipped = np.flatnonzero((until - since >= SKIPPED_S * clock.rate_hz) & (at >= since))
    own = letters["tokens"].combine_chunks().flatten().take(pa.array(skipped)).to_pylist()
    apart = np.diff(following[skipped], prepend=-1) != 0  # the first of a stretch begins a word
    words = [f" {document.words[word]}" for word in spoken.tolist()]
    words += [f" {token}" if first else token for token, first in zip(own, apart.tolist(), strict=True)]
    starts = np.append(starts, at[skipped])
    order = np.argsort(starts, kind="stable")
    columns = [
        pa.array([[words[place] for place in order.tolist()]], pa.list_(pa.string())),
        pa.array([starts[order]], pa.list_(pa.int64())),
    ]
    return pa.table(columns, schema=pa.schema(list(HEARD)[1:]))


def confirmed_cues(document: Document, timed: Timed, other: Document, other_timed: Timed) -> NDArray[np.bool_]:
    """(J,) cues of `document` that the recogniser's text `other` has word for word at the same place.

    Two texts that agree outweigh a weak aligner's doubts.
    """
    spoken = np.flatnonzero(other_timed.start >= 0)
    starts = np.maximum.accumulate(other_timed.start[spoken])
    first = np.searchsorted(document.word_cue, document.cues)
    stop = np.searchsorted(document.word_cue, document.cues, "right")
    confirmed = np.zeros(len(document.cues), bool)
    for cue, (a, b) in enumerate(zip(first.tolist(), stop.tolist(), strict=True)):
        own, placed = " ".join(document.words[a:b]), timed.start[a:b] >= 0
        if len(own) < FEWEST_LETTERS or not placed.any():
            continue
        low = np.searchsorted(starts, timed.start[a:b][placed].min() - BESIDE_FRAMES)
        high = np.searchsorted(starts, timed.end[a:b].max() + BESIDE_FRAMES)
        there = " ".join(other.words[word] for word in spoken[low:high].tolist())
        confirmed[cue] = f" {own} " in f" {there} "
    return confirmed


AROUND_S = 0.25  # margin on either side of a cue that belongs to its place
SPEECH_S = 0.75  # on either side, whose speech an unspoken cue leaves over
SCRAP = 0.1  # of the reading, below which a text of one or two cues must be found in it
UNTOLD, MOST_MISREAD = 10, 0.5  # letters of such a text that must be right, and share of the others that may not
JUDGED = 1000  # letters of such a text: 0.5 G cells with a reading of ten hours
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
    if doubtful and len(transcript.document.cues) < FEWEST_CUES and _is_scrap(transcript.document, units):
        raise Refused("wrong-transcript")
    document = transcript.document
    aligned, unsure = trusted(p, heard, document, clock.shift_s, doubtful=doubtful)
    aligned = _rejoined(aligned, document, heard, clock.shift_s / clock.frame_s)
    return PlacedTranscript(transcript, aligned, unsure, time_words(document, aligned, heard.level, clock))


def _rejoined(aligned: Aligned, document: Document, heard: Heard, per_frame: float) -> Aligned:
    """`aligned` with words back beside the others of their cue. per_frame: frames of 10 ms per output frame."""
    sound, gap = sounding(heard.level, len(heard.posteriors), per_frame), round(LONGEST_GAP / per_frame)
    path = rejoin(heard.posteriors, aligned.problem, aligned.path, document.token_word, sound, gap)
    if path is aligned.path:
        return aligned
    return scored(heard.posteriors, aligned.problem, path, aligned.skip_token, aligned.refused)


def _is_scrap(document: Document, units: NDArray[np.int32]) -> bool:
    """Whether a text is hardly any of the reading `units` (N,) and not in it. Few words fit somewhere in any speech.

    The fewer letters, the fewer may be misread: of another text in prose, all but a third of 15 letters are somewhere
    in minutes of speech, but only half of 40. A long text is judged by its first letters.
    """
    letters, heard = (tokens[tokens != document.space] for tokens in (document.tokens, units))
    is_little, letters = len(letters) < SCRAP * len(heard), letters[:JUDGED]
    return is_little and distance_within(letters, heard) > max(0.0, (len(letters) - UNTOLD) * MOST_MISREAD)


def trusted(
    p: AlignParams, heard: Heard, document: Document, frame_s: float, *, doubtful: bool
) -> tuple[Aligned, NDArray[np.bool_]]:
    """Align a document; returns (aligned, (J,) cues without support in the audio). Raises Refused if it is not trusted.

    A `doubtful` document, of which the greedy reading shows nothing (as may happen in noise), must cost clearly less
    than another text would.
    """
    costs = Costs(p.star_nats, p.skip_cue_nats, p.skip_token_nats, p.skip_ratio)
    anchoring = Anchoring(
        p.anchor_length,
        round(p.anchor_every_s / frame_s),
        p.max_hint_error_s / frame_s,
        1 / frame_s,
        p.max_cells,
        max_refused=1 - p.min_spoken,
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
        core = spoken_part(problem, aligned.spoken)
        asked = doubtful and p.decoy_margin > 0
        if asked and not belongs(heard.posteriors, core, anchoring, p.decoy_margin):
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
    inner = without_ends(core)
    orders = [partial(order_deviation, heard.posteriors, inner, words=words) for words in (True, False)]
    if is_of_another(z, lengths, p.min_spoken, *orders):
        raise Refused("wrong-transcript")
    path = aligned.path

    def order(first: int, last: int) -> float | None:
        """`order_deviation` of these cues in the audio between their neighbours on the path."""
        begin, end = document.boundaries[first], document.boundaries[last]
        low, high = path.end_frames[:begin].max(initial=0), path.start_frames[end:]
        frames = slice(int(low), int(high[high >= 0].min(initial=len(heard.posteriors))))
        return order_deviation(heard.posteriors[frames], part(problem, int(begin), int(end)))

    foreign = foreign_cues(z, lengths, order)
    speech = speech_around(heard.posteriors, aligned.problem, path, round(SPEECH_S / frame_s))
    unsure = foreign | unheard(z, lengths, p.false_accept, p.false_reject, speech)
    untimed = np.isnan(document.hint_s)  # of two sayings of a text, a time tells which is the cue's
    if untimed.any():
        unsure |= untimed & said_beside(heard.posteriors, aligned.problem, path, round(AROUND_S / frame_s))
    return aligned, unsure
