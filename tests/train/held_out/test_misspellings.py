"""Error rates of the held-out data, from what the model spells."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from megahour.batches.loader import Batch
from megahour.train.held_out.measure import Misspellings, misspelled
from megahour.units.tokens import Characters

TOKENS = Characters(("<blank>", " ", "a", "b"))


class Says(nn.Module):
    """Gives the tokens that lie in its features, one a frame."""

    def __init__(self) -> None:
        super().__init__()
        self.device_of = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        return nn.functional.one_hot(features[:, :, 0].long(), len(TOKENS)).float() * 9


def batch(said: list[str], meant: list[str]) -> Batch:
    """Each character of `said` is a frame; a dot is the blank."""
    frames = max(map(len, said))
    features = np.zeros((len(said), frames, 1), np.float32)
    tokens = np.zeros((len(meant), max(map(len, meant))), np.int64)
    for b, (heard, text) in enumerate(zip(said, meant, strict=True)):
        features[b, : len(heard), 0] = [TOKENS.index.get(character, 0) for character in heard]
        features[b, len(heard) :, 0] = 3  # padding would be a "b"
        tokens[b, : len(text)] = TOKENS.encode(text)
    targets = {"tokens": tokens, "token_lengths": np.array([len(text) for text in meant])}
    return Batch(features, np.array([len(heard) for heard in said]), list(range(len(said))), targets)


def test_errors_are_counted_in_characters_and_words() -> None:
    batches = [batch(["aa.a b", "b"], ["aa b", "b"]), batch(["ab a"], ["bb a"])]
    assert misspelled(Says(), TOKENS.tokens, "", batches) == Misspellings(1, 9, 1, 5)
    assert misspelled(Says(), TOKENS.tokens, "", batches).rates() == {"held_out_cer": 1 / 9, "held_out_wer": 1 / 5}


def test_nothing_held_out_is_no_error() -> None:
    assert misspelled(Says(), TOKENS.tokens, "", []).rates() == {"held_out_cer": 0.0, "held_out_wer": 0.0}
