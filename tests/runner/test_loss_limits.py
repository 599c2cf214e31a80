"""A stage stops early if far too many records are bad, and at its end if slightly too many are."""

from __future__ import annotations

from pathlib import Path

import pytest

from megahour.core.errors import NothingKept, TooManyBad
from megahour.core.receipts import Counts, Receipt
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.runner.loss_limits import BadShare, check_kept


def counts(came_in: int, bad: int) -> Counts:
    return Counts(came_in=came_in, kept=came_in - bad, bad=bad, dropped={"nan-audio": bad} if bad else {})


def test_a_share_at_the_limit_is_allowed_and_one_above_is_not(tmp_path: Path) -> None:
    watch = BadShare(0.1, Artifact(tmp_path))
    watch.add(counts(100, 10))
    watch.close()
    watch.add(counts(1, 1))
    with pytest.raises(TooManyBad, match=r"11 of 101 records are bad \(10\.9%, limit 10\.0%\)"):
        watch.close()


def test_nothing_is_judged_by_fewer_than_200_records_on_the_way(tmp_path: Path) -> None:
    watch = BadShare(0.1, Artifact(tmp_path))
    watch.add(counts(199, 199))
    with pytest.raises(TooManyBad):
        watch.add(counts(1, 0))


def test_records_that_were_not_counted_as_they_came_are_bad_all_the_same(tmp_path: Path) -> None:
    """A stage may find more bad than it had counted: the share is of the larger number, never above 100 %."""
    watch = BadShare(0.5, Artifact(tmp_path))
    watch.add(counts(1, 3))
    with pytest.raises(TooManyBad, match=r"3 of 1 records are bad \(100\.0%"):
        watch.close()


def test_the_three_most_frequent_reasons_are_named_with_an_example(tmp_path: Path) -> None:
    output = Artifact(tmp_path / "run [2019]")
    with ShardWriter(output, 0, "f") as out:
        for number, reason in enumerate(["a", "b", "b", "c", "c", "c", "d", "d", "d", "d"]):
            out.came_in()
            out.quarantine(number, reason, f"detail {number}")
        receipt = out.commit()
    watch = BadShare(0.0, output)
    watch.add(receipt.counts)
    with pytest.raises(TooManyBad, match=r": d 4 \(such as 6: detail 6\), c 3, b 2, 1 other reason 1") as caught:
        watch.close()
    assert caught.value.where == output.url
    assert "raise max_bad" in caught.value.remedy


def test_what_a_stage_lost_that_kept_nothing_is_named_with_its_hours(tmp_path: Path) -> None:
    lost, heard = Counts(10, 0, 1, {"nan-audio": 4, "too-long": 6}), {"audio_s": 3600.0, "dropped_s_too-long": 1800.0}
    receipts = [Receipt(number, "f", lost, {}, heard, {}) for number in range(2)]
    with pytest.raises(NothingKept) as caught:
        check_kept("cut", {"too-": "--max-s is 20"}, receipts, Artifact(tmp_path))
    assert caught.value.message == "cut kept none of 20 records (2.00 h of audio): too-long 12 (1 h), nan-audio 8"
    assert caught.value.remedy.startswith("--max-s is 20; 2 bad records are explained in ")
