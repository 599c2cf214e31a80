"""Rows through a user's function: what it may change and leave out, and which parts of it belong to the job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from made_media import encode, murmur, put
from spark_marks import needs_spark

from megahour.cli.main import app
from megahour.core.errors import ConfigError, MegahourError, NothingKept
from megahour.core.hooks import load_function
from megahour.core.kinds import kind_of
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.corpus.apply.params import ApplyParams
from megahour.corpus.apply.stage import Apply
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.stage import Ingest
from megahour.cut.params import CutParams
from megahour.cut.stage import Cut
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage

PAGE = (Path(__file__).parents[3] / "docs/corpus.md").read_text("utf-8")
(SHOWN,) = re.findall(r"```python\n(# my_text.py.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory, engine: LocalEngine) -> Artifact:
    folder = tmp_path_factory.mktemp("apply")
    for number, (seconds, text) in enumerate([(0.5, "Salt & Pepper."), (1.5, "One two"), (2.0, "Three")]):
        put(folder / "in", f"{number}.wav", encode(murmur(seconds, seed=number)))
        put(folder / "in", f"{number}.txt", text)
    out = Artifact(folder / "out")
    p = IngestParams(source=str(folder / "in"), licence="CC0", shard_mb=0.05)
    run_stage(Ingest(), p, {}, out, engine, work=folder / "work")
    assert out.manifest.shards == 2
    return out


def applied(tmp_path: Path, engine: Any, artifact: Artifact, code: str, name: str, **more: Any) -> Artifact:
    file = put(tmp_path, "my_text.py", code)
    out = Artifact(tmp_path / "applied")
    p = ApplyParams(function=f"{file}:{name}", **more)
    run_stage(Apply(), p, {"artifact": artifact}, out, engine, work=tmp_path / "work")
    assert verify(out) == []
    return out


def rows(artifact: Artifact, suffix: str = ".parquet") -> list[dict[str, Any]]:
    return [row for r in artifact.receipts() for row in artifact.read_table(r.shard, suffix).to_pylist()]


def test_a_normaliser_as_the_page_shows_it(tmp_path: Path, engine: LocalEngine, recordings: Artifact) -> None:
    out = applied(tmp_path, engine, recordings, SHOWN, "mine", table="cues")
    first, second, _ = rows(out, ".cues.parquet")
    assert (first["text"], second["text"]) == ("salt und pepper.", "one two")
    assert [first["raw"][a:b] for a, b in zip(first["offsets"], first["ends"], strict=True)] == ["Salt", "&", "Pepper"]
    assert rows(out) == rows(recordings)
    audio = [Path(artifact.shard_path(0, ".tar")) for artifact in (out, recordings)]
    assert audio[0].samefile(audio[1])
    assert kind_of(out) == "recordings"


def test_a_filter_as_the_page_shows_it_and_the_stage_behind_it(
    tmp_path: Path, engine: LocalEngine, recordings: Artifact
) -> None:
    out = applied(tmp_path, engine, recordings, SHOWN, "long_enough", batch_rows=1)
    assert [row["name"] for row in rows(out)] == ["1", "2"]
    assert [row["text"] for row in rows(out, ".cues.parquet")] == ["one two", "three"]
    counts = out.manifest.counts
    assert (counts.came_in, counts.kept, counts.dropped) == (3, 2, {"below-a-second": 1})
    assert out.summary["hours"] == round(3.5 / 3600, 4)
    cut = Artifact(tmp_path / "cut")
    run_stage(Cut(), CutParams(min_s=0.1), {"recordings": out}, cut, engine, work=tmp_path / "work")
    assert [row["text"] for row in rows(cut)] == ["one two", "three"]
    longer = applied(tmp_path / "b", engine, cut, SHOWN, "long_enough")
    assert (kind_of(longer), len(rows(longer))) == ("utterances", 2)


@pytest.mark.faults
@needs_spark
def test_languages_are_tags_however_an_identifier_writes_them(
    tmp_path: Path, engine: LocalEngine, recordings: Artifact
) -> None:
    """Else "eng" and "en" would be two languages to a model that learns them, and in each table of hours."""
    code = """
import pyarrow as pa

def heard(batch):
    names = {0.5: "eng", 1.5: "Portuguese", 2.0: "zh_tw"}
    place = batch.schema.get_field_index("language")
    lengths = [samples / rate for samples, rate in zip(*(batch[name].to_pylist() for name in ("samples", "rate_hz")))]
    return batch.set_column(place, "language", pa.array([names[length] for length in lengths]))
"""
    out = applied(tmp_path, engine, recordings, code, "heard")
    assert sorted(row["language"] for row in rows(out)) == ["en", "pt", "zh-TW"]


def test_spark_makes_the_same_bytes(tmp_path: Path, engine: LocalEngine, recordings: Artifact) -> None:
    """For cues, by the command, and for rows; a function that raises is named there too."""
    from megahour.engine.spark import SparkEngine

    cues = applied(tmp_path / "cues", engine, recordings, SHOWN, "mine", table="cues")
    words = [
        "--artifact",
        recordings.url,
        "--out",
        f"{tmp_path}/there",
        "--function",
        f"{tmp_path}/cues/my_text.py:mine",
    ]
    on_spark = ["--table", "cues", "--engine", "spark", "--master", "local[2]"]
    done = CliRunner().invoke(app, ["apply", *words, *on_spark])
    assert done.exit_code == 0, done.output
    assert Artifact(tmp_path / "there").manifest.digest == cues.manifest.digest
    with SparkEngine("local[2]") as spark:
        here, there = (
            applied(tmp_path / kind, runs, recordings, SHOWN, "long_enough")
            for kind, runs in (("rows", engine), ("rows-there", spark))
        )
        assert here.manifest.digest == there.manifest.digest
        with pytest.raises(MegahourError, match=r"f raised ZeroDivisionError"):
            applied(tmp_path / "bad", spark, recordings, CHANGED + "1 / 0", "f")


def test_words_that_have_no_place_may_be_anywhere_in_their_cue(
    tmp_path: Path, engine: LocalEngine, recordings: Artifact
) -> None:
    longer = "batch.set_column(5, 'text', pc.binary_join_element_wise(batch['raw'], 'x', ' '))"
    spelt = "batch.set_column(5, 'text', pc.replace_substring(batch['raw'], 'One two', 'eins  zwei'))"
    found = [
        rows(applied(tmp_path / name, engine, recordings, CHANGED + code, "f", table="cues"), ".cues.parquet")[1]
        for name, code in (("longer", longer), ("spelt", spelt))
    ]
    assert [(row["text"], row["offsets"], row["ends"]) for row in found] == [
        ("One two x", [0, 0, 0], [7, 7, 7]),
        ("eins zwei", [0, 4], [3, 7]),
    ]


CHANGED = "import pyarrow as pa\nimport pyarrow.compute as pc\ndef f(batch):\n    return "


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("batch.drop_columns(['speaker'])", r"missing columns \['speaker'\]"),
        ("batch.append_column('mood', batch['name'])", r"unknown columns \['mood'\]"),
        ("batch.set_column(4, 'samples', pc.add(batch['samples'], 1))", r"changed columns \['samples'\], which locate"),
        ("pa.concat_tables([pa.table(batch)] * 2)", "a row whose key is new, or occurs twice"),
        ("batch.set_column(4, 'samples', batch['name'].take(pa.array([None] * len(batch), pa.int32())))", "changed"),
        ("[1]", "returned a list"),
        (
            "1 / 0",
            r"f raised ZeroDivisionError: division by zero \(.*my_text.py:4\)\n.*a changed file makes all shards again",
        ),
        (
            "batch.append_column('reason', pc.less(batch['samples'], 1))",
            "a column reason of true and false; it is a text",
        ),
        ("exit(3)", r"f raised SystemExit: 3"),
        ("batch.set_column(7, 'speaker', pa.nulls(len(batch), pa.string()))", r"nulls in columns .'speaker'.; leave"),
    ],
)
def test_what_a_function_may_not_give(
    tmp_path: Path, engine: LocalEngine, recordings: Artifact, code: str, said: str
) -> None:
    with pytest.raises(MegahourError, match=said):
        applied(tmp_path, engine, recordings, CHANGED + code, "f")


def test_words_of_utterances_follow_their_text(tmp_path: Path, engine: LocalEngine, recordings: Artifact) -> None:
    cut = Artifact(tmp_path / "cut")
    run_stage(Cut(), CutParams(min_s=0.1), {"recordings": recordings}, cut, engine, work=tmp_path / "work")
    code = "pa.RecordBatch.from_pylist([{**row, **new(row)} for row in batch.to_pylist()], batch.schema)\ndef new(row):"
    texts = "{'One two': ' ONE  TWO', 'Three': '', 'Salt & Pepper.': 'salt pepper'}"
    out = applied(tmp_path / "a", engine, cut, f"{CHANGED}{code}\n    return {{'text': {texts}[row['raw']]}}", "f")
    first, second = rows(out)
    assert (first["text"], first["words"]) == ("salt pepper", ["salt", "pepper"])  # three before: "salt and pepper"
    assert (first["word_start_samples"], first["word_offset"], first["word_end"]) == ([-1, -1], [0, 0], [14, 14])
    (before,) = (row for row in rows(cut) if row["raw"] == "One two")
    changed = {name for name in before if str(second[name]) != str(before[name])}
    assert (changed, second["words"]) == ({"text", "words"}, ["ONE", "TWO"])
    assert out.manifest.counts.dropped == {"no-text": 1}
    with pytest.raises(MegahourError, match="that are not those of text"):
        applied(tmp_path / "b", engine, cut, f"{CHANGED}{code}\n    return {{'words': ['one']}}", "f")


def test_null_numbers_are_unknown_as_nan_is(tmp_path: Path, engine: LocalEngine, recordings: Artifact) -> None:
    """pandas has one value for both: a table that went through it has nulls for NaN, in lists, too."""
    cut = Artifact(tmp_path / "cut")
    run_stage(Cut(), CutParams(min_s=0.1), {"recordings": recordings}, cut, engine, work=tmp_path / "work")
    code = "pa.RecordBatch.from_pylist([{**row, 'loss': None, 'word_confidence': [None] * len(row['words'])}"
    made = rows(applied(tmp_path, engine, cut, f"{CHANGED}{code} for row in batch.to_pylist()], batch.schema)", "f"))
    assert [str(row["loss"]) for row in made] == ["nan"] * 3
    assert [str(row["word_confidence"]) for row in made] == ["[nan, nan, nan]", "[nan, nan]", "[nan]"]


def test_a_file_is_imported_like_a_script(tmp_path: Path, recordings: Artifact) -> None:
    """It may import the files beside it, and have a name that a module has; its dataclasses find their module."""
    put(tmp_path, "beside_it.py", "from json import dumps")
    file = put(
        tmp_path,
        "json.py",
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom beside_it import dumps\n"
        "@dataclass\nclass Rule:\n    word: str\ndef f(batch):\n    return dumps(Rule('x').word)",
    )
    assert load_function(f"{file}:f", "function")(None) == '"x"'
    assert json.dumps("x") == '"x"'


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path, recordings: Artifact) -> None:
    file = put(tmp_path, "f.py", "1 / 0")
    with pytest.raises(ConfigError, match=r"f.py cannot be imported: ZeroDivisionError"):
        Apply().plan(ApplyParams(function=f"{file}:f"), {"artifact": recordings})


def test_nothing_left_and_no_function(tmp_path: Path, engine: LocalEngine, recordings: Artifact) -> None:
    with pytest.raises(NothingKept, match=r"left-out-by-function 3\n.*my_text.py:f leaves them out"):
        applied(tmp_path, engine, recordings, CHANGED + "batch.slice(0, 0)", "f")
    for function in ("no_such_module:f", "math:tau", "math", f"{tmp_path}/none.py:f"):
        with pytest.raises(ConfigError, match="function"):
            Apply().plan(ApplyParams(function=function), {"artifact": recordings})


def test_the_file_is_part_of_the_job_unless_it_has_a_version(tmp_path: Path) -> None:
    file = put(tmp_path, "f.py", "def f(batch): return batch")
    before = [ApplyParams(function=f"{file}:f", code_version=version).identity() for version in ("", "1", "2")]
    put(tmp_path, "f.py", "def f(batch): return batch[:1]")
    after = [ApplyParams(function=f"{file}:f", code_version=version).identity() for version in ("", "1", "2")]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, True]
    assert before[1] != before[2]
    assert ApplyParams(function="json:loads").identity()["code"]
