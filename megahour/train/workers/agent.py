"""Runs PyTorch's elastic agent on one machine, configured with the machine's network address and waiting times.

Agents meet in a store hosted by the machine named in `rendezvous`. Each sends a heartbeat every 5 s; one without a
heartbeat for 15 s no longer counts. torch would otherwise guess the address from the host's name, which fails if the
name does not resolve to the address that other machines see.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from megahour.core.errors import ConfigError
from megahour.learn.params import TrainParams
from megahour.train.workers import lost

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
AGENT = "MEGAHOUR_AGENT"  # process number of the agent: its workers end with it
LAST_CALL_S = 10  # how long machines wait for others once there are enough
JOIN_S = 86_400  # how long machines wait for enough others
STOP_S = 5  # until SIGKILL: a worker stopped by SIGSTOP ignores SIGTERM


class AgentPlace(NamedTuple):
    """This machine's address on the training's network, the network device, and whether it hosts the rendezvous."""

    address: str
    device: str
    hosts: bool


def place_of(rendezvous: str) -> AgentPlace:
    """This machine's place on the network of `rendezvous` (HOST:PORT); empty: the machine is alone.

    Raises
    ------
    ConfigError: HOST is unknown, or resolves to a loopback address on this machine.
    """
    host, port = parse_rendezvous_endpoint(rendezvous or "127.0.0.1:0", default_port=29400)
    try:
        family, _, _, _, there = socket.getaddrinfo(host, port or 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(there)  # sends nothing; the kernel chooses the route
            here = str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"cannot reach {host}: {error}", where="rendezvous", remedy="give a HOST:PORT that all machines can reach"
        ) from None
    inside = ipaddress.ip_address(there[0]).is_loopback
    if inside and host not in ("localhost", there[0]):
        raise ConfigError(
            f"{host} is {there[0]} on this machine, which others cannot reach",
            where="rendezvous",
            remedy="give the machine's address on the network instead of its name",
        )
    devices = (name for name, found in psutil.net_if_addrs().items() if any(here == a.address for a in found))
    return AgentPlace(here, next(devices, ""), inside or here == there[0])


def run_agent(p: TrainParams, work: Path, spec: Path, *, first: bool) -> None:
    """Run this machine's workers to their end, restarting them whenever one is lost or a machine joins or leaves.

    Parameters
    ----------
    first: this machine hosts the store in which the machines meet.

    Raises
    ------
    ConfigError: `rendezvous` is not an address of the first machine.
    ChildFailedError: workers were lost more often than `max_restarts`.
    RendezvousError: the store cannot be reached, or another machine has ended the training.
    SignalException: SIGTERM, SIGINT, SIGHUP or SIGQUIT; the workers have been ended.
    """
    place = place_of(p.rendezvous)
    alone = not p.rendezvous
    if first and not place.hosts:
        raise ConfigError(
            f"{p.rendezvous} is not an address of this machine ({place.address})",
            where="rendezvous",
            remedy="start the training on the machine with this address, and `megahour.train.join` on the others",
        )
    with environment(place), lost.of_agent(p.max_restarts, work / "workers"):  # LaunchConfig reads the former too
        config = LaunchConfig(
            min_nodes=1 if alone else p.min_nodes,
            max_nodes=1 if alone else p.nodes,
            nproc_per_node=p.workers // p.nodes,
            run_id="megahour",
            rdzv_backend="c10d",
            rdzv_endpoint=p.rendezvous or "127.0.0.1:0",
            rdzv_configs={"is_host": first, "last_call_timeout": LAST_CALL_S, "join_timeout": JOIN_S},
            local_addr=place.address,
            max_restarts=p.max_restarts,
            monitor_interval=0.2,
            start_method="spawn",
            logs_specs=DefaultLogsSpecs(log_dir=str(work / "workers"), redirects=Std.ALL),
        )
        elastic_launch(config, sys.executable)("-u", "-m", "megahour.train.workers.worker", str(spec))


@contextmanager
def environment(place: AgentPlace) -> Iterator[None]:
    """Set the environment variables of the agent and its workers; those set by the user are kept.

    Workers create a new store at each start: the agent's store, which they share by default, still has the addresses
    of dead workers, which restarted ones would try to reach until the time limit (torch 2.13,
    `DynamicRendezvousHandler.next_rendezvous`).
    """
    before = dict(os.environ)
    os.environ[OWN_STORE] = "1"
    os.environ[AGENT] = str(os.getpid())
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(STOP_S))
    if place.device:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", place.device)
    try:
        yield
    finally:
        for name in (OWN_STORE, AGENT, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "GLOO_SOCKET_IFNAME"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
