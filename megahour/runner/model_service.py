"""Where the model processes of a stage run: on this machine for as long as it needs them, or as services elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megahour.core.errors import MegahourError
from megahour.core.store import DEVICES, Artifact
from megahour.core.transfer import publish_text

if TYPE_CHECKING:
    from megahour.engine.base import Engine
    from megahour.serve.spec import ModelSpec, ServiceAddress, ServicePool


@dataclass(frozen=True)
class Models:
    """Where a stage's model processes run, see `serve.server.serve`.

    devices: as for `serve.devices.of_machine`; by default one process for each GPU, or for each concurrent task.
    host: the address on which this machine's service listens; executors on other machines must reach it.
    tls, mutual: keys, see `serve.tls`.
    services: URL of a registry of services on other machines, see `serve.registry`; then none runs here.
    """

    devices: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    tls: str = ""
    mutual: bool = False
    services: str = ""

    def check(self) -> None:
        """Raise ConfigError for a missing token or key, and for an address of another form."""
        if not (self.services or self.tls or self.mutual):
            return
        from megahour.serve.standing import addresses_in, are_addresses, token_of_environment
        from megahour.serve.tls import client_options, server_options

        if not self.services:
            server_options(self.tls, self.mutual)
        elif are_addresses(self.services):
            addresses_in(self.services, self.tls)
            token_of_environment()
        client_options(self.tls)


@contextmanager
def service_for(
    spec: ModelSpec, engine: Engine, models: Models, output: Artifact
) -> Iterator[ServiceAddress | ServicePool]:
    """The address of a service of the model for the duration of the block; the processes' time is kept in `output`."""
    if models.services:
        from megahour.serve.registry import services_of

        with services_of(models.services, spec, models.tls) as pool:
            yield pool
        return
    from megahour.serve.devices import of_machine
    from megahour.serve.server import serve

    # On CPUs, one for each core that the engine's tasks may use: the model is most of the work.
    devices = of_machine(models.devices, min(engine.workers, os.cpu_count() or 1))
    with serve(spec, devices=devices, host=models.host, tls=models.tls, mutual=models.mutual) as service:
        try:
            yield service.endpoint
        finally:
            _add_device_time(output, service.computed_s())


def _add_device_time(output: Artifact, seconds: float) -> None:
    """Record how long this session's model processes computed: tasks know only how long they waited for them."""
    seconds += output.figures(DEVICES).get("seconds", 0.0)
    with suppress(OSError, MegahourError):  # no result depends on it, and another error may be on its way
        publish_text(output.fs, output.path(DEVICES), json.dumps({"seconds": round(seconds, 6)}))
