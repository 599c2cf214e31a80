"""Model services at given addresses, `grpc://HOST:PORT,…`, for machines that share no folder.

On each machine `megahour serve grpc://HOST:PORT` opens a `Desk`. Driver and tasks ask it for a model, by its
`ModelSpec`, and it answers with the address of the service once the model is loaded. Both sides have the same token in
the environment variable `MEGAHOUR_SERVICE_TOKEN`. A desk serves one model at a time: it refuses another one until the
run that asked for the first forgets it, or has not asked for `LEASE_S`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from megahour.core.errors import ConfigError
from megahour.core.records import fingerprint
from megahour.serve.endpoint import EVERYWHERE, OWN_ADDRESS, TokenCheck, try_listening
from megahour.serve.spec import ModelSpec, ServiceAddress, spec_of
from megahour.serve.tls import client_options

LOG = logging.getLogger(__name__)
TOKEN = "MEGAHOUR_SERVICE_TOKEN"
SCHEMES = ("grpc://", "grpc+tls://")
LEASE_S = 300.0  # a run that has not asked for this long is gone
ANSWER_S = 5.0  # for an answer of a desk
PATIENCE = 11.0  # times a vain wait, from its beginning to the next try


def are_addresses(services: str) -> bool:
    """Whether `services` lists addresses, rather than naming a registry's folder. Raises ConfigError: HOST:PORT alone,
    which would be a folder in which the other side never looks."""
    if re.fullmatch(r"[^/\\]+:\d{1,5}", services) and not Path(services).exists():
        given = ",".join(f"grpc://{address}" for address in services.split(","))
        remedy = f"give {given}, or ./{services} for a folder"
        raise ConfigError(f"{services} has no grpc:// before it", where="engine.services", remedy=remedy)
    return services.startswith(SCHEMES)


def token_of_environment() -> str:
    """The token that driver and services share. Raises ConfigError: there is none, or gRPC's headers cannot hold it."""
    if token := os.environ.get(TOKEN, ""):
        if not (token.isascii() and token.isprintable() and token == token.strip()):
            what = f"{TOKEN} has other characters than ASCII's printable ones, or a space or line end around it"
            raise ConfigError(what, where="engine.services", remedy="set another one on both sides")
        return token
    remedy = f"set the same secret on both sides, for example {TOKEN}={secrets.token_hex(16)}"
    raise ConfigError(f"services at given addresses need a token in {TOKEN}", where="engine.services", remedy=remedy)


class Desk(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """The endpoint of one machine that drivers and tasks ask; to `serve_registry` it is a registry of one service.

    Raises ConfigError: the machine cannot listen at `address`.
    """

    def __init__(self, address: str, token: str, keys: Mapping[str, Any]) -> None:
        host = host_of(address)
        if host in EVERYWHERE:
            raise ConfigError(f"{address}: drivers and tasks cannot connect to this address", remedy=OWN_ADDRESS)
        location = with_scheme(address, bool(keys))
        try:
            try_listening(host, int(address.rpartition(":")[2]))
            super().__init__(location, middleware={"token": TokenCheck(token)}, **keys)
        except (pa.ArrowException, OSError) as error:
            remedy = f"{OWN_ADDRESS}, and a port that no other program has"
            raise ConfigError(f"{address}: cannot listen there", remedy=remedy) from error
        self.url = f"{location.rpartition(':')[0]}:{self.port}"
        self._lock = threading.Lock()
        self._wanted: tuple[str, ModelSpec] | None = None
        self._asked_s = 0.0
        self._offer: dict[str, str] = {}

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Answer `serve` or `forget`, with JSON."""
        request = json.loads(action.body.to_pybytes() or b"{}")
        with self._lock:
            if action.type == "serve":
                return [json.dumps(self._serve(request["name"], request["spec"])).encode()]
            if action.type == "forget":
                if self._wanted and self._wanted[0] == request["name"]:
                    self._wanted = None
                return [b"{}"]
        raise flight.FlightServerError(f"unknown action {action.type!r}; available: serve, forget")

    def _serve(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """The model's address and token, or the `problem`; {} while it loads, `busy` while another run is served."""
        if (current := self._current()) and current[0] != name:
            return {"busy": True}
        self._wanted, self._asked_s = (name, spec_of(spec)), time.monotonic()
        return self._offer if self._offer.get("model") == name else {}

    def _current(self) -> tuple[str, ModelSpec] | None:
        return self._wanted if time.monotonic() - self._asked_s < LEASE_S else None

    def wanted(self) -> tuple[str, ModelSpec] | None:
        """See `Registry.wanted`."""
        with self._lock:
            return self._current()

    def add(self, model: str, service: ServiceAddress) -> str:
        """See `Registry.add`."""
        with self._lock:
            self._offer = {"model": model, "address": service.address, "token": service.token}
        return model

    def refuse(self, model: str, problem: str) -> str:
        """See `Registry.refuse`."""
        with self._lock:
            self._offer = {"model": model, "problem": problem}
        return model

    def beat(self, key: str, model: str, service: ServiceAddress) -> None:
        """Nothing to do: a lost machine does not answer."""

    def remove(self, key: str) -> None:
        """See `Registry.remove`."""
        with self._lock:
            self._offer = {}


class Desks:
    """The desks at the `addresses`, which drivers and tasks ask for the model `spec` as they would ask a `Registry`.

    level: at which problems of desks are logged.
    """

    def __init__(self, addresses: str, spec: ModelSpec, token: str, tls: str = "", level: int = logging.INFO) -> None:
        self._addresses = addresses_in(addresses, tls)
        self._request = {"name": fingerprint(asdict(spec)), "spec": asdict(spec)}
        self._token, self._tls, self._level = token, tls, level
        self._noted: dict[str, str] = {}  # by address: the problem that was logged last
        self._retry_s: dict[str, float] = {}  # by address: when a silent desk is asked again

    def want(self, spec: ModelSpec) -> None:
        """Nothing to do: `services` requests the model."""

    def forget(self, name: str) -> None:
        """The model is not needed any more."""
        self._ask("forget", name=name)

    def services(self, model: str, tls: str = "") -> list[ServiceAddress]:
        """Request the model of every desk; returns the services that have loaded it."""
        answers = self._ask("serve", **self._request)
        for address, answer in answers.items():
            self._note(address, "it serves another run" if answer.get("busy") else answer.get("problem", ""))
        return [ServiceAddress(each["address"], each["token"], tls) for each in answers.values() if "address" in each]

    def _ask(self, action: str, **request: Any) -> dict[str, dict[str, Any]]:
        """The answers of the desks that can be reached, by address.

        A desk that let the caller wait in vain is not asked again for ten times as long, so that tasks lose little.
        """
        headers = [(b"authorization", f"Bearer {self._token}".encode())]
        call, answers = flight.Action(action, json.dumps(request).encode()), {}
        for address in self._addresses:
            if (began_s := time.monotonic()) < self._retry_s.get(address, 0.0):
                continue
            try:
                with flight.connect(address, **client_options(self._tls)) as client:
                    options = flight.FlightCallOptions(timeout=ANSWER_S, headers=headers)
                    (answer,) = client.do_action(call, options)
                    answers[address] = json.loads(answer.body.to_pybytes())
            except (pa.ArrowException, OSError) as error:
                self._retry_s[address] = began_s + PATIENCE * (time.monotonic() - began_s)
                self._note(address, str(error).partition("\n")[0].rpartition("last error: ")[2])
        return answers

    def _note(self, address: str, problem: str) -> None:
        """Log a new problem, once."""
        if problem and self._noted.get(address) != problem:
            LOG.log(self._level, "no model service at %s: %s", address, problem)
        self._noted[address] = problem


def addresses_in(addresses: str, tls: object) -> list[str]:
    """Each of the addresses, `grpc://HOST:PORT,…`. Raises ConfigError: one has another form, or TLS and no keys."""
    each = [address.strip() for address in addresses.split(",") if address.strip()]
    return [with_scheme(address, tls) for address in each if host_of(address)]


def with_scheme(address: str, tls: object) -> str:
    """The address with the scheme that it has with or without TLS. Raises ConfigError: it asks for TLS without keys."""
    if address.startswith(SCHEMES[True]) and not tls:
        remedy = f"set engine.tls (--tls) to a folder of keys, or give {SCHEMES[False]}{address.partition('://')[2]}"
        raise ConfigError(f"{address} asks for TLS, and there are no keys", where="engine.services", remedy=remedy)
    return SCHEMES[bool(tls)] + address.partition("://")[2]


def host_of(address: str) -> str:
    """The host of `grpc://HOST:PORT`. Raises ConfigError: the address has another form."""
    host, _, port = address.partition("://")[2].rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65_535 or "," in host:
        raise ConfigError(f"{address} is not of the form grpc://HOST:PORT", where="engine.services")
    return host
