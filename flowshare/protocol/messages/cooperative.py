"""Cooperative groups: calls of members to the server that keeps the state of their group (flowshare's own).

The members of a group share partitions by keys: each holds ranges of hashes, and commits records one by one under them.
`server.cooperative` answers. Ranges are half-open, of offsets and of hashes; the terms are those of the core
(`flowshare.cooperative.types`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from flowshare.cooperative.types import DRAIN_TIMEOUT_MS, LEASE_MS
from flowshare.cooperative.types import CommitEntry as CommitEntry
from flowshare.cooperative.types import Entry as Entry
from flowshare.cooperative.types import KeyRange as KeyRange
from flowshare.cooperative.types import OffsetColumns as OffsetColumns
from flowshare.cooperative.types import Reach as Reach
from flowshare.cooperative.types import StartEntry as StartEntry
from flowshare.protocol.declaration import OF_GROUP, Api
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Request, Response
from flowshare.protocol.messages.share import RefusedOutput, SettleOutput
from flowshare.protocol.messages.state import Topics
from flowshare.protocol.private import (
    Form,
    May,
    Number,
    NumberOrNone,
    OwnCall,
    Text,
    on_group,
    on_group_and_topic,
)
from flowshare.protocol.private import Pair as Pair
from flowshare.protocol.rights import Operation, ResourceType

STABLE_METADATA: Final = "flowshare cooperative E="
"""The beginning of the metadata of a committed offset that is the stable offset of a cooperative group; the reset epoch
and the topic's id follow. An offset with other metadata was committed by another tool, and the group begins anew at
it."""


def stable_metadata(reset_epoch: int, topic_id: uuid.UUID) -> str:
    """Return the metadata of a stable offset. The offset itself is committed by the topic's name, which may be another
    topic's by then."""
    return f"{STABLE_METADATA}{reset_epoch} T={topic_id}"


class GroupOffset(NamedTuple):
    """An offset committed for a group the ordinary way, and its metadata; −1: none."""

    offset: NumberOrNone
    metadata: Text = ""


def offset_of(topic_id: uuid.UUID, there: GroupOffset) -> GroupOffset:
    """Return the committed offset `there` if it counts for the topic with this id; otherwise none. A stable offset of
    an earlier topic with the same name does not count: a member may commit such an offset once more before it hears
    that the topic was created anew."""
    stable = there.metadata.startswith(STABLE_METADATA)
    return GroupOffset(-1) if stable and not there.metadata.endswith(f" T={topic_id}") else there


def is_stable(topic_id: uuid.UUID, there: GroupOffset) -> bool:
    """True if this is a stable offset of the topic with this id."""
    return there.metadata.startswith(STABLE_METADATA) and offset_of(topic_id, there).offset >= 0


class WantedKeys(NamedTuple):
    """The hashes of a partition that a member wants to hold from now on; empty: none any more.

    committed: the partition's committed offset at the group's coordinator, if that is another server: in a fleet
    members send it while they hold nothing there. None: not sent.
    """

    topic_id: uuid.UUID
    partition: Number
    keys: tuple[Pair, ...]
    committed: GroupOffset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress(Response):
    """The progress of a partition: S, E, the number of committed ranges behind S, and M; bounds of its log, −1: not
    known."""

    topic_id: uuid.UUID
    partition: int
    stable: int = -1
    reset_epoch: int = -1
    count: int = 0
    furthest: int = -1
    log_start: int = -1
    log_end: int = -1


# --- by keys ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeHoldRequest(Request["CooperativeHoldResponse"]):
    """Claim all hashes that a member wants to hold from now on, in all partitions; renews the leases of its claims.

    Claims in partitions that are not named are given up, so an empty list means that the member leaves. sequence: grows
    with each call of the member. mode: `strict` or `available`. auto_offset_reset: the start in a partition without
    commits of the group: `earliest`, `latest`, `none` (refused) or `by_duration:…`.
    """

    group_id: Text
    member_id: Text
    generation: Number
    sequence: Number
    lease_ms: Number = LEASE_MS
    mode: Text = "strict"
    drain_timeout_ms: Number = DRAIN_TIMEOUT_MS
    auto_offset_reset: Text = "none"
    exact_starts: bool = False
    """True if the member reports each start before it makes the start (`Terms`)."""
    partitions: tuple[WantedKeys, ...] = ()


class HeldKeys(NamedTuple):
    """Hashes that the member holds, with their epoch."""

    first: int
    end: int
    epoch: int


class BlockedKeys(NamedTuple):
    """Hashes that the member waits for, because another member holds them."""

    first: int
    end: int
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition(PartitionProgress):
    """The ranges of one partition that a member holds, and those that the member waits for.

    granted: newly held ranges: the member reads the committed offsets of these ranges anew before a handler starts.
    ranges: R, if something was granted. It is None if the answer had no room: then the member asks for R
    (`CooperativeOffsetsRequest`). pending: offsets of open transactions; no member may begin them. horizon: the member
    begins nothing at or behind this offset without reporting the start (`StartEntry`). reaches, starts: records that
    others may have begun (`cooperative.attempts`), told with `ranges`.
    """

    held: tuple[HeldKeys, ...] = ()
    granted: tuple[Pair, ...] = ()
    blocked: tuple[BlockedKeys, ...] = ()
    superseded: bool = False
    ranges: OffsetColumns | None = None
    pending: tuple[Pair, ...] = ()
    horizon: int = 0
    reaches: tuple[Reach, ...] = ()
    starts: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeHoldResponse(Response):
    """The claims of a member. lease_ms: how long they are the member's, from the moment when it sent the request."""

    lease_ms: int = 0
    partitions: tuple[HeldPartition, ...] = ()


class PartitionCommit(NamedTuple):
    """The records of one partition that a member has finished; the member knows the partition's reset epoch. entries:
    `StartEntry` for records that the member is about to begin."""

    topic_id: uuid.UUID
    partition: int
    reset_epoch: int
    entries: tuple[Entry, ...]


class EntryTold(NamedTuple):
    """Any `Entry` on the wire. ranges: of offsets, or starts: (offset, how often)."""

    epoch: Number
    ranges: list[Pair]
    keys: Pair
    horizon: Number = 0
    starts: bool = False


class CommitTold(NamedTuple):
    """A `PartitionCommit` on the wire."""

    topic_id: uuid.UUID
    partition: Number
    reset_epoch: Number
    entries: tuple[EntryTold, ...]


def tell_entry(entry: Entry) -> EntryTold:
    """Return an entry as it is on the wire."""
    match entry:
        case CommitEntry(keys, epoch, ranges):
            return EntryTold(epoch, list(ranges), keys)
        case StartEntry(keys, epoch, starts, horizon):
            return EntryTold(epoch, list(starts), keys, horizon, starts=True)


def entry_of(told: EntryTold) -> Entry:
    """Return the entry that `tell_entry` was given."""
    epoch, ranges, keys, horizon, starts = told
    claimed = KeyRange(*keys)
    return StartEntry(claimed, epoch, ranges, horizon) if starts else CommitEntry(claimed, epoch, ranges)


def _tell_commits(parts: tuple[PartitionCommit, ...]) -> tuple[CommitTold, ...]:
    return tuple(CommitTold(*part[:3], tuple(map(tell_entry, part.entries))) for part in parts)


def _commits_of(told: tuple[CommitTold, ...]) -> tuple[PartitionCommit, ...]:
    return tuple(PartitionCommit(*part[:3], tuple(map(entry_of, part.entries))) for part in told)


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeCommitRequest(Request["CooperativeCommitResponse"]):
    """Commit records one by one; answered when the commit is durable."""

    group_id: Text
    member_id: Text
    partitions: tuple[PartitionCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartition(PartitionProgress):
    """The outcome of a partition's commit. fenced: indexes of entries that were not committed: the member does not hold
    their ranges any more."""

    fenced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeCommitResponse(Response):
    partitions: tuple[CommittedPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeSettleRequest(Request["CooperativeSettleResponse"]):
    """Commit records of one partition and write their outputs, in one step or not at all.

    entries, reset_epoch: as of `PartitionCommit`. outputs: not transactional, without producer ids. ordered: write only
    when all offsets before these are committed; these are one run then. generation: the group's, as the member knows
    it: a newer one refuses the request while it waits for its turn.
    """

    group_id: str
    member_id: str
    topic_id: uuid.UUID
    partition: int
    reset_epoch: int
    entries: tuple[CommitEntry, ...]
    outputs: tuple[SettleOutput, ...] = ()
    ordered: bool = False
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeSettleResponse(PartitionProgress):
    """The outcome of a settle. Without an error all of it is durable; with an error nothing is, and nothing will be.

    With INVALID_RECORD_STATE, fenced: offsets whose keys the member does not hold any more; committed: offsets that are
    finished already, maybe by this request, whose first answer was lost. outputs: the outputs that were the reason, if
    any.
    """

    fenced: tuple[Pair, ...] = ()
    committed: tuple[Pair, ...] = ()
    outputs: tuple[RefusedOutput, ...] = ()


COOPERATIVE_SETTLE: Final = Api(
    ApiKey.FLOWSHARE_COOPERATIVE_SETTLE,
    CooperativeSettleRequest,
    CooperativeSettleResponse,
    server=(0, 0),
    client=(0, 0),
    route=OF_GROUP,
)


# --- for tools --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeOffsetsRequest(Request["CooperativeOffsetsResponse"]):
    """Ask for a group's progress. topics: partitions by topic; None: all with state.

    ranges_from: None: without R; else the ranges that begin at this offset or behind it, as many as an answer holds.
    """

    group_id: Text
    topics: Topics | None = None
    ranges_from: Number | None = None


class ToldClaim(NamedTuple):
    """Hashes that a member holds alone."""

    first: int
    end: int
    member_id: str
    epoch: int


class ToldWait(NamedTuple):
    """Hashes that a member waits for until `holder` gives them back; waited_ms: the wait so far."""

    first: int
    end: int
    member_id: str
    holder: str
    waited_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets(PartitionProgress):
    """The state of one partition. more: R goes on behind `ranges`. unstable: an open transaction may add to it.

    reaches, starts: records begun by members that are gone, sent with `ranges`. unfinished: offsets from S
    to the log's end that are not committed, −1: that end is not known. blocked, lapsed, overlaps: counted since the
    server loaded the partition: `ClaimCounts`.
    """

    topic: str
    ranges: OffsetColumns | None = None
    more: bool = False
    unstable: bool = False
    claims: tuple[ToldClaim, ...] = ()
    waits: tuple[ToldWait, ...] = ()
    reaches: tuple[Reach, ...] = ()
    starts: tuple[Pair, ...] = ()
    unfinished: int = -1
    blocked: int = 0
    lapsed: int = 0
    overlaps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeOffsetsResponse(Response):
    partitions: tuple[PartitionOffsets, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeResetRequest(Request["CooperativeResetResponse"]):
    """Begin a partition anew at an offset; refused while members hold something of it."""

    group_id: Text
    topic: Text
    partition: Number
    offset: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeResetResponse(Response):
    reset_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeDeleteRequest(Request["CooperativeDeleteResponse"]):
    """Delete a group without members, and all of its state. topics: delete only the state of these partitions, whose
    committed offsets were deleted before (`OffsetDeleteRequest`), where those are another server's."""

    group_id: Text
    topics: Topics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeDeleteResponse(Response):
    """The outcome of a deletion."""


def _offsets_shown(answer: CooperativeOffsetsResponse, may: May) -> CooperativeOffsetsResponse:
    """Leave out partitions of topics that the peer may not describe."""
    shown = (one for one in answer.partitions if may(Operation.DESCRIBE, ResourceType.TOPIC, one.topic))
    return replace(answer, partitions=tuple(shown))


COOPERATIVE_CALLS: Final = (
    OwnCall(
        "cooperative_hold",
        CooperativeHoldRequest,
        CooperativeHoldResponse,
        route=OF_GROUP,
        rights=on_group(Operation.READ),
    ),
    OwnCall(
        "cooperative_commit",
        CooperativeCommitRequest,
        CooperativeCommitResponse,
        route=OF_GROUP,
        rights=on_group(Operation.READ),
        forms={"partitions": Form(tuple[CommitTold, ...], _tell_commits, _commits_of)},
    ),
    OwnCall(
        "cooperative_offsets",
        CooperativeOffsetsRequest,
        CooperativeOffsetsResponse,
        route=OF_GROUP,
        rights=on_group(Operation.DESCRIBE),
        shown=_offsets_shown,
    ),
    OwnCall(
        "cooperative_reset",
        CooperativeResetRequest,
        CooperativeResetResponse,
        route=OF_GROUP,
        rights=on_group_and_topic(Operation.READ),
    ),
    OwnCall(
        "cooperative_delete",
        CooperativeDeleteRequest,
        CooperativeDeleteResponse,
        route=OF_GROUP,
        rights=on_group(Operation.DELETE),
    ),
)
"""Rights are Kafka's for consumers; of topics, which members name by id, the server asks itself."""
