"""A bundle's folder is of one writer, and appears whole."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from megahour.core.errors import ConfigError, StoreError
from megahour.export.folder import GOLDEN, published


def test_a_second_writer_of_a_bundle_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    """Both had one folder: the second emptied it, and the bundle that appeared had files of both."""
    out = tmp_path / "bundle"

    def second() -> None:
        with published(str(out)) as folder:
            (folder / "model.onnx").write_text("second")

    with published(str(out)) as folder, ThreadPoolExecutor() as other:
        (folder / "model.onnx").write_text("first")
        with pytest.raises(StoreError, match="another process writes here"):
            other.submit(second).result()
    assert sorted(path.name for path in out.iterdir()) == [GOLDEN, "model.onnx"]
    assert (out / "model.onnx").read_text() == "first"
    assert list(tmp_path.iterdir()) == [out]


def test_what_a_killed_process_left_is_removed_and_the_bundle_beside_it_is_not(tmp_path: Path) -> None:
    left, beside = (tmp_path / f".{name}.{'0' * 32}.partial" for name in ("bundle", "bundle.v2"))
    for each in (left, beside):
        (each / GOLDEN).mkdir(parents=True)
    with published(str(tmp_path / "bundle")):
        assert not left.exists()
    assert beside.is_dir()


def test_a_bundle_that_appeared_meanwhile_stays(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="already exists"), published(str(tmp_path / "bundle")):
        (tmp_path / "bundle").mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_after_a_full_disk_the_same_command_starts_again(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the same command starts again"), published(str(tmp_path / "bundle")):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir()), "nothing is left to resume from"


def test_a_store_or_a_link_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder `s3:` appeared, and then "the bundle is damaged"; a link to nowhere was noticed after minutes."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"(?s)cannot be a store.*local folder"), published("s3://models/bundle"):
        pass
    assert not list(tmp_path.iterdir())
    (tmp_path / "bundle").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="already exists"), published("bundle"):
        pass
