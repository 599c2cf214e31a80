"""`ingest`: from directories, archives, S3 and raw artifacts to the recordings artifact of docs/architecture.md."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_media import encode, murmur, put
from made_tracks import track

from megahour.core.errors import ConfigError
from megahour.core.schemas import CUES, RECORDINGS
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.corpus.generate.params import SynthesiseParams
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.sources import plan_files
from megahour.corpus.ingest.stage import Ingest
from megahour.corpus.media.tar import ShardAudio, tar_writer
from megahour.corpus.transcripts.pairing import group_files, split_suffix
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage
from megahour.tts.synthesise_stage import Synthesise

SRT = """1
00:00:00,500 --> 00:00:01,500
JOHN: On May 3rd, 25 people

2
00:00:01,500 --> 00:00:09,000
paid $40. [music]
"""


def ingest(out: Path, engine: LocalEngine, raw: Artifact | None = None, **params: Any) -> Artifact:
    artifact = Artifact(out)
    inputs = {"raw": raw} if raw else {}
    run_stage(Ingest(), IngestParams(**params), inputs, artifact, engine, work=out.parent / "work")
    assert verify(artifact) == []
    return artifact


def rows(artifact: Artifact, suffix: str = ".parquet") -> list[dict[str, Any]]:
    return [row for receipt in artifact.receipts() for row in artifact.read_table(receipt.shard, suffix).to_pylist()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three recordings stored in the usual ways."""
    root = tmp_path / "media"
    info = {"speaker": "anna", "license": "https://creativecommons.org/licenses/by/4.0/", "creator": "A. Nobody"}
    put(root, "talks/one.flac", encode(murmur(2), kind="FLAC"))
    put(root, "talks/one.srt", SRT)
    put(root, "talks/one.json", json.dumps({**info, "condition": "clean", "created": "2021-05-03T00:00:00Z"}))
    put(root, "talks/two.WAV", encode(murmur(3, 44_100, seed=1), 44_100))
    put(root, "talks/two.en.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\nHello.\n")
    put(root, "bob_3.mp3", encode(murmur(2, seed=2), kind="MP3", subtype="MPEG_LAYER_III"))
    put(root, "bob_3.txt", "First line\nsecond line\n")
    put(root, "bob_3.pdf", "not looked at")
    return root


def test_paths_that_the_speaker_pattern_does_not_match_are_counted_in_the_closing_line(
    folder: Path, tmp_path: Path, engine: LocalEngine
) -> None:
    """Each is a speaker of its own, so that the sets share voices. A pattern with the source's name matched nothing."""
    pattern = {"speaker_pattern": f"{folder.name}/([a-z]+)"}
    remark = "--speaker-pattern matches no path below the source"
    none = ingest(tmp_path / "none", engine, source=str(folder), licence="CC0", **pattern)
    assert f"{remark}: 2" in none.summary["remark"], "the third has a speaker beside it"
    assert none.receipts()[0].stats["paths_without_speaker"] == 2
    for name, options in {"named": {**pattern, "speaker": "eve"}, "unasked": {}}.items():
        out = ingest(tmp_path / name, engine, source=str(folder), licence="CC0", **options)
        assert remark not in out.summary.get("remark", "")


def test_a_directory_becomes_recordings(folder: Path, tmp_path: Path, engine: LocalEngine) -> None:
    out = ingest(tmp_path / "out", engine, source=str(folder), licence="CC0", speaker_pattern="([a-z]+)_")
    table = out.read_table(0)
    assert table.schema.equals(RECORDINGS)
    assert out.read_table(0, ".cues.parquet").schema.equals(CUES)
    index = {row["name"]: row for row in table.to_pylist()}
    one, two, bob = index["talks/one"], index["talks/two"], index["bob_3"]
    assert (one["speaker"], one["licence"], one["attribution"]) == ("anna", "CC-BY-4.0", "A. Nobody")
    assert (one["condition"], one["created_s"], one["samples"]) == ("clean", 1_620_000_000, 32_000)
    assert (two["samples"], two["rate_hz"], two["source"]) == (48_000, 16_000, "talks/two.WAV")
    assert (bob["speaker"], bob["licence"], bob["language"]) == ("bob", "CC0-1.0", "en")
    assert two["speaker"] == "talks/two.WAV", "a voice that nobody names is a speaker of its own"
    with ShardAudio(out, 0) as audio:
        assert np.array_equal(audio.read(one["offset"], one["size"]), murmur(2))
    summary = out.summary
    assert (summary["recordings"], summary["cues"], summary["words"]) == (3, 5, 9 + 1 + 4)


def test_cues_carry_times_text_and_places(folder: Path, tmp_path: Path, engine: LocalEngine) -> None:
    out = ingest(tmp_path / "out", engine, source=str(folder), licence="CC0")
    keys = {row["name"]: row["key"] for row in rows(out)}
    first, second = (row for row in rows(out, ".cues.parquet") if row["key"] == keys["talks/one"])
    assert (first["start_samples"], first["end_samples"]) == (8_000, 24_000)
    assert (first["text"], first["speaker"]) == ("on may third twenty five people", "JOHN")
    words = [first["raw"][start:end] for start, end in zip(first["offsets"], first["ends"], strict=True)]
    assert words == ["On", "May", "3rd", "25", "25", "people"]
    assert (first["transcript"], second["transcript"]) == (0, 0)
    assert (second["cue"], second["end_samples"]) == (1, 32_000), "an end behind the audio's is cut to it"
    assert second["text"] == "paid forty dollars"
    plain = [row for row in rows(out, ".cues.parquet") if row["key"] == keys["bob_3"]]
    assert [(row["start_samples"], row["text"]) for row in plain] == [(-1, "first line"), (-1, "second line")]


def test_bytes_do_not_depend_on_workers_place_or_store(
    folder: Path, tmp_path: Path, engine: LocalEngine, s3_url: str
) -> None:
    import fsspec

    fs, bucket = fsspec.core.url_to_fs(f"{s3_url}/{tmp_path.name}")
    fs.put(str(folder), bucket, recursive=True)
    local = ingest(tmp_path / "a", engine, source=str(folder), licence="CC0", shard_mb=0.05)
    with LocalEngine(workers=1) as single:
        remote = ingest(tmp_path / "b", single, source=f"{s3_url}/{tmp_path.name}", licence="CC0", shard_mb=0.05)
    assert len(local.receipts()) > 1
    assert local.manifest.digest == remote.manifest.digest


def test_archives_hold_the_same_recordings(folder: Path, tmp_path: Path, engine: LocalEngine) -> None:
    import gzip

    (tmp_path / "packed").mkdir()
    for name, opener in (("plain.tar", open), ("packed.tar.gz", gzip.open)):
        with opener(tmp_path / "packed" / name, "wb") as file, tar_writer(file) as tar:
            for path in sorted(folder.rglob("*.*")):
                tar.add(str(path.relative_to(folder)), path.read_bytes())
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "packed"), licence="CC0")
    found = rows(out)
    assert len(out.receipts()) == 2
    assert sorted(row["source"] for row in found)[0] == "packed.tar.gz!bob_3.mp3"
    assert sorted({row["name"] for row in found}) == ["bob_3", "talks/one", "talks/two"]
    assert len({row["key"] for row in found}) == 6, "equal names in different archives have different keys"


def test_generated_speech_comes_in_shard_by_shard(tmp_path: Path, engine: LocalEngine) -> None:
    made = Artifact(tmp_path / "made")
    spoken = SynthesiseParams(hours=0.01, recording_minutes=0.2, voices=3, shards=2, conditions=["clean"])
    run_stage(Synthesise(), spoken, {}, made, engine, work=tmp_path / "work")
    out = ingest(tmp_path / "out", engine, raw=made)
    assert len(out.receipts()) == 2
    counts = out.manifest.counts
    assert counts.bad == 0
    assert counts.kept + counts.dropped.get("licence-forbidden", 0) == counts.came_in == made.manifest.counts.kept
    truth = {row["name"] for row in rows(made, ".truth.parquet")}
    assert {row["name"] for row in rows(out)} <= truth
    assert out.summary["words"] > 20


def test_channels_become_recordings_of_their_own(tmp_path: Path, engine: LocalEngine) -> None:
    left, right = murmur(2), murmur(2, seed=1)
    put(tmp_path / "in", "call.wav", encode(np.stack([left, right, left, 0 * left], axis=1)))
    put(tmp_path / "in", "call.txt", "Hello.")
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0", channels="split", speaker="x")
    found = rows(out)
    assert [(row["channel"], row["speaker"]) for row in found] == [(0, "x/0"), (1, "x/1")]
    assert out.manifest.counts.dropped == {"identical-channel": 1, "silent-channel": 1}
    assert (out.manifest.counts.came_in, out.manifest.counts.kept) == (4, 2)
    with ShardAudio(out, 0) as audio:
        assert np.array_equal(audio.read(found[1]["offset"], found[1]["size"]), right)


def test_licences_and_missing_transcripts_are_policy_and_counted(tmp_path: Path, engine: LocalEngine) -> None:
    for i, licence in enumerate(["CC-BY-4.0", "CC BY-NC 4.0", "all rights reserved", "who knows"]):
        put(tmp_path / "in", f"{i}.wav", encode(murmur(1, seed=i)))
        put(tmp_path / "in", f"{i}.txt", "Hello.")
        put(tmp_path / "in", f"{i}.json", json.dumps({"licence": licence}))
    put(tmp_path / "in", "mute.wav", encode(murmur(1, seed=9)))
    put(tmp_path / "in", "mute.json", json.dumps({"licence": "CC0"}))
    put(tmp_path / "in", "no_audio.srt", SRT)
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"))
    assert out.manifest.counts.dropped == {"licence-forbidden": 2, "licence-unknown": 1, "no-transcript": 1}
    assert (out.manifest.counts.bad, out.manifest.counts.kept) == (0, 1)
    assert out.receipts()[0].stats["transcripts_without_audio"] == 1
    wider = {"licences": ["CC-BY", "CC-BY-NC", "CC0"], "require_transcript": False}
    assert ingest(tmp_path / "wide", engine, source=str(tmp_path / "in"), **wider).manifest.counts.kept == 3


@pytest.mark.parametrize(
    ("written", "created_s", "not_read"),
    [
        ("2021", 1_609_459_200, 0),
        ("2021-03", 1_614_556_800, 0),
        ("2021-03-04", 1_614_816_000, 0),
        ("20210304", 1_614_816_000, 0),
        (20210304, 1_614_816_000, 0),
        (1_614_816_000.5, 1_614_816_000, 0),
        ("", 0, 0),
        ("circa May 2009", 0, 1),
        (1e30, 0, 1),
    ],
)
def test_a_date_that_nobody_can_read_is_no_reason_to_lose_a_recording(
    tmp_path: Path, engine: LocalEngine, written: str | float, created_s: int, not_read: int
) -> None:
    put(tmp_path, "media/a.wav", encode(murmur(1)))
    put(tmp_path, "media/a.srt", SRT)
    put(tmp_path, "media/a.json", json.dumps({"license": "CC0", "date": written}))
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "media"))
    assert [row["created_s"] for row in rows(out)] == [created_s]
    assert out.receipts()[0].stats["dates_not_read"] == not_read


def test_a_downloaded_video_has_what_its_page_says(tmp_path: Path, engine: LocalEngine) -> None:
    """yt-dlp's `.info.json` fills in what Whisper's `.json` of the same name has not, and speaks for the licence."""
    whisper = json.dumps({"segments": [{"start": 0.1, "end": 0.9, "text": "Hello there."}], "language": "en"})
    page = {"uploader": "Ann Lee", "upload_date": "20210304", "webpage_url": "https://video.example/v?x=1"}
    free, theirs = "Creative Commons Attribution license (reuse allowed)", "Standard YouTube License"
    for name, licence in (("free", free), ("theirs", theirs), ("own", theirs)):
        put(tmp_path / "in", f"{name}.wav", encode(murmur(1, seed=len(name))))
        put(tmp_path / "in", f"{name}.json", whisper)
        put(tmp_path / "in", f"{name}.info.json", json.dumps({"license": licence, **page}))
    put(tmp_path / "in", "own.json", json.dumps({**json.loads(whisper), "licence": "CC0", "source": "my page"}))
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0")
    assert out.manifest.counts.dropped == {"licence-forbidden": 1}
    assert out.summary["not_read"] == {}
    first, own = rows(out)
    fields = ("licence", "attribution", "created_s", "source")
    assert [first[name] for name in fields] == ["LicenseRef-CC-BY", "Ann Lee", 1_614_816_000, page["webpage_url"]]
    assert [own[name] for name in fields] == ["CC0-1.0", "Ann Lee", 1_614_816_000, "my page"]


def test_one_file_can_hold_all_transcripts(tmp_path: Path, engine: LocalEngine) -> None:
    put(tmp_path / "in", "digits/1.wav", encode(murmur(1)))
    put(tmp_path / "in", "hello.wav", encode(murmur(1, seed=1)))
    table = put(tmp_path / "in", "core.csv", "; prompts\ndigits/1: one\nhello: Hello, 2 of you.\n")
    put(tmp_path / "in", "other.csv", "")
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0", transcripts=str(table))
    assert out.summary["not_read"] == {".csv": 1}
    assert [row["text"] for row in rows(out, ".cues.parquet")] == ["one", "hello two of you"]


def test_that_file_may_name_media_with_their_suffix(tmp_path: Path, engine: LocalEngine) -> None:
    for seed, name in enumerate(["u\u0301no.wav", "clips/two.wav", "three.wav"]):  # its accent as macOS may store it
        put(tmp_path / "in", name, encode(murmur(1, seed=seed)))
    table = put(tmp_path, "validated.tsv", "path\tsentence\tvotes\n\u00fano.wav\tOne.\t2\ntwo.wav\tTwo.\t3\n")
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0", transcripts=str(table))
    assert sorted(row["raw"] for row in rows(out, ".cues.parquet")) == ["One.", "Two."]
    (left_out,) = rows(out, ".left_out.parquet")
    assert left_out["reason"] == "no-transcript"
    assert left_out["detail"].endswith("no line of validated.tsv is named three or three.wav")


def test_its_other_columns_are_side_information(tmp_path: Path, engine: LocalEngine) -> None:
    """As VoxPopuli has them: else each recording would be a speaker, and one that is not allowed would be taken."""
    for seed, name in enumerate("abc"):
        put(tmp_path / "in", f"2017/{name}.wav", encode(murmur(1, seed=seed)))
    lines = ("a\tOne.\t007\tCC-BY-4.0", "b\tTwo.\t007\t", "c\tThree.\t8\tCC-BY-NC-4.0")
    table = put(tmp_path, "asr_train.tsv", "\n".join(("id\traw_text\tspeaker_id\tlicense", *lines)))
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0", transcripts=str(table))
    assert [(row["speaker"], row["licence"]) for row in rows(out)] == [("007", "CC-BY-4.0"), ("007", "CC0-1.0")]
    assert out.manifest.counts.dropped == {"licence-forbidden": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transcripts": "nowhere.txt"}, "transcripts: no files at nowhere.txt"),
        ({"recognised": "nowhere"}, "recognised: no files at nowhere"),
        ({"language": "englsh"}, 'language: "englsh" is not a language tag'),
        ({"licence": "CC BI 4"}, 'licence: "CC BI 4" is not a known licence'),
    ],
)
def test_a_parameter_that_can_only_be_wrong_is_named(
    folder: Path, tmp_path: Path, engine: LocalEngine, given: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ingest(tmp_path / "out", engine, source=str(folder), **{"licence": "CC0", **given})
    assert message in str(caught.value)


def test_a_changed_source_is_ingested_again(folder: Path, tmp_path: Path, engine: LocalEngine) -> None:
    def made() -> tuple[int, int]:
        out = ingest(tmp_path / "out", engine, source=str(folder), licence="CC0")
        return out.manifest.counts.kept, (tmp_path / "out/shards/00000.tar").stat().st_mtime_ns

    first = made()
    assert made() == first
    put(folder, "new.wav", encode(murmur(1, seed=8)))
    put(folder, "new.txt", "New words.")
    assert made()[0] == 4
    put(folder, "new.txt", "Old words.")
    made()
    assert "old words" in [row["text"] for row in rows(Artifact(tmp_path / "out"), ".cues.parquet")]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "no `source` and no input `raw`"),
        ({"source": "nowhere-at-all"}, "no files at nowhere-at-all, seen from /"),
        ({"source": ".", "speaker_pattern": "("}, "not a regular expression"),
        ({"source": ".", "speaker_pattern": "a"}, "has 0 groups"),
        ({"source": ".", "licences": ["cc by"]}, "not an SPDX identifier"),
    ],
)
def test_impossible_jobs_are_refused_before_they_start(params: dict[str, Any], message: str) -> None:
    def start(p: IngestParams) -> None:
        Ingest().check(p, ())
        Ingest().plan(p, {})

    with pytest.raises(ConfigError, match=message):
        start(IngestParams(**params))


def test_a_folder_without_audio_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "readme.txt", "nothing here")
    with pytest.raises(ConfigError, match="is audio, tar or zip"):
        plan_files(str(tmp_path), 1000)


def test_an_output_among_its_sources_is_none_of_them(folder: Path, engine: LocalEngine) -> None:
    before = IngestParams(source=str(folder)).identity()
    first = ingest(folder / "made" / "recordings", engine, source=str(folder), licence="CC0")
    assert IngestParams(source=str(folder)).identity() == before
    second = ingest(folder / "recordings", engine, source=str(folder), licence="CC0")
    assert first.manifest.digest == second.manifest.digest


def test_globs_choose_files(folder: Path) -> None:
    (spec,) = plan_files(f"{folder}/talks/*", 10**9)
    assert spec["files"] == [["one.flac", ["one.srt"], ["one.json"], ["one.json"]], ["two.WAV", ["two.en.vtt"], [], []]]
    (alone,) = plan_files(f"{folder}/bob_3.mp3", 10**9)
    assert alone["files"] == [["bob_3.mp3", ["bob_3.txt"], [], []]]


def test_what_lies_beside_chosen_media_comes_along(folder: Path) -> None:
    (spec,) = plan_files(f"{folder}/talks/*.flac", 10**9)
    assert spec == {"files": [["one.flac", ["one.srt"], ["one.json"], ["one.json"]]]}
    before = IngestParams(source=f"{folder}/talks/*.flac").identity()
    put(folder, "talks/one.srt", "1\n00:00:00,100 --> 00:00:00,900\nAnother text.\n")
    assert IngestParams(source=f"{folder}/talks/*.flac").identity() != before


def test_a_folder_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    put(tmp_path, "Talks [2019]/what now?.wav", encode(murmur(1)))
    put(tmp_path, "Talks [2019]/what now?.srt", SRT)
    for source in ("Talks [2019]", "Talks [2019]/what now?.wav"):
        assert plan_files(f"{tmp_path}/{source}", 10**9) == [{"files": [["what now?.wav", ["what now?.srt"], [], []]]}]


def test_files_that_nothing_is_made_of_are_counted(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "media"
    for name in ("one.wav", "_intro.wav"):  # a leading underscore hides folders (of Hadoop) only
        put(root, name, encode(murmur(1, seed=len(name))))
        put(root, name.replace(".wav", ".srt"), SRT)
    for name in ("slides.pdf", "README", "notes.txt", "one.vtt", ".DS_Store", "_temporary/part.wav", "orphan.srt"):
        put(root, name, "x")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("a.flac", "a.pdf", "lone.srt", "README"):
            tar.addfile(tarfile.TarInfo(name))
    put(root, "pack.tar", packed.getvalue())
    out = ingest(tmp_path / "out", engine, source=str(root), licence="CC0", max_bad=1)
    assert sorted(row["name"] for row in rows(out)) == ["_intro", "one"]
    counts = {".pdf": 2, "no suffix": 2, ".txt": 1, ".vtt": 1, "hidden": 2, "transcript without audio": 2}
    assert out.manifest.summary["not_read"] == counts
    named = [
        "README",
        "notes.txt",
        "one.vtt",
        "orphan.srt",
        "pack.tar!README",
        "pack.tar!a.pdf",
        "pack.tar!lone.srt",
        "slides.pdf",
    ]
    unread = {row["source"]: row["kind"] for row in rows(out, ".not_read.parquet")}
    assert sorted(unread) == named
    assert unread["orphan.srt"] == unread["pack.tar!lone.srt"] == "transcript without audio"
    assert sum(receipt.stats.get("transcripts_without_audio", 0) for receipt in out.receipts()) == 2


@given(
    st.lists(
        st.from_regex(r"[ab]/[a-f]\.(wav|mp3|srt|txt|json|vtt|pdf|en\.srt)", fullmatch=True), max_size=20, unique=True
    )
)
def test_every_medium_is_in_exactly_one_group_with_files_of_its_stem(paths: list[str]) -> None:
    groups = [group for group in group_files(sorted(paths)) if group.media]
    assert sorted(group.media for group in groups) == sorted(p for p in paths if p.endswith((".wav", ".mp3")))
    for group in groups:
        stem = split_suffix(group.media)[0]
        assert all(path.startswith(f"{stem}.") for path in group.transcripts)
        assert group.infos in ((), (f"{stem}.json",))


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30), st.integers(1, 5000))
@settings(max_examples=25)
def test_tasks_are_about_equal_and_cover_all_files(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], shard_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("media")
    for i, size in enumerate(sizes):
        put(root, f"{i:03d}.wav", bytes(size))
    tasks = [
        [int(split_suffix(media)[0]) for media, *_ in spec["files"]] for spec in plan_files(str(root), shard_bytes)
    ]
    assert [i for task in tasks for i in task] == list(range(len(sizes)))
    for task in tasks[:-1]:
        assert shard_bytes <= sum(sizes[i] for i in task) < shard_bytes + max(sizes)


def test_real_telephone_quality_digits(shared_data: Path, tmp_path: Path, engine: LocalEngine) -> None:
    for path in sorted((shared_data / "fsdd").glob("*_george_1.wav"))[:10]:
        put(tmp_path / "in", path.name, path.read_bytes())
        put(tmp_path / "in", f"{path.stem}.txt", path.stem[0])
    given = {"licence": "CC BY-SA 4.0", "speaker_pattern": r"\d_([a-z]+)_\d"}
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), **given)
    found = rows(out)
    assert {row["speaker"] for row in found} == {"george"}
    words = [row["text"] for row in rows(out, ".cues.parquet")]
    assert words == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    with ShardAudio(out, 0) as audio:
        assert all(np.abs(audio.read(row["offset"], row["size"])).max() > 1000 for row in found)


def test_an_unusable_transcript_leaves_its_place_to_its_next_form(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "media"
    french = "Veuillez rester en ligne, le prochain opérateur vous répondra bientôt."
    texts = {
        "empty.srt": b"", "empty.vtt": b"<html>404</html>", "empty.txt": b"Hello there.", "empty.lab": b"Never read.",
        "french.srt": SRT.replace("paid $40.", french).encode(),
        "french.json": b'{"segments": [{"start": 0, "end": 1, "text": "Hello from Whisper."}], "licence": "CC0"}',
        "broken.srt": b"", "broken.txt": bytes(range(256)), "broken.json": b'{"licence": "CC0"}',
    }  # fmt: skip
    for seed, name in enumerate(("empty", "french", "broken")):
        put(root, f"{name}.wav", encode(murmur(1, seed=seed)))
    for name, data in texts.items():
        put(root, name, data)
    out = ingest(tmp_path / "out", engine, source=str(root), licence="CC0", max_bad=1)
    lines = rows(out, ".cues.parquet")
    said = {row["name"]: [cue["text"] for cue in lines if cue["key"] == row["key"]] for row in rows(out)}
    assert said == {"empty": ["hello there"], "french": ["hello from whisper"]}
    assert [(bad["id"], bad["reason"]) for bad in out.bad_records()] == [("broken", "empty-transcript")]
    assert out.summary["not_read"] == {".lab": 1, ".txt": 1}
    unread = [("broken.txt", ".txt"), ("empty.lab", ".lab")]  # broken.txt was looked at, in vain
    assert [(row["source"], row["kind"]) for row in rows(out, ".not_read.parquet")] == unread


def test_mpeg_layer_two_and_compressed_aiff_are_audio(tmp_path: Path, engine: LocalEngine) -> None:
    """Broadcasters archive in .mp2."""
    put(tmp_path / "in", "radio.mp2", track(murmur(3, 48_000), "mp2", "mp2"))
    put(tmp_path / "in", "old.AIFC", encode(murmur(2), kind="AIFF", subtype="ULAW"))
    for name in ("radio.txt", "old.txt"):
        put(tmp_path / "in", name, "Good evening.")
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0-1.0")
    assert sorted((row["name"], round(row["samples"] / 16_000, 1)) for row in rows(out)) == [
        ("old", 2.0),
        ("radio", 3.0),
    ]


def test_subtitles_as_pictures_are_no_transcript(tmp_path: Path, engine: LocalEngine) -> None:
    """VobSub's .sub, which lies beside many films, does not hide a text."""
    for name in "ab":
        put(tmp_path / "in", f"{name}.wav", encode(murmur(2, seed=ord(name))))
        put(tmp_path / "in", f"{name}.sub", b"\0\0\x01\xba" + bytes(100))
    put(tmp_path / "in", "b.txt", "Good evening.")
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0-1.0")
    assert [row["name"] for row in rows(out)] == ["b"]
    assert out.manifest.counts.dropped == {"no-transcript": 1}


def test_a_pointer_of_git_lfs_is_no_damaged_file(tmp_path: Path, engine: LocalEngine) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"
    put(tmp_path / "in", "a.wav", encode(murmur(2)))
    put(tmp_path / "in", "b.flac", pointer)
    for name in ("a.txt", "b.txt"):
        put(tmp_path / "in", name, "Good evening.")
    out = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0-1.0", max_bad=0.9)
    (left_out,) = rows(out, ".left_out.parquet")
    assert (left_out["reason"], "git lfs pull" in left_out["detail"]) == ("unreadable-audio", True)


def test_what_zoom_and_players_add_to_a_name() -> None:
    """A file without the addition comes first; `forced` subtitles have only the lines in other languages."""
    names = ["call.m4a", "call.transcript.vtt", "film.mp4", "film.en.sdh.srt", "film.en.srt", "film.en.forced.srt"]
    call, film = (group for group in group_files(names) if group.media)
    assert (call.transcripts, film.transcripts) == (("call.transcript.vtt",), ("film.en.srt",))
    assert group_files(["film.mp4", "film.en.srt", "film.en.sdh.srt"])[0].transcripts == ("film.en.srt",)
    assert group_files(["film.mp4", "film.en.sdh.srt"])[0].transcripts == ("film.en.sdh.srt",)
    assert group_files(["a.transcript.wav", "a.transcript.txt"])[0].transcripts == ("a.transcript.txt",)
