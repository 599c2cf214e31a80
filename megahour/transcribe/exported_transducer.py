"""Predictor and joiner of an exported transducer, run by onnxruntime during the search."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from megahour.core.errors import ConfigError, StoreError
from megahour.foreign.onnx_session import in_a_line, limited_run, open_session
from megahour.models.end_to_end import BLANK, State


class ExportedTransducer:
    """A `models.token_search.Transducer` made of a bundle's graphs `decoder` and `joiner`.

    context: number of tokens that a stateless predictor sees; 0: the predictor is an LSTM.

    Raises
    ------
    ConfigError: onnxruntime is missing. StoreError: it cannot read a graph, or the graph does not fit the bundle.
    """

    device = torch.device("cpu")

    def __init__(
        self, decoder: bytes, joiner: bytes, *, context: int, width: int, tokens: int, threads: int = 1, where: str = ""
    ) -> None:
        self.context, self.width = context, width
        self._options: Any = None
        try:
            self._decoder, self._joiner = (
                open_session(data, threads=threads, bounded=True) for data in (decoder, joiner)
            )
            with limited_run() as self._options:  # options without a timer, for the many small runs of a search
                predicted, state = self.start(1)
                logits = self.joined(torch.zeros(1, width), predicted)
        except ConfigError:
            raise
        except Exception as error:  # onnxruntime's own classes share no base
            raise StoreError(f"not a transducer: {in_a_line(error)}", where=where, remedy="export it again") from None
        if any(part.shape != (1, width) for part in (predicted, *(state if not context else ()))) or logits.shape != (
            1,
            tokens,
        ):
            shapes = f"{tuple(predicted.shape)} and {tuple(logits.shape)}"
            what = f"its outputs have shapes {shapes}, not {width} and {tokens} values"
            raise StoreError(what, where=where, remedy="export it again")

    @property
    def predictor(self) -> ExportedTransducer:
        return self

    def start(self, hypotheses: int) -> tuple[Tensor, State]:
        """Predictor output (N, D) and state of N = `hypotheses` empty hypotheses."""
        if not self.context:
            nothing = torch.zeros(hypotheses, self.width)
            return self.step(torch.full((hypotheses,), BLANK), (nothing, nothing))
        state = torch.full((hypotheses, self.context), BLANK)
        return self._predicted(state), (state,)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Predictor output (N, D) and state after each hypothesis is extended by one of `tokens` (N,)."""
        if not self.context:
            feed = {"y": tokens.numpy(), "hidden": state[0].numpy(), "cell": state[1].numpy()}
            names = ["decoder_out", "next_hidden", "next_cell"]
            out, hidden, cell = map(torch.from_numpy, self._decoder.run(names, feed, self._options))
            return out, (hidden, cell)
        seen = torch.cat((state[0][:, 1:], tokens[:, None]), dim=1)
        return self._predicted(seen), (seen,)

    def joined(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """Logits (N, V) from encoder frames (N, D) and predictor output (N, D)."""
        feed = {"encoder_out": encoded.numpy(), "decoder_out": predicted.numpy()}
        return torch.from_numpy(self._joiner.run(["logit"], feed, self._options)[0])

    def _predicted(self, seen: Tensor) -> Tensor:
        return torch.from_numpy(self._decoder.run(["decoder_out"], {"y": seen.numpy()}, self._options)[0])
