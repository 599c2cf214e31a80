"""Runs a model on a stream of features, with its state between calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from megahour.models.conformer import STREAMED, AttentionContext, Conformer
from megahour.models.encoders import Encoder
from megahour.models.end_to_end import EndToEnd
from megahour.models.inference import Model
from megahour.models.precision import autocast

Float32 = NDArray[np.float32]


def encoder_of(module: nn.Module) -> Encoder | None:
    """The module's encoder if it streams. It does not if the heads wait for the tag of the whole utterance."""
    if getattr(module, "tells_itself", False):
        return None
    encoder = module.encoder if isinstance(module, EndToEnd) else module
    return encoder if isinstance(encoder, Encoder) and encoder.streams else None


def look_ahead(module: nn.Module) -> int:
    """Number of later rows of features that a row of logits waits for, besides its chunk."""
    return int(getattr(encoder_of(module), "lookahead", 0))


class ModelStream:
    """Runs `model` on an utterance in parts. The outputs together equal the output for the whole utterance.

    context: chunks of a conformer, whose output equals a whole pass with the same context; other models ignore it.
    """

    def __init__(self, model: Model, context: AttentionContext = STREAMED) -> None:
        """Raises ValueError: the model does not stream, or has other outputs than log_probs and encoded."""
        encoder = encoder_of(model.module)
        if encoder is None or model.outputs not in ("log_probs", "encoded"):
            raise ValueError(f"a {model.config.get('kind')} with outputs {model.outputs} does not stream")
        self._model, self._encoder = model, encoder
        self._state: Any = encoder.state(1, context) if isinstance(encoder, Conformer) else encoder.state(1)

    def __call__(self, features: Float32, *, last: bool = False) -> Float32:
        """Log posteriors (T', V) or encoded frames (T', D) that are final after `features` (T, F). T' may be 0.

        last: the utterance ends here.
        """
        model = self._model
        with torch.inference_mode():
            x = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32)).to(model.device)[None]
            with autocast(model.device, model.precision):
                lengths = torch.tensor([x.shape[1]], device=model.device)
                rows, _, self._state = self._encoder.step(x, lengths, self._state, last=last)
                if model.outputs == "log_probs" and isinstance(model.module, EndToEnd):
                    rows = model.module.ctc(rows)
            rows = rows.float()
            return (rows if model.outputs == "encoded" else rows.log_softmax(2))[0].cpu().numpy()
