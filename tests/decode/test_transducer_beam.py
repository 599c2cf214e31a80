"""A transducer's beam search with fusion, and attention rescoring, compared with the sum over all alignments."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_ctc_beam import CHARACTERS, TEXTS, by_paths, lm_artifact, ln_p, words_of

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.decode.params import DecodeParams
from megahour.decode.token_search import TokenSearcher
from megahour.models.build import build
from megahour.models.end_to_end import EndToEnd

FRAMES, WIDTH, WIDE = 4, 6, 256


def model(heads: Mapping[str, float], predictor: str = "stateless") -> tuple[dict[str, Any], EndToEnd]:
    """A configuration and its module; far from equal chances."""
    sizes = {"kind": "lstm", "inputs": 2, "outputs": 4, "layers": 1, "units": 4, "lookahead": 0, "dropout": 0.0}
    config = {**sizes, "heads": dict(heads), "join": WIDTH, "predictor": predictor, "context": 2, "decoder_layers": 1}
    module = build(config, seed=5)
    assert isinstance(module, EndToEnd)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3.0)
    return {**config, "tokens": list(CHARACTERS)}, module.eval()


def encoded(frames: int = FRAMES, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(frames, WIDTH)).astype(np.float32)


def by_ways(module: EndToEnd, rows: np.ndarray) -> dict[tuple[int, ...], float]:
    """ln p of every token sequence: the sum over all places of its tokens, at most one a frame."""
    found: dict[tuple[int, ...], float] = defaultdict(lambda: -np.inf)
    said: dict[tuple[int, ...], torch.Tensor] = {}
    with torch.inference_mode():
        for labels in itertools.product(range(len(CHARACTERS)), repeat=len(rows)):
            score, tokens = 0.0, ()
            for frame, label in zip(rows, labels, strict=True):
                if tokens not in said:
                    said[tokens] = module.predictor(torch.tensor([tokens], dtype=torch.int64).reshape(1, -1))[0, -1]
                logits = module.joiner(torch.tanh(torch.from_numpy(frame) + said[tokens]))
                score += float(logits.log_softmax(0)[label])
                tokens = (*tokens, label) if label else tokens
            found[tokens] = np.logaddexp(found[tokens], score)
    return found


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """A model of words, and one of pairs of tokens."""
    folder = tmp_path_factory.mktemp("lm")
    spelled = [" ".join(text.replace(" ", "▁")) for text in TEXTS]
    return {"lm": lm_artifact(folder / "lm", TEXTS), "low_order_lm": lm_artifact(folder / "low", spelled, 2)}


@pytest.mark.parametrize("predictor", ["stateless", "lstm"])
def test_every_text_has_its_probability_and_what_is_fused(inputs: dict[str, Artifact], predictor: str) -> None:
    config, module = model({"transducer": 1.0}, predictor)
    p = DecodeParams(beams=WIDE, lm_scale=0.8, low_order_scale=0.3, word_bonus=0.2, hot_words=["ab"], hot_word_bonus=1)
    (found,) = TokenSearcher(config, module, p, inputs)([encoded()])
    ways = by_ways(module, encoded())
    assert not isinstance(found, ValueError)
    assert {reading.tokens: pytest.approx(reading.path.score, abs=1e-4) for reading in found} == ways
    for reading in found:
        words = words_of(reading.tokens, CHARACTERS)
        low = ln_p(inputs["low_order_lm"], " ".join(CHARACTERS[token].replace(" ", "▁") for token in reading.tokens))
        fused = 0.8 * ln_p(inputs["lm"], " ".join(words)) - 0.3 * low + 0.2 * len(words) + 2.0 * words.count("ab")
        assert reading.score == pytest.approx(ways[reading.tokens] + fused, abs=1e-3)
    assert [reading.score for reading in found] == sorted((reading.score for reading in found), reverse=True)


def test_a_batch_and_parts_change_nothing(inputs: dict[str, Artifact]) -> None:
    config, module = model({"transducer": 1.0}, "lstm")
    search = TokenSearcher(config, module, DecodeParams(beams=3, hot_words=["ab"]), inputs)
    utterances = [encoded(frames, seed) for seed, frames in enumerate([5, 9, 1, 0])]
    for utterance, found in zip(utterances, search(utterances), strict=True):
        (alone,) = search([utterance])
        assert not isinstance(found, ValueError)
        assert not isinstance(alone, ValueError)
        assert [reading.tokens for reading in alone] == [reading.tokens for reading in found]
        stream = search.begin()
        for part in np.array_split(utterance, 3):
            stream.advance(part)
        assert stream.path.labels == found[0].path.labels
        assert stream.path.score == pytest.approx(found[0].path.score, abs=1e-5)


def test_listed_texts_count_their_words_also_when_nothing_is_fused(inputs: dict[str, Artifact]) -> None:
    config, module = model({"transducer": 1.0}, "stateless")
    for given in ({}, inputs):
        search = TokenSearcher(config, module, DecodeParams(beams=WIDE, nbest=WIDE), given)
        (found,) = search([encoded()])
        assert not isinstance(found, ValueError)
        listed = search.texts(found, WIDE)
        assert max(len(text.split()) for text, _, _ in listed) > 1
        assert all(parts["words"] == len(text.split()) for text, _, parts in listed)


@pytest.mark.parametrize("head", ["ctc", "transducer"])
def test_attention_sorts_the_texts_once_more(head: str) -> None:
    """Score = ln p of head + weight · ln p of the attention decoder, token by token and then the end."""
    config, module = model({head: 0.7, "attention": 0.3})
    rows = encoded(seed=7)
    p = DecodeParams(beams=WIDE, attention_weight=0.6)
    (found,) = TokenSearcher(config, module, p)([rows])
    with torch.inference_mode():
        log_probs = module.ctc(torch.from_numpy(rows)).log_softmax(1).numpy() if head == "ctc" else None
    expected = by_ways(module, rows) if log_probs is None else by_paths(log_probs)
    assert not isinstance(found, ValueError)
    assert {reading.tokens for reading in found} == set(expected)
    for reading in found:
        with torch.inference_mode():
            tokens = torch.tensor([reading.tokens], dtype=torch.int64)
            logits = module.decoder(tokens, torch.from_numpy(rows)[None], torch.tensor([len(rows)]))[0]
            each = logits.log_softmax(1)[range(len(reading.tokens) + 1), [*reading.tokens, 0]]
        assert reading.attention == pytest.approx(float(each.sum()), abs=1e-3)
        assert reading.score == pytest.approx(expected[reading.tokens] + 0.6 * float(each.sum()), abs=1e-3)
    assert [reading.score for reading in found] == sorted((reading.score for reading in found), reverse=True)
    stream = TokenSearcher(config, module, p).begin()
    for row in rows:
        stream.advance(row[None])
    assert stream.path.labels == found[0].path.labels


@pytest.mark.parametrize("values", [{"ctc_search": "prefixes"}, {"nbest": 2}, {"word_bonus": 0.1}, {}], ids=str)
def test_ctc_is_searched_for_prefixes_where_more_than_the_best_path_is_asked(values: dict[str, Any]) -> None:
    config, log_probs = {"tokens": list(CHARACTERS)}, np.log(np.full((3, 4), 0.25, np.float32))
    (found,) = TokenSearcher(config, None, DecodeParams(beams=3, **values))([log_probs])
    assert not isinstance(found, ValueError)
    assert len(found) == (3 if values else 1)


def test_what_does_not_fit_the_model_is_named_with_its_remedy(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    config, module = model({"transducer": 1.0})
    capitals = lm_artifact(tmp_path / "capitals", ["A B AB", "BA"])
    for values, given, message in [
        ({"attention_weight": 0.5}, {}, "no attention decoder.*attention: 0.3"),
        ({"hot_words": ["ab", "abc :2"]}, {}, "'abc' has 'c', which the model cannot spell.*spell it with"),
        ({}, {"lm": capitals}, "4 of 4 words have letters that the model lacks, such as '.*'.*normalised"),
        ({}, {**inputs, "low_order_lm": inputs["lm"]}, "not the model's tokens.*input `tokens`"),
    ]:
        with pytest.raises(ConfigError, match="(?s)" + message):
            TokenSearcher(config, module, DecodeParams(**values), given)
