"""From audio to text: `transcribe.transcribe("talk.mp3", model="runs/demo")`, and `megahour transcribe` for files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megahour.transcribe.recogniser import Recogniser as Recogniser
    from megahour.transcribe.session import transcribe as transcribe

_LAZY = {"Recogniser": "recogniser", "transcribe": "session"}


def __getattr__(name: str) -> Any:
    """What needs torch and the decoder is imported when it is used."""
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"megahour.transcribe.{_LAZY[name]}"), name)
