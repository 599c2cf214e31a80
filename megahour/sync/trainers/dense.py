"""Synchronous SGD: in every step, the mean over workers of the whole gradient. The baseline of all other trainers.

Sends gradients in a few messages, which are summed while backward computes the other gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.utils.hooks import RemovableHandle

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group, Work
from megahour.sync.params import DenseOptions
from megahour.sync.trainers import replicas
from megahour.sync.trainers.base import (
    agree,
    check_shared,
    check_weight,
    end_together,
    is_finite,
    own_state,
    reading,
    step_alone,
    unscale,
    update,
)
from megahour.sync.trainers.flat import (
    broadcast_model,
    check_real,
    gather_gradients,
    gradient_norm,
    scatter_gradients,
    trainable,
)


class Bucket:
    """Consecutive parameters, and their gradients as one fp32 vector."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        counts = [parameter.numel() for parameter in parameters]
        self.vector = torch.zeros(sum(counts), dtype=torch.float32, device=parameters[0].device)
        parts = torch.split_with_sizes(self.vector, counts)
        self.views = [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
        self.missing = len(self.parameters)
        self.work: Work | None = None

    def send(self, group: Group, scale: float | Tensor) -> None:
        """Begin the sum over workers of scale · gradient."""
        gather_gradients(self.parameters, self.views, scale)
        self.work = group.all_reduce(self.vector)

    def receive(self, scale: float) -> None:
        """Set the parameters' gradients to scale · sum."""
        assert self.work is not None
        self.work.wait()
        if scale != 1.0:
            self.vector.mul_(scale)
        scatter_gradients(self.parameters, self.views)

    def rest(self) -> None:
        """Reset for the next step."""
        self.missing, self.work = len(self.parameters), None


class Buckets:
    """All buckets, last parameters first as in backward; with `backwards`, sent during it."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], group: Group, backwards: int | None, size_bytes: int
    ) -> None:
        check_real(parameters)
        self._group, self._backwards = group, backwards
        self.buckets = [Bucket(part) for part in _parts(parameters, size_bytes)]
        self._next = 0
        self._calls: dict[nn.Parameter, int] = {}
        self._hooks: list[RemovableHandle] = []
        if backwards is not None:
            for bucket in self.buckets:
                for parameter in bucket.parameters:
                    hook = self._hook(bucket)
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    @property
    def begun(self) -> bool:
        """Whether a bucket of this step has been sent."""
        return self._next > 0

    def send(self, scale: float | Tensor) -> None:
        """Begin the sums of buckets that have not been sent."""
        for bucket in self.buckets[self._next :]:
            bucket.send(self._group, scale)
        self._next = len(self.buckets)

    def receive(self, scale: float) -> None:
        """Set the parameters' gradients to scale · sums."""
        for bucket in self.buckets:
            bucket.receive(scale)

    def rest(self) -> None:
        """Reset for the next step."""
        self._next = 0
        self._calls.clear()
        for bucket in self.buckets:
            bucket.rest()

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, bucket: Bucket) -> Callable[[nn.Parameter], None]:
        def arrived(parameter: nn.Parameter) -> None:
            calls = self._calls[parameter] = self._calls.get(parameter, 0) + 1
            assert self._backwards is not None
            if calls > self._backwards:
                raise ConfigError(
                    f"backward call {calls} since the last step", remedy=f"set backwards={calls}, or backwards=None"
                )
            if calls == self._backwards:
                bucket.missing -= 1
                self._advance()

        return arrived

    def _advance(self) -> None:
        """Send ready buckets in the same order on all workers: each waits for those before it."""
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self.buckets[self._next].send(self._group, 1.0)
            self._next += 1


def _parts(parameters: Sequence[nn.Parameter], size_bytes: int) -> list[list[nn.Parameter]]:
    """Group parameters from last to first, at most `size_bytes` in fp32 or one parameter each."""
    parts: list[list[nn.Parameter]] = []
    filled = 0
    for parameter in reversed(parameters):
        if not parts or filled + parameter.numel() * 4 > size_bytes:
            parts.append([])
            filled = 0
        parts[-1].append(parameter)
        filled += parameter.numel() * 4
    return parts


class Dense:
    """All workers take the optimiser's step with the mean gradient g = Σ w_i g_i / Σ w_i.

    A single worker takes the plain loop's steps, bit for bit. With several, a parameter without a gradient gets one of
    zeros, so that weight decay and momentum act on it. `metrics`: `gradient_norm` before clipping, if it was needed. If
    a worker is lost, all others raise `WorkerLostError` before they change the weights.
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: DenseOptions) -> None:
        broadcast_model(model, group)
        self.metrics: dict[str, float | Tensor] = {}
        self._model, self._optimiser, self.group = model, optimiser, group
        self._clip_norm, self._clip_mean = options.clip_norm, options.clip == "mean"
        self._early = options.backwards is not None
        self._parameters = trainable(model)
        self._buckets: Buckets | None = None
        if group.size > 1:
            self._buckets = Buckets(self._parameters, group, options.backwards, options.bucket_bytes)

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """One step of all workers with Σ w_i g_i / Σ w_i; does nothing if all weights are 0.

        Raises ConfigError for a weight that `backwards` does not allow, `WorkerLostError` with unchanged weights.
        """
        check_weight(weight)
        if self._buckets is None:
            if weight:
                step_alone(self._parameters, self._optimiser, self._clip_norm, scaler, self.metrics)
            return
        if self._early:
            self._step_early(self._buckets, weight, scaler)
        else:
            self._step(self._buckets, weight, scaler)
        self._buckets.rest()

    def _step(self, buckets: Buckets, weight: float, scaler: GradScaler | None) -> None:
        check_shared(self._parameters, self._optimiser)
        unscale(self._optimiser, scaler)
        scale: float | Tensor = 1.0
        finite: bool | Tensor = True
        if weight and (scaler is not None or (self._clip_norm is not None and not self._clip_mean)):
            norm = gradient_norm(self._parameters)
            self.metrics["gradient_norm"] = read = reading(norm)
            finite = is_finite(norm)
            if self._clip_norm is not None and not self._clip_mean:
                scale = _scale(self._clip_norm, read)
        if isinstance(finite, Tensor):  # leave it on the device: an infinity reaches all workers through the sum
            finite = True
        agreed = agree(self.group, weight, finite or scaler is None)
        if not agreed.total:
            return
        if agreed.finite:
            buckets.send(scale * agreed.share)
            buckets.receive(1.0)
            if self._clip_mean and self._clip_norm is not None:
                self._clip()
        update(self._optimiser, scaler, self._all_finite(scaler) if agreed.finite else False)

    def _all_finite(self, scaler: GradScaler | None) -> bool | Tensor:
        """Whether the sum is finite, on an accelerator; on the CPU the workers have already agreed on it."""
        if scaler is None or self._parameters[0].device.type == "cpu":
            return True
        return is_finite(gradient_norm(self._parameters))

    def _step_early(self, buckets: Buckets, weight: float, scaler: GradScaler | None) -> None:
        """The step if backward sends buckets. With a scaler they hold scaled gradients; all workers see an infinity."""
        if weight not in (0.0, 1.0) or (not weight and buckets.begun):
            raise ConfigError(
                f"weight {weight} of a gradient that has been sent with weight 1",
                remedy="make the trainer with backwards=None",
            )
        buckets.send(weight)
        total = agree(self.group, weight).total
        buckets.receive(1.0 / total if total else 1.0)
        if total:
            step_alone(self._parameters, self._optimiser, self._clip_norm, scaler, self.metrics)

    def _clip(self) -> None:
        norm = nn.utils.clip_grad_norm_(self._parameters, self._clip_norm or math.inf)
        self.metrics["gradient_norm"] = reading(norm)

    def finish(self) -> None:
        """Average floating-point buffers; the weights are equal on all workers after each step. A collective call.

        Raises MegahourError on all workers if one of them has another model.
        """
        end_together(self.group)
        replicas.end_with_one_model(self._model, self.group)
        if self._buckets is not None:
            self._buckets.close()

    def state(self) -> dict[str, Tensor]:
        """Empty: there is no state besides model and optimiser."""
        return {}

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Does nothing, for any number of workers. Raises ConfigError for another trainer's state."""
        own_state("dense", states, self.group.rank, ())

    def rejoin(self, own: Mapping[str, Tensor], peer: Mapping[str, Tensor] | None) -> None:
        """Does nothing; see `regrouping`."""


def _scale(clip_norm: float, norm: float | Tensor) -> float | Tensor:
    """min(1, c / (‖g‖ + 1e-6)). If the norm is not finite: 1 for a float, and 0 or NaN for a tensor."""
    if isinstance(norm, Tensor):
        return (clip_norm / (norm + 1e-6)).clamp(max=1.0)
    return min(1.0, clip_norm / (norm + 1e-6)) if math.isfinite(norm) else 1.0
