"""Faust's transport with three additions: missing topics are made, a rebalance is no crash, a reply holds up
nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from faust.agents.models import ReqRepResponse
from faust.agents.replies import ReplyConsumer as FaustReplyConsumer
from faust.models import maybe_model
from faust.transport.conductor import Conductor as FaustConductor
from faust.transport.drivers import aiokafka

if TYPE_CHECKING:
    from flowshare.agents.faust.app import FaustApp

_LOOK_S: Final = 0.02
"""Seconds between two checks if all streams are done."""


class TransportConsumer(aiokafka.Consumer):
    """Faust's consumer, with other rules while partitions move.

    A record that was fetched just before its partition went elsewhere is no error. And before a new subscription,
    records being handled are finished and committed: aiokafka then forgets its assignment at once, so that Faust, told
    of the rebalance, believes that there is nothing to finish; table and offsets would diverge.
    """

    app: FaustApp

    def __init__(self, transport: Any, callback: Any, *args: Any, **options: Any) -> None:
        super().__init__(transport, callback, *args, **options)
        self._hand_over = callback
        self._last: dict[Any, int] = {}
        """Last offset given to the streams, of each partition; none after a seek."""
        self.callback = self._hand_over_once

    async def _hand_over_once(self, message: Any) -> None:
        """Give a record to the streams, unless it was the last one they were given.

        If a fetch was on its way at a seek, its records come twice. Faust drops the records below the last one that it
        had read, but not that record itself, as it keeps the last offset read and the next one to read in one place.
        """
        if self._last.get(message.tp) == message.offset:
            return
        self._last[message.tp] = message.offset
        await self._hand_over(message)

    async def perform_seek(self) -> None:
        """Read on from the committed offsets: records that the streams' queues had lost come again."""
        self._last.clear()
        await super().perform_seek()
        self._last.clear()

    async def seek(self, partition: Any, offset: int) -> None:
        """Read on from an offset."""
        self._last.pop(partition, None)
        await super().seek(partition, offset)

    async def seek_wait(self, partitions: Any) -> None:
        """Read on from offsets: a table's recovery, which may be begun again before it has ended."""
        self._last.clear()
        await super().seek_wait(partitions)
        self._last.clear()

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        """Finish and commit records being handled, as partitions go, while they are still known.

        Faust first forgets which records of those partitions were handled since the last commit, and then commits the
        rest: up to `broker_commit_interval` of records ran again in the process that had the partitions next.
        """
        if not self.app.should_stop and self.assignment():
            self.stop_flow()
            self.app.flow_control.suspend()
            self.pause_partitions(self.assignment())
            self.app.flow_control.clear()
            await self.wait_empty()
        await super().on_partitions_revoked(revoked)

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics from the next rebalance on."""
        assignment = self.assignment()
        if assignment:
            await self.app._on_partitions_revoked(assignment)  # noqa: SLF001 - Faust's name
        await super().subscribe(topics)

    def resume_partitions(self, tps: Any) -> None:
        """Fetch these again; while partitions move, no record of them reaches the streams before Faust resumes their
        flow.

        Resuming clears the streams' queues: records that had come too early would be lost until the next rebalance.
        """
        if self.app.rebalancing:
            self.app.flow_control.suspend()
        super().resume_partitions(tps)

    def ack(self, message: Any) -> bool:
        """Count a record as handled, unless no stream took it: when partitions move, streams skip the records they
        still get.

        Faust counts skipped records as handled, too, and commits them.
        """
        current = message.generation_id == self.app.consumer_generation_id and self.app.flow_control.is_active()
        return bool((current or message.tracked) and super().ack(message))

    async def wait_empty(self) -> None:
        """Wait until no stream handles a record, then commit.

        Faust also waits for records that were taken out of a stream's queue unhandled: at times for ever.
        """
        while not self.should_stop and self.app.streams.busy:
            await self.commit()
            await self.sleep(_LOOK_S)
        while await self.maybe_wait_for_commit_to_finish():
            pass  # an earlier commit: calls meanwhile commit nothing
        await self.commit_and_end_transactions()

    def highwater(self, tp: Any) -> int:
        """Return the end of a partition, for Faust's monitor; the last known one when the partition went elsewhere
        meanwhile."""
        try:
            return int(super().highwater(tp) or 0)
        except AssertionError:  # aiokafka's way to say that it is not assigned
            return int(self.app.monitor.tp_end_offsets.get(tp, 0))


class TransportProducer(aiokafka.Producer):
    """Faust's producer, except that aiokafka's client is told every topic that is sent to.

    The client begins with all existing topics; the first new topic restricts it to those it was told, and records
    queued for the others stay queued, which Faust's flush before a commit waits for.
    """

    async def send(self, topic: str, *args: Any, transactional_id: str | None = None, **options: Any) -> Any:
        """Hand a record over; the returned future gets the result."""
        producer = self._transaction_producers.get(transactional_id) if transactional_id else self._producer
        if producer is not None:
            await producer.client.add_topic(topic)
        return await super().send(topic, *args, transactional_id=transactional_id, **options)


class Conductor(FaustConductor):
    """Faust's conductor, except that it makes the topics of agents and streams; Faust's leaves that to the broker.

    A later topic (`app.stream` in a task, the replies of the first `ask`) is read after five seconds, in which others
    may follow; Faust waits for 45.
    """

    _resubscribe_sleep_lock_seconds = 5.0

    async def _update_indices(self) -> Iterable[str]:
        if self.app.conf.topic_allow_declare:
            for topic in [one for one in self._topics if not one.internal and one.topics]:
                await topic.maybe_declare()
        return await super()._update_indices()

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class ReplyConsumer(FaustReplyConsumer):
    """Faust's reply consumer, whose reply topic counts replies as unhandled that it gave to a channel that nobody
    reads.

    Every later rebalance, and the end, would wait for those. Here replies are not committed; old ones that come again
    wake nobody.
    """

    def _reply_topic(self, topic: str) -> Any:
        conf = self.app.conf
        return self.app.topic(
            topic,
            partitions=1,
            replicas=conf.topic_replication_factor,
            deleting=True,
            retention=conf.reply_expires,
            value_type=ReqRepResponse,
            acks=False,
        )

    async def _drain_replies(self, channel: Any) -> None:
        async for reply in channel.stream():
            for promise in tuple(self._waiting.pop(reply.correlation_id, ())):
                if not promise.done():
                    promise.fulfill(reply.correlation_id, maybe_model(reply.value))


class Transport(aiokafka.Transport):
    """aiokafka, as Faust uses it."""

    Consumer = TransportConsumer
    Producer = TransportProducer
    Conductor = Conductor
