"""Settings of `train` that cannot work together are refused before anything is read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from megahour.core.errors import ConfigError
from megahour.learn.params import TrainParams
from megahour.train.session import unmeasured

CONFORMER = {"kind": "conformer", "criterion": "ctc", "stack": 1, "offsets": [0]}


@pytest.mark.parametrize(
    "values",
    [
        {"stack": 4, "offsets": [0, 3]},
        {"workers": 4, "trainer": "gossip", "trainer_options": {"node_size": 2}},
        {"workers": 4, "nodes": 2, "min_nodes": 2, "rendezvous": "a:1"},
        {"workers": 6, "nodes": 3, "min_nodes": 1, "rendezvous": "a:1"},
        {"workers": 3, "trainer": "gtc", "trainer_options": {"threshold": 0.3}},
    ],
)
def test_what_fits_is_taken(values: dict[str, Any]) -> None:
    p = TrainParams(**values)
    assert {name: getattr(p, name) for name in values} == values


def test_a_model_may_be_shared_out_over_machines_that_all_stay() -> None:
    machines = {"workers": 4, "nodes": 2, "rendezvous": "a:1", "parallel": {"shard": 4, "mode": "zero"}}
    assert TrainParams(**{**machines, "min_nodes": 2}).parallel.shard == 4
    with pytest.raises(ValidationError, match="with min_nodes below nodes also the workers of a machine"):
        TrainParams(**machines)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stack": 2, "offsets": [0, 2]}, r"offsets \[0, 2\] must be from 0 to stack − 1 = 1"),
        ({"offsets": [-1]}, "must be from 0"),
        ({"trainer": "ddp"}, "ddp must wrap the model, which works only in scripts: use dense"),
        ({"trainer": "fsdp"}, r"works only in scripts: use dense with parallel: \{shard: N\}"),
        ({"parallel": {"shard": 2}}, r"parallel\.shard 2 must divide workers \(1\),"),
        ({"parallel": {"shards": 2}, "workers": 2}, "shards"),
        ({"parallel": {"shard": 2, "microbatches": 2}, "workers": 2}, "apply only to mode pipeline, not to fsdp"),
        ({"parallel": {"shard": 3, "mode": "pipeline"}, "workers": 3}, "with layers 2: each worker of a pipeline"),
        (
            {"parallel": {"shard": 2, "mode": "tensor"}, "workers": 2},
            "kind lstm, whose layers mode tensor does not share out",
        ),
        (
            CONFORMER | {"parallel": {"shard": 2, "mode": "tensor"}, "workers": 4, "trainer": "bmuf"},
            "trainer bmuf, under",
        ),
        *(
            (CONFORMER | {"workers": 2, "layers": 2, "parallel": {"shard": 2, "mode": mode}, **values}, message)
            for mode in ("pipeline", "tensor")
            for values, message in [
                ({"criterion": "transducer"}, f"heads, which mode {mode} does not share out"),
                (
                    {"criterion_options": {"consistency": 0.2}, "time_masks": 1},
                    f"consistency, whose views mode {mode} does not share out",
                ),
            ]
        ),
        *(
            ({"workers": 2, "parallel": {"shard": 2}, **values}, f"does not go with {reason}")
            for values, reason in [
                ({"trainer": "gossip"}, "trainer gossip, .*: use another"),
                ({"trainer": "gtc", "trainer_options": {"density": 0.1, "node_size": 2}}, "node_size above 1"),
                ({"trainer_options": {"clip": "mean"}}, "clip: mean in trainer_options"),
                ({"optimiser": "muon"}, "optimiser muon"),
                ({"faults": "continue"}, "faults continue"),
                ({"precision": "fp16", "compile": True}, "precision fp16: use bf16.*; nor with compile"),
            ]
        ),
        ({"criterion": "ctc", "criterion_options": {"intermediate": 0.3}, "layers": 1}, "two layers or more"),
        ({"criterion": "transducer", "criterion_options": {"intermediate": 0.3}}, "give ctc a weight"),
        (
            {"kind": "blstm", "criterion": "ctc", "truncate": 40},
            "only to kind lstm with criterion ce, ctc or transducer",
        ),
        ({"kind": "tdnn", "truncate": 40}, "truncate applies only to kind lstm with criterion ce"),
        ({"truncate": 40, "compile": True}, "truncate applies only to"),
        ({"average": 0.2, "trainer": "bmuf"}, "average needs the same whole model on all workers"),
        ({"average": 0.2, "faults": "continue"}, "average does not go with faults"),
        ({"trainer": "dence"}, 'did you mean "dense"'),
        ({"trainer_options": {"clip_norm": 1.0}}, "trainer_options cannot have `clip_norm`"),
        ({"workers": 4, "trainer": "gossip", "trainer_options": {"node_size": 3}}, "node_size 3 must divide"),
        ({"workers": 4, "trainer": "gossip", "trainer_options": {"node_size": 0}}, "node_size"),
        (
            {"workers": 4, "nodes": 2, "rendezvous": "a:1", "trainer": "gossip", "trainer_options": {"node_size": 4}},
            "must divide the number of workers of each machine",
        ),
        ({"workers": 3, "nodes": 2, "rendezvous": "a:1"}, "3 workers cannot be divided equally among 2 machines"),
        ({"workers": 2, "nodes": 2, "min_nodes": 3, "rendezvous": "a:1"}, "min_nodes 3 is above nodes 2"),
        ({"workers": 2, "nodes": 2}, "2 machines need a `rendezvous`"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises((ValidationError, ConfigError), match=message):
        TrainParams(**values)


def test_runs_from_before_a_parameter_was_there_stay_valid() -> None:
    """A parameter at its default is left out of the fingerprint."""
    later = {"accumulate": 2, "precision": "bf16", "compile": True, "optimiser": "sgd", "schedule": "cosine"}
    later["lanes"] = 8
    assert not {"parallel", *later} & TrainParams().identity().keys()
    parallel = {"shard": 2, "mode": "fsdp"}
    shared_out = TrainParams(workers=2, parallel=parallel).identity()
    assert shared_out == {**TrainParams(workers=2).identity(), "parallel": parallel}, "as before there were pipelines"
    pipeline = {"shard": 2, "mode": "pipeline", "microbatches": 4, "schedule": "gpipe"}
    again = TrainParams.model_validate(TrainParams(workers=2, parallel=pipeline).model_dump(mode="json"))
    assert again.parallel.microbatches == 4
    assert again.identity()["parallel"] == pipeline
    for name, value in later.items():
        assert TrainParams(**{name: value}).identity() == {**TrainParams().identity(), name: value}
    assert TrainParams(device="cpu", recompute=True).identity() == TrainParams().identity()


def test_on_several_machines_each_worker_has_a_lane_which_is_part_of_the_order() -> None:
    """A training that is done with one lane stays valid where it says so; on one machine nothing changes."""
    several = {"workers": 4, "nodes": 2, "rendezvous": "a:1"}
    chosen, one = TrainParams(**several), TrainParams(workers=4)
    assert (chosen.lanes_in_use, one.lanes_in_use) == (4, 1)
    assert chosen.identity() == one.identity() | {"lanes": 4} == TrainParams(workers=4, lanes=4).identity()
    assert TrainParams(**several, lanes=1).identity() == TrainParams(workers=4, lanes=1).identity() == one.identity()
    assert TrainParams(**several, lanes=8).lanes_in_use == 8
    assert TrainParams(**several, trainer="gossip").lanes_in_use == 1, "whose workers take any batch"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimiser": "sgd", "optimiser_options": {"momentun": 0.9}}, 'did you mean "momentum"'),
        ({"optimiser_options": {"momentum": 0.9}}, "its options are beta1, beta2, eps"),
        ({"optimiser": "muon", "optimiser_options": {"iterations": 0}}, "iterations"),
        ({"schedule": "inverse_sqrt", "warm_up": 0.0}, "set warm_up above 0"),
    ],
)
def test_optimisers_have_options_of_their_own(values: dict[str, Any], message: str) -> None:
    with pytest.raises((ValidationError, ConfigError), match=message):
        TrainParams(**values)


def test_how_a_run_is_watched_and_spread_does_not_change_what_it_is() -> None:
    """These are not in fingerprints, so a run resumes after they change."""
    watched = {"checkpoint_s": 1.0, "tensorboard": False, "mlflow": "m", "alarm": "tell", "stall_s": 5.0}
    spread = {"timeout_s": 5.0, "max_restarts": 1, "nodes": 2, "min_nodes": 2, "rendezvous": "a:1"}
    fed = {"prefetch": 0, "cache": "/fast/disk", "cache_gb": 1.0}
    base, stated = TrainParams(workers=2), {"workers": 2, "lanes": 1}  # which `nodes` would choose otherwise
    assert TrainParams(**stated, **watched, **spread, **fed).identity() == base.identity()
    for name, value in {"seed": 2, "threads": 1, "workers": 4, "learning_rate": 1e-3}.items():
        assert TrainParams(**{"workers": 2, name: value}).identity() != base.identity()


def test_the_criterion_says_which_inputs_it_needs() -> None:
    ctc, ce = TrainParams(criterion="ctc"), TrainParams()
    ctc.check_roles(["features"])
    ce.check_roles(["features", "units", "targets"])
    with pytest.raises(ConfigError, match="which criterion ctc cannot use"):
        ctc.check_roles(["features", "targets"])
    with pytest.raises(ConfigError, match="criterion ce needs `units`"):
        ce.check_roles(["features"])
    with pytest.raises(ConfigError, match="not `lexicon`"):
        ce.check_roles(["features", "units", "lexicon"])
    with pytest.raises(ConfigError, match="`lexicon` in phones"):
        ctc.check_roles(["features", "tokens", "lexicon"])


def test_a_model_in_parts_is_said_to_have_no_error_rates_in_its_curves() -> None:
    parts: dict[str, Any] = {"workers": 4, "parallel": {"shard": 2}}
    assert "no error rates with parallel.shard 2" in unmeasured(TrainParams(criterion="ctc", **parts))
    for whole in ({"criterion": "ctc"}, {"criterion": "ce", **parts}, {"criterion": "ctc", "held_out": 0, **parts}):
        assert unmeasured(TrainParams(**whole)) == ""
