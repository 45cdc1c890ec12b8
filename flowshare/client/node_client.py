"""What speaks to one node for one member: its fetches, one at a time, and its acknowledgements."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flowshare.client.acknowledging import Acknowledger
from flowshare.client.fetching import Fetcher, Moved, Plan

if TYPE_CHECKING:
    from flowshare.client.arrivals import Arrivals
    from flowshare.client.membership import Membership
    from flowshare.client.node import Node
    from flowshare.clock import Clock


class NodeClient:
    """What speaks to one node. One task does all its fetches: a task for each would cost a lone record 50 µs."""

    __slots__ = (
        "_arrivals",
        "_asked",
        "_clock",
        "_fetching",
        "_idle",
        "_plan",
        "acknowledger",
        "asked_s",
        "fetcher",
        "node",
    )

    def __init__(self, node: Node, membership: Membership, clock: Clock, on_moved: Moved, arrivals: Arrivals) -> None:
        """arrivals: where what is fetched goes."""
        self.node = node
        self.fetcher = Fetcher(node, membership, clock=clock, on_moved=on_moved)
        self.acknowledger = Acknowledger(node, membership, self.fetcher, clock=clock, on_moved=on_moved)
        self._arrivals = arrivals
        self._clock = clock
        self.asked_s = 0.0
        """When it was last told to fetch."""
        self._plan: Plan | None = None
        self._asked: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a fetch is under way."""
        return self._plan is not None

    def ask(self, plan: Plan) -> None:
        """Fetch; the request leaves with the loop's next turn."""
        self._plan = plan
        self.asked_s = self._clock.monotonic()
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), name=f"fetch from node {self.node.node_id}")
        elif self._asked is not None and not self._asked.done():
            self._asked.set_result(None)

    def silent(self, now_s: float, limit_s: float) -> bool:
        """Whether answers are overdue by this long, and nothing at all was heard meanwhile."""
        waits_s = limit_s
        if self._plan is not None:
            waits_s += 2 * self._plan.max_wait_s
            since_s = max(self.asked_s, self.node.heard_s)
        elif self.acknowledger.busy:
            since_s = max(self.acknowledger.asked_s, self.node.heard_s)
        else:
            return False
        return self.node.link.current is not None and now_s - since_s > waits_s

    async def wait_idle(self) -> None:
        """Wait until no fetch is under way."""
        while self.busy:
            self._idle.clear()
            await self._idle.wait()

    async def stop(self) -> None:
        """End the task, and with it the fetch under way."""
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
        self._answered()

    async def _fetch(self) -> None:
        while True:
            while self._plan is None:
                self._asked = asyncio.get_running_loop().create_future()
                await self._asked
            try:
                fetched = await self.acknowledger.fetch(self._plan)
            except Exception as error:  # noqa: BLE001 - whoever takes what was fetched is told
                self._answered()
                self._arrivals.fail(error)
            else:
                self._answered()
                self._arrivals.put(fetched)

    def _answered(self) -> None:
        self._plan = None
        self._idle.set()
