"""`share="auto"` on a Kafka cluster: its brokers lead the share groups if they can, else the workers lead.

The choice is made when an app starts; groups that exist keep their leader:

    it is `flowshare serve`, or the port of a path       -> native: that leads, and lacks nothing
    the fleet has a state topic                          -> workers: its groups live there; the brokers, where the
                                                            app's groups are there and none is with the fleet
    the brokers have no share groups                     -> workers
    an agent asks for what brokers lack (max_in_flight…) -> workers, unless its group lives on the brokers already:
                                                            then it is refused, with the command that moves it
    else                                                 -> native
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowshare.backend.base import NOTHING_ASKED, BackendError, Capabilities, GroupNeeds
from flowshare.backend.fleet import WorkersBackend
from flowshare.backend.fleet_options import fleet_of
from flowshare.backend.group_location import GroupLocations, has_state
from flowshare.backend.native import KafkaBackend, NativeBackend, missing_apis
from flowshare.client.net.cluster import Cluster
from flowshare.fleet.state.topic import state_topic
from flowshare.protocol.messages import ListGroupsRequest

if TYPE_CHECKING:
    from flowshare.backend.url import BrokerUrl
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection

logger = logging.getLogger(__name__)


class AutoBackend(KafkaBackend):
    """A backend for the share groups of a Kafka cluster, led by brokers or workers; `chosen` and `reason` are known
    after `start`."""

    def __init__(
        self,
        broker: BrokerUrl,
        *,
        clock: Clock | None = None,
        lead: bool = False,
        asked: GroupNeeds = NOTHING_ASKED,
        cooperative: Collection[str] = (),
    ) -> None:
        """cooperative: groups that only workers keep. Raises: BadBrokerUrl (its security options are wrong)."""
        super().__init__(broker, clock=clock, asked=asked)
        self._cooperative = sorted(cooperative)
        self._lead = lead
        self._chosen: NativeBackend | WorkersBackend | None = None
        self.reason = ""
        """Reason of the choice, in words."""

    @property
    def chosen(self) -> NativeBackend | WorkersBackend:
        """The chosen backend. Raises: BackendError before `start` and after `close`."""
        if self._chosen is None:
            raise BackendError("the backend is not open")
        return self._chosen

    @property
    def kind(self) -> str:
        """`native` or `workers`; `auto` before the choice."""
        return "auto" if self._chosen is None else self._chosen.kind

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the chosen backend."""
        return self.chosen.capabilities

    async def _begin(self, cluster: Cluster) -> None:
        """Look at the cluster, choose a backend, and open it."""
        try:
            native, self.reason = await self._choose(cluster)
        finally:
            await asyncio.shield(cluster.close())
        if native and self._broker.settings:
            raise BackendError(
                f"broker {self._broker} has settings of a fleet ({', '.join(sorted(self._broker.settings))}), but its "
                f"brokers lead, as {self.reason}: leave them out, or have the workers lead with share=workers"
            )
        if native:
            chosen: NativeBackend | WorkersBackend = NativeBackend(
                self._broker, clock=self._clock, asked=self._asked, cooperative=self._cooperative
            )
        else:
            chosen = WorkersBackend(self._broker, clock=self._clock, lead=self._lead, asked=self._asked)
        logger.info("share=%s (asked: auto), as %s", chosen.kind, self.reason)
        await chosen.start()
        self._chosen = chosen

    async def close(self) -> None:
        """Close the chosen backend and the cluster; harmless when nothing was opened."""
        chosen, self._chosen = self._chosen, None
        if chosen is not None:
            await chosen.close()
        await super().close()

    async def connect(self, client_id: str) -> Connection:
        """Open a new connection. Raises: BackendError before `start` and after `close`."""
        return await self.chosen.connect(client_id)

    async def check_groups(self, groups: Collection[str]) -> None:
        """Check groups by the chosen backend. Raises: BackendError with what to do, ClientError, OSError."""
        await self.chosen.check_groups(groups)

    async def set_address(self, address: str, supervisor: str = "") -> None:
        """Tell the chosen one."""
        await self.chosen.set_address(address, supervisor)

    def stats(self) -> Mapping[str, Any]:
        """Return the chosen backend's counters and gauges."""
        return {} if self._chosen is None else self._chosen.stats()

    # --- choosing -----------------------------------------------------------------------------------------------

    async def _choose(self, cluster: Cluster) -> tuple[bool, str]:
        """Decide if the brokers lead, and return the reason with it. Raises: BackendError, OSError, ClientError."""
        if cluster.is_flowshare:
            return True, "flowshare's own server, which answers there, leads all kinds of groups"
        fleet = fleet_of(self._broker)
        kafka = cluster.connect("flowshare-choice")
        try:
            missing = missing_apis(cluster)
            asks = {group: words for group, words in self._asked.items() if words}
            if await has_state(kafka, fleet):
                left = await self._left(cluster, fleet, native=not missing)
                if left is None:
                    return False, f"the fleet {fleet} keeps its groups in {state_topic(fleet)}"
                self._check_brokers_do(left, asks)
                return True, f"{left} lives on the brokers and the fleet {fleet} has none of the groups any more"
            if missing:
                return False, f"the brokers have no share groups ({', '.join(missing)} are missing)"
            if not asks and not self._cooperative:
                return True, "the brokers have share groups and no agent asks for anything they lack"
            listed = await kafka.send(ListGroupsRequest(types=("share",)))
            there = self._asked.keys() & {group.group_id for group in listed.groups}
            if there and (self._cooperative or asks.keys() & there):
                self._check_brokers_do(f"group {min(there)}", {group: asks[group] for group in asks.keys() & there})
            if self._cooperative:
                return False, f"group {self._cooperative[0]} is a cooperative one, which workers keep"
            group, words = next(iter(asks.items()))
            return False, f"group {group} asks for {' and '.join(words)}, which the brokers lack"
        finally:
            await kafka.close()

    def _check_brokers_do(self, left: str, asks: GroupNeeds) -> None:
        """Check that brokers do all that is asked, as `left` lives there. Raises: BackendError if they cannot."""
        for group, words in asks.items():
            raise _lacking(group, words)
        if self._cooperative:
            raise BackendError(
                f"{left} lives on the brokers, which keep no cooperative groups ({', '.join(self._cooperative)}), and "
                "the groups of an app are in one place: give the cooperative agents an app of their own, or move the "
                "other groups while no worker runs: flowshare groups move GROUP --to workers"
            )

    async def _left(self, cluster: Cluster, fleet: str, *, native: bool) -> str | None:
        """Name the groups that were moved to the brokers although the fleet has state. None: the workers lead.

        Raises: BackendError (some of the groups are on the brokers and some with the workers), OSError, ClientError.
        """
        locations = GroupLocations(cluster, fleet, native=native, clock=self._clock)
        if not self._asked:
            return "what was moved" if native and await locations.left_for_brokers() else None
        where = {group: one.is_in(fleet) for group, one in (await locations.look(self._asked)).items()}
        brokers = next((group for group, place in where.items() if place == "native"), None)
        workers = next((group for group, place in where.items() if place == "workers"), None)
        if brokers is not None and workers is not None:
            raise BackendError(
                f"group {brokers} lives on the brokers and group {workers} with the workers of fleet {fleet}, but the "
                f"groups of an app are in one place: flowshare groups move {brokers} --to workers, or flowshare groups "
                f"move {workers} --to native"
            )
        return None if brokers is None else f"group {brokers}"


def _lacking(group: str, words: Sequence[str]) -> BackendError:
    """Make the error for a group on the brokers that asks for what brokers lack."""
    return BackendError(
        f"group {group} lives on the brokers, which lack {' and '.join(words)}: leave that out, or move "
        f"the group while no worker runs: flowshare groups move {group} --to workers"
    )
