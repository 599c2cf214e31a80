"""Limits on what clients may ask of the server of `megahour listen`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """sessions: streams and files at the same time. idle_s: time without audio, or audio without a word.

    message_bytes, file_bytes: largest message and file. head_s: time for the head of a request. least_bytes_s: lowest
    mean rate of an upload, after idle_s. file_s: seconds of decoded audio per file; a few kB of FLAC can hold hours of
    zeros. work_s: time to transcribe a file.
    """

    sessions: int = 4
    idle_s: float = 300.0
    message_bytes: int = 256 << 10
    file_bytes: int = 512 << 20
    head_s: float = 20.0
    least_bytes_s: int = 4000
    file_s: float = 4 * 3600.0
    work_s: float = 3600.0


DEFAULTS = Limits()
