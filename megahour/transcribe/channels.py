"""Transcribes recordings with a voice on each channel, such as the two sides of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, BinaryIO, Literal

from megahour.transcribe.decoded import channels_of
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import Transcription, transcribe

EACH: Literal["each"] = "each"
Channel = int | Literal["each"]


def transcribe_channel(file: BinaryIO, recogniser: Recogniser, channel: Channel, **how: Any) -> Transcription:
    """`transcribe` one channel of a seekable file, from 1; 0: the mix of all; "each": every channel by itself.

    Of "each" there is one transcript, in order of time, whose words name their channel. It has no tag, which the voices
    need not share. A file with one channel is transcribed as without this. how: other parameters of `transcribe`.

    Raises
    ------
    BadRecord, ConfigError: as `transcribe`.
    """
    if channel != EACH:
        return transcribe(file, recogniser, channel=channel, **how)
    channels = channels_of(file, recogniser.front.rate_hz)
    if channels == 1:
        return transcribe(file, recogniser, **how)
    heard = []
    for number in range(1, channels + 1):
        file.seek(0)
        heard.append(transcribe(file, recogniser, channel=number, **how))
    return merged(heard)


def merged(heard: Sequence[Transcription]) -> Transcription:
    """One transcript of several channels, in order of time. Words without times follow each other by channel."""
    words = [replace(word, channel=each.channel) for each in heard for word in each.words]
    if all(word.start_s is not None for word in words):
        words.sort(key=lambda word: word.start_s or 0.0)
    nbest = [replace(piece, channel=each.channel) for each in heard for piece in each.nbest]
    of_all = [remark for remark in heard[0].remarks if all(remark in each.remarks for each in heard)]
    of_one = [_named(each, remark) for each in heard for remark in each.remarks if remark not in of_all]
    return Transcription(
        heard[0].name,
        heard[0].model,
        max(each.seconds for each in heard),
        words,
        [_named(each, lost) for each in heard for lost in each.lost],
        told=heard[0].told,
        remarks=of_all + of_one,
        nbest=sorted(nbest, key=lambda piece: piece.start_s),
    )


def _named(heard: Transcription, what: str) -> str:
    return f"channel {heard.channel}: {what}"
