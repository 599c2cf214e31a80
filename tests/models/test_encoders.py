"""Encoders: padding changes nothing, look-ahead is exact, and initialisation depends on the seed alone."""

import pytest
import torch

from megahour.core.errors import ConfigError
from megahour.models.build import KINDS, build, shapes

SMALL = {"inputs": 6, "outputs": 7, "layers": 2, "units": 8}
CONFIGS = {
    "lstm": {**SMALL, "kind": "lstm", "lookahead": 3},
    "blstm": {**SMALL, "kind": "blstm"},
    "tdnn": {**SMALL, "kind": "tdnn", "layers": 3},
    "mlp": {**SMALL, "kind": "mlp", "lookahead": 12},
}


@pytest.fixture(params=list(CONFIGS))
def config(request):
    return CONFIGS[request.param]


def test_padding_and_neighbours_do_not_influence_an_utterance(config):
    module = build(config, seed=1)
    one = torch.randn(1, 11, 6)
    batch = torch.full((3, 30, 6), 7.0)
    batch[1, :11] = one
    alone = module(one, torch.tensor([11]))
    among = module(batch, torch.tensor([30, 11, 20]))
    assert among.shape == (3, 30, 7)
    torch.testing.assert_close(among[1, :11], alone[0], atol=1e-5, rtol=1e-5)


def test_gradients_do_not_see_padding(config):
    module = build(config, seed=1)
    batch = torch.randn(2, 12, 6, requires_grad=True)
    module(batch, torch.tensor([12, 5]))[1, :5].sum().backward()
    assert batch.grad is not None
    assert batch.grad[1, 5:].abs().max() == 0
    assert batch.grad[0].abs().max() == 0
    assert batch.grad[1, :5].abs().min() > 0


@pytest.mark.parametrize("lookahead", [0, 2, 5])
@pytest.mark.parametrize(("kind", "back"), [("lstm", False), ("mlp", True)])
def test_frames_are_seen_exactly_as_far_as_the_lookahead(kind, back, lookahead):
    """An mlp looks to both sides, an lstm only ahead, because its state has the past."""
    module = build({**SMALL, "kind": kind, "lookahead": lookahead}, seed=1)
    x = torch.randn(1, 20, 6)
    before = module(x, torch.tensor([20]))
    x[0, 10] += 1.0
    changed = ((module(x, torch.tensor([20])) - before)[0].abs().amax(dim=1) > 0).nonzero()
    assert changed.min() == 10 - lookahead
    if back:
        assert changed.max() == 10 + lookahead


def test_a_blstm_sees_the_whole_utterance():
    module = build(CONFIGS["blstm"], seed=1)
    x = torch.randn(1, 20, 6)
    before = module(x, torch.tensor([20]))
    x[0, 10] += 1.0
    assert bool(((module(x, torch.tensor([20])) - before)[0].abs().amax(dim=1) > 0).all())


def test_weights_come_from_the_seed_and_leave_the_global_generator_alone(config):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = (build(config, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_dropout_happens_only_with_a_generator_and_repeats_with_it(config):
    module = build({**config, "dropout": 0.5}, seed=1)
    x, lengths = torch.randn(2, 9, 6), torch.tensor([9, 9])
    plain = module(x, lengths)
    drawn = [module(x, lengths, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(plain, module(x, lengths))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(plain, drawn[0])


def test_shapes_are_those_of_the_module(config):
    assert shapes(config) == {name: tuple(tensor.shape) for name, tensor in build(config).state_dict().items()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "transformer"}, "transformer"),
        ({"layers": 0}, "layers"),
        ({"units": 10**9}, "units"),
        ({"units": "8"}, "units"),
        ({"outputs": 65_536}, "outputs"),
        ({"dropout": 1.0}, "dropout"),
        ({"kind": "blstm", "lookahead": 3}, "lookahead"),
    ],
)
def test_impossible_models_are_refused_by_name(change, words):
    with pytest.raises(ConfigError, match=words):
        build({**CONFIGS["lstm"], **change})


@pytest.mark.parametrize("lookahead", [0, 3])
@pytest.mark.parametrize("split", [[23], [1] * 23, [2, 0, 1, 20], [11, 12, 0]])
def test_an_lstm_in_parts_is_the_whole(lookahead, split):
    """The state goes from part to part; streams may end in different frames of the last one."""
    module = build(CONFIGS["lstm"] | {"lookahead": lookahead}, seed=1).eval()
    x, lengths = torch.randn(2, 23, 6), torch.tensor([23, 23 - split[-1] // 2])
    whole, state, parts, rows = module(x, lengths), module.state(2), [], torch.zeros(2, dtype=torch.int64)
    for number, part in enumerate(x.split(split, dim=1), 1):
        last = number == len(split)
        given = lengths - sum(split[:-1]) if last else torch.full((2,), part.shape[1])
        logits, came, state = module.step(part, given, state, last=last)
        assert logits.shape[1] == came.max()
        parts.append(logits)
        rows += came
    assert rows.tolist() == lengths.tolist()
    for stream, length in enumerate(rows.tolist()):
        torch.testing.assert_close(torch.cat(parts, 1)[stream, :length], whole[stream, :length], atol=1e-5, rtol=0)


def test_what_looks_ahead_without_end_does_not_stream():
    assert [kind for kind in KINDS if KINDS[kind].streams] == ["lstm", "conformer"]
