"""Hours by name of a run and of what its stages left out: equal to a count of all rows, side by side, in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chromium import fits_a_phone, looks, opened
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from made_run import HOSTILE

from megahour.cli.main import app
from megahour.core.errors import StoreError
from megahour.core.receipts import Counts, Manifest
from megahour.core.records import key_of
from megahour.core.schemas import DROPPED, DUPLICATES, FEATURES, LEFT_OUT, RECORDINGS, TARGETS, UTTERANCES
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.engine.local import LocalEngine
from megahour.report import coverage
from megahour.report.coverage import Column, Coverage, cover, difference
from megahour.report.coverage_family import family
from megahour.report.coverage_page import page, rows
from megahour.report.dimensions import domain_of, month_of, named, sums
from megahour.report.explorer import Choice, explore
from megahour.runner.runner import run_stage
from megahour.select.params import SelectParams
from megahour.select.stage import Select

RATE_HZ, DAY_S = 16_000, 86_400
LANGUAGES, LICENCES = ("en", "de", ""), ("CC0-1.0", "CC-BY-4.0")
SOURCES = ("https://www.archive.org/a.mp3", "http://radio.example/x", "talks/monday/1", "bare")
Shard = tuple[dict[str, str], dict[str, pa.Table], dict[str, int]]  # tags, tables by suffix, dropped


def write(
    folder: Path, stage: str, shards: Sequence[Shard], inputs: Mapping[str, Artifact], **summary: Any
) -> Artifact:
    artifact, receipts, counts = Artifact(folder), [], Counts()
    for shard, (tags, tables, dropped) in enumerate(shards):
        with ShardWriter(artifact, shard, "made") as out:
            out.tags.update(tags)
            for suffix, table in tables.items():
                out.table(table, suffix)
            for reason, number in dropped.items():
                out.drop(reason, number)
            receipts.append(out.commit())
            counts.add(out.counts)
    digests = {role: each.manifest.digest for role, each in inputs.items()}
    digest = content_digest(receipts, {"stage": stage, **summary})
    finish(artifact, receipts, Manifest(stage, 1, "f", digest, {}, digests, len(receipts), counts, summary))
    return Artifact(folder)


def empty(schema: pa.Schema) -> dict[str, Any]:
    zeros = {"string": "", "bool": False}
    return {field.name: [] if "list" in str(field.type) else zeros.get(str(field.type), 0) for field in schema}


def recording(i: int) -> dict[str, Any]:
    return {
        **empty(RECORDINGS),
        **{"key": key_of("r", i), "samples": RATE_HZ * 60 * (1 + i), "rate_hz": RATE_HZ, "speaker": f"Speaker_{i % 4}"},
        **{"language": LANGUAGES[i % 3], "licence": LICENCES[i % 2], "source": SOURCES[i % 4]},
        "created_s": 0 if i == 5 else 1_700_000_000 + 20 * DAY_S * i,
    }


def utterance(i: int, of: dict[str, Any]) -> dict[str, Any]:
    kept = ("rate_hz", "speaker", "language", "licence", "source", "created_s")
    return {
        **empty(UTTERANCES),
        **{name: of[name] for name in kept},
        **{
            "key": key_of("u", i),
            "recording": of["key"],
            "samples": RATE_HZ * (2 + i % 5),
            "confidence": (i % 10) / 10,
        },
        **{"text": "" if i % 11 == 0 else "words", "transcript": -(i % 3 == 0), "tier": ("clean", "dirty")[i % 2]},
        "speaker": of["speaker"].upper() if i % 2 else of["speaker"],  # `select` writes one spelling
    }


def make_run(root: Path, engine: LocalEngine, n: int = 60) -> dict[str, Any]:
    """A run in which each stage left something out, of two shards; and all its rows."""
    recordings = [recording(i) for i in range(6)]
    made = [utterance(i, recordings[i % 6]) for i in range(n)]
    made.sort(key=lambda row: row["recording"] in {r["key"] for r in recordings[3:]})
    halves = [
        [row for row in made if row["recording"] in {r["key"] for r in half}]
        for half in (recordings[:3], recordings[3:])
    ]
    lost = [
        {
            **empty(DROPPED),
            "recording": recordings[i % 6]["key"],
            "start_samples": i * 100 if i % 4 else -1,
            "end_samples": i * 100 + RATE_HZ * 3,
            "reason": ("high-cer", HOSTILE)[i % 2],
        }
        for i in range(12)
    ]
    refused = [
        {**empty(LEFT_OUT), "source": SOURCES[0], "licence": "NC", "reason": "licence-forbidden", "seconds": 90.0},
        {**empty(LEFT_OUT), "source": "odd", "reason": "unreadable-audio", "seconds": float("nan")},
    ]
    parts = [recordings[:3], recordings[3:]]
    first = write(
        root / "recordings",
        "ingest",
        [
            (
                {},
                {
                    ".parquet": pa.Table.from_pylist(part, RECORDINGS),
                    ".left_out.parquet": pa.Table.from_pylist(refused[i : i + 1], LEFT_OUT),
                },
                {refused[i]["reason"]: 1},
            )
            for i, part in enumerate(parts)
        ],
        {},
    )
    second = write(
        root / "utterances",
        "cut",
        [
            (
                {},
                {
                    ".parquet": pa.Table.from_pylist(half, UTTERANCES),
                    ".dropped.parquet": pa.Table.from_pylist(
                        [row for row in lost if row["recording"] in {r["key"] for r in part}], DROPPED
                    ),
                },
                {"high-cer": 6},
            )
            for half, part in zip(halves, parts, strict=True)
        ],
        {"recordings": first},
    )
    twice = [row["key"] for row in made[::7]]
    listed = [{"key": key, "duplicate_of": 1, "kind": "text", "similarity": 1.0} for key in twice]
    third = write(
        root / "doubles",
        "duplicates",
        [({}, {".parquet": pa.Table.from_pylist(listed[i:] if i else listed[:5], DUPLICATES)}, {}) for i in (0, 3)],
        {"utterances": second},
        listed_text=len(listed) + 2,
    )  # two are in both shards
    p = SelectParams.model_validate(
        {
            "sets": [{"name": "test", "speakers": 1}, {"name": "unlabelled"}],
            "min_confidence": 0.3,
            "shard_hours": 0.01,
            "shared_recordings": "drop",
        }
    )
    run_stage(Select(), p, {"utterances": second, "duplicates": third}, Artifact(root / "chosen"), engine)
    chosen = Artifact(root / "chosen")
    tables = [(r.tags["set"], chosen.read_table(r.shard).to_pylist()) for r in chosen.receipts()]
    small = [
        (
            name,
            [
                {
                    **empty(FEATURES),
                    "frames": 100 * row["samples"] // RATE_HZ,
                    "features": [],
                    **{c: row[c] for c in ("key", "speaker", "text", "set")},
                }
                for row in table
            ],
        )
        for name, table in sorted(tables, key=lambda each: each[0] == "test")
    ]  # set by set, in another order
    fourth = write(
        root / "features",
        "features",
        [({"set": name}, {".arrow": pa.Table.from_pylist(table, FEATURES)}, {}) for name, table in small],
        {"selection": chosen, "utterances": second},
    )
    taught = [
        (
            {"set": name, "features_shard": str(i)},
            {
                ".arrow": pa.Table.from_pylist(
                    [
                        {"key": row["key"], "offset": offset, "frames": 1, "indices": [0], "logits": [0.0]}
                        for row in table
                        for offset in (0, 2)
                    ],
                    TARGETS,
                )
            },
            {},
        )
        for i, (name, table) in enumerate(small)
        if name == "unlabelled"
    ]
    write(root / "labels", "targets", taught, {"features": fourth}, sets=["unlabelled"])
    rows_of = {"recordings": recordings, "utterances": made, "chosen": [row for _, table in tables for row in table]}
    return {"root": root, "rows": rows_of, "twice": set(twice), "lost": lost}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, engine: LocalEngine) -> dict[str, Any]:
    return make_run(tmp_path_factory.mktemp("run") / "one", engine)


@pytest.fixture(scope="module")
def found(run: dict[str, Any]) -> Coverage:
    return cover(str(run["root"]))


def month(row: dict[str, Any]) -> str:
    return f"{datetime.fromtimestamp(row['created_s'], UTC):%Y-%m}" if row["created_s"] else ""


def label(row: dict[str, Any]) -> str:
    return "none" if not row["text"] else "recogniser" if row["transcript"] < 0 else "human"


BY_HAND = {
    "language": lambda row: row["language"],
    "licence": lambda row: row["licence"],
    "domain": lambda row: dict(zip(SOURCES, ("archive.org", "radio.example", "talks", ""), strict=True))[row["source"]],
    "speaker": lambda row: row["speaker"].lower().replace("_", " "),
    "month": month,
    "tier": lambda row: row["tier"],
    "label": label,
}


def by_hand(counted: Sequence[dict[str, Any]], dimension: str) -> dict[str, tuple[int, float]]:
    seconds: dict[str, float] = defaultdict(float)
    for row in counted:
        seconds[BY_HAND[dimension](row)] += row["samples"] / row["rate_hz"]
    records = Counter(BY_HAND[dimension](row) for row in counted)
    return {name: (records[name], pytest.approx(value)) for name, value in seconds.items()}


def told(of: Coverage, artifact: str, part: str, dimension: str) -> dict[str, tuple[float, float]]:
    (column,) = [column for column in of.columns if (column.artifact, column.part) == (artifact, part)]
    tallies = column.hours[dimension].tallies if dimension in column.hours else {}
    return {name: (tally.records, tally.seconds) for name, tally in tallies.items()}


@pytest.mark.parametrize("dimension", BY_HAND)
def test_hours_are_those_of_all_rows(run: dict[str, Any], found: Coverage, dimension: str) -> None:
    made, chosen = run["rows"]["utterances"], run["rows"]["chosen"]
    assert told(found, "utterances", "kept", dimension) == by_hand(made, dimension)
    twice = [row for row in made if row["key"] in run["twice"]]
    assert told(found, "doubles", "left out", dimension) == by_hand(twice, dimension)
    taken = {row["key"] for row in chosen} | run["twice"]
    left = [row for row in made if row["key"] not in taken]
    assert len(left) > 5
    assert told(found, "chosen", "left out", dimension) == by_hand(left, dimension)
    if dimension != "label":
        assert told(found, "chosen", "kept", dimension) == by_hand(chosen, dimension)
        assert told(found, "features", "kept", dimension) == by_hand(chosen, dimension)
        mine = [row for row in chosen if row["set"] == "unlabelled"]
        assert told(found, "labels", "kept", dimension) == by_hand(mine, dimension)
    if dimension not in ("label", "tier"):
        assert told(found, "recordings", "kept", dimension) == by_hand(run["rows"]["recordings"], dimension)


def test_a_frame_at_22050_hz_is_220_samples(tmp_path: Path) -> None:
    """Taken for 10 ms, an hour had 3608 seconds."""
    table = pa.Table.from_pylist([{**empty(FEATURES), "frames": 3600 * 22_050 // 220, "features": []}], FEATURES)
    audio = {"rate_hz": 22_050}
    write(tmp_path / "features", "features", [({}, {".arrow": table}, {})], {}, audio=audio)
    assert cover(str(tmp_path / "features")).main.seconds == pytest.approx(3600, abs=0.01)


def test_labels_are_a_teachers_where_it_made_targets(run: dict[str, Any], found: Coverage) -> None:
    for artifact in ("chosen", "features"):
        labels = told(found, artifact, "kept", "label")
        tests = [row for row in run["rows"]["chosen"] if row["set"] == "test"]
        assert labels == by_hand(tests, "label") | {
            "teacher": (
                len(run["rows"]["chosen"]) - len(tests),
                pytest.approx(sum(row["samples"] for row in run["rows"]["chosen"] if row["set"] != "test") / RATE_HZ),
            )
        }
    assert told(found, "labels", "kept", "label").keys() == {"teacher"}


def test_what_cut_and_ingest_left_out_has_the_names_of_its_recording(run: dict[str, Any], found: Coverage) -> None:
    of = {row["key"]: row for row in run["rows"]["recordings"]}
    placed = [
        {**of[row["recording"]], "samples": (row["end_samples"] - row["start_samples"]) * (row["start_samples"] > 0)}
        for row in run["lost"]
    ]
    for dimension in ("language", "licence", "domain", "speaker", "month"):
        assert told(found, "utterances", "left out", dimension) == by_hand(placed, dimension)
    assert told(found, "utterances", "left out", "reason").keys() == {"high-cer", HOSTILE}
    assert told(found, "recordings", "left out", "licence") == {"NC": (1, 90.0), "": (1, 0.0)}
    assert told(found, "recordings", "left out", "domain") == {"archive.org": (1, 90.0), "": (1, 0.0)}
    (ingest,) = [column for column in found.columns if (column.stage, column.part) == ("ingest", "left out")]
    assert ingest.reasons == {"licence-forbidden": 1, "unreadable-audio": 1}


def test_an_artifact_is_counted_with_what_it_was_made_of(run: dict[str, Any], found: Coverage) -> None:
    one = cover(str(run["root"] / "chosen"))
    assert [(column.artifact, column.part) for column in one.columns] == [
        *(("recordings", "left out"), ("recordings", "kept"), ("utterances", "left out"), ("utterances", "kept")),
        *(("doubles", "left out"), ("chosen", "left out"), ("chosen", "kept")),
    ]
    assert (one.main.artifact, found.main.artifact) == ("chosen", "chosen")
    assert one.title == "chosen"
    assert told(one, "chosen", "kept", "label") == told(found, "chosen", "kept", "label")
    with pytest.raises(StoreError, match="or the folder of a run"):
        cover(str(run["root"].parent / "none"))


def test_counts_do_not_depend_on_the_engine_nor_on_how_many_keys_are_held(
    run: dict[str, Any], found: Coverage, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, int]] = []
    assert list(rows([cover(str(run["root"]), engine, lambda *step: steps.append(step))])) == list(rows([found]))
    assert steps[-1][0] == steps[-1][1] == len(steps)
    monkeypatch.setattr(coverage, "MOST_KEYS", 4)
    shards = len(steps)
    again = cover(str(run["root"]), None, lambda *step: steps.append(step))
    assert list(rows([again])) == list(rows([found])), "keys that two shards list count once"
    parts = 1 + (len(run["twice"]) + 2) // 4
    assert len(steps) == 2 * shards + 2 * (parts - 1), "a pass over two shards for every four keys"


def test_more_names_than_counters_are_added_up(
    run: dict[str, Any], found: Coverage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "CAPACITY", 2)
    few = cover(str(run["root"]))
    speakers = [
        row
        for row in rows([few])
        if (row["artifact"], row["part"]) == ("utterances", "kept") and row["dimension"] == "speaker"
    ]
    assert len(speakers) <= 3
    assert speakers[-1]["name"] is None
    assert sum(row["hours"] for row in speakers) == pytest.approx(
        sum(row["samples"] for row in run["rows"]["utterances"]) / RATE_HZ / 3600
    )
    (left,) = [column for column in few.columns if (column.artifact, column.part) == ("chosen", "left out")]
    assert "speaker" not in left.hours, "a difference of names that are not all known is none"
    assert "all" in left.hours
    assert "more names than counters" in page([few], "few", 5)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "", None]), st.integers(0, 2**34), st.floats(0, 9)), max_size=30))
def test_sums_are_those_of_each_name(made: list[tuple[str | None, int, float]]) -> None:
    table = pa.table(
        {
            "language": pa.array([row[0] for row in made], pa.string()),
            "created_s": pa.array([row[1] for row in made], pa.int64()),
        }
    )
    names = named(table)
    found = sums(names, pa.array([row[2] for row in made], pa.float64()).to_numpy())
    assert {name: (n, pytest.approx(s)) for name, n, s in found["language"]} == {
        name: (sum((row[0] or "") == name for row in made), sum(row[2] for row in made if (row[0] or "") == name))
        for name in {row[0] or "" for row in made}
    }
    assert names["month"] == [month({"created_s": row[1]}) for row in made] == list(month_of(row[1] for row in made))


def test_months_are_in_order_and_the_rest_is_added_up() -> None:
    column = Column("chosen", "select", "kept", "selection")
    times = {"2024-02": 3600.0, "2023-11": 7200.0, "2024-01": 9000.0}
    column.add({"all": [("", 3, 19_800.0)], "month": [(name, 1, seconds) for name, seconds in times.items()]})
    one = Coverage("one", (column,), column)
    months = [html.split("<")[0] for html in page([one], "one", 3).split("<bdi>")[1:]]
    assert months == sorted(times)
    assert "all others" not in page([one], "one", 3)
    few = page([one], "one", 2).replace("\n", "")
    assert re.search(r"2023-11.*2024-01.*all others</td><td[^>]*>1\.00</td>", few)
    assert "2024-02" not in few


def test_speakers_are_named_as_they_are_compared() -> None:
    """But those of recordings without a name, which are addresses."""
    speakers = ["Dr_No", "dr no", "A/B.wav", None]
    assert named(pa.table({"speaker": speakers}))["speaker"] == ["dr no", "dr no", "A/B.wav", ""]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.sampled_from(["kept", "left", "listed"]))))
def test_what_was_left_out_is_what_neither_stayed_nor_was_listed(made: list[tuple[str, int, str]]) -> None:
    def column(*wanted: str) -> Column:
        found = Column("a", "cut", "kept", "utterances")
        mine = [(name, seconds) for name, seconds, end in made if end in wanted]
        found.add({"language": [(name, 1, float(seconds)) for name, seconds in mine]})
        return found

    left = column("left").hours["language"]
    found = difference(column("kept", "left", "listed"), [column("kept"), column("listed")])["language"]
    assert {name: (t.records, t.seconds) for name, t in found.tallies.items()} == {
        name: (t.records, t.seconds) for name, t in left.tallies.items()
    }


def test_targets_of_one_selection_do_not_label_another(run: dict[str, Any], tmp_path: Path) -> None:
    root = shutil.copytree(run["root"], tmp_path / "run")
    chosen = Artifact(root / "chosen")
    shards = [(r.tags, {".parquet": chosen.read_table(r.shard)}, {}) for r in chosen.receipts()]
    write(root / "also", "select", shards, {"utterances": Artifact(root / "utterances")}, another=True)
    found = cover(str(root))
    assert "teacher" in told(found, "chosen", "kept", "label")
    assert "teacher" not in told(found, "also", "kept", "label")
    assert told(found, "also", "kept", "language") == told(found, "chosen", "kept", "language")


def test_domains_of_addresses_and_paths() -> None:
    wanted = {
        "https://[bad/x": "",
        "s3://bucket/key": "bucket",
        "file.wav": "",
        "./a/b.wav": "a",
        "": "",
        "https://user@Host.org:80/x": "host.org",
    }
    assert {source: domain_of(source) for source in wanted} == wanted


# -- command and page ------------------------------------------------------------------------------------------------


def call(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["coverage", *arguments])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def both(run: dict[str, Any], engine: LocalEngine) -> dict[str, Any]:
    """The run, and one of fewer utterances beside it."""
    return {"one": run, "two": make_run(run["root"].parent / "two", engine, n=36)}


def test_the_same_numbers_as_parquet_and_as_json(both: dict[str, Any], found: Coverage, tmp_path: Path) -> None:
    urls = [str(both[name]["root"]) for name in ("one", "two")]
    told = json.loads(call(*urls, "--json", "--table", str(tmp_path / "hours.parquet")).stdout)
    assert told == pq.read_table(tmp_path / "hours.parquet").to_pylist()
    assert told == list(rows([found, cover(urls[1])]))
    assert {row["run"] for row in told} == {"one", "two"}
    (everything,) = [
        row
        for row in told
        if (row["run"], row["artifact"], row["part"], row["dimension"]) == ("two", "utterances", "kept", "all")
    ]
    assert everything["records"] == 36
    again = json.loads(call(urls[0], urls[0], "--json").stdout)
    assert {row["run"] for row in again} == {"one 1", "one 2"}


def test_the_table_goes_into_a_pipe_that_stays(run: dict[str, Any], tmp_path: Path) -> None:
    """Arrow could not write into it, and removed it."""
    os.mkfifo(pipe := tmp_path / "pipe")
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        told = json.loads(call(str(run["root"]), "--json", "--table", str(pipe)).stdout)
        assert pq.read_table(pa.BufferReader(reader.communicate(timeout=240)[0])).to_pylist() == told
    assert pipe.is_fifo()


def test_what_cannot_be_counted_or_written_is_reported_before_a_shard_is_counted(
    run: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megahour.report.coverage.cover", lambda *_: pytest.fail("a shard was counted"))
    url, table = str(run["root"]), str(tmp_path / "hours.csv")
    done = CliRunner().invoke(app, ["coverage", url, str(tmp_path / "gone")])
    assert "gone: no recordings" in str(done.exception)
    done = CliRunner().invoke(app, ["coverage", url, "--table", table])
    assert f"{table}: the table is a Parquet file" in str(done.exception)


def test_a_step_whose_manifest_is_damaged_is_not_left_out_without_a_word(
    run: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = shutil.copytree(run["root"], tmp_path / "copy")
    (home / "chosen/manifest.json").write_text("{")
    assert "chosen" not in {member.name for member in family(str(home)).members}
    assert f"not counted: {home}/chosen: damaged manifest" in caplog.text


def test_the_explorer_shows_what_came_before(run: dict[str, Any]) -> None:
    html = explore(Artifact(run["root"] / "utterances"), None, Choice(clips=0, each=0), lambda done, shards: None)
    assert "left out by cut" in html
    assert ">2023-11<" in html
    assert ">recogniser<" in html


@pytest.fixture(scope="module", params=["one", "two"])
def shown(
    both: dict[str, Any], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """The page of one run, then of two, in headless Chromium."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    call(*[str(both[name]["root"]) for name in ("one", "two")][: 1 + (request.param == "two")], "--out", str(path))
    with opened(path, 1240) as tab:
        tab.many = 1 + (request.param == "two")
        yield tab


def test_a_page_shows_hours_by_name_and_sorts_them(shown: Any, both: dict[str, Any]) -> None:
    heads = shown.locator("#coverage .panel").first.locator("th").all_inner_texts()
    if shown.many == 1:
        assert heads == [
            "Language",
            "recordings",
            "left out by cut",
            "utterances",
            "left out by duplicates",
            "left out by select",
            "chosen",
            "features",
            "labels",
        ]
    else:
        assert heads[1:4] == ["one: chosen", "two: chosen", "Difference"]
        assert heads[-2:] == ["one: left out by select", "two: left out by select"]
    place = next(i for i, head in enumerate(heads) if head.endswith("chosen"))
    table = shown.locator("#coverage table").first
    hours = by_hand(both["one"]["rows"]["chosen"], "language")
    lines = [line.split("\t") for line in table.locator("tbody tr").all_inner_texts()]
    for name, (_, seconds) in hours.items():
        (line,) = [line for line in lines if line[0].strip() == (name or "unknown")]
        assert float(line[place]) == pytest.approx(seconds.expected / 3600, abs=0.006)
    if shown.many == 2:
        other = by_hand(both["two"]["rows"]["chosen"], "language")
        differences = {line[0].strip(): float(line[3].replace("−", "-")) for line in lines}
        for name, (_, seconds) in hours.items():
            change = other[name][1].expected - seconds.expected
            assert differences[name or "unknown"] == pytest.approx(change / 3600, abs=0.006)
    table.locator("th button").nth(place).click()
    first = [row.split("\t")[place] for row in table.locator("tbody tr").all_inner_texts()]
    assert [float(value) for value in first] in (sorted(map(float, first)), sorted(map(float, first), reverse=True))
    assert shown.locator("#reasons").inner_text().count(HOSTILE) == shown.many


def test_pages_can_be_read_by_anyone(shown: Any) -> None:
    for scheme in ("light", "dark"):
        looks(shown, scheme)
    fits_a_phone(shown)
