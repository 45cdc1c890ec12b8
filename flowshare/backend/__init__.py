"""Backends keep an app's share groups: `open_backend` turns a broker URL into the backend that serves it.

    embedded    a path of this machine, led by one of its processes (`embedded`, `path_login`, `path_workers`)
    memory      nothing is kept (`memory`)
    native      Kafka's own brokers, or `flowshare serve`, lead (`native`)
    workers     a fleet of workers leads on any Kafka (`fleet*`);  `auto` chooses between these two

`base` has the interface of all backends and the capabilities of each, `url` reads broker URLs, `group_location` finds
the groups of a Kafka cluster. `broker` and `blocking` are for programs without agents. `flowshare.server` and
`flowshare.fleet` do the leading; nothing here decides over records.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from flowshare.backend.base import NOTHING_ASKED
from flowshare.backend.url import BadBrokerUrl, BrokerUrl, parse_broker

if TYPE_CHECKING:
    from flowshare.backend.base import Backend, GroupNeeds
    from flowshare.clock import Clock

YIELD_PATIENCE_S: Final = 3.0
"""Seconds that a program which gives an embedded path to workers waits for a worker to lead it."""

__all__ = ["YIELD_PATIENCE_S", "BadBrokerUrl", "BrokerUrl", "open_backend", "parse_broker"]


def open_backend(
    url: str | BrokerUrl,
    *,
    clock: Clock | None = None,
    listen: bool = True,
    patience_s: float = 0.0,
    lead: bool = False,
    asked: GroupNeeds = NOTHING_ASKED,
    cooperative: Collection[str] = (),
    share_groups: bool = True,
    yields: bool = False,
) -> Backend:
    """Return the backend for a broker URL, not started yet. Raises: BadBrokerUrl.

    listen, patience_s, yields: for a path that processes share, see `EmbeddedBackend`. lead: for a fleet, see
    `WorkersBackend`. asked: the app's groups and their needs: `auto` chooses by them, and a wrong place is refused.
    cooperative: the app's cooperative groups, which Kafka's brokers do not keep. share_groups: False for programs that
    need topics and consumer groups only. Modules of the backend are imported when it starts.
    """
    broker = parse_broker(url) if isinstance(url, str) else url
    match broker.kind:
        case "embedded":
            from flowshare.backend.embedded import EmbeddedBackend

            settings = None
            if broker.settings:
                from flowshare.server.settings import Settings

                settings = Settings.parse(broker.settings)
            return EmbeddedBackend(
                broker.path,
                clock=clock,
                fsync=broker.flag("fsync"),
                settings=settings,
                listen=listen,
                patience_s=patience_s,
                open_to_all=broker.flag("open"),
                yields=yields,
            )
        case "memory":
            from flowshare.backend.memory import MemoryBackend

            return MemoryBackend(clock=clock)
        case "kafka" if not share_groups:
            from flowshare.backend.native import LogBackend

            return LogBackend(broker, clock=clock)
        case "kafka" if broker.share == "workers":
            from flowshare.backend.fleet import WorkersBackend

            return WorkersBackend(broker, clock=clock, lead=lead, asked=asked)
        case "kafka" if broker.share == "native":
            from flowshare.backend.native import NativeBackend

            return NativeBackend(broker, clock=clock, asked=asked, cooperative=cooperative)
        case "kafka":
            from flowshare.backend.auto import AutoBackend

            return AutoBackend(broker, clock=clock, lead=lead, asked=asked, cooperative=cooperative)
