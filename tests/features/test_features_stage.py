"""Stage `features` end to end: real FLAC in, features with a causal mean per speaker out, for any number of workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from engine_here import EngineHere
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.core.schemas import FEATURES, SELECTION, UTTERANCES
from megahour.core.stage import Context, Task
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.corpus.media.tar import tar_writer
from megahour.engine.local import LocalEngine
from megahour.features.extract import check_features, extract
from megahour.features.fbank import log_mel, with_mirrored_ends
from megahour.features.normalise import CausalMean, without_mean
from megahour.features.params import FeaturesParams
from megahour.features.stage import Features
from megahour.runner.runner import run_stage
from megahour.select.params import SelectParams, SetRule
from megahour.select.stage import Select

PARAMS = FeaturesParams(mels=24, max_bad=0.2)
RATE_HZ = 16_000


def tone(key: int, seconds: float) -> NDArray[np.int16]:
    """A chord in noise."""
    rng = np.random.default_rng(key)
    time_s = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    chord = sum(np.sin(2 * np.pi * hz * time_s) for hz in rng.uniform(100, 4000, 4))
    return np.asarray(1500 * chord + rng.normal(0, 200, time_s.size)).astype(np.int16)


class Corpus:
    """One utterances shard of ten utterances, and three selection shards: two of training speakers, one of a tester."""

    def __init__(self, folder: Path) -> None:
        seconds = [0.6 + 0.1 * i for i in range(9)] + [0.05]  # the last one is too short for a single frame
        self.samples = [tone(key, value) for key, value in enumerate(seconds)]
        self.utterances, addresses = Artifact(folder / "utterances"), []
        with ShardWriter(self.utterances, 0, "made") as out:
            with out.open(".tar") as file, tar_writer(file) as tar:
                for key, samples in enumerate(self.samples):
                    path = folder / f"{key}.flac"
                    soundfile.write(path, samples, RATE_HZ)
                    addresses.append(tar.add(path.name, path.read_bytes()))
            receipts = [out.commit()]
        self._finish(self.utterances, receipts)
        self.rows = [
            {
                **{field.name: [] if pa.types.is_list(field.type) else None for field in SELECTION},
                **{"key": key, "offset": offset, "size": size, "samples": len(self.samples[key]), "rate_hz": RATE_HZ},
                **{"speaker": f"s{key // 3}", "text": f"words {key}", "condition": "clean", "shard": 0},
                "set": "test" if key // 3 == 1 else "labelled",
            }
            for key, (offset, size) in enumerate(addresses)
        ]
        self.selection, receipts = Artifact(folder / "selection"), []
        for shard, keys in enumerate([(0, 1, 2), (3, 4, 5), (6, 7, 8, 9)]):
            with ShardWriter(self.selection, shard, "made") as out:
                out.tags["set"] = self.rows[keys[0]]["set"]
                out.table(pa.Table.from_pylist([self.rows[key] for key in keys], SELECTION))
                receipts.append(out.commit())
        self._finish(self.selection, receipts)
        self.inputs = {"selection": self.selection, "utterances": self.utterances}

    @staticmethod
    def _finish(artifact: Artifact, receipts: list[Any]) -> None:
        digest = content_digest(receipts, {})
        finish(artifact, receipts, Manifest("made", 1, "made", digest, {}, {}, len(receipts), Counts(), {}))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def made(corpus: Corpus, engine: LocalEngine, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    output = Artifact(tmp_path_factory.mktemp("features"))
    run_stage(Features(), PARAMS, corpus.inputs, output, engine)
    return output


def test_features_are_log_mels_less_the_speakers_running_mean(corpus: Corpus, made: Artifact) -> None:
    for shard, keys in enumerate([(0, 1, 2), (3, 4, 5), (6, 7, 8)]):
        table = made.read_table(shard, ".arrow")
        assert table.schema == FEATURES
        assert made.receipts()[shard].tags == {"set": "test" if shard == 1 else "labelled"}
        mean = CausalMean(np.full(PARAMS.mels, PARAMS.prior, np.float32))
        for key, row in zip(keys, table.to_pylist(), strict=True):
            expected = mean.apply(log_mel(corpus.samples[key], RATE_HZ, PARAMS.mels)).astype(np.float16)
            assert {name: row[name] for name in ("key", "speaker", "frames", "text", "set", "condition")} == {
                "key": key,
                "speaker": f"s{shard}",
                "frames": len(expected),
                "text": f"words {key}",
                "set": corpus.rows[key]["set"],
                "condition": "clean",
            }
            np.testing.assert_array_equal(row["features"], expected.ravel())


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(order=st.permutations(range(9)), gap_s=st.integers(0, 40_000_000))
def test_a_selections_speakers_are_heard_in_the_order_of_creation(
    corpus: Corpus, tmp_path_factory: pytest.TempPathFactory, order: list[int], gap_s: int
) -> None:
    """In any order of the utterances' table: a speaker's running mean passes from one to the next."""
    folder = tmp_path_factory.mktemp("order")
    empty = {
        field.name: "" if pa.types.is_string(field.type) else [] if pa.types.is_list(field.type) else 0
        for field in UTTERANCES
    }
    rows = [
        {
            **empty,
            **{name: corpus.rows[key][name] for name in ("key", "offset", "size", "samples", "rate_hz")},
            "speaker": f"s{key % 2}",
            "created_s": gap_s * order.index(key),
        }
        for key in sorted(order, reverse=True)
    ]
    with ShardWriter(utterances := Artifact(folder / "utterances"), 0, "made") as out:
        out.table(pa.Table.from_pylist(rows, UTTERANCES))
        receipts = [out.commit()]
    Corpus._finish(utterances, receipts)
    p, inputs = SelectParams(sets=[SetRule(name="all")]), {"utterances": utterances}
    batches = [batch for _, batch in Select().split(p, inputs, Task({"shard": 0}))]
    with ShardWriter(selection := Artifact(folder / "selection"), 0, "made") as out:
        Select().merge(p, inputs, 0, iter(batches), out, Context(folder))
        out.commit()
    with ShardWriter(features := Artifact(folder / "features"), 0, "made") as out:
        extract(PARAMS, selection, corpus.utterances, 0, out)
        out.commit()
    table = features.read_table(0, ".arrow").to_pylist()
    created = order if gap_s else sorted(order)  # equal times: by key
    assert [row["key"] for row in table] == [key for speaker in (0, 1) for key in created if key % 2 == speaker]
    mean = CausalMean(np.full(PARAMS.mels, PARAMS.prior, np.float32))
    for row in table[: len(table) // 2 + 1]:  # those of the first: five of nine
        expected = mean.apply(log_mel(corpus.samples[row["key"]], RATE_HZ, PARAMS.mels)).astype(np.float16)
        np.testing.assert_array_equal(row["features"], expected.ravel())


def test_the_summary_holds_the_moments_of_all_but_the_test_set(made: Artifact) -> None:
    parts = [made.read_table(shard, ".arrow")["features"].to_pylist() for shard in (0, 2)]
    frames = np.concatenate([np.array(row, np.float32) for part in parts for row in part]).reshape(-1, PARAMS.mels)
    summary = made.summary
    assert (summary["mels"], summary["frame_shift_ms"], summary["frames"]) == (PARAMS.mels, 10, len(frames))
    np.testing.assert_allclose(summary["mean"], frames.mean(axis=0), atol=2e-3)
    np.testing.assert_allclose(1 / np.array(summary["inv_std"]), frames.std(axis=0), rtol=2e-3)


def test_receipts_and_summary_say_how_much_audio_there_was_and_of_what_kind(corpus: Corpus, made: Artifact) -> None:
    stats = [receipt.stats for receipt in made.receipts()]
    seconds = [sum(len(corpus.samples[key]) for key in keys) / RATE_HZ for keys in ((0, 1, 2), (3, 4, 5), (6, 7, 8))]
    assert [part["audio_s"] for part in stats] == pytest.approx(seconds, abs=1e-4)
    assert [part["rates_hz"] for part in stats] == [[RATE_HZ]] * 3
    assert made.summary["audio"] == {"rate_hz": RATE_HZ, "low_hz": 20.0, "high_hz": 0.0, "prior": PARAMS.prior}


def test_what_sherpa_onnx_hears_is_chosen_by_edges_and_scale(
    corpus: Corpus, engine: LocalEngine, tmp_path: Path
) -> None:
    params = FeaturesParams(mels=24, max_bad=0.2, edges="mirrored", scale="unit", high_hz=-400)
    run_stage(Features(), params, corpus.inputs, Artifact(tmp_path), engine)
    row = Artifact(tmp_path).read_table(0, ".arrow").to_pylist()[0]
    signal = with_mirrored_ends(corpus.samples[0].astype(np.float32) / 32768, RATE_HZ)
    mean = CausalMean(np.full(24, 14.0 - 30 * np.log(2), np.float32))
    expected = mean.apply(log_mel(signal, RATE_HZ, 24, high_hz=-400)).astype(np.float16)
    np.testing.assert_array_equal(row["features"], expected.ravel())
    audio = Artifact(tmp_path).summary["audio"]
    assert (audio["edges"], audio["scale"], audio["prior"]) == ("mirrored", "unit", pytest.approx(14 - 30 * np.log(2)))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_mean_starts_again_before_a_share_of_the_utterances(
    corpus: Corpus, engine: LocalEngine, tmp_path: Path, share: float
) -> None:
    """Drawn by the key. The stored means show where, and the summary passes it to the model's configuration."""
    params = PARAMS.model_copy(update={"restarts": share, "keep": "both"})
    run_stage(Features(), params, corpus.inputs, Artifact(tmp_path), engine)
    begun = []
    for shard, keys in enumerate([(0, 1, 2), (3, 4, 5), (6, 7, 8)]):
        stored, before = (
            Artifact(tmp_path).read_table(shard, suffix).to_pylist() for suffix in (".arrow", ".means.arrow")
        )
        for row, known, key in zip(stored, before, keys, strict=True):
            mean = CausalMean.after(known["count"], np.array(known["mean"]))
            expected = mean.apply(log_mel(corpus.samples[key], RATE_HZ, PARAMS.mels)).astype(np.float16)
            np.testing.assert_array_equal(row["features"], expected.ravel())
            begun += [key] * (known["count"] == 0)
    assert begun == list(range(9)) if share == 1 else {0, 3, 6} < set(begun) < set(range(9))
    assert Artifact(tmp_path).summary["audio"]["restarts"] == share


def test_the_mean_may_be_that_of_the_utterance(corpus: Corpus, engine: LocalEngine, tmp_path: Path) -> None:
    """Whatever the speaker said before."""
    run_stage(Features(), PARAMS.model_copy(update={"mean": "utterance"}), corpus.inputs, Artifact(tmp_path), engine)
    for row in Artifact(tmp_path).read_table(0, ".arrow").to_pylist():
        energies = log_mel(corpus.samples[row["key"]], RATE_HZ, PARAMS.mels)
        expected = energies - energies.mean(axis=0)
        np.testing.assert_allclose(np.reshape(row["features"], expected.shape), expected, atol=0.01)
    assert Artifact(tmp_path).summary["audio"]["mean"] == "utterance"
    ranged = PARAMS.model_copy(update={"mean": "utterance", "range_db": 15.0})
    run_stage(Features(), ranged, corpus.inputs, Artifact(tmp_path / "ranged"), engine)
    for row in Artifact(tmp_path / "ranged").read_table(0, ".arrow").to_pylist():
        expected = without_mean(log_mel(corpus.samples[row["key"]], RATE_HZ, PARAMS.mels), None, 15.0)
        np.testing.assert_array_equal(row["features"], expected.astype(np.float16).ravel())
    assert Artifact(tmp_path / "ranged").summary["audio"]["range_db"] == 15
    with pytest.raises(ValueError, match="range_db = 15 is of whole utterances, but mean is causal: use utterance"):
        FeaturesParams(range_db=15)
    with pytest.raises(ValueError, match="is of the causal mean, but mean is utterance"):
        FeaturesParams(mean="utterance", restarts=0.5)


def test_finished_features_stay_what_they_are() -> None:
    """Their fingerprint does not know parameters that came later, while these have their defaults."""
    assert not {"edges", "scale", "restarts", "mean", "range_db"} & PARAMS.identity().keys()
    assert PARAMS.model_copy(update={"edges": "mirrored"}).identity()["edges"] == "mirrored"


def finished(p: FeaturesParams, *shards: tuple[str, int, float]) -> dict[str, Any]:
    """Summary of shards of (set, rate, value of all of their two frames)."""
    receipts = [
        Receipt(i, "f", Counts(), {}, {"rates_hz": [rate], "frames": 2, "total": [2 * v], "squares": [2 * v * v]}, tags)
        for i, (name, rate, v) in enumerate(shards)
        for tags in [{"set": name}]
    ]
    return Features().finish(p, {}, receipts)


def test_audio_of_several_rates_has_none_and_the_moments_are_of_the_wanted_sets() -> None:
    mixed = finished(FeaturesParams(), ("labelled", 8000, 1.0), ("unlabelled", 16_000, 3.0), ("test-far", 16_000, 99.0))
    assert (mixed["audio"]["rate_hz"], mixed["frames"], mixed["mean"], mixed["inv_std"]) == (0, 4, [2.0], [1.0])
    one = finished(FeaturesParams(stats_sets=["test"]), ("labelled", 8000, 1.0), ("test", 8000, 5.0))
    assert (one["audio"]["rate_hz"], one["frames"], one["mean"], one["inv_std"]) == (8000, 2, [5.0], [1000.0])
    assert finished(FeaturesParams(stats_sets=["dev"]), ("test", 8000, 5.0))["frames"] == 0


def test_five_frames_are_enough_and_every_value_is_finite() -> None:
    check_features(np.zeros((5, 2), np.float32), 7)
    with pytest.raises(BadRecord, match="4 frames, at least 5"):
        check_features(np.zeros((4, 2), np.float32), 7)
    odd = np.zeros((5, 2), np.float32)
    odd[1, 0], odd[2, 1] = np.nan, np.inf
    with pytest.raises(BadRecord, match="nan-features: 2 values"):
        check_features(odd, 7)


def test_an_utterance_without_frames_goes_to_quarantine(made: Artifact) -> None:
    counts = made.manifest.counts
    assert (counts.came_in, counts.kept, counts.dropped) == (10, 9, {"too-short": 1})
    (bad,) = made.bad_records()
    assert (bad["id"], bad["reason"], bad["shard"]) == ("9", "too-short", "2")


def test_the_bytes_do_not_depend_on_the_number_of_workers(corpus: Corpus, made: Artifact, tmp_path: Path) -> None:
    with LocalEngine(1) as alone:
        assert run_stage(Features(), PARAMS, corpus.inputs, Artifact(tmp_path), alone).digest == made.manifest.digest


def test_only_the_wanted_sets(corpus: Corpus) -> None:
    tasks = Features().plan(FeaturesParams(sets=["labelled"]), corpus.inputs)
    assert [task["shard"] for task in tasks] == [0, 2]
    with pytest.raises(ConfigError, match=r"is in sets \['labeled'\]; its sets are \['labelled', 'test'\]"):
        Features().plan(FeaturesParams(sets=["labelled", "labeled"]), corpus.inputs)


def test_a_selection_of_other_utterances_is_refused(corpus: Corpus) -> None:
    """Its places are those of other shards: they have other sound there, or none."""

    def planned(made_from: str) -> list[Task]:
        selection = Artifact(corpus.selection.url)
        selection.__dict__["manifest"] = replace(selection.manifest, inputs={"utterances": made_from})
        return Features().plan(PARAMS, {**corpus.inputs, "selection": selection})

    assert len(planned(corpus.utterances.manifest.digest)) == 3
    with pytest.raises(ConfigError, match=r"selection was not made from .*utterances"):
        planned("digest of others")


@pytest.mark.parametrize(("sets", "stats_sets"), [([], ["labeled"]), (["test"], ["test", "labelled"])])
def test_statistics_of_a_set_without_features_are_refused(
    corpus: Corpus, sets: list[str], stats_sets: list[str]
) -> None:
    """The mean would be empty or of fewer sets, without a word."""
    with pytest.raises(ConfigError, match=r"stats_sets has \['label(ed|led)'\], of which no features are made"):
        Features().plan(FeaturesParams(sets=sets, stats_sets=stats_sets), corpus.inputs)


@pytest.mark.parametrize("edges", [{"high_hz": 9000.0}, {"high_hz": -9000.0}, {"low_hz": 8000.0}])
def test_filters_beyond_the_audio_are_an_error_that_names_its_rate(
    corpus: Corpus, edges: dict[str, float], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"do not fit under 8000.0 Hz[\s\S]*some of it has 16000 Hz"):
        run_stage(Features(), FeaturesParams(mels=24, **edges), corpus.inputs, Artifact(tmp_path / "f"), EngineHere())


@pytest.mark.parametrize(("rate_hz", "mels", "empty"), [(16_000, 80, ""), (8000, 128, "4 of 128 mel filters")])
def test_filters_that_are_always_empty_are_named(
    rate_hz: int, mels: int, empty: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = log_mel(np.random.default_rng(1).normal(0, 1000, rate_hz), rate_hz, mels)
    flat = np.ptp(values, axis=0) == 0
    assert flat.sum() == int(empty.split()[0] if empty else 0)
    finished(FeaturesParams(mels=mels), ("labelled", rate_hz, 1.0))
    assert empty in caplog.text
    assert bool(caplog.text) == bool(empty)


@pytest.mark.parametrize(("high_hz", "bands"), [(-400.0, "another band at each rate (high_hz -400)"), (3600.0, "")])
def test_audio_of_several_rates_is_named_before_a_model_learns_from_it(
    high_hz: float, bands: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`transcribe` refused the trained model; no word came before."""
    finished(FeaturesParams(high_hz=high_hz), ("labelled", 8000, 1.0), ("test", 8000, 1.0))
    assert not caplog.text
    finished(FeaturesParams(high_hz=high_hz), ("labelled", 8000, 1.0), ("test", 16_000, 1.0))
    assert "features: audio at 8000 and 16000 Hz" in caplog.text
    assert bands in caplog.text
    assert ("another band" in caplog.text) == bool(bands)


def test_an_empty_shard_keeps_its_set(corpus: Corpus, tmp_path: Path) -> None:
    """`select` can leave a shard without rows, where `speaker_hours` lets none of them in."""
    selection = Artifact(tmp_path / "selection")
    with ShardWriter(selection, 0, "made") as out:
        out.tags["set"] = "labelled"
        out.table(pa.Table.from_pylist([], SELECTION))
        Corpus._finish(selection, [out.commit()])
    with ShardWriter(Artifact(tmp_path / "features"), 0, "made") as out:
        inputs = {**corpus.inputs, "selection": selection}
        Features().run(PARAMS, inputs, Task({"shard": 0}), out, Context(tmp_path))
        receipt = out.commit()
    assert receipt.tags == {"set": "labelled"}
    assert Artifact(tmp_path / "features").read_table(0, ".arrow").num_rows == 0
    assert Features().finish(PARAMS, inputs, [receipt])["mean"] == []
