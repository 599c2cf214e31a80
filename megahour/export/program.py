"""Writes a model's offline graph as a torch.export program."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import torch
from torch import Tensor, nn

from megahour.export.graphs import OfflineGraph

FRAMES = 120  # length of the example that graphs are traced with


class ScannedLstm(nn.Module):
    """A layer of `nn.LSTM`, frame by frame, from zeros: torch.export fixes the length that torch's own layer takes."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x (B, T, F) to (B, T, D), and the last output and cell (B, D)."""
        from torch._higher_order_ops.scan import scan

        of_input, of_output, bias, more = (value for _, value in self.layer.named_parameters())
        given = (x @ of_input.T + bias + more).transpose(0, 1)

        def step(state: tuple[Tensor, Tensor], at: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
            output, cell = state
            enters, stays, value, leaves = (at + output @ of_output.T).chunk(4, dim=-1)
            cell = stays.sigmoid() * cell + enters.sigmoid() * value.tanh()
            output = leaves.sigmoid() * cell.tanh()
            return (output, cell), output.clone()

        silent = x.new_zeros(x.shape[0], self.layer.hidden_size)
        state, outputs = scan(step, (silent, silent.clone()), given, dim=0)
        return outputs.transpose(0, 1), state


def write_program(graph: OfflineGraph, mels: int, frames: int, path: Path) -> None:
    """Write `graph` for one utterance of two output rows or more, each of `frames` frames of `mels`."""
    graph = copy.deepcopy(graph).eval()
    for module in list(graph.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, nn.LSTM):
                setattr(module, name, ScannedLstm(layer))
    x = torch.zeros(1, FRAMES * frames, mels)
    length = torch.export.Dim("T", min=2 * frames, max=1_000_000)  # it takes one row for a constant
    with torch.inference_mode():
        program = torch.export.export(
            graph,
            (x, torch.tensor([x.shape[1]])),
            dynamic_shapes=({1: length}, None),
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,  # it cannot prove what attention needs of every length
        )
        data = io.BytesIO()
        torch.export.save(program, data)
    path.write_bytes(data.getbuffer())  # torch's own writer aborts the process where a disk is full
