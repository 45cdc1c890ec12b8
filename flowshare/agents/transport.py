"""Faust's transport with what it lacks: missing topics are made, a rebalance is no crash, a reply holds nothing up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from faust.agents.models import ReqRepResponse
from faust.agents.replies import ReplyConsumer as FaustReplyConsumer
from faust.models import maybe_model
from faust.transport.conductor import Conductor as FaustConductor
from faust.transport.drivers import aiokafka


class Consumer(aiokafka.Consumer):
    """As Faust's, except that a record that was fetched just before its partition went elsewhere is no error."""

    def highwater(self, tp: Any) -> int:
        """The end of a partition, for Faust's monitor; as last known when the partition went elsewhere meanwhile."""
        try:
            return int(super().highwater(tp) or 0)
        except AssertionError:  # aiokafka's way to say that it is not assigned
            return int(self.app.monitor.tp_end_offsets.get(tp, 0))


class Conductor(FaustConductor):
    """As Faust's, which leaves it to the broker to make the topics of agents and streams, or to lack them.

    A topic that comes later (`app.stream` in a task, the replies of the first `ask`) is read after five seconds, in
    which others may follow; Faust waits for 45.
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
    """As Faust's, whose reply topic counts as unhandled what it gave to a channel that nobody reads.

    Every later rebalance, and the end, would wait for that. Here replies are not committed; old ones that come again
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

    Consumer = Consumer
    Conductor = Conductor
