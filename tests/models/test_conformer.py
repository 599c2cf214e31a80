"""The Conformer's stream is its masked pass, and nothing leaks between utterances, from padding or from the future."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from megahour.models.build import build
from megahour.models.conformer import LONGEST_CHUNK, MOST_LEFT, AttentionContext, Conformer, drawn

CONFIG = {"kind": "conformer", "inputs": 6, "outputs": 5, "layers": 3, "units": 32, "dropout": 0.1}


def made(seed: int = 0) -> Conformer:
    module = build(CONFIG, seed=seed)
    assert isinstance(module, Conformer)
    return module.eval()


def features(frames: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, frames, 6, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 40])
@pytest.mark.parametrize("left", [0, 1, 3])
def test_chunks_with_state_are_the_masked_pass(chunk: int, left: int) -> None:
    model, x = made(), features(4 * 37)
    context = model.context = AttentionContext(chunk, left)
    whole = model(x, torch.tensor([148, 148]))
    state = model.state(2)
    parts = [model.chunk(part, state, context) for part in x.split(4 * chunk, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)
    assert all(keys.shape[1] <= chunk * left for keys in state.keys), "what is kept is bounded"


@pytest.mark.parametrize("context", [AttentionContext(1, 0), AttentionContext(5, 1), AttentionContext(16, 4)])
@pytest.mark.parametrize("split", [[83], [1] * 83, [3, 0, 40, 40], [64, 19]])
def test_any_split_of_the_features_is_the_masked_pass(context: AttentionContext, split: list[int]) -> None:
    """Also of streams that end in different chunks, and in different frames of one."""
    model, x = made(), features(83, 3)
    model.context = context
    lengths = torch.tensor([83, 83 - split[-1] // 2, 83 - split[-1]])
    whole, state, parts, rows = model(x, lengths), model.state(3, context), [], torch.zeros(3, dtype=torch.int64)
    for first, part in zip(itertools.accumulate([0, *split]), x.split(split, dim=1), strict=False):
        given = (lengths - first).clamp(max=part.shape[1])
        logits, came, state = model.step(part, given, state, last=first + part.shape[1] == 83)
        parts.append(logits)
        rows += came
    assert rows.tolist() == (lengths // 4).tolist()
    for stream, length in enumerate(rows.tolist()):
        torch.testing.assert_close(torch.cat(parts, 1)[stream, :length], whole[stream, :length], atol=1e-5, rtol=0)


def test_a_stream_of_an_hour_is_as_exact_at_its_end() -> None:
    """Positions are relative: the same audio gives the same logits after any past beyond the context."""
    model, context = made(), AttentionContext(8, 1)
    heard = features(4 * 8 * 12, 1)
    fresh, late = model.state(), model.state()
    for _ in range(20):  # a past of its own
        model.chunk(features(4 * 8, 1), late, context)
    for part in heard.split(4 * 8, dim=1):
        one, other = model.chunk(part, fresh, context), model.chunk(part, late, context)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_attention_sees_the_chunks_that_it_should() -> None:
    """By gradients: row t depends on frames of its chunk and `left` before, and on what convolutions reach."""
    mask = AttentionContext(3, 1).mask(torch.tensor([8]), 8)[0, 0]
    for query in range(8):
        assert mask[query].nonzero().flatten().tolist() == [
            key for key in range(8) if query // 3 - 1 <= key // 3 <= query // 3
        ]
    everything = AttentionContext().mask(torch.tensor([5]), 8)[0, 0]
    assert everything[:5, :5].all()
    assert not everything[:5, 5:].any()


def test_no_row_depends_on_a_later_chunk_or_on_padding() -> None:
    model, x = made(), features(80)
    model.context = AttentionContext(5, 2)
    whole = model(x, torch.tensor([80, 40]))
    changed = x.clone()
    changed[:, 40:] += 1.0  # from output frame 10 on
    assert torch.equal(model(changed, torch.tensor([80, 40]))[:, :10], whole[:, :10])
    alone = model(x[1:, :40], torch.tensor([40]))
    torch.testing.assert_close(whole[1:, :10], alone, atol=1e-5, rtol=0)
    model.context = AttentionContext()
    torch.testing.assert_close(
        model(changed, torch.tensor([80, 40]))[1, :10], model(x[1:, :40], torch.tensor([40]))[0], atol=1e-5, rtol=0
    )


def test_contexts_are_drawn_from_the_batch_and_cover_all() -> None:
    contexts = [drawn(torch.Generator().manual_seed(seed)) for seed in range(2000)]
    assert contexts == [drawn(torch.Generator().manual_seed(seed)) for seed in range(2000)]
    assert drawn(None) == AttentionContext()
    chunked = [context for context in contexts if context.chunk]
    assert 0.45 < 1 - len(chunked) / 2000 < 0.55
    assert {context.chunk for context in chunked} == set(range(1, LONGEST_CHUNK + 1))
    assert {context.left for context in chunked} == set(range(MOST_LEFT + 1))


def test_recompute_gives_the_same_gradients() -> None:
    grads = []
    for recompute in (False, True):
        model = made().train()
        model.recompute = recompute
        model(features(40), torch.tensor([40, 24]), torch.Generator().manual_seed(3)).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_utterances_shorter_than_the_subsampling_have_no_rows() -> None:
    model = made()
    assert model.output_lengths(torch.tensor([0, 3, 4, 9])).tolist() == [0, 0, 1, 2]
    assert bool(model(features(3), torch.tensor([3, 2])).isfinite().all())
