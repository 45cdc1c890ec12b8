"""A command leads a fleet that has no workers at the moment: its groups can be looked after while all are stopped.

It listens on this machine only. Workers that start meanwhile find the slots claimed, and take them when it ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flowshare.backend.fleet import WorkersBackend
    from flowshare.backend.url import BrokerUrl

SETTLED_S: Final = 30.0
LOOK_S: Final = 0.02
LISTEN: Final = "127.0.0.1:0"
OF_WORKERS: Final = ("advertise", "state_dir")


async def is_led(url: BrokerUrl) -> bool:
    """Whether the fleet has workers that lead. Raises: BackendError."""
    from flowshare.backend.fleet import WorkersBackend

    backend = WorkersBackend(url, lead=False)
    await backend.start()
    try:
        return backend.led
    finally:
        await backend.close()


async def lead_here(url: BrokerUrl, slots: int) -> WorkersBackend:
    """Lead the fleet in this process; returns when it leads all slots. slots: that the fleet has, 0: it is a new one.

    Raises: BackendError.
    """
    from flowshare.backend.base import BackendError
    from flowshare.backend.fleet import WorkersBackend
    from flowshare.clock import LoopClock

    clock = LoopClock()
    backend = WorkersBackend(led_here(url, slots), clock=clock, lead=True)
    await backend.start()
    until_s = clock.monotonic() + SETTLED_S
    while backend.worker is not None and not backend.worker.settled:
        if clock.monotonic() > until_s:
            await backend.close()
            raise BackendError(
                f"the slots of the fleet {backend.fleet} could not all be claimed within {SETTLED_S:g} s: see whether "
                "the brokers of its state topic are well"
            )
        await clock.sleep(LOOK_S)
    return backend


async def slots_of(url: BrokerUrl) -> int:
    """How many slots the fleet has; 0: it has no state topic. Raises: OSError, ClientError."""
    from flowshare.backend.fleet_options import fleet_of
    from flowshare.client.cluster import Cluster
    from flowshare.clock import LoopClock
    from flowshare.fleet.names import state_topic
    from flowshare.protocol.messages import MetadataRequest

    cluster = Cluster(url.hosts, clock=LoopClock(), security=url.security())
    try:
        await cluster.start()
        kafka = cluster.connect("flowshare-cli")
        (found,) = (await kafka.send(MetadataRequest(topics=(state_topic(fleet_of(url)),)))).topics
        await kafka.close()
    finally:
        await cluster.close()
    return found.partitions


def led_here(url: BrokerUrl, slots: int) -> BrokerUrl:
    """The URL for leading the fleet in this process. slots: that it has, 0: it is a new one."""
    left: tuple[str, ...] = OF_WORKERS
    if "listen_tls_cert" not in url.options:
        left += tuple(name for name in url.options if name.startswith(("fleet_", "listen_")))
    options = {name: text for name, text in url.options.items() if name not in left}
    if "listen_tls_cert" in options:
        options["fleet_check_hostname"] = "false"  # its certificate names another address
    if slots:
        options["slots"] = str(slots)
    return replace(url, options={**options, "share": "workers", "listen": LISTEN})
