"""Calls between the workers of a fleet (`protocol.private`), declared.

A worker's call travels within a `ProvenCall`: its name, its text and the proof of who asks (`fleet.peer_login`). Three
calls need no proof: to greet, to ask if a fleet has a group, and to ask who answers. Every call can be made twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from flowshare.fleet.directory import WorkerAddress
from flowshare.protocol.messages.base import Request, Response
from flowshare.protocol.messages.browse import (
    ShareBrowseRequest,
    ShareBrowseResponse,
    ShareInterveneRequest,
    ShareInterveneResponse,
)
from flowshare.protocol.messages.groups import DescribeConfigsResponse
from flowshare.protocol.messages.state import SharePartitionOffsets
from flowshare.protocol.private import Number, NumberOrNone, OwnCall, Pair, Text, on_group
from flowshare.protocol.rights import Operation
from flowshare.server.runtime.state import ShareKey
from flowshare.share.breaker import Gate, GateReport, Told
from flowshare.share.group_state import ToInitialize
from flowshare.share.leases import Report
from flowshare.share.parking import ParkedKey
from flowshare.share.rate import RateReport

NONCE_DIGITS: Final = 32
CLOSED: Final = Gate(Told())
"""The gate of a group whose breaker is closed."""
Version = tuple[NumberOrNone, Number]
"""Epoch of the coordinator's claim, and its count; ascending."""
Settings = Mapping[str, str]
Changes = Mapping[str, str | None]

# --- who calls --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GreetRequest(Request["GreetResponse"]):
    """Begin a line; all later calls on it are proven. caller: the caller's public half. callee: the other's mark.
    generation: of the caller's map."""

    caller: Text
    callee: Text
    generation: NumberOrNone
    nonce: Annotated[str, Meta(min_length=NONCE_DIGITS, max_length=NONCE_DIGITS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GreetResponse(Response):
    """The callee's public half and nonce."""

    key: str = ""
    nonce: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenCall(Request["ProvenAnswer"]):
    """A call with its proof: the name of the call, the text of its request, and a MAC over both."""

    name: Text
    number: Annotated[int, Meta(gt=0, lt=1 << 62)]
    text: str
    mac: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenAnswer(Response):
    """The text of an answer and its proof. An `error` here is not proven: the call was not opened."""

    text: str = ""
    mac: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoRequest(Request["WhoResponse"]):
    """Ask which worker answers, the caller's principal, and if the caller counts as a worker: a worker asks itself
    before it joins, to see that its address leads to it and its login is a worker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoResponse(Response):
    node_id: int = -1
    principal: str | None = None
    worker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HasGroupRequest(Request["HasGroupResponse"]):
    """Ask a group's coordinator if the fleet has the group; the workers of other fleets ask."""

    group_id: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class HasGroupResponse(Response):
    exists: bool = False


# --- groups -----------------------------------------------------------------------------------------------------------


class GroupFacts(NamedTuple):
    """A group as its coordinator sees it."""

    group_id: str
    version: Version
    settings: Settings
    members: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsRequest(Request["FactsResponse"]):
    """Ask a group's coordinator for the group's facts."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsResponse(Response):
    facts: GroupFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsChanged(Request[Response]):
    """Tell a leader that a group's settings have changed."""

    facts: GroupFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberGone(Request[Response]):
    """Tell a leader that a member is gone, as of this version of its group."""

    group_id: str
    member_id: str
    version: Version
    died: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupConfigs(Request[DescribeConfigsResponse]):
    """Ask a group's coordinator for the group's settings."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterGroupConfigs(Request[Response]):
    """Set (None: unset) settings of a group. by: principal and host of the client that asked the other worker."""

    group_id: str
    configs: Changes
    validate_only: bool = False
    by: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredHere(Request["ConfiguredHereResponse"]):
    """Ask for the groups with settings of their own that are coordinated there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredHereResponse(Response):
    group_ids: tuple[str, ...] = ()


# --- share-partitions -------------------------------------------------------------------------------------------------


class StateStart(NamedTuple):
    """The state with which a share-partition begins anew. finished: ranges behind the start offset."""

    state_epoch: int
    start_offset: int
    finished: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStates(Request[Response]):
    """Make a leader write the first states of share-partitions."""

    group_id: str
    items: tuple[ToInitialize, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceStates(Request[Response]):
    """Make a leader begin share-partitions anew; None: forget them."""

    states: tuple[tuple[ShareKey, StateStart | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsRequest(Request["OffsetsResponse"]):
    """Ask a leader for the offsets of share-partitions."""

    keys: tuple[ShareKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsResponse(Response):
    offsets: tuple[SharePartitionOffsets, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRequest(Request["ParkedResponse"]):
    """Ask a leader about parked keys of share-partitions, as `ParkedKeysRequest`."""

    keys: tuple[ShareKey, ...]
    act: str
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedResponse(Response):
    """The parked keys of each share-partition."""

    parked: tuple[tuple[tuple[bytes, ParkedKey], ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowseLed(Request[ShareBrowseResponse]):
    """Ask a leader to browse."""

    key: ShareKey
    ask: ShareBrowseRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class InterveneLed(Request[ShareInterveneResponse]):
    """Ask a leader to intervene."""

    key: ShareKey
    ask: ShareInterveneRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest(Request["LeaseResponse"]):
    """Report of a leader about one group."""

    group_id: str
    node: int
    in_flight: Report
    rate: RateReport
    gate: GateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseResponse(Response):
    """A leader's grant. lease: records that it may have in flight. more: records that it may hand out in addition.
    gate: its breaker."""

    lease: int = 0
    more: int = 0
    gate: Gate = CLOSED


# --- the fleet --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettingsRequest(Request["FleetSettingsResponse"]):
    """Ask for the fleet's own settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettingsResponse(Response):
    """settings: None: none were ever set."""

    version: Version = (-1, 0)
    settings: Settings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettingsChanged(Request[Response]):
    """Tell that the fleet's own settings have changed."""

    version: Version
    settings: Settings | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterFleetSettings(Request[FleetSettingsResponse]):
    """Set (None: unset) settings of the fleet. first: only where none were ever set."""

    changes: Changes
    validate_only: bool = False
    first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver(Request[Response]):
    """Ask the holder of a slot to release it. to: the node id of the next one."""

    slot: int
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotClaimed(Request[Response]):
    """Tell that a slot was claimed."""

    slot: int
    epoch: int
    node: WorkerAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeaving(Request[Response]):
    """Tell that a worker left the slot group: look now instead of at the next heartbeat."""


GREET: Final = OwnCall("fleet_greet", GreetRequest, GreetResponse)
PROVEN: Final = OwnCall("fleet_call", ProvenCall, ProvenAnswer)
WHO: Final = OwnCall("fleet_who", WhoRequest, WhoResponse)
HAS: Final = OwnCall("fleet_has", HasGroupRequest, HasGroupResponse, rights=on_group(Operation.DESCRIBE))
PROVEN_CALLS: Final = (
    OwnCall("fleet_settings", FactsChanged, Response),
    OwnCall("fleet_gone", MemberGone, Response),
    OwnCall("fleet_hand_over", HandOver, Response),
    OwnCall("fleet_claimed", SlotClaimed, Response),
    OwnCall("fleet_facts", FactsRequest, FactsResponse),
    OwnCall("fleet_describe_configs", DescribeGroupConfigs, DescribeConfigsResponse),
    OwnCall("fleet_alter_configs", AlterGroupConfigs, Response),
    OwnCall("fleet_configured", ConfiguredHere, ConfiguredHereResponse),
    OwnCall("fleet_begin", BeginStates, Response),
    OwnCall("fleet_replace", ReplaceStates, Response),
    OwnCall("fleet_offsets", OffsetsRequest, OffsetsResponse),
    OwnCall("fleet_parked", ParkedRequest, ParkedResponse),
    OwnCall("fleet_browse", BrowseLed, ShareBrowseResponse),
    OwnCall("fleet_intervene", InterveneLed, ShareInterveneResponse),
    OwnCall("fleet_lease", LeaseRequest, LeaseResponse),
    OwnCall("fleet_own_settings", FleetSettingsRequest, FleetSettingsResponse),
    OwnCall("fleet_tell_own_settings", FleetSettingsChanged, Response),
    OwnCall("fleet_set_own_settings", AlterFleetSettings, FleetSettingsResponse),
    OwnCall("fleet_leaving", WorkerLeaving, Response),
)
"""Calls that travel within a `ProvenCall`."""
