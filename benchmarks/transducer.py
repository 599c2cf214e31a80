"""The transducer loss with all logits at once, in tiles, and pruned: seconds and memory of loss and gradients.

    python benchmarks/transducer.py [--rounds 7] [--peer libwarprnnt.so] [--write benchmarks/transducer.md]

A batch of 8 utterances of 200 frames and 50 symbols, V = 500, D = 256, float32, one thread. The forms take turns,
in the same process for time and each in one of its own for memory (its peak, above what the inputs take).
peer: the shared library of warp-transducer (github.com/HawkAaron/warp-transducer, for the CPU), which gets the same
logits as our whole loss; torch does its log-softmax and that's gradient, as in its own binding.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from megahour.losses.fused_transducer import TILE_LOGITS, fused_transducer_loss
from megahour.losses.pruned_transducer import pruned_transducer_loss
from megahour.losses.transducer import transducer_loss

BATCH, FRAMES, SYMBOLS, UNITS, HIDDEN = 8, 200, 50, 500, 256
SPAN = 5


def inputs() -> tuple[list[Tensor], list[Tensor]]:
    """What has gradients, and lengths, tokens and their lengths."""
    generator = torch.Generator().manual_seed(0)
    sizes = (BATCH, FRAMES, HIDDEN), (BATCH, SYMBOLS + 1, HIDDEN), (UNITS, HIDDEN), (UNITS,)
    given = [torch.randn(size, generator=generator).mul_(0.1).requires_grad_() for size in sizes]
    tokens = torch.randint(1, UNITS, (BATCH, SYMBOLS), generator=generator)
    return given, [torch.full((BATCH,), FRAMES), tokens, torch.full((BATCH,), SYMBOLS)]


def full(given: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, ...]:
    encoded, predicted, weight, bias = given
    logits = functional.linear(torch.tanh(encoded[:, :, None] + predicted[:, None]), weight, bias)
    loss = transducer_loss(logits, *targets)
    return loss.detach(), *torch.autograd.grad(loss.sum(), given)


def fused(given: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, ...]:
    loss = fused_transducer_loss(*given, *targets)
    return loss.detach(), *torch.autograd.grad(loss.sum(), given)


def pruned(given: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, ...]:
    """With the simple joiner's loss and the gradients of its two layers."""
    encoded, predicted, weight, _ = given
    simple = [weight.detach().clone().requires_grad_() for _ in range(2)]
    adding = (functional.linear(each, layer) for each, layer in zip((encoded, predicted), simple, strict=True))
    losses = pruned_transducer_loss(*given, *adding, *targets, span=SPAN)
    return losses[0].detach(), *torch.autograd.grad((losses[0] + losses[1]).sum(), [*given, *simple])


FORMS: dict[str, Callable[[list[Tensor], list[Tensor]], tuple[Tensor, ...]]] = {
    "full": full,
    "fused": fused,
    "pruned": pruned,
}


class PeerOptions(ctypes.Structure):
    """`rnntOptions` of rnnt.h."""

    _fields_ = [
        ("location", ctypes.c_int), ("threads", ctypes.c_uint), ("stream", ctypes.c_void_p), ("blank", ctypes.c_int),
        ("frames", ctypes.c_int), ("symbols", ctypes.c_int), ("batch_first", ctypes.c_bool),
    ]  # fmt: skip


def peer_of(library: str) -> Callable[[Tensor, list[Tensor]], tuple[Tensor, Tensor]]:
    """Losses (B,) and the gradient of their sum, of logits (B, T, U + 1, V), by warp-transducer."""
    warp = ctypes.CDLL(library)
    size = ctypes.c_size_t()
    warp.get_workspace_size(FRAMES, SYMBOLS + 1, BATCH, False, ctypes.byref(size), ctypes.c_size_t(4))
    workspace = ctypes.create_string_buffer(size.value)
    options = PeerOptions(0, 1, None, 0, FRAMES, SYMBOLS + 1, True)

    def loss(logits: Tensor, targets: list[Tensor]) -> tuple[Tensor, Tensor]:
        log_probs = logits.log_softmax(3)
        lengths, tokens, token_lengths = (each.int().contiguous() for each in targets)
        costs, gradient = torch.zeros(BATCH), torch.zeros_like(log_probs)
        given = (log_probs, gradient, tokens, token_lengths, lengths)
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in given]
        status = warp.compute_rnnt_loss(*pointers, UNITS, BATCH, ctypes.c_void_p(costs.data_ptr()), workspace, options)
        assert status == 0
        return costs, torch.ops.aten._log_softmax_backward_data(gradient, log_probs, 3, log_probs.dtype)

    return loss


def beside(library: str, rounds: int) -> list[str]:
    """Our whole loss and the peer's on the same logits."""
    _, targets = inputs()
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(BATCH, FRAMES, SYMBOLS + 1, UNITS, generator=generator).requires_grad_()
    peer = peer_of(library)

    def ours() -> tuple[Tensor, Tensor]:
        loss = transducer_loss(logits, *targets)
        return loss.detach(), torch.autograd.grad(loss.sum(), logits)[0]

    def theirs() -> tuple[Tensor, Tensor]:
        return peer(logits.detach(), targets)

    (own, own_gradient), (other, other_gradient) = ours(), theirs()
    apart = float((own - other).abs().max() / other.abs().max())
    gradients = float((own_gradient - other_gradient).abs().max())
    del own_gradient, other_gradient
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        turns = []
        for each in (ours, theirs):
            began_s = time.perf_counter()
            each()
            turns.append(time.perf_counter() - began_s)
        times.append((turns[0], turns[1]))
    own_s, other_s = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(mine / yours for mine, yours in times)
    return [
        "",
        "## Beside warp-transducer",
        "",
        "The same logits, loss and gradient of the logits, one thread, in turns:",
        f"ours {own_s:.2f} s, warp-transducer (CPU) {other_s:.2f} s, median ratio {ratio:.2f}.",
        f"Losses differ by at most {apart:.1e} of the largest, gradients by {gradients:.1e}.",
    ]


def seconds(form: str, given: list[Tensor], targets: list[Tensor]) -> float:
    began_s = time.perf_counter()
    FORMS[form](given, targets)
    return time.perf_counter() - began_s


def peak_mb(form: str) -> float:
    """Of a process that computes one loss, above what it had before; a small loss is compiled and freed first."""
    done = subprocess.run([sys.executable, __file__, "--memory-of", form], capture_output=True, text=True, check=True)
    return float(done.stdout)


def memory_here(form: str) -> None:
    given, targets = inputs()
    small = [part[:1, :2] if part.dim() == 3 else part for part in given]
    small[1] = given[1][:1, :2]
    FORMS[form](small, [torch.tensor([2]), targets[1][:1, :1], torch.tensor([1])])
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = status_kb("VmRSS")
    FORMS[form](given, targets)
    print((status_kb("VmHWM") - before) / 1024)


def status_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peer", default="", metavar="LIBRARY", help="warp-transducer, built for the CPU")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--memory-of", choices=FORMS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.memory_of:
        memory_here(asked.memory_of)
        return
    given, targets = inputs()
    results = {form: FORMS[form](given, targets) for form in FORMS}  # also compiles
    pairs = zip(results["fused"], results["full"], strict=True)
    apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    rounds = [{form: seconds(form, given, targets) for form in FORMS} for _ in range(asked.rounds)]
    medians = {form: statistics.median(each[form] for each in rounds) for form in FORMS}
    ratios = {form: statistics.median(each[form] / each["full"] for each in rounds) for form in FORMS}
    memory = {form: peak_mb(form) for form in FORMS}
    lines = [
        "# The transducer loss: whole, in tiles, and pruned",
        "",
        f"Command: `python benchmarks/transducer.py --rounds {asked.rounds}{' --peer LIBRARY' * bool(asked.peer)} "
        "--write benchmarks/transducer.md`",
        "",
        f"{platform.machine()}, one thread, torch {torch.__version__}, Python {platform.python_version()}.",
        f"Loss and gradients of {BATCH} utterances of {FRAMES} frames and {SYMBOLS} symbols,",
        f"V = {UNITS}, D = {HIDDEN}, float32; tiles of {TILE_LOGITS:,} logits; {SPAN} symbols a frame where pruned,",
        f"whose time and memory have the simple joiner in them. In turns, {asked.rounds} rounds.",
        "",
        "| form | seconds, median | memory above the inputs, MB |",
        "|---|---|---|",
        *(f"| {form} | {medians[form]:.2f} | {memory[form]:.0f} |" for form in FORMS),
        *(
            f"| {form} / full | {ratios[form]:.3f} | {memory[form] / memory['full']:.3f} |"
            for form in ("fused", "pruned")
        ),
        "",
        f"Losses and gradients of the first two differ by at most {apart:.1e} of the largest value.",
    ]
    if asked.peer:
        lines += beside(asked.peer, asked.rounds)
    text = "\n".join(lines) + "\n"
    print(text)
    if asked.write:
        asked.write.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
