"""A plan runs what its configuration needs, once, in order, and goes on where it was killed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from models import SMALL, entries

from megahour.core.errors import ConfigError
from megahour.lm.arpa.model import read_arpa
from megahour.lm.plan import Plan, Step
from megahour.lm.plan_config import load_config, parse_config
from megahour.lm.plan_work import work
from megahour.lm.query.convert import read_model


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Two sources of text and a held-out text."""
    for name, lines in {"tales": SMALL[:12], "notes": SMALL[12:], "heldout": SMALL[8:16]}.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return {
        "out": str(tmp_path / "out"),
        "sources": {name: {"text": str(tmp_path / f"{name}.txt")} for name in ("tales", "notes")},
        "heldout": str(tmp_path / "heldout.txt"),
    }


def plan_of(settings: dict[str, Any], **changes: Any) -> Plan:
    return Plan(parse_config({**settings, **changes}, where="test"))


def states(plan: Plan) -> dict[str, str]:
    return {verdict.step.name: verdict.state for verdict in plan.verdicts()}


def run(plan: Plan) -> list[str]:
    """Names of the steps that ran."""
    return [step.name for step in plan.execute(work, lambda verdict: None)]


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


ALL = ["train tales", "train notes", "weights", "mix", "output lm.arpa"]


def test_all_steps_run_once_and_in_order(settings: dict[str, Any]) -> None:
    plan = plan_of(settings)
    assert states(plan) == {**dict.fromkeys(ALL, "run"), "prune": "unneeded", "evaluate": "unneeded"}
    assert run(plan) == ALL
    assert run(plan_of(settings)) == []
    assert set(states(plan_of(settings)).values()) == {"done", "unneeded"}
    weights = json.loads((plan.folder / "weights.json").read_text())
    assert weights["perplexity"] < min(weights["perplexities"].values())


@pytest.mark.parametrize(
    ("changes", "unneeded"),
    [
        ({}, {"prune": "does not prune, so nothing is re-estimated", "evaluate": "no text to evaluate on"}),
        ({"weights": {"tales": 0.6, "notes": 0.4}, "heldout": []}, {"weights": "the configuration gives them"}),
        ({"weights": {"tales": 1, "notes": 0}, "heldout": []}, {"train notes": "its weight is 0", "mix": "one source"}),
    ],
)
def test_the_configuration_decides_what_is_needed(
    settings: dict[str, Any], changes: dict[str, Any], unneeded: dict[str, str]
) -> None:
    plan = plan_of(settings, **changes)
    for verdict in plan.verdicts():
        if verdict.step.name in unneeded:
            assert verdict.state == "unneeded"
            assert unneeded[verdict.step.name] in verdict.why
    assert not set(run(plan)) & set(unneeded)


def test_pruning_adds_only_what_it_needs_and_a_new_threshold_only_prunes(settings: dict[str, Any]) -> None:
    run(plan_of(settings))
    assert run(plan_of(settings, prune={"ngrams": 120})) == ["prune", "output lm.arpa"]
    plan = plan_of(settings, prune={"ngrams": 100})
    verdict = {verdict.step.name: verdict for verdict in plan.verdicts()}
    assert verdict["prune"].why == "ngrams: 120 → 100"
    assert verdict["output lm.arpa"].why == "if prune makes something else"
    run(plan)
    assert sum(read_arpa(plan.folder / "lm.arpa").sizes) == 100


def test_contexts_of_pruning_may_be_counted_in_text_or_come_from_another_model(settings: dict[str, Any]) -> None:
    run(plan_of(settings))
    text = settings["sources"]["notes"]["text"]
    kept = []
    for history in ({}, {"history_text": text}, {"history": f"{settings['out']}/notes.source.arpa"}):
        plan = plan_of(settings, prune={"ngrams": 120, **history})
        assert run(plan) == ["prune", "output lm.arpa"]
        kept.append(frozenset(entries(read_arpa(plan.folder / "lm.arpa"))))
    assert len(set(kept)) == 3


def test_changed_text_is_trained_again_but_nothing_behind_it_if_the_model_is_the_same(settings: dict[str, Any]) -> None:
    run(plan_of(settings))
    notes = Path(settings["sources"]["notes"]["text"])
    notes.write_text(notes.read_text().replace(" ", "  "))  # the same words
    found = states(plan_of(settings))
    assert [name for name in ALL if found[name] != "done"] == ["train notes", "weights", "mix", "output lm.arpa"]
    assert found["weights"] == "after"
    assert run(plan_of(settings)) == ["train notes"]
    notes.write_text(notes.read_text() + "a whale sang\n")
    assert run(plan_of(settings)) == ["train notes", "weights", "mix", "output lm.arpa"]


def test_outputs_that_are_gone_or_cut_are_made_again(settings: dict[str, Any]) -> None:
    plan = plan_of(settings)
    run(plan)
    before = contents(plan.folder)
    (plan.folder / "lm.arpa").unlink()
    mixed = plan.folder / "mixed.arpa"
    mixed.write_bytes(mixed.read_bytes()[:-9])
    (plan.folder / "weights.json.step.json").write_text("{cut")
    assert run(plan_of(settings)) == ["weights", "mix", "output lm.arpa"]
    assert contents(plan.folder) == before


def test_models_that_are_given_are_mixed_without_training(settings: dict[str, Any], tmp_path: Path) -> None:
    run(plan_of(settings))
    given = tmp_path / "given.arpa"
    (tmp_path / "out" / "tales.source.arpa").rename(given)
    settings["sources"]["tales"] = {"arpa": str(given)}
    plan = plan_of(
        settings, out=str(tmp_path / "second"), outputs=["lm.arpa.gz", "lm.mlm"], evaluate=settings["heldout"]
    )
    assert run(plan) == ["train notes", "weights", "mix", "evaluate", "output lm.arpa.gz", "output lm.mlm"]
    assert (
        entries(read_model(tmp_path / "second" / "lm.mlm")).keys()
        == entries(read_model(plan.path(plan.steps[3]))).keys()
    )
    assert entries(read_arpa(tmp_path / "second" / "lm.arpa.gz")) == entries(read_arpa(tmp_path / "out" / "lm.arpa"))
    evaluation = json.loads((tmp_path / "second" / "evaluation.json").read_text())
    assert set(evaluation) == {"source notes", "source tales", "final"}
    assert evaluation["final"]["unknown"] == 0


def test_a_step_that_fails_leaves_no_output_and_the_next_run_goes_on(settings: dict[str, Any]) -> None:
    def fail_at_mixing(plan: Plan, step: Step, path: Path) -> None:
        path.write_text("half a model")
        if step.kind == "mix":
            raise KeyboardInterrupt
        work(plan, step, path)

    plan = plan_of(settings)
    with pytest.raises(KeyboardInterrupt):
        list(plan.execute(fail_at_mixing, lambda verdict: None))
    assert not (plan.folder / "mixed.arpa").exists()
    assert run(plan_of(settings)) == ["mix", "output lm.arpa"]


def test_killed_at_any_moment_it_ends_with_the_same_bytes(settings: dict[str, Any], tmp_path: Path) -> None:
    undisturbed = plan_of(settings, prune={"threshold": 1e-4})
    run(undisturbed)
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({**settings, "out": str(tmp_path / "killed"), "prune": {"threshold": 1e-4}}))
    code = "import sys; from megahour.lm.combine_commands import run; run([sys.argv[1]])"
    command = [sys.executable, "-c", code, str(config)]
    for seen in ("tales.source.arpa", "weights.json"):  # killed as soon as these are there
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (tmp_path / "killed" / seen).exists():
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert contents(tmp_path / "killed") == contents(undisturbed.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heldot": "x"}, 'unknown key "heldot" – did you mean "heldout"'),
        ({"heldout": []}, "several sources need `weights`, or a `heldout` text"),
        ({"weights": {"tales": 1, "notes": 0}}, "with `weights` nothing is tuned"),
        ({"weights": {"tales": 1}, "heldout": []}, "leaves out notes"),
        ({"weights": {"tales": 0.9, "note": 0.1}}, 'did you mean "notes"'),
        ({"weights": {"tales": 0.9, "notes": 0.5}, "heldout": []}, "must be ≥ 0 and sum to 1"),
        ({"prune": {}}, "`prune` needs one of `threshold` and `ngrams`"),
        ({"sources": {"tales": {}}}, "needs one of `text` and `arpa`"),
        ({"order": 9}, '"order" = 9'),
        ({"cutoffs": [0, 2, 1]}, "must begin with 0 and not decrease"),
        ({"cutoffs": [0, 0, 0, 0, 1, 1, 1, 1]}, "are for orders 1 to 8"),
        ({"outputs": ["lm.bin"]}, 'output "lm.bin": give a file name that ends in .arpa'),
        ({"outputs": ["mixed.arpa"]}, "output"),
        ({"out": "s3://models/x"}, "local disk"),
        ({"vocabulary": {"file": "words.txt", "words": 9}}, "leave `words` and `min_count` out"),
        ({"prune": {"ngrams": 9, "history": "a", "history_text": "b"}}, "one of `history` and `history_text`"),
    ],
)
def test_wrong_configurations_are_refused_by_name(
    settings: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(settings, **changes)
    assert message in str(caught.value)


def test_missing_files_are_named_before_anything_runs(settings: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(settings, heldout=str(tmp_path / "none.txt"))
    with pytest.raises(ConfigError, match="no file matches"):
        run(plan)
    assert not plan.folder.exists()
    with pytest.raises(ConfigError, match="no such configuration"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("[1, 2")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(tmp_path / "bad.yaml")


def test_threads_change_no_byte(settings: dict[str, Any], tmp_path: Path) -> None:
    one, two = plan_of(settings), plan_of(settings, out=str(tmp_path / "two"))
    run(one)
    list(two.execute(partial(work, threads=2), lambda verdict: None))
    assert contents(one.folder) == contents(two.folder)
