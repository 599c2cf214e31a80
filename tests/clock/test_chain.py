"""The days of the petabyte paper's chain from its constants: close to the published ones, and equal to a calculation by
hand."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from megahour.cli.main import app
from megahour.clock.chain import DATA_DAYS, TRAINING_DAYS, Chain, gpus_that_explain, parts


def days(chain: Chain) -> dict[str, float]:
    return {part.name: part.days for part in parts(chain)}


def test_the_papers_days_are_met_within_what_the_page_says() -> None:
    """Nothing is fitted to them; the prediction is 27 % and 14 % too low."""
    data, training = (sum(part.days for part in parts(Chain()) if part.data == kind) for kind in (True, False))
    assert data / DATA_DAYS - 1 == pytest.approx(-0.27, abs=0.01)
    assert training / TRAINING_DAYS - 1 == pytest.approx(-0.14, abs=0.01)
    explained = Chain(target_gpus=round(gpus_that_explain(Chain())))
    assert sum(part.days for part in parts(explained) if part.data) == pytest.approx(DATA_DAYS, rel=0.02)


def test_each_step_is_what_a_hand_finds() -> None:
    found = days(Chain())
    assert found["student"] == pytest.approx((1e6 + 18 * 7_000) / (84_000 / 48 * 2 * 50.91 / 12.53) / 24, rel=0.03)
    assert found["sMBR"] == pytest.approx(3 * 7_000 * 2 / (84_000 / 48 * 2) / 24, rel=0.03)
    assert found["targets"] == pytest.approx(1e6 / (84_000 / 48 / 12.53) / 64 / 24)
    seconds = 1_000 * 0.2 + (115.2 + 3 * 135) / 50 + 3600 / 828
    assert found["features"] == pytest.approx(1e6 * seconds / 3_000 / 86_400)
    assert found["repartition"] == pytest.approx(1e6 * 2 * (135 + 28.8) / 50 / 3_000 / 86_400)


def test_more_machines_take_less_and_more_hours_more() -> None:
    before, after = days(Chain()), days(Chain(cores=6_000, target_gpus=128, student_gpus=128, smbr_gpus=32))
    assert {name: before[name] / after[name] for name in ("features", "targets", "repartition")} == pytest.approx(
        dict.fromkeys(("features", "targets", "repartition"), 2.0)
    )
    assert 1.8 < before["student"] / after["student"] < 2.0
    assert 1.5 < before["sMBR"] / after["sMBR"] < 2.0
    assert days(Chain(hours=1e5))["features"] == pytest.approx(before["features"] / 10)


def test_the_command_shows_them_beside_what_was_published() -> None:
    def printed(*words: str) -> str:
        done = CliRunner().invoke(app, ["plan", "chain", *words])
        return done.output + str(done.exception or "")

    assert "-27%" in printed()
    assert "published" not in printed("--hours", "1000", "--cores", "16")
    assert "--cores: Input should be greater than or equal to 1" in printed("--cores", "0")
