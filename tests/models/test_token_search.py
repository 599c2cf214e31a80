"""The transducer's beam search compared with the sum over all alignments of every token sequence."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from megahour.models.build import build
from megahour.models.end_to_end import EndToEnd
from megahour.models.paths import best_path
from megahour.models.token_search import TokenStream, TransducerSearcher

FRAMES, OUTPUTS, WIDTH = 4, 3, 6


def model(predictor: str = "stateless") -> EndToEnd:
    sizes = {"kind": "lstm", "inputs": 2, "outputs": OUTPUTS, "layers": 1, "units": 4, "lookahead": 0, "dropout": 0.0}
    heads = {"heads": {"transducer": 1.0}, "join": WIDTH, "predictor": predictor, "context": 2, "decoder_layers": 1}
    module = build(sizes | heads, seed=5)
    assert isinstance(module, EndToEnd)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3.0)  # far from equal chances
    return module.eval()


def encoded(frames: int = FRAMES, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(frames, WIDTH)).astype(np.float32)


def by_paths(module: EndToEnd, rows: np.ndarray) -> dict[tuple[int, ...], float]:
    """Log probability of every token sequence: the sum over all places of its tokens, at most one a frame."""
    found: dict[tuple[int, ...], list[float]] = {}
    with torch.inference_mode():
        for labels in itertools.product(range(OUTPUTS), repeat=len(rows)):
            score, tokens = 0.0, ()
            for frame, label in zip(rows, labels, strict=True):
                predicted = module.predictor(torch.tensor([tokens], dtype=torch.int64).reshape(1, -1))[0, -1]
                score += float(module.joiner(torch.tanh(torch.from_numpy(frame) + predicted)).log_softmax(0)[label])
                tokens = (*tokens, label) if label else tokens
            found.setdefault(tokens, []).append(score)
    return {tokens: float(np.logaddexp.reduce(scores)) for tokens, scores in found.items()}


@pytest.mark.parametrize("predictor", ["stateless", "lstm"])
def test_a_wide_beam_finds_every_sequence_with_its_probability(predictor: str) -> None:
    module, rows = model(predictor), encoded()
    expected = by_paths(module, rows)
    (paths,) = TransducerSearcher(module, beams=OUTPUTS**FRAMES).n_best([rows])
    assert {path.tokens: pytest.approx(path.score, abs=1e-4) for path in paths} == expected
    assert [path.score for path in paths] == sorted((path.score for path in paths), reverse=True)
    assert math.fsum(math.exp(path.score) for path in paths) == pytest.approx(1.0, abs=1e-4)


def test_one_beam_takes_the_likeliest_label_of_every_frame() -> None:
    module, rows = model(), encoded(8)
    (path,) = TransducerSearcher(module, beams=1)([rows])
    tokens: tuple[int, ...] = ()
    with torch.inference_mode():
        for frame, label, chance in zip(rows, path.labels, path.chances, strict=True):
            predicted = module.predictor(torch.tensor([tokens], dtype=torch.int64).reshape(1, -1))[0, -1]
            chances = module.joiner(torch.tanh(torch.from_numpy(frame) + predicted)).softmax(0)
            assert label == int(chances.argmax())
            assert chance == pytest.approx(float(chances[label]), abs=1e-5)
            tokens = (*tokens, label) if label else tokens
    assert tokens == path.tokens
    assert tokens, "something is said"


@pytest.mark.parametrize("predictor", ["stateless", "lstm"])
@pytest.mark.parametrize("split", [[9], [1] * 9, [4, 0, 5]])
def test_a_search_in_parts_is_that_of_the_whole(predictor: str, split: list[int]) -> None:
    """Labels, probabilities and score are equal; a partial path is that of the frames so far."""
    search, rows, seen = TransducerSearcher(model(predictor), beams=3), encoded(9), 0
    stream = TokenStream(search)
    for part in split:
        stream.advance(rows[seen : seen + part])
        seen += part
        (path,) = search([rows[:seen]])
        assert stream.path.labels == path.labels
        assert stream.path.chances == pytest.approx(path.chances, abs=1e-6)
        assert stream.path.score == pytest.approx(path.score, abs=1e-5)


def test_the_best_path_in_parts_is_that_of_the_whole() -> None:
    log_probs = torch.from_numpy(encoded(9)).log_softmax(1).numpy()
    stream = TokenStream(None)
    for part in np.split(log_probs, [2, 3, 3]):
        stream.advance(part)
    assert stream.path.labels == best_path(log_probs).labels
    assert stream.path.score == pytest.approx(best_path(log_probs).score)
    with pytest.raises(ValueError, match="not finite"):
        stream.advance(np.full((1, WIDTH), np.nan, np.float32))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_what_the_cpu_finds() -> None:
    utterances = [encoded(9, seed) for seed in range(3)]
    expected = TransducerSearcher(model(), beams=3)(utterances)
    found = TransducerSearcher(model().to("cuda"), beams=3)(utterances)
    assert [path.labels for path in found] == [path.labels for path in expected]


@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_changes_nothing(beams: int) -> None:
    search = TransducerSearcher(model("lstm"), beams=beams)
    utterances = [encoded(frames, seed) for seed, frames in enumerate([5, 9, 1, 0])]
    together = search.n_best(utterances)
    for utterance, paths in zip(utterances, together, strict=True):
        (alone,) = search.n_best([utterance])
        assert [path.labels for path in alone] == [path.labels for path in paths]
        assert [path.score for path in alone] == pytest.approx([path.score for path in paths], abs=1e-5)
    assert together[3][0] == ((), (), 0.0)
