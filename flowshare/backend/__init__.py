"""Where share groups live: `open_backend` turns a broker URL into the backend that serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from flowshare.backend.url import BadBrokerUrl, BrokerUrl, parse_broker

if TYPE_CHECKING:
    from flowshare.backend.base import Asked, Backend
    from flowshare.client.link import Connect
    from flowshare.client.producing import RecordProducer
    from flowshare.client.settings import ProducerSettings
    from flowshare.clock import Clock

__all__ = ["BadBrokerUrl", "BrokerUrl", "make_producer", "open_backend", "parse_broker"]


def open_backend(
    url: str | BrokerUrl,
    *,
    clock: Clock | None = None,
    listen: bool = True,
    patience_s: float = 0.0,
    lead: bool = False,
    asked: Asked | None = None,
) -> Backend:
    """The backend for a broker URL, not started yet. Raises: BadBrokerUrl, BackendError.

    listen, patience_s: for a path that processes share, see `EmbeddedBackend`. lead: for a fleet, see
    `WorkersBackend`. asked: the app's groups and what they need: a place is chosen for them, and one that is wrong for
    them refused. Only what the backend needs is imported, and that when it starts.
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
        case "kafka" if broker.share == "workers":
            from flowshare.backend.base import NOTHING_ASKED
            from flowshare.backend.fleet import WorkersBackend

            return WorkersBackend(broker, clock=clock, lead=lead, asked=asked or NOTHING_ASKED)
        case "kafka" if broker.share == "native":
            from flowshare.backend.base import NOTHING_ASKED
            from flowshare.backend.native import NativeBackend

            return NativeBackend(broker, clock=clock, asked=asked or NOTHING_ASKED)
        case "kafka":
            from flowshare.backend.auto import AutoBackend
            from flowshare.backend.base import NOTHING_ASKED

            return AutoBackend(broker, clock=clock, lead=lead, asked=asked or NOTHING_ASKED)


def make_producer(
    backend: Backend,
    connect: Connect,
    *,
    clock: Clock,
    linger_s: float | None = None,
    settings: ProducerSettings | None = None,
    client_id: str = "producer",
) -> RecordProducer:
    """The producer for a backend; `connect` opens a connection to it."""
    of_kafka = getattr(backend, "producer", None)
    if of_kafka is not None:
        return cast("RecordProducer", of_kafka(client_id=client_id, linger_s=linger_s, settings=settings))
    from flowshare.client.producer import Producer

    return Producer(connect, clock=clock, linger_s=linger_s, settings=settings, client_id=client_id)
