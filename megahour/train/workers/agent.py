"""The agent of one machine: PyTorch's, told where the machine is on the network and how long to wait for others.

Agents meet in a store that the machine named in `rendezvous` hosts. Each sends a sign of life every 5 s; one that has
sent none for 15 s is no longer counted. What is given to torch here is what it guesses from the host's name otherwise,
which goes wrong where that name is not the address that the others see.
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
from megahour.train.params import TrainParams

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
AGENT = "MEGAHOUR_AGENT"  # process number of the agent: its workers end when it is gone
LAST_CALL_S = 10  # enough machines are there: how long they wait for the rest
JOIN_S = 86_400  # too few are there: how long they wait for enough
STOP_S = 5  # a worker that is stopped (SIGSTOP) does not end at SIGTERM


class AgentPlace(NamedTuple):
    """Where this machine is: its address among the machines, the network device, whether they meet here."""

    address: str
    device: str
    hosts: bool


def place_of(rendezvous: str) -> AgentPlace:
    """This machine's place on the network in which `rendezvous` (HOST:PORT) is; empty: the machine is alone.

    Raises
    ------
    ConfigError: HOST is not known, or is a name for which this machine has only an address of its own.
    """
    host, port = parse_rendezvous_endpoint(rendezvous or "127.0.0.1:0", default_port=29400)
    try:
        family, _, _, _, there = socket.getaddrinfo(host, port or 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(there)  # sends nothing; the kernel chooses the way there
            here = str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"no way to {host}: {error}", where="rendezvous", remedy="give HOST:PORT that all machines reach"
        ) from None
    inside = ipaddress.ip_address(there[0]).is_loopback
    if inside and host not in ("localhost", there[0]):
        raise ConfigError(
            f"{host} is {there[0]} on this machine, which others do not reach",
            where="rendezvous",
            remedy="give the machine's address on the network instead of its name",
        )
    devices = (name for name, found in psutil.net_if_addrs().items() if any(here == a.address for a in found))
    return AgentPlace(here, next(devices, ""), inside or here == there[0])


def run_agent(p: TrainParams, work: Path, spec: Path, *, first: bool) -> None:
    """Starts this machine's workers, and again whenever one is lost or a machine comes or goes, until they have ended.

    Parameters
    ----------
    first: this is the machine that the others meet at; it hosts their store.

    Raises
    ------
    ConfigError: `rendezvous` is not an address of the first machine.
    ChildFailedError: workers were lost more often than `max_restarts`.
    RendezvousError: the store where machines meet is not there, or another machine has ended the training.
    SignalException: SIGTERM, SIGINT, SIGHUP or SIGQUIT; the workers have been ended.
    """
    place = place_of(p.rendezvous)
    alone = not p.rendezvous
    if first and not place.hosts:
        raise ConfigError(
            f"{p.rendezvous} is not an address of this machine ({place.address})",
            where="rendezvous",
            remedy="start the training on the machine whose address it is, and `megahour.train.join` on the others",
        )
    with environment(place):  # LaunchConfig reads it too
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
    """What the agent and its workers read from the environment; what the user has set there is kept.

    Workers of every start make a store of their own: the agent's, which they share by default, still has the addresses
    of workers that have died, and those that are started again would try to reach them until the time limit (torch
    2.13, `DynamicRendezvousHandler.next_rendezvous`).
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
