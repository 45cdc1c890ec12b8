"""The slots' leaders as far as this worker knows them; clients are told from here.

Ownership is the claim in a slot's log. A worker knows its own claims for certain; of others it knows their messages,
and the slot group's choice. So for each slot the claim with the highest epoch counts, as long as its holder is a member
of the fleet; without a claim, the chosen worker is named, which answers when it has claimed. An error here costs a
detour: a worker that does not lead says so and names the one that it takes for the leader.

Invariant: the epoch told of a slot never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.protocol.kafka import ApiKey
from flowshare.slots.placement import group_slot, share_slot

if TYPE_CHECKING:
    import uuid

    from flowshare.slots.membership import SlotMap

NOBODY: Final = -1
OF_WORKERS: Final = frozenset(
    {
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_GROUPS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.FIND_COORDINATOR,
        ApiKey.FLOWSHARE_COOPERATIVE_SETTLE,
        ApiKey.FLOWSHARE_SETTLE,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.LIST_GROUPS,
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_HEARTBEAT,
    }
)
"""APIs that clients ask a fleet's workers, besides flowshare's own calls; all others are the brokers'."""


class WorkerAddress(NamedTuple):
    """The node id and address of a worker."""

    node_id: int
    host: str
    port: int


class Claimed(NamedTuple):
    """A claim: its epoch and the worker that made it."""

    epoch: int
    place: WorkerAddress


class Directory:
    """One worker's view of its fleet. `place`: this worker; None for one that leads nothing."""

    def __init__(self, slots: int, place: WorkerAddress | None = None) -> None:
        self.slots = slots
        self.place = place
        self.map: SlotMap | None = None
        """The map that the slot group agreed on last."""
        self._claims: dict[int, Claimed] = {}
        self.nodes: Mapping[int, WorkerAddress] = {}
        """All workers that lead, by node id, as the slot group has them."""
        self._heard: list[Callable[[], object]] = []
        self._heard_left: list[Callable[[frozenset[int]], object]] = []

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call `listener` when a slot's leader may have changed."""
        self._heard.append(listener)

    def on_left(self, listener: Callable[[frozenset[int]], object]) -> None:
        """Call `listener` with the node ids of workers that have left the slot group, or were given up there."""
        self._heard_left.append(listener)

    # --- what is learned ----------------------------------------------------------------------------------------

    def agreed(self, slot_map: SlotMap) -> None:
        """Take over the slot group's new map."""
        self.map = slot_map
        before = self.nodes
        self.nodes = {node_id: WorkerAddress(node_id, *address) for node_id, address in slot_map.nodes.items()}
        if self.place is not None and slot_map.node_id != NOBODY:
            self.place = self.place._replace(node_id=slot_map.node_id)  # another worker had drawn the same
        for slot, (node_id, epoch) in slot_map.claims.items():  # told by the members when they joined
            if node_id in self.nodes:
                self._learn(slot, Claimed(epoch, self.nodes[node_id]))
        self._tell()
        left = frozenset(before).difference(self.nodes)
        for listener in self._heard_left if left else ():
            listener(left)

    def claimed(self, slot: int, claim: Claimed) -> None:
        """Note a worker's claim of a slot."""
        if self._learn(slot, claim):
            self._tell()

    def _learn(self, slot: int, claim: Claimed) -> bool:
        known = self._claims.get(slot)
        if not 0 <= slot < self.slots or (known is not None and claim.epoch <= known.epoch):
            return False
        self._claims[slot] = claim
        return True

    def _tell(self) -> None:
        for listener in self._heard:
            listener()

    # --- what is asked ------------------------------------------------------------------------------------------

    @property
    def other_nodes(self) -> tuple[int, ...]:
        """Node ids of the other workers."""
        me = None if self.place is None else self.place.node_id
        return tuple(node_id for node_id in self.nodes if node_id != me)

    @property
    def leading(self) -> frozenset[int]:
        """Node ids of the other workers that lead a slot, or were chosen for one: at most two for each slot."""
        me = NOBODY if self.place is None else self.place.node_id
        holders = {claim.place.node_id for claim in self._claims.values()}
        chosen = () if self.map is None else self.map.owners.values()
        return frozenset(holders.union(chosen).intersection(self.nodes) - {me})

    def is_me(self, node_id: int) -> bool:
        """True if the node id is this worker's."""
        return self.place is not None and node_id == self.place.node_id

    def group_epoch(self, group_id: str) -> int:
        """Return the epoch of the last known claim of a group's slot; 0: none is known."""
        claim = self._claims.get(group_slot(group_id, self.slots))
        return 0 if claim is None else claim.epoch

    def leader(self, slot: int) -> tuple[int, int]:
        """Return node (NOBODY: none) and epoch (−1: not known) of a slot's leader."""
        claim = self._claims.get(slot)
        epoch = -1 if claim is None else claim.epoch
        nodes = self.nodes
        if claim is not None and claim.place.node_id in nodes:
            return claim.place.node_id, epoch
        chosen = NOBODY if self.map is None else self.map.owner(slot)
        return (chosen if chosen in nodes else NOBODY), epoch

    def leader_of(self, topic_id: uuid.UUID, partition: int) -> tuple[int, int]:
        """Return node and epoch of a share-partition's leader, as `leader`."""
        return self.leader(share_slot(topic_id, partition, self.slots))

    def group_leader(self, group_id: str) -> int:
        """Return the node id of a group's coordinator; NOBODY: none at the moment."""
        return self.leader(group_slot(group_id, self.slots))[0]

    def coordinator(self, group_id: str) -> WorkerAddress | None:
        """Return the worker that coordinates a group; None: none at the moment."""
        return self.nodes.get(self.group_leader(group_id))

    def address(self, node_id: int) -> WorkerAddress | None:
        """Return a worker's address, also of one that left the slot group but still holds a claim."""
        known = self.nodes.get(node_id)
        if known is not None:
            return known
        return next((claim.place for claim in self._claims.values() if claim.place.node_id == node_id), None)
