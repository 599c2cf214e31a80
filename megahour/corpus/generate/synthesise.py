"""Generates recordings: sentences of the grammar, spoken in a simulated room, with a flawed transcript.

espeak-ng's voices speak, or any `Narrator` beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import soxr
from numpy.typing import NDArray

from megahour.core.records import key_of
from megahour.corpus.generate import rooms
from megahour.corpus.generate.espeak import RATE_HZ as ESPEAK_HZ
from megahour.corpus.generate.espeak import Say, Speech, speaker
from megahour.corpus.generate.raw_shard import RawRecording, TrueSentence, TrueWord
from megahour.corpus.generate.sentences import Sentence, sentences
from megahour.corpus.generate.transcript_errors import NONE, Line, Mistakes, write_transcript
from megahour.corpus.generate.voices import Voice, voice
from megahour.corpus.media.audio import to_int16

LICENCES = (
    "https://creativecommons.org/licenses/by/4.0/",
    "CC-BY-SA-4.0",
    "CC0-1.0",
    "Public Domain",
    "https://creativecommons.org/licenses/by-sa/3.0/",
)
RESERVED = "All rights reserved"
_RESERVED_SHARE = 0.03
_FIRST_DAY_S = 1_546_300_800  # 1 January 2019, 0:00 UTC
_SILENT = 10 ** (-45 / 20)  # share of the sentence's peak
_ENERGY_S = 0.01
_SHORTEST_PAUSE_S = 0.06
_PROMPT_S = (2.0, 6.0)


class SpokenAudio(NamedTuple):
    """A spoken sentence: `samples` int16 (N,) at espeak's rate, and `words` as (text, first sample, end sample)."""

    sentence: Sentence
    samples: NDArray[np.int16]
    words: list[tuple[str, int, int]]


SaySentence = Callable[[Sentence, np.random.Generator], SpokenAudio]


class Narrator(Protocol):
    """Who speaks a recording. name: the speaker's. label: the same in names of files. licence: None draws one."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def licence(self) -> str | None: ...
    @property
    def attribution(self) -> str: ...
    def speaking(self, rng: np.random.Generator) -> AbstractContextManager[SaySentence]:
        """Speaks the sentences of one recording, for which `rng` draws the manner."""
        ...


@dataclass(frozen=True)
class EspeakNarrator:
    """A voice of espeak-ng, whose recordings have made-up licences."""

    voice: Voice
    licence: str | None = None

    @property
    def name(self) -> str:
        return self.voice.name

    label = name

    @property
    def attribution(self) -> str:
        return f"{self.voice.name}, spoken by espeak-ng ({self.voice.accent}+{self.voice.variant})"

    @contextmanager
    def speaking(self, rng: np.random.Generator) -> Iterator[SaySentence]:
        with speaker(self.voice.accent, self.voice.variant) as say:
            yield partial(speak_sentence, say, self.voice)


def word_times(speech: Speech, said: str) -> list[tuple[str, int, int]]:
    """(word, start sample, end sample) of each word of `said`.

    espeak-ng does not report the start of every word: it speaks "of the" as one. The time of such a group is divided
    in proportion to the words' letters. A word ends where the next one starts, or where it stops being audible if a
    pause of over 60 ms follows.
    """
    starts = {event.offset: event.start_sample for event in speech.words}
    groups: list[tuple[int, list[str]]] = []
    offset = 0
    for chunk in said.split():
        offset = said.index(chunk, offset)
        word = chunk.strip(",.?!:;")
        if word and (offset in starts or not groups):
            groups.append((starts.get(offset, 0), [word]))
        elif word:
            groups[-1][1].append(word)
        offset += len(chunk)
    audible = _audible(speech.samples)
    times: list[tuple[str, int, int]] = []
    for i, (start, words) in enumerate(groups):
        stop = groups[i + 1][0] if i + 1 < len(groups) else len(speech.samples)
        begin, end = _trim(audible, start, stop)
        edges = begin + np.cumsum([0] + [len(word) for word in words]) * (end - begin) // sum(map(len, words))
        times += [(word, int(edges[k]), int(edges[k + 1])) for k, word in enumerate(words)]
    return times


def _audible(samples: NDArray[np.int16]) -> NDArray[np.bool_]:
    """Whether each block of 10 ms is louder than 45 dB below the peak."""
    block = int(ESPEAK_HZ * _ENERGY_S)
    loudness = np.abs(samples[: len(samples) // block * block].astype(np.int32)).reshape(-1, block).max(axis=1)
    return np.asarray(loudness > _SILENT * max(int(loudness.max(initial=0)), 1))


def _trim(audible: NDArray[np.bool_], start: int, stop: int) -> tuple[int, int]:
    """[start, stop) in samples without the pauses of over 60 ms at either end."""
    block = int(ESPEAK_HZ * _ENERGY_S)
    blocks = np.flatnonzero(audible[start // block : -(-stop // block)])
    if len(blocks) == 0:
        return start, stop
    pause = int(_SHORTEST_PAUSE_S * ESPEAK_HZ)
    first, last = (start // block + int(blocks[0])) * block, (start // block + int(blocks[-1]) + 1) * block
    return (first if first - start > pause else start), (last if stop - last > pause else stop)


def speak_sentence(say: Say, who: Voice, sentence: Sentence, rng: np.random.Generator) -> SpokenAudio:
    """Speak a sentence, with speed and pitch varied a little, and cut off the silence around it."""
    speed = round(who.words_per_minute * rng.uniform(0.93, 1.08))
    pitch = int(np.clip(who.pitch + rng.integers(-4, 5), 0, 99))
    speech = say(sentence.said, speed, pitch, who.pitch_range)
    words = word_times(speech, sentence.said)
    first, last = words[0][1], words[-1][2]
    shifted = [(word, start - first, end - first) for word, start, end in words]
    return SpokenAudio(sentence, speech.samples[first:last], shifted)


def speak_recording(
    who: Narrator, texts: Iterator[Sentence], seconds: float, rng: np.random.Generator
) -> tuple[list[SpokenAudio], list[int]]:
    """Enough sentences to fill `seconds`, and the pauses before each and after the last, in samples at 22,050 Hz."""
    spoken: list[SpokenAudio] = []
    pauses = [int(rng.uniform(0.2, 1.0) * ESPEAK_HZ)]
    samples = pauses[0]
    with who.speaking(rng) as say:
        while samples < seconds * ESPEAK_HZ:
            spoken.append(say(next(texts), rng))
            long = rng.random() < 0.03
            pauses.append(int((rng.uniform(2.0, 5.0) if long else rng.uniform(0.25, 0.9)) * ESPEAK_HZ))
            samples += len(spoken[-1].samples) + pauses[-1]
    return spoken, pauses


def speak_prompt(
    who: Narrator, texts: Iterator[Sentence], rng: np.random.Generator
) -> tuple[list[SpokenAudio], list[int]]:
    """One sentence of 2 to 6 seconds with short silences around it."""
    with who.speaking(rng) as say:
        while True:
            spoken = say(next(texts), rng)
            if _PROMPT_S[0] <= len(spoken.samples) / ESPEAK_HZ <= _PROMPT_S[1]:
                break
    return [spoken], [int(rng.uniform(0.15, 0.4) * ESPEAK_HZ) for _ in range(2)]


def render(
    spoken: Sequence[SpokenAudio], pauses: Sequence[int], rate_hz: int
) -> tuple[NDArray[np.float32], list[list[TrueWord]]]:
    """Join sentences and pauses: audio float32 (N,) at `rate_hz`, and each sentence's words with their times there."""
    pieces: list[NDArray[np.int16]] = [np.zeros(pauses[0], np.int16)]
    words: list[list[TrueWord]] = []
    position = pauses[0]
    scale = rate_hz / ESPEAK_HZ
    for i, part in enumerate(spoken):
        words.append(
            [
                TrueWord(text, round((position + start) * scale), round((position + end) * scale), i)
                for text, start, end in part.words
            ]
        )
        pieces += [part.samples, np.zeros(pauses[i + 1], np.int16)]
        position += len(part.samples) + pauses[i + 1]
    audio = np.concatenate(pieces).astype(np.float32) / np.float32(32768)
    return soxr.resample(audio, ESPEAK_HZ, rate_hz, quality="HQ"), words


def synthesise(
    index: int,
    *,
    voices: int = 48,
    first_voice: int = 0,
    style: str = "recordings",
    minutes: float = 4.0,
    mistakes: Mistakes = NONE,
    conditions: Sequence[str] = ("clean",),
    forms: Sequence[str] = ("srt", "vtt", "txt"),
    rate_hz: int = 16_000,
    seed: int = 0,
    split: str = "train",
    own: Sequence[Narrator] = (),
    own_share: float = 0.0,
) -> RawRecording:
    """Recording number `index` of a generated corpus. The result depends on the arguments only.

    Parameters
    ----------
    style: ``recordings`` of about `minutes`, or ``prompts``, one sentence of 2 to 6 s with a correct transcript.
    own: narrators, of whom one is drawn for the share `own_share` of the recordings; not for test sentences.
    """
    who: Narrator = EspeakNarrator(voice(first_voice + index % voices))
    turn = index // voices
    if own and split != "test":
        draws = np.random.Generator(np.random.PCG64(key_of("narrator", seed, split, style, index)))
        if draws.random() < own_share:
            who = own[int(draws.integers(len(own)))]
    name = f"{split}-{who.label}-{style}-{index:06d}"
    rng = np.random.Generator(np.random.PCG64(key_of("synthesise", seed, name)))
    texts = sentences(split, key_of("texts", seed, name))
    prompt = style == "prompts"
    spoken, pauses = speak_prompt(who, texts, rng) if prompt else speak_recording(who, texts, minutes * 60, rng)
    audio, words = render(spoken, pauses, rate_hz)
    condition = conditions[(index + turn) % len(conditions)]
    audio = rooms.apply(condition, audio, rate_hz, rng)
    lines = [
        Line(part.sentence.raw, said[0].start_samples / rate_hz, said[-1].end_samples / rate_hz)
        for part, said in zip(spoken, words, strict=True)
    ]
    never_spoken = (sentence.raw for sentence in texts)
    transcript = write_transcript(lines, never_spoken, NONE if prompt else mistakes, forms, who.name, rng)
    return RawRecording(
        name=name,
        samples=to_int16(audio),
        rate_hz=rate_hz,
        transcript=transcript.text,
        form=transcript.form,
        info=_info(who, index, turn, condition, rng),
        words=[word for said in words for word in said],
        sentences=_sentence_truth(spoken, words, transcript.present),
    )


def _sentence_truth(
    spoken: Sequence[SpokenAudio], words: Sequence[Sequence[TrueWord]], present: Sequence[bool]
) -> list[TrueSentence]:
    return [
        TrueSentence(part.sentence.spoken, part.sentence.raw, there, said[0].start_samples, said[-1].end_samples)
        for part, said, there in zip(spoken, words, present, strict=True)
    ]


def _info(who: Narrator, index: int, turn: int, condition: str, rng: np.random.Generator) -> dict[str, str | int]:
    """Side information. A speaker's recordings are dated days apart, in the order of their index."""
    licence = who.licence
    if licence is None:
        licence = RESERVED if rng.random() < _RESERVED_SHARE else LICENCES[int(rng.integers(len(LICENCES)))]
    first_s = _FIRST_DAY_S + key_of("created", who.name) % (300 * 86_400)
    return {
        "speaker": who.name,
        "language": "en",
        "licence": licence,
        "attribution": who.attribution,
        "condition": condition,
        "created_s": first_s + turn * 3 * 86_400 + int(rng.integers(86_400)),
        "source": f"generated/{index:06d}",
    }
