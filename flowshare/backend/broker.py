"""Clients of a broker URL, for programs without agents: `ShareConsumer`, `ShareAdmin`, `Producer`, and their `Broker`.

    async with ShareConsumer("kafka://localhost:9092", ["orders"], group_id="billing") as consumer:
        async for record in consumer:
            ...

A client that is given a URL opens and closes a broker of its own. Several clients of a program share a broker:

    async with Broker("kafka://localhost:9092") as broker:
        await ShareAdmin(broker).create_topic("orders")
        await Producer(broker).send("orders", b"...")

The clients' work is done by `flowshare.client`; that package knows connections, not URLs.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from flowshare.backend import YIELD_PATIENCE_S, open_backend
from flowshare.backend.base import BackendError
from flowshare.backend.url import BrokerUrl, parse_broker
from flowshare.client.admin import admin
from flowshare.client.consumer import consumer
from flowshare.client.cooperative import consumer as cooperative
from flowshare.client.producer import producer
from flowshare.clock import LoopClock

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import TracebackType

    from flowshare.client.consumer.backlog import Decoder
    from flowshare.client.settings import ConsumerSettings, CooperativeSettings, LinkSettings, ProducerSettings
    from flowshare.protocol.messages import Connection

K = TypeVar("K")
V = TypeVar("V")

CLIENT_ID: Final = "flowshare"
"""Client id that brokers see when a client was given no other name."""


class Broker:
    """A broker URL, opened by `async with`; see `docs/backends.md` for the URLs. Used on one event loop.

    Its clients are closed with it, last made first.
    """

    def __init__(
        self, url: str | BrokerUrl, *, groups: Collection[str] = (), cooperative: Collection[str] = ()
    ) -> None:
        """groups: share groups that will be used; their places are looked up at opening. cooperative: cooperative
        groups that will be used. Raises: BadBrokerUrl, BackendError (Kafka's brokers keep no cooperative groups)."""
        self._url = parse_broker(url) if isinstance(url, str) else url
        self.clock = LoopClock()
        self._groups = groups
        self._found: set[str] = set()
        self._backend = open_backend(
            self._url,
            clock=self.clock,
            asked=dict.fromkeys(groups, ()),
            cooperative=cooperative,
            patience_s=YIELD_PATIENCE_S,
            yields=True,
        )
        self._open = False
        self.clients: list[Any] = []
        """Clients made for this broker and not closed yet, the first one first."""

    async def __aenter__(self) -> Self:
        """Open the broker. Raises: BackendError, LogError, ClientError with what to do."""
        await self._backend.start()  # sees whether the groups are here
        self._found.update(self._groups)
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with cooperative.behind(error):
                async with AsyncExitStack() as closing:
                    closing.push_async_callback(self._backend.close)
                    for client in self.clients:
                        closing.push_async_callback(client.close)
        finally:
            self._open = False

    async def connect(self, client_id: str, groups: Collection[str] = ()) -> Connection:
        """Open a client's connection. Raises: BackendError, also when a group lives in another place of the cluster."""
        if not self._open:
            raise BackendError(f"broker {self._url} is not open: use it, or the client made for it, in `async with`")
        if not self._found.issuperset(groups):
            await self._backend.check_groups(groups)
            self._found.update(groups)
        return await self._backend.connect(client_id)


class _Client:
    """The base of clients: `async with` opens and closes a client, on its own broker or on a shared one."""

    _broker: Broker
    _own: bool

    def _at(
        self, broker: str | BrokerUrl | Broker, groups: Collection[str] = (), *, cooperative: Collection[str] = ()
    ) -> Broker:
        """Return the given broker, or make the client's own. Raises: BadBrokerUrl, BackendError, TypeError."""
        self._own = not isinstance(broker, Broker)
        if isinstance(broker, str | BrokerUrl):
            broker = Broker(broker, groups=groups, cooperative=cooperative)
        elif self._own:
            given = type(broker).__name__
            raise TypeError(f"broker must be a URL such as 'kafka://localhost:9092' or a fs.Broker, not {given}")
        self._broker = broker
        return broker

    async def __aenter__(self) -> Self:
        """Open the client's own broker, if it has one. Raises: BackendError, LogError, ClientError with what to do."""
        if self._own:
            await self._broker.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own:
            await self._broker.__aexit__(kind, error, trace)
        else:
            me: Any = self
            self._broker.clients.remove(me)
            with cooperative.behind(error):
                await me.close()


class ShareConsumer(_Client, consumer.ShareConsumer[K, V]):
    """A member of a share group that hands out records, with the rules of Kafka's KafkaShareConsumer.

    One task uses a consumer. It joins at its first poll; a new group starts at its `share.auto.offset.reset` (latest).
    """

    @overload
    def __init__(
        self: ShareConsumer[bytes | None, bytes | None],
        broker: str | BrokerUrl | Broker,
        topics: Sequence[str],
        *,
        group_id: str,
        settings: ConsumerSettings | None = None,
        client_id: str = CLIENT_ID,
    ) -> None: ...
    @overload
    def __init__(
        self,
        broker: str | BrokerUrl | Broker,
        topics: Sequence[str],
        *,
        group_id: str,
        settings: ConsumerSettings | None = None,
        client_id: str = CLIENT_ID,
        key_decoder: Decoder[K],
        value_decoder: Decoder[V],
    ) -> None: ...
    def __init__(
        self,
        broker: str | BrokerUrl | Broker,
        topics: Sequence[str],
        *,
        group_id: str,
        settings: ConsumerSettings | None = None,
        client_id: str = CLIENT_ID,
        **decoders: Any,
    ) -> None:
        """Decoders turn bytes (or None) into keys and values.

        Raises: BadBrokerUrl, ValueError (no group, no topic), TypeError. A group that lives in another place of the
        cluster raises BackendError when its own broker is opened, or at the first poll on a shared one.
        """
        at = self._at(broker, [group_id])
        connect = partial(at.connect, client_id, [group_id])
        super().__init__(connect, group_id=group_id, clock=at.clock, settings=settings, **decoders)
        self.subscribe(topics)
        at.clients.append(self)


class CooperativeConsumer(_Client, cooperative.CooperativeConsumer[K, V]):
    """A member of a cooperative group: members share partitions by keys, and commit records one by one.

    One task uses a consumer. It joins at its first poll; a new group starts at its `auto_offset_reset` (earliest).
    """

    @overload
    def __init__(
        self: CooperativeConsumer[bytes | None, bytes | None],
        broker: str | BrokerUrl | Broker,
        topics: Sequence[str] = (),
        *,
        group_id: str,
        settings: CooperativeSettings | None = None,
        client_id: str = CLIENT_ID,
    ) -> None: ...
    @overload
    def __init__(
        self,
        broker: str | BrokerUrl | Broker,
        topics: Sequence[str] = (),
        *,
        group_id: str,
        settings: CooperativeSettings | None = None,
        client_id: str = CLIENT_ID,
        key_decoder: Decoder[K],
        value_decoder: Decoder[V],
    ) -> None: ...
    def __init__(
        self,
        broker: str | BrokerUrl | Broker,
        topics: Sequence[str] = (),
        *,
        group_id: str,
        settings: CooperativeSettings | None = None,
        client_id: str = CLIENT_ID,
        **decoders: Any,
    ) -> None:
        """topics: empty: call `assign` to choose. Decoders turn bytes (or None) into keys and values.

        Raises: BadBrokerUrl, BackendError (Kafka's brokers keep no such groups), ValueError (no group), TypeError.
        """
        at = self._at(broker, cooperative=[group_id])
        connect = partial(at.connect, client_id)
        super().__init__(connect, group_id=group_id, clock=at.clock, settings=settings, **decoders)
        if topics:
            self.subscribe(topics)
        at.clients.append(self)


class ShareAdmin(_Client, admin.ShareAdmin):
    """A client for topics, share groups, their offsets and settings, and plain reading of records."""

    def __init__(
        self, broker: str | BrokerUrl | Broker, *, settings: LinkSettings | None = None, client_id: str = CLIENT_ID
    ) -> None:
        """Connect at the first call. Raises: BadBrokerUrl, TypeError."""
        at = self._at(broker)
        super().__init__(partial(at.connect, client_id), clock=at.clock, settings=settings, client_id=client_id)
        at.clients.append(self)


class Producer(_Client, producer.Producer):
    """An idempotent producer that sends records in batches; records handed over are sent before it closes."""

    def __init__(
        self,
        broker: str | BrokerUrl | Broker,
        *,
        settings: ProducerSettings | None = None,
        client_id: str = CLIENT_ID,
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
    ) -> None:
        """transactional_id: name by which a successor takes over; records are then sent in transactions, between
        `begin` and `commit` or `abort`, each open for at most `transaction_timeout` seconds.

        Raises: BadBrokerUrl, TypeError.
        """
        at = self._at(broker)
        super().__init__(
            partial(at.connect, client_id),
            clock=at.clock,
            settings=settings,
            client_id=client_id,
            transactional_id=transactional_id,
            transaction_timeout=transaction_timeout,
        )
        at.clients.append(self)
