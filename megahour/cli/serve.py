"""`megahour serve`: runs a machine's model service for a run whose driver is on another machine."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import click

from megahour.cli.metrics import metrics_options, page
from megahour.runner import log
from megahour.runner.options import repeatable


@click.command("serve")
@click.argument("registry", metavar="FOLDER|ADDRESS")
@repeatable("--device", "devices", text="Devices: auto, cuda, cpu, or cuda:0 …, as in engine.devices.")
@click.option(
    "--host", default="", help="Address at which tasks reach this machine. Default: that of ADDRESS, or 127.0.0.1."
)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Port. 0, the default: any free one.")
@click.option(
    "--tls", default="", metavar="FOLDER", help="Folder with tls.crt, tls.key and ca.crt. Without it, no TLS."
)
@click.option("--mutual", is_flag=True, help="Require clients to present a certificate signed by ca.crt.")
@repeatable("--trust", metavar="PREFIX", text="Further modules that may be loaded, besides megahour's.")
@partial(metrics_options, count=2)
@log.logged
def command(
    registry: str,
    devices: tuple[str, ...],
    host: str,
    port: int,
    tls: str,
    mutual: bool,
    trust: tuple[str, ...],
    **metrics: Any,
) -> None:
    """Serve models on this machine for a run elsewhere, which finds it through FOLDER (its engine.services).

    Machines that share no folder are listed in engine.services instead, and each listens at its ADDRESS,
    grpc://HOST:PORT. Set the environment variable MEGAHOUR_SERVICE_TOKEN to the same secret on both sides.
    """
    from megahour.engine.local import usable_cores
    from megahour.serve.devices import of_machine
    from megahour.serve.endpoint import check_host
    from megahour.serve.host import TRUSTED, serve_registry
    from megahour.serve.standing import are_addresses, host_of, token_of_environment
    from megahour.serve.tls import server_options

    if are_addresses(registry):
        token_of_environment()
        host = host or host_of(registry)
    host = host or "127.0.0.1"
    server_options(tls, mutual)  # fail on a missing key or a wrong address now, not when a run needs this service
    check_host(host, port)
    chosen = of_machine(devices, usable_cores())
    log.say("waiting", f"waiting for runs with engine.services={registry}, on {', '.join(chosen)}; Ctrl-C ends it")
    trusted = (*TRUSTED, *trust)
    with page(metrics["metrics__port"], metrics["metrics__host"], {}):
        serve_registry(
            registry,
            threading.Event(),
            devices=chosen,
            host=host,
            port=port,
            tls=tls,
            mutual=mutual,
            trusted=trusted,
        )
