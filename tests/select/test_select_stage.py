"""Stage `select`: nothing is lost, speakers are whole and in order, and the input's sharding does not matter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_here import EngineHere
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_utterances import merge_by_hand, utterance, write_utterances

from megahour.core.errors import ConfigError, NothingKept
from megahour.core.store import Artifact
from megahour.engine.local import LocalEngine
from megahour.report.coverage import Column, reasons_of
from megahour.report.coverage_counts import ALL
from megahour.runner.runner import run_stage
from megahour.select.census import census
from megahour.select.params import SelectParams
from megahour.select.stage import Select

THREE = [{"name": "test", "speakers": 2}, {"name": "labelled", "share": 0.3}, {"name": "unlabelled"}]


def params(**values: Any) -> SelectParams:
    return SelectParams.model_validate({"sets": THREE, "shard_hours": 0.005, **values})


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Ten speakers with six utterances each in two recordings made at the same second; some doubtful or early."""
    rng = np.random.default_rng(3)
    made = []
    for i in range(60):
        speaker, recording = f"s{i % 10}", i % 10 * 2 + i // 30
        values = {"recording": recording, "start_samples": i // 10 % 3 * 90_000, "created_s": 1000 + 500 * (i % 2)}
        made.append(utterance(f"u{i}", speaker, float(rng.uniform(1, 4)), confidence=1 - i % 9 / 10, **values))
    return made


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.integers(0, 60), max_size=4), random=st.randoms(use_true_random=False))
def test_the_output_does_not_depend_on_the_sharding_of_the_input(
    rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, cuts: list[int], random: Any
) -> None:
    mixed = list(rows)
    random.shuffle(mixed)
    bounds = [0, *sorted(cuts), 60]
    parts = [mixed[a:b] for a, b in pairwise(bounds)]
    folder = tmp_path_factory.mktemp("select")

    def columns(name: str, shards: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
        tables = merge_by_hand(params(), write_utterances(folder / name, shards), folder / f"{name}-out")
        return [table.drop_columns(["shard"]).to_pydict() for table in tables]

    assert columns("cut", parts) == columns("whole", [rows])


def test_nothing_is_lost_and_speakers_are_whole_and_in_order(
    rows: list[dict[str, Any]], tmp_path: Path, engine: LocalEngine
) -> None:
    utterances = write_utterances(tmp_path / "utterances", [rows[:25], rows[25:26], rows[26:]])
    output = Artifact(tmp_path / "selection")
    run_stage(Select(), params(), {"utterances": utterances}, output, engine)
    receipts = output.receipts()
    tables = [output.read_table(receipt.shard) for receipt in receipts]
    assert sorted(key for table in tables for key in table["key"].to_pylist()) == sorted(row["key"] for row in rows)
    speakers = [set(table["speaker"].to_pylist()) for table in tables]
    assert sum(map(len, speakers)) == len(set().union(*speakers)) == 10, "no speaker is in two shards"
    for receipt, table in zip(receipts, tables, strict=True):
        assert set(table["set"].to_pylist()) == {receipt.tags["set"]}
        order = [
            tuple(row[name] for name in ("speaker", "created_s", "recording", "start_samples", "key"))
            for row in table.to_pylist()
        ]
        assert order == sorted(order)
        for row in table.to_pylist():
            shard = [utterances.read_table(i)["key"].to_pylist() for i in range(3)]
            assert row["key"] in shard[row["shard"]], "the address of the audio"
    summary = output.summary
    assert summary["no_set"] == 0
    assert {name: row["speakers"] for name, row in summary["sets"].items()} == {
        "test": 2,
        "labelled": 2,
        "unlabelled": 6,
    }
    assert sum(row["utterances"] for row in summary["sets"].values()) == 60


def test_clips_of_unnamed_speakers_get_a_warning(
    rows: list[dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A clip without a named speaker counts as a speaker, so test and training sets may share voices."""
    clips = [{**row, "speaker": f"clips/{number}.wav"} for number, row in enumerate(rows)]

    def warned(name: str, made: list[dict[str, Any]], p: SelectParams) -> bool:
        caplog.clear()
        inputs = {"utterances": write_utterances(tmp_path / name, [made])}
        run_stage(Select(), p, inputs, Artifact(tmp_path / f"{name}-out"), EngineHere())
        return "--speaker-pattern" in caplog.text

    assert warned("clips", clips, params())
    assert not warned("named", rows, params())
    assert not warned("one-set", clips, params(sets=[{"name": "all"}]))


def test_unnamed_speakers_count_as_one_per_recording(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clips = [utterance(f"u{number}", "", recording=number) for number in range(30)]
    p = params(sets=[{"name": "test", "speakers": 3}, {"name": "rest"}])
    output = Artifact(tmp_path / "selection")
    run_stage(Select(), p, {"utterances": write_utterances(tmp_path / "u", [clips])}, output, EngineHere())
    assert {name: row["speakers"] for name, row in output.summary["sets"].items()} == {"test": 3, "rest": 27}
    assert "--speaker-pattern" in caplog.text


def test_hours_of_a_set_do_not_count_what_the_limit_for_a_speaker_leaves_out(tmp_path: Path) -> None:
    rows = [utterance(f"u{i}", f"s{i % 8}", 360.0, recording=i % 8, created_s=i) for i in range(80)]  # an hour of each
    inputs = {"utterances": write_utterances(tmp_path / "u", [rows])}
    p = params(sets=[{"name": "some", "hours": 1.0}, {"name": "rest"}], speaker_hours=0.2, shard_hours=0.4)
    output = Artifact(tmp_path / "selection")
    run_stage(Select(), p, inputs, output, EngineHere())
    assert output.summary["sets"]["some"] == {"utterances": 10, "hours": 1.0, "speakers": 5}
    assert output.summary["sets"]["rest"]["speakers"] == 3
    assert len(output.receipts()) == 4, "of 0.5 and 0.3 hours each"


@pytest.mark.parametrize(
    ("rule", "warning"),
    [
        ({"hours": 7.0}, ""),
        ({"hours": 9.0}, "the set 'last' gets the 7.00 hours that are left, of 9"),
        ({"speakers": 7}, ""),
        ({"speakers": 9}, "the set 'last' gets the 7 speakers that are left, of 9"),
    ],
)
def test_a_set_that_gets_less_than_its_rule_says_is_named(
    rule: dict[str, Any], warning: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [utterance(f"u{i}", f"s{i % 8}", 360.0, recording=i % 8) for i in range(80)]
    p = params(sets=[{"name": "test", "named": ["s3"]}, {"name": "last", **rule}])
    inputs = {"utterances": write_utterances(tmp_path / "u", [rows])}
    run_stage(Select(), p, inputs, Artifact(tmp_path / "selection"), EngineHere())
    assert "that are left" not in caplog.text if not warning else warning in caplog.text


def test_what_is_left_out_is_counted_by_reason(rows: list[dict[str, Any]], tmp_path: Path, engine: LocalEngine) -> None:
    utterances = write_utterances(tmp_path / "utterances", [rows])
    p = params(min_confidence=0.55, from_s=1100, speaker_hours=4 / 3600, sets=[{"name": "few", "speakers": 4}])
    output = Artifact(tmp_path / "selection")
    counts = run_stage(Select(), p, {"utterances": utterances}, output, engine).counts
    assert output.summary["no_set"] == 60 - counts.came_in > 0
    assert set(counts.dropped) == {"low-confidence", "before-from", "over-speaker-hours"}
    assert counts.kept + sum(counts.dropped.values()) == counts.came_in
    table = output.read_table(0)
    seconds: dict[str, float] = defaultdict(float)
    for row in table.to_pylist():
        assert row["confidence"] > 0.54
        assert row["created_s"] >= 1100
        seconds[row["speaker"]] += row["samples"] / 16_000
    assert max(seconds.values()) <= 4.0


@settings(max_examples=8, suppress_health_check=list(HealthCheck), deadline=None)
@given(from_s=st.integers(0, 5), until_s=st.integers(0, 5), cuts=st.lists(st.integers(0, 24), max_size=4))
def test_shards_of_other_times_are_not_read_for_the_plan(
    tmp_path_factory: pytest.TempPathFactory, from_s: int, until_s: int, cuts: list[int]
) -> None:
    """Partitioned by time and speaker or not, the voices and their hours are the same."""
    folder = tmp_path_factory.mktemp("times")
    made = [utterance(f"u{i}", f"s{i % 3}", 1 + i / 9, recording=i, created_s=i // 4) for i in range(24)]
    p, bounds = params(from_s=from_s, until_s=until_s), [0, *sorted(cuts), 24]
    parts = [made[a:b] for a, b in pairwise(bounds)]
    read: list[int] = []

    class Watched(Artifact):
        def read_table(self, shard: int, suffix: str = ".parquet", columns: list[str] | None = None) -> Any:
            read.append(shard)
            return super().read_table(shard, suffix, columns)

    found = census(p, {"utterances": Watched(write_utterances(folder / "parts", parts).url)})
    one = census(p, {"utterances": write_utterances(folder / "one", [made])})
    assert found.hours == one.hours
    wanted = [from_s <= row["created_s"] and (not until_s or row["created_s"] <= until_s) for row in made]
    assert {f"s{i % 3}" for i in range(24) if wanted[i]} == found.hours.keys()
    filled = {i: part for i, part in enumerate(parts) if part}
    late = until_s or 99
    some = [i for i, part in filled.items() if part[-1]["created_s"] >= from_s and part[0]["created_s"] <= late]
    assert [shard for shard in read if shard in filled] == some


def test_rows_that_go_by_way_of_groups_give_the_same_bytes(
    rows: list[dict[str, Any]], tmp_path: Path, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of three partitions; files of a group have several parts, voices and places are counted in several."""
    made = [*rows, utterance("nobody's", "s11", name="talk"), utterance("shared", "", recording=3, name="talk")]
    made += [utterance(f"long {i}", f"S{i}", 20.0, recording=2 * i) for i in range(10)]
    inputs = {"utterances": write_utterances(tmp_path / "utterances", [made[i::6] for i in range(6)])}
    p = params(sets=THREE[:2], shard_hours=0.002, min_confidence=0.3, shared_recordings="drop")
    digests = []
    for few in (64, 5):
        monkeypatch.setattr("megahour.select.stage.FEW", few)
        for size in (1, 1_000_000):
            monkeypatch.setattr("megahour.select.stage.COUNTED_TOGETHER", size)
            monkeypatch.setattr("megahour.select.grouped.TOGETHER_BYTES", 20 * size)
            output = Artifact(tmp_path / f"{few}-{size}")
            manifest = run_stage(Select(), p, inputs, output, EngineHere(), work=tmp_path / "work")
            digests.append(manifest.digest)
    assert manifest.shards >= 4
    assert 0 < manifest.summary["no_set"] < 60
    assert "low-confidence" in manifest.counts.dropped
    assert len(set(digests)) == 1
    names = {name for shard in range(manifest.shards) for name in output.read_table(shard)["speaker"].to_pylist()}
    assert len(names & {f"S{i}" for i in range(10)}) >= 4, "as most of their speech is written"
    assert not names & {f"s{i}" for i in range(10)}


def test_many_shards_send_to_groups_and_groups_to_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are sent: of 100 shards that each send to 100 partitions there would be 10,000."""
    made = [utterance(f"u{i}", f"s{i % 100}", 36.0, recording=i) for i in range(10_000)]
    inputs = {
        "utterances": write_utterances(tmp_path / "utterances", [made[i * 100 : i * 100 + 100] for i in range(100)])
    }
    sent = Counter[str]()

    class Counting(EngineHere):
        def exchange(self, split: Any, items: Any, merge: Any, partitions: int, *, spill: str) -> Any:
            def counted(item: Any) -> Iterator[Any]:
                for block in split(item):
                    sent[split.args[0].stage.rpartition(":")[2]] += 1
                    yield block

            return super().exchange(counted, items, merge, partitions, spill=spill)

    p = params(sets=[{"name": "all"}], shard_hours=1.0)
    manifest = run_stage(Select(), p, inputs, Artifact(tmp_path / "out"), Counting(), work=tmp_path / "work")
    assert (manifest.shards, manifest.counts.kept) == (100, 10_000)
    assert sent == {"CountVoices": 10, "GroupRows": 10 * 10, "Select": 100}


def test_only_the_wanted_languages_and_locales(tmp_path: Path) -> None:
    tags = ("en", "en-US", "en_us", "en-GB", "de", "eng", "und", "")
    made = [utterance(f"u{i}", f"s{i}", language=tag) for i, tag in enumerate(tags)]
    utterances = write_utterances(tmp_path / "utterances", [made[:3], made[3:]])

    def kept(*languages: str) -> list[str]:
        p = params(sets=[{"name": "all"}], languages=languages, shard_hours=1)
        (table,) = merge_by_hand(p, utterances, tmp_path / "-".join(["out", *languages]))
        return sorted(table["language"].to_pylist())

    assert kept("en") == sorted((*tags[:4], "eng"))
    assert kept("en-us", "German") == ["de", "en-US", "en_us"]
    assert kept() == sorted(tags)
    with pytest.raises(NothingKept, match="--languages is"):
        Select().partitions(params(languages=["fr"]), {"utterances": utterances})


def test_a_misspelt_split_tier_or_language_is_named(
    tmp_path: Path, engine: LocalEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a right one it is no error: a small corpus may have no speaker in the split dev."""
    kinds = [("train", "clean", "en-US", 0), ("test", "dirty", "en_us", 0), ("dev", "", "de", 0), ("odd", "", "de", 9)]
    made = [
        utterance(f"u{i}", f"s{i}", split=split, tier=tier, language=language, created_s=created_s)
        for i, (split, tier, language, created_s) in enumerate(kinds)
    ]
    inputs = {"utterances": write_utterances(tmp_path / "utterances", [made[:2], made[2:3], made[3:]])}

    def said(name: str, **values: Any) -> list[str]:
        caplog.clear()
        p = params(sets=[{"name": "all"}], **values)
        run_stage(Select(), p, inputs, Artifact(tmp_path / name), engine, work=tmp_path / f"{name}-work")
        return caplog.messages

    assert said("right", splits=["train", "dev", "odd"], tiers=["clean", ""], languages=["English", "de"]) == []
    assert said("wrong", splits=["train", "tset"], tiers=["drity", "clean"], languages=["en-us", "en-GB", "dee"]) == [
        "select: --splits: no utterance has ['tset'] – did you mean \"test\"?;"
        " the splits here are ['dev', 'odd', 'test', 'train']",
        "select: --tiers: no utterance has ['drity'] – did you mean \"dirty\"?; the tiers here are ['clean', 'dirty']",
        "select: --languages: no utterance has ['dee', 'en-GB'] – did you mean \"de\"?;"
        " the languages here are ['de', 'en-US', 'en_us']",
    ]
    (other_times,) = said("times", splits=["train", "odd"], until_s=5)
    assert other_times.endswith("the splits here are ['dev', 'test', 'train'], in shards of these times")
    with pytest.raises(NothingKept, match=r"--splits is .*no utterance has .*'tset'.* – did you mean \"test\""):
        Select().partitions(params(splits=["tset"]), inputs)


@pytest.mark.parametrize(("limits", "years"), [({}, [1955, 1999]), ({"until_s": -1}, [1955]), ({"from_s": 1}, [1999])])
def test_recordings_of_before_1970_are_early_only_if_a_limit_says_so(
    limits: dict[str, int], years: list[int], tmp_path: Path
) -> None:
    """Their Unix times are negative; 0 is no limit."""
    made = [utterance(f"u{year}", str(year), created_s=(year - 1970) * 365 * 86_400) for year in (1955, 1999)]
    found = census(params(**limits), {"utterances": write_utterances(tmp_path / "u", [[row] for row in made])})
    assert sorted(found.hours) == [str(year) for year in years]


def test_wrong_rules_are_named(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    inputs = {"utterances": write_utterances(tmp_path / "utterances", [rows])}
    unheard = params(sets=[{"name": "test", "named": ["s1", "s99"]}])
    with pytest.raises(ConfigError, match=r"no utterances of the named speakers \['s99'\]"):
        Select().partitions(unheard, inputs)
    greedy = params(sets=[{"name": "test", "speakers": 10}, {"name": "labelled"}])
    with pytest.raises(ConfigError, match=r"no speakers are left for the sets \['labelled'\]: there are 10 speakers"):
        Select().partitions(greedy, inputs)
    with pytest.raises(ValueError, match="named"):
        params(sets=[{"name": "test", "named": []}])  # would take everyone
    with pytest.raises(ValueError, match=r"\['s1'\] are named twice"):
        params(sets=[{"name": "test", "named": ["s1"]}, {"name": "tune", "named": ["s2", "s1"]}])


def test_the_hours_that_it_leaves_out_are_known_by_reason(
    rows: list[dict[str, Any]], tmp_path: Path, engine: LocalEngine
) -> None:
    sure = {"created_s": 1500, "confidence": 1.0}  # of each speaker one: who has none is in no set
    rows = [{**row, **(sure if i < 10 else {})} for i, row in enumerate(rows)]
    utterances = write_utterances(tmp_path / "utterances", [rows[:31], rows[31:]])
    p = params(sets=[{"name": "labelled"}], min_confidence=0.35, from_s=1200, speaker_hours=2.5 / 3600)
    output = Artifact(tmp_path / "selection")
    run_stage(Select(), p, {"utterances": utterances}, output, engine, work=tmp_path / "work")
    kept = {key for shard in range(output.manifest.shards) for key in output.read_table(shard)["key"].to_pylist()}
    expected: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        early = "before-from" if row["created_s"] < 1200 else "over-speaker-hours"
        if row["key"] not in kept:
            expected["low-confidence" if row["confidence"] < 0.35 else early].append(row["samples"] / 16_000)
    expected["no-set"] = [2.0, 2.5, 2.5]  # as if there were more
    left_out = Column("selection", "select", "left out", "selection")
    left_out.add({ALL: [("", sum(map(len, expected.values())), sum(map(sum, expected.values())))]})
    reasons = reasons_of(output, [], left_out)
    assert reasons is not None
    assert {name: tally.records for name, tally in reasons.tallies.items()} == {n: len(s) for n, s in expected.items()}
    for name, seconds in expected.items():
        assert reasons.tallies[name].seconds == pytest.approx(sum(seconds), abs=0.01), name
    beside = reasons_of(output, ["low-confidence"], left_out)
    assert beside is not None
    assert "low-confidence" not in beside.tallies
