"""The slot group leader's plan: the slots of each member. It keeps no state; the members send all that it needs.

- A member whose data cannot be read, or has a newer format, gets no slots; `SlotPlan.warnings` names it.
- If two members have the same node id, the one that was there first keeps it; the other gets another one.
- Kafka keeps all of a group's assignments in one record of at most 1 MiB. If the whole map for every member would come
  near that, each member gets only its own slots (`SlotMap.whole` is False). It then builds the map from the members'
  data that Kafka returns (`assembled`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from flowshare.slots.assignor import EligibleWorker, assign
from flowshare.slots.consumer_protocol import Assignment, encode_assignment
from flowshare.slots.errors import MembershipError
from flowshare.slots.membership import (
    NOBODY,
    NODE_ID_MAX,
    SlotGroupMember,
    SlotMap,
    Told,
    decode_map,
    decode_told,
    encode_map,
    map_body,
    packed,
)

GROUP_BYTES_MAX: Final = 800_000
"""The most bytes that Kafka keeps of a group, about; its record may have 1 MiB (max.message.bytes of the offsets
topic)."""
MEMBER_BYTES: Final = 200
"""Bytes that Kafka adds for each member: ids, client, time-outs."""


class SlotPlan(NamedTuple):
    """The leader's result: the map, the assignment of each member id, and warnings about unreadable members."""

    map: SlotMap
    assignments: tuple[tuple[str, bytes], ...]
    warnings: tuple[str, ...]


def plan(members: Sequence[SlotGroupMember], *, topic: str, slots: int, generation: int) -> SlotPlan:
    """Plan the assignments that the leader of the group's present generation gives to its members."""
    told, warnings = _told(members, topic)
    nodes = _node_ids(told)
    candidates = [
        EligibleWorker(
            nodes[member_id],
            [slot for slot in one.assigned if 0 <= slot < slots],
            one.generation,
            {slot: epoch for slot, epoch in one.claims.items() if 0 <= slot < slots},
        )
        for member_id, one in told.items()
        if one.may_lead
    ]
    made = SlotMap(
        generation=generation,
        topic=topic,
        slots=slots,
        owners=assign(slots, candidates),
        nodes={nodes[member_id]: (one.host, one.port) for member_id, one in told.items() if one.may_lead or one.claims},
        claims=_claims(told, nodes, slots),
        keys=_keys(told, nodes),
    )
    return SlotPlan(made, _assignments(members, told, nodes, made), tuple(warnings))


def assembled(members: Iterable[SlotGroupMember]) -> SlotMap | None:
    """Return the map of a group from outside, by Kafka's description of its members; None: no map yet.

    Unreadable members are left out.
    """
    maps: dict[str, SlotMap] = {}
    known = list(members)
    for member in known:
        try:
            maps[member.member_id] = decode_map(member.assignment)
        except MembershipError:
            continue
    if not maps:
        return None
    latest = max(maps.values(), key=lambda one: one.generation)
    if latest.whole:
        return replace(latest, node_id=NOBODY, stamp="")
    told, _ = _told([member for member in known if member.member_id in maps], latest.topic)
    nodes = {member_id: maps[member_id].node_id for member_id in told}
    return replace(
        latest,
        owners={slot: node for one in maps.values() for slot, node in one.owners.items()},
        nodes={nodes[member_id]: (one.host, one.port) for member_id, one in told.items() if one.may_lead or one.claims},
        claims=_claims(told, nodes, latest.slots),
        keys=_keys(told, nodes),
        node_id=NOBODY,
        stamp="",
        whole=True,
    )


def _told(members: Iterable[SlotGroupMember], topic: str) -> tuple[dict[str, Told], list[str]]:
    told: dict[str, Told] = {}
    warnings: list[str] = []
    for member in members:
        try:
            told[member.member_id] = decode_told(topic, member.metadata)
        except MembershipError as error:
            warnings.append(
                f"member {member.member_id} of the slot group gets no slots: {error}; if it is a worker, upgrade the "
                "others, else give the fleet another name"
            )
    return told, warnings


def _node_ids(told: Mapping[str, Told]) -> dict[str, int]:
    """Return member id -> node id, each different. Members with claims, then older ones, keep the id that they drew."""
    found: dict[str, int] = {}
    taken: set[int] = set()
    for member_id, one in sorted(told.items(), key=lambda item: (not item[1].claims, -item[1].generation, item[0])):
        node_id, tries = one.node_id, 0
        while node_id in taken:
            tries += 1
            node_id = zlib.crc32(f"{member_id} {tries}".encode()) & NODE_ID_MAX
        taken.add(node_id)
        found[member_id] = node_id
    return found


def _claims(told: Mapping[str, Told], nodes: Mapping[str, int], slots: int) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for member_id, one in told.items():
        for slot, epoch in one.claims.items():
            if 0 <= slot < slots and epoch > found.get(slot, (NOBODY, -1))[1]:
                found[slot] = nodes[member_id], epoch
    return found


def _keys(told: Mapping[str, Told], nodes: Mapping[str, int]) -> dict[int, str]:
    return {nodes[member_id]: one.key for member_id, one in told.items() if one.key}


def _assignments(
    members: Sequence[SlotGroupMember], told: Mapping[str, Told], nodes: Mapping[str, int], made: SlotMap
) -> tuple[tuple[str, bytes], ...]:
    """Return one assignment for each member; each has the whole map if all of them fit into Kafka's record of a
    group."""
    whole = map_body(made)
    others = sum(MEMBER_BYTES + len(member.metadata) for member in members)
    body = whole if others + len(members) * len(packed(whole)) <= GROUP_BYTES_MAX else None
    mine: dict[int, list[int]] = {}
    for slot, node_id in made.owners.items():
        mine.setdefault(node_id, []).append(slot)
    found: list[tuple[str, bytes]] = []
    for member in members:
        one = told.get(member.member_id)
        if one is None:
            found.append((member.member_id, encode_assignment(Assignment({}, b""))))
            continue
        node_id = nodes[member.member_id]
        given = replace(made, node_id=node_id, stamp=one.stamp)
        found.append((member.member_id, encode_map(given, body, sorted(mine.get(node_id, ())))))
    return tuple(found)
