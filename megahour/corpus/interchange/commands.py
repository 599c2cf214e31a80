"""Commands that only decode one file, as recipes of Kaldi and lhotse write them.

No command is ever run: the file is decoded here, to the rate that the import asks for.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

_FILE = r"(?P<file>[^-\n][^\n]*)"
_SOX = r"(?:-t\n\w+\n|-r\n\d+k?\n|-b\n\d+\n|-e\nsigned(?:-integer)?\n|-c\n1\n)*"
_FFMPEG = r"""(?:-(?:hide_banner|nostats|nostdin|vn|y)\n|-(?:v|loglevel)\n\w+\n
    |-f\nwav\n|-ar\n\d+\n|-ac\n1\n|-(?:acodec|codec:a|c:a)\npcm_s\d+le\n)*"""
FORMS = {
    "cat": _FILE,
    "flac": rf"(?:-[cdsf]+\n|--(?:decode|stdout|silent|totally-silent)\n)*{_FILE}",
    "sph2pipe": rf"(?:-p\n|-f\n(?:wav|rif)\n|-c\n(?P<channel>[12])\n)*{_FILE}",
    "sox": rf"(?:-t\n\w+\n)?{_FILE}\n{_SOX}-(?:\nremix\n(?P<channel>[1-9]))?",
    "ffmpeg": rf"{_FFMPEG}-i\n{_FILE}\n{_FFMPEG}(?:-|pipe:1?)",
}
"""By program its words, one a line: those with which the sound comes out as it is, but for rate and sample format."""


class Decoding(NamedTuple):
    """The file that a command decodes, and the only channel that it gives, from 0; None: all."""

    path: str
    channel: int | None = None


def decoding(command: str) -> Decoding | None:
    """What a command does, if all that it does is to decode a file to its standard output; else None.

    >>> decoding("sph2pipe -f wav -p -c 2 swb1/sw02001.sph |")
    Decoding(path='swb1/sw02001.sph', channel=1)
    >>> decoding("sox talk.wav -t wav - speed 1.1 |")
    """
    try:
        program, *words = shlex.split(command.strip().removesuffix("|").replace("2>/dev/null", ""))
    except ValueError:  # an open quote, or nothing
        return None
    match = re.fullmatch(FORMS.get(program.rpartition("/")[2], "(?!)"), "\n".join(words), re.VERBOSE)
    if match is None:
        return None
    channel = match.groupdict().get("channel")
    return Decoding(match["file"], int(channel) - 1 if channel else None)
