"""Passages of speech in other languages by other voices, which the transcript does not mention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.store import Artifact
from megahour.corpus.generate.clip_sound import Sound, load_sound
from megahour.corpus.generate.clips import Clip, Files, files_in_shards, find_clips
from megahour.corpus.generate.params import ComposeParams


class Foreign:
    """Draw clips, cycling through the languages; a clip repeats only after all clips of its language were drawn."""

    def __init__(self, sources: dict[str, tuple[Files, list[Clip]]], p: ComposeParams, seed: int) -> None:
        self._p = p
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._sounds = {language: self._drawn(*source, language) for language, source in sources.items()}
        self._languages = list(sources)
        self._next = 0

    @staticmethod
    def of(artifact: Artifact, p: ComposeParams, own: Mapping[str, str], seed: int) -> Foreign:
        """Build from the shards of `artifact`, by their tag `language`, skipping the voice of the recording itself.

        own: tags of the recording's clips; `attribution` names the voice.

        Raises
        ------
        ConfigError: none of `passage_languages` has another voice.
        """
        sources = {}
        for language in p.passage_languages:
            if language == p.language:
                continue
            files = files_in_shards(artifact, language)
            if files.tags.get("attribution", language) == own.get("attribution"):
                continue
            clips, _ = find_clips(
                files, p.pattern, words={}, listing=None, only={}, leave_out={}, speaker=f"{language}-voice"
            )
            if clips:
                sources[language] = files, clips
        if not sources:
            raise ConfigError(
                f"no other voice in the languages {p.passage_languages}",
                where="compose",
                remedy="add languages to passage_languages, and to fetch-prompts",
            )
        return Foreign(sources, p, seed)

    def passage(self) -> tuple[str, list[NDArray[np.float32]]]:
        """The next passage: its language, and pieces of at least `passage_s` seconds with pauses between them.

        Raises
        ------
        ConfigError: none of the language's clips can be used.
        """
        language = self._languages[self._next % len(self._languages)]
        self._next += 1
        rate, pieces, samples = self._p.rate_hz, [], 0
        for sound in self._sounds[language]:
            pause = np.zeros(int(self._rng.uniform(*self._p.pause_s) * rate), np.float32)
            pieces += [sound.samples, pause]
            samples += len(sound.samples) + len(pause)
            if samples >= self._p.passage_s * rate:
                break
        if not pieces:
            raise ConfigError(f"no usable clip in {language}", where="compose", remedy="change passage_languages")
        return language, pieces

    def _drawn(self, files: Files, clips: list[Clip], language: str) -> Iterator[Sound]:
        p = self._p
        while clips:
            usable = []
            for i in self._rng.permutation(len(clips)):
                try:
                    sound = load_sound(clips[i], files.read, p.rate_hz, p.longest_clip_s, language)
                except BadRecord:  # too long or silent: `compose` counts such clips when the language is its own
                    continue
                usable.append(clips[i])
                yield sound
            clips = usable
