"""Every trainer by its key, in a plain script: the one of docs/distributed-training.md."""

import difflib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import run_workers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from megahour import sync
from megahour.core.errors import ConfigError
from megahour.sync.group import virtual

PAGE = (Path(__file__).parents[3] / "docs" / "distributed-training.md").read_text("utf-8")
PLAIN, CHANGED, VIRTUAL, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = re.findall(r"^\| `(\w+)` \| .* \| (?:`(.+)`)? ?\|$", PAGE.split("`TRAINER` |")[1].split("\n\n")[0], re.MULTILINE)


class Net(nn.Module):
    """A foreign model: convolution, normalisation with buffers, tied weights and one frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv1d(5, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.inner = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.inner.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.out = nn.Linear(8, 4)

    def forward(self, frames: Tensor) -> Tensor:
        hidden = self.norm(self.embed(frames)).relu().mean(2)
        scores: Tensor = self.out(self.frozen(self.again(self.inner(hidden).tanh())))
        return scores


def batches(rank: int, workers: int, steps: int = 60) -> Iterator[tuple[Tensor, Tensor]]:
    """Four classes of noisy patterns, each worker's its own."""
    patterns = 2 * torch.randn(4, 5, 9, generator=torch.Generator().manual_seed(7))
    for step in range(rank, steps * workers, workers):
        generator = torch.Generator().manual_seed(step)
        labels = torch.randint(4, (16,), generator=generator)
        yield patterns[labels] + 0.3 * torch.randn(16, 5, 9, generator=generator), labels


def unseen() -> Iterator[tuple[Tensor, Tensor]]:
    """Eight more batches."""
    return batches(1000, 1, steps=1008)


def script(code: str, **names: Any) -> dict[str, Any]:
    """The variables that a script of the page leaves."""
    torch.manual_seed(0)
    found = {"torch": torch, "nn": nn, "sync": sync, "Net": Net, "batches": batches, **names}
    exec(code, found)
    return found


def run_script(trainer: str, options: str) -> tuple[float, list[Tensor]]:
    """The final model of the changed script, in a process group that is there already: its mean loss on batches that no
    worker has seen, and its weights."""
    torch.manual_seed(dist.get_rank())
    code = CHANGED.replace('dist.init_process_group("gloo")', "").replace("dist.destroy_process_group()", "")
    found = script(code, dist=dist, TRAINER=trainer, OPTIONS=eval(f"dict({options})"))
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(found["model"](frames), labels) for frames, labels in unseen()]
    return torch.stack(losses).mean().item(), [p.detach().clone() for p in found["model"].parameters()]


def run_scripts() -> dict[str, Any]:
    """Results of all trainers of the page."""
    return {trainer: run_script(trainer, options) for trainer, options in ROWS}


def test_the_page_shows_all_trainers_in_a_script_with_few_changed_lines() -> None:
    assert [trainer for trainer, _ in ROWS] == list(sync.TRAINERS)
    plain, changed = ([line.split(" #")[0].strip() for line in code.splitlines()] for code in (PLAIN, CHANGED))
    new = [line for line in difflib.ndiff(plain, changed) if line.startswith("+ ")]
    assert 0 < len(new) < 10


def test_every_trainer_trains_a_model_that_is_not_ours_in_a_plain_script() -> None:
    results = run_workers(run_scripts, 2)
    first_loss = script(PLAIN.replace("batches(rank=0, workers=1)", "batches(0, 1, steps=1)"))["loss"].item()
    for found in results:
        assert not isinstance(found, Exception), found
        assert found.keys() == sync.TRAINERS.keys()
        for trainer, (loss, weights) in found.items():
            learnt = 0.8 if trainer == "gossip" else 0.6  # how much gossip has learnt depends on who waits for whom
            assert loss < learnt * first_loss, trainer
            assert all(map(torch.equal, weights, results[0][trainer][1])), f"{trainer}: other weights"
    reference = results[0]["dense"][1]
    for trainer in ("ddp", "zero", "fsdp"):  # the same algorithm; the page's dense begins its sums in backward
        for one, other in zip(results[0][trainer][1], reference, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3, msg=trainer)


def test_the_virtual_script_of_the_page_runs() -> None:
    models = script(VIRTUAL.replace("workers=64", "workers=5"))["models"]
    assert len(models) == 5
    assert torch.equal(models[0].out.weight, models[4].out.weight)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("H-ADPSGD", "gossip, which is ADPSGD, and H-ADPSGD with node_size above 1"),
        ("adpsgd", "gossip, which"),
        ("all-reduce", "dense"),
        ("GTC", "gtc"),
        ("BMUF-NBM", "bmuf"),
        ("localSGD", "local_sgd"),
        ("PowerSGD", "ddp_powersgd"),
    ],
)
def test_a_trainers_name_in_papers_leads_to_its_own(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f'unknown trainer "{name}" – did you mean {re.escape(meant)}'):
        sync.from_config({"trainer": name})


def test_one_key_chooses_the_trainer_and_options_are_checked_with_the_nearest_name() -> None:
    options = sync.from_config({"trainer": "local_sgd", "clip_norm": 2.0, "period_steps": 8})
    assert options.model_dump() == {"clip_norm": 2.0, "period_steps": 8, "warmup_steps": 0}
    model = nn.Linear(2, 1)
    worker = options.make(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert worker.state().keys() == {"weights", "weight", "position"}
    with pytest.raises(ConfigError, match=r'unknown trainer "bmfu" .* did you mean "bmuf"'):
        sync.from_config({"trainer": "bmfu"})
    with pytest.raises(ConfigError, match=r'trainer gtc: unknown key "treshold" .* did you mean "threshold"'):
        sync.build("gtc", model, torch.optim.SGD(model.parameters(), lr=0.1), treshold=0.1)
    with pytest.raises(ConfigError, match='unknown key "group"'):
        sync.from_config({"trainer": "dense", "group": 1})
    with pytest.raises(ConfigError, match=r'trainer dense: "clip_norm" = -1.0'):
        sync.from_config({"clip_norm": -1.0})


def test_trainers_are_functions_also_where_their_modules_were_imported_and_importing_sync_is_light() -> None:
    code = (
        "import sys; from megahour import sync; sync.from_config({'trainer': 'gtc', 'threshold': 0.1})\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "from megahour.sync.trainers.dense import Dense\n"
        "assert callable(sync.dense) and callable(sync.gtc) and set(sync.TRAINERS) < set(dir(sync))\n"
        "assert sync.virtual.run(lambda group: group.rank, 2) == [0, 1]\n"
        "try: sync.nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "has no attribute 'nothing'" in done.stdout


def refuse() -> list[str]:
    """Errors of torch's own trainers for what they do not support."""
    said = []
    group = sync.TorchGroup(timeout_s=30)
    part = group.split([[0], [1]])
    for trainer in ("ddp", "ddp_bf16", "ddp_powersgd", "zero", "fsdp"):
        model = nn.Linear(2, 1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = sync.build(trainer, model, optimiser, group=group)
        model(torch.ones(1, 2)).sum().backward()
        calls = [lambda worker=worker: worker.step(weight=2.0)]
        if trainer != "fsdp":
            worker.step()  # ends the step that DDP has seen
            model.weight.grad = torch.ones_like(model.weight)  # as one that did not come through model(batch)
            calls.append(worker.step)
        for call in calls:
            try:
                call()
            except ConfigError as error:
                said.append(error.message)
    assert part is not None
    for trainer in ("zero", "fsdp"):
        model = nn.Linear(2, 1)
        try:
            sync.build(trainer, model, torch.optim.Adagrad(model.parameters()), group=group)
        except ConfigError as error:
            said.append(error.message)
    return said


def test_torchs_trainers_say_what_they_cannot_do() -> None:
    for said in run_workers(refuse, 2):
        assert not isinstance(said, Exception), said
        assert len(said) == 11
        assert sum("takes the plain mean over workers" in message for message in said) == 5
        assert sum("the optimiser already has a state" in message for message in said) == 2
        assert sum("0 calls of model(batch) since the last step" in message for message in said) == 4
    for trainer in ("ddp", "zero", "fsdp"):
        model = nn.Linear(2, 1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ConfigError, match=f"{trainer} works on processes"):
            sync.virtual.run(partial(build_on, trainer, model, optimiser), 2)
    with pytest.raises(ConfigError, match='"clip_norm" = -1'):
        sync.ddp(model, optimiser, clip_norm=-1.0)
    with pytest.raises(ConfigError, match='"rank" = 0'):
        sync.ddp_powersgd(model, optimiser, rank=0)


@pytest.mark.parametrize("trainer", sync.TRAINERS)
def test_an_optimiser_that_computes_the_loss_itself_is_refused(trainer: str) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match="LBFGS needs a closure"):
        sync.build(
            trainer, model, torch.optim.LBFGS(model.parameters()), **({"threshold": 1.0} if trainer == "gtc" else {})
        )


@pytest.mark.parametrize(
    ("trainer", "options"),
    [("gtc", {"threshold": 1.0}), ("bmuf", {}), ("gossip", {}), ("dense", {}), ("ddp", {}), ("fsdp", {})],
)
def test_a_checkpoint_of_another_trainer_is_refused_by_name(trainer: str, options: dict[str, Any]) -> None:
    model = nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = sync.build(trainer, model, optimiser, **options)
    for states, message in (
        ([sync.local_sgd(model, optimiser).state()], f"not one of {trainer}"),
        ([], "no state"),
    ):
        with pytest.raises(ConfigError, match=message):
            worker.restore(states)


def build_on(trainer: str, model: nn.Module, optimiser: torch.optim.Optimizer, group: sync.Group) -> None:
    """Makes a trainer on `group`."""
    sync.build(trainer, model, optimiser, group=group)


def many_buckets() -> Tensor:
    """Steps of PowerSGD with a model that DDP would cut into several buckets: over 1 MB, its first one's size."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(400, 400) for _ in range(4)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    worker = sync.ddp_powersgd(model, optimiser, group=sync.TorchGroup(timeout_s=30), start_step=2)
    for step in range(60):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        model(torch.randn(2, 400, generator=generator)).square().mean().backward()
        worker.step()
        optimiser.zero_grad()
    return model[0].weight.detach().clone()


def test_powersgd_survives_a_model_of_several_buckets() -> None:
    one, other = run_workers(many_buckets, 2)
    assert isinstance(one, Tensor), one
    assert torch.equal(one, other)


def zero_restarts() -> tuple[bool, bool]:
    """Whether ZeRO goes on with the same bits after a restart, and with the parts of others."""
    group = sync.TorchGroup(timeout_s=30)

    def train(steps: range, model: nn.Module, states: list[dict[str, Tensor]]) -> sync.Synchroniser:
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        worker = sync.zero(model, optimiser, group=group, clip_norm=1.0)
        if states:
            worker.restore(states)
        for step in steps:
            generator = torch.Generator().manual_seed(10 * step + group.rank)
            model(torch.randn(4, 3, generator=generator)).square().sum().backward()
            for settings in optimiser.param_groups:
                settings["lr"] = 0.01 / (1 + step)
            worker.step()
            optimiser.zero_grad()
        return worker

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2))

    whole, parts = make(), make()
    train(range(6), whole, [])
    worker = train(range(3), parts, [])
    own = worker.state()
    worker.finish()
    everyone: list[dict[str, Tensor]] = [{}, {}]
    dist.all_gather_object(everyone, own)
    assert not everyone[0].keys() & everyone[1].keys()
    train(range(3, 6), parts, everyone[::-1])
    same = all(map(torch.equal, whole.parameters(), parts.parameters()))
    return same, len(everyone[0]) > 0 and len(everyone[1]) > 0


def test_zero_goes_on_from_the_parts_of_all_workers() -> None:
    assert run_workers(zero_restarts, 2) == [(True, True)] * 2


def restore_other_states() -> list[str]:
    """ZeRO's errors for states of other trainers and models."""
    said = []
    model = nn.Linear(3, 2)
    worker = sync.zero(model, torch.optim.Adam(model.parameters(), lr=0.01), group=sync.TorchGroup(timeout_s=30))
    for states in (
        [],
        [{"threshold": torch.zeros(2)}],
        [{"0.exp_avg": torch.zeros(2, 4)}],
        [{"2.step": torch.ones(())}],
    ):
        try:
            worker.restore(states)
        except ConfigError as error:
            said.append(error.message)
    return said


def test_zero_refuses_states_of_another_trainer_or_model() -> None:
    for said in run_workers(restore_other_states, 2):
        assert said == [
            "no state to restore from",
            'a state with "threshold" is not one of zero',
            '"0.exp_avg" of shape (2, 4) belongs to another model, whose parameter has (2, 3)',
            '"2.step" of shape () belongs to another model, whose parameter has no such number',
        ]


class Normalised(nn.Module):
    """With running means, and a part that no step uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm, self.unused = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(3, 3)

    def forward(self, frames: Tensor) -> Tensor:
        return self.norm(self.inner(frames))  # type: ignore[no-any-return]


def ends_with_buffers() -> list[list[Tensor]]:
    ends = []
    for trainer, options in (
        ("ddp_powersgd", {"find_unused_parameters": True, "start_step": 2}),
        ("fsdp", {}),
    ):
        model = Normalised()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        worker = sync.build(trainer, model, optimiser, group=sync.TorchGroup(timeout_s=30), **options)
        for step in range(30):
            generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
            (model(torch.randn(8, 6, generator=generator)) ** 3).mean().backward()
            worker.step()
            optimiser.zero_grad()
        worker.finish()
        weight = model.inner.weight
        ends.append([weight.full_tensor() if isinstance(weight, DTensor) else weight, model.norm.running_mean])
    return [[tensor.detach().clone() for tensor in tensors] for tensors in ends]


def test_torchs_trainers_end_with_one_model_also_where_parameters_are_unused() -> None:
    """FSDP left each worker its own running means; PowerSGD's sums met that of the map of unused parameters."""
    one, *others = run_workers(ends_with_buffers, 3)
    assert isinstance(one, list), one
    for other in others:
        for ours, theirs in zip(one, other, strict=True):
            assert all(map(torch.equal, ours, theirs))


def test_powersgd_refuses_scalar_parameters() -> None:
    model = nn.ParameterDict({"gain": nn.Parameter(torch.ones(()))})
    with pytest.raises(ConfigError, match="refuses scalar parameters"):
        sync.ddp_powersgd(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_worker_that_torchrun_started_does_not_train_alone_unless_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    model = nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 4.* would train alone"):
        sync.dense(model, optimiser)
    assert sync.dense(model, optimiser, group=sync.TorchGroup())


EARLY: dict[str, dict[str, Any]] = {
    "dense": {"backwards": None},
    "gtc": {"density": 0.1},
    "local_sgd": {"period_steps": 2},
    "bmuf": {"block_steps": 2},
    "streaming_diloco": {"block_steps": 2, "fragments": 2, "overlap_steps": 0},
}


@pytest.mark.parametrize("trainer", EARLY)
def test_a_worker_that_finishes_before_the_others_is_named_by_all(trainer: str) -> None:
    said = []

    def train(group: virtual.VirtualGroup) -> None:
        model = nn.Linear(3, 2)
        worker = sync.build(trainer, model, torch.optim.SGD(model.parameters(), 0.1), group=group, **EARLY[trainer])
        try:
            for _ in range(2 if group.rank == 1 else 4):
                model(torch.ones(1, 3)).sum().backward()
                worker.step()
            worker.finish()
        except ConfigError as error:
            said.append(str(error))

    virtual.run(train, 3)
    assert len(said) == 3
    assert all("worker 1 called finish() while others took a step" in message for message in said)


def test_a_trainers_help_lists_its_options() -> None:
    signature = inspect.signature(sync.gtc)
    assert list(signature.parameters)[:5] == ["model", "optimiser", "group", "clip_norm", "threshold"]
    assert signature.parameters["warmup_from"].default == 0.1
    assert "density: Share of the elements to send" in (sync.gtc.__doc__ or "")


def test_a_run_of_known_length_caps_block_momentum_unless_the_length_is_given() -> None:
    assert sync.from_config({"trainer": "bmuf"}).for_run(300).model_dump()["total_steps"] == 300
    assert sync.from_config({"trainer": "bmuf", "total_steps": 7}).for_run(300).model_dump()["total_steps"] == 7
    assert [name for name, options in sync.TRAINERS.items() if not options.in_step] == ["gossip"]
