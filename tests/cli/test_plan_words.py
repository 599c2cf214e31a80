"""`megahour lm plan`: the laws of text, where n-grams grow more slowly than words."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from megahour.cli.main import app
from megahour.clock.constants import from_json, to_json
from megahour.clock.language_models import ONE_PROCESS
from megahour.clock.measured import Measured, laws
from megahour.clock.pipeline import LEAST_EXPONENT, QUANTITIES, Growth, StepLaws
from megahour.core.errors import ConfigError


def ngrams(words: float) -> float:
    """Millions of n-grams in this many millions of words."""
    return 2.0 * math.exp(0.9 * math.log(words) - 0.01 * math.log(words) ** 2)


def run(words: float) -> list[Measured]:
    """The text, and a step through its n-grams: 3 s and 5 s a million, 7 s of starts, a byte and 300 MB more each."""

    def step(name: str, own: float, **values: float) -> Measured:
        return Measured(name, f"lm-{name}", "cores", dict.fromkeys(QUANTITIES, 0.0) | values, own, 2, 1.0, ())

    own = ngrams(words)
    return [
        step("words", words, shards=4, task_s=words, cpu_s=words),
        step(
            "arpa", own, shards=2 * own, task_s=6 * own, cpu_s=3 + 5 * own, beside_cpu_s=7, written_bytes=1e6 * own,
            peak_bytes=3e8 + 1e6 * own, read_bytes=2e6 * own,
        ),
    ]  # fmt: skip


def found(*sizes: float) -> list[StepLaws]:
    return laws([run(size) for size in sizes], "words", growing=True)


def test_n_grams_grow_on_the_curve_of_three_runs_and_the_power_of_two() -> None:
    three = found(0.5, 1, 2)[1]
    assert three.own.at(40) == pytest.approx(ngrams(40), rel=1e-6)
    two = found(1, 2)[1]
    assert two.own.at(8) == pytest.approx(ngrams(2) * (ngrams(2) / ngrams(1)) ** 2, rel=1e-6)
    assert found(1, 2, 4)[0].own.at(1e6) == pytest.approx(1e6, rel=1e-6), "words grow as words"
    values = dict.fromkeys(QUANTITIES, 1.0)
    bends_up = [
        [*run(size)[:1], Measured("up", "up", "cores", values, size**2 + size, 2, 1.0, ())] for size in (1.0, 2.0, 4.0)
    ]
    assert laws(bends_up, "words", growing=True)[1].own.curve == 0.0  # type: ignore[union-attr]


def test_growth_never_falls_below_a_power() -> None:
    bent = Growth(0.0, 0.9, -0.01)
    at = math.exp((0.9 - LEAST_EXPONENT) / 0.02)
    slope = math.log(bent.at(10 * at) / bent.at(at)) / math.log(10)
    assert slope == pytest.approx(LEAST_EXPONENT)
    assert bent.at(at * 1.001) / bent.at(at) == pytest.approx(1.001**LEAST_EXPONENT, rel=1e-5), "without a step"
    assert Growth(0.0, 0.4, -0.01).at(math.e) == pytest.approx(math.e**LEAST_EXPONENT)


def lm_plan(*words: object) -> Result:
    return CliRunner().invoke(app, ["lm", "plan", *map(str, words)], catch_exceptions=False)


def test_the_command_plans_from_a_file_of_constants(tmp_path: Path) -> None:
    path = tmp_path / "laws.json"
    path.write_text(to_json(found(0.5, 1, 2)))
    made = json.loads(lm_plan("--words", "8e6", "--cores", 3, "--constants", path, "--json").output)
    own = ngrams(8)
    assert made["ngrams"] == pytest.approx(1e6 * own)
    assert made["cpu_s"] == pytest.approx(8 + 3 + 5 * own + 7)
    assert made["peak_bytes"] == pytest.approx(3e8 + 1e6 * ngrams(2)), "of a shard, which is not larger for more text"
    assert (made["written_bytes"], made["read_bytes"]) == (pytest.approx(1e6 * own), pytest.approx(2e6 * own))
    assert made["reserved_s"] == pytest.approx(3 * made["wall_s"])
    shards = round(2 * own)
    assert made["wall_s"] == pytest.approx(2 * 2 + math.ceil(shards / 3) * 6 * own / shards)
    shown = lm_plan("--words", "8e6", "--cores", 3, "--constants", path, "--save", tmp_path / "again.json").output
    assert "8e+06 words" in shown
    assert "laws fit within 0%" in shown
    assert from_json((tmp_path / "again.json").read_text(), "") == from_json(path.read_text(), "")


def test_runs_in_one_process_are_planned_for_their_threads_and_memory_grows_with_the_text(tmp_path: Path) -> None:
    def own(words: float) -> list[Measured]:
        counted, arpa = run(words)
        idle = dict.fromkeys(QUANTITIES, 0.0)
        memory = counted.quantities | {"peak_bytes": 1e8 + 2e7 * words, "shards": 1}
        return [
            replace(counted, stage=ONE_PROCESS, quantities=memory, holds_all=True),
            replace(counted, name="vocabulary", stage="", quantities=idle, inputs=("words",)),
            replace(arpa, stage=ONE_PROCESS, quantities=arpa.quantities | {"shards": 1, "peak_bytes": 0}),
        ]

    path = tmp_path / "laws.json"
    path.write_text(to_json(laws([own(size) for size in (0.5, 1, 2)], "words", growing=True)))
    made = json.loads(lm_plan("--words", "8e6", "--constants", path, "--json").output)
    assert [step["name"] for step in made["steps"]] == ["words", "arpa"]
    assert made["peak_bytes"] == pytest.approx(1e8 + 2e7 * 8)
    assert made["wall_s"] == pytest.approx(8 + 6 * ngrams(8)), "however many cores: each step is one task"
    assert made["reserved_s"] == pytest.approx(2 * made["wall_s"])
    with pytest.raises(ConfigError, match="3 cores for one process: the runs had --workers 2"):
        lm_plan("--words", "8e6", "--cores", 3, "--constants", path)


def test_constants_of_earlier_versions_have_no_cpu_time(tmp_path: Path) -> None:
    rows = json.loads(to_json(found(1, 2)))
    for row in rows["steps"].values():
        for name in ("cpu_s", "beside_cpu_s", "peak_bytes"):
            del row["laws"][name]
    assert from_json(json.dumps(rows), "")[1].laws["cpu_s"].at(5) == 0.0


def test_runs_that_give_no_law_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one run gives no law"):
        lm_plan("--words", "8e6", "--from", tmp_path)
    with pytest.raises(ConfigError, match="no finished run of lm cluster"):
        lm_plan("--words", "8e6", "--from", tmp_path, "--from", tmp_path)
    with pytest.raises(ConfigError, match=r"none\.json: it cannot be read"):
        lm_plan("--words", "8e6", "--constants", tmp_path / "none.json")
