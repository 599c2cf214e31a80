"""Lets stages run a trained model: specifies it for the model service, and opens a session."""

from __future__ import annotations

from typing import Any

from megahour.core.store import Artifact
from megahour.core.transfer import is_local
from megahour.serve.client import Session, client
from megahour.serve.spec import ModelSpec, ServiceAddress, ServicePool


def model_spec(model: Artifact, batch_frames: int, *others: Artifact, **arguments: Any) -> ModelSpec:
    """Specify a *model* artifact for the model service, with batches of `batch_frames` stacked frames.

    others: models whose posteriors are averaged with its own.
    arguments: those of `models.inference.load`, such as ``outputs="top_k", k=20``.

    Digests are part of it: a service that has loaded a model knows that one trained again in its place is another.
    """
    if others:
        arguments["others"] = [_address(other) for other in others]
    arguments["url"] = _address(model)
    arguments["digests"] = [each.manifest.digest for each in (model, *others)]
    return ModelSpec("megahour.models.inference:load", arguments, max_batch_frames=batch_frames)


def _address(model: Artifact) -> str:
    """Its path or URL: the service may have another working directory."""
    return model.root if is_local(model.fs) else model.url


def open_session(service: ServiceAddress | ServicePool | None, spec: ModelSpec) -> Session:
    """A session with the service or services. None runs the model in this process, with the same results."""
    if isinstance(service, ServicePool):
        from megahour.serve.spread import SpreadSession

        return SpreadSession(service)
    if service is not None:
        return client(service)
    from megahour.serve.local import serve_in_process

    return serve_in_process(spec)
