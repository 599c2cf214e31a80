"""An encoder and heads that spell: a transducer (Graves, 2012), CTC and an attention decoder, in any mixture.

    features (B, T, F) → encoder → encoded (B, T', D) ┬ transducer: tanh(encoded + predictor(tokens)) → V
                                                      ├ ctc: linear → V
                                                      └ attention: decoder(tokens, encoded) → V

The encoder is one of `encoders` or a `Conformer` whose head gives D values. Token 0 is the blank of transducer and CTC;
to predictor and decoder it is what comes before the first token, and to the decoder what comes after the last one.
A head is there when its weight in the loss is above 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.losses.ctc import ctc_loss
from megahour.losses.fused_transducer import fused_transducer_loss
from megahour.losses.pruned_transducer import pruned_transducer_loss, simple_transducer_loss
from megahour.losses.transducer import check_tokens
from megahour.models.encoders import Encoder, dropped_out, recurrent

HEADS = ("transducer", "ctc", "attention")
BLANK = 0
SIMPLE_WEIGHT = 0.05
"""Of the loss that tells the pruned one where to look. Kuang et al. have 0.5, which held a small encoder back: on
strings of digits, three passes, the held-out loss of all symbols was 0.57 with it, 0.36 with 0.05, 0.32 with 0."""
State = tuple[Tensor, ...]
"""What a predictor remembers of N hypotheses; the first axis of each tensor is N."""


class SteppingPredictor(Protocol):
    """What a transducer knows of the tokens so far, token by token."""

    def start(self, hypotheses: int) -> tuple[Tensor, State]:
        """(N, D) before any token, and the state of `hypotheses` beginnings."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """(N, D) after one more of `tokens` (N,), and the new state."""


class Predictor(nn.Module):
    """A `SteppingPredictor` that also takes whole texts: (B, U + 1, D) after 0 … U of `tokens` (B, U)."""

    def start(self, hypotheses: int) -> tuple[Tensor, State]:
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        raise NotImplementedError


class StatelessPredictor(Predictor):
    """The last `context` tokens (Ghodsi et al., "Rnn-transducer with stateless prediction network", 2020)."""

    def __init__(self, outputs: int, units: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(outputs, units)
        self.weighted = nn.Conv1d(units, units, context, groups=units, bias=False)
        self.out = nn.Linear(units, units)

    def forward(self, tokens: Tensor) -> Tensor:
        return self._of(functional.pad(tokens, (self.context, 0), value=BLANK))

    def of_last(self, tokens: Tensor) -> Tensor:
        """(N, D) after the last `context` tokens (N, context)."""
        return self._of(tokens)[:, 0]

    def _of(self, tokens: Tensor) -> Tensor:
        x = self.weighted(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        return self.out(functional.relu(x))  # type: ignore[no-any-return]

    def start(self, hypotheses: int) -> tuple[Tensor, State]:
        state = self.embedding.weight.new_zeros(hypotheses, self.context, dtype=torch.int64)
        return self.of_last(state), (state,)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        seen = torch.cat((state[0][:, 1:], tokens[:, None]), dim=1)
        return self.of_last(seen), (seen,)


class LstmPredictor(Predictor):
    """All tokens so far, through one LSTM layer."""

    def __init__(self, outputs: int, units: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(outputs, units)
        self.layer = recurrent(units, units)
        self.out = nn.Linear(units, units)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layer(self.embedding(functional.pad(tokens, (1, 0), value=BLANK)))[0])  # type: ignore[no-any-return]

    def start(self, hypotheses: int) -> tuple[Tensor, State]:
        nothing = self.embedding.weight.new_zeros(hypotheses, self.embedding.embedding_dim)
        return self.step(torch.zeros(hypotheses, dtype=torch.int64, device=nothing.device), (nothing, nothing))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        before = (state[0][None].contiguous(), state[1][None].contiguous())
        out, (hidden, cell) = self.layer(self.embedding(tokens)[:, None], before)
        return self.out(out[:, 0]), (hidden[0], cell[0])


PREDICTORS: dict[str, Callable[[int, int, int], Predictor]] = {"stateless": StatelessPredictor, "lstm": LstmPredictor}


class AttentionDecoder(nn.Module):
    """A transformer that reads what the encoder gives and writes token after token, token 0 after the last."""

    def __init__(self, outputs: int, units: int, layers: int, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.embedding = nn.Embedding(outputs, units)
        heads = max(1, units // 64)
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(units, heads, 4 * units, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.out = nn.LayerNorm(units), nn.Linear(units, outputs)

    def forward(self, tokens: Tensor, encoded: Tensor, lengths: Tensor) -> Tensor:
        """Logits (B, U + 1, V) of what follows 0 … U of `tokens` (B, U); `encoded` (B, T, D) of `lengths` (B,)."""
        x = self.embedding(functional.pad(tokens, (1, 0), value=BLANK))
        x = x * math.sqrt(x.shape[2]) + _positions(x.shape[1], x.shape[2]).to(x)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        padding = torch.arange(encoded.shape[1], device=encoded.device)[None, :] >= lengths[:, None]
        for layer in self.layers:
            x = layer(x, encoded, tgt_mask=later, memory_key_padding_mask=padding)
        return self.out(self.norm(x))  # type: ignore[no-any-return]

    def log_likelihoods(
        self, tokens: Tensor, token_lengths: Tensor, encoded: Tensor, lengths: Tensor, smoothing: float = 0.0
    ) -> Tensor:
        """(B,): log probability of each row of `tokens` and of its end, in nats."""
        logits = self(tokens, encoded, lengths).float()
        u = torch.arange(logits.shape[1], device=tokens.device)[None, :]
        ended = functional.pad(tokens, (0, 1)).masked_fill(u >= token_lengths[:, None], BLANK)
        each = functional.cross_entropy(logits.transpose(1, 2), ended, reduction="none", label_smoothing=smoothing)
        return -each.masked_fill(u > token_lengths[:, None], 0.0).sum(1)


def _positions(length: int, units: int) -> Tensor:
    """(L, D): sines and cosines (Vaswani et al., 2017)."""
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, units, 2) / units)
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :units]


class EndToEnd(nn.Module):
    """Encoder and heads. `weights`: each head's in the loss, those of `HEADS` that are above 0.

    tags: how many the `tagger` tells apart, with `tag_weight` in the loss; 0: there is none.
    intermediate: weight of CTC, by the same head, on the encoder's middle layer (Lee and Watanabe, "Intermediate loss
    regularization for CTC-based speech recognition", 2021). It and `prune` count in training alone.
    """

    joint = True
    """Loss is made here, not of logits."""

    def __init__(
        self,
        encoder: Encoder,
        outputs: int,
        units: int,
        weights: Mapping[str, float],
        *,
        predictor: str = "stateless",
        context: int = 2,
        decoder_layers: int = 1,
        smoothing: float = 0.1,
        prune: int = 0,
        intermediate: float = 0.0,
        tags: int = 0,
        tag_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.encoder, self.outputs, self.weights = encoder, outputs, dict(weights)
        self.intermediate, self.tags, self.tag_weight = intermediate, tags, tag_weight
        if "transducer" in weights:
            self.predictor: Predictor = PREDICTORS[predictor](outputs, units, context)
            self.joiner = nn.Linear(units, outputs)
            self.prune, self.prunes = prune, True
            if prune:
                self.simple_encoder, self.simple_predictor = nn.Linear(units, outputs), nn.Linear(units, outputs)
        if "ctc" in weights:
            self.ctc = nn.Linear(units, outputs)
        if "attention" in weights:
            self.decoder = AttentionDecoder(outputs, units, decoder_layers, smoothing)
        if tags:
            self.tagger = nn.Linear(units, tags)

    subsample = property(lambda self: self.encoder.subsample)
    device = property(lambda self: self.joiner.weight.device)
    draws = property(lambda self: self.encoder.draws)
    streams = property(lambda self: self.encoder.streams)
    dropout = property(lambda self: self.encoder.dropout)

    @property
    def recompute(self) -> bool:
        return self.encoder.recompute

    @recompute.setter
    def recompute(self, value: bool) -> None:
        self.encoder.recompute = value

    def encode(self, features: Tensor, lengths: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, T', D) of `features` (B, T, F) with `lengths` (B,) real frames each."""
        return self.encoder(features, lengths, generator)  # type: ignore[no-any-return]

    def tagged(self, encoded: Tensor, lengths: Tensor) -> Tensor:
        """Logits (B, N) of what each utterance is: of the mean of its `lengths` (B,) frames of `encoded` (B, T', D)."""
        valid = torch.arange(encoded.shape[1], device=encoded.device)[None, :] < lengths[:, None]
        mean = (encoded * valid[:, :, None]).sum(1) / lengths[:, None].clamp(min=1)
        return self.tagger(mean)  # type: ignore[no-any-return]

    def joined(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """The transducer's logits (…, V) of frames (…, D) and what the predictor says (…, D)."""
        return self.joiner(torch.tanh(encoded + predicted))  # type: ignore[no-any-return]

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        generator: torch.Generator | None = None,
        targets: Mapping[str, Tensor] | None = None,
        keys: Sequence[object] | None = None,
    ) -> Tensor:
        """Loss (B,) in nats towards `targets`; without them logits (B, T', V) of CTC, or `encode` if it has none.

        A transducer's is pruned where gradients are made and `prunes` is true, and whole where not.

        targets: `tokens` (B, U), `token_lengths` (B,) and `lengths` (B,) of the encoded frames; on the host, where they
        are checked. With a tagger also `tags` (B,), of which those below 0 do not count. keys: names of the utterances
        for errors.

        Raises
        ------
        ValueError: tokens that do not fit, with the utterance.
        """
        if targets is None:
            encoded = self.encode(features, lengths, generator)
            return self.ctc(encoded) if "ctc" in self.weights else encoded
        middle = [self.encoder.depth // 2] if self.intermediate and torch.is_grad_enabled() else []
        *early, encoded = self.encoder.outputs(features, lengths, generator, also=middle)
        with torch.autocast(encoded.device.type, enabled=False):  # sums of many terms, in fp32
            loss = self._loss(encoded.float(), targets, keys, generator)
            spelled = (targets[name] for name in ("lengths", "tokens", "token_lengths"))
            for each in early:
                loss = loss + self.intermediate * ctc_loss(self.ctc(each.float()), *spelled, keys=keys).to(loss)
            return loss

    def _loss(
        self,
        encoded: Tensor,
        targets: Mapping[str, Tensor],
        keys: Sequence[object] | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        lengths, tokens, token_lengths = (targets[name] for name in ("lengths", "tokens", "token_lengths"))
        check_tokens((*encoded.shape[:2], tokens.shape[1] + 1, self.outputs), lengths, tokens, token_lengths, keys=keys)
        here = tokens.to(encoded.device, non_blocking=True)
        loss = encoded.new_zeros(len(encoded))
        for head, weight in self.weights.items():
            if head == "transducer":
                predicted = dropped_out(self.predictor(here), self.dropout, generator)
                spelled = lengths, tokens, token_lengths
                given = (encoded, predicted, self.joiner.weight, self.joiner.bias)
                if not (self.prune and torch.is_grad_enabled()):
                    each = fused_transducer_loss(*given, *spelled, keys=keys)
                else:
                    adding = self.simple_encoder(encoded), self.simple_predictor(predicted)
                    if self.prunes:
                        each, simple = pruned_transducer_loss(*given, *adding, *spelled, span=self.prune, keys=keys)
                    else:
                        each = fused_transducer_loss(*given, *spelled, keys=keys)
                        simple = simple_transducer_loss(*adding, *spelled)
                    each = each + SIMPLE_WEIGHT * simple
            elif head == "ctc":
                each = ctc_loss(self.ctc(encoded), lengths, tokens, token_lengths, keys=keys)
            else:
                ends, frames = (each.to(encoded.device, non_blocking=True) for each in (token_lengths, lengths))
                each = -self.decoder.log_likelihoods(here, ends, encoded, frames, self.decoder.smoothing)
            loss = loss + weight * each.to(loss)
        if self.tags:
            wanted, frames = (targets[name].to(encoded.device, non_blocking=True) for name in ("tags", "lengths"))
            found = self.tagged(encoded, frames)
            loss = loss + self.tag_weight * functional.cross_entropy(found, wanted, reduction="none", ignore_index=-1)
        return loss
