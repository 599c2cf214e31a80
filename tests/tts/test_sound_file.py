"""WAV files of synthetic speech: whole or not there, and errors that say what is wrong."""

import errno
import io
import os
import resource
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from megahour.cli.say import _text
from megahour.core.errors import ConfigError, StoreError
from megahour.tts.sound_file import NOTICE, WavWriter
from megahour.tts.voices import lexicon_at

SECOND = np.linspace(-1, 1, 8000, dtype=np.float32)


def test_a_file_says_that_a_machine_speaks(tmp_path: Path) -> None:
    with WavWriter(tmp_path / "a.wav", 8000) as wav:
        wav.add(SECOND)
    with soundfile.SoundFile(tmp_path / "a.wav") as file:
        assert (file.frames, file.samplerate, file.comment) == (8000, 8000, NOTICE)
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_names_of_other_formats_and_folders_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.MP3: only WAV can be written\nRemedy: use --out .*a\.wav"):
        WavWriter(tmp_path / "a.MP3", 8000)
    with pytest.raises(ConfigError, match="nowhere: no such folder"), WavWriter(tmp_path / "nowhere" / "a.wav", 8000):
        pass


def test_a_pipe_gets_the_file_whole_and_stays(tmp_path: Path) -> None:
    """It was refused; a program that reads a WAV needs the length at its front."""
    for name, samples in (("spoken", [SECOND, SECOND]), ("nothing", [])):
        os.mkfifo(pipe := tmp_path / name)
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
            with WavWriter(pipe, 8000) as wav:
                for each in samples:
                    wav.add(each)
            got = reader.communicate(timeout=240)[0]
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        if samples:
            with soundfile.SoundFile(io.BytesIO(got)) as file:
                assert (file.frames, file.comment) == (16_000, NOTICE)
        else:
            assert got == b""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nothing", "spoken"]


def test_a_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a folder, not a file\nRemedy: use --out .*speech\.wav"):
        WavWriter(tmp_path, 8000)


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        with (
            pytest.raises(StoreError, match=r"a\.wav: cannot be written: .*MB are free"),
            WavWriter(tmp_path / "a.wav", 8000) as wav,
        ):
            wav.add(SECOND)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not list(tmp_path.iterdir())


def test_a_text_of_another_encoding_is_named_with_what_converts_it(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("café".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin: not UTF-8: .*\nRemedy: iconv -f LATIN1"):
        _text((), str(tmp_path / "latin"))
    with pytest.raises(ConfigError, match="none: cannot be read: No such file"):
        _text((), str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"latin: not UTF-8: .*\nRemedy: iconv -f LATIN1"):
        lexicon_at(str(tmp_path / "latin"))
    (tmp_path / "marked").write_bytes("\ufeffhello".encode())
    assert _text((), str(tmp_path / "marked")) == "hello"


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, path in ((("-",), ""), ((), "-")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
        assert _text(words, path) == "hello"
    with pytest.raises(ConfigError, match="--file - reads standard input"):
        _text((), "")


def test_a_place_that_may_not_be_written_is_named_rather_than_the_scratch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a read-only file system the scratch file can be neither made nor removed."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with (
        pytest.raises(StoreError, match=r"/a\.wav: cannot be written: Read-only file system"),
        WavWriter(tmp_path / "a.wav", 8000),
    ):
        pass


def test_a_file_that_cannot_be_replaced_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(Path, "replace", refuse)
    with (
        pytest.raises(StoreError, match=r"/a\.wav: cannot be written: Operation not permitted"),
        WavWriter(tmp_path / "a.wav", 8000) as wav,
    ):
        wav.add(SECOND)
    assert not list(tmp_path.iterdir())
