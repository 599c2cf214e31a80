"""The transcripts that may be a recording's own: read, checked one by one, and those that contradict it left out.

Checks need no audio model: markup and encoding (corpus.transcripts), endless words, the script and the language of the
text against the declared language, and cue times against the length of the audio. What remains is numbered from 0 and
goes to `align`, which hears which one is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from megahour.core.errors import BadRecord
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.text import language_id
from megahour.corpus.text.language_id import UNDETERMINED, UNSURE, TextLanguage
from megahour.corpus.text.normalise import Normalised, normalise
from megahour.corpus.transcripts.cues import Cue, fit_to_length, untimed
from megahour.corpus.transcripts.pairing import language_tag, split_suffix
from megahour.corpus.transcripts.read import Transcript, read_recognised, read_transcript

MAX_WORD = 1000  # characters; the longest words of any language with spaces have below 200
MIN_SCRIPT_SHARE = 0.5  # of the letters; names and quotations in another script are far below
MAX_EXPECTED = 0.05  # probability of the declared language above which a text is not another language's
FAR_SHARE, FAR_S = 0.1, 30.0  # a last cue so far behind the audio's end speaks against one of several candidates


@dataclass(frozen=True)
class Written:
    """A transcript before it is read: bytes, suffix (".srt" …), and a language tag from its name ("" without one)."""

    data: bytes
    suffix: str
    tag: str = ""


@dataclass
class Candidate:
    """A transcript that nothing speaks against: cues with words, their spoken forms, and the language of the text."""

    cues: list[Cue]
    spoken: list[Normalised]
    language: str
    found: TextLanguage


@dataclass
class Candidates:
    """What remains, in order; `counts` says what was repaired, and left out, by reason.

    recognised: what a recogniser wrote, which is no one's transcript unless `align` makes it one.
    """

    kept: list[Candidate] = field(default_factory=list)
    recognised: Candidate | None = None
    counts: Counter[str] = field(default_factory=Counter)
    problem: BadRecord | None = None  # of the first that was left out

    @property
    def best(self) -> Candidate | None:
        """The first transcript; without one, the recogniser's."""
        return self.kept[0] if self.kept else self.recognised

    def leave_out(self, bad: BadRecord) -> None:
        """Count a candidate that cannot be the recording's transcript."""
        self.counts[f"candidates_{bad.reason}"] += 1
        self.problem = self.problem or bad

    def need_one(self) -> None:
        """Raise the first candidate's problem when none remains."""
        if not self.best and self.problem:
            raise self.problem


def choose_by_tag(paths: Sequence[str], declared: str) -> list[int]:
    """Places of the transcripts whose names have the declared language's tag; all of them when none has.

    ``talk.pt-BR.srt`` serves "pt-BR" before ``talk.pt.srt`` does.
    """
    tags = [language_id.canonical(tag) if (tag := language_tag(path)) else "" for path in paths]
    exact = [position for position, tag in enumerate(tags) if tag and tag == declared]
    same = [position for position, tag in enumerate(tags) if tag and language_id.same_language(tag, declared)]
    return exact or same or list(range(len(paths)))


def read_candidates(
    written: Iterable[Written], declared: str, p: IngestParams, recognised: Written | None = None
) -> Candidates:
    """Read all candidates of a recording, and what a recogniser wrote of it.

    A recogniser's times are hints at best: where they contradict each other they go, and its words stay.

    Raises
    ------
    BadRecord: the first one's problem, when each has one: those of `read_transcript`, ``endless-word``,
    ``script-mismatch``, ``language-mismatch``.
    """
    candidates = Candidates()
    for each in written:
        try:
            candidate, repairs = _read(each, declared, p)
        except BadRecord as bad:
            candidates.leave_out(bad)
        else:
            candidates.kept.append(candidate)
            candidates.counts.update(repairs)
    if recognised is not None:
        try:
            candidates.recognised, _ = _read(recognised, declared, p, read_recognised)
        except BadRecord as bad:
            candidates.counts[f"recognised_{bad.reason}"] += 1
            candidates.problem = candidates.problem or (bad if p.require_transcript else None)
    candidates.need_one()
    return candidates


Reader = Callable[..., Transcript]


def _read(
    written: Written, declared: str, p: IngestParams, read: Reader = read_transcript
) -> tuple[Candidate, dict[str, int]]:
    language = declared if declared != UNDETERMINED else language_id.canonical(written.tag) or UNDETERMINED
    transcript = read(written.data, written.suffix, p.rate_hz, language=language)
    for cue in transcript.cues:
        if length := language_id.endless_word(cue.raw, MAX_WORD):
            raise BadRecord("endless-word", f"a word of {length} characters, the limit is {MAX_WORD}")
    guess = UNSURE
    if language == UNDETERMINED:
        guess = _identify(transcript, language, p)
        language = guess.language or UNDETERMINED
    cues, spoken = [], []
    for cue in transcript.cues:
        words = normalise(cue.raw, language)
        if words.tokens:
            cues.append(cue)
            spoken.append(words)
    if not cues:
        raise BadRecord("empty-transcript", f"{len(transcript.cues)} cues, none with a word")
    text = " ".join(words.text for words in spoken[:MAX_CUES])
    if guess is UNSURE:
        guess = language_id.identify(text, expected=language, among=p.text_languages, sure=p.min_language_probability)
    if p.on_language_mismatch == "drop":
        _check_language(text, language, guess)
    repairs = {**transcript.repairs, "cues_without_a_word": len(transcript.cues) - len(cues)}
    return Candidate(cues, spoken, language, guess), {name: n for name, n in repairs.items() if n}


MAX_CUES = 4000  # more than `language_id.MAX_CHARACTERS` of text in any language


def _identify(transcript: Transcript, language: str, p: IngestParams) -> TextLanguage:
    text = " ".join(" ".join(normalise(cue.raw, language).tokens) for cue in transcript.cues[:MAX_CUES])
    return language_id.identify(text, among=p.text_languages, sure=p.min_language_probability)


def _check_language(text: str, language: str, found: TextLanguage) -> None:
    share = language_id.script_share(text, language)
    if share < MIN_SCRIPT_SHARE:
        raise BadRecord("script-mismatch", f"{share:.2f} of the letters are of a script that {language} is written in")
    mismatch = found.language and not language_id.same_language(found.language, language)
    if mismatch and found.expected < MAX_EXPECTED and (language == UNDETERMINED or language_id.knows(language)):
        detail = f"the text is {found.language} (probability {found.probability:.2f}), declared is {language}"
        raise BadRecord("language-mismatch", detail)


def fit_candidates(found: Candidates, samples: int, rate_hz: int) -> None:
    """Leave out candidates whose times lie behind the end of the recording, and cut those of the others to it.

    Raises
    ------
    BadRecord: ``transcript-too-long`` when all are another recording's.
    """
    limit = samples * (1 + FAR_SHARE) + FAR_S * rate_hz
    far = [_last_start(candidate) > limit for candidate in found.kept]
    kept = []
    for candidate, is_far in zip(found.kept, far, strict=True):
        try:
            if is_far and not all(far):
                last_s = _last_start(candidate) / rate_hz
                raise BadRecord(
                    "transcript-too-long", f"the last cue starts at {last_s:.0f} s of {samples / rate_hz:.0f} s"
                )
            fitted = fit_to_length(candidate.cues, samples)
        except BadRecord as bad:
            found.leave_out(bad)
        else:
            found.counts["cues_past_end"] += sum(cue.start_samples >= samples for cue in candidate.cues)
            kept.append(replace(candidate, cues=fitted))
    found.kept = kept
    if found.recognised:
        found.recognised = replace(found.recognised, cues=_within(found.recognised.cues, samples))
    found.need_one()


def _within(cues: list[Cue], samples: int) -> list[Cue]:
    """Cues of a recogniser, without times where most of these lie behind the recording's end."""
    try:
        return fit_to_length(cues, samples)
    except BadRecord:
        return untimed(cues)


def _last_start(candidate: Candidate) -> int:
    return max((cue.start_samples for cue in candidate.cues), default=-1)


def inline(text: str) -> Written:
    """A transcript that stands in a table."""
    return Written(text.encode(), ".txt")


def from_file(path: str, data: bytes) -> Written:
    """A transcript that is a file."""
    return Written(data, split_suffix(path)[1], language_tag(path))
