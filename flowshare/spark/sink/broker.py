"""Open brokers of a Python worker (an executor's or the driver's): each has a thread, its event loop and a producer.

Spark uses one Python worker for one task after the other, so an open broker is kept, one for each set of options. It is
closed after IDLE_S without use, or when something failed on it: a broker in doubt is never used again.

One process leads an embedded path. A process that opens the path joins the leader. If there is no leader, the process
leads the path itself, lets others join, and gives the path up when it is idle. While workers of `flowshare worker` live
on the path, they come first.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.agents.host.service import ServiceLoop
from flowshare.backend import open_backend, parse_broker
from flowshare.backend.base import BackendError
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ClientError, ServerError
from flowshare.client.net.cluster import Cluster
from flowshare.client.producer.channel import Channel
from flowshare.client.producer.producer import Producer
from flowshare.client.settings import LinkSettings, ProducerSettings
from flowshare.clock import LoopClock
from flowshare.core_errors import FlowshareError
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from flowshare.protocol.messages import Connection
    from flowshare.spark.sink.options import SinkOptions

R = TypeVar("R")

IDLE_S: Final = 5.0
"""The seconds that an unused broker stays open; the longest time that an idle executor leads an embedded path."""
PATIENCE_S: Final = 5.0
"""The seconds that workers living on an embedded path get to lead it."""
OPEN_S: Final = 60.0
CLOSE_S: Final = 5.0
CLIENT: Final = "flowshare-spark-sink"
DEFAULT_PARTITIONS: Final = -1
"""The number that stands for the broker's num.partitions."""
REQUEST_BYTES_MAX: Final = 1 << 30
"""The largest request in bytes, so that the broker alone limits a record by its topic's setting."""

logger = logging.getLogger("flowshare.spark")

_brokers: dict[tuple[int, SinkOptions], OpenBroker] = {}
_lock = threading.Lock()


class SinkError(FlowshareError, RuntimeError):
    """Rows cannot be written; the text says what to do. The task fails, and Spark tries it again."""


@contextmanager
def open_broker(options: SinkOptions) -> Iterator[OpenBroker]:
    """Provide this process's broker for these options, opened if needed; it is closed when the block raises.

    Raises: SinkError (the broker cannot be reached).
    """
    key = (os.getpid(), options)  # a fork has none of its parent's threads
    with _lock:
        opened = _brokers.get(key)
        if opened is None:
            opened = _brokers[key] = OpenBroker(options, key)
        opened.users += 1
    try:
        opened.wait_open()
        yield opened
    except BaseException:
        _forget(opened)
        raise
    finally:
        with _lock:
            opened.users -= 1
        opened.rest()


def _forget(opened: OpenBroker, *, used: bool = True) -> None:
    """Close a broker in a separate thread. used: close it even while it is used."""
    with _lock:
        if opened.users and not used:
            return
        if _brokers.get(opened.key) is opened:
            del _brokers[opened.key]
        if opened.closing is None:
            closing = threading.Thread(target=opened.close, name=f"{CLIENT} closes", daemon=True)
            closing.start()
            opened.closing = closing


class OpenBroker:
    """One open broker. Its methods are called from any thread; `call` runs coroutines on the broker's thread."""

    def __init__(self, options: SinkOptions, key: tuple[int, SinkOptions]) -> None:
        self.options = options
        self.key = key
        self.users = 0
        self.closing: threading.Thread | None = None
        """The thread that closes the broker, once closing has begun."""
        self._clock = LoopClock()
        self._resting: asyncio.TimerHandle | None = None
        self._admin: ShareAdmin
        self._closers: list[Callable[[], Awaitable[object]]] = []
        """Close functions of all that was opened, in the order of opening."""
        self._connect: Callable[[], Awaitable[Connection]]
        self._producer: Producer | None = None
        self.channel: Channel
        """A channel for requests to coordinators."""
        self._service = ServiceLoop(name=CLIENT)
        self._service.start()
        self._opening = self._service.submit(self._open)

    # --- from other threads -------------------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which the broker's coroutines run."""
        return self._service.loop

    def wait_open(self) -> None:
        """Wait until the broker is open. Raises: SinkError."""
        try:
            self._opening.result(OPEN_S)
        except TimeoutError:
            raise SinkError(f"{self.about} did not answer within {OPEN_S:g} s") from None
        except (BackendError, ClientError, OSError) as error:
            raise SinkError(f"{self.about} cannot be reached: {error}") from error

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the broker's loop; the coroutine bounds its own waits. Raises: any error of the
        coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def rest(self) -> None:
        """Start the idle timer: the broker is not used for now."""
        with contextlib.suppress(RuntimeError):  # it was closed already
            self.loop.call_soon_threadsafe(self._rest)

    def close(self) -> None:
        """Close all that was opened, after an opening under way has ended."""
        concurrent.futures.wait([self._opening])
        self._service.submit(self._close).result()
        self._service.stop()

    @property
    def about(self) -> str:
        """The broker's URL, without a password."""
        return f"broker {parse_broker(self.options.broker)}"

    # --- on its own ---------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        broker = parse_broker(self.options.broker)
        security = None
        if broker.kind == "embedded":
            backend = open_backend(broker, clock=self._clock, patience_s=PATIENCE_S)
            self._closers.append(backend.close)
            await backend.start()
            assert backend.kafka is not None, "whoever leads the path listens"
            hosts, security = backend.kafka.hosts, backend.kafka.security
        else:
            hosts, security = broker.hosts, broker.security()
        patience = LinkSettings(connect_timeout=min(self.options.delivery_timeout, OPEN_S / 2))
        cluster = Cluster(hosts, clock=self._clock, client_id=CLIENT, settings=patience, security=security)
        self._closers.append(cluster.close)
        await cluster.start()

        async def connect() -> Connection:
            return cluster.connect(CLIENT)

        self._connect = connect
        self._admin = ShareAdmin(connect, clock=self._clock, client_id=CLIENT)
        self._closers.append(self._admin.close)
        self.channel = Channel(connect, clock=self._clock, settings=self._settings(), client_id=CLIENT)
        self._closers.append(self.channel.close)

    async def _close(self) -> None:
        for close in reversed(self._closers):
            try:
                await asyncio.wait_for(close(), 2 * CLOSE_S)
            except Exception as error:  # noqa: BLE001 - it is given up, the others are closed
                logger.warning("%s was not left in order: %s: %s", self.about, type(error).__name__, error)

    def _rest(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        self._resting = self.loop.call_later(IDLE_S, lambda: _forget(self, used=False))

    # --- what it is for -----------------------------------------------------------------------------------------

    async def partitions_of(self, topic: str, producer: Producer) -> int:
        """Return a topic's number of partitions, as its producer will use it; a missing topic is created if options
        allow it.

        Raises: SinkError (no such topic), ClientError.
        """
        try:
            return await producer.partitions(topic)
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        if not self.options.create_topics:
            raise SinkError(
                f"there is no topic {topic!r} at {self.about}: create it with `flowshare topics create {topic}`, or "
                "check its name (`flowshare topics ls`)"
            )
        await self._admin.create_topic(topic, partitions=DEFAULT_PARTITIONS, exist_ok=True)
        logger.info("topic=%s was missing and is made", topic)
        return await self.channel.until_answered(  # brokers learn of it a moment later
            lambda _: producer.partitions(topic), self.options.delivery_timeout, lambda error: error.retriable
        )

    async def producer(self) -> Producer:
        """Return the producer shared by all tasks that write at least once."""
        if self._producer is None:
            self._producer = self.new_producer()
            self._closers.append(lambda producer=self._producer: producer.close(CLOSE_S))  # type: ignore[misc]
        return self._producer

    def new_producer(self, transactional_id: str | None = None) -> Producer:
        """Return a new producer, which the caller closes. A transactional id fences other producers with the same
        id."""
        return Producer(
            self._connect,
            clock=self._clock,
            settings=self._settings(),
            client_id=CLIENT,
            transactional_id=transactional_id,
            transaction_timeout=self.options.transaction_timeout,
        )

    def _settings(self) -> ProducerSettings:
        options = self.options
        return ProducerSettings(
            batch_size=options.batch_size,
            max_request_size=REQUEST_BYTES_MAX,
            compression=options.compression,
            delivery_timeout=options.delivery_timeout,
            auto_create_topics=False,
        )
