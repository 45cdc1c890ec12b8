"""Turns of a share session with a broker that takes one request at a time (Kafka's do).

A session's epoch counts fetches and acknowledgements together, and a broker fails a parked fetch whose epoch is no
longer the last one: so nothing is sent beside a fetch. Acknowledgements ride on the next fetch; when none comes at
once they go by themselves. Renewals cannot ride on a fetch that wants records (KIP-1222) and go first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from flowshare.client.ranges import AckResult
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.messages import AckBatch, TopicPartition

Acks = Mapping["TopicPartition", Sequence["AckBatch"]]


class Waiting:
    """Acknowledgements of one call, and where their outcome goes."""

    __slots__ = ("acks", "outcome", "renewal")

    def __init__(self, acks: Acks) -> None:
        self.acks = acks
        self.renewal = is_renewal(acks)
        self.outcome: asyncio.Future[list[AckResult]] = asyncio.get_running_loop().create_future()

    def settle(self, results: list[AckResult]) -> None:
        """Tell the outcome, if somebody still waits for it."""
        if not self.outcome.done():
            self.outcome.set_result(results)


def is_renewal(acks: Acks) -> bool:
    """Whether some of it is RENEW: then the whole request is one."""
    return any(AcknowledgeType.RENEW in batch.types for batches in acks.values() for batch in batches)


class Turns:
    """Who may send now. `send`: sends acknowledgements by themselves and settles them, cancelled or not. `ride_s`:
    how long they wait for a fetch to ride on."""

    def __init__(self, clock: Clock, send: Callable[[list[Waiting]], Awaitable[None]], *, ride_s: float) -> None:
        self._clock = clock
        self._send = send
        self._ride_s = ride_s
        self._pile: list[Waiting] = []
        self._busy = False
        self._free = asyncio.Event()
        self._free.set()
        self._sender: asyncio.Task[None] | None = None
        self._due: TimerHandle | None = None

    async def take(self, *, riding: bool) -> list[Waiting]:
        """Wait for the turn and have it until `done`; with `riding` the acknowledgements that go with a fetch."""
        while self._busy or (riding and self._urgent):
            await self._wait()
        self._busy = True
        self._free.clear()
        return self._taken(renewal=False) if riding else []

    def done(self) -> None:
        """The turn is over."""
        self._busy = False
        self._free.set()
        self._see_to_it()

    async def acknowledge(self, acks: Acks) -> list[AckResult]:
        """Send with the next fetch, or soon without one; the outcome."""
        waiting = Waiting(acks)
        self._pile.append(waiting)
        self._see_to_it()
        return await waiting.outcome

    async def stop(self) -> list[Waiting]:
        """Nothing is sent any more; what waited in vain, to be settled by the caller."""
        left, self._pile = self._pile, []
        self._no_timer()
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        return left

    @property
    def _urgent(self) -> bool:
        return any(waiting.renewal for waiting in self._pile)

    async def _wait(self) -> None:
        if self._busy:
            await self._free.wait()
        else:  # the sender is about to send what is urgent
            await self._clock.sleep(0)

    def _see_to_it(self) -> None:
        """Nobody has the turn, or it will end: what waits goes with the next fetch, or by itself after a while."""
        if self._busy or not self._pile or self._sender is not None:
            return
        if self._urgent or not self._ride_s:
            self._send_alone()
        elif self._due is None:
            self._due = self._clock.call_later(self._ride_s, self._send_alone)

    def _send_alone(self) -> None:
        self._no_timer()
        if self._pile and self._sender is None:
            self._sender = asyncio.create_task(self._send_pile(), name="acknowledgements")

    def _no_timer(self) -> None:
        due, self._due = self._due, None
        if due is not None:
            due.cancel()

    async def _send_pile(self) -> None:
        if self._busy:
            self._sender = None  # who has the turn sees to the pile at its end
            return
        taken = self._taken(renewal=True) or self._taken(renewal=False)
        self._busy = True
        self._free.clear()
        try:
            await self._send(taken)
        finally:
            self._sender = None
            self.done()

    def _taken(self, *, renewal: bool) -> list[Waiting]:
        """Calls that go together: of one kind, no two for one partition, as a partition is refused as a whole."""
        taken: list[Waiting] = []
        partitions: set[TopicPartition] = set()
        for waiting in self._pile:
            if waiting.renewal is renewal and partitions.isdisjoint(waiting.acks):
                taken.append(waiting)
            partitions.update(waiting.acks)
        self._pile = [waiting for waiting in self._pile if waiting not in taken]
        if not self._pile:
            self._no_timer()
        return taken
