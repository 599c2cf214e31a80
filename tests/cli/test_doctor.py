"""What `megahour doctor` reports."""

from __future__ import annotations

import pytest

from megahour.cli import doctor
from megahour.cli.doctor import examine, java_is_new_enough
from megahour.core.extras import EXTRAS


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "25" 2025-09-16', True),
        ('java version "1.8.0_402"', False),
        ('openjdk version "11.0.22" 2024-01-16', False),
        (None, False),
    ],
)
def test_spark_needs_java_17(version: str | None, good: bool) -> None:
    assert java_is_new_enough(version) is good


def test_required_findings_come_with_a_version_here() -> None:
    required = [finding for finding in examine() if finding.required]
    assert len(required) > 8
    assert all(finding.ok and finding.detail for finding in required)


def test_every_extra_is_reported_with_its_versions() -> None:
    found = {finding.name: finding for finding in examine()}
    assert {f"[{extra}]" for extra in {*EXTRAS.values()} - {"dev"}} <= found.keys()
    assert "torch 2." in found["[train]"].detail


def test_what_an_extra_lacks_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = doctor.util.find_spec
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None if name == "kaldifst" else spec(name))
    (finding,) = (finding for finding in examine() if finding.name == "[decode]")
    assert (finding.ok, finding.required) == (False, False)
    assert finding.detail.endswith('pip install "megahour[decode]" (kaldifst)')


@pytest.mark.parametrize(
    ("gpus", "cuda", "ok", "detail"),
    [
        (2, "13.0", True, "Fast 0, Fast 1"),
        (0, None, False, "was built for CPUs"),
        (0, "13.0", False, "torch sees no GPU"),
    ],
)
def test_gpus_are_named_or_what_stands_between(
    monkeypatch: pytest.MonkeyPatch, gpus: int, cuda: str | None, ok: bool, detail: str
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"Fast {number}")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    finding = next(finding for finding in doctor.examine() if finding.name == "gpu")
    assert (finding.ok, finding.required) == (ok, False)
    assert detail in finding.detail
