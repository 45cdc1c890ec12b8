"""Faust's transport with what it lacks here: missing topics are made, and a rebalance does not crash the worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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


class Transport(aiokafka.Transport):
    """aiokafka, as Faust uses it."""

    Consumer = Consumer
    Conductor = Conductor
