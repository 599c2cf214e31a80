"""What *features* store for training: frames, or only the means with which it computes them from audio."""

from __future__ import annotations

from megahour.core.errors import ConfigError


def check_kept(keep: str, audio: bool, *, where: str) -> None:
    """Raises ConfigError for features of this `keep` that cannot be used with, or without, the input `audio`."""
    if audio and keep == "frames":
        remedy = "make them again with `keep: means`, or with `keep: both` if decode or senones read them too"
        raise ConfigError("input audio needs features with means", where=where, remedy=remedy)
    if keep == "means" and not audio:
        remedy = "make features with `keep: both`; only train can use means, with its input `audio`"
        raise ConfigError("the artifact holds means, not features", where=where, remedy=remedy)
