"""Heads on an encoder: their targets, their state between tokens, and independence of the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from megahour.core.errors import ConfigError
from megahour.losses.transducer import transducer_loss
from megahour.models.build import build, shapes
from megahour.models.end_to_end import EndToEnd

HEADS = {"transducer": 1.0, "ctc": 0.2, "attention": 0.3}
LENGTHS = torch.tensor([48, 40, 25])
TARGETS = {
    "tokens": torch.tensor([[1, 2, 2, 3], [3, 1, 0, 0], [2, 0, 0, 0]]),
    "token_lengths": torch.tensor([4, 2, 1]),
    "lengths": LENGTHS // 4,
}


def config(**other: Any) -> dict[str, Any]:
    sizes = {"kind": "conformer", "inputs": 8, "outputs": 5, "layers": 1, "units": 16, "dropout": 0.0}
    heads = {"join": 12, "predictor": "stateless", "context": 2, "decoder_layers": 1, "smoothing": 0.1}
    return sizes | heads | {"heads": HEADS} | other


def model(**other: Any) -> EndToEnd:
    module = build(config(**other), seed=3)
    assert isinstance(module, EndToEnd)
    return module


def features() -> Tensor:
    return torch.randn(3, 48, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("predictor", ["stateless", "lstm"])
@pytest.mark.parametrize("kind", ["conformer", "lstm"])
def test_every_weight_learns(predictor: str, kind: str) -> None:
    module = model(predictor=predictor, kind=kind)
    lengths = LENGTHS // module.subsample
    loss = module(features(), LENGTHS, None, TARGETS | {"lengths": lengths})
    assert loss.shape == (3,)
    gradients = torch.autograd.grad(loss.sum(), list(module.parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_the_loss_is_the_weighted_sum_of_the_heads_own() -> None:
    whole = model()
    state = whole.state_dict()
    each = []
    for head, weight in HEADS.items():
        single = model(heads={head: weight})
        single.load_state_dict({name: state[name] for name in single.state_dict()})
        each.append(single(features(), LENGTHS, None, TARGETS))
    torch.testing.assert_close(whole(features(), LENGTHS, None, TARGETS), sum(each))


def test_intermediate_ctc_is_of_the_middle_layer_by_the_same_head() -> None:
    """It is what a model that ends there would have; and it counts in training alone."""
    deep, plain = (model(heads={"ctc": 1.0}, layers=4, intermediate=weight) for weight in (0.3, 0.0))
    shallow = model(heads={"ctc": 1.0}, layers=2)
    shallow.load_state_dict({name: deep.state_dict()[name] for name in shallow.state_dict()})
    plain.load_state_dict(deep.state_dict())
    given = features(), LENGTHS, None, TARGETS
    torch.testing.assert_close(deep(*given), plain(*given) + 0.3 * shallow(*given))
    with torch.no_grad():
        torch.testing.assert_close(deep(*given), plain(*given))


def test_a_pruned_transducer_trains_on_two_losses_and_is_held_out_on_the_whole_one() -> None:
    whole, pruned = model(heads={"transducer": 1.0}), model(heads={"transducer": 1.0}, prune=2)
    pruned.load_state_dict({**pruned.state_dict(), **whole.state_dict()})
    exact = whole(features(), LENGTHS, None, TARGETS).detach()
    with torch.no_grad():
        torch.testing.assert_close(pruned(features(), LENGTHS, None, TARGETS), exact)
    pruned.prunes = False
    begun = pruned(features(), LENGTHS, None, TARGETS)
    assert (begun > 1.02 * exact).all(), "a twentieth of the simple joiner's loss is in it"
    pruned.prunes = True
    loss = pruned(features(), LENGTHS, None, TARGETS)
    assert (loss > 1.01 * begun).any(), "two symbols a frame are not all"
    gradients = torch.autograd.grad(loss.sum(), list(pruned.parameters()))
    assert all(bool(gradient.any()) for gradient in gradients)


def test_encoder_and_predictor_do_not_learn_from_the_simple_joiner() -> None:
    """With windows of all symbols they learn what they learn from the whole loss."""
    whole, pruned = model(heads={"transducer": 1.0}), model(heads={"transducer": 1.0}, prune=1000)
    pruned.load_state_dict({**pruned.state_dict(), **whole.state_dict()})
    expected = torch.autograd.grad(whole(features(), LENGTHS, None, TARGETS).sum(), list(whole.parameters()))
    for prunes in (False, True):
        pruned.prunes = prunes
        shared = [value for name, value in pruned.named_parameters() if not name.startswith("simple_")]
        gradients = torch.autograd.grad(pruned(features(), LENGTHS, None, TARGETS).sum(), shared)
        torch.testing.assert_close(gradients, expected)


def test_the_transducers_loss_is_of_encoder_plus_predictor() -> None:
    module = model(heads={"transducer": 1.0})
    encoded, predicted = module.encode(features(), LENGTHS), module.predictor(TARGETS["tokens"])
    logits = module.joiner(torch.tanh(encoded[:, :, None] + predicted[:, None]))
    expected = transducer_loss(logits, TARGETS["lengths"], TARGETS["tokens"], TARGETS["token_lengths"])
    torch.testing.assert_close(module(features(), LENGTHS, None, TARGETS).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("predictor", ["stateless", "lstm"])
def test_token_by_token_is_the_whole_row(predictor: str) -> None:
    predictor_of = model(predictor=predictor, context=3).predictor
    tokens = TARGETS["tokens"]
    out, state = predictor_of.start(len(tokens))
    steps = [out]
    for token in tokens.T:
        out, state = predictor_of.step(token, state)
        steps.append(out)
    torch.testing.assert_close(torch.stack(steps, 1), predictor_of(tokens))


def test_the_decoders_probabilities_are_of_all_texts() -> None:
    """Of texts of up to one token, with the mass of the longer ones, the sum is 1."""
    decoder = model().decoder
    encoded, lengths = torch.randn(1, 7, 12, generator=torch.Generator().manual_seed(2)), torch.tensor([5])
    first = decoder(torch.zeros(1, 0, dtype=torch.int64), encoded, lengths).log_softmax(2)[0, 0]
    texts = torch.tensor([[0], [1], [2], [3], [4]])
    ended = decoder.log_likelihoods(texts, torch.tensor([0, 1, 1, 1, 1]), encoded.expand(5, -1, -1), lengths.expand(5))
    follows = [decoder(texts[i : i + 1], encoded, lengths).log_softmax(2)[0, 1, 1:].logsumexp(0) for i in range(1, 5)]
    longer = [first[i] + follows[i - 1] for i in range(1, 5)]
    assert float(torch.stack([*ended, *longer]).logsumexp(0).detach()) == pytest.approx(0.0, abs=1e-5)


def test_label_smoothing_gives_each_token_a_share_of_the_target() -> None:
    """Of 0.3, each of the outputs has the same (Szegedy et al., 2016, section 7)."""
    decoder = model().decoder
    encoded, lengths = torch.randn(1, 7, 12, generator=torch.Generator().manual_seed(2)), torch.tensor([5])
    text, end = torch.tensor([[2, 3]]), torch.tensor([2])
    plain = decoder.log_likelihoods(text, end, encoded, lengths)
    uniform = decoder(text, encoded, lengths).log_softmax(2).mean(2).sum(1)
    smoothed = decoder.log_likelihoods(text, end, encoded, lengths, 0.3)
    torch.testing.assert_close(smoothed, 0.7 * plain + 0.3 * uniform)
    trained = [model(heads={"attention": 1.0}, smoothing=share) for share in (0.0, 0.3)]
    sharp, soft = (module(features(), LENGTHS, None, TARGETS) for module in trained)
    assert bool((sharp != soft).all()), "the loss has the model's"


def test_losses_do_not_depend_on_the_batch() -> None:
    module = model()
    together = module(features(), LENGTHS, None, TARGETS)
    for b in range(3):
        frames, symbols = int(LENGTHS[b]), int(TARGETS["token_lengths"][b])
        own = {"tokens": TARGETS["tokens"][b : b + 1, :symbols]}
        own |= {name: TARGETS[name][b : b + 1] for name in ("token_lengths", "lengths")}
        alone = module(features()[b : b + 1, :frames], LENGTHS[b : b + 1], None, own)
        torch.testing.assert_close(alone, together[b : b + 1], atol=1e-4, rtol=1e-5)


def test_recompute_reaches_the_encoder() -> None:
    module = model()
    plain = torch.autograd.grad(module(features(), LENGTHS, None, TARGETS).sum(), list(module.parameters()))
    module.recompute = True
    assert module.encoder.recompute
    again = torch.autograd.grad(module(features(), LENGTHS, None, TARGETS).sum(), list(module.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


@pytest.mark.parametrize(
    "wrong",
    [
        {"heads": {"speech": 1.0}},
        {"heads": {}},
        {"heads": {"ctc": -1.0}},
        {"heads": {"ctc": float("nan")}},
        {"predictor": "gru"},
        {"join": 10**9},
        {"context": 0},
        {"smoothing": "much"},
    ],
)
def test_a_hostile_configuration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        shapes(config(**wrong))


@pytest.mark.parametrize("head", HEADS)
def test_a_token_that_the_model_lacks_is_named_with_its_utterance(head: str) -> None:
    targets = TARGETS | {"tokens": torch.tensor([[1, 2, 2, 3], [9, 1, 0, 0], [2, 0, 0, 0]])}
    with pytest.raises(ValueError, match="utterance b: token 9 "):
        model(heads={head: 1.0})(features(), LENGTHS, None, targets, ["a", "b", "c"])
