"""Where an app's share groups live: `open_backend` turns a broker URL into the backend that serves it.

    embedded    a path of this machine, led by one of its processes (`embedded`, `path_login`, `path_workers`)
    memory      nothing is kept (`memory`)
    native      Kafka's own brokers lead (`native`)
    workers     a fleet of workers leads on any Kafka (`fleet*`);  `auto` chooses between these two

`base` is what all of them are to their users and what each can do, `url` reads broker URLs, `group_location` says where
a Kafka cluster's groups are. `broker` and `blocking` are for programs without agents. Leading itself is done by
`flowshare.server` and `flowshare.fleet`; nothing here decides over records.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from flowshare.backend.base import NOTHING_ASKED
from flowshare.backend.url import BadBrokerUrl, BrokerUrl, parse_broker

if TYPE_CHECKING:
    from flowshare.backend.base import Backend, GroupNeeds
    from flowshare.clock import Clock

__all__ = ["BadBrokerUrl", "BrokerUrl", "open_backend", "parse_broker"]


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
) -> Backend:
    """The backend for a broker URL, not started yet. Raises: BadBrokerUrl, BackendError.

    listen, patience_s: for a path that processes share, see `EmbeddedBackend`. lead: for a fleet, see
    `WorkersBackend`. asked: the app's groups and what they need: a place is chosen for them, and one that is wrong for
    them refused. cooperative: the app's cooperative groups, which Kafka's brokers do not keep. share_groups: False for
    who needs topics and consumer groups only. Only what the backend needs is imported, and that when it starts.
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
            from flowshare.backend.base import BackendError
            from flowshare.backend.native import NativeBackend

            if cooperative:
                raise BackendError(
                    f"Kafka's brokers keep no committed sets, and cooperative groups ({', '.join(cooperative)}) need "
                    "them: let the workers keep them (share='workers' in place of 'native'), or take an embedded path"
                )
            return NativeBackend(broker, clock=clock, asked=asked)
        case "kafka":
            from flowshare.backend.auto import AutoBackend

            return AutoBackend(broker, clock=clock, lead=lead, asked=asked, cooperative=cooperative)
