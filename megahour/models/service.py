"""How stages reach a trained model: what the accelerator service is to load, and a session with it."""

from __future__ import annotations

from typing import Any

from megahour.core.store import Artifact
from megahour.serve.client import Session, client
from megahour.serve.spec import ModelSpec, ServiceAddress


def model_spec(model: Artifact, batch_frames: int, **arguments: Any) -> ModelSpec:
    """A *model* artifact for the accelerator service, in batches of `batch_frames` stacked frames.

    `arguments` go to `models.inference.load`: ``outputs="top_k", k=20`` for the largest logits instead of all log
    posteriors.
    """
    return ModelSpec("megahour.models.inference:load", {"url": model.url, **arguments}, max_batch_frames=batch_frames)


def open_session(service: ServiceAddress | None, spec: ModelSpec) -> Session:
    """A session with the running service, or without one with the model in this process: the results are the same."""
    if service is not None:
        return client(service)
    from megahour.serve.local import serve_in_process

    return serve_in_process(spec)
