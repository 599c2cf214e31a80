"""The model that the service runs, and its batch shapes. Imports only the standard library.

A model is named by its loader, a top-level function that worker processes import:

    load(**arguments, threads: int, device: str) -> Model

and a `ServedModel` is a callable

    model(features float32 (B, T, F), lengths int64 (B,))
        -> (outputs {name: array (B, T', ...)}, out_lengths int64 (B,))

- `features` is zero beyond each row's length; rows without a sequence are zero with length 1, their outputs ignored;
- T' may differ from T (subsampling); row b of every output is valid up to out_lengths[b] <= T';
- it masks padding by `lengths`: a row must not see its neighbours (no normalisation over the batch, and in exact mode
  no packed sequences, see `compute`);
- it keeps no state between calls; an exception is attributed to a sequence in the batch.
"""

from __future__ import annotations

import importlib
import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.extras import missing

if TYPE_CHECKING:
    import numpy as np

BUCKETS_PER_OCTAVE = 16  # lengths are rounded up to 5 significant bits: 6 % padding at worst, 2 % on average
ROW_QUANTUM = 8  # rows of exact batches come in multiples of this; the reason is in `compute`


CLOSED = "the service was closed"
GIVEN_UP = "no worker can be started"
"""Prefixes of failures that are not the sequence's fault: another service may succeed."""


class AcceleratorError(MegahourError):
    """The service refused, lost or failed a request."""


class SequenceFailedError(AcceleratorError):
    """Inference failed for the sequence with this `key`, for this `reason`."""

    def __init__(self, key: int, reason: str) -> None:
        remedy = "check this utterance, or pass on_failure= to continue without it"
        super().__init__(f"sequence {key}: {reason}", remedy=remedy)
        self.key = key
        self.reason = reason


class ServedModel(Protocol):
    """See the module's docstring."""

    def __call__(self, features: np.ndarray, lengths: np.ndarray) -> tuple[Mapping[str, np.ndarray], np.ndarray]: ...


@dataclass(frozen=True)
class ModelSpec:
    """A model and its batch shapes: everything on which results may depend.

    Parameters
    ----------
    loader: ``package.module:function``.
    arguments: JSON values for the loader.
    max_batch_frames: most frames (B times padded T) of a batch, and length limit of a sequence.
    exact: the bytes of a sequence's results do not depend on what shares its batch (see `compute`).
    exact_rows: rows of a batch in exact mode, a multiple of 8. Sixteen keep a CPU core as busy as more would, and cost
        less if a batch is not full; use more on a GPU.
    """

    loader: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    max_batch_frames: int = 8192
    exact: bool = True
    exact_rows: int = 16

    def __post_init__(self) -> None:
        if self.loader.count(":") != 1:
            raise ConfigError(f'loader {self.loader!r} is not of the form "package.module:function"')
        if self.max_batch_frames < 1:
            raise ConfigError(f"max_batch_frames = {self.max_batch_frames}, must be at least 1")
        if self.exact_rows < ROW_QUANTUM or self.exact_rows % ROW_QUANTUM:
            raise ConfigError(f"exact_rows = {self.exact_rows}, must be a multiple of {ROW_QUANTUM}")
        try:
            json.dumps(self.arguments)
        except TypeError as error:
            raise ConfigError(f"arguments of {self.loader} are not JSON values: {error}") from None

    def rows(self, padded_frames: int) -> int:
        """Rows B of a full batch; in exact mode a multiple of ROW_QUANTUM, even if that exceeds the frame limit."""
        rows = max(self.max_batch_frames // padded_frames, 1)
        if not self.exact:
            return rows
        return min(max(rows // ROW_QUANTUM, 1) * ROW_QUANTUM, self.exact_rows)

    def load(self, *, threads: int, device: str) -> ServedModel:
        """Import the loader and build the model.

        Raises
        ------
        ConfigError: there is no such function. Errors of the loader pass through.
        """
        module, _, name = self.loader.partition(":")
        try:
            loader = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise missing(error) or ConfigError(f"cannot import the loader {self.loader}: {error}") from error
        return cast(Callable[..., ServedModel], loader)(**self.arguments, threads=threads, device=device)


@dataclass(frozen=True)
class ServiceAddress:
    """A service's address (``grpc://127.0.0.1:40123``) and its secret token, as plain strings."""

    address: str
    token: str
    tls: str = ""  # folder of the client's keys, see `tls`

    def __repr__(self) -> str:
        return f"ServiceAddress({self.address!r}, token=…)"  # a token does not belong in logs


@dataclass(frozen=True)
class ServicePool:
    """A changing set of services of one model: a registry's URL or the services' addresses, and the model's name there.

    spec, token: for addresses, see `standing`.
    """

    registry: str
    model: str
    tls: str = ""
    spec: ModelSpec | None = None
    token: str = field(default="", repr=False)


def spec_of(values: Any) -> ModelSpec:
    """The model that a driver asks for. Raises ConfigError: its version writes the request in another way."""
    try:
        return ModelSpec(**values)
    except (AttributeError, TypeError) as error:  # the former of a loader that is no text
        remedy = "all machines need the same version of megahour"
        raise ConfigError(f"a run asks for a model in a way that is not known here: {error}", remedy=remedy) from None


def bucket_frames(length: int) -> int:
    """The padded length T of a sequence's batch: `length` rounded up to a multiple of 2^k, 16 buckets per octave."""
    step = 1 << max(length.bit_length() - BUCKETS_PER_OCTAVE.bit_length(), 0)
    return -(-length // step) * step


def too_long(frames: int, max_batch_frames: int) -> str:
    """The message for a sequence that is too long."""
    return f"{frames} frames are more than a batch may hold ({max_batch_frames}); cut it, or raise `batch_frames`"


def explain(error: Exception) -> str:
    """An exception's message, with its type if it is not one of ours."""
    if isinstance(known := missing(error) or error, MegahourError):
        return str(known)
    return "".join(traceback.format_exception_only(error)).strip()
