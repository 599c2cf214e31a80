"""Long recordings composed from short clips of real speech, with a flawed transcript and the true times.

A string is a few clips of one speaker with short pauses between them; it has one line in the transcript. A
clip with one word gives its times: the clip's audible part. A clip with several words gives only the start of the first
and the end of the last; the times in between are -1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import BadRecord
from megahour.core.records import key_of
from megahour.corpus.generate import rooms
from megahour.corpus.generate.clip_sound import Sound, at_speed, load_sound
from megahour.corpus.generate.clips import Clip
from megahour.corpus.generate.foreign_speech import Foreign
from megahour.corpus.generate.params import ComposeParams
from megahour.corpus.generate.raw_shard import ComposedRecording, Passage, TrueSentence, TrueWord
from megahour.corpus.generate.recorded_noise import RecordedNoise
from megahour.corpus.generate.transcript_errors import NONE, Line, Mistakes, write_transcript
from megahour.corpus.media.audio import to_int16
from megahour.corpus.text.normalise import normalise

UNKNOWN = -1
_FIRST_DAY_S = 1_546_300_800  # 1 January 2019, 0:00 UTC


@dataclass
class _Tape:
    """A recording under construction: `pieces` of audio, their total `samples`, and the truth about its speech.

    sentences: (raw, start, end) of each string, in samples. starts: earliest start of each remaining passage, too.
    """

    pieces: list[NDArray[np.float32]] = field(default_factory=list)
    samples: int = 0
    words: list[TrueWord] = field(default_factory=list)
    sentences: list[tuple[str, int, int]] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def add(self, *pieces: NDArray[np.float32]) -> None:
        self.pieces += pieces
        self.samples += sum(len(piece) for piece in pieces)


class Composer:
    """Draw strings of one speaker's clips and join them; `dropped` has the unusable clips with the reasons."""

    def __init__(
        self,
        clips: list[Clip],
        read: Callable[[str], bytes],
        p: ComposeParams,
        seed: int,
        *,
        unspoken: Sequence[str] = (),
        foreign: Foreign | None = None,
        noise: RecordedNoise | None = None,
    ) -> None:
        """unspoken: texts for lines that are not spoken. Default: the texts of the clips."""
        self._read, self._p, self._foreign, self._noise, self._seed = read, p, foreign, noise, seed
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._clips = [clips[i] for i in self._rng.permutation(len(clips))]
        self._texts = [clip.text for clip in clips]
        self._unspoken = self._unsaid(unspoken)
        self.dropped: dict[str, tuple[str, str]] = {}  # clip name → (reason, detail)
        self.used: set[str] = set()

    def sounds(self) -> Iterator[Sound]:
        """Usable clips in drawn order: each once, or again and again when `hours` sets the amount."""
        while True:
            for clip in self._clips:
                if clip.name in self.dropped:
                    continue
                try:
                    sound = load_sound(clip, self._read, self._p.rate_hz, self._p.longest_clip_s, self._p.language)
                except BadRecord as error:
                    self.dropped[clip.name] = (error.reason, error.detail)
                    continue
                self.used.add(clip.name)
                slow, fast = self._p.speeds
                yield sound if slow == fast == 1 else at_speed(sound, float(self._rng.uniform(slow, fast)))
            if not self._p.hours or not self.used:
                return
            self._clips = [self._clips[i] for i in self._rng.permutation(len(self._clips))]

    def strings(self) -> Iterator[list[Sound]]:
        """Clips in groups of `clips_per_string`; the last one may be shorter."""
        sounds = self.sounds()
        fewest, most = self._p.clips_per_string
        while string := list(itertools.islice(sounds, int(self._rng.integers(fewest, most + 1)))):
            yield string

    def recordings(self, speaker: str, prefix: str, seconds: float) -> Iterator[ComposedRecording]:
        """Recordings until `seconds` of audio are full, or the clips used up when it is 0."""
        p, strings, total_s = self._p, self.strings(), 0.0
        copies = len(p.conditions) if p.paired else 1
        for number in itertools.count():
            if seconds and total_s >= seconds:
                return
            longest_s = 0.0 if p.style == "prompts" else p.recording_minutes * 60
            if seconds:
                longest_s = min(longest_s, (seconds - total_s) / copies)
            tape = self._join(strings, longest_s)
            if not tape.sentences:
                return
            total_s += copies * tape.samples / p.rate_hz
            yield from self._finish(f"{prefix}-{number:06d}", speaker, number, tape)

    def _join(self, strings: Iterator[list[Sound]], seconds: float) -> _Tape:
        """Strings, pauses and passages until `seconds` are full, one string at least."""
        p, tape = self._p, _Tape()
        tape.add(self._pause(p.gap_s))
        if self._foreign is not None:
            shares = (np.arange(p.passages) + self._rng.random(p.passages)) / p.passages
            tape.starts = [int(share * seconds * p.rate_hz) for share in shares]
        while not tape.sentences or tape.samples < seconds * p.rate_hz:
            self._add_passages(tape)
            string = next(strings, None)
            if string is None:
                break
            first = tape.samples + string[0].start
            for i, sound in enumerate(string):
                tape.words += _word_truth(sound, tape.samples, len(tape.sentences))
                last = tape.samples + sound.end
                tape.add(sound.samples, self._pause(p.gap_s if i + 1 == len(string) else p.pause_s))
            tape.sentences.append((_written([sound.raw for sound in string]), first, last))
        return tape

    def _add_passages(self, tape: _Tape) -> None:
        """Add the passages that are due, between two strings."""
        while self._foreign is not None and tape.starts and tape.samples >= tape.starts[0]:
            tape.starts.pop(0)
            language, pieces = self._foreign.passage()
            begin = tape.samples
            tape.add(*pieces)
            tape.passages.append(Passage(language, begin, tape.samples))
            tape.add(self._pause(self._p.gap_s))

    def _pause(self, seconds: tuple[float, float]) -> NDArray[np.float32]:
        return np.zeros(int(self._rng.uniform(*seconds) * self._p.rate_hz), np.float32)

    def _finish(self, name: str, speaker: str, number: int, tape: _Tape) -> Iterator[ComposedRecording]:
        """The recording in its condition, or, if they are paired, in each of them."""
        p, sentences = self._p, tape.sentences
        lines = [Line(raw, start / p.rate_hz, end / p.rate_hz) for raw, start, end in sentences]
        wrong = Mistakes(p.drift_s, p.jitter_s, p.missing, p.extra, p.misheard, p.markup)
        transcript = write_transcript(
            lines, self._never_spoken(), NONE if p.style == "prompts" else wrong, p.forms, speaker, self._rng
        )
        spoken: dict[int, list[str]] = {}
        for word in tape.words:
            spoken.setdefault(word.sentence, []).append(word.text)
        for suffix, condition, rng in self._rooms(number):
            yield ComposedRecording(
                name=name + suffix,
                samples=self._in_room(tape, condition, rng),
                rate_hz=p.rate_hz,
                transcript=transcript.text,
                form=transcript.form,
                info={
                    "speaker": speaker,
                    "language": p.language,
                    "licence": p.licence,
                    "attribution": p.attribution,
                    "condition": condition,
                    "created_s": _FIRST_DAY_S + key_of("created", speaker) % (300 * 86_400) + number * 86_400,
                    "source": p.source or "clips",
                },
                words=tape.words,
                sentences=[
                    TrueSentence(" ".join(spoken[i]), raw, transcript.present[i], start, end)
                    for i, (raw, start, end) in enumerate(sentences)
                ],
                lines=transcript.lines,
                passages=tape.passages,
            )

    def _rooms(self, number: int) -> Iterator[tuple[str, str, np.random.Generator]]:
        """(what the name ends in, condition, what draws the room) of recording `number`, each time it is heard.

        Rooms of paired recordings draw by themselves, so the strings are the same with any conditions and noise.
        """
        conditions = self._p.conditions
        if not self._p.paired:
            yield "", conditions[number % len(conditions)], self._rng
            return
        for condition in conditions:
            seed = key_of("room", self._seed, number, condition)
            yield f"-{condition}", condition, np.random.Generator(np.random.PCG64(seed))

    def _in_room(self, tape: _Tape, condition: str, rng: np.random.Generator) -> NDArray[np.int16]:
        dry = np.concatenate(tape.pieces)
        draw = None if self._noise is None else self._noise.draw
        return to_int16(rooms.apply(condition, dry, self._p.rate_hz, rng, draw))

    def _never_spoken(self) -> Iterator[str]:
        fewest, most = self._p.clips_per_string
        while True:
            if self._unspoken:
                yield from (_written([self._unspoken[i]]) for i in self._rng.permutation(len(self._unspoken)))
            else:
                count = int(self._rng.integers(fewest, most + 1))
                yield _written([self._texts[int(i)] for i in self._rng.integers(0, len(self._texts), count)])

    def _unsaid(self, texts: Sequence[str]) -> list[str]:
        """Unique `texts` whose words are not those of any clip."""
        said = {tuple(normalise(text, self._p.language).tokens) for text in self._texts}
        unsaid: dict[tuple[str, ...], str] = {}
        for text in texts:
            words = tuple(normalise(text, self._p.language).tokens)
            if words and words not in said:
                unsaid.setdefault(words, text)
        return list(unsaid.values())


def _word_truth(sound: Sound, position: int, sentence: int) -> Iterator[TrueWord]:
    last = len(sound.words) - 1
    for i, word in enumerate(sound.words):
        start = position + sound.start if i == 0 else UNKNOWN
        end = position + sound.end if i == last else UNKNOWN
        yield TrueWord(word, start, end, sentence)


def _written(texts: list[str]) -> str:
    """One line of a transcript: a capital first, a full stop last."""
    line = " ".join(texts)
    return line[0].upper() + line[1:] + ("" if line[-1] in ".?!…" else ".")
