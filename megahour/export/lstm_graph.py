"""The exported graph of an LSTM that recognises a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from megahour.export.front_graph import FrontGraph
from megahour.models.encoders import Lstm


class StreamingLstm(nn.Module):
    """Process the next frames `x` (1, T, F) of one stream. Its outputs come the encoder's look-ahead later.

    `given` (1,) of the frames exist; for those past the end the encoder sees zeros, as it does in training. The state,
    initially zero: `hidden` and `cell` (N, 1, D) of N layers, and `heard` (1, F + 1), the offset of the causal mean
    from its prior and the number of frames that it counts.
    """

    inputs = ("x", "given", "hidden", "cell", "heard")

    def __init__(self, encoder: Lstm, config: Mapping[str, Any], top: nn.Module, output: str) -> None:
        """top, output: as in `OfflineGraph`."""
        super().__init__()
        self.front, self.encoder, self.top = FrontGraph(config), encoder, top
        self.outputs = (output, "next_hidden", "next_cell", "next_heard")
        self.free = {"x": {1: "T"}, output: {1: "C"}}

    def example(self, mels: int) -> tuple[Tensor, ...]:
        """Inputs to trace it with."""
        state = torch.zeros(len(self.encoder.layers), 1, self.encoder.head.in_features)
        frames = 8 * self.front.stack
        return torch.zeros(1, frames, mels), torch.tensor([frames]), state, state, torch.zeros(1, mels + 1)

    def forward(
        self, x: Tensor, given: Tensor, hidden: Tensor, cell: Tensor, heard: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows, moved, count = self.front(x, heard[:, :-1], heard[:, -1])
        rows = rows * (torch.arange(rows.shape[1]) < given // self.front.stack)[None, :, None]
        after = []
        for i, layer in enumerate(self.encoder.layers):
            rows, state = layer(rows, (hidden[i : i + 1], cell[i : i + 1]))
            after.append(state)
        hidden, cell = (torch.cat(parts) for parts in zip(*after, strict=True))
        return self.top(self.encoder.head(rows)), hidden, cell, torch.cat((moved, count.float()[:, None]), dim=1)
