"""Sound tracks of MP4, Matroska and their like: decoded in bounded memory, and each kind of damage by its name."""

from __future__ import annotations

import io
import struct
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import soundfile
from made_media import encode, most_memory, murmur
from made_tracks import film, track
from test_audio import reason_of

from megahour.corpus.media.audio import Decoder, decode
from megahour.corpus.media.containers import sniff

RATE_HZ = 48_000
TRACKS = [
    ("ipod", "aac"),
    ("mp4", "aac"),
    ("mp4", "alac"),
    ("mov", "aac"),
    ("adts", "aac"),
    ("webm", "libopus"),
    ("matroska", "aac"),
    ("matroska", "flac"),
    ("avi", "mp3"),
    ("mpegts", "aac"),
    ("flv", "aac"),
    ("ac3", "ac3"),
    ("mp2", "mp2"),
]
SIZED = [("ipod", "aac"), ("mov", "aac"), ("webm", "libopus"), ("matroska", "flac"), ("avi", "mp3")]


@pytest.mark.parametrize(("container", "codec"), TRACKS)
def test_every_container_keeps_length_level_and_place(container: str, codec: str) -> None:
    samples = murmur(3, RATE_HZ)
    samples[RATE_HZ : 2 * RATE_HZ] = 0  # the quiet second tells whether time is kept
    options = {"strict": "experimental"}
    out = decode(io.BytesIO(track(samples, container, codec, options=options)), 16_000)[:, 0].astype(float)
    assert abs(len(out) - 48_000) < 1600
    assert np.std(out) == pytest.approx(np.std(samples.astype(float)), rel=0.1)
    assert np.std(out[18_000:30_000]) < 0.02 * np.std(out)


def test_lossless_tracks_come_back_sample_for_sample() -> None:
    samples = murmur(2, 16_000)
    assert np.array_equal(decode(io.BytesIO(track(samples, "matroska", "flac", 16_000)), 16_000)[:, 0], samples)


def test_the_sound_of_a_film() -> None:
    samples = murmur(2, RATE_HZ)
    assert abs(len(decode(io.BytesIO(film(samples)), 16_000)) - 32_000) < 1600


def test_the_sound_of_a_film_that_starts_in_silence() -> None:
    """Times count from the start of the film, whatever the header of the sound's own track says."""
    sound = decode(io.BytesIO(film(murmur(2, RATE_HZ), late_s=2)), 16_000)[:, 0]
    assert abs(len(sound) - 64_000) < 1600
    assert not sound[:31_000].any()


def test_a_matroska_whose_clock_does_not_start_at_0() -> None:
    sound = decode(io.BytesIO(track(murmur(2, RATE_HZ), "matroska", "aac", late_s=2)), 16_000)
    assert abs(len(sound) - 32_000) < 1600


def test_a_container_without_sound() -> None:
    assert reason_of(film(None)) == "no-audio-stream"


@pytest.mark.parametrize(("container", "codec"), SIZED)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.97])
def test_a_container_that_was_cut_is_truncated(container: str, codec: str, share: float) -> None:
    data = track(murmur(10, RATE_HZ), container, codec)
    assert reason_of(data[: int(len(data) * share)]) == "truncated-audio"


def test_a_fragmented_mp4_that_was_cut_is_truncated() -> None:
    data = track(murmur(20, RATE_HZ), "mp4", "aac", options={"movflags": "frag_keyframe+empty_moov"})
    assert abs(len(decode(io.BytesIO(data), 16_000)) - 320_000) < 1600
    assert reason_of(data[: len(data) // 2]) == "truncated-audio"


def test_damage_in_the_middle_of_a_track() -> None:
    data = bytearray(track(murmur(20, RATE_HZ), "matroska", "flac"))
    data[len(data) // 2 : len(data) // 2 + 400] = bytes(i * 37 % 256 for i in range(400))
    assert reason_of(bytes(data)) == "corrupt-audio"


def test_an_encrypted_track() -> None:
    keys = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": "00" * 16, "encryption_kid": "11" * 16}
    assert reason_of(track(murmur(2, RATE_HZ), "mp4", "aac", options=keys)) == "encrypted-audio"


def ebml(name: str, body: bytes) -> bytes:
    """An EBML element; its size takes four bytes."""
    return bytes.fromhex(name) + (0x10000000 | len(body)).to_bytes(4, "big") + body


def test_an_encrypted_matroska() -> None:
    encodings = ebml("6D80", ebml("6240", ebml("5035", b"")))
    data = ebml("1A45DFA3", b"") + ebml("18538067", ebml("1654AE6B", ebml("AE", encodings)))
    assert reason_of(data) == "encrypted-audio"


def test_a_header_that_lies_about_its_duration() -> None:
    data = track(murmur(10, RATE_HZ), "mp4", "aac", options={"use_editlist": "0"})
    place = data.find(b"mdhd") + 20
    assert reason_of(data[:place] + RATE_HZ.to_bytes(4, "big") + data[place + 4 :]) == "header-lies"


@pytest.mark.parametrize(("seconds", "reason"), [(1.0, "header-lies"), (30.0, "truncated-audio")])
def test_a_matroska_that_lies_about_its_duration(seconds: float, reason: str) -> None:
    data = track(murmur(10, RATE_HZ), "matroska", "aac")
    place = data.find(b"\x44\x89\x88") + 3  # Duration, a double of milliseconds
    assert reason_of(data[:place] + struct.pack(">d", seconds * 1000) + data[place + 8 :]) == reason


def test_rate_and_channels_that_change_in_mid_stream() -> None:
    first = track(murmur(2, 44_100), "adts", "aac", 44_100)
    assert reason_of(first + track(murmur(2, RATE_HZ), "adts", "aac")) == "changing-format"
    assert len(decode(io.BytesIO(first + first), 16_000)) > 60_000, "the same format again is one recording"


def test_a_hole_in_the_clock_becomes_silence() -> None:
    out = decode(io.BytesIO(track(murmur(10, 16_000), "matroska", "flac", 16_000, jump_s=3)), 16_000)[:, 0]
    assert abs(len(out) - 13 * 16_000) < 100
    still = np.diff(out.astype(int)) == 0
    assert abs(np.count_nonzero(still) - 3 * 16_000) < 1000
    assert np.count_nonzero(still[4 * 16_000 : 9 * 16_000]) > 2.9 * 16_000


def test_a_clock_that_jumps_by_an_hour_lies() -> None:
    assert reason_of(track(murmur(10, 16_000), "matroska", "flac", 16_000, jump_s=3600)) == "header-lies"


@pytest.mark.parametrize(
    ("data", "demuxer"),
    [
        (encode(murmur(1), kind="MP3", subtype="MPEG_LAYER_III"), ""),
        (encode(murmur(1)), "wav"),
        (b"#EXTM3U\n/etc/passwd\n" * 20, ""),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", ""),
    ],
)
def test_only_the_bytes_decide_and_playlists_are_nothing(data: bytes, demuxer: str) -> None:
    assert sniff(io.BytesIO(data)) == (True, demuxer)
    if data[:1] in b"#f":
        assert reason_of(data) == "unreadable-audio"


def test_memory_of_a_track_does_not_grow_with_its_length(tmp_path: Path) -> None:
    peaks = []
    for seconds in (20, 200):
        path = tmp_path / f"{seconds}.mp4"
        path.write_bytes(track(murmur(seconds, 16_000), "mp4", "aac", 16_000))
        with path.open("rb") as file:
            peaks.append(most_memory(lambda file=file: deque(Decoder(file, 16_000).blocks(), maxlen=0)))
    assert peaks[1] < peaks[0] * 1.2 + 1e5


def test_a_read_error_in_a_track_is_raised() -> None:
    class Unplugged(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if 150_000 < self.tell() < 200_000:
                raise ConnectionError("the network is gone")
            return super().read(size)

    with pytest.raises(ConnectionError, match="gone"):
        decode(Unplugged(track(murmur(60, RATE_HZ), "mp4", "aac")), 16_000)


def test_codecs_that_libsndfile_lacks_in_containers_that_it_knows(tmp_path: Path) -> None:
    data = track(murmur(2, RATE_HZ), "caf", "alac")
    with pytest.raises(soundfile.LibsndfileError):
        soundfile.SoundFile(io.BytesIO(data[: len(data) // 2] + bytes(4)))
    assert abs(len(decode(io.BytesIO(data), 16_000)) - 32_000) < 3000
