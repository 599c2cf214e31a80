"""Composed recordings: clips found by pattern, texts cleaned, true times; the real digits where they are on disk."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from megahour.core.errors import BadRecord, ConfigError, StageError
from megahour.core.store import Artifact
from megahour.corpus.generate.clip_sound import audible
from megahour.corpus.generate.clips import clean_text, files_below, find_clips, read_listing
from megahour.corpus.generate.compose_stage import Compose
from megahour.corpus.generate.debian import fetch_packages
from megahour.corpus.generate.espeak import RATE_HZ, speak
from megahour.corpus.generate.params import ComposeParams
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage

FSDD = Path(__file__).parents[4] / "shared" / "data" / "fsdd"
DIGITS = dict(zip("0123456789", "zero one two three four five six seven eight nine".split(), strict=True))  # noqa: SIM905
PATTERN = r"(?P<word>\d)_(?P<speaker>\w+)_(?P<index>\d+)\.wav"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spoken digits of two speakers, three of each, with silence around them."""
    folder = tmp_path_factory.mktemp("digits")
    for speaker, variant in (("ann", "f2"), ("bob", "m3")):
        for digit, word in DIGITS.items():
            samples = np.concatenate([np.zeros(3000, np.int16), speak(word, "en-us", variant).samples])
            for index in range(3):
                soundfile.write(folder / f"{digit}_{speaker}_{index}.wav", samples, RATE_HZ)
    return folder


def composed(engine: LocalEngine, tmp_path: Path, source: Path, **values: object) -> Artifact:
    p = ComposeParams.model_validate(
        {"source": str(source), "pattern": PATTERN, "words": DIGITS, "clips_per_string": (3, 8), "rate_hz": 8000}
        | values
    )
    output = Artifact(tmp_path / "raw")
    run_stage(Compose(), p, {}, output, engine, work=tmp_path / "work")
    return output


def audio(artifact: Artifact, shard: int) -> dict[str, np.ndarray]:
    with artifact.open(shard, ".tar") as file, tarfile.open(fileobj=file) as tar:
        return {
            item.name.removesuffix(".flac"): soundfile.read(io.BytesIO(tar.extractfile(item).read()))[0]  # type: ignore[union-attr]
            for item in tar
            if item.name.endswith(".flac")
        }


def test_each_clip_once_with_true_times(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    artifact = composed(engine, tmp_path, digits, recording_minutes=0.3)
    assert len(artifact.receipts()) == 2  # a shard per speaker
    counts = artifact.manifest.counts
    assert (counts.came_in, counts.kept, counts.dropped) == (60, 60, {})
    for receipt in artifact.receipts():
        recordings = audio(artifact, receipt.shard)
        assert len(recordings) > 1
        truth = artifact.read_table(receipt.shard, ".truth.parquet").to_pylist()
        assert sorted(row["text"] for row in truth) == sorted(word for word in DIGITS.values() for _ in range(3))
        for row in truth:
            sound = recordings[row["name"]]
            word = sound[row["start_samples"] : row["end_samples"]]
            before = sound[row["start_samples"] - 400 : row["start_samples"] - 80]
            assert 0.1 < len(word) / 8000 < 1.0
            assert word.std() > 5 * before.std()


def test_strings_have_their_lengths_and_lines(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    artifact = composed(engine, tmp_path, digits, hours=0.02, missing=0.3)
    sentences = [
        row
        for receipt in artifact.receipts()
        for row in artifact.read_table(receipt.shard, ".sentences.parquet").to_pylist()
    ]
    lengths = {len(row["spoken"].split()) for row in sentences}
    assert lengths <= set(range(1, 9))
    assert len(lengths) > 3
    assert 0 < sum(not row["in_transcript"] for row in sentences) < len(sentences)
    assert all(row["raw"].rstrip(".").lower() == row["spoken"] for row in sentences)
    assert artifact.summary["hours"] == pytest.approx(0.02, rel=0.3)


def test_choosing_clips(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    artifact = composed(engine, tmp_path, digits, only={"speaker": "ann"}, leave_out={"index": "0|1"}, style="prompts")
    counts = artifact.manifest.counts
    assert counts.kept == 10
    assert counts.dropped == {"left-out": 50}
    assert {len(audio(artifact, 0))} <= {2, 3, 4}


def test_recordings_of_two_steps_have_names_of_their_own(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    one = composed(engine, tmp_path / "1", digits, only={"index": "0"})
    other = composed(engine, tmp_path / "2", digits, only={"index": "1"}, name="takes")
    named = [{name for r in each.receipts() for name in audio(each, r.shard)} for each in (one, other)]
    assert all(named)
    assert all(name.startswith("recordings-") for name in named[0])
    assert all(name.startswith("takes-") for name in named[1])


def test_shares_divide_the_clips(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    kept = [composed(engine, tmp_path / str(i), digits, share=share) for i, share in enumerate([(0, 0.4), (0.4, 1)])]
    counts = [artifact.manifest.counts.kept for artifact in kept]
    assert sum(counts) == 60
    assert min(counts) > 10


def test_some_clips_are_wanted_whatever_their_hash(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    artifact = composed(engine, tmp_path, digits, share=(0, 0), also={"speaker": "ann", "word": "[0-4]"})
    assert artifact.manifest.counts.kept == 15
    with pytest.raises(ValueError, match="speeds"):
        ComposeParams(speeds=(0.1, 1.0))


def test_clips_at_other_speeds_keep_their_edges(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    """At twice the speed it has half the length, and is still loud between the true times and silent before them."""
    plain, fast = (
        composed(engine, tmp_path / name, digits, only={"speaker": "ann"}, speeds=speeds)
        for name, speeds in (("plain", (1, 1)), ("fast", (2, 2)))
    )
    lengths = []
    for artifact in (plain, fast):
        recordings = audio(artifact, 0)
        truth = artifact.read_table(0, ".truth.parquet").to_pylist()
        lengths.append(sum(row["end_samples"] - row["start_samples"] for row in truth))
        for row in truth:
            sound, start = recordings[row["name"]], row["start_samples"]
            assert sound[start : row["end_samples"]].std() > 5 * sound[start - 400 : start - 80].std()
    assert lengths[1] == pytest.approx(lengths[0] / 2, rel=0.01)


def test_bad_clips_are_quarantined_and_counted(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    folder = tmp_path / "clips"
    shutil.copytree(digits, folder)
    (folder / "3_ann_7.wav").write_bytes(b"RIFF nothing")
    soundfile.write(folder / "4_ann_7.wav", np.zeros(8000, np.int16), 8000)
    soundfile.write(folder / "x_ann_7.wav", np.zeros(8000, np.int16), 8000)
    artifact = composed(engine, tmp_path, folder, longest_clip_s=20)
    counts = artifact.manifest.counts
    assert (counts.came_in, counts.kept, counts.bad) == (62, 60, 2)
    assert "silent-audio" in counts.dropped
    assert len(counts.dropped) == 2


def test_the_same_job_gives_the_same_bytes(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    one, two = (composed(engine, tmp_path / name, digits, hours=0.01, parts=2) for name in ("one", "two"))
    assert len(one.receipts()) == 4
    assert [receipt.files for receipt in one.receipts()] == [receipt.files for receipt in two.receipts()]


def test_prompts_with_a_listing(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    folder = tmp_path / "prompts"
    (folder / "conf").mkdir(parents=True)
    for name, text in (("hello", "hello there"), ("conf/full", "the conference is full"), ("beep", "beep")):
        soundfile.write(folder / f"{name}.wav", speak(text, "en-us").samples, RATE_HZ)
    listing = tmp_path / "core-sounds-en.txt.gz"
    listing.write_bytes(
        gzip.compress(
            "\ufeff; Core sounds\n\nhello: Hello there.\nconf/full: The conference is full!\nbeep: [beep]\n".encode()
        )
    )
    pattern = r"(?P<name>.+)\.wav"
    artifact = composed(
        engine,
        tmp_path,
        folder,
        pattern=pattern,
        words={},
        listing=str(listing),
        clips_per_string=(1, 1),
        licence="CC-BY-SA-3.0",
    )
    assert artifact.manifest.counts.dropped == {"markup-only-text": 1}
    truth = artifact.read_table(0, ".truth.parquet").to_pylist()
    by_sentence = [[row for row in truth if row["sentence"] == i] for i in range(2)]
    assert {" ".join(row["text"] for row in rows) for rows in by_sentence} == {"hello there", "the conference is full"}
    for rows in by_sentence:  # only the outer edges of a clip with several words are known
        assert rows[0]["start_samples"] >= 0
        assert rows[-1]["end_samples"] > rows[0]["start_samples"]
        assert all(row["start_samples"] == -1 for row in rows[1:])
        assert all(row["end_samples"] == -1 for row in rows[:-1])


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("at [@]", "at"),
        ("  Goodbye. ", "Goodbye."),
        ('"eeks"', "eeks"),
        ("space [ ]", "space"),
        ("Dial 2 now", "Dial 2 now"),
    ],
)
def test_texts_are_cleaned(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[this is a simple beep tone]", "markup-only-text"),
        ("<beep ascending>", "markup-only-text"),
        ("", "markup-only-text"),
        ('IAX (note: does not say "2")', "doubtful-text"),
        ("Sus saludos [temporales] estan", "doubtful-text"),
        ("press * to toggle pause", "unspeakable-symbols"),
    ],
)
def test_texts_that_cannot_be_trusted_are_refused(text: str, reason: str) -> None:
    with pytest.raises(BadRecord) as error:
        clean_text(text)
    assert error.value.reason == reason


def test_listings(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("; comment\nname: text: with colon\n\nother:\n")
    assert read_listing(str(tmp_path / "a.txt")) == {"name": "text: with colon", "other": ""}


def test_texts_in_another_encoding_are_named(tmp_path: Path) -> None:
    for name, text in (("a", "caf\u00e9".encode("latin-1")), ("b", b"plain words")):
        (tmp_path / f"{name}.wav").touch()
        (tmp_path / f"{name}.txt").write_bytes(text)
    files, no = files_below(str(tmp_path)), dict[str, str]()
    pattern = r"(?P<name>.+)\.wav"
    clips, dropped = find_clips(files, pattern, words=no, listing=None, only=no, leave_out=no, speaker="s")
    assert ([clip.text for clip in clips], dropped) == (["plain words"], {"unreadable-encoding": 1})
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_listing(str(tmp_path / "a.txt"))


def test_an_entry_that_runs_on_into_the_next_ends_before_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "vm-bye: good bye vm-then: then press one\nvm-then: then press\nx-y: say vm-not: so"
    )
    assert read_listing(str(tmp_path / "a.txt")) == {
        "vm-bye": "good bye",
        "vm-then": "then press",
        "x-y": "say vm-not: so",
    }


def test_globs_keep_the_names_below_their_fixed_part(digits: Path, tmp_path: Path) -> None:
    assert len(files_below(str(digits)).names) == 60
    assert files_below(f"{digits.parent}/{digits.name}/7_*_0.wav").names == ["7_ann_0.wav", "7_bob_0.wav"]
    with pytest.raises(ConfigError, match="no files at"):
        files_below(str(digits / "*.mp3"))
    (tmp_path / "talks [2019]").mkdir()
    (tmp_path / "talks [2019]/a.wav").touch()
    assert files_below(str(tmp_path / "talks [2019]")).names == ["a.wav"]


def test_clips_behind_a_link_to_another_disk_are_found(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "ann").symlink_to(digits)
    files = files_below(str(tmp_path))
    assert len(files.names) == 60
    assert files.read(files.names[0]) == (digits / Path(files.names[0]).name).read_bytes()


def test_audible_part() -> None:
    samples = np.zeros(8000, np.float32)
    samples[2000:4000] = 0.5
    assert audible(samples, 8000) == (2000, 4000)


def test_wrong_parameters_are_named(engine: LocalEngine, tmp_path: Path, digits: Path) -> None:
    with pytest.raises(ValueError, match="is not a range"):
        ComposeParams(source=str(digits), pause_s=(1.0, 0.5))
    with pytest.raises(ConfigError, match='no group "age"'):
        composed(engine, tmp_path, digits, only={"age": "old"})
    with pytest.raises(ConfigError, match=r"no usable clips[\s\S]*check only, and pattern"):
        composed(engine, tmp_path, digits, only={"speaker": "carl"})
    with pytest.raises(ConfigError, match=r"no usable clips[\s\S]*give `words` for the pattern's group word"):
        composed(engine, tmp_path, digits, words={})
    with pytest.raises(ConfigError, match=r"no usable clips[\s\S]*no file's name matches pattern"):
        composed(engine, tmp_path, digits, pattern="other")
    for name, value in {"pattern": "(open", "only": {"word": "(open"}, "leave_out": {"word": "["}}.items():
        with pytest.raises(ValueError, match="is not a regular expression: "):
            ComposeParams.model_validate({"source": str(digits), name: value})
    with pytest.raises(ConfigError, match="either `source` or"):
        run_stage(Compose(), ComposeParams(), {}, Artifact(tmp_path / "x"), engine, work=tmp_path)


def test_without_apt_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StageError, match="point `source` and `listing`"):
        fetch_packages(["asterisk-core-sounds-en"], tmp_path / "work")


@pytest.mark.skipif(not FSDD.is_dir(), reason="the spoken digits are not beside the repository (shared/data/fsdd)")
def test_real_digits(engine: LocalEngine, tmp_path: Path) -> None:
    artifact = composed(engine, tmp_path, FSDD, only={"speaker": "jackson", "index": "[0-4]"}, recording_minutes=3)
    assert artifact.manifest.counts.kept == 50
    recordings = audio(artifact, 0)
    for row in artifact.read_table(0, ".truth.parquet").to_pylist():
        word = recordings[row["name"]][row["start_samples"] : row["end_samples"]]
        assert 0.1 < len(word) / 8000 < 1.5
        assert word.std() > 0.01
