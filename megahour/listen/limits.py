"""What a client may ask of the server of `megahour listen`, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """sessions: streams and files at a time. idle_s: without audio, or of audio without a word. Sizes in bytes.

    head_s: until the head of a request is whole. least_bytes_s: mean rate of a file on its way, after idle_s. file_s:
    audio of a file, decoded: a few kB of FLAC can hold hours of zeros. work_s: to transcribe it in.
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
