"""`Flat`: a model's weights and gradients as one vector each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group


class Flat:
    """Vectors (D,), float32, of a model's trainable parameters, in the order of `model.parameters()`.

    A parameter shared by several modules occurs once; one with `requires_grad=False` is left out. D is the number of
    elements; parameter i has elements `bounds[i]` to `bounds[i + 1]`. The parameters themselves are not moved, since
    the optimiser and checkpoints refer to them: values are copied to vectors and back. All parameters must be real, and
    on one device; they may have other dtypes.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = trainable(model)
        check_real(self.parameters)
        self.device = self.parameters[0].device
        self.bounds = [0]
        for parameter in self.parameters:
            self.bounds.append(self.bounds[-1] + parameter.numel())
        self.numel = self.bounds[-1]

    def empty(self) -> Tensor:
        """An uninitialised vector (D,)."""
        return torch.empty(self.numel, dtype=torch.float32, device=self.device)

    def zeros(self) -> Tensor:
        """A vector (D,) of zeros."""
        return torch.zeros(self.numel, dtype=torch.float32, device=self.device)

    def views(self, vector: Tensor) -> list[Tensor]:
        """Views of `vector` (D,) in the shapes of the parameters."""
        if vector.shape != (self.numel,):
            raise ConfigError(f"a vector of shape {tuple(vector.shape)} for {self.numel} trainable weights")
        parts = torch.split_with_sizes(vector, [parameter.numel() for parameter in self.parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]

    @torch.no_grad()
    def weights(self, out: Tensor | None = None) -> Tensor:
        """The weights (D,), copied into `out` or a new vector."""
        out = self.empty() if out is None else out
        torch._foreach_copy_(self.views(out), list(self.parameters))
        return out

    @torch.no_grad()
    def set_weights(self, vector: Tensor) -> None:
        """Copy `vector` (D,) into the parameters."""
        torch._foreach_copy_(list(self.parameters), self.views(vector))

    @torch.no_grad()
    def gradient(self, out: Tensor | None = None) -> Tensor:
        """The gradient (D,), copied into `out` or a new vector; zeros for parameters without one."""
        out = self.empty() if out is None else out
        gather_gradients(self.parameters, self.views(out))
        return out

    @torch.no_grad()
    def set_gradient(self, vector: Tensor) -> None:
        """Set the parameters' gradients to `vector` (D,): `parameter.grad` become views of it if dtypes allow."""
        scatter_gradients(self.parameters, self.views(vector))


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """A model's parameters that have gradients, each once.

    Raises ConfigError if there are none, or if they are sparse, on several devices or not yet materialised.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("the model has no trainable parameter", remedy="set requires_grad before making the trainer")
    devices = {str(parameter.device) for parameter in parameters}
    if len(devices) > 1:
        raise ConfigError(f"parameters are on {sorted(devices)}", remedy="move the model to one device a worker")
    if any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in parameters):
        raise ConfigError("a lazy module's parameters have no shape yet", remedy="run the model once on one batch")
    return parameters


def check_real(parameters: Sequence[nn.Parameter]) -> None:
    """Raises ConfigError for complex parameters: a vector of floats would keep only their real part."""
    shapes = [tuple(parameter.shape) for parameter in parameters if parameter.is_complex()]
    if shapes:
        raise ConfigError(
            f"{len(shapes)} parameters are complex, of shapes {shapes[:3]}",
            remedy="keep them as real ones of shape (…, 2), and use torch.view_as_complex in forward; or take ddp",
        )


@torch.no_grad()
def gather_gradients(parameters: Sequence[nn.Parameter], views: Sequence[Tensor], scale: float | Tensor = 1.0) -> None:
    """views ← scale · gradients, in the parameters' shapes; zeros if there is no gradient or `scale` is 0.0.

    `scale` may be a tensor on the gradients' device; then the host does not wait for it.
    """
    on_device = isinstance(scale, Tensor)
    from_, to = [], []
    for parameter, view in zip(parameters, views, strict=True):
        gradient = parameter.grad
        if gradient is None or (not on_device and scale == 0.0):
            view.zero_()
        elif gradient.is_sparse:
            raise _sparse()
        elif (on_device or scale != 1.0) and gradient.dtype == view.dtype:
            torch.mul(gradient, scale, out=view)
        elif on_device or scale != 1.0:
            view.copy_(gradient).mul_(scale)
        elif gradient.data_ptr() != view.data_ptr() or gradient.stride() != view.stride():
            from_.append(gradient)
            to.append(view)
    if from_:
        torch._foreach_copy_(to, from_)


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The L2 norm of the gradients that there are, a scalar. Raises ConfigError for a sparse one."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if any(gradient.is_sparse for gradient in gradients):
        raise _sparse()
    return nn.utils.get_total_norm(gradients)


def _sparse() -> ConfigError:
    return ConfigError("a parameter's gradient is sparse", remedy="make the embedding with sparse=False")


@torch.no_grad()
def scatter_gradients(parameters: Sequence[nn.Parameter], views: Sequence[Tensor]) -> None:
    """Set the parameters' gradients to `views`, copying only if a parameter has another dtype or layout.

    A gradient gets its parameter's strides, as from backward, since fused optimisers process both in memory order. A
    frozen parameter gets none, as in a plain loop.
    """
    for parameter, view in zip(parameters, views, strict=True):
        if not parameter.requires_grad:
            continue
        if view.dtype == parameter.dtype and parameter.is_contiguous():
            parameter.grad = view
        elif parameter.is_contiguous():
            parameter.grad = view.to(parameter.dtype)
        else:
            parameter.grad = torch.empty_like(parameter).copy_(view)


@torch.no_grad()
def broadcast_model(model: nn.Module, group: Group) -> None:
    """Give all workers the parameters and buffers of rank 0, so that models with different seeds become equal.

    One message for each dtype. A collective call; with one worker it does nothing.
    """
    if group.size == 1:
        return
    tensors = unique([*model.parameters(), *model.buffers()])
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
        same = [tensor.detach() for tensor in tensors if tensor.dtype == dtype]
        vector = torch.cat([tensor.reshape(-1) for tensor in same])
        group.broadcast(vector)
        for tensor, part in zip(same, torch.split_with_sizes(vector, [tensor.numel() for tensor in same]), strict=True):
            tensor.copy_(part.view(tensor.shape))


def unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Each tensor once, in order."""
    return list({id(tensor): tensor for tensor in tensors}.values())
