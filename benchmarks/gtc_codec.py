"""The threshold codec on one core: encoding and decoding a gradient of 24 million weights, against torch's `r += g`.

python benchmarks/gtc_codec.py [--weights 24000000] [--rounds 15] [--write]

A round times `r += g` and the codec one after the other, each on fresh values; reported are medians over the rounds.
Break-even is the rate of a wire on which a dense exchange between two workers, without any cost but that of its bits,
takes as long as encoding, decoding both messages and sending them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from page import machine, publish
from torch import Tensor

from megahour.sync.compress.codec import decode, encode, exact_threshold, new_residual

DENSITIES = (1e-4, 1e-3, 1e-2, 5e-2)


@dataclass
class Times:
    """Milliseconds of every round at one density."""

    add: list[float] = field(default_factory=list)
    add_huge: list[float] = field(default_factory=list)
    encode: list[float] = field(default_factory=list)
    encode_torch_memory: list[float] = field(default_factory=list)
    naive: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    density: float = 0.0


def milliseconds(call: Callable[[], object]) -> float:
    """Of one call."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def naive(gradient: Tensor, residual: Tensor, threshold: float) -> Tensor:
    """A straightforward torch version that ignores memory: indices with signs."""
    residual += gradient
    index = (residual.abs() > threshold).nonzero().squeeze(1)
    values = residual[index].sign() * threshold
    residual[index] -= values
    return torch.where(values < 0, index - 2**31, index).int()


def measure(weights: int, density: float, rounds: int) -> Times:
    """One density: a gradient of normal values, a threshold which that share of them is beyond."""
    times = Times()
    fresh = torch.randn(weights, generator=torch.Generator().manual_seed(0))
    threshold = exact_threshold(2**0.5 * float(torch.erfinv(torch.tensor(1 - density, dtype=torch.float64))))
    ordinary = torch.zeros(weights), torch.zeros(weights)
    huge = new_residual(weights), new_residual(weights)
    message = torch.zeros(1 + weights // 10, dtype=torch.int32)

    def again(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        pair[0].copy_(fresh)
        pair[1].zero_()
        return pair

    for _ in range(rounds + 1):  # the first round compiles
        gradient, residual = again(ordinary)
        times.add.append(milliseconds(lambda: residual.add_(gradient)))  # noqa: B023
        again(ordinary)
        times.encode_torch_memory.append(milliseconds(lambda: encode(*ordinary, threshold, message)))
        again(ordinary)
        times.naive.append(milliseconds(lambda: naive(*ordinary, threshold)))
        gradient, residual = again(huge)
        times.add_huge.append(milliseconds(lambda: residual.add_(gradient)))  # noqa: B023
        again(huge)
        times.encode.append(milliseconds(lambda: encode(*huge, threshold, message)))
        count = int(message[0])
        times.decode.append(milliseconds(lambda: decode(message[None, : 1 + count], threshold, huge[0])))  # noqa: B023
        assert torch.equal(huge[0] + huge[1], fresh), "sent and kept must add up to the gradient"
    times.density = count / weights
    return times


def median(values: list[float]) -> float:
    """Without the first round."""
    return statistics.median(values[1:])


def row(times: Times, weights: int) -> str:
    """A line of the table."""
    add, huge, ours = median(times.add), median(times.add_huge), median(times.encode)
    codec = ours + 2 * median(times.decode)
    rate = 32e-6 * weights * (1 - times.density) / codec
    cells = [
        f"{times.density:.2%}",
        f"{add:.1f}",
        f"{huge:.1f}",
        f"{ours:.1f} ({min(times.encode[1:]):.1f})",
        f"{median(times.encode_torch_memory):.1f}",
        f"{median(times.naive):.0f}",
        f"{median(times.decode):.2f}",
        f"{ours / add:.2f}×",
        f"{ours / huge:.2f}×",
        f"{rate:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=int, default=24_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="write gtc_codec.md beside this script")
    given = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    table = [row(measure(given.weights, density, given.rounds), given.weights) for density in DENSITIES]
    command = f"python benchmarks/gtc_codec.py --weights {given.weights} --rounds {given.rounds} --write"
    lines = [
        "# The threshold codec on one core",
        "",
        f"`{command}`: milliseconds, medians of {given.rounds} rounds (least), {given.weights:,} weights, one thread.",
        "",
        "| density | torch `r += g` | the same in huge pages | **encode** | encode, torch's memory | encode in torch "
        "| decode a message | encode / `r += g` | in huge pages | break-even Gb/s |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *table,
        "",
        "`encode` adds the gradient to the residual, finds what is beyond the threshold, writes the message, and "
        "leaves the gradient zero for the decoded sum, in one sweep. So `r += g`, which reads two vectors and writes "
        "one, is its floor where memory is what limits both; what a core can do beside that is free.",
        "",
        "The trainer's memory is asked for in huge pages, torch's tensors are in small ones: both are given for both. "
        "Break-even: see the script.",
        "",
        machine(f"torch {torch.__version__}", load=load),
    ]
    publish(__file__, lines, write=given.write)


if __name__ == "__main__":
    main()
