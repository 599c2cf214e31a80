"""Speech, word times and phonemes from espeak-ng, through the shared library of the `espeakng_loader` wheel.

The library keeps its state in C globals, which leak from one call into the next: the phase of the pitch flutter, the
seed of the breath noise (taken from the clock), and attributes that one voice sets and the next does not reset.
`espeak_Terminate` does not clear them: 88 of the 104 voice variants then speak the same text differently the second
time. Unloading the shared library clears them and takes under a millisecond. So every call here loads the library again
(`phonemiser` where it must) and sets a fixed seed, and its result depends on its arguments only. Two variants
(`UNSTABLE`) read uninitialised memory and are refused.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import StageError

RATE_HZ = 22050
UNSTABLE = frozenset({"Reed", "caleb"})

_SYNCHRONOUS, _DONT_EXIT = 2, 0x8000
_BUFFER_MS = 1000  # one Python callback per second of speech
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4
_QUIET = 50  # of 100; at full volume the louder variants clip
_UTF8, _IPA, _SEPARATOR_SHIFT = 1, 0x02, 8
_END_OF_EVENTS, _WORD = 0, 1
_LONGEST_DATA_PATH = 160  # bytes; N_PATH_HOME in espeak-ng's speech.h
_STRESS_AND_LANGUAGE_MARKS = str.maketrans("", "", "ˈˌ'ˑ\u200d")


class WordEvent(NamedTuple):
    """A word's place in the text (`offset` and `length` in characters), and its first sample."""

    offset: int
    length: int
    start_sample: int


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))
_lock = threading.Lock()
_holder: list[int] = []  # id of the thread that uses the library


@cache
def _paths() -> tuple[str, bytes]:
    import espeakng_loader

    library, data = str(espeakng_loader.get_library_path()), os.fsencode(espeakng_loader.get_data_path())
    if len(data) >= _LONGEST_DATA_PATH:
        raise StageError(
            f"espeak-ng's data path has {len(data)} bytes, the limit is {_LONGEST_DATA_PATH - 1}: {os.fsdecode(data)}",
            remedy="move the virtual environment to a shorter path",
        )
    return library, data


@contextmanager
def _library() -> Iterator[Any]:
    """Load and initialise the library, and unload it afterwards; only one thread of a process at a time."""
    path, data = _paths()
    if threading.get_ident() in _holder:
        raise StageError(
            "espeak-ng is already speaking in this thread", remedy="leave the `with speaker(...)` block first"
        )
    with _lock:
        _holder[:] = [threading.get_ident()]
        library = ctypes.CDLL(path)
        try:
            rate_hz = library.espeak_Initialize(_SYNCHRONOUS, _BUFFER_MS, data, _DONT_EXIT)
            if rate_hz != RATE_HZ:
                raise StageError(f"espeak-ng's rate is {rate_hz} instead of {RATE_HZ} Hz, with {os.fsdecode(data)}")
            library.espeak_ng_SetRandSeed(ctypes.c_long(1))
            yield library
            library.espeak_Terminate()
        finally:
            _holder.clear()
            getattr(_ctypes, "FreeLibrary" if os.name == "nt" else "dlclose")(library._handle)


def _set_voice(library: Any, voice: str, variant: str) -> None:
    if variant in UNSTABLE:
        raise StageError(f'the espeak-ng variant "{variant}" never sounds the same twice', remedy="use another variant")
    if variant and variant not in variants():  # espeak-ng would silently use the plain voice
        raise StageError(f'espeak-ng has no variant "{variant}"', remedy=f"use one of {', '.join(variants())}")
    name = f"{voice}+{variant}" if variant else voice
    if library.espeak_SetVoiceByName(name.encode()) != 0:
        raise StageError(f'espeak-ng has no voice "{name}"', remedy="use the name of a file in espeak-ng-data/lang")


@cache
def variants() -> tuple[str, ...]:
    """Names of all voice variants that speak reproducibly, sorted."""
    folder = Path(os.fsdecode(_paths()[1])) / "voices" / "!v"
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.name not in UNSTABLE))


class Speech(NamedTuple):
    """`samples` int16 (N,) at `rate_hz`, and word events in the order of the text."""

    samples: NDArray[np.int16]
    rate_hz: int
    words: list[WordEvent]


class Say(Protocol):
    """Speaks one text after another in one voice; see `speak` for the parameters."""

    def __call__(self, text: str, words_per_minute: int = 170, pitch: int = 50, pitch_range: int = 50) -> Speech: ...


@contextmanager
def speaker(voice: str, variant: str = "") -> Iterator[Say]:
    """A voice for several texts; its speech depends on what it spoke earlier in the same `with` block.

    The block holds the process's only library, so it may not call any other function of this module.

    Raises
    ------
    StageError: unknown or unstable voice, or a failure of the library.
    """
    chunks: list[bytes] = []
    words: list[WordEvent] = []

    def collect(wave: Any, samples: int, events: Any) -> int:
        if wave and samples > 0:
            chunks.append(ctypes.string_at(wave, 2 * samples))
        i = 0
        while events[i].type != _END_OF_EVENTS:
            event = events[i]
            if event.type == _WORD:
                words.append(WordEvent(event.text_position - 1, event.length, event.sample))
            i += 1
        return 0

    callback = _Callback(collect)  # must outlive the library's use of it
    with _library() as library:
        _set_voice(library, voice, variant)
        library.espeak_SetSynthCallback(callback)

        def say(text: str, words_per_minute: int = 170, pitch: int = 50, pitch_range: int = 50) -> Speech:
            chunks.clear()
            words.clear()
            for name, value in ((_RATE, words_per_minute), (_VOLUME, _QUIET), (_PITCH, pitch), (_RANGE, pitch_range)):
                library.espeak_SetParameter(name, value, 0)
            data = text.encode()
            status = library.espeak_Synth(data, ctypes.c_size_t(len(data) + 1), 0, 1, 0, _UTF8, None, None)
            if status != 0:
                raise StageError(f"espeak-ng failed with status {status} on {text[:80]!r}")
            return Speech(np.frombuffer(b"".join(chunks), dtype=np.int16), RATE_HZ, list(words))

        yield say


def speak(
    text: str, voice: str, variant: str = "", *, words_per_minute: int = 170, pitch: int = 50, pitch_range: int = 50
) -> Speech:
    """Speak `text`. The result depends on the arguments only.

    Parameters
    ----------
    voice: espeak-ng's language or accent, such as ``en-us`` or ``en-gb-scotland``.
    variant: a name from `variants()`, or empty for the plain voice.
    words_per_minute: 80–450. pitch, pitch_range: 0–99; 50 is the voice's default.

    Raises
    ------
    StageError: unknown or unstable voice, or a failure of the library.
    """
    with speaker(voice, variant) as say:
        return say(text, words_per_minute, pitch, pitch_range)


Phonemise = Callable[[str, str], list[str]]


@contextmanager
def phonemiser() -> Iterator[Phonemise]:
    """`phonemes` for many words: a word takes 0.1 ms in place of 2.5 as long as the language stays the same.

    The library stays loaded between words of letters alone, which leave nothing behind for the next one; digits and
    punctuation do. The block holds the process's only library, as `speaker` does.
    """
    with ExitStack() as loaded:
        library: Any = None
        fresh_for: str | None = None  # the language for which the library may be used again

        def phones(word: str, language: str) -> list[str]:
            nonlocal library, fresh_for
            plain = all(c == "'" or unicodedata.category(c)[0] in "LM" for c in word)
            if not plain or fresh_for != language:
                fresh_for = None  # also if the language is unknown
                loaded.close()
                library = loaded.enter_context(_library())
                _set_voice(library, language, "")
            fresh_for = language if plain else None
            return _phones(library, word)

        yield phones


def phonemes(word: str, language: str) -> list[str]:
    """Phones of a word or phrase in IPA without stress marks: ``phonemes("water", "en-us") == ["w", "ɔː", "ɾ", "ɚ"]``.

    The result depends on the arguments only; it is empty if there is nothing to pronounce.

    Raises
    ------
    StageError: unknown language.
    """
    with phonemiser() as phones:
        return phones(word, language)


def _phones(library: Any, word: str) -> list[str]:
    spoken: list[str] = []
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    text = ctypes.c_char_p(word.encode())
    while text.value:  # one clause a call; the pointer is null after the last
        clause = library.espeak_TextToPhonemes(ctypes.byref(text), _UTF8, _IPA | ord("_") << _SEPARATOR_SHIFT)
        spoken += clause.decode().replace(" ", "_").split("_")
    phones = (phone.translate(_STRESS_AND_LANGUAGE_MARKS) for phone in spoken)
    return [phone for phone in phones if phone and not phone.startswith("(")]
