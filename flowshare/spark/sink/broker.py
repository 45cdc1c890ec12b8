"""`Line`: what an executor's Python worker, or the driver's, has open towards a broker: a thread, its loop, a producer.

Spark uses a Python worker for one task after the other, so lines are kept (`line_of`), one for each set of options, and
closed when nobody has used them for IDLE_S, or when something failed on them: what is in doubt is never used again.

An embedded path is led by one process. A line joins the one that leads; when nobody does it leads itself, lets others
join, and lets go of the path when it is idle. While workers of `flowshare worker` live on the path, they come first.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.backend import open_backend, parse_broker
from flowshare.backend.base import BackendError
from flowshare.client.admin import ShareAdmin
from flowshare.client.cluster import Cluster
from flowshare.client.errors import ClientError, ServerError
from flowshare.client.kafka_errors import problem_of
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer
    from aiokafka.client import AIOKafkaClient

    from flowshare.protocol.messages import Connection
    from flowshare.spark.sink_options import SinkOptions

R = TypeVar("R")

IDLE_S: Final = 5.0
"""How long a line that nobody uses stays open; so long at most an idle executor leads an embedded path."""
PATIENCE_S: Final = 5.0
"""How long workers that live on an embedded path are left to lead it."""
OPEN_S: Final = 60.0
CLOSE_S: Final = 5.0
RETRY_S: Final = 0.05
CLIENT: Final = "flowshare-spark-sink"
DEFAULT_PARTITIONS: Final = -1
"""As many as the broker's num.partitions."""
REQUEST_BYTES_MAX: Final = 1 << 30
"""One record may be as large as the topic takes: the broker decides."""

logger = logging.getLogger("flowshare.spark")

_lines: dict[tuple[int, SinkOptions], Line] = {}
_lock = threading.Lock()


class SinkError(RuntimeError):
    """Rows cannot be written; the text says what to do. The task fails, and Spark tries it again."""


@contextmanager
def line_of(options: SinkOptions) -> Iterator[Line]:
    """This process's line for these options, opened if need be; closed when the block raises.

    Raises: SinkError (the broker cannot be reached).
    """
    key = (os.getpid(), options)  # a fork has none of its parent's threads
    with _lock:
        line = _lines.get(key)
        if line is None:
            line = _lines[key] = Line(options, key)
        line.users += 1
    try:
        line.wait_open()
        yield line
    except BaseException:
        _forget(line)
        raise
    finally:
        with _lock:
            line.users -= 1
        line.rest()


def close_lines() -> None:
    """Close what is open, and wait for it; the next write opens anew."""
    with _lock:
        lines = list(_lines.values())
    for line in lines:
        _forget(line)
        line.join()


def _forget(line: Line) -> None:
    with _lock:
        if _lines.get(line.key) is line:
            del _lines[line.key]
    line.end()


class Line:
    """One open broker. Its methods are called from any thread, coroutines run on its own by `call`."""

    def __init__(self, options: SinkOptions, key: tuple[int, SinkOptions]) -> None:
        self.options = options
        self.key = key
        self.users = 0
        self._clock = LoopClock()
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = threading.Event()
        self._ended: asyncio.Event | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._hosts: tuple[str, ...] = ()
        self._secured: dict[str, Any] = {}
        self._admin: ShareAdmin | None = None
        self._closers: list[Callable[[], Awaitable[object]]] = []
        """What was opened, in order."""
        self._producer: AIOKafkaProducer | None = None
        self._coordinators: AIOKafkaClient | None = None
        self._thread = threading.Thread(target=self._main, name=CLIENT, daemon=True)
        self._thread.start()

    # --- from other threads -------------------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where its coroutines run."""
        assert self._loop is not None, "it is open"
        return self._loop

    def wait_open(self) -> None:
        """Raises: SinkError."""
        try:
            self._opened.result(OPEN_S)
        except TimeoutError:
            raise SinkError(f"{self.about} did not answer within {OPEN_S:g} s") from None
        except (BackendError, ClientError, OSError) as error:
            raise SinkError(f"{self.about} cannot be reached: {error}") from error

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the line's loop; it bounds its own waits. Raises: what it raises."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def rest(self) -> None:
        """Nobody uses it for now."""
        self._tell(self._rest)

    def end(self) -> None:
        """Close it, soon."""
        self._ending.set()
        self._tell(self._end)

    def join(self) -> None:
        """Wait until it is closed, for a bounded time."""
        self._thread.join(4 * CLOSE_S)

    @property
    def about(self) -> str:
        """The broker's URL, without a password."""
        return f"broker {parse_broker(self.options.broker)}"

    def _tell(self, function: Any) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(function)
            except RuntimeError:
                logger.debug("the line was closed already")

    # --- on its own ---------------------------------------------------------------------------------------------

    def _main(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._open()
        except BaseException as error:  # noqa: BLE001 - it is raised where the line was asked for
            self._opened.set_exception(error)
        else:
            self._opened.set_result(None)
            if not self._ending.is_set():
                await self._ended.wait()
        await self._close()

    async def _open(self) -> None:
        broker = parse_broker(self.options.broker)
        security = None
        if broker.kind == "embedded":
            backend = open_backend(broker, clock=self._clock, patience_s=PATIENCE_S)
            self._closers.append(backend.close)
            await backend.start()
            assert backend.kafka is not None, "whoever leads the path listens"
            self._hosts, security = backend.kafka.hosts, backend.kafka.security
        else:
            self._hosts, security = broker.hosts, broker.security()
        self._secured = {} if security is None else security.for_aiokafka()
        patience = LinkSettings(connect_timeout_s=min(self.options.delivery_timeout, OPEN_S / 2))
        cluster = Cluster(self._hosts, clock=self._clock, client_id=CLIENT, settings=patience, security=security)
        self._closers.append(cluster.close)
        await cluster.start()

        async def connect() -> Connection:
            return cluster.connect(CLIENT)

        self._admin = ShareAdmin(connect, clock=self._clock, client_id=CLIENT)
        self._closers.append(self._admin.close)

    async def _close(self) -> None:
        for close in reversed(self._closers):
            try:
                await asyncio.wait_for(close(), 2 * CLOSE_S)
            except Exception as error:  # noqa: BLE001 - it is given up, the others are closed
                logger.warning("%s was not left in order: %s: %s", self.about, type(error).__name__, error)

    def _rest(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        self._resting = self.loop.call_later(IDLE_S, self._idle)

    def _idle(self) -> None:
        with _lock:
            if self.users:
                return
            if _lines.get(self.key) is self:
                del _lines[self.key]
        self._end()

    def _end(self) -> None:
        assert self._ended is not None, "the loop runs"
        self._ended.set()

    # --- what it is for -----------------------------------------------------------------------------------------

    async def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has; it is made if the options allow it.

        Raises: SinkError (there is none), ClientError.
        """
        assert self._admin is not None, "it is open"
        deadline_s = self._clock.monotonic() + self.options.delivery_timeout
        made = False
        while True:
            try:
                found = await self._admin.describe_topic(topic)
                if found.partitions:
                    return found.partitions
                problem: ClientError = ServerError(ErrorCode.LEADER_NOT_AVAILABLE, about=f"topic {topic}")
            except ServerError as error:
                missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not missing and not error.retriable:
                    raise
                if missing and not made:
                    await self._make(topic)
                    made = True
                problem = error
            if self._clock.monotonic() >= deadline_s:
                raise problem
            await self._clock.sleep(RETRY_S)

    async def _make(self, topic: str) -> None:
        assert self._admin is not None, "it is open"
        if not self.options.create_topics:
            raise SinkError(
                f"there is no topic {topic!r} at {self.about}: create it with `flowshare topics create {topic}`, or "
                "check its name (`flowshare topics ls`)"
            )
        await self._admin.create_topic(topic, partitions=DEFAULT_PARTITIONS, exist_ok=True)
        logger.info("topic=%s was missing and is made", topic)

    async def producer(self) -> AIOKafkaProducer:
        """The idempotent producer of all tasks that write at least once. Raises: ClientError."""
        if self._producer is None:
            producer = await self.start_producer({})
            self._closers.append(lambda: stop(producer))
            self._producer = producer
        return self._producer

    async def start_producer(self, identity: dict[str, Any]) -> AIOKafkaProducer:
        """A new producer, which the caller stops. With a transactional id others that have it are fenced.

        Raises: ClientError.
        """
        from aiokafka import AIOKafkaProducer

        options = self.options
        producer: AIOKafkaProducer = AIOKafkaProducer(
            bootstrap_servers=",".join(self._hosts),
            client_id=CLIENT,
            acks="all",
            enable_idempotence=True,
            compression_type=None if options.compression == "none" else options.compression,
            max_batch_size=options.batch_bytes,
            max_request_size=REQUEST_BYTES_MAX,
            **identity,
            **self._timeouts(),
            **self._secured,
        )
        try:
            await asyncio.wait_for(producer.start(), options.delivery_timeout)
        except BaseException as error:
            await stop(producer)
            if isinstance(error, Exception):
                raise problem_of(error, f"{self.about}, producer id") from error
            raise
        return producer

    async def coordinators(self) -> AIOKafkaClient:
        """A client for what is asked of coordinators. Raises: ClientError."""
        if self._coordinators is None:
            from aiokafka.client import AIOKafkaClient

            client = AIOKafkaClient(
                bootstrap_servers=",".join(self._hosts), client_id=CLIENT, **self._timeouts(), **self._secured
            )
            self._closers.append(client.close)
            try:
                await client.bootstrap()
            except Exception as error:
                raise problem_of(error, self.about) from error
            self._coordinators = client
        return self._coordinators

    def _timeouts(self) -> dict[str, int]:
        return {"request_timeout_ms": round(self.options.delivery_timeout * 1000)}


async def stop(producer: AIOKafkaProducer) -> None:
    """Close a producer; what it has not sent is given up, where aiokafka would wait for ever."""
    try:
        await asyncio.wait_for(producer.stop(), CLOSE_S)
    except Exception as error:  # noqa: BLE001 - whoever waited for its records has been told
        logger.info("a producer was not left in order: %s: %s", type(error).__name__, error)
    await asyncio.wait_for(producer.client.close(), CLOSE_S)  # also what was opened meanwhile
