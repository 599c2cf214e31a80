"""Models for the accelerator's tests: loaders that worker processes import."""

import os
import signal
import time
from pathlib import Path

import numpy as np

FATAL, RAISES = 13.0, 7.0


def lstm(features: int, units: int, outputs: int, *, threads: int, device: str):
    """A two-layer LSTM with a bidirectional one below it, as a real model would mask and reverse its input."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    forward, backward = nn.LSTM(features, units, batch_first=True), nn.LSTM(features, units, batch_first=True)
    upper, head = nn.LSTM(2 * units, units, batch_first=True), nn.Linear(units, outputs)

    def model(x, lengths):
        with torch.inference_mode():
            x = torch.from_numpy(x)
            steps = torch.arange(x.shape[1])[None]
            valid = torch.from_numpy(lengths)[:, None]
            order = torch.where(steps < valid, valid - 1 - steps, steps)[..., None]
            turned = backward(x.gather(1, order.expand_as(x)))[0]
            both = torch.cat([forward(x)[0], turned.gather(1, order.expand_as(turned))], dim=2)
            logits = head(upper(both)[0])
            best = logits.argmax(dim=2)
        return {"logits": logits.numpy(), "best": best.numpy().astype(np.int32)}, lengths

    return model


def packed(features: int, *, threads: int, device: str):
    """Packs its sequences, so that its results depend on the batch."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.LSTM(features, 64, batch_first=True, bidirectional=True)

    def model(x, lengths):
        with torch.inference_mode():
            rows = nn.utils.rnn.pack_padded_sequence(torch.from_numpy(x), torch.from_numpy(lengths), True, False)
            out, _ = nn.utils.rnn.pad_packed_sequence(layer(rows)[0], True, total_length=x.shape[1])
        return {"out": out.numpy()}, lengths

    return model


def sums(seconds: float = 0.0, *, threads: int, device: str):
    """Running sums at half the rate. The value FATAL kills the process that sees it, RAISES raises."""

    def model(x, lengths):
        if (x == FATAL).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (x == RAISES).any():
            raise ValueError("a seven")
        time.sleep(seconds)
        return {"sums": np.cumsum(x, axis=1, dtype=np.float64)[:, ::2]}, (lengths + 1) // 2

    return model


def gated(file: str, *, threads: int, device: str):
    """Like `sums`, but no batch is answered before there is `file`, or four minutes are over."""
    model, ends_s = sums(threads=threads, device=device), time.monotonic() + 240

    def waits(x, lengths):
        while not Path(file).exists() and time.monotonic() < ends_s:
            time.sleep(0.01)
        return model(x, lengths)

    return waits


def once(folder: str, *, threads: int, device: str):
    """Like `sums`, but each of the first two worker processes hangs for ever on its first batch."""
    model = sums(threads=threads, device=device)

    def slow_start(x, lengths):
        number = len(list(Path(folder).iterdir()))
        if number < 2:
            (Path(folder) / str(number)).touch()
            time.sleep(3600)
        return model(x, lengths)

    return slow_start


def broken(*, threads: int, device: str):
    raise RuntimeError("no weights")
