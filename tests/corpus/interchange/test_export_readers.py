"""Each format is opened by its own reader and compared with the record, field by field and sample by sample."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import kaldi_native_io
import kaldiio
import numpy as np
import pyarrow.parquet
import pytest
import soundfile
import srt
import textgrids
import webdataset
from corpus import same, sound
from imported_later import ImportedLater

from megahour.corpus.interchange.record import SCHEMA, checked

lhotse: Any = ImportedLater("lhotse")
Rows = list[dict[str, Any]]
FIELDS = [name for name in SCHEMA.names if name != "set"]


@pytest.fixture(scope="module")
def by_key(rows: Rows) -> dict[str, dict[str, Any]]:
    return {str(row["key"]): row for row in rows}


def shards(exported: Path, suffix: str) -> list[str]:
    return sorted(str(path) for path in (exported / "shards").glob(f"*{suffix}"))


def same_audio(samples: Any, row: dict[str, Any]) -> None:
    """`samples` as integers, or as floats in ±1."""
    samples = np.asarray(samples).reshape(-1)
    if samples.dtype.kind == "f" and np.abs(samples).max() <= 1.0:
        samples = samples * 32768
    assert np.array_equal(samples.astype(np.int16), sound(row["key"] % 1000, row["samples"]))


def test_webdataset(exported: Path, by_key: dict[str, Any]) -> None:
    tars = [path for path in shards(exported, ".tar") if Path(path).name.count(".") == 1]
    found = list(webdataset.WebDataset(tars, shardshuffle=False, empty_check=False))
    assert sorted(sample["__key__"] for sample in found) == sorted(by_key)
    for sample in found:
        row = by_key[sample["__key__"]]
        same(checked(json.loads(sample["json"])), row, FIELDS)
        assert sample["txt"].decode() == row["text"]
        same_audio(soundfile.read(io.BytesIO(sample["flac"]), dtype="int16")[0], row)


def test_webdataset_tars_stay_below_their_limit(exported: Path) -> None:
    tars = [path for path in shards(exported, ".tar") if Path(path).name.count(".") == 1]
    assert len(tars) > 3  # three shards came in
    for path in tars:
        with tarfile.open(path) as tar:
            members = tar.getmembers()
        audio = [member.size for member in members if member.name.endswith(".flac")]
        assert sum(audio) <= 0.09e6 + max(audio, default=0)


def test_byte_index(exported: Path, by_key: dict[str, Any]) -> None:
    seen = 0
    for path in shards(exported, ".index.parquet"):
        tar = Path(path.replace(".index.parquet", ".tar")).read_bytes()
        for entry in pyarrow.parquet.read_table(path).to_pylist():
            row = by_key[str(entry["key"])]
            flac = tar[entry["flac_offset"] : entry["flac_offset"] + entry["flac_size"]]
            same_audio(soundfile.read(io.BytesIO(flac), dtype="int16")[0], row)
            record = tar[entry["json_offset"] : entry["json_offset"] + entry["json_size"]]
            assert json.loads(record)["text"] == entry["text"] == row["text"]
            seen += 1
    assert seen == len(by_key)


def same_cut(cut: Any, row: dict[str, Any]) -> None:
    same(checked(cut.custom["megahour"]), row, FIELDS)
    (supervision,) = cut.supervisions
    assert (supervision.text, supervision.speaker, supervision.language) == (
        row["text"],
        row["speaker"],
        row["language"],
    )
    assert cut.num_samples == round(supervision.duration * row["rate_hz"]) == row["samples"]
    words = (supervision.alignment or {}).get("word", [])
    known = [start for start in row["word_start_samples"] if start >= 0]
    assert [round(word.start * row["rate_hz"]) for word in words] == known
    if known:
        assert [word.symbol for word in words] == row["words"]
        assert [round(word.end * row["rate_hz"]) for word in words] == row["word_end_samples"]
        assert [word.score for word in words] == row["word_confidence"]
    same_audio(cut.load_audio(), row)


def test_lhotse_shar(exported: Path, by_key: dict[str, Any]) -> None:
    fields = {
        "cuts": shards(exported, ".shar.cuts.jsonl.gz"),
        "recording": shards(exported, ".shar.recording.tar"),
    }
    cuts = list(lhotse.CutSet.from_shar(fields=fields))
    assert sorted(cut.id for cut in cuts) == sorted(by_key)
    for cut in cuts:
        same_cut(cut, by_key[cut.id])
        lhotse.qa.validate(cut)


def test_lhotse_cuts_of_files(exported: Path, by_key: dict[str, Any]) -> None:
    cuts = list(lhotse.CutSet.from_files(shards(exported, ".files.cuts.jsonl.gz"), shuffle_iters=False))
    assert sorted(cut.id for cut in cuts) == sorted(by_key)
    for cut in cuts:
        same_cut(cut, by_key[cut.id])


def nemo_entries(path: str) -> list[dict[str, Any]]:
    """What NeMo demands of a manifest line: a JSON object with a path, a duration above 0 and a text."""
    entries = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
    for entry in entries:
        assert isinstance(entry["audio_filepath"], str)
        assert isinstance(entry["duration"], float)
        assert entry["duration"] > 0
        assert isinstance(entry["text"], str)
        assert entry["offset"] == 0
    return entries


def test_nemo_tarred(exported: Path, by_key: dict[str, Any]) -> None:
    """Number n of the manifests lists just the FLAC members of tar n, in their order."""
    seen = []
    for number, path in enumerate(shards(exported, ".nemo.jsonl")):
        entries = nemo_entries(path)
        with tarfile.open(path.replace(".nemo.jsonl", ".tar")) as tar:
            names = [name for name in tar.getnames() if name.endswith(".flac")]
        assert [entry["audio_filepath"] for entry in entries] == names
        for entry in entries:
            row = by_key[entry["audio_filepath"].removesuffix(".flac")]
            assert (entry["text"], entry["lang"], entry["speaker"], entry["shard_id"]) == (
                row["text"],
                row["language"],
                row["speaker"],
                number,
            )
            assert round(entry["duration"] * row["rate_hz"], 6) == row["samples"]
            same(checked(entry["megahour"]), row, FIELDS)
            seen.append(str(row["key"]))
    assert sorted(seen) == sorted(by_key)


def test_nemo_plain(exported: Path, by_key: dict[str, Any]) -> None:
    seen = []
    for path in shards(exported, ".files.jsonl"):
        for entry in nemo_entries(path):
            audio = Path(path).parent / entry["audio_filepath"]  # NeMo takes relative paths from the manifest's folder
            row = by_key[audio.stem]
            same_audio(soundfile.read(audio, dtype="int16")[0], row)
            same(checked(entry["megahour"]), row, FIELDS)
            seen.append(audio.stem)
    assert sorted(seen) == sorted(by_key)


def test_parquet_through_datasets(exported: Path, by_key: dict[str, Any], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    files = shards(exported, ".hf.parquet")
    data = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))
    assert isinstance(data.features["audio"], datasets.Audio)
    raw = data.cast_column("audio", datasets.Audio(decode=False))
    assert sorted(str(key) for key in data["key"]) == sorted(by_key)
    for record in raw:
        row = by_key[str(record["key"])]
        same(record, row, FIELDS)
        assert record["audio"]["path"] == f"{row['key']}.flac"
        same_audio(soundfile.read(io.BytesIO(record["audio"]["bytes"]), dtype="int16")[0], row)


def test_parquet_schema_survives(exported: Path) -> None:
    for path in shards(exported, ".hf.parquet"):
        schema = pyarrow.parquet.read_schema(path)
        assert [schema.field(name).type for name in SCHEMA.names] == SCHEMA.types
        assert json.loads(schema.metadata[b"huggingface"])["info"]["features"]["audio"] == {"_type": "Audio"}


def test_ctm(exported: Path, rows: Rows) -> None:
    """A parser of SCTK's rules: `;;` begins a comment, fields are split at spaces, lines are sorted."""
    times: list[tuple[str, int, float, float, str, str]] = []
    records = []
    for path in shards(exported, ".ctm"):
        own = []
        for line in Path(path).read_text("utf-8").splitlines():
            if line.startswith(";;"):
                records.append(checked(json.loads(line[2:])))
                continue
            name, channel, start, duration, word, score = line.split(" ")
            own.append((name, int(channel), float(start), float(duration), word, score))
        assert own == sorted(own, key=lambda item: item[:3])
        times += own
    wanted = [
        (row["start_samples"] + start, end - start, word)
        for row in rows
        for word, start, end in zip(row["words"], row["word_start_samples"], row["word_end_samples"], strict=True)
        if start >= 0
    ]
    assert sorted((round(t[2] * 16_000), round(t[3] * 16_000), t[4]) for t in times) == sorted(wanted)
    known = {row["key"]: row for row in rows}
    assert len(records) == len(rows)
    for record in records:
        same(record, known[record["key"]], FIELDS)


def test_textgrids(exported: Path, by_key: dict[str, Any], tmp_path: Path) -> None:
    seen = []
    for path in shards(exported, ".textgrid.tar"):
        with tarfile.open(path) as tar:
            tar.extractall(tmp_path)
            seen += tar.getnames()
    assert sorted(name.removesuffix(".TextGrid") for name in seen) == sorted(by_key)
    for name in seen:
        row = by_key[name.removesuffix(".TextGrid")]
        grid = textgrids.TextGrid(tmp_path / name)
        assert [(round(grid.xmin * 16_000), round(grid.xmax * 16_000))] == [(0, row["samples"])]
        spoken = [interval for interval in grid["words"] if interval.text]
        known = [start for start in row["word_start_samples"] if start >= 0]
        assert [round(interval.xmin * 16_000) for interval in spoken] == known
        assert [interval.text for interval in spoken] == (row["words"] if known else [])
        for before, after in zip(grid["words"], grid["words"][1:], strict=False):
            assert before.xmax == after.xmin
        assert [interval.text for interval in grid["segments"]] == [row["text"]]
        same(checked(json.loads(grid["record"][0].text.replace('""', '"'))), row, FIELDS)


def test_srt(exported: Path, rows: Rows) -> None:
    found, records = [], []
    for path in shards(exported, ".srt.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                text = tar.extractfile(member).read().decode()  # type: ignore[union-attr]
                if member.name.endswith(".jsonl"):
                    records += [checked(json.loads(line)) for line in text.splitlines()]
                    continue
                cues = list(srt.parse(text, ignore_errors=False))
                assert [cue.index for cue in cues] == list(range(1, len(cues) + 1))
                found += [(cue.start.total_seconds(), cue.end.total_seconds(), cue.content) for cue in cues]
    wanted = [(row["start_samples"] / 16_000, row["end_samples"] / 16_000, row["raw"]) for row in rows]
    for (start, end, text), (true_start, true_end, raw) in zip(sorted(found), sorted(wanted), strict=True):
        assert abs(start - true_start) <= 0.0005
        assert abs(end - true_end) <= 0.0005
        assert text == raw
    assert {record["key"] for record in records} == {row["key"] for row in rows}


def kaldi_folder(exported: Path) -> Path:
    (folder,) = exported.glob("shards/*.kaldi")
    return folder


def test_kaldi_audio_through_two_readers(exported: Path, by_key: dict[str, Any]) -> None:
    folder = kaldi_folder(exported)
    places = kaldiio.load_scp(str(folder / "wav.scp"))
    assert len(places) == len(by_key)
    for utterance in places:
        rate_hz, samples = places[utterance]
        row = by_key[str(int(utterance.rpartition("-")[2]))]
        assert rate_hz == row["rate_hz"]
        same_audio(samples, row)
    seen = 0
    with kaldi_native_io.SequentialWaveReader(f"scp:{folder / 'wav.scp'}") as reader:
        for utterance, wave in reader:
            same_audio(wave.data.numpy(), by_key[str(int(utterance.rpartition("-")[2]))])
            seen += 1
    assert seen == len(by_key)


def columns(path: Path) -> list[list[str]]:
    """Lines of a Kaldi table, checked as `validate_data_dir.sh` does: sorted in the C locale, each id once."""
    data = path.read_bytes()
    assert data.endswith(b"\n")
    lines = data.splitlines()
    ids = [line.split(b" ")[0] for line in lines]
    assert ids == sorted(set(ids)), path.name
    assert all(line == line.strip() and b"\t" not in line for line in lines)
    return [line.decode().split(" ", 1) for line in lines]


def test_kaldi_directory_obeys_kaldis_rules(exported: Path, by_key: dict[str, Any]) -> None:
    folder = kaldi_folder(exported)
    tables = {path.name: columns(path) for path in folder.iterdir()}
    utterances = [line[0] for line in tables["utt2spk"]]
    for name in ("wav.scp", "segments", "text", "utt2dur", "utt2lang", "utt2megahour"):
        assert [line[0] for line in tables[name]] == utterances, name
    speakers = [line[1] for line in tables["utt2spk"]]
    # "not in sorted order when sorted first on speaker-id" is validate_data_dir.sh's complaint about utt2spk
    assert [s.encode() for s in speakers] == sorted(s.encode() for s in speakers)
    assert all(u.startswith(f"{s}-") for u, s in zip(utterances, speakers, strict=True))
    assert {u: s for s, rest in tables["spk2utt"] for u in rest.split(" ")} == dict(tables["utt2spk"])
    for utterance, text in tables["text"]:
        row = by_key[str(int(utterance.rpartition("-")[2]))]
        assert text == row["text"]
        same(checked(json.loads(dict(tables["utt2megahour"])[utterance])), row, FIELDS)
        assert round(float(dict(tables["utt2dur"])[utterance]) * row["rate_hz"]) == row["samples"]
        recording, start, end = dict(tables["segments"])[utterance].split(" ")
        assert (recording, float(start), round(float(end) * row["rate_hz"])) == (utterance, 0.0, row["samples"])


def test_credits_name_every_recording_with_its_licence(exported: Path, rows: Rows) -> None:
    (path,) = exported.glob("shards/*.credits.tsv")
    head, *lines = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    assert head == ["licence", "attribution", "source", "recording", "utterances", "seconds"]
    wanted = {(r["licence"], "'" + " ".join(r["attribution"].split()), r["source"], r["name"]) for r in rows}
    assert {tuple(line[:4]) for line in lines} == wanted
    assert sum(int(line[4]) for line in lines) == len(rows)
    assert abs(sum(float(line[5]) for line in lines) - sum(r["samples"] for r in rows) / 16_000) < 0.01
