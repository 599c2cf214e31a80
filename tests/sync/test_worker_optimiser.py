"""A worker as an optimiser: frameworks call `optimizer.step()`, and its schedules and checkpoints work."""

from __future__ import annotations

import copy
import io
import tempfile
from functools import partial

import pytest
import torch
from gloo import run_workers
from torch import nn

from megahour import sync
from megahour.core.errors import ConfigError
from megahour.sync.group import virtual
from megahour.sync.group.base import Group


def trained(group: Group, wrapped: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    worker = sync.dense(model, inner, group=group, clip_norm=1.0)
    optimiser = sync.as_optimiser(worker, inner) if wrapped else inner
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=2, gamma=0.5)
    torch.manual_seed(1 + group.rank)
    for number in range(6):
        inputs = torch.randn(4, 3)
        optimiser.zero_grad()
        if not wrapped:
            model(inputs).square().mean().backward()
            worker.step()
        elif number % 2:
            model(inputs).square().mean().backward()
            optimiser.step()
        else:
            assert float(optimiser.step(partial(closure, model, inputs))) > 0
        schedule.step()
    worker.finish()
    return [p.detach().clone() for p in model.parameters()]


def closure(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    loss = model(inputs).square().mean()
    loss.backward()
    return loss


def test_its_step_is_the_workers() -> None:
    plain, wrapped = (virtual.run(lambda group, w=w: trained(group, w), 2) for w in (False, True))
    for ours, theirs in zip(wrapped, plain, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_checkpoint_goes_through_it() -> None:
    model = nn.Linear(3, 2)
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    optimiser = sync.as_optimiser(sync.dense(model, inner), inner)
    closure(model, torch.ones(1, 3))
    optimiser.step()
    state = copy.deepcopy(optimiser.state_dict())
    weights = copy.deepcopy(model.state_dict())
    after = []
    for _ in range(2):
        model.load_state_dict(weights)
        optimiser.load_state_dict(copy.deepcopy(state))  # torch takes its tensors as they are
        assert optimiser.state is inner.state
        assert optimiser.param_groups is inner.param_groups
        optimiser.zero_grad()
        closure(model, torch.ones(1, 3))
        optimiser.step()
        after.append(model.weight.detach().clone())
    assert torch.equal(*after)
    assert float(inner.state[model.weight]["step"]) == 2


TRAINERS: dict[str, dict[str, object]] = {
    "dense": {},
    "gtc": {"threshold": 0.1},
    "bmuf": {"block_steps": 3, "eta": 0.5, "eta_cap": None},
    "local_sgd": {"period_steps": 3},
    "streaming_diloco": {"block_steps": 4, "fragments": 2, "overlap_steps": 1},
}


def resumed(group: Group, trainer: str, at: int) -> tuple[torch.Tensor, dict]:  # type: ignore[type-arg]
    """The weights after nine steps, and the last checkpoint. At step `at`, new objects load one and go on.

    As a framework does: a file of model and optimiser, without the worker's name.
    """

    def made() -> tuple[nn.Module, sync.Synchroniser, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        inner = torch.optim.Adam(model.parameters(), lr=0.1)
        worker = sync.build(trainer, model, inner, group=group, **TRAINERS[trainer])
        return model, worker, sync.as_optimiser(worker, inner)

    model, worker, optimiser = made()
    file = io.BytesIO()
    for number in range(9):
        if number == at:
            torch.save([model.state_dict(), optimiser.state_dict()], file)
            model, worker, optimiser = made()
            weights, state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            model.load_state_dict(weights)
            optimiser.load_state_dict(state)
        optimiser.zero_grad()
        inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * number + group.rank))
        optimiser.step(partial(closure, model, inputs))
    state = optimiser.state_dict()
    worker.finish()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), state


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_frameworks_checkpoint_has_the_workers_state(trainer: str) -> None:
    """Without it residuals were lost, and bmuf's next block began at the first weights of all."""
    straight, again = (virtual.run(lambda group, at=at: resumed(group, trainer, at)[0], 2) for at in (-1, 5))
    assert all(torch.equal(a, b) for a, b in zip(straight, again, strict=True))


def test_checkpoints_of_another_worker_or_of_an_optimiser_alone_are_refused() -> None:
    states = [state for _, state in virtual.run(lambda group: resumed(group, "gtc", -1), 2)]

    def refusals(group: Group) -> list[str]:
        model = nn.Linear(3, 2)
        inner = torch.optim.Adam(model.parameters(), lr=0.1)
        optimiser = sync.as_optimiser(sync.gtc(model, inner, group=group, threshold=0.1), inner)
        said = []
        for state in (states[1 - group.rank], {name: states[group.rank][name] for name in ("state", "param_groups")}):
            with pytest.raises(ConfigError) as refused:
                optimiser.load_state_dict(state)
            said.append(refused.value.message)
        return said

    for rank, (other, alone) in enumerate(virtual.run(refusals, 2)):
        assert other == f"the checkpoint is of worker {1 - rank} of 2, not {rank} of 2"
        assert alone == "the checkpoint has the state of an optimiser, but none of the trainer"


def test_a_schedule_still_acts_after_the_optimiser_itself_was_loaded() -> None:
    """Loading replaces an optimiser's groups."""
    model = nn.Linear(3, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimiser = sync.as_optimiser(sync.dense(model, inner), inner)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.5)
    inner.load_state_dict(inner.state_dict())
    optimiser.step()
    schedule.step()
    assert inner.param_groups[0]["lr"] == 0.05
    assert optimiser.param_groups is inner.param_groups
    assert optimiser.state is inner.state
    with pytest.raises(AttributeError, match="has no attribute 'stats'"):
        _ = optimiser.stats


def test_lightning_trains_with_it(tmp_path) -> None:
    lightning = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(3, 1)

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return (self.model(batch[0])[:, 0] - batch[0].sum(dim=1)).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            inner = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.worker = sync.dense(self.model, inner)
            return sync.as_optimiser(self.worker, inner)

    torch.manual_seed(0)
    module = Module()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(256, 3)), batch_size=8)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(max_epochs=2, accelerator="cpu", default_root_dir=tmp_path, **quiet).fit(module, data)
    module.worker.finish()
    torch.testing.assert_close(module.model.weight, torch.ones(1, 3), atol=0.05, rtol=0)


def test_accelerate_trains_with_it() -> None:
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = sync.dense(model, inner)
    accelerator = accelerate.Accelerator(cpu=True)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(256, 3)), batch_size=8)
    optimiser, data = accelerator.prepare(sync.as_optimiser(worker, inner), data)
    for _ in range(2):
        for (inputs,) in data:
            accelerator.backward((model(inputs)[:, 0] - inputs.sum(dim=1)).square().mean())
            optimiser.step()
            optimiser.zero_grad()
    worker.finish()
    torch.testing.assert_close(model.weight, torch.ones(1, 3), atol=0.05, rtol=0)


def under_hugging_face() -> torch.Tensor:
    """Two epochs of this worker's own examples in a Trainer that knows of no other worker."""
    import torch.distributed as dist
    import transformers

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(3, 1)

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.model(inputs)[:, 0] - inputs.sum(dim=1)).square().mean()}

    torch.manual_seed(dist.get_rank())
    model = Model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = sync.dense(model, inner)
    optimiser = sync.as_optimiser(worker, inner)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0)
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder, num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no", max_grad_norm=0,
            disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        data = [{"inputs": torch.randn(3)} for _ in range(128)]
        transformers.Trainer(model, settings, train_dataset=data, optimizers=(optimiser, schedule)).train()
    worker.finish()
    return model.model.weight.detach()


def test_hugging_faces_trainer_trains_with_it_on_two_workers() -> None:
    pytest.importorskip("transformers")
    one, other = run_workers(under_hugging_face, 2)
    assert torch.equal(one, other)
    torch.testing.assert_close(one, torch.ones(1, 3), atol=0.05, rtol=0)
