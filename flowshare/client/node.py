"""One broker as one member sees it: a connection, a share session, and what is held over it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from flowshare.client.holding import Holding
from flowshare.client.session import FetchSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flowshare.client.custody import Custody
    from flowshare.client.link import Link
    from flowshare.clock import Clock
    from flowshare.protocol.messages import AckBatch, TopicPartition
    from flowshare.share.types import AcquiredRange

LOCAL: Final = -2
"""Id of the one node that there is without a cluster: the server in this process."""
BUSY_WAIT_LEAST_S: Final = 0.01
BUSY_WAIT_MOST_S: Final = 0.08
"""How long a fetch may be parked while records are in hand and their acknowledgements would wait for it."""


class Generations:
    """Numbers for connections: each is given out once, so that it says over which connection a record came."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = itertools.count()

    def next(self) -> int:
        """A new one."""
        return next(self._numbers)


class Node:
    """One broker. `wanted`: the member's partitions that it leads. `moved`: those that it led over this connection
    and leads no longer, so that what was acquired of them is in other hands. `interrupted`: the connection ended, and
    whether what was acquired over it is lost will be known with the next one (`Nodes.opened`)."""

    def __init__(self, node_id: int, generations: Generations, clock: Clock, *, ride_s: float) -> None:
        self.node_id = node_id
        self.ride_s = ride_s
        self.session = FetchSession()
        self.wanted: frozenset[TopicPartition] = frozenset()
        self.moved: set[TopicPartition] = set()
        self.link: Link  # set by who makes the node: a link tells its node of losses
        self.generation = generations.next()
        self._generations = generations
        self._clock = clock
        self._held = 0
        self._held_until_s = 0.0
        self._quiet = 0
        self.holding = Holding()
        self.may_resume = False
        self.interrupted = False
        self.heard_s = 0.0
        """When its last answer came."""

    def lost(self) -> None:
        """The connection ended: its session is gone, and what was acquired over it is given to others.

        Unless the server is one of flowshare's own, whose successor may have kept it (`may_resume`).
        """
        self.session.reset()
        self.interrupted = self.may_resume and bool(self.holding)
        if not self.interrupted:
            self.give_up()

    def give_up(self) -> None:
        """What was acquired is given to others."""
        self.interrupted = False
        self.moved.clear()
        self.holding.clear()
        self._held = 0
        self.generation = self._generations.next()

    def resume(self) -> None:
        """What was acquired is still this member's, over another connection."""
        self.interrupted = False

    def lead(self, wanted: frozenset[TopicPartition], led_elsewhere: Iterable[TopicPartition]) -> None:
        """What it leads now of the member's partitions, and which ones others lead."""
        self.moved |= self.session.partitions.intersection(led_elsewhere)
        self.moved -= wanted
        self.wanted = wanted

    @property
    def beside(self) -> bool:
        """Whether this server takes acknowledgements while a fetch is parked (flowshare's own do)."""
        return bool(getattr(self.link.current, "is_flowshare", True))

    # --- what is in hand, for brokers where acknowledgements wait for the fetch ---------------------------------

    def acquired(
        self, tp: TopicPartition, ranges: Iterable[AcquiredRange], deadline_s: float, generation: int
    ) -> int | None:
        """Records came into hand, asked for over the connection of this number: the number under which they are held.

        None: they are given to others by now (in a fleet, `FleetNode`).
        """
        for first, last, _ in ranges:
            self._held += last - first + 1
            self.holding.acquired(tp, first, last)
        self._held_until_s = max(self._held_until_s, deadline_s)
        self._quiet = 0
        return generation

    def acknowledged(
        self, tp: TopicPartition, batches: Iterable[AckBatch], *, renewal: bool, deadline_s: float
    ) -> None:
        """The broker confirmed: out of hand, or (renewal) longer in hand."""
        if renewal:
            self._held_until_s = max(self._held_until_s, deadline_s)
            return
        for batch in batches:
            self._held -= batch.last - batch.first + 1
            self.holding.ended(tp, batch.first, batch.last)
        self._held = max(0, self._held)

    def not_ours(self, tp: TopicPartition, batches: Iterable[AckBatch]) -> None:
        """The broker says that this member does not hold it, or not all of it."""
        for batch in batches:
            self.holding.ended(tp, batch.first, batch.last)

    def wait_s(self, asked_s: float, *, with_acks: bool) -> float:
        """How long the next fetch may be parked: briefly while an acknowledgement may come or goes with it."""
        if self.beside or asked_s <= 0:
            return asked_s
        in_hand = self._held > 0 and self._clock.monotonic() < self._held_until_s
        if not in_hand and not with_acks:
            return asked_s
        wait_s = min(BUSY_WAIT_MOST_S, BUSY_WAIT_LEAST_S * 2.0 ** min(self._quiet, 10))
        self._quiet = 0 if with_acks else self._quiet + 1
        return min(asked_s, wait_s)


class FleetNode(Node):
    """One worker. What is held belongs to the member, not to the connection."""

    def __init__(self, node_id: int, generations: Generations, clock: Clock, custody: Custody) -> None:
        super().__init__(node_id, generations, clock, ride_s=0.0)
        self._custody = custody
        self.holding = custody.holding

    def lost(self) -> None:
        """The connection ended: its session is gone; what is held is asked for again."""
        self.session.reset()
        self._custody.cut_off(self.node_id, self._clock.monotonic())

    def acquired(
        self, tp: TopicPartition, ranges: Iterable[AcquiredRange], deadline_s: float, generation: int
    ) -> int | None:
        """As `Node.acquired`; None when a leader that followed was told of what is held without this."""
        del deadline_s, generation
        return self._custody.took(self.node_id, tp, ranges)
