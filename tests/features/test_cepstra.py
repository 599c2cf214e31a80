"""`import-features`: published cepstra in both byte orders and with their flaws; and AN4 if available."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.core.errors import BadRecord, ConfigError, TooManyBad
from megahour.core.records import key_of
from megahour.core.schemas import FEATURES
from megahour.core.store import Artifact
from megahour.engine.local import LocalEngine
from megahour.features.cepstra import clean_transcript, parse_transcription, plan_import, read_cepstra
from megahour.features.cepstra_mels import mel_matrix
from megahour.features.cepstra_stage import ImportFeatures
from megahour.features.normalise import CausalMean, without_mean
from megahour.features.params import ImportFeaturesParams
from megahour.features.sets import TAGGED
from megahour.features.simulated import simulated as under
from megahour.runner.runner import run_stage

DIMS = 4
PRIOR = [2.0, 0.0, 0.0, 0.0]


def encode(x: NDArray[np.float32], order: str = "<") -> bytes:
    return np.array([x.size], f"{order}i4").tobytes() + x.astype(f"{order}f4").tobytes()


def cepstra(seed: int, frames: int = 30) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(1, 2, (frames, DIMS)).astype(np.float32)


@given(st.integers(0, 300), st.sampled_from("<>"))
def test_the_byte_order_is_the_one_that_fits_the_size(frames: int, order: str) -> None:
    x = cepstra(frames, frames)
    np.testing.assert_array_equal(read_cepstra(encode(x, order), DIMS), x)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated-cepstra"),
        (b"\x01\x00", "truncated-cepstra"),
        (encode(cepstra(1))[:-4], "truncated-cepstra"),
        (encode(cepstra(1))[:-1], "truncated-cepstra"),
        (encode(cepstra(1)) + b"\0\0\0\0", "truncated-cepstra"),
        (encode(np.zeros(DIMS * 3 + 1, np.float32)), "wrong-dims"),
    ],
)
def test_a_count_that_disagrees_with_the_size_is_a_bad_record(data: bytes, reason: str) -> None:
    with pytest.raises(BadRecord) as bad:
        read_cepstra(data, DIMS)
    assert bad.value.reason == reason


def test_mels_are_what_the_cepstra_were_made_from() -> None:
    mels, dims = 40, 13
    angles = np.pi * np.arange(mels)[:, None] * (np.arange(mels) + 0.5) / mels
    x = np.random.default_rng(1).normal(size=(5, mels))
    cepstra = x @ np.cos(angles).T / mels
    np.testing.assert_allclose(cepstra @ mel_matrix(mels, mels), x, atol=1e-5)
    smooth = cepstra[:, :dims] @ mel_matrix(dims, mels)
    np.testing.assert_allclose(smooth @ np.cos(angles[:dims]).T / mels, cepstra[:, :dims], atol=1e-5)


def test_transcripts_lose_fillers_and_pronunciation_numbers() -> None:
    assert clean_transcript("<s> READ(2) <sil> IT ++NOISE++ [laughter] ALOUD </s>") == "read it aloud"


def test_transcriptions_name_utterances_at_the_end_of_the_line() -> None:
    lines = ["<s> ENTER FOUR </s> (an1-ab-b)\n", "\n", "(empty-one)\n"]
    assert parse_transcription(lines, "list") == [("an1-ab-b", "enter four"), ("empty-one", "")]
    with pytest.raises(ConfigError, match="list:2: 'NO NAME' names no utterance"):
        parse_transcription(["A (a)", "NO NAME"], "list")
    with pytest.raises(ConfigError, match="utterance a is listed twice"):
        parse_transcription(["A (a)", "B (a)"], "list")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Ten training and two test speakers with three utterances each, half of the files in the other byte order."""
    lists: dict[str, list[str]] = {"train": [], "test": []}
    for i in range(36):
        part, speaker = ("test" if i < 6 else "train"), f"sp{i // 3}"
        path = tmp_path / "feat" / part / speaker / f"u{i}.mfc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(cepstra(i), "<>"[i % 2]))
        lists[part].append(f"<s> WORD{i} YES </s> (u{i})\n")
    for part, lines in lists.items():
        (tmp_path / f"{part}.transcription").write_text("".join(lines))
    return tmp_path


def params(corpus: Path, **values: Any) -> ImportFeaturesParams:
    lists = {name: str(corpus / f"{name}.transcription") for name in ("train", "test")}
    fixed = {"source": str(corpus / "feat"), "dims": DIMS, "prior": PRIOR, "labelled": 0.3, "corpus": "toy", **lists}
    return ImportFeaturesParams.model_validate(fixed | values)


def rows(artifact: Artifact) -> list[dict[str, Any]]:
    return [row for r in artifact.receipts() for row in artifact.read_table(r.shard, ".arrow").to_pylist()]


def test_folds_test_every_speaker_once_and_never_train_on_the_test(corpus: Path) -> None:
    tested: list[str] = []
    for fold in range(4):
        shards = plan_import(params(corpus, folds=4, fold=fold, labelled=0.5))
        found = {name: {u.speaker for n, part in shards if n == name for u in part} for name, _ in shards}
        assert set(found) == {"test", "labelled", "unlabelled"}
        assert len(set().union(*found.values())) == sum(map(len, found.values())) == 12
        tested += found["test"]
    assert sorted(tested) == sorted(f"sp{i}" for i in range(12))


@pytest.mark.parametrize(("folds", "fold"), [(1, 0), (3, 3), (0, 1)])
def test_an_artifact_that_is_not_a_fold_is_refused(corpus: Path, folds: int, fold: int) -> None:
    with pytest.raises(ValueError, match=f"fold {fold} of {folds}"):
        params(corpus, folds=folds, fold=fold)


def test_folds_of_lists_that_share_an_utterance_and_folds_without_speakers_are_refused(corpus: Path) -> None:
    with pytest.raises(ConfigError, match="fold 12 of 13 has no speaker, of 12 in all"):
        plan_import(params(corpus, folds=13, fold=12))
    test, train = (corpus / f"{name}.transcription" for name in ("test", "train"))
    train.write_text(train.read_text() + test.read_text().splitlines()[0] + "\n")
    with pytest.raises(ConfigError, match=r"1 utterances, such as .*, are in the training and in the test list"):
        plan_import(params(corpus, folds=4))


def test_transcriptions_in_another_encoding_and_statistics_of_no_set_are_refused(corpus: Path) -> None:
    with pytest.raises(ConfigError, match=r"stats_sets has \['labeled'\]"):
        ImportFeatures().plan(params(corpus, stats_sets=["labeled"]), {})
    train = corpus / "train.transcription"
    train.write_bytes(train.read_bytes() + "mañana (x)\n".encode("latin1"))
    with pytest.raises(ConfigError, match=r"not UTF-8: byte 0xf1[\s\S]*iconv"):
        plan_import(params(corpus))


def test_the_whole_stage(corpus: Path, tmp_path: Path, engine: LocalEngine) -> None:
    output = Artifact(tmp_path / "features")
    counts = run_stage(ImportFeatures(), params(corpus, condition="read"), {}, output, engine).counts
    assert (counts.came_in, counts.kept, counts.dropped) == (36, 36, {})
    assert sum(receipt.stats["audio_s"] for receipt in output.receipts()) == pytest.approx(36 * 0.3)
    assert {row["condition"] for row in rows(output)} == {"read"}
    assert output.read_table(0, ".arrow").schema == FEATURES
    found = rows(output)
    speakers = {name: {row["speaker"] for row in found if row["set"] == name} for name in ("test", "labelled")}
    assert speakers["test"] == {"sp0", "sp1"}
    assert len(speakers["labelled"]) == 3
    for receipt in output.receipts():
        assert {row["set"] for row in output.read_table(receipt.shard, ".arrow").to_pylist()} == {receipt.tags["set"]}
    by_key = {row["key"]: row for row in found}
    mean = CausalMean(np.array(PRIOR, np.float32))
    for i in (9, 10, 11):  # a speaker's utterances in the order of the list, under one running mean
        row = by_key[key_of("cepstra", "toy", f"u{i}")]
        assert (row["text"], row["frames"], row["speaker"]) == (f"word{i} yes", 30, "sp3")
        np.testing.assert_array_equal(row["features"], mean.apply(cepstra(i)).astype(np.float16).ravel())
    training = np.concatenate([np.reshape(r["features"], (-1, DIMS)) for r in found if r["set"] != "test"])
    summary = output.summary
    assert (summary["mels"], summary["frame_shift_ms"], summary["frames"]) == (DIMS, 10, len(training))
    np.testing.assert_allclose(summary["mean"], training.astype(np.float32).mean(axis=0), atol=2e-3)
    np.testing.assert_allclose(1 / np.array(summary["inv_std"]), training.astype(np.float32).std(axis=0), atol=2e-3)


def test_fillers_are_kept_beside_the_features_and_not_in_texts(
    corpus: Path, tmp_path: Path, engine: LocalEngine
) -> None:
    listed = corpus / "train.transcription"
    listed.write_text(listed.read_text().replace("WORD9 YES", "++NOISE++ WORD9(2) [Cough] YES"))
    for fillers in (False, True):
        output = Artifact(tmp_path / f"features-{fillers}")
        run_stage(ImportFeatures(), params(corpus, labelled=1.0, fillers=fillers), {}, output, engine)
        key = key_of("cepstra", "toy", "u9")
        assert {row["text"] for row in rows(output) if row["key"] == key} == {"word9 yes"}
        tagged = [output.read_table(r.shard, TAGGED) for r in output.receipts() if TAGGED in r.files]
        texts = {row["key"]: row["text"] for table in tagged for row in table.to_pylist()}
        assert texts.get(key) == ("<s> ++noise++ word9 [cough] yes </s>" if fillers else None)
        assert len(texts) == (36 if fillers else 0)


def test_cepstra_may_be_stored_as_mels(corpus: Path, tmp_path: Path, engine: LocalEngine) -> None:
    output = Artifact(tmp_path / "features")
    run_stage(ImportFeatures(), params(corpus, mels=8), {}, output, engine)
    row = next(row for row in rows(output) if row["key"] == key_of("cepstra", "toy", "u9"))
    expected = CausalMean(np.array(PRIOR, np.float32)).apply(cepstra(9)) @ mel_matrix(DIMS, 8)
    np.testing.assert_array_equal(row["features"], expected.astype(np.float16).ravel())
    assert (output.summary["mels"], len(output.summary["mean"])) == (8, 8)
    with pytest.raises(ValueError, match=f"mels = 2 is below dims, {DIMS}"):
        params(corpus, mels=2)


def test_the_mean_of_cepstra_may_be_that_of_the_utterance(corpus: Path, tmp_path: Path, engine: LocalEngine) -> None:
    run_stage(ImportFeatures(), params(corpus, mean="utterance"), {}, Artifact(tmp_path / "features"), engine)
    row = next(row for row in rows(Artifact(tmp_path / "features")) if row["key"] == key_of("cepstra", "toy", "u9"))
    assert Artifact(tmp_path / "features").summary["subtracts"] == "utterance"  # `decode` refuses other models
    expected = cepstra(9) - cepstra(9).mean(axis=0)
    np.testing.assert_allclose(np.reshape(row["features"], expected.shape), expected, atol=0.01)


def test_imported_mels_may_be_kept_in_a_range(corpus: Path, tmp_path: Path, engine: LocalEngine) -> None:
    made = params(corpus, mels=8, mean="utterance", range_db=6)
    run_stage(ImportFeatures(), made, {}, Artifact(tmp_path / "features"), engine)
    row = next(row for row in rows(Artifact(tmp_path / "features")) if row["key"] == key_of("cepstra", "toy", "u9"))
    assert Artifact(tmp_path / "features").summary["range_db"] == 6
    expected = without_mean(cepstra(9) @ mel_matrix(DIMS, 8), None, 6)
    np.testing.assert_allclose(np.reshape(row["features"], expected.shape), expected, atol=0.02)
    with pytest.raises(ValueError, match="range_db = 6 is of mels, but mels is 0"):
        params(corpus, mean="utterance", range_db=6)
    with pytest.raises(ValueError, match="range_db = 6 is of whole utterances"):
        params(corpus, mels=8, range_db=6)


def test_bad_files_go_to_quarantine_with_their_reasons(corpus: Path, tmp_path: Path, engine: LocalEngine) -> None:
    feat = corpus / "feat" / "train"
    broken = cepstra(12)
    broken[3, 1] = np.nan
    (feat / "sp4" / "u12.mfc").write_bytes(encode(broken))
    (feat / "sp4" / "u13.mfc").write_bytes(encode(cepstra(13))[:100])
    (feat / "sp4" / "u14.mfc").write_bytes(encode(cepstra(14)[:2]))
    next(feat.glob("*/u10.mfc")).write_bytes(encode(np.float32(2e4) + cepstra(10)))
    (feat / "sp5" / "u15.mfc").unlink()
    shutil.copy(feat / "sp5" / "u16.mfc", feat / "sp6")
    output = Artifact(tmp_path / "features")
    counts = run_stage(ImportFeatures(), params(corpus, max_bad=0.2), {}, output, engine).counts
    assert (counts.kept, counts.bad) == (30, 6)
    assert {bad["id"]: bad["reason"] for bad in output.bad_records()} == {
        "u10": "out-of-range",
        "u12": "nan-features",
        "u13": "truncated-cepstra",
        "u14": "too-short",
        "u15": "missing-file",
        "u16": "ambiguous-name",
    }
    assert max(np.abs(output.summary["mean"])) < 100, "an absurd file has no part in the statistics"
    with pytest.raises(TooManyBad):
        run_stage(ImportFeatures(), params(corpus, max_bad=0.1), {}, Artifact(tmp_path / "strict"), engine)


def test_each_utterance_comes_once_in_each_simulated_condition(
    corpus: Path, tmp_path: Path, engine: LocalEngine
) -> None:
    (next((corpus / "feat" / "test").glob("*/u1.mfc"))).unlink()
    recorded, simulated = Artifact(tmp_path / "recorded"), Artifact(tmp_path / "simulated")
    run_stage(ImportFeatures(), params(corpus, sets=["test"], max_bad=0.2), {}, recorded, engine)
    conditions = params(corpus, sets=["test"], max_bad=0.2, simulate=["noise", "reverb"])
    counts = run_stage(ImportFeatures(), conditions, {}, simulated, engine).counts
    assert (counts.came_in, counts.kept, counts.dropped) == (11, 10, {"missing-file": 1})
    columns = [(row["text"], row["speaker"], row["frames"], row["condition"]) for row in rows(simulated)]
    assert columns == [
        (row["text"], row["speaker"], row["frames"], condition)
        for row in rows(recorded)
        for condition in ("noise (simulated)", "reverb (simulated)")
    ]
    assert len({row["key"] for row in rows(simulated) + rows(recorded)}) == 15
    mean = CausalMean(np.array(PRIOR, np.float32))
    own = [row for row in rows(simulated) if row["condition"].startswith("reverb") and row["speaker"] == "sp0"]
    for row, i in zip(own, (0, 2), strict=True):  # a mean of its own for each condition of a speaker
        key = key_of("simulated", "reverb", key_of("cepstra", "toy", f"u{i}"))
        expected = mean.apply(under("reverb", cepstra(i), key, 0.01))
        np.testing.assert_array_equal(row["features"], expected.astype(np.float16).ravel())


def test_sets_without_speakers_and_a_condition_named_twice_are_refused(corpus: Path) -> None:
    with pytest.raises(ConfigError, match=r"no speaker is in sets \['tune'\]"):
        plan_import(params(corpus, sets=["tune"]))
    with pytest.raises(ValueError, match="names a condition twice"):
        params(corpus, simulate=["noise", "noise"])


def planned(p: ImportFeaturesParams) -> list[tuple[str, list[list[str]]]]:
    return [(task["set"], task["utterances"]) for task in ImportFeatures().plan(p, {})]


def speakers_of(utterances: list[list[str]]) -> list[str]:
    return list(dict.fromkeys(speaker for *_, speaker, _ in utterances))


def test_a_set_has_as_many_shards_as_are_asked_for_and_whole_speakers_in_each(corpus: Path) -> None:
    shards = planned(params(corpus, shards=3))
    assert [name for name, _ in shards] == [*["test"] * 2, *["labelled"] * 3, *["unlabelled"] * 3]
    speakers = [speaker for _, utterances in shards for speaker in speakers_of(utterances)]
    assert len(speakers) == len(set(speakers)) == 12
    assert [len(speakers_of(utterances)) for _, utterances in shards] == [1, 1, 1, 1, 1, 2, 2, 3]
    assert planned(params(corpus, shards=3)) == shards != planned(params(corpus, shards=3, seed=1))


def test_a_small_share_is_one_speaker_and_none_is_none(corpus: Path) -> None:
    sets = [name for name, _ in planned(params(corpus, labelled=0.01, tune=0.0, shards=1))]
    assert sets == ["test", "labelled", "unlabelled"]
    (_, labelled) = planned(params(corpus, labelled=0.01, shards=1))[1]
    assert len(speakers_of(labelled)) == 1
    assert [name for name, _ in planned(params(corpus, labelled=0.0, test="", shards=1))] == ["unlabelled"]


def test_names_may_say_their_folder_and_speakers_may_be_spelled_in_several_ways(corpus: Path) -> None:
    train = corpus / "feat" / "train"
    shutil.copytree(train / "sp5", train / "SP6")
    lines = (corpus / "train.transcription").read_text().replace("(u15)", "(sp5/u15)")
    lines = lines.replace("(u16)", "(SP6/u16)").replace("(u17)", "(sp5/u17)")
    (corpus / "train.transcription").write_text(lines)
    (_, utterances) = planned(params(corpus, test="", labelled=0.0, shards=1))[0]
    found = {name: (path, speaker, reason) for name, _, path, speaker, reason in utterances}
    assert found["sp5/u15"] == ("train/sp5/u15.mfc", "sp5", "")
    assert found["SP6/u16"] == ("train/SP6/u16.mfc", "SP6", "")
    assert found["u18"] == ("train/sp6/u18.mfc", "SP6", ""), "one speaker, as first spelled"
    (train / "sp1").mkdir()
    shutil.copytree(train / "sp5", train / "SP0")
    with (corpus / "train.transcription").open("a") as file:
        file.write("NO (SP0/u15)\n")
    with pytest.raises(ConfigError, match=r"speakers \['SP0'\] are in the training and in the test list"):
        planned(params(corpus))


def test_a_test_set_alone_is_enough_though_files_are_missing(corpus: Path) -> None:
    (corpus / "train.transcription").write_text("NO (gone)\n")
    with (corpus / "test.transcription").open("a") as file:
        file.write("NO (gone-too)\n")
    shards = planned(params(corpus, shards=1))
    assert [name for name, _ in shards] == ["test"]
    missing = {name for _, utterances in shards for name, *_, reason in utterances if reason == "missing-file"}
    assert missing == {"gone", "gone-too"}, "they go to quarantine"


def test_another_list_is_another_job(corpus: Path) -> None:
    before, without = params(corpus).identity(), params(corpus, test="").identity()
    assert params(corpus).identity() == before
    assert len(before["digests"]) == 3
    assert len(without["digests"]) == 2
    with (corpus / "test.transcription").open("a") as file:
        file.write("(u99)\n")
    assert params(corpus).identity()["digests"] != before["digests"]


def test_a_source_and_a_list_are_needed() -> None:
    with pytest.raises(ConfigError, match="no source"):
        ImportFeatures().check(ImportFeaturesParams(train="list"), ())
    with pytest.raises(ConfigError, match="no transcriptions"):
        ImportFeatures().check(ImportFeaturesParams(source="folder"), ())
    ImportFeatures().check(ImportFeaturesParams(source="folder", train="list"), ())


def test_a_speaker_of_both_lists_is_an_error(corpus: Path) -> None:
    with (corpus / "train.transcription").open("a") as file:
        file.write("NO (u0)\n")
    with pytest.raises(ConfigError, match=r"speakers \['sp0'\] are in the training and in the test list"):
        ImportFeatures().plan(params(corpus), {})


def test_wrong_parameters_are_named(corpus: Path) -> None:
    with pytest.raises(ConfigError, match="does not match"):
        ImportFeatures().plan(params(corpus, speaker_pattern="-([a-z]+)-"), {})
    with pytest.raises(ConfigError, match="check `extension`"):
        ImportFeatures().plan(params(corpus, extension=".cep"), {})
    with pytest.raises(ValueError, match="prior has 1 values, dims is 4"):
        params(corpus, prior=[1.0])
    with pytest.raises(ValueError, match="has 0 groups, not one"):
        params(corpus, speaker_pattern="abc")


def test_an4(shared_data: Path) -> None:
    """All 1078 published files are whole, and every word of the transcripts is in the dictionary."""
    an4 = shared_data / "an4"
    p = ImportFeaturesParams(
        source=str(an4 / "feat"),
        train=str(an4 / "etc" / "an4_train.transcription"),
        test=str(an4 / "etc" / "an4_test.transcription"),
        labelled=0.25,
    )
    tasks = ImportFeatures().plan(p, {})
    utterances = [u for task in tasks for u in task["utterances"]]
    assert len(utterances) == 948 + 130
    assert not any(reason for *_, reason in utterances)
    assert len({speaker for *_, speaker, _ in utterances}) == 74 + 10
    name, _, path, speaker, _ = utterances[0]
    assert f"-{speaker}-" in name
    assert read_cepstra((an4 / "feat" / path).read_bytes(), 13).shape[1] == 13
    dictionary = {line.split()[0].lower() for line in (an4 / "etc" / "an4.dic").read_text().splitlines()}
    assert {word for _, text, *_ in utterances for word in text.split()} <= dictionary


def test_speakers_for_tuning_are_kept_from_the_other_sets(corpus: Path, tmp_path: Path, engine: LocalEngine) -> None:
    output = Artifact(tmp_path / "features")
    run_stage(ImportFeatures(), params(corpus, tune=0.2), {}, output, engine)
    sets: dict[str, set[str]] = {}
    for row in rows(output):
        sets.setdefault(row["set"], set()).add(row["speaker"])
    assert len(sets["tune"]) == 2
    assert not sets["tune"] & (sets["labelled"] | sets["unlabelled"] | sets["test"])
