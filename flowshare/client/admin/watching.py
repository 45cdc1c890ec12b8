"""`ShareWatch` keeps the state of all share-partitions up to date from the changes that servers report, for
displays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError, Unsupported, check
from flowshare.protocol import messages
from flowshare.protocol.messages.browse import ShareChangesRequest, ShareChangesResponse, Standing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Ask = Callable[[messages.Request[ShareChangesResponse]], Awaitable[ShareChangesResponse]]

Where = tuple[str, str, int]
"""Group, topic and partition of a share-partition."""
NODE_S: Final = 2.0
"""The time limit for a worker's answer, in seconds; all workers are asked at the same time."""
WHOLE_EVERY: Final = 60
"""One of so many looks asks for all rows. The right to describe a row is checked when the row is sent: a right that was
given or taken since would show with the row's next change only."""
ANY = -1
"""The node id for any server: a server without a fleet, or one of a fleet's workers."""


class ShareWatch:
    """Made by `ShareAdmin.watch`; use it on one event loop."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._nodes: tuple[int, ...] = ()
        self._by_node: dict[int, dict[Where, Standing]] = {}
        self._seen: dict[int, tuple[str, int]] = {}
        self._looks = 0

    async def look(self) -> dict[Where, Standing]:
        """Return the state of each share-partition that may be described.

        A worker that does not answer keeps its last rows as long as it is in the fleet; a new leader's row replaces
        them.
        Raises: ClientError, OSError (no server answers); Unsupported (Kafka's brokers have no such call: ask for the
        offsets of each group).
        """
        if self._looks % WHOLE_EVERY == 0:
            self._seen.clear()
        self._looks += 1
        problem: Exception | None = None
        left, asked, answered = set(self._nodes) or {ANY}, set[int](), set[int]()
        while left:
            asked |= left
            for answer in await asyncio.gather(*map(self._asked, sorted(left))):
                if isinstance(answer, Exception):
                    problem = answer
                    continue
                self._take(answer)
                answered.add(answer.node)
                self._nodes = answer.nodes
            left = set(self._nodes) - answered - asked
        if not answered:
            self._nodes = ()  # whoever there is now
            assert problem is not None
            raise problem
        for gone in self._by_node.keys() - {*self._nodes, *answered}:
            del self._by_node[gone]
            self._seen.pop(gone, None)
        return self._together()

    def led(self) -> dict[int, int]:
        """Return the number of share-partitions that each node has reported, by node id (−1: a server without a
        fleet)."""
        return {node: len(rows) for node, rows in self._by_node.items()}

    async def _asked(self, node: int) -> ShareChangesResponse | Exception:
        """Return a node's answer, or the error instead of an answer in time. Raises: Unsupported."""
        try:
            async with asyncio.timeout(NODE_S):
                return await self._of(node)
        except Unsupported:
            raise
        except TimeoutError:
            return TimeoutError(f"{'it' if node == ANY else f'worker {node}'} has not answered within {NODE_S:g} s")
        except (ClientError, OSError) as error:
            return error

    async def _of(self, node: int) -> ShareChangesResponse:
        server, version = self._seen.get(node, ("", 0))
        answer = await self._ask(ShareChangesRequest(node=node, server=server, since=version))
        check(answer.error, answer.message, "looking at all share-partitions")
        return answer

    def _take(self, answer: ShareChangesResponse) -> None:
        rows = self._by_node.setdefault(answer.node, {})
        if answer.whole:
            rows.clear()
        for where in answer.gone:
            rows.pop(where, None)
        rows.update({(row.group_id, row.topic, row.partition): row for row in answer.rows})
        self._seen[answer.node] = answer.server, answer.version

    def _together(self) -> dict[Where, Standing]:
        """Merge the rows of all nodes. Two nodes report a share-partition while it moves; the row that is further on
        wins."""
        if len(self._by_node) == 1:
            return dict(next(iter(self._by_node.values())))
        found: dict[Where, Standing] = {}
        for rows in self._by_node.values():
            for where, row in rows.items():
                other = found.get(where)
                if other is None or (row.start_offset, -row.lag) > (other.start_offset, -other.lag):
                    found[where] = row
        return found
