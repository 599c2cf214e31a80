"""Runs a machine's model service for drivers elsewhere: it serves whatever model the registry asks for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeVar, cast

from megahour.core.errors import ConfigError, MegahourError, StoreError
from megahour.core.surroundings import explaining
from megahour.serve.registry import BEAT_S, POLL_S, Registry
from megahour.serve.server import Service, serve
from megahour.serve.spec import ModelSpec
from megahour.serve.standing import Desk, are_addresses, token_of_environment
from megahour.serve.tls import server_options

LOG = logging.getLogger(__name__)
T = TypeVar("T")
AGAIN_S = 60.0  # after which a model that failed to load is tried again: a disk was away, or memory in use
TRUSTED = ("megahour.",)  # modules whose loaders may run by default: registry files must not name arbitrary code


def serve_registry(
    url: str,
    stop: threading.Event,
    *,
    devices: Sequence[str],
    host: str,
    port: int = 0,
    tls: str = "",
    mutual: bool = False,
    trusted: Sequence[str] = TRUSTED,
) -> None:
    """Until `stop` is set: load and offer the requested model, until another one or none is requested.

    If a model fails to load, the service logs why, tells the run, and tries again every `AGAIN_S` while the run asks
    for it. It goes on while the registry's store does not answer.

    url: a registry's folder, or this machine's address, grpc://HOST:PORT, see `standing`.
    """
    with _registry(url, tls, mutual) as registry:
        while not stop.is_set():
            wanted = _patiently(registry.wanted, None, stop)
            if wanted is None:
                stop.wait(POLL_S)
                continue
            model, spec = wanted
            if not spec.loader.startswith(tuple(trusted)):
                known = ", ".join(f"{prefix}*" for prefix in trusted)
                _refuse(registry, model, f"{url} asks for {spec.loader}, which does not match {known}", stop)
                continue
            try:
                with serve(spec, devices=devices, host=host, port=port, tls=tls, mutual=mutual) as service:
                    facts = {"loader": spec.loader, "address": service.address, "devices": list(devices)}
                    _say("serving", f"serving {spec.loader} at {service.address} on {', '.join(devices)}", facts)
                    _offer(registry, model, service, stop)
                _say("served", f"{spec.loader} is not served any more; the devices are free", facts)
            except MegahourError as error:
                _refuse(registry, model, str(error), stop)


def _say(event: str, message: str, facts: Mapping[str, object]) -> None:
    """Log a line that is shown, as those of `runner.log.say` are."""
    LOG.info("%s", message, extra={"event": event, "facts": facts})


def _registry(url: str, tls: str, mutual: bool) -> AbstractContextManager[Registry | Desk]:
    if are_addresses(url):
        return cast("AbstractContextManager[Desk]", Desk(url, token_of_environment(), server_options(tls, mutual)))
    return nullcontext(Registry(url))


def _offer(registry: Registry | Desk, model: str, service: Service, stop: threading.Event) -> None:
    """Offer the service until it ends, `stop` is set or its model is no longer requested."""
    key, beat_s = "", time.monotonic()
    try:
        while not (stop.is_set() or service.ended or _patiently(partial(_other, registry, model), False, stop)):
            if not key:
                key = _patiently(partial(registry.add, model, service.endpoint), "", stop)
            elif time.monotonic() - beat_s > BEAT_S:
                _patiently(partial(registry.beat, key, model, service.endpoint), None, stop)
                beat_s = time.monotonic()
            stop.wait(POLL_S)
    finally:
        if key:  # first, so that no task connects while it ends
            _patiently(partial(registry.remove, key), None, stop)


def _refuse(registry: Registry | Desk, model: str, problem: str, stop: threading.Event) -> None:
    """Say why the model cannot be served, for `AGAIN_S`, or until `stop` is set or it is no longer requested."""
    LOG.error("%s", problem)
    key, began_s = _patiently(partial(registry.refuse, model, problem), "", stop), time.monotonic()
    while not (stop.is_set() or _patiently(partial(_other, registry, model), False, stop)):
        if time.monotonic() - began_s > AGAIN_S:
            break
        stop.wait(POLL_S)
    if key:
        _patiently(partial(registry.remove, key), None, stop)


def _patiently(call: Callable[[], T], otherwise: T, stop: threading.Event) -> T:
    """The result of a call of the registry; if its store does not answer, or what it holds cannot be read,
    `otherwise`, after BEAT_S."""
    try:
        with explaining("the registry"):
            return call()
    except (StoreError, ConfigError) as error:
        LOG.warning("%s", error)
        stop.wait(BEAT_S)
        return otherwise


def _other(registry: Registry | Desk, model: str) -> bool:
    try:
        wanted: tuple[str, ModelSpec] | None = registry.wanted()
    except ConfigError:  # a run of another version
        return True
    return wanted is None or wanted[0] != model
