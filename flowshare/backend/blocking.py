"""A share consumer for scripts, notebooks and Spark: no coroutines, a thread of its own underneath.

    with BlockingShareConsumer("kafka://localhost:9092", ["orders"], group_id="billing") as consumer:
        for record in consumer:
            ...

The rules are those of `ShareConsumer` (KafkaShareConsumer's): the next poll accepts the records of the last one, unless
the acknowledgement mode is explicit. Records not accepted when the consumer closes or the process dies run again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from flowshare.backend.broker import CLIENT_ID, ShareConsumer
from flowshare.client.errors import Closed
from flowshare.clock import new_loop
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from types import TracebackType

    from flowshare.backend.url import BrokerUrl
    from flowshare.client.consumer.backlog import Decoder
    from flowshare.client.consumer.commits import Outcomes
    from flowshare.client.consumer.inflight import ShareRecord
    from flowshare.client.consumer.partitions import PartitionInfo
    from flowshare.client.errors import RecordError
    from flowshare.client.producer.outputs import Outputs
    from flowshare.client.settings import ConsumerSettings

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

END_S: Final = 5.0
"""Seconds beyond the limit of `close` that the consumer's thread gets to end."""


class BlockingShareConsumer(Generic[K, V]):
    """A member of a share group for code that blocks. One thread uses it; only `wakeup` may come from others.

    Usable as a context manager. Records keep their locks only for the group's lock duration (30 s): poll less at a
    time, or renew (explicit mode), when the work takes longer.
    """

    @overload
    def __init__(
        self: BlockingShareConsumer[bytes | None, bytes | None],
        broker: str | BrokerUrl,
        topics: Sequence[str],
        *,
        group_id: str,
        settings: ConsumerSettings | None = None,
        client_id: str = CLIENT_ID,
    ) -> None: ...
    @overload
    def __init__(
        self,
        broker: str | BrokerUrl,
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
        broker: str | BrokerUrl,
        topics: Sequence[str],
        *,
        group_id: str,
        settings: ConsumerSettings | None = None,
        client_id: str = CLIENT_ID,
        **decoders: Any,
    ) -> None:
        """Open the broker, on the consumer's thread; the first poll joins the group.

        Decoders turn bytes (or None) into keys and values.
        Raises: BadBrokerUrl, BackendError, ValueError (no topic, no group), ClientError.
        """
        self._consumer: ShareConsumer[K, V] | None = None
        self._ready: deque[ShareRecord[K, V]] = deque()
        self._unfinished: concurrent.futures.Future[list[ShareRecord[K, V]]] | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        make = partial(
            ShareConsumer, broker, topics, group_id=group_id, settings=settings, client_id=client_id, **decoders
        )
        self._thread = threading.Thread(target=self._main, args=(make,), name=f"flowshare {client_id}", daemon=True)
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self._closed = True
            self._thread.join(END_S)
            raise

    # --- polling ------------------------------------------------------------------------------------------------

    def poll(self, timeout: float) -> list[ShareRecord[K, V]]:
        """Return records, or an empty list when none came within `timeout` seconds. Raises: as `ShareConsumer.poll`.

        A poll that was interrupted (Ctrl-C) goes on in the background, and the next poll returns its records.
        """
        if self._ready:
            records = list(self._ready)
            self._ready.clear()
            return records
        return self._finish(self._using().poll(timeout))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ShareRecord[K, V]:
        """Wait for the next record without limit; iteration ends when the consumer is closed. `poll` is faster for
        many."""
        if self._closed:
            raise StopIteration
        if not self._ready:
            self._ready += self._finish(self._next())
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def wakeup(self) -> None:
        """Make the waiting poll, or else the next one, raise `Wakeup`. May be called from any thread."""
        self._using().wakeup()

    # --- acknowledging ------------------------------------------------------------------------------------------

    def acknowledge(self, record: ShareRecord[K, V], type_: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Settle a record (explicit mode); sent with the next poll or commit. Raises: IllegalState."""
        consumer = self._using()

        async def acknowledge() -> None:
            consumer.acknowledge(record, type_)

        self._call(acknowledge())

    def release(self, record: ShareRecord[K, V] | RecordError, *, delay: float = 0.0) -> None:
        """Release a record (explicit mode): it is delivered again, not before `delay` seconds; as
        `ShareConsumer.release`."""
        consumer = self._using()

        async def release() -> None:
            consumer.release(record, delay=delay)

        self._call(release())

    def settle(
        self,
        records: Sequence[ShareRecord[K, V] | RecordError],
        outputs: Outputs,
        *,
        ordered: bool = False,
        timeout: float | None = None,
    ) -> bool:
        """Accept records of one partition and write outputs, in one step or not at all (explicit mode); as
        `ShareConsumer.settle`."""
        return self._call(self._using().settle(records, outputs, ordered=ordered, timeout=timeout))

    def commit(self, timeout: float | None = None) -> Outcomes:
        """Send acknowledgements (implicit mode: accept the records in hand) and wait; as `commit_sync`."""
        return self._call(self._using().commit_sync(timeout))

    # --- what is known ------------------------------------------------------------------------------------------

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionInfo]:
        """Return the partitions of a topic with their leaders and replicas; as `ShareConsumer.partitions_for`."""
        return self._call(self._using().partitions_for(topic, timeout))

    def metrics(self) -> dict[str, float]:
        """Return the counters of this consumer; as `ShareConsumer.metrics`."""
        consumer = self._using()

        async def metrics() -> dict[str, float]:
            return consumer.metrics()

        return self._call(metrics())

    # --- closing ------------------------------------------------------------------------------------------------

    def close(self, timeout: float = 30.0) -> Outcomes:
        """Send acknowledgements, release other records, leave the group, close the broker: within `timeout` seconds.

        Returns the outcomes of the acknowledgements, as `commit`. A second call does nothing. Errors on the way are
        raised when all is closed.
        """
        if self._closed:
            return {}
        consumer = self._using()
        self._closed = True
        try:
            return self._submit(consumer.close(timeout)).result(timeout + END_S)
        finally:
            assert self._loop is not None
            assert self._ending is not None
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the thread ---------------------------------------------------------------------------------------------

    def _main(self, make: Callable[[], ShareConsumer[K, V]]) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._serve(make))

    async def _serve(self, make: Callable[[], ShareConsumer[K, V]]) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as opened:
            try:
                self._consumer = await opened.enter_async_context(make())
            except BaseException as error:  # noqa: BLE001 - it is raised where the consumer was asked for
                self._opened.set_exception(error)
                return
            self._opened.set_result(None)
            if not self._closed:  # the caller may have been interrupted
                await self._ending.wait()

    async def _next(self) -> list[ShareRecord[K, V]]:
        try:
            return [await anext(self._using())]
        except StopAsyncIteration:
            return []

    def _using(self) -> ShareConsumer[K, V]:
        if self._closed or self._consumer is None:
            raise Closed("the consumer was closed")
        return self._consumer

    def _submit(self, work: Coroutine[Any, Any, R]) -> concurrent.futures.Future[R]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _call(self, work: Coroutine[Any, Any, R]) -> R:
        return self._submit(work).result()

    def _finish(self, work: Coroutine[Any, Any, list[ShareRecord[K, V]]]) -> list[ShareRecord[K, V]]:
        """Wait for `work` and return its records. If an earlier poll was interrupted, return that poll's records
        instead."""
        if self._unfinished is None:
            self._unfinished = self._submit(work)
        else:
            work.close()
        unfinished = self._unfinished
        concurrent.futures.wait([unfinished])  # after an interrupt the next poll takes it
        self._unfinished = None
        return unfinished.result()
