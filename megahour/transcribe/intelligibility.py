"""Intelligibility of speech: the words that a recogniser hears, and how many of them are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.core.hooks import load_function
from megahour.corpus.media.audio import to_int16
from megahour.corpus.text.normalise import normalise
from megahour.score.wer import word_edits

Float32 = NDArray[np.float32]
Listener = Callable[[Float32, int], str]
"""The text of samples (N,) in -1 … 1 at a rate in Hz."""


def listener(address: str) -> Listener:
    """The function at ``package.module:function`` or ``FILE.py:function``, or the recogniser of a model, run or bundle.

    Raises ConfigError: there is none; or, when it is called, a function that returns no text.
    """
    if ":" not in address or address.partition(":")[2].startswith("//"):
        return _recogniser(address)
    function = load_function(address, "recogniser")

    def listen(samples: Float32, rate_hz: int) -> str:
        text: Any = function(samples, rate_hz)
        if not isinstance(text, str):
            what = f"the recogniser returned {type(text).__name__}, not a text"
            raise ConfigError(what, where=address, remedy="return a string, empty if nothing is heard")
        return text

    return listen


def _recogniser(address: str) -> Listener:
    from megahour.transcribe.parts import parts_of
    from megahour.transcribe.recogniser import Recogniser
    from megahour.transcribe.session import transcribe

    recogniser = Recogniser(parts_of(address))

    def listen(samples: Float32, rate_hz: int) -> str:
        return transcribe(to_int16(samples), recogniser, rate_hz=rate_hz).text

    return listen


def heard(text: str, reference: str, language: str) -> dict[str, Any]:
    """The normalised `heard` text, and the numbers of reference `words` and of word `errors`. reference: normalised."""
    hypothesis = normalise(text, language).text
    # Russian is written with or without the dots of ё.
    edits = word_edits(reference.replace("ё", "е"), hypothesis.replace("ё", "е"))
    return {"heard": hypothesis, "words": edits.length, "errors": edits.errors}
