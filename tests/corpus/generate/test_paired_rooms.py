"""`compose` with `paired` and recorded `noise`: the same strings in every room, among the noise of a folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.corpus.generate.clips import files_below
from megahour.corpus.generate.compose_stage import Compose
from megahour.corpus.generate.params import ComposeParams
from megahour.corpus.generate.recorded_noise import RecordedNoise
from megahour.engine.base import TaskFailed
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage

RATE_HZ = 8000
ROOMS = ["clean", "noisy", "far"]
WORDS = {"0": "zero", "1": "one", "2": "two"}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tones of 0.3 s, a pitch a digit, eight takes each."""
    folder = tmp_path_factory.mktemp("digits")
    for digit in WORDS:
        tone = np.sin(2 * np.pi * (300 + 200 * int(digit)) * np.arange(2400) / RATE_HZ)
        for take in range(8):
            soundfile.write(folder / f"{digit}_ann_{take}.wav", (8000 * tone).astype(np.int16), RATE_HZ)
    return folder


@pytest.fixture(scope="module")
def whistles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whistles of 3 kHz, half a second each, beside a text, silence and a file that is no sound."""
    folder = tmp_path_factory.mktemp("whistles")
    tone = np.sin(2 * np.pi * 3000 * np.arange(4000) / RATE_HZ)
    for name, level in (("loud", 20000), ("soft", 200)):
        soundfile.write(folder / f"{name}.wav", (level * tone).astype(np.int16), RATE_HZ)
    soundfile.write(folder / "silence.wav", np.zeros(4000, np.int16), RATE_HZ)
    (folder / "broken.wav").write_bytes(b"RIFF")
    (folder / "README.md").write_text("whistles")
    return folder


def composed(engine: LocalEngine, out: Path, source: Path, **values: object) -> Artifact:
    p = ComposeParams.model_validate(
        {
            "source": str(source),
            "pattern": r"(?P<word>\d)_(?P<speaker>\w+)_\d+\.wav",
            "words": WORDS,
            "style": "prompts",
            "clips_per_string": (1, 4),
            "conditions": ROOMS,
            "rate_hz": RATE_HZ,
        }
        | values
    )
    run_stage(Compose(), p, {}, Artifact(out / "raw"), engine, work=out / "work")
    return Artifact(out / "raw")


def members(artifact: Artifact) -> dict[str, bytes]:
    with artifact.open(0, ".tar") as file, tarfile.open(fileobj=file) as tar:
        return {item.name: tar.extractfile(item).read() for item in tar}  # type: ignore[union-attr]


def sounds(artifact: Artifact) -> dict[str, np.ndarray]:
    flacs = {name[:-5]: data for name, data in members(artifact).items() if name.endswith(".flac")}
    return {name: soundfile.read(io.BytesIO(data))[0] for name, data in flacs.items()}


def strings(artifact: Artifact) -> dict[str, list[tuple[str, int, int]]]:
    """The true words with their times, by recording."""
    said: dict[str, list[tuple[str, int, int]]] = {}
    for row in artifact.read_table(0, ".truth.parquet").to_pylist():
        said.setdefault(row["name"], []).append((row["text"], row["start_samples"], row["end_samples"]))
    return said


def share_at_3_khz(sound: np.ndarray) -> float:
    power = np.abs(np.fft.rfft(sound)) ** 2
    hz = np.fft.rfftfreq(len(sound), 1 / RATE_HZ)
    return float(power[(hz > 2900) & (hz < 3100)].sum() / power.sum())


def test_paired_recordings_say_the_same_in_every_room(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    artifact = composed(engine, tmp_path, digits, paired=True)
    said, files = strings(artifact), members(artifact)
    bases = {name.rpartition("-")[0] for name in said}
    assert len(said) == 3 * len(bases) > 12
    for base in bases:
        clean, noisy, far = (f"{base}-{room}" for room in ROOMS)
        assert said[clean] == said[noisy] == said[far]
        transcripts = [
            data
            for name, data in sorted(files.items())
            if name.startswith(f"{base}-") and name.endswith(("srt", "vtt"))
        ]
        assert len(transcripts) == 3
        assert len(set(transcripts)) == 1
        assert all(
            f'"condition":"{name.rpartition("-")[2]}"'.encode() in files[f"{name}.json"] for name in (clean, far)
        )
        assert len({files[f"{name}.flac"] for name in (clean, noisy, far)}) == 3
    words = sum(len(words) for name, words in said.items() if name.endswith("-far"))
    assert words == artifact.manifest.counts.kept == 24, "each clip once a room"


def test_strings_do_not_depend_on_the_rooms_or_the_noise(
    engine: LocalEngine, tmp_path: Path, digits: Path, whistles: Path
) -> None:
    """So error rates in other noise are of the same strings, too, and the echo of a room is the same."""
    one = strings(composed(engine, tmp_path / "1", digits, paired=True))
    other = strings(composed(engine, tmp_path / "2", digits, paired=True, conditions=["far"], noise=str(whistles)))
    assert other == {name: words for name, words in one.items() if name.endswith("-far")}
    assert len(other) > 4


def test_hours_count_every_room(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    artifact = composed(engine, tmp_path, digits, paired=True, hours=0.02)
    assert artifact.summary["hours"] == pytest.approx(0.02, rel=0.1)


def test_recorded_noise_takes_the_place_of_the_generated(
    engine: LocalEngine, tmp_path: Path, digits: Path, whistles: Path
) -> None:
    """The digits have nothing at 3 kHz; 11 to 16 dB below them are 2 to 8 % of the energy where nothing else is."""
    plain = sounds(composed(engine, tmp_path / "plain", digits, conditions=["noisy"]))
    among = sounds(composed(engine, tmp_path / "whistles", digits, conditions=["noisy"], noise=str(whistles)))
    assert np.mean([share_at_3_khz(sound) for sound in plain.values()]) < 0.005
    shares = [share_at_3_khz(sound) for sound in among.values()]
    assert 0.02 < np.mean(shares) < 0.2
    pauses = [sound[-400:] for sound in among.values()]
    assert np.mean([share_at_3_khz(pause) for pause in pauses]) > 0.5


def test_noise_is_drawn_from_all_files_that_can_be_used(whistles: Path) -> None:
    noise = RecordedNoise(files_below(str(whistles)), RATE_HZ)
    draws = [noise.draw(samples, np.random.default_rng(1)) for samples in (100, 4000, 6000, 30000)]
    assert [len(draw) for draw in draws] == [100, 4000, 6000, 30000]
    for draw in draws:
        assert np.sqrt(np.mean(draw**2)) == pytest.approx(1, abs=1e-3)
        assert draw.dtype == np.float32
    parts = np.sqrt(np.mean(draws[2][:4000] ** 2)), np.sqrt(np.mean(draws[2][4000:] ** 2))
    assert parts == pytest.approx((1, 1), abs=0.02), "the loud file does not drown the soft one"
    assert not np.array_equal(noise.draw(100, np.random.default_rng(2)), draws[0])


def test_noise_that_cannot_be_used_is_refused(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("no noise")
    with pytest.raises(ConfigError, match="no files at"):
        composed(engine, tmp_path, digits, noise=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="no audio files"):
        composed(engine, tmp_path, digits, noise=str(tmp_path / "texts"))
    soundfile.write(tmp_path / "texts/a.wav", np.zeros(4000, np.int16), RATE_HZ)
    with pytest.raises(TaskFailed, match="none of 1 audio files can be used"):
        composed(engine, tmp_path, digits, noise=str(tmp_path / "texts"))


def test_paired_rooms_differ() -> None:
    with pytest.raises(ValueError, match="conditions that differ"):
        ComposeParams(source="x", paired=True, conditions=["far", "far"])
