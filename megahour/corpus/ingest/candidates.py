"""Read and check the candidate transcripts of a recording, and reject those that cannot belong to it.

The checks need no audio model: markup and encoding (corpus.transcripts), endless words, the script and language of the
text against the declared language, and cue times against the length of the audio. The candidates that pass are numbered
from 0; `align` decides between them by the audio.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from megahour.core.errors import BadRecord
from megahour.corpus.ingest.counts import PREFERRED
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.media.addresses import Blob
from megahour.corpus.text import language_id
from megahour.corpus.text.language_id import UNDETERMINED, UNSURE, TextLanguage
from megahour.corpus.text.normalise import Normalised, normalise
from megahour.corpus.transcripts.cues import Cue, fit_to_length, without_hours
from megahour.corpus.transcripts.pairing import language_tag, split_suffix
from megahour.corpus.transcripts.read import MAX_BYTES, Transcript, read_recognised, read_transcript

MAX_WORD = 1000  # characters; the longest words of any language with spaces have below 200
MIN_SCRIPT_SHARE = 0.5  # of the letters; names and quotations in another script are far below
MAX_EXPECTED = 0.05  # with a higher probability of the declared language, a text does not count as another language
FAR_SHARE, FAR_S = 0.1, 30.0  # of several candidates, reject one whose last cue starts this far past the audio's end
MAX_CUES = 4000  # more than `language_id.MAX_CHARACTERS` of text in any language


@dataclass(frozen=True)
class RawTranscript:
    """A transcript before parsing: bytes, suffix (".srt" …), and the language tag of its name ("" if none).

    others: its other forms, to read if this one cannot be used. path: of its file; "" if it has none of its own. spare:
    it only counts if it `tells_sides`.
    """

    data: bytes
    suffix: str
    tag: str = ""
    others: tuple[Blob, ...] = ()
    path: str = ""
    spare: bool = False


@dataclass
class Candidate:
    """A transcript that passed the checks: cues with words, their spoken forms, its language and the detected one."""

    cues: list[Cue]
    spoken: list[Normalised]
    language: str
    detected: TextLanguage

    @property
    def tells_sides(self) -> bool:
        """Whether it may say which side of a call a line is on: by two names of channels, or of speakers with times."""
        speakers = {cue.speaker for cue in self.cues if cue.speaker and cue.start_samples >= 0}
        return len(speakers) > 1 or len({cue.channel for cue in self.cues if cue.channel}) > 1


@dataclass
class Candidates:
    """The candidates of a recording, in order, and the counts of repairs and rejections by reason.

    recognised: a recogniser's text, kept apart from people's transcripts.
    """

    kept: list[Candidate] = field(default_factory=list)
    recognised: Candidate | None = None
    counts: Counter[str] = field(default_factory=Counter)
    first_problem: BadRecord | None = None  # of the first rejected candidate
    read: set[str] = field(default_factory=set)  # paths of the files that it took, or that cannot be used

    @property
    def best(self) -> Candidate | None:
        """The first transcript, else the recogniser's."""
        return self.kept[0] if self.kept else self.recognised

    def reject(self, bad: BadRecord) -> None:
        """Count a rejected candidate by its reason."""
        self.counts[f"candidates_{bad.reason}"] += 1
        self.first_problem = self.first_problem or bad

    def require_one(self) -> None:
        """Raise the first problem if no candidate is left."""
        if not self.best and self.first_problem:
            raise self.first_problem


def choose_by_tag(paths: Sequence[str], declared: str) -> list[int]:
    """Positions of the transcripts whose names have the tag of the declared language; all if none has.

    For "pt-BR", ``talk.pt-BR.srt`` comes before ``talk.pt.srt``.

    >>> choose_by_tag(["talk.en.srt", "talk.pt.srt", "talk.pt-BR.srt"], "pt-BR")
    [2]
    """
    tags = [language_id.canonical(tag) if (tag := language_tag(path)) else "" for path in paths]
    exact = [position for position, tag in enumerate(tags) if tag and tag == declared]
    same = [position for position, tag in enumerate(tags) if tag and language_id.same_language(tag, declared)]
    return exact or same or list(range(len(paths)))


def spare_by_tag(paths: Sequence[str], declared: str, chosen: Sequence[int]) -> list[int]:
    """Positions of the transcripts that were not `chosen` and whose tags name no other language.

    >>> spare_by_tag(["talk.de.srt", "talk.en.srt", "talk.vtt"], "en", [1])
    [2]
    """
    tags = map(language_tag, paths)
    own = [not tag or language_id.same_language(language_id.canonical(tag), declared) for tag in tags]
    return [position for position, is_own in enumerate(own) if is_own and position not in chosen]


def read_candidates(
    raw: Iterable[RawTranscript], declared: str, p: IngestParams, recognised: RawTranscript | None = None
) -> Candidates:
    """Read all candidate transcripts of a recording, and a recogniser's text of it.

    A recogniser's times are only hints: if they contradict each other, its words stay without times.
    If channels are split, the candidates that `tells_sides` come first.

    Raises
    ------
    BadRecord: the problem of the first candidate if all fail: those of `read_transcript`, ``endless-word``,
    ``empty-transcript``, ``script-mismatch``, ``language-mismatch``.
    """
    candidates = Candidates()
    for each in raw:
        if each.spare and any(candidate.tells_sides for candidate in candidates.kept):
            break
        candidates.kept += _usable(each, declared, p, candidates)
    order = sorted(candidates.kept, key=lambda candidate: not candidate.tells_sides)
    if p.channels == "split" and order and order[0] is not candidates.kept[0]:
        candidates.counts[PREFERRED] = 1
        candidates.kept = order
    if recognised is not None:
        try:
            candidates.recognised, _ = _read(recognised, declared, p, read_recognised)
        except BadRecord as bad:
            candidates.counts[f"recognised_{bad.reason}"] += 1
            candidates.first_problem = candidates.first_problem or (bad if p.require_transcript else None)
    candidates.require_one()
    return candidates


def _usable(raw: RawTranscript, declared: str, p: IngestParams, candidates: Candidates) -> list[Candidate]:
    """The candidate of the first form that can be used and, if channels are split, of the first that tells sides."""
    found: list[Candidate] = []
    for form in _forms(raw):
        try:
            candidate, repairs = _read(form, declared, p)
        except BadRecord as bad:
            if not (found or raw.spare):
                candidates.reject(bad)
                candidates.read.add(form.path)
            continue
        if candidate.tells_sides or not (found or raw.spare):
            found.append(candidate)
            candidates.counts.update(repairs)
            candidates.read.add(form.path)
        if p.channels == "mix" or candidate.tells_sides:
            break
    return found


def _forms(raw: RawTranscript) -> Iterator[RawTranscript]:
    """A transcript, and then its other forms, which are read only now."""
    yield raw
    for other in raw.others:
        yield replace(raw, data=other.read(MAX_BYTES), suffix=split_suffix(other.path)[1], path=other.path)


def _read(
    raw: RawTranscript, declared: str, p: IngestParams, read: Callable[..., Transcript] = read_transcript
) -> tuple[Candidate, dict[str, int]]:
    language = declared if declared != UNDETERMINED else language_id.canonical(raw.tag) or UNDETERMINED
    transcript = read(raw.data, raw.suffix, p.rate_hz, language=language)
    for cue in transcript.cues:
        if length := language_id.endless_word(cue.raw, MAX_WORD):
            raise BadRecord("endless-word", f"a word has {length} characters, the limit is {MAX_WORD}")
    guess = UNSURE
    if language == UNDETERMINED:
        text = " ".join(" ".join(normalise(cue.raw, language).tokens) for cue in transcript.cues[:MAX_CUES])
        guess = language_id.identify(text, among=p.text_languages, sure=p.min_language_probability)
        language = guess.language or UNDETERMINED
    cues, spoken = [], []
    for cue in transcript.cues:
        words = normalise(cue.raw, language)
        if words.tokens:
            cues.append(cue)
            spoken.append(words)
    if not cues:
        raise BadRecord("empty-transcript", f"none of the {len(transcript.cues)} cues has a word")
    text = " ".join(words.text for words in spoken[:MAX_CUES])
    if guess is UNSURE:
        guess = language_id.identify(text, expected=language, among=p.text_languages, sure=p.min_language_probability)
    if p.on_language_mismatch == "drop":
        _check_language(text, language, guess)
    repairs = {**transcript.repairs, "cues_without_a_word": len(transcript.cues) - len(cues)}
    return Candidate(cues, spoken, language, guess), {name: n for name, n in repairs.items() if n}


def _check_language(text: str, language: str, detected: TextLanguage) -> None:
    share = language_id.script_share(text, language)
    if share < MIN_SCRIPT_SHARE:
        raise BadRecord("script-mismatch", f"only {100 * share:.0f} % of the letters are in a script of {language}")
    mismatch = detected.language and not language_id.same_language(detected.language, language)
    if mismatch and detected.expected < MAX_EXPECTED and (language == UNDETERMINED or language_id.knows(language)):
        detail = f"the text is {detected.language} (probability {detected.probability:.2f}), but declared {language}"
        raise BadRecord("language-mismatch", detail)


def fit_candidates(candidates: Candidates, samples: int, rate_hz: int) -> None:
    """Reject candidates with times far past the end of the recording, and cut the times of the others to it.

    Raises
    ------
    BadRecord: ``transcript-too-long`` if no candidate is left.
    """
    read = [replace(candidate, cues=without_hours(candidate.cues, samples, rate_hz)) for candidate in candidates.kept]
    candidates.counts["transcripts_of_another_clock"] += sum(
        new.cues != old.cues for new, old in zip(read, candidates.kept, strict=True)
    )
    candidates.kept = read
    limit = samples * (1 + FAR_SHARE) + FAR_S * rate_hz
    last_starts = [max((cue.start_samples for cue in candidate.cues), default=-1) for candidate in candidates.kept]
    kept = []
    for candidate, last in zip(candidates.kept, last_starts, strict=True):
        try:
            if last > limit and min(last_starts) <= limit:
                detail = f"the last cue starts at {last / rate_hz:.0f} s, the audio has {samples / rate_hz:.0f} s"
                raise BadRecord("transcript-too-long", detail)
            fitted = fit_to_length(candidate.cues, samples)
        except BadRecord as bad:
            candidates.reject(bad)
        else:
            candidates.counts["cues_past_end"] += sum(cue.start_samples >= samples for cue in candidate.cues)
            kept.append(replace(candidate, cues=fitted))
    candidates.kept = kept
    if recognised := candidates.recognised:
        try:
            cues = fit_to_length(recognised.cues, samples)
        except BadRecord:  # most of its times are past the end
            cues = [cue.untimed() for cue in recognised.cues]
        candidates.recognised = replace(recognised, cues=cues)
    candidates.require_one()
