"""The stage around the formats: filters, the same bytes on every engine, resume, and the stages after an import."""

from __future__ import annotations

import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from corpus import made_rows, run, write_corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.cli.stage_command import stage_command
from megahour.core.errors import ConfigError, NothingKept, StoreError
from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import DUPLICATES, SELECTION
from megahour.core.stage import Context
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.verify import verify
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange.export_index import MOST_NAMES, LineSorter, Seen
from megahour.corpus.interchange.export_stage import Export
from megahour.corpus.interchange.import_stage import Import
from megahour.corpus.interchange.kaldi import speaker_id
from megahour.corpus.interchange.params import ExportParams, ImportParams
from megahour.engine.local import LocalEngine
from megahour.features.params import FeaturesParams
from megahour.features.stage import Features
from megahour.recipes.recipe import load_stage
from megahour.runner.runner import run_stage
from megahour.select.params import SelectParams
from megahour.select.stage import Select

FLAT = ["webdataset", "shar", "nemo", "parquet", "ctm", "textgrid", "srt"]
Rows = list[dict[str, Any]]


def shards_of(folder: Path, tables: list[pa.Table]) -> Artifact:
    artifact, receipts = Artifact(folder), []
    for shard, table in enumerate(tables):
        with ShardWriter(artifact, shard, "made") as out:
            out.table(table)
            if "set" in table.column_names:
                out.tags["set"] = table["set"][0].as_py()
            receipts.append(out.commit())
    manifest = Manifest("made", 1, "made", content_digest(receipts, {}), {}, {}, len(tables), Counts(), {})
    finish(artifact, receipts, manifest)
    return artifact


def selection_of(folder: Path, rows: Rows) -> Artifact:
    """A *selection* of these rows: a shard for each set, as `select` writes them."""
    sets = sorted({row["set"] for row in rows})
    return shards_of(
        folder, [pa.Table.from_pylist([row for row in rows if row["set"] == name], SELECTION) for name in sets]
    )


def exported_keys(artifact: Artifact) -> dict[int, dict[str, Any]]:
    files = [artifact.read_bytes(r.shard, ".nemo.jsonl") for r in artifact.receipts() if ".nemo.jsonl" in r.files]
    records = [json.loads(line)["megahour"] for data in files for line in data.splitlines()]
    return {record["key"]: record for record in records}


def test_selection_duplicates_tiers_and_splits(utterances: Artifact, rows: Rows, tmp_path: Path) -> None:
    """Each filter leaves out the right utterances and counts them under its own reason."""
    chosen = [{**row, "set": "test" if i % 2 else "labelled", "shard": 0} for i, row in enumerate(rows[:9])]
    empty = {"offset": 0, "size": 0}
    selection = selection_of(tmp_path / "selection", [{**row, **empty} for row in chosen])
    twice = [{"key": rows[0]["key"], "duplicate_of": rows[1]["key"], "kind": "audio", "similarity": 1.0}]
    duplicates = shards_of(tmp_path / "duplicates", [pa.Table.from_pylist(twice, DUPLICATES)])
    inputs = {"utterances": utterances, "selection": selection, "duplicates": duplicates}
    p = ExportParams(sets=["labelled"], tiers=["clean"], splits=["train"])
    artifact = run(Export(), p, inputs, tmp_path / "out")
    wanted = {
        row["key"]
        for row in chosen[1:]
        if row["set"] == "labelled" and row["tier"] == "clean" and row["split"] == "train"
    }
    found = exported_keys(artifact)
    assert set(found) == wanted != set()
    assert {record["set"] for record in found.values()} == {"labelled"}
    counts = artifact.manifest.counts
    assert counts.dropped["duplicate"] == 1
    assert counts.dropped["not-selected"] == len(rows) - 9
    assert counts.came_in == len(rows) == counts.kept + sum(counts.dropped.values())
    assert artifact.summary["utterances"] == len(wanted)


def test_a_set_that_the_selection_lacks_is_refused(utterances: Artifact, rows: Rows, tmp_path: Path) -> None:
    """A misspelt set, or sets without a selection, would export nothing of it, without a word."""
    chosen = [{**row, "set": "labelled", "shard": 0, "offset": 0, "size": 0} for row in rows[:3]]
    inputs = {"utterances": utterances, "selection": selection_of(tmp_path / "selection", chosen)}
    with pytest.raises(ConfigError, match="no set 'labeled' – did you mean \"labelled\""):
        run(Export(), ExportParams(sets=["labelled", "labeled"]), inputs, tmp_path / "out")
    with pytest.raises(ConfigError, match="there is no selection"):
        run(Export(), ExportParams(sets=["labelled"]), {"utterances": utterances}, tmp_path / "out")


def test_an_export_of_nothing_fails(utterances: Artifact, rows: Rows, tmp_path: Path, engine: LocalEngine) -> None:
    """A selection of other utterances has none of these, and a split may be misspelt."""
    other = [{**row, "key": row["key"] ^ 1, "set": "test", "shard": 0, "offset": 0, "size": 0} for row in rows[:3]]
    inputs = {"utterances": utterances, "selection": selection_of(tmp_path / "selection", other)}
    with pytest.raises(NothingKept, match=f"none of {len(rows)} records.*: not-selected {len(rows)}"):
        run_stage(Export(), ExportParams(), inputs, Artifact(tmp_path / "out"), engine)
    misspelt = ExportParams(splits=["trian"])
    with pytest.raises(NothingKept, match="other-split") as refused:
        run_stage(Export(), misspelt, {"utterances": utterances}, Artifact(tmp_path / "out"), engine)
    assert "--splits: no utterance has ['trian'] – did you mean \"train\"?; the splits here are [" in str(refused.value)


def test_a_misspelt_split_or_tier_among_others_is_named(
    utterances: Artifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no error: a small corpus may have no speaker in the split dev."""
    inputs = {"utterances": utterances}
    run(Export(), ExportParams(splits=["train", "test"], tiers=["clean", "dirty"]), inputs, tmp_path / "right")
    assert not caplog.messages
    wrong = run(Export(), ExportParams(splits=["train", "tset"], tiers=["clean", "drity"]), inputs, tmp_path / "wrong")
    assert [text.partition(";")[0] for text in caplog.messages] == [
        "export: --splits: no utterance has ['tset'] – did you mean \"test\"?",
        "export: --tiers: no utterance has ['drity'] – did you mean \"dirty\"?",
    ]
    assert wrong.manifest.counts.kept, "the others are exported"


def test_of_too_many_splits_to_remember_none_is_called_absent() -> None:
    for number, absent in ((MOST_NAMES - 1, ["other"]), (MOST_NAMES, []), (2 * MOST_NAMES, [])):
        seen = Seen()
        for name in range(number):
            seen.add({"split": f"split {name}", "tier": None})
        found = seen.absent(ExportParams(splits=["other"], tiers=[""]))
        assert found.get("splits", {}).get("asked", []) == absent
        assert "tiers" not in found, "an unknown tier is there"


def test_same_bytes_for_any_order_and_any_workers(utterances: Artifact, tmp_path: Path, engine: LocalEngine) -> None:
    p = ExportParams(formats=[*FLAT, "kaldi", "files"], max_tar_mb=0.05)
    there = run(Export(), p, {"utterances": utterances}, tmp_path / "a")
    back = run(Export(), p, {"utterances": utterances}, tmp_path / "b", backwards=True)
    run_stage(Export(), p, {"utterances": utterances}, Artifact(tmp_path / "c"), engine, work=tmp_path / "w")
    assert there.manifest.digest == back.manifest.digest == Artifact(tmp_path / "c").manifest.digest


def test_a_lost_shard_and_a_lost_end_are_made_again(utterances: Artifact, tmp_path: Path, engine: LocalEngine) -> None:
    p = ExportParams(formats=[*FLAT, "kaldi", "files"])
    out = Artifact(tmp_path / "out")
    manifest = run_stage(Export(), p, {"utterances": utterances}, out, engine, work=tmp_path / "w")
    assert verify(out) == []
    for lost in ("manifest.json", "receipts/00000.json", f"receipts/{manifest.shards - 1:05d}.json"):
        (tmp_path / "out" / lost).unlink()
    again = Artifact(tmp_path / "out")
    assert run_stage(Export(), p, {"utterances": utterances}, again, engine, work=tmp_path / "w") == manifest
    assert verify(again) == []


def test_a_key_that_comes_twice_stops_the_export(tmp_path: Path) -> None:
    (row,) = made_rows(1)
    twice = write_corpus(tmp_path / "utterances", [[row, row]])
    with pytest.raises(StoreError, match="a key occurs twice"):
        run(Export(), ExportParams(), {"utterances": twice}, tmp_path / "out")


def test_kaldi_text_has_plain_spaces_only(tmp_path: Path) -> None:
    """`utils/validate_text.pl` refuses every other white space, and a line of the id alone is allowed."""
    rows = made_rows(2)
    rows[0]["text"], rows[1]["text"] = "non\u00a0breaking\u2003space", ""
    inputs = {"utterances": write_corpus(tmp_path / "utterances", [rows])}
    run(Export(), ExportParams(formats=["kaldi"]), inputs, tmp_path / "out")
    text = (tmp_path / "out/shards/00001.kaldi/text").read_text("utf-8").splitlines()
    assert sorted(line.partition(" ")[2] for line in text) == ["", "non breaking space"]


def test_subtitles_of_long_names_can_be_unpacked(tmp_path: Path) -> None:
    """A title of 80 Japanese characters is a name of 240 bytes, and of 720 when it is percent-encoded."""
    rows = made_rows(2)
    for row, last in zip(rows, "一二", strict=True):
        row.update(name=79 * "語" + last, channel=0, recording=ord(last))
    inputs = {"utterances": write_corpus(tmp_path / "utterances", [rows])}
    run(Export(), ExportParams(formats=["srt"]), inputs, tmp_path / "out")
    with tarfile.open(tmp_path / "out/shards/00000.srt.tar") as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    records = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "unpacked").glob("*.jsonl")]
    assert {record["name"] for record in records} == {row["name"] for row in rows}
    assert len(list((tmp_path / "unpacked").glob("*.srt"))) == 2


def test_parameters_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="add webdataset"):
        ExportParams(formats=["nemo"])
    with pytest.raises(ValueError, match="a format twice"):
        ExportParams(formats=["srt", "srt"])
    with pytest.raises(ValueError, match="no space"):
        ExportParams(prefix="/my data/")


def test_command_line(utterances: Artifact, tmp_path: Path) -> None:
    """`megahour export` and `megahour import`, as docs/interchange.md has them."""
    runner = CliRunner()
    given = ["--utterances", utterances.url, "--out", f"{tmp_path}/out", "--workers", "1"]
    done = runner.invoke(stage_command("export"), [*given, "--formats", "[webdataset, nemo]"])
    assert done.exit_code == 0, done.output
    readme = next((tmp_path / "out" / "shards").glob("*.README.md")).read_text("utf-8")
    assert "shards/{00000..00002}.tar" in readme
    assert "| CC-BY-4.0 |" in readme
    given = ["--format", "webdataset", "--source", f"{tmp_path}/out/shards/?????.tar", "--out", f"{tmp_path}/back"]
    done = runner.invoke(stage_command("import"), [*given, "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert Artifact(tmp_path / "back").manifest.counts.kept == 11


def test_an_export_on_s3_is_read_back_from_there(utterances: Artifact, tmp_path: Path, s3_url: str) -> None:
    """Tars, manifests of tars, and Kaldi's archives through their byte offsets."""
    place = f"{s3_url}/{tmp_path.name}"
    p = ExportParams(formats=["webdataset", "nemo", "kaldi", "files"])
    for task, spec in enumerate(Export().plan(p, {"utterances": utterances})):
        with ShardWriter(Artifact(place), task, "made") as out:
            Export().run(p, {"utterances": utterances}, spec, out, Context(tmp_path / "work"))
            out.commit()
    sources: list[dict[str, Any]] = [
        {"format": "webdataset", "source": f"{place}/shards/?????.tar"},
        {"format": "nemo-tarred", "source": f"{place}/shards/*.nemo.jsonl", "audio": f"{place}/shards/?????.tar"},
        {"format": "kaldi", "source": f"{place}/shards/00003.kaldi", "root": place},
        {"format": "nemo", "source": f"{place}/shards/*.files.jsonl"},
    ]
    for number, source in enumerate(sources):
        back = run(Import(), ImportParams(**source), {}, tmp_path / f"back-{number}")
        assert (back.manifest.counts.kept, back.manifest.counts.bad) == (11, 0), source["format"]


def test_imported_utterances_feed_select_and_features(exported: Path, tmp_path: Path, engine: LocalEngine) -> None:
    p = ImportParams(format="webdataset", source=f"{exported}/shards/?????.tar")
    back, chosen, made = (Artifact(tmp_path / name) for name in ("back", "selection", "features"))
    work = tmp_path / "w"
    run_stage(Import(), p, {}, back, engine, work=work)
    assert verify(back) == []
    sets = [{"name": "train"}]  # all five speak in one recording: they are in one set
    select = SelectParams.model_validate({"sets": sets, "min_confidence": 0.0})
    run_stage(Select(), select, {"utterances": back}, chosen, engine, work=work)
    inputs = {"selection": chosen, "utterances": back}
    run_stage(Features(), FeaturesParams(mels=16), inputs, made, engine, work=work)
    assert made.manifest.counts.kept == 11
    assert sum(made.read_table(r.shard, ".arrow")["frames"].to_numpy().sum() for r in made.receipts()) > 11 * 45


def test_imported_recordings_feed_cut(exported: Path, tmp_path: Path, engine: LocalEngine) -> None:
    source = f"{exported}/shards/*.files.jsonl"
    recordings, cut = Artifact(tmp_path / "recordings"), Artifact(tmp_path / "cut")
    p = ImportParams(format="nemo", source=source, kind="recordings")
    run_stage(Import(), p, {}, recordings, engine, work=tmp_path / "w")
    stage = load_stage("cut")
    run_stage(stage, stage.params(min_s=0.1), {"recordings": recordings}, cut, engine, work=tmp_path / "w")
    assert verify(recordings) == []
    assert cut.manifest.counts.kept == 11


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b""))), st.integers(1, 400))
def test_sorting_by_runs_equals_sorting(lines: list[bytes], run_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder, LineSorter(Path(folder), run_bytes, fan_in=2) as sorter:
        for line in lines:
            sorter.add(line)
        assert list(sorter.lines()) == sorted(lines)
        with pytest.raises(ValueError, match="newline"):
            sorter.add(b"a\nb")


@given(st.text(max_size=6), st.text(max_size=6))
def test_kaldi_ids_sort_by_speaker_and_name_one_speaker_each(first: str, second: str) -> None:
    ids = [speaker_id(speaker) for speaker in (first, second)]
    assert (ids[0] == ids[1]) == (first == second)
    assert all(i and i.isascii() and not set(i) & set(" -\t\n") for i in ids)
    low, high = "0" * 19, "9" * 19
    if ids[0] < ids[1]:  # even the last utterance of the first speaker comes before the first of the second
        assert f"{ids[0]}-{high}".encode() < f"{ids[1]}-{low}".encode()
