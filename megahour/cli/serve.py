"""`megahour serve`: runs a machine's model service for a run whose driver is on another machine."""

from __future__ import annotations

import threading

import click

from megahour.runner import log


@click.command("serve")
@click.argument("registry", metavar="FOLDER")
@click.option("--device", "devices", multiple=True, help="(repeatable) auto, cuda, cpu, or cuda:0 …, as engine.devices")
@click.option("--host", default="127.0.0.1", show_default=True, help="This machine's address, as tasks reach it.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="0, the default: one that is free.")
@click.option("--tls", default="", metavar="FOLDER", help="Keys: tls.crt, tls.key and ca.crt; without them, no TLS.")
@click.option("--mutual", is_flag=True, help="Ask clients for a certificate that ca.crt has signed.")
@click.option("--trust", multiple=True, metavar="PREFIX", help="(repeatable) Modules besides megahour's that may load.")
@log.logged
def command(
    registry: str, devices: tuple[str, ...], host: str, port: int, tls: str, mutual: bool, trust: tuple[str, ...]
) -> None:
    """Serve models here for a run elsewhere: the one that its stages ask for in FOLDER, its engine.services."""
    from megahour.engine.local import usable_cores
    from megahour.serve.devices import of_machine
    from megahour.serve.host import TRUSTED, serve_registry
    from megahour.serve.tls import server_options

    server_options(tls, mutual)  # fail on a missing key now, not when a run needs this service
    chosen = of_machine(devices, usable_cores())
    log.say("waiting", f"waiting for runs with engine.services={registry}, on {', '.join(chosen)}; Ctrl-C ends it")
    trusted = (*TRUSTED, *trust)
    serve_registry(
        registry, threading.Event(), devices=chosen, host=host, port=port, tls=tls, mutual=mutual, trusted=trusted
    )
