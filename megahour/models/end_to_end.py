"""An encoder with any mixture of three heads: a transducer (Graves, 2012), CTC and an attention decoder.

    features (B, T, F) → encoder → encoded (B, T', D) ┬ transducer: tanh(encoded + predictor(tokens)) → V
                                                      ├ ctc: linear → V
                                                      └ attention: decoder(tokens, encoded) → V

The encoder is one of `encoders` or a `Conformer`, with D outputs. Token 0 is the blank of transducer and CTC; for
predictor and decoder it begins a text, and for the decoder it also ends it. A head exists if its weight in the loss is
above 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.losses.ctc import ctc_loss
from megahour.losses.fused_transducer import fused_transducer_loss
from megahour.losses.pruned_transducer import pruned_transducer_loss, simple_transducer_loss
from megahour.losses.transducer import check_tokens
from megahour.models.attention_decoder import EDGE, AttentionDecoder
from megahour.models.encoders import Encoder, dropped_out, recurrent

HEADS = ("transducer", "ctc", "attention")
BLANK = 0
SIMPLE_WEIGHT = 0.05
"""Weight of the simple loss, which selects the region of the pruned loss. Its gradient ends at the simple joiner: an
encoder that learns from it, as in Kuang et al., needs more passes (docs/real-speech-digits.md). So the weight matters
where gradients are clipped together, and to optimisers that do not scale them."""
State = tuple[Tensor, ...]
"""A predictor's state of N hypotheses; the first axis of each tensor is N."""


class SteppingPredictor(Protocol):
    """Encodes a transducer's tokens so far, one token at a time."""

    def start(self, hypotheses: int) -> tuple[Tensor, State]:
        """Output (N, D) before any token, and the initial state, for N = `hypotheses`."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Output (N, D) after one more token (N,), and the new state."""


class Predictor(nn.Module):
    """A `SteppingPredictor` that also encodes whole texts: outputs (B, U + 1, D) after 0 … U of `tokens` (B, U)."""

    def start(self, hypotheses: int) -> tuple[Tensor, State]:
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        raise NotImplementedError


class StatelessPredictor(Predictor):
    """Sees the last `context` tokens (Ghodsi et al., "Rnn-transducer with stateless prediction network", 2020)."""

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
    """Sees all earlier tokens, through one LSTM layer. `context` is unused."""

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


class EndToEnd(nn.Module):
    """An encoder and heads. `weights`: the weight of each head of `HEADS` in the loss, those above 0.

    tags: number of classes of the `tagger`, which has `tag_weight` in the loss; 0: no tagger. tag_told: share of the
    training utterances whose heads are given the tag, as a vector added to each encoded frame and to the first input
    of the attention decoder (like Whisper's prefix tokens, Radford et al., 2023, and the prompts of multilingual
    transducers). intermediate: weight of CTC, with the same head, on the encoder's middle layer (Lee and Watanabe,
    "Intermediate loss regularization for CTC-based speech recognition", 2021). `intermediate` and `prune` matter in
    training only.
    """

    joint = True
    """The model computes the loss itself, not the caller from logits."""
    tells_itself = False
    """Whether inference gives the heads the recognised tag (`told`). They then wait for the whole utterance."""

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
        tag_told: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder, self.outputs, self.weights = encoder, outputs, dict(weights)
        self.intermediate, self.tags, self.tag_weight, self.tag_told = intermediate, tags, tag_weight, tag_told
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
        if tag_told:
            self.tag_prompt = _zeros(tags, units)
            if "attention" in weights:
                self.tag_start = _zeros(tags, units)

    subsample = property(lambda self: self.encoder.subsample)
    device = property(lambda self: self.joiner.weight.device)
    draws = property(lambda self: self.encoder.draws or bool(self.tag_told))
    streams = property(lambda self: self.encoder.streams)
    dropout = property(lambda self: self.encoder.dropout)

    @property
    def recompute(self) -> bool:
        return self.encoder.recompute

    @recompute.setter
    def recompute(self, value: bool) -> None:
        self.encoder.recompute = value

    def encode(self, features: Tensor, lengths: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Encoded frames (B, T', D) of `features` (B, T, F), with `lengths` (B,) real frames each."""
        return self.encoder(features, lengths, generator)  # type: ignore[no-any-return]

    def tagged(self, encoded: Tensor, lengths: Tensor) -> Tensor:
        """Tag logits (B, N) of each utterance, from the mean of its `lengths` (B,) frames of `encoded` (B, T', D)."""
        valid = torch.arange(encoded.shape[1], device=encoded.device)[None, :] < lengths[:, None]
        mean = (encoded * valid[:, :, None]).sum(1) / lengths[:, None].clamp(min=1)
        return self.tagger(mean)  # type: ignore[no-any-return]

    def told(self, encoded: Tensor, tags: Tensor) -> Tensor:
        """`encoded` (B, T', D) plus the vector of the highest of each utterance's `tags` (B, N)."""
        return encoded + self.tag_prompt(tags.argmax(1))[:, None]  # type: ignore[no-any-return]

    def tell(self, tag: int) -> None:
        """Fix the tag of all utterances to `tag`, for good.

        The tag's vectors are added to biases, so searches, streams and exports work unchanged. The result of `tagged`
        does not change.
        """
        with torch.no_grad():
            prompt = self.tag_prompt.weight[tag]
            self.encoder.head.bias.add_(prompt)
            self.tagger.bias.sub_(self.tagger.weight @ prompt)
            if "attention" in self.weights:
                self.decoder.embedding.weight[EDGE].add_(self.tag_start.weight[tag])

    def _told(self, tags: Tensor, generator: torch.Generator | None) -> Tensor:
        """(B,): whether the heads are given each utterance's tag. Without a generator (held-out data), none is."""
        if generator is None:
            return torch.zeros_like(tags, dtype=torch.bool)
        return (tags >= 0) & (torch.rand(len(tags), generator=generator, device=tags.device) < self.tag_told)

    def joined(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """The transducer's logits (…, V) from encoded frames (…, D) and the predictor's outputs (…, D)."""
        return self.joiner(torch.tanh(encoded + predicted))  # type: ignore[no-any-return]

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        generator: torch.Generator | None = None,
        targets: Mapping[str, Tensor] | None = None,
        keys: Sequence[object] | None = None,
    ) -> Tensor:
        """Loss (B,) in nats for `targets`. Without them: logits (B, T', V) of CTC, or `encode` if there is no CTC head.

        A transducer's loss is pruned when gradients are enabled and `prunes` is true; otherwise it is complete.

        targets: `tokens` (B, U), `token_lengths` (B,) and `lengths` (B,) of the encoded frames, on the host, where they
        are checked. With a tagger also `tags` (B,); those below 0 are ignored. keys: names of the utterances, for
        errors.

        Raises
        ------
        ValueError: an utterance's tokens do not fit its frames.
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

    def shortest(self) -> dict[str, Tensor]:
        """Targets of the shortest possible utterance."""
        one = torch.ones(1, dtype=torch.int64)
        return {"lengths": one, "tokens": one[None], "token_lengths": one, "tags": -one}

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
        loss, first = encoded.new_zeros(len(encoded)), None
        if self.tags:
            wanted, frames = (targets[name].to(encoded.device, non_blocking=True) for name in ("tags", "lengths"))
            logits = self.tagged(encoded, frames)
            loss = self.tag_weight * functional.cross_entropy(logits, wanted, reduction="none", ignore_index=-1)
            if self.tag_told:
                told, rows = self._told(wanted, generator)[:, None], wanted.clamp(min=0)
                encoded = encoded + (self.tag_prompt(rows) * told)[:, None]
                first = self.tag_start(rows) * told if "attention" in self.weights else None
        for head, weight in self.weights.items():
            if head == "transducer":
                predicted = dropped_out(self.predictor(here), self.dropout, generator)
                each = self._transducer_loss(encoded, predicted, lengths, tokens, token_lengths, keys)
            elif head == "ctc":
                each = ctc_loss(self.ctc(encoded), lengths, tokens, token_lengths, keys=keys)
            else:
                ends, frames = (each.to(encoded.device, non_blocking=True) for each in (token_lengths, lengths))
                each = -self.decoder.log_likelihoods(here, ends, encoded, frames, self.decoder.smoothing, first)
            loss = loss + weight * each.to(loss)
        return loss

    def _transducer_loss(
        self,
        encoded: Tensor,
        predicted: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        token_lengths: Tensor,
        keys: Sequence[object] | None,
    ) -> Tensor:
        spelled = lengths, tokens, token_lengths
        given = (encoded, predicted, self.joiner.weight, self.joiner.bias)
        if not (self.prune and torch.is_grad_enabled()):
            return fused_transducer_loss(*given, *spelled, keys=keys)
        adding = self.simple_encoder(encoded.detach()), self.simple_predictor(predicted.detach())
        if self.prunes:
            each, simple = pruned_transducer_loss(*given, *adding, *spelled, span=self.prune, keys=keys)
        else:
            each = fused_transducer_loss(*given, *spelled, keys=keys)
            simple = simple_transducer_loss(*adding, *spelled)
        return each + SIMPLE_WEIGHT * simple


def _zeros(tags: int, units: int) -> nn.Embedding:
    """A vector for each tag, initially zero, so that the tag has no effect."""
    made = nn.Embedding(tags, units)
    nn.init.zeros_(made.weight)
    return made
