"""Stage `train` on small artifacts: it learns, survives kills, and reports errors."""

import json
import random
import re
import signal
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from gloo import processes
from made_artifacts import MELS, SENONES, features_artifact, units_artifact, utterances, write_artifact
from trainings import training_data, with_a_nan

from megahour.core.errors import MegahourError, StageError, StoreError
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.decode.params import DecodeParams
from megahour.decode.token_search import TokenSearcher
from megahour.learn.data import held_out_speakers
from megahour.learn.params import TrainParams
from megahour.models.inference import load
from megahour.recipes.recipe import load_stage
from megahour.recipes.stage_table import STAGES
from megahour.runner.loss_limits import check_kept
from megahour.train.session import train, untaught
from megahour.train.stage import Train

SMALL = {"hidden": 16, "layers": 1, "batch_frames": 120, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 4}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    made = utterances(60, speakers=6)
    folder = tmp_path_factory.mktemp("data")
    features = features_artifact(folder / "features", [("labelled", made[:30]), ("labelled", made[30:])])
    return {"features": features, "units": units_artifact(folder / "units", made)}


def run(folder: Path, inputs: dict[str, Artifact], progress=None, **values):
    """The files of the model that the stage writes, and its receipt."""
    output, context = Artifact(folder / "model"), Context(work=folder / "work")
    with ShardWriter(output, 0, "made") as out:
        train(TrainParams(**{**SMALL, **values}), inputs, out, replace(context, progress=progress or context.progress))
        return output, out.commit()


def rows(model: Artifact):
    return [json.loads(line) for line in model.read_bytes(0, ".curves.jsonl").splitlines()]


@pytest.mark.parametrize("kind", ["lstm", "blstm", "tdnn", "mlp"])
def test_each_kind_learns_audible_senones_of_unheard_speakers(tmp_path, data, kind):
    model, receipt = run(tmp_path, data, kind=kind, lookahead=1, epochs=6, whole_epochs=2, held_out=0.2)
    curve = rows(model)
    assert curve[-1]["held_out_accuracy"] > max(0.7, curve[0]["held_out_accuracy"])
    assert receipt.counts.came_in == 60
    assert receipt.counts.dropped == {"held-out": 10}
    tables = [data["features"].read_table(shard, ".arrow") for shard in range(2)]
    whole_s = sum(sum(table["frames"].to_pylist()) for table in tables) / 100
    assert receipt.stats["audio_s"] == pytest.approx(8 * whole_s * 50 / 60, rel=0.1), "eight passes over five sixths"
    config = model.read_json(0, ".model.json")
    assert (config["inputs"], config["outputs"], config["senones"]) == (3 * MELS, SENONES, SENONES)
    outputs, _ = load(model.url)(np.zeros((1, 5, 3 * MELS), np.float32), np.array([5]))
    assert outputs["log_probs"].shape == (1, 5, SENONES)


def test_ctc_learns_to_spell(tmp_path, data):
    model, _ = run(
        tmp_path, {"features": data["features"]}, kind="tdnn", criterion="ctc", epochs=0, whole_epochs=12, held_out=0.0
    )
    assert model.read_json(0, ".model.json")["tokens"] == ["<blank>", *"abcde"]
    curve = rows(model)
    assert curve[-1]["loss"] < 0.6 * curve[0]["loss"]
    assert curve[-1]["held_out_loss"] is None


def test_a_training_that_was_too_short_to_learn_anything_ends_with_a_warning(tmp_path, data, caplog):
    values = {"kind": "tdnn", "epochs": 0, "held_out": 0.1}
    run(tmp_path / "short", data, **values, whole_epochs=1, learning_rate=1e-5)
    (said,) = (record.getMessage() for record in caplog.records if "next to nothing" in record.getMessage())
    assert re.match(r"train: after \d steps .*, and that of a guess among 5 outputs 1\.61; raise epochs", said)
    caplog.clear()
    run(tmp_path / "long", data, **values, whole_epochs=8)
    assert "next to nothing" not in caplog.text


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"held_out_loss": 2.9, "held_out_cer": 0.91, "held_out_wer": 1.0}, "91% of the held-out characters are wrong"),
        ({"held_out_loss": 2.9, "held_out_per": 1.02}, "102% of the held-out phones are wrong"),
        ({"held_out_loss": 9.0, "held_out_cer": 0.5, "held_out_wer": 1.0}, ""),
        ({"held_out_loss": None}, ""),
        ({"held_out_loss": 9.0, "held_out_cer": None}, ""),
    ],
)
def test_a_model_that_spells_nothing_right_is_told_from_a_poor_one(row, told):
    """Of a poor one all words may be wrong, and it aligns transcripts nevertheless."""
    said = untaught(TrainParams(criterion="ctc", kind="tdnn"), {"step": 10, **row}, 1000)
    assert (told in said) if told else not said


def test_ctc_learns_phones(tmp_path, data):
    """Letters and their names here; the curve counts phones that are wrong."""
    texts = [text for shard in range(2) for text in data["features"].read_table(shard, ".arrow")["text"].to_pylist()]
    words = sorted(set(" ".join(texts).split()))
    lines = "".join(f"{word}  {' '.join(letter * 2 for letter in word)}\n" for word in words)
    lexicon = write_artifact(tmp_path / "lexicon", [({}, {".lexicon.txt": lines.encode()})], {})
    inputs = {"features": data["features"], "lexicon": lexicon}
    model, _ = run(tmp_path, inputs, kind="tdnn", criterion="ctc", epochs=0, whole_epochs=12, held_out=0.1)
    config = model.read_json(0, ".model.json")
    assert (config["tokens"], config["phones"]) == (["<blank>", *(letter * 2 for letter in "abcde")], True)
    curve = rows(model)
    assert curve[-1]["loss"] < 0.6 * curve[0]["loss"]
    assert curve[-1]["held_out_per"] < curve[0]["held_out_per"]


def test_a_conformer_learns_to_spell_and_is_heard_at_its_own_rate(tmp_path, data):
    values = {"kind": "conformer", "criterion": "ctc", "stack": 1, "offsets": [0], "hidden": 32, "dropout": 0.1}
    model, receipt = run(
        tmp_path, {"features": data["features"]}, **values, epochs=0, whole_epochs=4, held_out=0.0, learning_rate=6e-3
    )
    assert receipt.counts.kept > 0
    curve = rows(model)
    assert curve[-1]["loss"] < 0.8 * curve[0]["loss"]
    outputs, lengths = load(model.url)(np.zeros((2, 21, MELS), np.float32), np.array([21, 8]))
    assert lengths.tolist() == [5, 2]
    assert outputs["log_probs"].shape[:2] == (2, 5)


@pytest.mark.parametrize("more", [{"prune": 3}, {"predictor": "lstm"}], ids=["pruned", "lstm"])
def test_a_transducer_learns_to_spell_and_is_searched_without_a_graph(tmp_path, data, more):
    options = {"join": 24, "ctc": 0.3, "attention": 0.2, **more}
    values = {"kind": "lstm", "criterion": "transducer", "criterion_options": options, "hidden": 32}
    model, _ = run(
        tmp_path, {"features": data["features"]}, **values, epochs=0, whole_epochs=6, held_out=0.0, learning_rate=2e-2
    )
    curve = rows(model)
    assert curve[-1]["loss"] < 0.85 * curve[0]["loss"]
    encoded, _ = load(model.url, outputs="encoded")(np.zeros((1, 5, 3 * MELS), np.float32), np.array([5]))
    found = load(model.url, outputs="encoded")
    search = TokenSearcher(found.config, found.module, DecodeParams(beams=4))
    paths, none = search([encoded["encoded"][0], np.full((2, 24), np.nan, np.float32)])
    assert len(paths[0].path.labels) == 5
    assert isinstance(none, ValueError)


def test_a_pruned_transducer_begins_with_all_symbols(tmp_path, data):
    """The first half of the training has a window with all symbols, the second half a pruned one."""
    values = {"kind": "lstm", "criterion": "transducer", "hidden": 16, "epochs": 0, "whole_epochs": 2, "held_out": 0.0}
    losses = []
    for prune in (2, 100):
        options = {"join": 16, "prune": prune, "prune_after": 0.5}
        model, _ = run(tmp_path / f"{prune}", {"features": data["features"]}, **values, criterion_options=options)
        losses.append([row["loss"] for row in rows(model)])
    half = len(losses[0]) // 2
    np.testing.assert_allclose(losses[0][:half], losses[1][:half], rtol=1e-5)
    assert (np.array(losses[0][half:]) > 1.01 * np.array(losses[1][half:])).all()


def test_utterances_can_be_held_out_where_speakers_are_few(tmp_path, data):
    model, receipt = run(tmp_path, data, epochs=1, whole_epochs=0, held_out=0.1, held_out_by="utterance")
    assert 1 <= receipt.counts.dropped["held-out"] <= 14
    assert rows(model)[-1]["held_out_accuracy"] > 0


def test_a_held_out_speaker_who_has_most_of_the_data_gets_a_hint(tmp_path):
    def hint(by):
        with ShardWriter(Artifact(tmp_path / by), 0, "made") as out:
            out.came_in(66)
            out.kept(26)
            out.drop("held-out", 40)
            receipts = [out.commit()]
        stage, p = Train(), TrainParams(held_out=0.4, held_out_by=by)
        return check_kept(stage.name, stage.remedies(p, receipts), receipts, Artifact(tmp_path / by))

    assert "as held-out: one of few speakers is much: --held-out-by utterance" in hint("speaker")
    assert hint("utterance").endswith("--held-out is 0.4")


def test_curves_hold_nothing_of_the_clock_and_the_log_does(tmp_path, data):
    model, _ = run(tmp_path, data, epochs=2, whole_epochs=0)
    assert set(rows(model)[0]) == {
        *("epoch", "step", "data", "learning_rate", "loss", "accuracy", "held_out_loss", "held_out_accuracy")
    }
    logged = [json.loads(line) for line in (tmp_path / "work" / "meters" / "train.log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in logged] == [row["step"] for row in rows(model)]
    assert logged[0]["frames_per_s"] > 0


def killable(folder: str, urls: dict[str, str], values: dict[str, object], ends: bool) -> None:
    def progress(done: float, total: float, *rest: object, **fields: object) -> None:
        while done >= total and not ends:
            time.sleep(1)  # until it is killed

    run(Path(folder), {role: Artifact(url) for role, url in urls.items()}, progress, **values)


def test_killed_at_random_moments_and_run_again_gives_the_same_bytes(tmp_path, data):
    values = {"kind": "blstm", "dropout": 0.3, "time_masks": 1, "epochs": 8, "whole_epochs": 8, "checkpoint_s": 0.1}
    undisturbed, _ = run(tmp_path / "a", data, **values)
    inputs = {role: artifact.url for role, artifact in data.items()}
    folder = tmp_path / "b"
    moments, kills = random.Random(7), 0
    for _ in range(40):
        process = processes.Process(target=killable, args=(str(folder), inputs, values, kills > 0))
        process.start()
        started = kills < 2 and _checkpoint_written(process, folder)
        if started:
            time.sleep(moments.uniform(0.0, 0.4))
            process.kill()
        process.join(400)
        kills += process.exitcode == -signal.SIGKILL
        if process.exitcode == 0:
            break
    assert kills >= 1
    disturbed = Artifact(folder / "model")
    for suffix in (".safetensors", ".model.json", ".curves.jsonl"):
        assert disturbed.read_bytes(0, suffix) == undisturbed.read_bytes(0, suffix), suffix


def _checkpoint_written(process: BaseProcess, folder: Path) -> bool:
    """Wait until this process has written a checkpoint of its own; false when it ends first."""
    seen = set(folder.glob("work/checkpoints/*/checkpoint.json"))
    while process.is_alive():
        if set(folder.glob("work/checkpoints/*/checkpoint.json")) - seen:
            return True
        time.sleep(0.01)
    return False


def test_a_finished_run_of_other_settings_is_not_resumed(tmp_path, data):
    first, _ = run(tmp_path, data, epochs=2, whole_epochs=0)
    steps = rows(first)[-1]["step"]
    second, _ = run(tmp_path, data, epochs=3, whole_epochs=0)
    assert rows(second)[-1]["step"] > steps


def test_a_loss_that_is_not_a_number_ends_the_run_with_a_remedy(tmp_path):
    inputs = with_a_nan(tmp_path, 4)
    with pytest.raises(StageError, match=r"loss nan at step \d+.*utterance 2 are not finite"):
        run(tmp_path, inputs, epochs=1, held_out=0.0)


def test_a_loss_that_is_not_a_number_names_the_step_of_the_curves_and_meters(tmp_path, caplog):
    """Not the number of its first batch: a step of several workers, or with `accumulate`, has several batches."""
    made = utterances(60)
    made[33]["features"][5, 1] = np.nan
    inputs = {"features": features_artifact(tmp_path / "features", [("labelled", made)])}
    inputs["units"] = units_artifact(tmp_path / "units", made)
    with pytest.raises(StageError, match="loss nan") as caught:
        run(tmp_path, inputs, epochs=0, whole_epochs=3, accumulate=5, held_out=0.0)
    named = int(re.search(r"at step (\d+),", str(caught.value))[1])
    deadline = time.monotonic() + 60
    while "training ended" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)  # another thread gives the alarm
    ended = [int(after) for after in re.findall(r"training ended after step (\d+)", caplog.text)]
    assert ended == [named - 1]
    assert named > 1


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("frames", 99, "utterance 2: 240 values, which are not 99 frames of 4 mels"),
    ],
)
def test_what_does_not_belong_together_is_refused_by_the_utterance(tmp_path, column, value, words):
    made = utterances(4)
    made[2] |= {
        "features": np.resize(made[2]["features"], (60, 4)),
        "frames": 60,
        "senones": np.zeros(60),
        column: value,
    }
    if column == "frames":
        made[2]["senones"] = np.zeros(99)
    with pytest.raises(StoreError, match=words):
        run(tmp_path, training_data(tmp_path, made, shards=1), epochs=1, held_out=0.0)


@pytest.mark.parametrize(
    ("values", "drop", "words"),
    [
        ({}, "units", "needs `units`"),
        ({"sets": ["absent"]}, None, r"\['labelled'\]"),
        ({"criterion": "ctc", "sets": ["absent"]}, None, "no utterance in sets .* has a text"),
        ({"epochs": 0, "whole_epochs": 0}, None, "no batches"),
    ],
)
def test_impossible_runs_are_refused(tmp_path, data, values, drop, words):
    with pytest.raises(MegahourError, match=words):
        run(tmp_path, {role: artifact for role, artifact in data.items() if role != drop}, **values)


def test_features_without_statistics_are_refused(tmp_path, data):
    summary = {**data["features"].summary, "mean": [], "inv_std": []}
    empty = write_artifact(tmp_path / "features", [({"set": "labelled"}, {})], summary)
    with pytest.raises(StageError, match="no global mean"):
        run(tmp_path, {**data, "features": empty})


def test_only_what_wants_all_cores_runs_in_the_drivers_process():
    """Everything else has one thread of a pool's worker, and so the same bits everywhere; these have them by design."""
    assert {name for name in STAGES if load_stage(name).local} == {"train", "lm-bounded"}


def test_offsets_beyond_the_stack_are_refused():
    with pytest.raises(ValueError, match="offsets"):
        TrainParams(offsets=[0, 3])


def test_held_out_speakers_are_few_stable_and_never_all():
    speakers = [f"s{i}" for i in range(40)]
    held = held_out_speakers(speakers, 0.1, seed=1)
    assert len(held) == 4
    assert held == held_out_speakers(speakers[::-1], 0.1, seed=1)
    assert held != held_out_speakers(speakers, 0.1, seed=2)
    assert held_out_speakers(speakers[:1], 0.5, 1) == []
    assert held_out_speakers(speakers, 0.0, 1) == []
    assert len(held_out_speakers(speakers[:2], 0.9, 1)) == 1


def test_tensorboard_files_are_written_beside_the_log_and_can_be_left_out(tmp_path, data):
    pytest.importorskip("tensorboard")
    plain, _ = run(tmp_path / "a", data, epochs=1, whole_epochs=0, tensorboard=False)
    watched, _ = run(tmp_path / "b", data, epochs=1, whole_epochs=0)
    assert not (tmp_path / "a" / "work" / "tensorboard").exists()
    assert list((tmp_path / "b" / "work" / "tensorboard").iterdir())
    assert watched.read_bytes(0, ".safetensors") == plain.read_bytes(0, ".safetensors")
