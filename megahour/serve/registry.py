"""A registry of a run's model services on other machines: a shared folder, on a disk or in an object store.

    wanted.json          the model that the run needs now, written by the driver
    services/<id>.json   a service that offers it: address and token, rewritten every `BEAT_S` seconds by its
                         `megahour serve`; the file of a lost machine gets old and is then ignored. Or why it cannot
                         offer the model

Whoever can write here decides what those machines load, and whoever can read here can use them: keep the folder
private (local files are readable by their owner only).
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from megahour.core.records import fingerprint
from megahour.core.store import Artifact
from megahour.core.transfer import is_local, publish_text
from megahour.serve.spec import AcceleratorError, ModelSpec, ServiceAddress, ServicePool, spec_of
from megahour.serve.standing import SCHEMES, Desks, are_addresses, token_of_environment

LOG = logging.getLogger(__name__)
WANTED = "wanted.json"
UNENCRYPTED = "does not encrypt, as engine.tls asks: start it with --tls"
UNASKED = "encrypts: give the run its keys, too, with engine.tls"
POLL_S = 1.0
SAY_S = 15.0  # after which a driver without a service warns
JOIN_S = 3600.0  # … and gives up
BEAT_S, DEAD_S = 10.0, 60.0  # between two heartbeats of a service; without one for DEAD_S it counts as lost


class Registry:
    """The folder at a path or URL. `level`: at which problems of services are logged."""

    def __init__(self, url: str, level: int = logging.INFO) -> None:
        self.url = url
        self._home = Artifact(url)
        self._level = level
        self._noted: set[str] = set()

    def want(self, spec: ModelSpec) -> str:
        """Request a model; returns its name. Removes offers of other models, which lost machines may have left.

        Warns of another request, left by a killed run or made by one that goes on: a folder serves one run at a time.
        """
        name = fingerprint(asdict(spec))
        if (other := self._read(WANTED)) and other.get("name") != name:
            LOG.warning("%s: another run asked for a model here; if it goes on, give each run a folder", self.url)
        for path in self._home.matching("services/*.json"):
            offer = self._read(self._relative(path))
            if offer and (offer["model"] != name or "problem" in offer):
                self._remove(self._relative(path))
        self._write(WANTED, {"name": name, "spec": asdict(spec)})
        return name

    def forget(self, name: str) -> None:
        """The model is not needed any more."""
        if (wanted := self._read(WANTED)) and wanted["name"] == name:
            self._remove(WANTED)

    def wanted(self) -> tuple[str, ModelSpec] | None:
        """The requested model: (name, spec); None if there is none.

        Raises OSError: the store does not answer; ConfigError: a request that another version has written.
        """
        request = self._read(WANTED, absent=FileNotFoundError)
        return (str(request.get("name")), spec_of(request.get("spec"))) if request else None

    def add(self, model: str, service: ServiceAddress) -> str:
        """Offer a service; returns its key for `beat` and `remove`."""
        key = f"services/{uuid.uuid4().hex}.json"
        self.beat(key, model, service)
        return key

    def refuse(self, model: str, problem: str) -> str:
        """Say why a service cannot load the model; returns the key for `remove`."""
        key = f"services/{uuid.uuid4().hex}.json"
        self._write(key, {"model": model, "problem": problem})
        return key

    def beat(self, key: str, model: str, service: ServiceAddress) -> None:
        """Renew a service's offer (heartbeat)."""
        self._write(key, {"model": model, "address": service.address, "token": service.token, "unix_s": time.time()})

    def remove(self, key: str) -> None:
        """Withdraw an offer."""
        self._remove(key)

    def services(self, model: str, tls: str = "") -> list[ServiceAddress]:
        """Services that offer a model, in no order; a killed one stays among them for `DEAD_S` seconds.

        If no heartbeat is recent, all are returned, because the machines' clocks may differ. Why others cannot offer
        it is logged once. tls: folder of the client's keys. With it only services with TLS are used, else only others.
        """
        self._home.fs.invalidate_cache()
        offers = [self._read(self._relative(path)) for path in self._home.matching("services/*.json")]
        own = [each for each in offers if each and each["model"] == model]
        for each in own:
            encrypts = (address := each.get("address", "")).startswith(SCHEMES[True])
            if address and encrypts != bool(tls):
                each["problem"] = f"{address} {UNASKED if encrypts else UNENCRYPTED}"
        for problem in {each["problem"] for each in own if "problem" in each} - self._noted:
            LOG.log(self._level, "a model service cannot serve the model: %s", problem)
            self._noted.add(problem)
        own = [each for each in own if "problem" not in each]
        now_s = time.time()
        alive = [each for each in own if now_s - float(each.get("unix_s", now_s)) < DEAD_S]
        return [ServiceAddress(each["address"], each["token"], tls) for each in alive or own]

    def _relative(self, path: str) -> str:
        return "services/" + path.rpartition("/")[2]

    def _write(self, name: str, value: dict[str, Any]) -> None:
        path = self._home.path(name)
        if is_local(self._home.fs):
            Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        publish_text(self._home.fs, path, json.dumps(value))
        if is_local(self._home.fs):
            Path(path).chmod(0o600)

    def _read(self, name: str, absent: type[OSError] = OSError) -> dict[str, Any] | None:
        try:
            self._home.fs.invalidate_cache()
            return dict(json.loads(self._home.fs.cat_file(self._home.path(name))))
        except (absent, ValueError, TypeError):  # withdrawn, or half written on a store without renames
            return None

    def _remove(self, name: str) -> None:
        try:
            self._home.fs.rm_file(self._home.path(name))
        except OSError as error:
            LOG.debug("%s/%s could not be removed: %s", self.url, name, error)


def registry_of(pool: ServicePool, level: int = logging.INFO) -> Registry | Desks:
    """Where drivers and tasks find the services of `pool`. `level`: at which lacking ones are logged."""
    if pool.spec is None:
        return Registry(pool.registry, level)
    return Desks(pool.registry, pool.spec, pool.token, pool.tls, level)


@contextmanager
def services_of(url: str, spec: ModelSpec, tls: str = "", join_s: float = JOIN_S) -> Iterator[ServicePool]:
    """Request a model of the registry at `url`, or of the services at its addresses, for the duration of the block.

    Yields once a service offers it. Raises AcceleratorError: none does within `join_s`; ConfigError: the addresses
    need a token.
    """
    pool = ServicePool(url, fingerprint(asdict(spec)), tls)
    if are_addresses(url):
        pool = replace(pool, spec=spec, token=token_of_environment())
    registry = registry_of(pool, logging.WARNING)
    registry.want(spec)
    start = f"start `megahour serve {url}`" if "," not in url else "start `megahour serve ADDRESS`, each with its own,"
    try:
        began_s, warned = time.monotonic(), False
        while not registry.services(pool.model, tls):
            waited_s = time.monotonic() - began_s
            if waited_s > join_s:
                raise AcceleratorError(f"no model service joined within {join_s:g} s", where=url, remedy=start)
            if waited_s > SAY_S and not warned:
                LOG.warning("no model service yet: %s on the machines with devices", start)
                warned = True
            time.sleep(POLL_S)
        yield pool
    finally:
        registry.forget(pool.model)
