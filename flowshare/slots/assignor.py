"""The choice of slots for workers: evenly, and with as few changes as possible.

No worker has two more than another. A slot stays where it was assigned last; if that worker is gone it stays with the
holder of its claim, and else with a worker that has its entries in a cache. The last assignment goes before the claim
so that workers that come one after another keep the slots that they have begun to replay, while the claims still lie
with the first of them.

A worker with too many gives up every n-th of its slots, and free ones are dealt in turn: neighbouring slots are
neighbouring partitions of one topic, and those should have different leaders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

CACHED, CLAIMED, ASSIGNED = range(3)
"""Reasons to leave a slot with a worker, the better ones higher."""
NOTHING: Final = -1, -1, -1


class EligibleWorker(NamedTuple):
    """A worker that may lead: its node id, its last assignment with its generation, and the claims it holds.

    generation: −1: no assignment yet; `assigned` is then the slots in its cache.
    """

    node_id: int
    assigned: Sequence[int] = ()
    generation: int = -1
    claims: Mapping[int, int] = MappingProxyType({})
    """Slot -> epoch of the claim."""


def assign(slots: int, candidates: Sequence[EligibleWorker]) -> dict[int, int]:
    """Return slot -> node id of its owner; empty without candidates. Node ids are unique."""
    if not candidates:
        return {}
    held = _held(slots, candidates)
    quotas = _quotas(slots, candidates, held)
    owners: dict[int, int] = {}
    for node_id, mine in held.items():
        for slot in _thinned(mine, quotas[node_id]):
            owners[slot] = node_id
    room = {node_id: quotas[node_id] - min(len(mine), quotas[node_id]) for node_id, mine in held.items()}
    free = [slot for slot in range(slots) if slot not in owners]
    dealt = iter(_dealt(room))
    for slot in free:
        owners[slot] = next(dealt)
    return owners


def _held(slots: int, candidates: Sequence[EligibleWorker]) -> dict[int, list[int]]:
    """Return node id -> slots that would best stay there, ascending."""
    best: dict[int, tuple[int, int, int]] = {}
    for candidate in candidates:
        rank = ASSIGNED if candidate.generation >= 0 else CACHED
        for slot in candidate.assigned:
            best[slot] = max(best.get(slot, NOTHING), (rank, candidate.generation, candidate.node_id))
        for slot, epoch in candidate.claims.items():
            best[slot] = max(best.get(slot, NOTHING), (CLAIMED, epoch, candidate.node_id))
    held: dict[int, list[int]] = {candidate.node_id: [] for candidate in candidates}
    for slot in range(slots):
        if slot in best:
            held[best[slot][2]].append(slot)
    return held


def _quotas(slots: int, candidates: Sequence[EligibleWorker], held: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return the number of slots for each worker: those with most get the larger share, so that fewest are moved."""
    share, larger = divmod(slots, len(candidates))
    order = sorted(held, key=lambda node_id: (-len(held[node_id]), node_id))
    return {node_id: share + (place < larger) for place, node_id in enumerate(order)}


def _thinned(slots: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of the slots, evenly spread."""
    if len(slots) <= count:
        return list(slots)
    return [slots[place * len(slots) // count] for place in range(count)]


def _dealt(room: Mapping[int, int]) -> list[int]:
    """Return each node id as often as it has room, those with room for one more in turn."""
    order: list[int] = []
    left = {node_id: count for node_id, count in sorted(room.items()) if count}
    while left:
        order += left
        left = {node_id: count - 1 for node_id, count in left.items() if count > 1}
    return order
