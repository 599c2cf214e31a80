"""A stage that keeps nothing fails, says why, and names the option; a loss of most records gets a hint."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from command_line import forked
from made_media import encode, murmur, put

from megahour.core.errors import NothingKept
from megahour.core.store import Artifact
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.stage import Ingest
from megahour.corpus.interchange.import_stage import Import
from megahour.corpus.interchange.params import ImportParams
from megahour.cut.params import CutParams
from megahour.cut.stage import Cut
from megahour.engine.local import LocalEngine
from megahour.runner.monitor import Monitor
from megahour.runner.runner import run_stage
from megahour.select.params import SelectParams
from megahour.select.stage import Select

RUN = {"engine": {"workers": 1}}


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """Two good recordings without a licence."""
    root = tmp_path / "talks"
    for number in range(2):
        put(root, f"{number}.wav", encode(murmur(1, seed=number)))
        put(root, f"{number}.txt", "Hello.")
    return root


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked(*map(str, arguments))


def test_the_command_fails_and_names_the_option(talks: Path, tmp_path: Path) -> None:
    done = command("ingest", "--source", talks, "--out", tmp_path / "out", "--workers", "1")
    assert done.returncode == 1
    assert "ingest kept none of 2 records: licence-unknown 2" in done.stderr
    assert "--licence NAME" in done.stderr
    assert "--licences" in done.stderr
    assert "Traceback" not in done.stderr
    assert not Artifact(tmp_path / "out").complete
    assert "--licence LicenseRef-NAME --licences '[LicenseRef-NAME]'" in done.stderr
    mended = command("ingest", "--source", talks, "--out", tmp_path / "out", "--workers", "1", "--licence", "CC0")
    assert mended.returncode == 0, mended.stderr


def test_a_recipe_stops_before_the_steps_behind(talks: Path, tmp_path: Path) -> None:
    steps = {"ingest": {"source": str(talks)}, "cut": {"inputs": {"recordings": "ingest"}, "min_s": 0.5}}
    recipe = put(tmp_path, "r.yaml", yaml.safe_dump({**RUN, "run": str(tmp_path / "run"), "steps": steps}))
    done = command("run", recipe)
    assert done.returncode == 1
    assert "licence-unknown 2" in done.stderr
    assert not (tmp_path / "run" / "cut").exists()
    again = command("run", recipe)
    assert (again.returncode, "licence-unknown 2" in again.stderr) == (1, True)


def test_licences_that_are_refused_are_named(talks: Path, tmp_path: Path, engine: LocalEngine) -> None:
    for number, licence in enumerate(["CC BY-NC 4.0", "who knows"]):
        put(talks, f"{number}.json", json.dumps({"licence": licence}))
    with pytest.raises(NothingKept, match="licence-forbidden 1, licence-unknown 1") as caught:
        run_stage(Ingest(), IngestParams(source=str(talks)), {}, Artifact(tmp_path / "out"), engine, work=tmp_path)
    assert "add CC-BY-NC-4.0 to --licences" in caught.value.remedy


def test_texts_that_are_not_found_show_where_to_look(talks: Path, tmp_path: Path, engine: LocalEngine) -> None:
    for number in range(2):
        (talks / f"{number}.txt").rename(talks / f"{number}.trans.txt")

    def remedy(**params: str) -> str:
        p = IngestParams(source=f"{talks}/", licence="CC0", **params)  # type: ignore[arg-type]
        with pytest.raises(NothingKept, match="no-transcript 2") as caught:
            run_stage(Ingest(), p, {}, Artifact(tmp_path / f"out{len(params)}"), engine, work=tmp_path)
        return caught.value.remedy

    assert f"--transcripts FILE takes a file of all texts, such as '{talks}/**/*.txt'" in remedy()
    other = put(tmp_path, "other.txt", "talks/7: Hello.")
    assert "no line of other.txt is named 0 or 0.wav" in remedy(transcripts=str(other))


def test_bad_records_are_explained_in_quarantine(tmp_path: Path, engine: LocalEngine) -> None:
    put(tmp_path / "in", "a.wav", "no sound")
    put(tmp_path / "in", "a.txt", "Hello.")
    p = IngestParams(source=str(tmp_path / "in"), licence="CC0", max_bad=1)
    with pytest.raises(NothingKept, match="unreadable-audio 1") as caught:
        run_stage(Ingest(), p, {}, Artifact(tmp_path / "out"), engine, work=tmp_path)
    assert str(tmp_path / "out/quarantine") in caught.value.remedy


def test_a_shard_without_records_is_no_error_and_a_large_loss_gets_a_hint(
    talks: Path, tmp_path: Path, engine: LocalEngine
) -> None:
    hints: list[str] = []

    class Hints(Monitor):
        def hint(self, text: str) -> None:
            hints.append(text)

    for number in range(2, 5):
        put(talks, f"{number}.wav", encode(murmur(1, seed=number)))
    p = IngestParams(source=str(talks), licence="CC0", shard_mb=0.01)
    out = run_stage(Ingest(), p, {}, Artifact(tmp_path / "out"), engine, work=tmp_path, monitor=Hints())
    assert (out.shards, out.counts.kept) == (5, 2)
    assert "most records were dropped as no-transcript" in hints[0]
    assert "--no-require-transcript" in hints[0]


def test_import_cut_and_select_say_so_too(talks: Path, tmp_path: Path, engine: LocalEngine) -> None:
    def run(stage: object, p: object, name: str, **inputs: Artifact) -> Artifact:
        out = Artifact(tmp_path / name)
        run_stage(stage, p, inputs, out, engine, work=tmp_path / "work")  # type: ignore[arg-type]
        return out

    manifest = put(talks, "m.json", json.dumps({"audio_filepath": "0.wav", "text": "Hello", "license": "CC-BY-ND-4.0"}))
    with pytest.raises(NothingKept, match="import kept none of 1 records: licence-forbidden 1") as caught:
        run(Import(), ImportParams(format="nemo", source=str(manifest)), "imported")
    assert "add CC-BY-ND-4.0 to --licences" in caught.value.remedy
    recordings = run(Ingest(), IngestParams(source=str(talks), licence="CC0"), "recordings")
    with pytest.raises(NothingKept, match="cut kept none of 2 records: too-short 2") as caught:
        run(Cut(), CutParams(), "cut", recordings=recordings)
    assert "--min-s is 2" in caught.value.remedy
    utterances = run(Cut(), CutParams(min_s=0.5), "utterances", recordings=recordings)
    with pytest.raises(NothingKept, match="select kept none of 2 records") as caught:
        run(Select(), SelectParams(tiers=["clean"]), "selection", utterances=utterances)
    assert "--tiers is ['clean']" in caught.value.remedy
