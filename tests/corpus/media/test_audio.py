"""Decoding: every format to int16 mono at one rate, in bounded memory, and each kind of damage by its name."""

from __future__ import annotations

import io
import os
import re
import struct
import time
import tracemalloc
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import soundfile
from made_media import encode, most_memory, murmur

from megahour.core.errors import BadRecord
from megahour.corpus.media.audio import AudioLimits, Decoder, FlacEncoder, decode, encode_flac
from megahour.corpus.media.complaints import Complaints
from megahour.corpus.media.containers import check_boxes
from megahour.corpus.media.early_ends import check_early_end
from megahour.transcribe.decoded import LIMITS

FORMATS = [
    ("WAV", "PCM_16"),
    ("WAV", "PCM_24"),
    ("WAV", "FLOAT"),
    ("FLAC", "PCM_16"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
    ("AIFF", "PCM_16"),
    ("AU", "PCM_16"),
    ("W64", "PCM_16"),
    ("NIST", "PCM_16"),
]


def reason_of(data: bytes, **limits: float) -> str:
    with pytest.raises(BadRecord) as caught:
        decode(io.BytesIO(data), 16_000, limits=AudioLimits(**limits))  # type: ignore[arg-type]
    assert caught.value.detail, "a reason without a detail helps nobody"
    return caught.value.reason


@pytest.mark.parametrize(("kind", "subtype"), [("WAV", "PCM_16"), ("FLAC", "PCM_16")])
def test_lossless_files_come_back_sample_for_sample(kind: str, subtype: str) -> None:
    samples = murmur(5)
    samples[:2] = (-32768, 32767)
    assert np.array_equal(decode(io.BytesIO(encode(samples, kind=kind, subtype=subtype)), 16_000)[:, 0], samples)


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
def test_every_format_keeps_its_length_and_level(kind: str, subtype: str) -> None:
    samples = murmur(5)
    written = samples if subtype.startswith("PCM_16") or kind in ("OGG", "MP3") else samples / 32768
    out = decode(io.BytesIO(encode(written, kind=kind, subtype=subtype)), 16_000)[:, 0]
    assert abs(len(out) - len(samples)) <= 2 * 1152
    assert np.std(out.astype(float)) == pytest.approx(np.std(samples.astype(float)), rel=0.05)


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000])
def test_resampling_keeps_a_tone_and_its_length(rate_hz: int) -> None:
    t = np.arange(3 * rate_hz) / rate_hz
    out = decode(io.BytesIO(encode((0.5 * np.sin(2 * np.pi * 1000 * t)), rate_hz)), 16_000)[:, 0]
    assert abs(len(out) - 48_000) <= 1
    expected = 16384 * np.sin(2 * np.pi * 1000 * np.arange(len(out)) / 16_000)
    inside = slice(800, -800)
    assert np.abs(out[inside] - expected[inside]).max() < 20


def test_channels_are_mixed_or_split() -> None:
    left, right = murmur(1), murmur(1, seed=1)
    data = encode(np.stack([left, right], axis=1))
    mixed = decode(io.BytesIO(data), 16_000)[:, 0]
    split = decode(io.BytesIO(data), 16_000, channels="split")
    assert np.abs(mixed - (left.astype(int) + right) / 2).max() <= 0.5
    assert np.array_equal(split, np.stack([left, right], axis=1))


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
@pytest.mark.parametrize("share", [0.4, 0.75, 0.97])
def test_a_file_that_was_cut_is_truncated(kind: str, subtype: str, share: float) -> None:
    samples = murmur(20)
    data = encode(samples / 32768 if subtype == "FLOAT" else samples, kind=kind, subtype=subtype)
    assert reason_of(data[: int(len(data) * share)]) == "truncated-audio"


def test_files_without_samples() -> None:
    assert reason_of(b"") == "zero-length-audio"
    assert reason_of(encode(np.zeros(0, np.int16))) == "zero-length-audio"


def test_files_that_are_no_audio() -> None:
    assert reason_of(b"<html>not found</html>" * 100) == "unreadable-audio"
    assert reason_of(bytes(10_000)) == "unreadable-audio"


def test_a_wav_header_that_lies_about_its_length() -> None:
    data = bytearray(encode(murmur(5)))
    at = data.find(b"data") + 4
    for claimed in (1000, 2_000_000_000):
        data[at : at + 4] = struct.pack("<I", claimed)
        assert reason_of(bytes(data), min_seconds=0) == "header-lies"


@pytest.mark.parametrize("claimed", [0xFFFFFFFF, 0x7FFFF000, 0x7FFFEFF4, 0x7FFFFFFF, 0x80000000])
def test_a_wav_stream_of_unknown_length_is_what_is_there(claimed: int) -> None:
    """As FFmpeg, SoX (with 1 or 12 bytes a frame) and arecord write it if they cannot seek back."""
    data = bytearray(encode(murmur(5)))
    at = data.find(b"data") + 4
    data[at : at + 4] = struct.pack("<I", claimed)
    assert len(decode(io.BytesIO(bytes(data)), 16_000)) == 80_000


def interrupted(samples: np.ndarray, riff: int, claimed: int, **media: str) -> bytes:
    """A WAV whose header an interrupted recorder left with these lengths."""
    data = bytearray(encode(samples, **media))
    data[4:8] = struct.pack("<I", riff)
    at = data.find(b"data") + 4
    data[at : at + 4] = struct.pack("<I", claimed)
    return bytes(data)


@pytest.mark.parametrize("riff", [0, 36, 8])
@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_a_wav_of_an_interrupted_recorder_is_read_to_its_end(riff: int, subtype: str) -> None:
    samples = murmur(5)
    given = samples / 32768 if subtype == "FLOAT" else samples
    decoder = Decoder(io.BytesIO(interrupted(given, riff, 0, subtype=subtype)), 16_000)
    assert np.array_equal(np.concatenate(list(decoder.blocks()))[:, 0], samples)
    (remark,) = decoder.stats.remarks
    assert "the header declares no samples, but" in remark


@pytest.mark.parametrize("first", [b"", b"data\0\0\0\0"])
def test_a_wav_of_empty_chunks_is_given_up(first: bytes) -> None:
    """At 0.07 CPU-seconds a megabyte, the walk through 8 GiB of them would take ten minutes."""
    body = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16) + first + b"JUNK\0\0\0\0" * 100_001
    sound = b"data" + struct.pack("<I", 32_000) + bytes(32_000)
    assert reason_of(b"RIFF" + struct.pack("<I", len(body + sound)) + body + sound) == "header-lies"


def test_chunks_behind_no_samples_are_no_samples() -> None:
    info = b"LIST" + struct.pack("<I", 4) + b"INFO"
    assert reason_of(encode(np.zeros(0, np.int16)) + info) == "zero-length-audio"


@pytest.mark.parametrize("riff", [36, 10**7])
def test_a_wav_shorter_than_its_header_says_is_read_if_asked(riff: int) -> None:
    samples = murmur(5)
    data = interrupted(samples, riff, 10**7)
    decoder = Decoder(io.BytesIO(data), 16_000, limits=AudioLimits(cut_short=True))
    assert np.array_equal(np.concatenate(list(decoder.blocks()))[:, 0], samples)
    assert decoder.stats.remarks == ["the file ends early, after 160000 of 10000000 bytes of samples"]
    assert reason_of(data) in ("truncated-audio", "header-lies")


UNPACKED = ["CAF", "AIFF", "AU", "W64", "RF64", "NIST"]


@pytest.mark.parametrize("kind", UNPACKED)
@pytest.mark.parametrize("share", [0.3, 0.99])
def test_other_files_of_plain_samples_that_were_cut_are_read_if_asked(kind: str, share: float) -> None:
    """Of a CAF file, FFmpeg took what was there for the whole."""
    samples = murmur(5)
    data = encode(samples, kind=kind)
    header = len(data) - 2 * len(samples)
    left = int(share * len(data)) // 2 * 2
    assert reason_of(data[:left]) == "truncated-audio"
    decoder = Decoder(io.BytesIO(data[:left]), 16_000, limits=AudioLimits(cut_short=True))
    assert np.array_equal(np.concatenate(list(decoder.blocks()))[:, 0], samples[: (left - header) // 2])
    (remark,) = decoder.stats.remarks
    assert remark.startswith("the file ends early, after ")
    assert "bytes of samples" in remark or kind == "NIST"
    assert reason_of(data[:header], cut_short=True) in ("truncated-audio", "unreadable-audio")


def test_an_aiff_cut_behind_its_samples_loses_none() -> None:
    samples = murmur(5)
    whole = encode(samples, kind="AIFF")
    data = whole[:4] + struct.pack(">I", len(whole) + 100) + whole[8:] + b"ID3 " + struct.pack(">I", 100) + bytes(20)
    assert reason_of(data) == "truncated-audio"
    decoder = Decoder(io.BytesIO(data), 16_000, limits=AudioLimits(cut_short=True))
    assert np.array_equal(np.concatenate(list(decoder.blocks()))[:, 0], samples)
    assert decoder.stats.remarks[0].endswith(f"after {len(data)} of {len(whole) + 108} bytes, behind its samples")


@pytest.mark.parametrize(("kind", "at", "unknown"), [("CAF", 4084, b"\xff" * 8), ("AU", 8, b"\xff" * 4)])
def test_a_stream_of_unknown_length_is_whole(kind: str, at: int, unknown: bytes) -> None:
    """Recorders that cannot seek back write -1 for the number of bytes."""
    samples = murmur(5)
    data = encode(samples, kind=kind)
    stream = data[:at] + unknown + data[at + len(unknown) :]
    assert np.array_equal(decode(io.BytesIO(stream), 16_000)[:, 0], samples)


def test_a_wav_longer_than_its_header_says_is_read_if_asked() -> None:
    """Recorders that mend the header every few seconds leave the last ones behind its length."""
    samples = murmur(5)
    data = interrupted(samples, 36 + 100_000, 100_000)
    decoder = Decoder(io.BytesIO(data), 16_000, limits=AudioLimits(cut_short=True))
    assert np.array_equal(np.concatenate(list(decoder.blocks()))[:, 0], samples)
    (remark,) = decoder.stats.remarks
    assert remark == "the header declares 100000 bytes of samples, but 160000 follow: the recorder was interrupted"
    assert reason_of(data) == "header-lies"
    tagged = encode(samples) + b"LIST" + struct.pack("<I", 6000) + bytes(6000) + bytes(100)
    decoder = Decoder(io.BytesIO(tagged), 16_000, limits=AudioLimits(cut_short=True))
    assert np.array_equal(np.concatenate(list(decoder.blocks()))[:, 0], samples), "chunks are no samples"


@pytest.mark.parametrize("kind", [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")])
@pytest.mark.parametrize("share", [0.4, 0.9])
def test_a_compressed_file_that_was_cut_is_read_as_far_as_it_goes_if_asked(kind: tuple[str, str], share: float) -> None:
    data = encode(murmur(10), kind=kind[0], subtype=kind[1])
    whole = decode(io.BytesIO(data), 16_000)[:, 0].astype(int)
    decoder = Decoder(io.BytesIO(data[: int(share * len(data))]), 16_000, limits=AudioLimits(cut_short=True))
    read = np.concatenate(list(decoder.blocks()))[:, 0]
    assert (share - 0.15) * len(whole) < len(read) < len(whole), "as far as it goes, not to the last whole block"
    end = len(read) - 4096  # an MP3's last frame lacks bits
    assert np.abs(read[:end] - whole[:end]).max() <= 1
    (remark,) = decoder.stats.remarks
    assert remark.startswith("the file ends early")


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3"])
def test_a_file_of_which_no_sample_is_left_is_truncated_also_if_asked(kind: str) -> None:
    data = encode(murmur(5), kind=kind, subtype=dict(FORMATS)[kind])
    assert reason_of(data[:150], cut_short=True) in ("truncated-audio", "unreadable-audio")


def test_an_ogg_cut_in_its_only_page_of_samples_is_truncated() -> None:
    data = encode(murmur(1), kind="OGG", subtype="VORBIS")
    assert reason_of(data[: len(data) * 2 // 3], cut_short=True) == "truncated-audio"


def test_damage_within_a_flac_is_no_early_end() -> None:
    data = bytearray(encode(murmur(20), kind="FLAC"))
    data[len(data) // 2 : len(data) // 2 + 4000] = bytes(4000)
    assert reason_of(bytes(data), cut_short=True) == "corrupt-audio"


@pytest.mark.parametrize("before", [bytes(4), bytes(5000), b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + bytes(3000)])
def test_zeros_before_the_first_frame_of_an_mp3(before: bytes) -> None:
    data = encode(murmur(5), kind="MP3", subtype="MPEG_LAYER_III")
    assert np.array_equal(decode(io.BytesIO(before + data), 16_000), decode(io.BytesIO(data), 16_000))


def turns(first: float, second: float, crosstalk: float) -> np.ndarray:
    """A voice on one channel for `first` seconds, then another on the other; `crosstalk` is heard across."""
    one, other = murmur(first), murmur(second, seed=1)
    said = np.concatenate([np.stack([one, one * crosstalk]), np.stack([other * crosstalk, other])], axis=1)
    return np.rint(said.T).astype(np.int16)


def test_two_voices_on_two_channels_get_a_remark() -> None:
    decoder = Decoder(io.BytesIO(encode(turns(4, 2, 0.03))), 16_000)
    list(decoder.blocks())
    (remark,) = decoder.stats.remarks
    assert re.search(
        r"only the first is heard for (3.9|4.0) s, only the second for (1.9|2.0) s\) and were mixed", remark
    )


@pytest.mark.parametrize(("first", "second", "crosstalk"), [(4, 2, 0.3), (6, 0.3, 0.03), (3, 3, 1)])
def test_one_room_on_two_channels_gets_none(first: float, second: float, crosstalk: float) -> None:
    decoder = Decoder(io.BytesIO(encode(turns(first, second, crosstalk))), 16_000)
    list(decoder.blocks())
    assert decoder.stats.remarks == []


@pytest.mark.parametrize("channels", [[1, -1], [0, 0, 1, -0.9], [0.95, -1]])
def test_channels_in_opposite_phase_are_not_mixed_to_silence(channels: list[float]) -> None:
    voice = murmur(5)
    stereo = np.stack([np.rint(voice * gain).astype(np.int16) for gain in channels], axis=1)
    decoder = Decoder(io.BytesIO(encode(stereo)), 16_000)
    mixed = np.concatenate(list(decoder.blocks()))[:, 0]
    loud = next(i for i, gain in enumerate(channels) if gain)
    assert np.array_equal(mixed, stereo[:, loud])
    assert decoder.stats.remarks == [
        "in 5.0 of 5.0 s the channels cancel each other (opposite phase): one of them was taken there"
    ]


@pytest.mark.parametrize("channels", [[1, -0.5], [1, 0], [0.001, 0]])
def test_channels_of_which_something_is_left_are_mixed(channels: list[float]) -> None:
    stereo = np.stack([np.rint(murmur(1) * gain).astype(np.int16) for gain in channels], axis=1)
    decoder = Decoder(io.BytesIO(encode(stereo)), 16_000, limits=AudioLimits(silent_peak=0))
    mixed = np.concatenate(list(decoder.blocks()))[:, 0]
    assert np.abs(mixed - stereo.sum(axis=1) / 2).max() <= 0.5
    assert decoder.stats.remarks == []


@pytest.mark.parametrize(
    ("claimed", "reason"), [(16_000, "header-lies"), (0, "unknown-length"), (10**7, "truncated-audio")]
)
def test_a_flac_header_that_lies_about_its_length(claimed: int, reason: str) -> None:
    data = bytearray(encode(murmur(20), kind="FLAC"))
    fields = int.from_bytes(data[18:26], "big") >> 36 << 36  # STREAMINFO's last 36 bits of eight bytes: total samples
    data[18:26] = (fields | claimed).to_bytes(8, "big")
    assert reason_of(bytes(data)) == reason


def test_damage_in_the_middle_of_a_flac() -> None:
    data = bytearray(encode(murmur(30), kind="FLAC"))
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(range(64))
    assert reason_of(bytes(data)) == "corrupt-audio"


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_floats_that_are_no_numbers(poison: float) -> None:
    samples = (murmur(5) / 32768).astype(np.float32)
    samples[70_000] = poison
    assert reason_of(encode(samples, subtype="FLOAT")) == "nan-audio"


def test_silence_and_near_silence() -> None:
    assert reason_of(encode(np.zeros(16_000, np.int16))) == "silent-audio"
    assert reason_of(encode((murmur(1) // 1000).astype(np.int16))) == "silent-audio"


def test_clipping_is_measured_before_the_mix() -> None:
    loud = np.clip(murmur(2).astype(np.int32) * 20, -32768, 32767).astype(np.int16)
    assert reason_of(encode(loud)) == "clipped-audio"
    assert reason_of(encode(np.stack([loud, murmur(2)], axis=1)), max_clipped=0.2) == "clipped-audio"
    decoder = Decoder(io.BytesIO(encode(loud)), 16_000, limits=AudioLimits(max_clipped=1))
    list(decoder.blocks())
    assert decoder.stats.clipped_share == pytest.approx(np.mean((loud >= 32767) | (loud == -32768)), abs=1e-3)


def test_limits_of_rate_channels_and_length() -> None:
    assert reason_of(encode(murmur(1), 1_000)) == "sample-rate"
    assert reason_of(encode(np.zeros((100, 20), np.int16))) == "too-many-channels"
    assert reason_of(encode(murmur(2)), max_seconds=1) == "too-long"
    assert reason_of(encode(murmur(0.05))) == "too-short"
    assert reason_of(encode(murmur(1)), max_bytes=1000) == "too-large"


@pytest.mark.parametrize(("options", "told"), [(True, "the limit min_seconds is 0.1"), (False, "the limit is 0.1")])
def test_a_limit_is_named_where_it_can_be_set(options: bool, told: str) -> None:
    """`transcribe` has no --min-seconds."""
    with pytest.raises(BadRecord, match=f"0.050 s, {told}$"):
        decode(io.BytesIO(encode(murmur(0.05))), 16_000, limits=AudioLimits(options=options))
    assert AudioLimits().options
    assert not LIMITS.options


def sparse_wav(path: Path, seconds: int, rate_hz: int, channels: int) -> Path:
    """A correct header with silence in a sparse file."""
    size = seconds * rate_hz * channels * 2
    form = struct.pack("<HHIIHH", 1, channels, rate_hz, rate_hz * channels * 2, channels * 2, 16)
    header = b"RIFF" + struct.pack("<I", size + 36) + b"WAVEfmt " + struct.pack("<I", 16) + form
    with path.open("wb") as file:
        file.write(header + b"data" + struct.pack("<I", size))
        file.truncate(44 + size)
    return path


@pytest.mark.parametrize(("seconds", "rate_hz", "channels", "reason"), [
    (65_000, 16_000, 1, "too-long"),
    (11_000, 48_000, 2, "silent-audio"),
])  # fmt: skip
def test_two_sparse_gigabytes_cost_little_time_and_memory(
    tmp_path: Path, seconds: int, rate_hz: int, channels: int, reason: str
) -> None:
    path = sparse_wav(tmp_path / "big.wav", seconds, rate_hz, channels)
    assert path.stat().st_size > 2e9
    tracemalloc.start()
    started = time.process_time()
    with path.open("rb") as file, pytest.raises(BadRecord) as caught:
        for _ in Decoder(file, 16_000).blocks():
            pass
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.reason == reason
    assert time.process_time() - started < 15
    assert peak_bytes < 16e6


def test_memory_does_not_grow_with_length() -> None:
    peaks = []
    for seconds in (30, 300):
        data = encode(murmur(seconds), kind="FLAC")
        peaks.append(most_memory(lambda data=data: deque(Decoder(io.BytesIO(data), 16_000).blocks(), maxlen=0)))
    assert peaks[1] < peaks[0] * 1.2 + 1e5


def test_a_read_error_is_raised_and_not_taken_for_the_end_of_the_file() -> None:
    class Unplugged(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 100_000:
                raise ConnectionError("the network is gone")
            return super().read(size)

    with pytest.raises(ConnectionError, match="gone"):
        decode(Unplugged(encode(murmur(20), kind="FLAC")), 16_000)


def test_flac_bytes_depend_on_the_samples_only() -> None:
    samples = murmur(3)
    whole = encode_flac(samples, 16_000)
    target = io.BytesIO()
    with FlacEncoder(target, 16_000) as flac:
        for start in range(0, len(samples), 7_000):
            flac.write(samples[start : start + 7_000])
    assert whole == target.getvalue() == encode_flac(samples, 16_000)
    assert np.array_equal(decode(io.BytesIO(whole), 16_000)[:, 0], samples)


def damaged_mp3(seed: int) -> bytes:
    data = bytearray(encode(murmur(8), kind="MP3", subtype="MPEG_LAYER_III"))
    rng = np.random.default_rng(seed)
    for at in rng.integers(400, len(data) - 200, 6):
        data[at : at + 60] = rng.bytes(60)
    return bytes(data)


def without_frame_count(data: bytes) -> bytes:
    """An MP3 as stream players save it, without the first frame, which declares the number of frames."""
    assert b"Xing" in data[:40] or b"Info" in data[:40]
    return data[data.index(data[:2], 4) :]


@pytest.mark.parametrize("tag", [b"", b"ID3\x04\0\0\0\0\1\0" + bytes(128)])
@pytest.mark.parametrize("quiet_first", [True, False])
def test_an_mp3_that_does_not_say_its_length_is_read_to_its_end(quiet_first: bool, tag: bytes) -> None:
    """Its bit rate varies, so a length estimated from the first frames is far too short or too long."""
    loud = murmur(8)
    quiet = murmur(8, seed=1) // 3000
    samples = np.concatenate((quiet, loud) if quiet_first else (loud, quiet))
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="MP3", subtype="MPEG_LAYER_III", bitrate_mode="VARIABLE")
    whole, bare = tag + file.getvalue(), tag + without_frame_count(file.getvalue())
    assert len(decode(io.BytesIO(whole), 16_000)) == len(samples)
    out = decode(io.BytesIO(bare), 16_000)[:, 0]
    assert len(samples) <= len(out) <= len(samples) + 4 * 1152
    halves = [np.std(part.astype(float)) for part in np.array_split(out, 2)]
    assert (halves[0] < halves[1]) == quiet_first
    assert Decoder(io.BytesIO(whole), 16_000).declared_s == 16
    assert np.isnan(Decoder(io.BytesIO(bare), 16_000).declared_s)


def test_what_libmpg123_writes_is_kept_for_its_file(capfd: pytest.CaptureFixture[str]) -> None:
    decoder = Decoder(io.BytesIO(damaged_mp3(0)), 16_000)
    assert sum(map(len, decoder.blocks())) > 7 * 16_000
    os.write(2, b"of another\n")
    assert re.fullmatch(r"libmpg123: \[.*\] error: .* \(and \d+ more\)", str(decoder.complaints))
    with pytest.raises(BadRecord, match=r"of 128000 samples decoded; libmpg123: "):
        decode(io.BytesIO(damaged_mp3(12)), 16_000)
    assert capfd.readouterr().err == "of another\n"


def test_what_others_write_meanwhile_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    complaints = Complaints()
    with complaints.caught():
        os.write(2, b"Note: Trying to resync...\nfrom another thread\n")
    assert (complaints.texts, complaints.count) == (["Note: Trying to resync..."], 1)
    assert capfd.readouterr().err == "from another thread\n"


@pytest.mark.parametrize(
    "data",
    [
        b"caff\0\1\0\0" + b"free" + struct.pack(">q", 2**62),
        b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0".ljust(40, b"\0")
        + b"junk".ljust(16, b"\0")
        + struct.pack("<q", 2**63 - 1),
    ],
    ids=["caf", "w64"],
)
def test_a_chunk_longer_than_any_file_is_the_last(tmp_path: Path, data: bytes) -> None:
    """No file has a position so far on: to go there is an OSError."""
    path = tmp_path / "file"
    path.write_bytes(data.ljust(200, b"\0"))
    with path.open("rb") as file:
        assert check_early_end(file, 200) is None
        assert file.tell() == 0


def test_boxes_that_would_end_beyond_any_file_are_not_followed(tmp_path: Path) -> None:
    def box(name: bytes, data: bytes, length: int = 0) -> bytes:
        return struct.pack(">I4sQ", 1, name, length or 16 + len(data)) + data

    lies = box(b"trak", box(b"mdia", b"", 2**61) + bytes(40), 2**62)
    path = tmp_path / "file"
    path.write_bytes(box(b"ftyp", b"M4A ") + box(b"moov", lies) + box(b"mdat", bytes(64)))
    with path.open("rb") as file:
        check_boxes(file, path.stat().st_size)
    entry = bytes(12) + b"enca"  # behind version, flags, number of entries and size
    found = box(b"trak", box(b"mdia", box(b"minf", box(b"stbl", box(b"stsd", entry)))), 2**62)
    path.write_bytes(box(b"ftyp", b"M4A ") + box(b"moov", found) + box(b"mdat", bytes(64)))
    with path.open("rb") as file, pytest.raises(BadRecord, match="protected"):
        check_boxes(file, path.stat().st_size)
