"""Vectors of a model's weights and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from megahour.core.errors import ConfigError
from megahour.sync.group import virtual
from megahour.sync.group.virtual import VirtualGroup
from megahour.sync.trainers.flat import Flat, broadcast_model, gather_gradients, trainable

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=6)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64])


class Bag(nn.Module):
    """Parameters of any shapes and dtypes."""

    def __init__(self, shapes: list[list[int]], dtypes: list[torch.dtype]) -> None:
        super().__init__()
        self.bag = nn.ParameterList(
            nn.Parameter(torch.randn(shape).to(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)
        )


@settings(max_examples=80)
@given(st.data(), SHAPES)
def test_vectors_hold_what_parameters_do_and_give_it_back(data: st.DataObject, shapes: list[list[int]]) -> None:
    model = Bag(shapes, [data.draw(DTYPES) for _ in shapes])
    flat = Flat(model)
    expected = torch.cat([p.detach().float().flatten() for p in model.parameters()])
    vector = flat.weights()
    assert vector.dtype == torch.float32
    assert torch.equal(vector, expected)
    assert flat.bounds[-1] == flat.numel == expected.numel()
    flat.set_weights(torch.zeros(flat.numel))
    assert all(not p.any() for p in model.parameters())
    flat.set_weights(vector)
    assert torch.equal(flat.weights(flat.empty()), expected)


@settings(max_examples=80)
@given(st.data(), SHAPES, st.sampled_from([1.0, 0.25, 0.0]))
def test_gradients_are_gathered_scaled_and_zero_where_there_are_none(
    data: st.DataObject, shapes: list[list[int]], scale: float
) -> None:
    model = Bag(shapes, [data.draw(DTYPES) for _ in shapes])
    for parameter in model.parameters():
        if data.draw(st.booleans()):
            parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)
    expected = torch.cat(
        [(torch.zeros(p.shape) if p.grad is None else p.grad.float() * scale).flatten() for p in model.parameters()]
    )
    flat = Flat(model)
    vector = flat.empty().fill_(7.0)
    gather_gradients(flat.parameters, flat.views(vector), scale)
    assert torch.allclose(vector, expected, atol=0, rtol=1e-6)
    flat.set_gradient(vector)
    assert torch.equal(flat.gradient(), vector) or any(p.dtype == torch.bfloat16 for p in model.parameters())


def test_a_gradient_that_lies_in_the_vector_is_added_to_in_place_by_backward() -> None:
    model = nn.Linear(3, 2)
    flat = Flat(model)
    vector = flat.zeros()
    flat.set_gradient(vector)
    model(torch.ones(1, 3)).sum().backward()
    assert vector.tolist() == [1.0] * 8
    assert flat.gradient(vector) is vector


def test_tied_parameters_are_there_once_and_frozen_ones_are_not() -> None:
    model = nn.ModuleDict({"one": nn.Linear(4, 4, bias=False), "two": nn.Linear(4, 4)})
    model["two"].weight = model["one"].weight
    assert Flat(model).numel == 16 + 4
    model["two"].bias.requires_grad_(False)
    assert Flat(model).numel == 16


def test_models_that_have_no_one_vector_are_refused() -> None:
    with pytest.raises(ConfigError, match="no trainable parameter"):
        trainable(nn.ReLU())
    with pytest.raises(ConfigError, match="run the model once"):
        trainable(nn.LazyLinear(3))
    with pytest.raises(ConfigError, match="to one device"):
        trainable(nn.ParameterList([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, device="meta"))]))
    sparse = nn.Embedding(5, 2, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match="sparse=False"):
        Flat(sparse).gradient()
    with pytest.raises(ConfigError, match=r"shape \(3,\) for 10 trainable weights"):
        Flat(sparse).views(torch.ones(3))


def test_all_workers_begin_with_the_model_of_rank_0() -> None:
    def begin(group: VirtualGroup) -> list[Tensor]:
        torch.manual_seed(group.rank)
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2).to(torch.float64))
        model[1].running_mean.fill_(group.rank)
        broadcast_model(model, group)
        return [tensor.clone() for tensor in model.state_dict().values()]

    first, *others = virtual.run(begin, 3)
    for other in others:
        assert all(map(torch.equal, first, other))
    assert not first[4].any(), "buffers too"
