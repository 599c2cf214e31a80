"""Bad input (issue 2, item 8) through the real stage runner: each record is quarantined by name, the good ones pass."""

from __future__ import annotations

import io
import json
import re
import struct
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_media import encode, murmur, put
from made_tracks import film, track

from megahour.core.errors import TooManyBad
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest import shard
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.side_information import SideInfo
from megahour.corpus.ingest.sources import Item
from megahour.corpus.ingest.stage import Ingest
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage

pytestmark = pytest.mark.spawned  # what a forked worker has imported counts as its memory


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    # A worker that grew beyond this would be killed: bad input must not cost memory.
    with LocalEngine(workers=2, memory_bytes=700 << 20) as pool:
        yield pool


def ingest(tmp_path: Path, engine: LocalEngine, max_bad: float = 0.99, **params: Any) -> Artifact:
    out = Artifact(tmp_path / "out")
    p = IngestParams(source=str(tmp_path / "in"), max_bad=max_bad, **{"licence": "CC0", **params})
    run_stage(Ingest(), p, {}, out, engine, work=tmp_path / "work")
    assert verify(out) == []
    return out


def add(
    root: Path, name: str, audio: bytes | None = None, text: str | bytes = "Hello there.", suffix: str = ".txt"
) -> None:
    """A recording with its transcript; good audio unless given."""
    seed = sum(name.encode())
    put(root, f"{name}.wav", encode(murmur(1, seed=seed)) if audio is None else audio)
    put(root, f"{name}{suffix}", text)


def quarantined(out: Artifact) -> dict[str, str]:
    return {bad["id"]: bad["reason"] for bad in out.bad_records()}


def names(out: Artifact) -> list[str]:
    return [row for receipt in out.receipts() for row in out.read_table(receipt.shard)["name"].to_pylist()]


def lying_wav(claimed_bytes: int) -> bytes:
    data = bytearray(encode(murmur(2)))
    at = data.find(b"data") + 4
    data[at : at + 4] = struct.pack("<I", claimed_bytes)
    return bytes(data)


def poisoned() -> bytes:
    samples = (murmur(1) / 32768).astype(np.float32)
    samples[100] = np.nan
    return encode(samples, subtype="FLOAT")


def reversed_srt() -> str:
    return "\n".join(f"{i}\n00:00:{30 - i:02d},000 --> 00:00:{31 - i:02d},000\nline {i}\n" for i in range(1, 20))


AUDIO: dict[str, tuple[Callable[[], bytes], str]] = {
    "zero_length": (lambda: b"", "zero-length-audio"),
    "no_samples": (lambda: encode(np.zeros(0, np.int16)), "zero-length-audio"),
    "truncated_wav": (lambda: encode(murmur(2))[:30_000], "truncated-audio"),
    "truncated_flac": (lambda: encode(murmur(5), kind="FLAC")[:60_000], "truncated-audio"),
    "truncated_ogg": (lambda: encode(murmur(5), kind="OGG", subtype="VORBIS")[:15_000], "truncated-audio"),
    "header_too_long": (lambda: lying_wav(2_000_000_000), "header-lies"),
    "header_too_short": (lambda: lying_wav(16_000), "header-lies"),
    "nan": (poisoned, "nan-audio"),
    "silent": (lambda: encode(np.zeros(32_000, np.int16)), "silent-audio"),
    "clipped": (lambda: encode(np.clip(murmur(1) * 30.0, -32768, 32767).astype(np.int16)), "clipped-audio"),
    "wrong_rate": (lambda: encode(murmur(1), 500), "sample-rate"),
    "wrong_channels": (lambda: encode(np.ones((9000, 24), np.int16)), "too-many-channels"),
    "damaged_film": (lambda: track(murmur(5, 48_000), "mp4", "aac")[:20_000], "truncated-audio"),
    "film_without_sound": (lambda: film(None), "no-audio-stream"),
    "two_rates": (lambda: track(murmur(1), "adts", "aac", 16_000) + track(murmur(1), "adts", "aac"), "changing-format"),
    "web_page": (lambda: b"<html>404 not found</html>" * 40, "unreadable-audio"),
}
TEXTS: dict[str, tuple[str | bytes, str, str]] = {
    "binary_text": (bytes(range(256)) * 3, ".txt", "unreadable-encoding"),
    "foreign_code_page": ("Привет, как дела?".encode("cp1251"), ".txt", "unreadable-encoding"),
    "empty": ("", ".txt", "empty-transcript"),
    "markup_only": ("1\n00:00:00,000 --> 00:00:01,000\n<i>[music]</i> ♪\n", ".srt", "empty-transcript"),
    "notes_only": ("WEBVTT\n\nNOTE to be written\n", ".vtt", "empty-transcript"),
    "out_of_order": (reversed_srt(), ".srt", "cues-out-of-order"),
    "of_another": ("1\n00:10:00,000 --> 00:10:01,000\nmuch later\n", ".srt", "transcript-too-long"),
    "half_past_the_end": (
        "1\n00:00:00,100 --> 00:00:00,900\nhere\n\n2\n00:00:05,000 --> 00:00:06,000\nthere\n\n"
        "3\n00:00:07,000 --> 00:00:08,000\nand there\n",
        ".srt",
        "transcript-too-long",
    ),
    "empty_cue_file": ("\n\n", ".srt", "empty-transcript"),
    "one_endless_word": ("x" * 2_000_000, ".txt", "endless-word"),
    "no_subtitle": ("just some prose", ".srt", "unreadable-transcript"),
}


def test_each_bad_record_goes_to_quarantine_with_its_reason(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    for name, (audio, _) in AUDIO.items():
        add(root, name, audio())
    for name, (text, suffix, _) in TEXTS.items():
        add(root, name, text=text, suffix=suffix)
    add(root, "bad_side_file")
    put(root, "bad_side_file.json", "{not json")
    put(root, "video.mp4", b"whatever")
    put(root, "video.txt", "Hello.")
    add(root, "good_1")
    add(root, "good_2")
    out = ingest(tmp_path, engine)
    expected = {name: reason for name, (_, reason) in AUDIO.items()}
    expected |= {name: reason for name, (_, _, reason) in TEXTS.items()}
    expected |= {"bad_side_file": "unreadable-side-information", "video": "unreadable-audio"}
    assert quarantined(out) == expected
    assert names(out) == ["good_1", "good_2"]
    counts = out.manifest.counts
    assert (counts.came_in, counts.kept, counts.bad) == (len(expected) + 2, 2, len(expected))
    assert all(bad["detail"] and bad["source"] for bad in out.bad_records())


def test_audio_that_ends_early_or_cancels_itself_is_kept_with_a_remark(tmp_path: Path, engine: LocalEngine) -> None:
    add(tmp_path / "in", "cut", encode(murmur(1))[:20_000])
    add(tmp_path / "in", "interrupted", lying_wav(0))
    add(tmp_path / "in", "opposite", encode(np.stack([murmur(3), -murmur(3)], axis=1)))
    out = ingest(tmp_path, engine, on_cut_short="keep")
    assert sorted(names(out)) == ["cut", "interrupted", "opposite"]
    assert out.manifest.summary["remark"] == (
        "files that end early or declare no samples, read to their end: 2; "
        "files whose channels cancel each other, of which one was taken: 1"
    )
    examples = out.receipts()[0].stats["examples"]["odd-audio"]
    assert {each["name"] for each in examples} == set(names(out))


def test_copies_are_found_by_name_and_by_samples_and_are_not_bad(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    add(root, "a", encode(murmur(1)))
    put(root, "a.flac", encode(murmur(1, seed=5), kind="FLAC"))
    add(root, "copy_of_a_as_flac")
    put(root, "copy_of_a_as_flac.wav", b"").unlink()
    put(root, "copy_of_a_as_flac.flac", encode(murmur(1, seed=5), kind="FLAC"))
    add(root, "b")
    out = ingest(tmp_path, engine)
    assert sorted(names(out)) == ["a", "b"]
    assert list(out.bad_records()) == []
    assert out.manifest.counts.dropped == {"same-name": 1, "same-audio": 1}


def test_of_one_name_the_lossless_file_stays(tmp_path: Path, engine: LocalEngine) -> None:
    """Where none is bad; by name, talk.mp3 would come before talk.wav."""
    root = tmp_path / "in"
    add(root, "a")
    put(root, "a.mp3", encode(murmur(1, seed=7)))
    out = ingest(tmp_path, engine)
    assert [row["source"] for row in out.read_table(0).to_pylist()] == ["a.wav"]
    assert out.manifest.counts.dropped == {"same-name": 1}


def test_a_whole_recording_takes_the_name_of_a_bad_one(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    add(root, "a")
    for name, data in (("a.flac", b"fLaC"), ("a.aiff", b""), ("a.mp3", encode(murmur(1, seed=7)))):
        put(root, name, data)
    out = ingest(tmp_path, engine)
    reasons = [(bad["source"], bad["reason"]) for bad in out.bad_records()]
    assert reasons == [("a.aiff", "zero-length-audio"), ("a.flac", "unreadable-audio")]
    assert out.manifest.counts.dropped["same-name"] == 1  # a.mp3, after a.wav
    assert names(out) == ["a"]


def test_of_equal_sound_the_better_transcript_stays(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    timed = "1\n00:00:00,100 --> 00:00:00,900\nHello there.\n"
    for name, text, suffix in (("a", "Hello.", ".txt"), ("b", timed, ".srt"), ("c", "Hello there, all.", ".txt")):
        add(root, name, encode(murmur(1)), text, suffix)
    out = ingest(tmp_path, engine)
    assert names(out) == ["a"]
    (cue,) = out.read_table(0, ".cues.parquet").to_pylist()
    assert (cue["raw"], cue["start_samples"], cue["key"]) == ("Hello there.", 1600, out.read_table(0)["key"][0].as_py())
    assert (out.summary["cues"], out.summary["words"], out.manifest.counts.bad) == (1, 2, 0)
    b, c = left_out(out)
    assert (b["name"], b["reason"], b["seconds"], b["bad"]) == ("b", "same-audio", 1.0, False)
    assert (
        b["detail"]
        == "same samples as a, which takes over this recording's transcript because it has times or more words"
    )
    assert c["detail"] == "same samples as a"


def left_out(out: Artifact) -> list[dict[str, Any]]:
    return [row for r in out.receipts() for row in out.read_table(r.shard, ".left_out.parquet").to_pylist()]


def test_all_that_is_left_out_is_listed_with_its_length_where_its_header_says(
    tmp_path: Path, engine: LocalEngine
) -> None:
    for number in range(8):
        add(tmp_path / "in", f"{number}", encode(murmur(1, seed=number)))
        put(tmp_path / "in", f"{number}.json", json.dumps({"licence": "CC-BY-NC-4.0", "language": "en"}))
    put(tmp_path / "in", "7.json", json.dumps({"text": "Hello.", "segments": [], "language": "en"}))
    add(tmp_path / "in", "cut", encode(murmur(2))[:30_000])
    add(tmp_path / "in", "no", b"no sound")
    add(tmp_path / "in", "stereo", encode(np.stack([murmur(1), np.zeros(16_000, np.int16)], axis=1)))
    for name in ("cut", "no", "stereo"):
        put(tmp_path / "in", f"{name}.json", '{"licence": "CC0"}')
    out = ingest(tmp_path, engine, channels="split", licence="")
    rows = {row["name"]: row for row in left_out(out)}
    assert len(rows) == sum(out.manifest.counts.dropped.values()) == 11
    assert [rows[f"{n}"]["licence"] for n in range(8)] == ["CC-BY-NC-4.0"] * 7 + ["NOASSERTION"]
    assert {rows[name]["seconds"] for name in map(str, range(8))} == {1.0}
    whisper = rows["7"]["detail"]
    assert whisper.endswith(
        "; 7.json has text, segments, language, and none of licence, license, licenseurl, license_url"
    )


def test_names_that_lie_about_the_format_do_no_harm(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    for name, data in {
        "mp3.wav": encode(murmur(2), kind="MP3", subtype="MPEG_LAYER_III"),
        "wav.mp3": encode(murmur(2, seed=1)),
        "flac.m4a": encode(murmur(2, seed=2), kind="FLAC"),
        "aac.flac": track(murmur(2, 48_000, seed=3), "ipod", "aac"),
    }.items():
        put(root, name, data)
        put(root, f"{name.partition('.')[0]}.txt", "Hello.")
    out = ingest(tmp_path, engine)
    assert sorted(names(out)) == ["aac", "flac", "mp3", "wav"]
    assert sorted(out.receipts()[0].stats["formats"]) == ["FLAC PCM_16", "MOV aac", "MP3 MPEG_LAYER_III", "WAV PCM_16"]


def test_a_transcript_in_another_script_is_dropped(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    add(root, "russian", text="Привет, как дела?")
    add(root, "english")
    out = ingest(tmp_path, engine)
    assert names(out) == ["english"]
    assert out.manifest.counts.dropped == {"script-mismatch": 1}


def test_a_few_cues_past_the_end_lose_their_times_and_are_counted(tmp_path: Path, engine: LocalEngine) -> None:
    text = "".join(f"{i}\n00:00:0{i},000 --> 00:00:0{i},500\nline {i}\n\n" for i in range(4))
    add(tmp_path / "in", "talk", encode(murmur(3)), text, ".srt")
    out = ingest(tmp_path, engine)
    starts = out.read_table(0, ".cues.parquet")["start_samples"].to_pylist()
    assert starts == [0, 16_000, 32_000, -1]
    assert out.receipts()[0].stats["cues_past_end"] == 1


def sparse_wav(root: Path, name: str, samples: int, *, with_header: bool = True) -> None:
    """Digital silence at 16 kHz in a sparse file."""
    form = struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16)
    header = b"RIFF" + struct.pack("<I", 2 * samples + 36) + b"WAVEfmt " + struct.pack("<I", 16) + form
    add(root, name, header + b"data" + struct.pack("<I", 2 * samples) if with_header else b"")
    with (root / f"{name}.wav").open("r+b") as file:
        file.truncate(44 + 2 * samples)


def test_huge_files_are_refused_in_bounded_memory(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    sparse_wav(root, "two_gigabytes", (1 << 30) - 50)
    sparse_wav(root, "headless", 1 << 30, with_header=False)
    sparse_wav(root, "ten_hours_of_silence", 10 * 3600 * 16_000)
    with put(root, "text.txt", "x").open("r+b") as file:
        file.truncate(2 << 30)
    put(root, "text.wav", encode(murmur(1)))
    add(root, "good")
    out = ingest(tmp_path, engine)
    assert quarantined(out) == {
        "two_gigabytes": "too-long",
        "headless": "unreadable-audio",
        "ten_hours_of_silence": "silent-audio",
        "text": "side-file-too-large",
    }
    assert names(out) == ["good"]


def test_a_hostile_tar_writes_nothing_and_gives_its_good_records(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    root.mkdir()
    audio = encode(murmur(1))
    with tarfile.open(root / "hostile.tar", "w") as tar:

        def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(data), kind, link
            tar.addfile(info, io.BytesIO(data))

        member(f"{tmp_path}/absolute.wav", audio)
        member("../../parent.wav", audio)
        member("link.wav", kind=tarfile.SYMTYPE, link="/etc/passwd")
        member("hard.wav", kind=tarfile.LNKTYPE, link="good.wav")
        member("device.wav", kind=tarfile.CHRTYPE)
        member("good.wav", audio)
        member("good.txt", b"Hello.")
        member("good.wav", encode(murmur(1, seed=3)))
    put(root, "cut.tar.gz", b"\x1f\x8b\x08\x00 this is no gzip")
    put(root, "cut.zip", b"PK\3\4 this has no directory")
    out = ingest(tmp_path, engine)
    tar = "hostile.tar!"
    assert sorted(quarantined(out).items()) == [
        ("cut.tar.gz", "tar-corrupt"),
        ("cut.zip", "zip-corrupt"),
        (f"{tar}../../parent.wav", "tar-parent-path"),
        (f"{tar}{tmp_path}/absolute.wav", "tar-absolute-path"),
        (f"{tar}device.wav", "tar-device"),
        (f"{tar}good.wav", "duplicate-id"),
        (f"{tar}hard.wav", "tar-link"),
        (f"{tar}link.wav", "tar-link"),
    ]
    assert names(out) == ["good"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "work"]
    assert list(tmp_path.parent.glob("*.wav")) == []


def test_a_fault_of_the_program_and_a_row_that_no_table_holds_cost_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = shard.side_info

    def odd(item: Item, p: IngestParams) -> SideInfo:
        if item.name == "fault":
            raise ZeroDivisionError("of a reader")
        return replace(inner(item, p), created_s=1 << 70 if item.name == "row" else 0)

    monkeypatch.setattr(shard, "side_info", odd)
    for name in ("fault", "good", "row"):
        add(tmp_path / "in", name)
    out, p = Artifact(tmp_path / "out"), IngestParams(source=str(tmp_path / "in"), licence="CC0")
    (task,) = Ingest().plan(p, {})
    with ShardWriter(out, 0, "made") as writer:
        Ingest().run(p, {}, task, writer, Context(tmp_path / "work"))
        receipt = writer.commit()
    assert out.read_table(0)["name"].to_pylist() == ["good"]
    with tarfile.open(out.shard_path(0, ".tar")) as tar:
        assert len(tar.getnames()) == 1
    assert receipt.counts.dropped == {"unexpected-error": 1, "unwritable-record": 1}
    fault, row = map(json.loads, Path(out.path("quarantine/00000.jsonl")).read_text().splitlines())
    assert re.fullmatch(r"ZeroDivisionError: of a reader \(test_bad_input.py:\d+\); please report it", fault["detail"])
    assert row["detail"].startswith("created_s: ")


def test_the_run_fails_loudly_above_the_allowed_share(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    for i in range(8):
        add(root, f"good_{i}")
    for name in ("bad_1", "bad_2"):
        add(root, name, b"")
    with pytest.raises(TooManyBad, match=r"2 of 10 records are bad \(20.0%, limit 10.0%\): zero-length-audio 2"):
        ingest(tmp_path, engine, max_bad=0.1)
    assert not Artifact(tmp_path / "out").complete
    assert len(names(ingest(tmp_path, engine, max_bad=0.2))) == 8
