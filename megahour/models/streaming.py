"""One stream through a model that carries its state: features as they come, to what a search takes."""

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
    """The module's encoder if it streams; one that is told what whole utterances sound like does not."""
    if getattr(module, "tells_itself", False):
        return None
    encoder = module.encoder if isinstance(module, EndToEnd) else module
    return encoder if isinstance(encoder, Encoder) and encoder.streams else None


def look_ahead(module: nn.Module) -> int:
    """Rows of features after a row that its logits wait for, besides those of its chunk."""
    return int(getattr(encoder_of(module), "lookahead", 0))


class ModelStream:
    """What `model` gives for one utterance that comes in parts; all parts together are its output for the whole.

    context: the chunks of a conformer, whose output is that of the masked pass; others have none.
    """

    def __init__(self, model: Model, context: AttentionContext = STREAMED) -> None:
        """Raises ValueError: a model that does not stream, or gives the largest logits only."""
        encoder = encoder_of(model.module)
        if encoder is None or model.outputs not in ("log_probs", "encoded"):
            raise ValueError(f"a {model.config.get('kind')} with outputs {model.outputs} does not stream")
        self._model, self._encoder = model, encoder
        self._state: Any = encoder.state(1, context) if isinstance(encoder, Conformer) else encoder.state(1)

    def __call__(self, features: Float32, *, last: bool = False) -> Float32:
        """Rows (T', V) of log posteriors, or (T', D) of an encoder, that `features` (T, F) make certain; T' may be 0.

        last: the utterance ends with these.
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
