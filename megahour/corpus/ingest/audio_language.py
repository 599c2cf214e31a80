"""A user's function that identifies the language of the beginning of each recording.

``package.module:function`` is called as ``function(samples, rate_hz)`` with mono int16 [T], and returns
``(language, probability)`` or only the language: a BCP 47 tag, or "" if it is unsure. It must be deterministic.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from megahour.core.errors import BadRecord
from megahour.core.hooks import load_function
from megahour.corpus.media.audio import Int16
from megahour.corpus.text.language_id import canonical

Identify = Callable[[Int16, int], Any]


def load_hook(address: str) -> Identify:
    """Import the function at `address`. Raises ConfigError as `load_function` does."""
    return load_function(address, "audio_language")


class Head:
    """Collects the first `seconds` of a recording from its blocks, mixed to one channel."""

    def __init__(self, seconds: float, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self._missing = round(seconds * rate_hz)
        self._parts: list[Int16] = []

    def add(self, block: Int16) -> None:
        """Add a block, int16 [T, C]."""
        if self._missing > 0 and len(block):
            part = block[: self._missing]
            mono = part[:, 0] if part.shape[1] == 1 else np.rint(part.mean(axis=1)).astype(np.int16)
            self._parts.append(mono.copy())
            self._missing -= len(part)

    def language(self, address: str) -> tuple[str, float]:
        """Call the function at `address`: (BCP 47 tag or "", probability).

        Raises BadRecord (``audio-language-failed``): the function raised an error, or returned something else.
        """
        samples = np.concatenate(self._parts) if self._parts else np.zeros(0, np.int16)
        identify = load_hook(address)
        try:
            given = identify(samples, self.rate_hz)
        except (Exception, SystemExit) as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"{address} raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
            raise BadRecord("audio-language-failed", detail) from error
        try:
            language, probability = (given, 1.0) if isinstance(given, str) else given
            return canonical(language) if language else "", float(probability)
        except (AttributeError, TypeError, ValueError):
            detail = f"{address} returned {given!r:.80}, not (language, probability)"
            raise BadRecord("audio-language-failed", detail) from None
