"""How stages reach a trained model: what the accelerator service is to load, and a session with it."""

from __future__ import annotations

from typing import Any

from megahour.core.store import Artifact
from megahour.core.transfer import is_local
from megahour.serve.client import Session, client
from megahour.serve.spec import ModelSpec, ServiceAddress, ServicePool


def model_spec(model: Artifact, batch_frames: int, **arguments: Any) -> ModelSpec:
    """A *model* artifact for the accelerator service, in batches of `batch_frames` stacked frames.

    `arguments` go to `models.inference.load`: ``outputs="top_k", k=20`` for the largest logits instead of all log
    posteriors.
    """
    url = model.root if is_local(model.fs) else model.url  # it may be loaded in another working directory
    return ModelSpec("megahour.models.inference:load", {"url": url, **arguments}, max_batch_frames=batch_frames)


def open_session(service: ServiceAddress | ServicePool | None, spec: ModelSpec) -> Session:
    """A session with the service or services, without one with the model in this process: the results are the same."""
    if isinstance(service, ServicePool):
        from megahour.serve.spread import SpreadSession

        return SpreadSession(service)
    if service is not None:
        return client(service)
    from megahour.serve.local import serve_in_process

    return serve_in_process(spec)
