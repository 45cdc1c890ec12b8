"""The leaders of a fleet's slots, by its slot group on Kafka: asked every few seconds while a page is open.

Moves seen since the console looks are kept, the newest `MOVES_MAX`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flowshare.backend import parse_broker
from flowshare.backend.fleet_options import fleet_of
from flowshare.cli.output import explain
from flowshare.client.errors import ClientError
from flowshare.console.source import NotAnswering
from flowshare.fleet.inspection import describe_fleet
from flowshare.ops.session import brokers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowshare.clock import Clock
    from flowshare.slots.membership import SlotMap

KEPT_S: Final = 5.0
ASK_S: Final = 5.0
MOVES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Move:
    """A slot went from one worker to another; node id −1: it had no leader."""

    at_ms: int
    slot: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class FleetLook:
    """A fleet as last seen. fleet: its name. owners: node id of each slot's leader. nodes: host and port of each worker
    by node id."""

    fleet: str
    owners: Mapping[int, int]
    nodes: Mapping[int, tuple[str, int]]
    moves: Sequence[Move]


class Slots:
    """The slots of one fleet. url: of the fleet. On one loop."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = parse_broker(url)
        self._clock = clock
        self._at_s = float("-inf")
        self._look: FleetLook | None = None
        self._moves: deque[Move] = deque(maxlen=MOVES_MAX)
        self._turn = asyncio.Lock()

    async def look(self) -> FleetLook | None:
        """Return the fleet's present state; None: it has no workers, or they are just sharing the slots out. Raises
        NotAnswering."""
        async with self._turn:
            if self._clock.monotonic() - self._at_s >= KEPT_S:
                await self._ask()
                self._at_s = self._clock.monotonic()
            return self._look

    async def _ask(self) -> None:
        fleet = fleet_of(self._url)
        try:
            async with asyncio.timeout(ASK_S), brokers_of(self._url) as kafka:
                found = await describe_fleet(kafka, fleet)
        except (ClientError, OSError, TimeoutError) as error:
            raise NotAnswering(
                f"the brokers do not say who leads the slots of fleet {fleet}: {explain(error)}"
            ) from None
        if found is not None:
            self._note_moves(found)
            self._look = FleetLook(fleet, dict(found.owners), dict(found.nodes), self._moves)

    def _note_moves(self, found: SlotMap) -> None:
        if self._look is None:
            return
        for slot in sorted(found.owners.keys() | self._look.owners.keys()):
            before, after = self._look.owners.get(slot, -1), found.owners.get(slot, -1)
            if before != after:
                self._moves.appendleft(Move(self._clock.now_ms(), slot, before, after))
