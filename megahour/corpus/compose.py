"""Long recordings composed from short clips of real speech, with a flawed transcript and the true times.

A string is a few clips of one speaker with short pauses between them; it has one line in the transcript. Word times
are known where a clip has one word: the clip's audible part. Of a clip with several words the first one's start and the
last one's end are known, the times between are -1.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import BadRecord
from megahour.core.records import key_of
from megahour.corpus import rooms
from megahour.corpus.audio import decode, to_int16
from megahour.corpus.mistakes import NONE, Line, Mistakes, write_transcript
from megahour.corpus.raw import RawRecording, TrueSentence, TrueWord
from megahour.corpus.text import normalise

if TYPE_CHECKING:
    from megahour.corpus.clips import Clip
    from megahour.corpus.stages_compose import ComposeParams

UNKNOWN = -1
_FIRST_DAY_S = 1_546_300_800  # 1 January 2019, 0:00 UTC
_AUDIBLE = 10 ** (-35 / 20)  # of the clip's peak
_BLOCK_S = 0.005
_LEVEL = 0.08  # RMS of the audible part


class Sound(NamedTuple):
    """A clip decoded: `samples` float32 (N,), audible from `start` up to `end`, and its normalised `words`."""

    samples: NDArray[np.float32]
    start: int
    end: int
    words: tuple[str, ...]
    raw: str


class Composer:
    """Draws strings of clips of one speaker and joins them; `dropped` says which clips could not be used and why."""

    def __init__(self, clips: list[Clip], read: Callable[[str], bytes], p: ComposeParams, seed: int) -> None:
        self._read, self._p = read, p
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._clips = [clips[i] for i in self._rng.permutation(len(clips))]
        self._texts = [clip.text for clip in clips]
        self.dropped: dict[str, tuple[str, str]] = {}  # clip name → (reason, detail)
        self.used: set[str] = set()

    def sounds(self) -> Iterator[Sound]:
        """Usable clips in drawn order: each once, or again and again when `hours` sets the amount."""
        while True:
            for clip in self._clips:
                if clip.name in self.dropped:
                    continue
                try:
                    sound = self._load(clip)
                except BadRecord as error:
                    self.dropped[clip.name] = (error.reason, error.detail)
                    continue
                self.used.add(clip.name)
                yield sound
            if not self._p.hours or not self.used:
                return
            self._clips = [self._clips[i] for i in self._rng.permutation(len(self._clips))]

    def _load(self, clip: Clip) -> Sound:
        p = self._p
        words = tuple(normalise(clip.text, p.language).tokens)
        if not words:
            raise BadRecord("empty-transcript", clip.text, record=clip.name)
        samples = decode(io.BytesIO(self._read(clip.name)), p.rate_hz)[:, 0].astype(np.float32) / np.float32(32768)
        if len(samples) > p.longest_clip_s * p.rate_hz:
            raise BadRecord("too-long", f"{len(samples) / p.rate_hz:.1f} s", record=clip.name)
        start, end = audible(samples, p.rate_hz)
        level = float(np.sqrt(np.mean(np.square(samples[start:end]))))
        return Sound(samples * np.float32(_LEVEL / level), start, end, words, clip.text)

    def strings(self) -> Iterator[list[Sound]]:
        """Clips in groups of `clips_per_string`; the last one may be shorter."""
        sounds = self.sounds()
        fewest, most = self._p.clips_per_string
        while string := list(itertools.islice(sounds, int(self._rng.integers(fewest, most + 1)))):
            yield string

    def recordings(self, speaker: str, prefix: str, seconds: float) -> Iterator[RawRecording]:
        """Recordings until `seconds` of audio are full, or the clips used up when it is 0."""
        p, strings, total_s = self._p, self.strings(), 0.0
        for number in itertools.count():
            if seconds and total_s >= seconds:
                return
            longest_s = 0.0 if p.style == "prompts" else p.recording_minutes * 60
            if seconds:
                longest_s = min(longest_s, seconds - total_s)
            pieces, words, sentences = self._join(strings, longest_s)
            if not sentences:
                return
            audio = np.concatenate(pieces)
            total_s += len(audio) / p.rate_hz
            yield self._finish(f"{prefix}-{number:06d}", speaker, number, audio, words, sentences)

    def _join(
        self, strings: Iterator[list[Sound]], seconds: float
    ) -> tuple[list[NDArray[np.float32]], list[TrueWord], list[tuple[str, int, int]]]:
        """Strings and pauses until `seconds` are full, one at least: audio, words, (raw, start, end) of each string."""
        pieces = [self._pause(self._p.gap_s)]
        position = len(pieces[0])
        words: list[TrueWord] = []
        sentences: list[tuple[str, int, int]] = []
        while not sentences or position < seconds * self._p.rate_hz:
            string = next(strings, None)
            if string is None:
                break
            first = position + string[0].start
            for i, sound in enumerate(string):
                words += _word_truth(sound, position, len(sentences))
                last = position + sound.end
                pause = self._pause(self._p.gap_s if i + 1 == len(string) else self._p.pause_s)
                pieces += [sound.samples, pause]
                position += len(sound.samples) + len(pause)
            sentences.append((_written([sound.raw for sound in string]), first, last))
        return pieces, words, sentences

    def _pause(self, seconds: tuple[float, float]) -> NDArray[np.float32]:
        return np.zeros(int(self._rng.uniform(*seconds) * self._p.rate_hz), np.float32)

    def _finish(
        self,
        name: str,
        speaker: str,
        number: int,
        audio: NDArray[np.float32],
        words: list[TrueWord],
        sentences: list[tuple[str, int, int]],
    ) -> RawRecording:
        p, rng = self._p, self._rng
        condition = p.conditions[number % len(p.conditions)]
        lines = [Line(raw, start / p.rate_hz, end / p.rate_hz) for raw, start, end in sentences]
        wrong = Mistakes(p.drift_s, p.jitter_s, p.missing, p.extra, p.misheard, p.markup)
        transcript = write_transcript(
            lines, self._never_spoken(), NONE if p.style == "prompts" else wrong, p.forms, speaker, rng
        )
        spoken: dict[int, list[str]] = {}
        for word in words:
            spoken.setdefault(word.sentence, []).append(word.text)
        return RawRecording(
            name=name,
            samples=to_int16(rooms.apply(condition, audio, p.rate_hz, rng)),
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
            words=words,
            sentences=[
                TrueSentence(" ".join(spoken[i]), raw, transcript.present[i], start, end)
                for i, (raw, start, end) in enumerate(sentences)
            ],
        )

    def _never_spoken(self) -> Iterator[str]:
        fewest, most = self._p.clips_per_string
        while True:
            count = int(self._rng.integers(fewest, most + 1))
            yield _written([self._texts[int(i)] for i in self._rng.integers(0, len(self._texts), count)])


def audible(samples: NDArray[np.float32], rate_hz: int) -> tuple[int, int]:
    """(start, end) samples of the part between the first and the last block of 5 ms within 35 dB of the peak.

    Raises
    ------
    BadRecord: ``silent-audio``.
    """
    block = max(1, int(rate_hz * _BLOCK_S))
    peaks = np.abs(samples[: len(samples) // block * block]).reshape(-1, block).max(axis=1)
    if not len(peaks) or peaks.max() < 1e-3:
        raise BadRecord("silent-audio", f"peak {float(peaks.max(initial=0)):.5f} in {len(samples)} samples")
    loud = np.flatnonzero(peaks >= _AUDIBLE * peaks.max())
    return int(loud[0]) * block, (int(loud[-1]) + 1) * block


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
