"""Data sets that megahour did not write, good and hostile, as utterances and as recordings."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import soundfile
from corpus import run, sound
from imported_later import ImportedLater

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.records import key_of
from megahour.core.schemas import CUES, RECORDINGS
from megahour.core.store import Artifact
from megahour.corpus.ingest.sources import list_source
from megahour.corpus.interchange import import_plan, untrusted
from megahour.corpus.interchange.import_plan import _of_manifest
from megahour.corpus.interchange.import_stage import Import
from megahour.corpus.interchange.kaldi import read_kaldi
from megahour.corpus.interchange.params import ImportParams
from megahour.corpus.interchange.untrusted import Entry, Root
from megahour.corpus.media.tar import ShardAudio

lhotse: Any = ImportedLater("lhotse")
RATE_HZ = 16_000


def wav(path: Path, seed: int, samples: int, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = np.stack([sound(seed + c, samples) for c in range(channels)], axis=1)
    soundfile.write(path, data, RATE_HZ, subtype="PCM_16")
    return path


def lines(path: Path, values: list[Any]) -> Path:
    path.write_text("".join((v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) + "\n" for v in values))
    return path


def imported(tmp_path: Path, form: str, source: object, **more: Any) -> Artifact:
    p = ImportParams(format=form, source=str(source), **{"licence": "CC-BY-4.0", **more})
    return run(Import(), p, {}, tmp_path / f"out-{len(list(tmp_path.iterdir()))}")


def table(artifact: Artifact, suffix: str = ".parquet") -> list[dict[str, Any]]:
    return [row for r in artifact.receipts() for row in artifact.read_table(r.shard, suffix).to_pylist()]


def sounds(artifact: Artifact) -> dict[str, Any]:
    """The samples of the only shard's utterances, by their text."""
    with ShardAudio(artifact, 0) as audio:
        return {row["raw"]: audio.read(row["offset"], row["size"]) for row in table(artifact)}


def reasons(artifact: Artifact) -> list[str]:
    return sorted(bad["reason"] for bad in artifact.bad_records())


def test_nemo_segments_of_a_long_file(tmp_path: Path) -> None:
    wav(tmp_path / "data/long.wav", 1, 64_000)
    entries = [
        {"audio_filepath": "long.wav", "offset": 0.5, "duration": 1.0, "text": "Room 12", "speaker": 7, "lang": "en"},
        {"audio_filepath": "long.wav", "offset": 2.0, "duration": 1.5, "text": "second part"},
    ]
    manifest = lines(tmp_path / "data/m.json", entries)
    artifact = imported(tmp_path, "nemo", manifest)
    first, second = sorted(table(artifact), key=lambda row: row["start_samples"])
    assert (first["start_samples"], first["end_samples"], first["speaker"]) == (8000, 24_000, "7")
    assert (first["raw"], first["text"], first["words"]) == ("Room 12", "room twelve", ["room", "twelve"])
    assert [first["raw"][a:b] for a, b in zip(first["word_offset"], first["word_end"], strict=True)] == ["Room", "12"]
    assert first["recording"] == second["recording"]
    assert first["licence"] == "CC-BY-4.0"
    with ShardAudio(artifact, 0) as audio:
        heard = audio.read(second["offset"], second["size"])
    assert (heard == sound(1, 64_000)[32_000:56_000]).all()


@pytest.mark.parametrize("kind", ["utterances", "recordings"])
def test_nemos_tars_hold_a_file_of_several_segments_once(tmp_path: Path, kind: str) -> None:
    """Its segments after the first have names that end in -sub1, -sub2 …, and stand in the order of their lengths."""
    with tarfile.open(tmp_path / "audio_0.tar", "w") as tar:
        tar.add(wav(tmp_path / "a.wav", 1, 64_000), "x_a.wav")
        tar.add(wav(tmp_path / "b.wav", 2, 32_000), "x_b.wav")
    entries = [
        {"audio_filepath": "x_a.wav", "offset": 0.5, "duration": 0.5, "text": "first part"},
        {"audio_filepath": "x_b.wav", "offset": 0.0, "duration": 0.7, "text": "other", "raw_text": ""},
        {"audio_filepath": "x_a-sub1.wav", "offset": 2.0, "duration": 1.5, "text": "second part"},
        {"audio_filepath": "x_c-sub1.wav", "duration": 1.5, "text": "of no file"},
    ]
    manifest = lines(tmp_path / "manifest_0.json", entries)
    artifact = imported(tmp_path, "nemo-tarred", manifest, audio=f"{tmp_path}/audio_0.tar", kind=kind, max_bad=0.5)
    assert reasons(artifact) == ["missing-audio"]
    if kind == "recordings":
        assert [row["name"] for row in table(artifact)] == ["x_a.wav", "x_b.wav"]
        cues = [(cue["start_samples"], cue["raw"]) for cue in table(artifact, ".cues.parquet")]
        assert cues == [(8000, "first part"), (32_000, "second part"), (0, "other")]
    else:
        assert (sounds(artifact)["second part"] == sound(1, 64_000)[32_000:56_000]).all()
        assert len({row["recording"] for row in table(artifact)}) == 2


def test_long_recordings_become_recordings_with_cues(tmp_path: Path) -> None:
    """What `align` needs: the whole audio, and the segments' times as hints."""
    wav(tmp_path / "data/long.wav", 1, 64_000)
    wav(tmp_path / "data/whole.wav", 2, 32_000)
    entries = [
        {"audio_filepath": "long.wav", "offset": 2.0, "duration": 1.5, "text": "second part"},
        {"audio_filepath": "whole.wav", "duration": 2.0, "text": "all of it"},
        {"audio_filepath": "long.wav", "offset": 0.5, "duration": 1.0, "text": "first part", "speaker": "x"},
    ]
    artifact = imported(tmp_path, "nemo", lines(tmp_path / "data/m.json", entries), kind="recordings", shard_rows=1)
    index = {row["name"]: row for row in table(artifact)}
    assert sorted(index) == ["long.wav", "whole.wav"]
    assert all(artifact.read_table(r.shard).schema == RECORDINGS for r in artifact.receipts())
    cues = table(artifact, ".cues.parquet")
    assert all(artifact.read_table(r.shard, ".cues.parquet").schema == CUES for r in artifact.receipts())
    long = [cue for cue in cues if cue["key"] == index["long.wav"]["key"]]
    assert [(c["cue"], c["start_samples"], c["end_samples"], c["text"], c["speaker"]) for c in long] == [
        (0, 8000, 24_000, "first part", "x"),
        (1, 32_000, 56_000, "second part", ""),
    ]
    (whole,) = [cue for cue in cues if cue["key"] == index["whole.wav"]["key"]]
    assert (whole["start_samples"], whole["end_samples"]) == (-1, -1)
    shard = next(r.shard for r in artifact.receipts() if "long.wav" in artifact.read_table(r.shard)["name"].to_pylist())
    row = index["long.wav"]
    with ShardAudio(artifact, shard) as audio:
        assert (audio.read(row["offset"], row["size"]) == sound(1, 64_000)).all()


def test_lhotse_recordings_and_supervisions(tmp_path: Path) -> None:
    """As lhotse itself writes them, two channels, with word alignments."""
    path = wav(tmp_path / "data/r.wav", 3, 48_000, channels=2)
    recording = lhotse.Recording.from_file(path, recording_id="r")
    item = lhotse.supervision.AlignmentItem
    supervisions = [
        lhotse.SupervisionSegment(
            f"s{channel}",
            "r",
            start=1.0,
            duration=1.25,
            channel=channel,
            text="Good day.",
            speaker=f"spk{channel}",
            language="en",
            alignment={"word": [item("good", 1.25, 0.25, 0.5), item("day", 1.75, 0.25, 0.75)]},
            custom={"licence": "CC0-1.0"},
        )
        for channel in range(2)
    ]
    lhotse.RecordingSet.from_recordings([recording]).to_file(tmp_path / "data/recordings.jsonl.gz")
    lhotse.SupervisionSet.from_segments(supervisions).to_file(tmp_path / "data/supervisions.jsonl.gz")
    artifact = imported(
        tmp_path,
        "lhotse",
        tmp_path / "data/recordings.jsonl.gz",
        supervisions=str(tmp_path / "data/supervisions.jsonl.gz"),
    )
    rows = sorted(table(artifact), key=lambda row: row["channel"])
    assert [(row["speaker"], row["licence"], row["text"]) for row in rows] == [
        ("spk0", "CC0-1.0", "good day"),
        ("spk1", "CC0-1.0", "good day"),
    ]
    for row in rows:
        assert (row["word_start_samples"], row["word_end_samples"]) == ([4000, 12_000], [8000, 16_000])
        assert row["word_confidence"] == [0.5, 0.75]
        with ShardAudio(artifact, 0) as audio:
            heard = audio.read(row["offset"], row["size"])
        assert (heard == sound(3 + row["channel"], 48_000)[16_000:36_000]).all()


def test_lhotse_cuts_with_several_supervisions(tmp_path: Path) -> None:
    recording = lhotse.Recording.from_file(wav(tmp_path / "data/r.wav", 3, 48_000), recording_id="r")
    parts = [lhotse.SupervisionSegment(f"s{i}", "r", start=0.5 + i, duration=0.5, text=f"part {i}") for i in range(2)]
    cut = recording.to_cut()
    cut.supervisions = parts
    trimmed = cut.truncate(offset=0.25)
    lhotse.CutSet.from_cuts([trimmed]).to_file(tmp_path / "data/cuts.jsonl")
    rows = sorted(table(imported(tmp_path, "lhotse", tmp_path / "data/cuts.jsonl")), key=lambda row: row["raw"])
    assert [(row["start_samples"], row["end_samples"]) for row in rows] == [(8000, 16_000), (24_000, 32_000)]


def test_lhotses_cuts_of_several_channels(tmp_path: Path) -> None:
    """`CutSet.from_manifests` makes one of each call: an utterance is of its channel, or of the mean of both."""
    recording = lhotse.Recording.from_file(wav(tmp_path / "data/call.wav", 3, 32_000, channels=2), recording_id="r")
    spoken = {"one": 0, "two": 1, "three": [0, 1], "four": [1]}
    supervisions = lhotse.SupervisionSet.from_segments(
        lhotse.SupervisionSegment(text, "r", 0.5, 1.0, channel=channel, text=text) for text, channel in spoken.items()
    )
    recordings = lhotse.RecordingSet.from_recordings([recording])
    cuts = lhotse.CutSet.from_manifests(recordings, supervisions)
    assert [type(cut).__name__ for cut in cuts] == ["MultiCut"]
    cuts.to_file(tmp_path / "data/cuts.jsonl")
    artifact = imported(tmp_path, "lhotse", tmp_path / "data/cuts.jsonl")
    heard = sounds(artifact)
    one, two = (sound(3 + channel, 32_000)[8000:24_000] for channel in range(2))
    assert (heard["one"] == one).all()
    assert (heard["two"] == two).all()
    assert (heard["four"] == two).all()
    assert np.abs(heard["three"] - (one.astype(int) + two) / 2).max() <= 1


def test_windows_of_lhotse_keep_whole_sentences_only(tmp_path: Path) -> None:
    """Shar has the sound of the window alone: a sentence across its border would lack words at either end."""
    recording = lhotse.Recording.from_file(wav(tmp_path / "r.wav", 3, 64_000), recording_id="r")
    spoken = {"one": 0.1, "two": 1.8, "three": 2.5, "four": 3.0, "five": -1.0}
    cut = recording.to_cut()
    cut.supervisions = [lhotse.SupervisionSegment(name, "r", start, 0.5, text=name) for name, start in spoken.items()]
    cut.supervisions[3].channel = -1  # only this one is bad
    (tmp_path / "shar").mkdir()
    lhotse.CutSet.from_cuts([cut]).cut_into_windows(2.0).to_shar(tmp_path / "shar", fields={"recording": "flac"})
    given = {"source": tmp_path / "shar/cuts.*.jsonl.gz", "audio": f"{tmp_path}/shar/recording.*.tar", "max_bad": 0.9}
    artifact = imported(tmp_path, "shar", **given)
    heard = sounds(artifact)
    assert {text: len(samples) for text, samples in heard.items()} == {"one": 8000, "three": 8000}
    assert (heard["three"] == sound(3, 64_000)[40_000:48_000]).all()
    assert reasons(artifact) == ["bad-field", "wrong-duration", "wrong-duration"]
    assert len(table(imported(tmp_path, "shar", **given, kind="recordings"))) == 2, "each window is a recording"


def test_recordings_that_lhotse_would_change_are_refused(tmp_path: Path) -> None:
    """Their files are as before: of a cut at 1.1 times the speed, the last tenth of the audio was left out."""
    recording = lhotse.Recording.from_file(wav(tmp_path / "data/r.wav", 3, 48_000), recording_id="r")
    cut = recording.to_cut()
    cut.supervisions = [lhotse.SupervisionSegment("s", "r", 0.0, 3.0, text="good day")]
    early = lhotse.SupervisionSegment("early", "r", -0.03, 1.53, text="and so on")
    cuts = [cut.perturb_speed(1.1), cut.resample(8000), cut.perturb_volume(2.0), recording.to_cut()]
    cuts[-1].id, cuts[-1].supervisions = "other", [early]
    lhotse.CutSet.from_cuts(cuts).to_file(tmp_path / "data/cuts.jsonl")
    artifact = imported(tmp_path, "lhotse", tmp_path / "data/cuts.jsonl", max_bad=0.9)
    rows = sorted((row["raw"], row["start_samples"], row["end_samples"]) for row in table(artifact))
    assert rows == [("and so on", 0, 24_000), ("good day", 0, 48_000)]
    assert reasons(artifact) == ["unsupported-source"] * 2
    assert sorted(bad["detail"].partition(",")[0] for bad in artifact.bad_records()) == [
        "the recording is changed by Speed",
        "the recording is changed by Volume",
    ]


def kaldi(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("_scp", ".scp")).write_text(text)
    return folder


def test_kaldi_segments(tmp_path: Path) -> None:
    wav(tmp_path / "audio/a.wav", 1, 64_000)
    folder = kaldi(
        tmp_path / "kaldi",
        wav_scp="a audio/a.wav\n",
        segments="s-a-1 a 0.5 1.5\ns-a-2 a 2.0 -1\n",
        text="s-a-1 one two\ns-a-2 three\n",
        utt2spk="s-a-1 s\ns-a-2 s\n",
    )
    rows = sorted(table(imported(tmp_path, "kaldi", folder, root=str(tmp_path))), key=lambda row: row["raw"])
    assert [(r["start_samples"], r["end_samples"], r["speaker"], r["raw"]) for r in rows] == [
        (8000, 24_000, "s", "one two"),
        (32_000, 64_000, "s", "three"),
    ]


def test_a_fifth_column_of_kaldis_segments_is_the_channel(tmp_path: Path) -> None:
    """Two speakers of a telephone call, each on a channel; their mean would be both at once."""
    wav(tmp_path / "audio/call.wav", 3, 32_000, channels=2)
    folder = kaldi(
        tmp_path / "kaldi",
        wav_scp="call audio/call.wav\n",
        segments="a call 0.5 1.5 0\nb call 0.5 1.5 1\nboth call 0.5 1.5 -1\nc call 0 1 2\nd call 0 1 A\n",
        text="a one\nb two\nboth three\nc four\nd five\n",
    )
    artifact = imported(tmp_path, "kaldi", folder, root=str(tmp_path), max_bad=0.9)
    one, two = (sound(3 + channel, 32_000)[8000:24_000] for channel in range(2))
    rows = {row["raw"]: row for row in table(artifact)}
    heard = sounds(artifact)
    assert (heard["one"] == one).all()
    assert (heard["two"] == two).all()
    assert np.abs(heard["three"] - (one.astype(int) + two) / 2).max() <= 1
    assert [rows[text]["channel"] for text in ("one", "two")] == [0, 1]
    assert reasons(artifact) == ["bad-field", "missing-channel"]


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_recordings_without_a_segment_are_no_utterances_in_however_many_parts(tmp_path: Path, parts: int) -> None:
    files = {"wav.scp": ["a a.wav", "b b.wav", "c c.wav"], "segments": ["u a 0 1"]}
    files["text"] = ["u one", "b two", "c three"]
    root, found = Root(str(tmp_path), allow_outside=False), []
    for part in range(parts):
        wanted = lambda name, part=part: key_of(name) % parts == part  # noqa: E731
        found += read_kaldi(lambda name: iter(files.get(name, ())), root, wanted, first=part == 0)
    assert [entry.id for entry in found if isinstance(entry, Entry)] == ["u"]
    assert len(found) == 1


def test_commands_in_data_are_never_run(tmp_path: Path) -> None:
    """Kaldi's pipes and lhotse's command sources: no file appears that they would have made."""
    mark = tmp_path / "ran"
    wav(tmp_path / "kaldi/ok.wav", 1, 16_000)
    folder = tmp_path / "kaldi"
    (folder / "wav.scp").write_text(f"a touch {mark} |\nb | touch {mark}\nc ok.wav\n")
    (folder / "text").write_text("a x\nb y\nc fine words\n")
    artifact = imported(tmp_path, "kaldi", folder)
    assert reasons(artifact) == ["command-refused", "command-refused"]
    assert [row["raw"] for row in table(artifact)] == ["fine words"]
    cut = {
        "id": "c",
        "start": 0,
        "duration": 1,
        "channel": 0,
        "type": "MonoCut",
        "supervisions": [{"id": "c", "recording_id": "c", "start": 0, "duration": 1, "channel": 0, "text": "x"}],
        "recording": {"id": "c", "sources": [{"type": "command", "channels": [0], "source": f"touch {mark}"}]},
    }
    assert reasons(imported(tmp_path, "lhotse", lines(tmp_path / "cuts.jsonl", [cut]))) == ["command-refused"]
    assert not mark.exists()


def test_of_a_command_that_only_decodes_the_file_is_read(tmp_path: Path) -> None:
    """Those of Kaldi's and lhotse's recipes. None of the programs need be there."""
    wav(tmp_path / "kaldi/call.wav", 3, 32_000, channels=2)
    folder = tmp_path / "kaldi"
    (folder / "wav.scp").write_text("".join(f"{n} sph2pipe -f wav -p -c {n} call.wav |\n" for n in (1, 2)))
    (folder / "segments").write_text("a 1 0.5 1.5\nb 2 0.5 1.5 0\nc 2 0.5 1.5 1\n")
    (folder / "text").write_text("a one\nb two\nc three\n")
    artifact = imported(tmp_path, "kaldi", folder, max_bad=0.5)
    heard = sounds(artifact)
    assert {
        text: (heard[text] == sound(3 + n, 32_000)[8000:24_000]).all() for n, text in enumerate(("one", "two"))
    } == {
        "one": True,
        "two": True,
    }
    assert reasons(artifact) == ["missing-channel"]
    recording = lhotse.Recording.from_file(folder / "call.wav", recording_id="call")
    recording.sources[0] = lhotse.AudioSource("command", [0, 1], f"sph2pipe -f wav -p {folder}/call.wav")
    cuts = [recording.to_cut()]
    cuts[0].supervisions = [lhotse.SupervisionSegment("s", "call", 0.5, 1.0, channel=1, text="two")]
    lhotse.CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl")
    assert (sounds(imported(tmp_path, "lhotse", folder / "cuts.jsonl"))["two"] == sound(4, 32_000)[8000:24_000]).all()


def test_paths_that_lead_out_of_the_root(tmp_path: Path) -> None:
    outside = wav(tmp_path / "secret/x.wav", 1, 16_000)
    inside = wav(tmp_path / "data/in.wav", 2, 16_000)
    (tmp_path / "data/link.wav").symlink_to(outside)
    paths = [str(outside), "../secret/x.wav", "link.wav", "sub/../../secret/x.wav", "https://example.org/x.wav"]
    entries = [{"audio_filepath": path, "duration": 1.0, "text": "stolen"} for path in [*paths, str(inside)]]
    manifest = lines(tmp_path / "data/m.jsonl", entries)
    artifact = imported(tmp_path, "nemo", manifest)
    assert reasons(artifact) == ["outside-source"] * 5
    assert [row["name"] for row in table(artifact)] == [str(inside)]
    allowed = imported(tmp_path, "nemo", manifest, allow_outside=True)
    assert reasons(allowed) == ["outside-source"]  # an address is no path
    assert allowed.manifest.counts.kept == 5
    whole = imported(tmp_path, "nemo", lines(tmp_path / "data/absolute.jsonl", entries[:1]), root="/")
    assert (reasons(whole), whole.manifest.counts.kept) == ([], 1)


def test_what_is_not_of_the_format_is_named(tmp_path: Path) -> None:
    recording = {"id": "a", "sources": [], "sampling_rate": 16_000, "num_samples": 9, "duration": 1.0}
    (bad,) = imported(tmp_path, "lhotse", lines(tmp_path / "recordings.jsonl", [recording])).bad_records()
    assert "it is a recording: name the supervisions" in bad["detail"]
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/data-00000-of-00001.arrow").touch()
    with pytest.raises(ConfigError, match="no parquet files") as caught:
        imported(tmp_path, "parquet", tmp_path / "disk")
    assert "load_from_disk(FOLDER).to_parquet(FILE)" in caught.value.remedy


def test_bad_lines_and_bad_times(tmp_path: Path) -> None:
    wav(tmp_path / "data/a.wav", 1, 16_000)
    base = {"audio_filepath": "a.wav", "duration": 1.0, "text": "fine"}
    manifest = lines(
        tmp_path / "data/m.jsonl",
        [
            base,
            '{"audio_filepath": "a.wav", "duration": NaN, "text": "x"}',
            base | {"duration": -1.0},
            base | {"duration": "1.0"},
            base | {"duration": 9.0, "offset": 0.125},
            base | {"offset": 3.0},
            base | {"duration": 0},
            base | {"audio_filepath": "missing.wav"},
            {"duration": 1.0, "text": "x"},
            "   ",
            "not json",
            "[1, 2]",
            "[" * 50_000,
            base,
            base | {"offset": 0.25, "duration": 0.5, "text": "  "},
            base | {"text": {"a": 1}},
        ],
    )
    for rows in (2000, 4):  # however the lines are parted, each is counted once
        artifact = imported(tmp_path, "nemo", manifest, shard_rows=rows)
        assert reasons(artifact) == sorted(
            ["bad-json"] * 4
            + ["bad-time"] * 2
            + ["wrong-duration"] * 3
            + ["missing-audio", "bad-field", "bad-field", "duplicate-id"]
        )
        assert artifact.manifest.counts.dropped["no-text"] == 1
        assert artifact.manifest.counts.came_in == 15
        assert [row["raw"] for row in table(artifact)] == ["fine"]


def test_a_line_that_is_too_long_is_named_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MAX_LINE_BYTES", 8)
    file = io.BytesIO(b"seven b\n" + b"x" * 30 + b"\ntwo\n")
    found = [line if isinstance(line, str) else line.reason for line in untrusted.text_lines(file, max_bytes=100)]
    assert found == ["seven b", "line-too-long", "two"]


def test_gzip_that_grows_and_gzip_that_is_cut(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/bomb.jsonl.gz").write_bytes(gzip.compress(b" " * 30_000_000))
    artifact = imported(tmp_path, "nemo", tmp_path / "data/bomb.jsonl.gz", max_bytes=20_000_000)
    assert reasons(artifact) == ["too-large"]
    whole = gzip.compress(b'{"audio_filepath": "a.wav"}\n' * 1000)
    (tmp_path / "data/cut.jsonl.gz").write_bytes(whole[: len(whole) - 12])
    assert "corrupt-gzip" in reasons(imported(tmp_path, "nemo", tmp_path / "data/cut.jsonl.gz"))


def tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w") as file:
        for info, data in members:
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def member(name: str, data: bytes, kind: bytes = tarfile.REGTYPE, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, data


def flac(seed: int, samples: int = 16_000) -> bytes:
    target = io.BytesIO()
    soundfile.write(target, sound(seed, samples), RATE_HZ, format="FLAC", subtype="PCM_16")
    return target.getvalue()


def test_webdataset_of_others_with_hostile_members(tmp_path: Path) -> None:
    path = tar(
        tmp_path / "w.tar",
        [
            member("a.flac", flac(1)),
            member("a.txt", b"plain text"),
            member("b.flac", flac(2)),
            member("b.json", json.dumps({"text": "from json", "speaker": "s", "license": "CC0-1.0"}).encode()),
            member("c.flac", b"", tarfile.SYMTYPE, "/etc/passwd"),
            member("../d.flac", flac(3)),
            member("/e.flac", flac(3)),
            member("f.json", b"{}"),
            member("g.flac", b"no flac at all"),
            member("g.txt", b"words"),
            member("h.flac", flac(4)),
            member("h.txt", b"\xff\xfe\xfd"),
        ],
    )
    artifact = imported(tmp_path, "webdataset", path)
    assert reasons(artifact) == sorted(
        ["tar-link", "tar-parent-path", "tar-absolute-path", "missing-audio", "unreadable-audio", "bad-encoding"]
    )
    rows = {row["raw"]: row for row in table(artifact)}
    assert set(rows) == {"plain text", "from json"}
    assert (rows["from json"]["speaker"], rows["from json"]["licence"]) == ("s", "CC0-1.0")


def test_one_id_twice_is_a_bad_record_wherever_the_second_is(tmp_path: Path) -> None:
    """In parts of one recording each: no part sees both."""
    for name in "abcdef":
        wav(tmp_path / f"audio/{name}.wav", ord(name), 32_000)
    folder = kaldi(
        tmp_path / "kaldi",
        wav_scp="".join(f"{name} audio/{name}.wav\n" for name in "abcdef"),
        segments="".join(f"u {name} 0.5 1.5\n" for name in "abcdef"),
        text="u one two\n",
        utt2spk="u s\n",
    )
    artifact = imported(tmp_path, "kaldi", folder, root=str(tmp_path), shard_rows=1, max_bad=0.9)
    assert artifact.manifest.shards > 1
    assert [row["name"] for row in table(artifact)] == ["a"]
    assert reasons(artifact) == ["duplicate-id"] * 5
    cuts = [cut_of(name, tmp_path / f"audio/{name}.wav") for name in "abcdef"]
    manifest = lines(tmp_path / "cuts.jsonl", cuts)
    artifact = imported(tmp_path, "lhotse", manifest, root=str(tmp_path), shard_rows=1, max_bad=0.9)
    assert [row["name"] for row in table(artifact)] == ["a"]
    assert reasons(artifact) == ["duplicate-id"] * 5


def cut_of(name: str, path: Path) -> dict[str, Any]:
    """A cut of a recording; all have the id u."""
    recording = lhotse.Recording.from_file(path, recording_id=name)
    segment = lhotse.SupervisionSegment("u", name, 0.0, 1.5, text="one two", speaker="s")
    return lhotse.MonoCut("u", 0.0, 1.5, 0, [segment], recording=recording).to_dict()


def test_one_id_in_several_tars_is_several_utterances(tmp_path: Path) -> None:
    """As tars that each begin with 000000."""
    (tmp_path / "tars").mkdir()
    for number in range(3):
        with tarfile.open(tmp_path / f"tars/{number}.tar", "w") as tar:
            for name, data in (("000000.flac", flac(number)), ("000000.txt", b"Hello you")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    for kind in ("utterances", "recordings"):
        rows = table(imported(tmp_path, "webdataset", tmp_path / "tars", kind=kind))
        assert [row["name"] for row in rows] == ["000000"] * 3
        assert len({row["key"] for row in rows}) == 3


def test_keys_of_wenets_tars_may_have_dots(tmp_path: Path) -> None:
    """WebDataset's keys end at the first dot, by which all of these would be one sample, or the second one's parts."""
    names = ["sp1.1-a", "sp1.1-b", "c", "c.2"]
    members = [(f"{name}.txt", name.encode()) for name in names] + [(f"{name}.wav", b"") for name in names]
    with tarfile.open(tmp_path / "w.tar", "w") as tar:
        for name, data in sorted(members):
            data = data or flac(names.index(name.removesuffix(".wav")))
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    heard = sounds(imported(tmp_path, "webdataset", tmp_path / "w.tar"))
    assert sorted(heard) == sorted(names)
    assert all((samples == sound(names.index(name), 16_000)).all() for name, samples in heard.items())


def test_parquet_of_others(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    audio = [{"bytes": flac(1), "path": "x.flac"}, {"bytes": None, "path": "../x.flac"}, {"bytes": b"?", "path": None}]
    data = pa.table({"audio": audio, "sentence": ["Hello you", "gone", "bad"], "client_id": ["s", "s", "s"]})
    pa.parquet.write_table(data, tmp_path / "data/train.parquet")
    artifact = imported(tmp_path, "parquet", tmp_path / "data")
    assert [(row["text"], row["speaker"]) for row in table(artifact)] == [("hello you", "s")]
    assert reasons(artifact) == ["outside-source", "unreadable-audio"]
    (tmp_path / "data/broken.parquet").write_bytes(b"PAR1 nothing PAR1")
    pa.parquet.write_table(pa.table({"text": ["no audio"]}), tmp_path / "data/text.parquet")
    again = imported(tmp_path, "parquet", tmp_path / "data")
    assert reasons(again) == ["corrupt-parquet", "no-audio-column", "outside-source", "unreadable-audio"]


def test_audio_in_memory(tmp_path: Path) -> None:
    """Cuts whose audio is base64 in the manifest, as some lhotse versions write it; all are of one recording."""

    def cut(number: int) -> dict[str, Any]:
        spoken = {"id": f"c{number}", "recording_id": "r", "start": 0, "duration": 1.0, "text": f"here {number}"}
        source = {"type": "memory", "channels": [0], "source": base64.b64encode(flac(number)).decode()}
        recording = {"id": "r", "sources": [source]}
        return {"id": f"c{number}", "start": 0, "duration": 1.0, "supervisions": [spoken], "recording": recording}

    heard = sounds(imported(tmp_path, "lhotse", lines(tmp_path / "cuts.jsonl", [cut(5), cut(6)])))
    assert {text: bool((samples == sound(int(text[-1]), 16_000)).all()) for text, samples in heard.items()} == {
        "here 5": True,
        "here 6": True,
    }


def test_licences_follow_the_policy(tmp_path: Path) -> None:
    wav(tmp_path / "data/a.wav", 1, 16_000)
    base = {"audio_filepath": "a.wav", "duration": 1.0, "text": "fine", "license": "CC-BY-NC-4.0"}
    artifact = imported(tmp_path, "nemo", lines(tmp_path / "data/m.jsonl", [base]))
    assert artifact.manifest.counts.dropped == {"licence-forbidden": 1}
    assert artifact.manifest.counts.bad == 0
    parts = [{**base, "offset": at, "duration": 0.5} for at in (0.0, 0.5)]
    parts[0]["license"] = "CC0-1.0"
    artifact = imported(tmp_path, "nemo", lines(tmp_path / "data/n.jsonl", parts), kind="recordings")
    assert artifact.manifest.counts.dropped == {"licence-forbidden": 1}, "of a recording's second entry"


@pytest.mark.parametrize("kind", ["utterances", "recordings"])
def test_all_that_is_left_out_is_listed(tmp_path: Path, kind: str) -> None:
    """One of a long file, one without audio, one that is not allowed, a broken line; not the one that stays."""
    wav(tmp_path / "data/a.wav", 1, 48_000)
    wav(tmp_path / "data/b.wav", 2, 16_000)
    a = {"audio_filepath": "a.wav", "text": "fine"}
    entries = [
        {**a, "offset": 0.0, "duration": 1.0},
        {**a, "offset": 2.0, "duration": 1.5},
        {"audio_filepath": "gone.wav", "duration": 1.0, "text": "gone"},
        {"audio_filepath": "b.wav", "duration": 1.0, "text": "no", "license": "CC-BY-NC-4.0"},
        "{",
    ]
    artifact = imported(tmp_path, "nemo", lines(tmp_path / "data/m.jsonl", entries), kind=kind, max_bad=1.0)
    listed = table(artifact, ".left_out.parquet")
    counts = artifact.manifest.counts
    assert len(listed) == sum(counts.dropped.values()) == 4
    assert sorted(row["reason"] for row in listed if row["bad"]) == reasons(artifact)
    (refused,) = [row for row in listed if not row["bad"]]
    assert (refused["reason"], refused["licence"], refused["seconds"]) == ("licence-forbidden", "CC-BY-NC-4.0", 1.0)
    (late,) = [row["seconds"] for row in listed if row["reason"] == "wrong-duration"]
    assert (late == 1.5) if kind == "utterances" else np.isnan(late), "of a cue there is no audio of its own"
    assert artifact.receipts()[0].stats["audio_s"] == (1.5 if kind == "utterances" else 3.0)


def test_impossible_sources_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no wav\.scp"):
        Import().plan(ImportParams(format="kaldi", source=str(wav(tmp_path / "k/x.wav", 1, 99).parent)), {})
    with pytest.raises(ConfigError, match="no parquet file"):
        Import().plan(ImportParams(format="parquet", source=str(tmp_path)), {})
    lines(tmp_path / "m.jsonl", [{}])
    tar(tmp_path / "1.tar", [])
    tar(tmp_path / "2.tar", [])
    p = ImportParams(format="nemo-tarred", source=str(tmp_path / "m.jsonl"), audio=f"{tmp_path}/*.tar")
    with pytest.raises(ConfigError, match="1 manifests but 2 tars"):
        Import().plan(p, {})
    with pytest.raises(ValueError, match="needs audio"):
        ImportParams(format="shar", source="x")


def test_a_bad_segment_is_named(tmp_path: Path) -> None:
    wav(tmp_path / "data/a.wav", 1, 16_000)
    for name, text in {"wav.scp": "r a.wav", "segments": "u1 r 0 1\nu2 r x 1", "text": "u1 hello\nu2 there"}.items():
        (tmp_path / "data" / name).write_text(f"{text}\n")
    artifact = imported(tmp_path, "kaldi", tmp_path / "data")
    assert [(bad["id"], bad["reason"]) for bad in artifact.bad_records()] == [("u2", "bad-time")]
    assert [row["raw"] for row in table(artifact)] == ["hello"]


def test_paths_that_no_file_can_be_read_from(tmp_path: Path) -> None:
    wav(tmp_path / "data/good.wav", 1, 32_000)
    os.mkfifo(tmp_path / "data/pipe.wav")
    (tmp_path / "data/loop.wav").symlink_to("loop.wav")
    (tmp_path / "data/folder.wav").mkdir()
    paths = ["good.wav", "pipe.wav", "loop.wav", "folder.wav", "a" * 10_000, "good.wav/x"]
    manifest = lines(
        tmp_path / "m.json", [json.dumps({"audio_filepath": f"data/{p}", "text": "Hello."}) for p in paths]
    )
    artifact = imported(tmp_path, "nemo", manifest, max_bad=1)
    assert [row["name"] for row in table(artifact)] == ["data/good.wav"]
    assert reasons(artifact) == ["missing-audio"] * (len(paths) - 1)


def test_a_plan_lists_its_source_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did so for each of its files: 10⁸ entries for 10⁴ manifests, or a minute of a store's requests for each."""
    (tmp_path / "m").mkdir()
    for name in range(5):
        lines(tmp_path / f"m/{name}.json", [{"audio_filepath": "a.wav", "text": "one"}])
    calls = []
    monkeypatch.setattr(import_plan, "list_source", lambda source: calls.append(source) or list_source(source))
    p = ImportParams(format="nemo", source=str(tmp_path / "m"))
    specs = import_plan.plan_source(p)
    assert len(specs) == 5
    with import_plan.task_entries(p, specs[0]) as entries:
        assert len(list(entries)) == 1
    assert calls == [p.source] * 2


def test_of_the_segments_of_other_parts_a_part_holds_eight_bytes_each() -> None:
    count, root = 3_000, Root("/", allow_outside=True)
    segments = [*(f"utterance-{i} recording-{i} 0 1" for i in range(count)), "utterance-7 mine 0 1", "own mine 0 1"]
    files = {"wav.scp": ["mine mine.wav"], "segments": [*segments, "own other 0 1"]}
    tracemalloc.start()
    try:
        found = read_kaldi(lambda name: iter(files.get(name, ())), root, lambda name: name == "mine", first=True)
        bad, entry = found
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30 * count
    assert isinstance(entry, Entry)
    assert isinstance(bad, BadRecord)
    assert (entry.id, bad.reason, bad.record) == ("own", "duplicate-id", "utterance-7")


def test_of_the_lines_of_other_parts_a_part_holds_eight_bytes_each() -> None:
    """It held two numbers and a place in a dictionary, some 200 bytes: gigabytes for a manifest of 10⁷ lines."""
    count, root = 3_000, Root("/", allow_outside=True)
    texts = [f'{{"audio_filepath": "{i}.wav", "duration": 1.0, "text": "one", "id": "u{i}"}}' for i in range(count)]
    p = ImportParams(format="nemo", source="manifest", licence="CC0-1.0")
    tracemalloc.start()
    try:
        assert list(_of_manifest(p, root, "/", "m.json", lambda *file: iter(texts), lambda name: False)) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30 * count
