"""Other fleets on the same Kafka: a group id belongs to one fleet, or its records would be handled once in each.

Kafka does not tell a group's fleet: a mark there, an empty consumer group with its name, would expire within a week and
stand in the way of a group on the brokers. So before a group is made, the workers of the other fleets are asked, found
by their slot groups. Fleets without workers, or whose workers do not answer this one, count as not having it; nothing
is lost then, both fleets handle all records.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError, check
from flowshare.core_errors import GroupIdNotFound
from flowshare.fleet.directory import WorkerAddress
from flowshare.fleet.inspection import describe_fleet, fleets_of
from flowshare.fleet.messages import HasGroupRequest
from flowshare.slots.placement import group_slot

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.peers import Dial

LIMIT_S: Final = 2.0
"""Time, in s, that a new group's first member waits for the answers of other fleets."""
KEPT_S: Final = 30.0
"""Time, in s, for which the list of fleets is remembered."""

logger = logging.getLogger(__name__)


class OtherFleets:
    """All fleets on a Kafka but `fleet`. kafka: a connection to it. dial: opens connections to workers."""

    def __init__(self, kafka: Any, fleet: str, *, dial: Dial, clock: Clock) -> None:
        self._kafka = kafka
        self._fleet = fleet
        self._dial = dial
        self._clock = clock
        self._names: frozenset[str] = frozenset()
        self._looked_s = -KEPT_S

    async def check(self, group_id: str) -> None:
        """Check that no other fleet has a group; call before it is made. Raises GroupIdNotFound (another fleet has
        it)."""
        try:
            owner = await self._clock.wait_for(self._owner(group_id), LIMIT_S)
        except (OSError, ClientError) as error:
            logger.debug("whether other fleets have group %s is not known: %s", group_id, error)
            return
        if owner is not None:
            raise GroupIdNotFound(
                f"group {group_id!r} belongs to the fleet {owner!r} on this Kafka: start its workers with "
                f"&fleet={owner} in the broker's URL, or use another group id"
            )

    async def _owner(self, group_id: str) -> str | None:
        """Return the other fleet that has a group; None: none has. Raises OSError, ClientError (the fleets cannot be
        listed)."""
        names = await self._listed()
        answers = await asyncio.gather(*(self._has(name, group_id) for name in names), return_exceptions=True)
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, BaseException):
                logger.debug("fleet %s does not say whether it has group %s: %s", name, group_id, answer)
            elif answer:
                return name
        return None

    async def _listed(self) -> list[str]:
        now_s = self._clock.monotonic()
        if now_s - self._looked_s >= KEPT_S:
            self._names = frozenset(await fleets_of(self._kafka))
            self._looked_s = now_s
        return sorted(self._names - {self._fleet})

    async def _has(self, fleet: str, group_id: str) -> bool:
        """True if a fleet has a group. Raises OSError, ClientError."""
        slot_map = await describe_fleet(self._kafka, fleet)
        if slot_map is None:
            return False
        node = slot_map.owner(group_slot(group_id, slot_map.slots))
        if node not in slot_map.nodes:
            return False
        line = await self._dial(WorkerAddress(node, *slot_map.nodes[node]))
        try:
            answer = await line.send(HasGroupRequest(group_id=group_id))
        finally:
            await line.close()
        check(answer.error, answer.message, f"fleet {fleet}: group {group_id}")
        return answer.exists
