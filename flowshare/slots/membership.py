"""Messages of the slot group: the user data that workers send when they join, and the map that the leader gives back.

The slot group is a classic consumer group over the state topic. A slot is a partition, so Kafka's tools show which
worker has which slot. In the user data of its subscription a worker sends its address and the claims that it holds
(`Told`). In the user data of its assignment it gets the whole map (`SlotMap`), because it has to send clients to other
workers. `slots.planning` makes the map.

- Node ids: a worker draws a node id and sends it, but may be given another one. `SlotMap.node_id` is the valid one.
- Stamp: a static member that comes back gets its old assignment without a new round, and the others do not learn its
  new address. The stamp shows this: it is new each time a worker sends something new. If an assignment has another
  stamp, it answers older news, and the worker joins again.
- Key: the mark of the worker's public key, by which other workers recognise its calls (`fleet.peer_login`). The user
  data holds no secret: DescribeGroups shows it to everybody who may DESCRIBE the group.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, cast

import orjson

from flowshare.slots.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from flowshare.slots.errors import MembershipError

FORMAT: Final = 1
PROTOCOL: Final = f"flowshare-{FORMAT}"
"""Name of the group protocol. A worker that knows several formats names them all: the group takes one that all know."""
MapBody = Mapping[str, Any]
NOBODY: Final = -1
NODE_ID_MAX: Final = 2**31 - 1
USER_DATA_BYTES_MAX: Final = 16 << 20
"""The most bytes of a worker's decompressed user data; honest workers have less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The user data that a worker sends when it joins the slot group.

    host, port: the address at which clients and other workers reach it. assigned, generation: its last assignment.
    Generation −1: it has none yet, and `assigned` holds the slots in its cache. claims: slot -> epoch of the claims
    that it holds. key: the mark of its public key.
    """

    node_id: int
    host: str
    port: int
    may_lead: bool = True
    claims: Mapping[int, int] = field(default_factory=dict[int, int])
    assigned: tuple[int, ...] = ()
    generation: int = -1
    stamp: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMap:
    """The assignment of slots to workers. `node_id` and `stamp` are those of the worker that got it."""

    generation: int
    topic: str
    slots: int
    owners: Mapping[int, int]
    """Slot -> node id."""
    nodes: Mapping[int, tuple[str, int]]
    """Node id -> host and port, of those that may lead or still hold a claim."""
    claims: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """Slot -> node id and epoch of the highest claim that its holder told."""
    keys: Mapping[int, str] = field(default_factory=dict[int, str])
    """Node id -> mark of the public key, of all workers."""
    node_id: int = NOBODY
    stamp: str = ""
    whole: bool = True
    """True if `owners`, `nodes`, `claims` and `keys` are complete. If False, `owners` has only the worker's own slots.
    """

    def owner(self, slot: int) -> int:
        """Return the node id of the worker that is to lead the slot, or NOBODY."""
        return self.owners.get(slot, NOBODY)

    def mine(self, node_id: int) -> tuple[int, ...]:
        """Return the slots that a worker is to lead, ascending."""
        return tuple(sorted(slot for slot, owner in self.owners.items() if owner == node_id))


class SlotGroupMember(NamedTuple):
    """A member of the group: its id, its metadata, and its assignment (described groups only)."""

    member_id: str
    metadata: bytes
    assignment: bytes = b""


# --- what workers tell --------------------------------------------------------------------------------------------


def encode_told(topic: str, told: Told) -> bytes:
    """Encode the metadata of a JoinGroup request."""
    body = {
        "node": told.node_id,
        "host": told.host,
        "port": told.port,
        "lead": told.may_lead,
        "claims": sorted(told.claims.items()),
        "generation": told.generation,
        "stamp": told.stamp,
        "key": told.key,
    }
    owned = {topic: told.assigned} if told.assigned else {}
    return encode_subscription(Subscription((topic,), packed(body), owned))


def decode_told(topic: str, metadata: bytes) -> Told:
    """Decode the metadata that `encode_told` wrote. Raises: MembershipError."""
    subscription = decode_subscription(metadata)
    body = _unpacked(subscription.user_data)
    try:
        told = Told(
            node_id=_number(body["node"]),
            host=_word(body["host"]),
            port=_number(body["port"]),
            may_lead=body["lead"] is True,
            claims={_number(slot): _number(epoch) for slot, epoch in body["claims"]},
            assigned=tuple(subscription.owned.get(topic, ())),
            generation=_number(body["generation"]),
            stamp=_word(body["stamp"]),
            key=_word(body["key"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MembershipError(f"a worker's words lack something: {error!r}") from None
    if not 0 <= told.node_id <= NODE_ID_MAX or not told.host or not 0 <= told.port <= 65_535:
        raise MembershipError(f"{told.node_id} at {told.host!r}:{told.port} cannot be a worker")
    return told


# --- what workers get ---------------------------------------------------------------------------------------------


def decode_map(data: bytes) -> SlotMap:
    """Decode the assignment that `encode_map` wrote. Raises: MembershipError."""
    assignment = decode_assignment(data)
    body = _unpacked(assignment.user_data)
    try:
        topic, node_id, rest = _word(body["topic"]), _number(body["me"]), body["map"]
        found = SlotMap(
            generation=_number(body["generation"]),
            topic=topic,
            slots=_number(body["slots"]),
            owners=dict.fromkeys(assignment.partitions.get(topic, ()), node_id),
            nodes={},
            node_id=node_id,
            stamp=_word(body["stamp"]),
            whole=rest is not None,
        )
        if rest is None:
            return found
        ids = [_number(node) for node, _, _ in rest["nodes"]]
        return replace(
            found,
            nodes={_number(node): (_word(host), _number(port)) for node, host, port in rest["nodes"]},
            owners={slot: ids[_index(place)] for slot, place in enumerate(rest["owners"]) if place != NOBODY},
            claims={_number(slot): (ids[_index(place)], _number(epoch)) for slot, place, epoch in rest["claims"]},
            keys={_number(node): _word(key) for node, key in rest["keys"]},
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MembershipError(f"the group's leader gave something that lacks something: {error!r}") from None


def map_body(slot_map: SlotMap) -> MapBody:
    """Return the common part of all assignments; nodes are named by their place in a list."""
    ids = sorted(slot_map.nodes)
    places = {node_id: place for place, node_id in enumerate(ids)}
    return {
        "nodes": [(node_id, *slot_map.nodes[node_id]) for node_id in ids],
        "owners": [places.get(slot_map.owner(slot), NOBODY) for slot in range(slot_map.slots)],
        "claims": [(slot, places[node_id], epoch) for slot, (node_id, epoch) in sorted(slot_map.claims.items())],
        "keys": sorted(slot_map.keys.items()),
    }


def encode_map(slot_map: SlotMap, body: MapBody | None, mine: Sequence[int]) -> bytes:
    """Encode the assignment of the worker `slot_map.node_id`. body: of `map_body`, None to leave it out. mine: its
    slots."""
    user_data = {
        "topic": slot_map.topic,
        "slots": slot_map.slots,
        "generation": slot_map.generation,
        "me": slot_map.node_id,
        "stamp": slot_map.stamp,
        "map": body,
    }
    return encode_assignment(Assignment({slot_map.topic: mine} if mine else {}, packed(user_data)))


# --- user data: a byte that names the format, and compressed JSON -------------------------------------------------


def packed(body: Mapping[str, Any]) -> bytes:
    """Return a body as user data."""
    return bytes([FORMAT]) + zlib.compress(orjson.dumps(body))


def _unpacked(data: bytes) -> dict[str, Any]:
    """Return the body. Raises MembershipError."""
    if not data:
        raise MembershipError("it says nothing about itself")
    if data[0] > FORMAT:
        raise MembershipError(f"it speaks format {data[0]}, {FORMAT} is the newest here")
    unpacking = zlib.decompressobj()
    try:
        found = orjson.loads(unpacking.decompress(data[1:], USER_DATA_BYTES_MAX))
    except (zlib.error, orjson.JSONDecodeError) as error:
        raise MembershipError(f"what it says cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise MembershipError("what it says is no object")
    return cast("dict[str, Any]", found)


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number")
    return value


def _index(value: object) -> int:
    number = _number(value)
    if number < 0:
        raise IndexError(f"{number} is no place in a list")
    return number


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
