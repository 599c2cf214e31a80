"""Commands of manifests: which of them are no more than a file."""

from __future__ import annotations

import pytest

from megahour.corpus.interchange.commands import decoding


@pytest.mark.parametrize(
    ("command", "file", "channel"),
    [
        ("flac -c -d -s /data/LibriSpeech/19-198-0001.flac |", "/data/LibriSpeech/19-198-0001.flac", None),
        ("flac -cds x.flac", "x.flac", None),
        ("/kaldi/tools/sph2pipe_v2.5/sph2pipe -f wav -p -c 1 swb1/sw02001.sph |", "swb1/sw02001.sph", 0),
        ("sph2pipe -f wav 'my talk.wv1' 2>/dev/null |", "my talk.wv1", None),
        ("cat a.wav |", "a.wav", None),
        ("sox clips/1.mp3 -t wav -r 16k -b 16 -e signed - |", "clips/1.mp3", None),
        ("sox -t mp3 1 -t wav -c 1 - |", "1", None),
        ("sox call.wav -t wav - remix 2 |", "call.wav", 1),
        ("ffmpeg -v error -i my\\ clip.m4a -f wav -ar 16000 -ac 1 -acodec pcm_s16le - |", "my clip.m4a", None),
        ("ffmpeg -i a.opus -f wav pipe:1 |", "a.opus", None),
    ],
)
def test_a_command_that_only_decodes_is_its_file(command: str, file: str, channel: int | None) -> None:
    assert decoding(command) == (file, channel)


@pytest.mark.parametrize(
    "command",
    [
        *("touch a.wav |", "|", "", "cat 'a |", "cat a b |", "cat - |", "flac -d -c --skip=100 a.flac |"),
        *("sox a.wav -t wav - speed 1.1 |", "sox -r 8000 a.wav -t wav - |", "sox -t raw -r 8000 a -t wav - |"),
        *("sox a.wav b.wav -t wav - |", "sox a.wav -t wav - remix 1 2 |", "sox a.wav -t wav - remix 1 speed 2 |"),
        *("ffmpeg -ss 3 -i a.mp3 -f wav - |", "ffmpeg -i a.mp3 -af volume=2 -f wav - |", "ffmpeg -i a.mp3 b.wav |"),
        *("flac -c -d a.flac | sox - -t wav - |", "cat a.wav ; touch b |", "cat a.wav && touch b |", "cat a.wav > b"),
    ],
)
def test_a_command_that_does_more_is_none(command: str) -> None:
    """Its sound would be another one than that of the file."""
    assert decoding(command) is None
