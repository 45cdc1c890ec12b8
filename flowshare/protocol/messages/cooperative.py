"""Cooperative groups: what members say to the server that keeps the state of their group (flowshare's own).

A group's members share partitions by keys: each holds ranges of hashes, and commits records one by one under them. Or
they take what comes next, record by record (free mode): spans. `server.cooperative` answers; ranges are half-open, of
offsets and of hashes alike, and the words are those of the core (`flowshare.cooperative.types`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from flowshare.cooperative.types import DRAIN_TIMEOUT_MS, LEASE_MS
from flowshare.cooperative.types import CommitEntry as CommitEntry
from flowshare.cooperative.types import Entry as Entry
from flowshare.cooperative.types import OffsetColumns as OffsetColumns
from flowshare.cooperative.types import OffsetRange as OffsetRange
from flowshare.cooperative.types import Reach as Reach
from flowshare.cooperative.types import SpanEntry as SpanEntry
from flowshare.cooperative.types import SpanStartEntry as SpanStartEntry
from flowshare.cooperative.types import StartEntry as StartEntry
from flowshare.protocol.declaration import OF_GROUP, Api
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Request, Response
from flowshare.protocol.messages.share import RefusedOutput, SettleOutput

Pair = tuple[int, int]
TAKE_WAIT_MS_MAX: Final = 5_000
STABLE_METADATA: Final = "flowshare cooperative E="
"""How the metadata of a group's committed offset begins that is the stable offset of a cooperative group; the reset
epoch and the topic's id follow. Whatever has other metadata was committed by somebody else, and the group begins anew
at it."""


def stable_metadata(reset_epoch: int, topic_id: uuid.UUID) -> str:
    """The metadata of a stable offset. The offset itself is committed by the topic's name, which may be another topic's
    by then."""
    return f"{STABLE_METADATA}{reset_epoch} T={topic_id}"


class GroupOffset(NamedTuple):
    """An offset that is committed for a group the ordinary way, and its metadata; −1: none is."""

    offset: int
    metadata: str = ""


def offset_of(topic_id: uuid.UUID, there: GroupOffset) -> GroupOffset:
    """What is committed of the topic with this id; none, where it is the stable offset of one that had its name before:
    a member may commit that once more before it hears that the topic was made anew."""
    stable = there.metadata.startswith(STABLE_METADATA)
    return GroupOffset(-1) if stable and not there.metadata.endswith(f" T={topic_id}") else there


class WantedKeys(NamedTuple):
    """The hashes that a member wants to hold of a partition from now on; none: it holds nothing there any more.

    committed: what the group's coordinator has for the partition, where that is another server: in a fleet members say
    it while they hold nothing there. None: not said.
    """

    topic_id: uuid.UUID
    partition: int
    keys: tuple[Pair, ...]
    committed: GroupOffset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress(Response):
    """How far a partition is: S, E, how many committed ranges lie behind S, and M; its log's bounds, where they are
    known (−1)."""

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
    """All that a member wants to hold from now on, in all partitions; it renews the leases of what it holds.

    What the member holds in partitions that are not named is free, so no partitions at all mean that it leaves.
    sequence: grows with each call of the member. mode: `strict` or `available`. auto_offset_reset: where a partition
    begins of which the group has committed nothing: `earliest`, `latest`, `none` (it is refused) or `by_duration:…`.
    """

    call = "cooperative_hold"
    route = OF_GROUP

    group_id: str
    member_id: str
    generation: int
    sequence: int
    lease_ms: int = LEASE_MS
    mode: str = "strict"
    drain_timeout_ms: int = DRAIN_TIMEOUT_MS
    auto_offset_reset: str = "none"
    exact_starts: bool = False
    """Whether the member says each start before it makes it (`Terms`)."""
    partitions: tuple[WantedKeys, ...] = ()


class HeldKeys(NamedTuple):
    """Hashes that the member holds, under this epoch."""

    first: int
    end: int
    epoch: int


class BlockedKeys(NamedTuple):
    """Hashes that the member waits for, because another one holds them."""

    first: int
    end: int
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition(PartitionProgress):
    """What a member holds of one partition.

    granted: what of it is new: what is committed there is to be read anew before a handler starts. ranges: R, where
    something was granted, unless there was no room in the answer: then it is to be asked for
    (`CooperativeOffsetsRequest`). pending: offsets of open transactions, which nobody is to begin. horizon: the member
    begins nothing at it or behind without saying so (`StartEntry`). reaches, starts, abandoned: what others may have
    begun (`cooperative.attempts`), told with `ranges`.
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
    abandoned: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeHoldResponse(Response):
    """lease_ms: how long what is held is the member's, counted from when it sent the request."""

    lease_ms: int = 0
    partitions: tuple[HeldPartition, ...] = ()


class PartitionCommit(NamedTuple):
    """What a member has finished of a partition whose reset epoch it knows. entries: `CommitEntry` by keys, `SpanEntry`
    in free mode; `StartEntry` and `SpanStartEntry` for what it is about to begin."""

    topic_id: uuid.UUID
    partition: int
    reset_epoch: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeCommitRequest(Request["CooperativeCommitResponse"]):
    """Commit records one by one; answered when that is durable."""

    call = "cooperative_commit"
    route = OF_GROUP

    group_id: str
    member_id: str
    partitions: tuple[PartitionCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartition(PartitionProgress):
    """fenced: the places of the entries of which nothing was taken: the member does not hold them any more."""

    fenced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeCommitResponse(Response):
    partitions: tuple[CommittedPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeSettleRequest(Request["CooperativeSettleResponse"]):
    """Commit records of one partition and write their outputs, all in one step or nothing.

    entries, reset_epoch: as of `PartitionCommit`. outputs: not transactional, without producer ids. ordered: nothing is
    written before all offsets before these are committed; they are one run then. generation: of the group, as the
    member knows it: while it waits for its turn, a newer one refuses it.
    """

    group_id: str
    member_id: str
    topic_id: uuid.UUID
    partition: int
    reset_epoch: int
    entries: tuple[CommitEntry | SpanEntry, ...]
    outputs: tuple[SettleOutput, ...] = ()
    ordered: bool = False
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeSettleResponse(PartitionProgress):
    """Without an error all of it is durable. With one nothing of this request is, and nothing will be.

    With INVALID_RECORD_STATE, fenced: offsets whose keys the member does not hold any more; committed: offsets that are
    finished already, be it by this very request, whose first answer was lost. outputs: those that are why it was
    refused, where they are.
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


# --- record by record -------------------------------------------------------------------------------------------------


class SpanEpochs(NamedTuple):
    """Spans of a partition, by their epochs."""

    topic_id: uuid.UUID
    partition: int
    epochs: tuple[int, ...]


class TakenFrom(NamedTuple):
    """A partition that a member takes records of. committed: as in `WantedKeys`."""

    topic_id: uuid.UUID
    partition: int
    committed: GroupOffset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeTakeRequest(Request["CooperativeTakeResponse"]):
    """Give back spans, renew the leases of others, and take up to `count` offsets of the first partition that has any.

    count 0: take nothing. max_wait_ms: how long to wait where nothing is free, at most `TAKE_WAIT_MS_MAX`.
    """

    call = "cooperative_take"
    route = OF_GROUP

    group_id: str
    member_id: str
    count: int = 0
    max_wait_ms: int = 0
    lease_ms: int = LEASE_MS
    auto_offset_reset: str = "none"
    exact_starts: bool = False
    """Whether the member says each start before it makes it (`Terms`)."""
    partitions: tuple[TakenFrom, ...] = ()
    renew: tuple[SpanEpochs, ...] = ()
    give_back: tuple[SpanEpochs, ...] = ()


class TakenSpan(NamedTuple):
    """Offsets that are the member's, under this epoch, for the lease."""

    first: int
    end: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenPartition(PartitionProgress):
    """Spans of one partition, or why there cannot be any. reaches, starts, abandoned: what others may have begun of
    these offsets."""

    spans: tuple[TakenSpan, ...] = ()
    reaches: tuple[Reach, ...] = ()
    starts: tuple[Pair, ...] = ()
    abandoned: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeTakeResponse(Response):
    """partitions: those of which something was taken, and those that are refused. lost: what was to be renewed or given
    back and is not the member's any more."""

    lease_ms: int = 0
    partitions: tuple[TakenPartition, ...] = ()
    lost: tuple[SpanEpochs, ...] = ()


# --- for tools --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeOffsetsRequest(Request["CooperativeOffsetsResponse"]):
    """How far a group is. topics: partitions by topic; None: all that it has state of.

    ranges_from: None: without R; else the ranges that begin at this offset or behind it, as many as an answer holds.
    """

    call = "cooperative_offsets"
    route = OF_GROUP

    group_id: str
    topics: Mapping[str, tuple[int, ...]] | None = None
    ranges_from: int | None = None


class ToldClaim(NamedTuple):
    """What a member holds: hashes in a partition that is shared by keys, else offsets."""

    first: int
    end: int
    member_id: str
    epoch: int


class ToldWait(NamedTuple):
    """Hashes that a member waits for until `holder` gives them back, since `waited_ms` ago."""

    first: int
    end: int
    member_id: str
    holder: str
    waited_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets(PartitionProgress):
    """State of one partition. more: R goes on behind `ranges`. unstable: a transaction that is open may add to it.

    reaches, starts, abandoned: what was begun by members that are gone, told with `ranges`.
    unfinished: offsets from S to the log's end that are not committed, −1 when that end is not known. blocked, lapsed,
    overlaps: counted since the server loaded the partition: `ClaimCounts`.
    """

    topic: str
    ranges: OffsetColumns | None = None
    more: bool = False
    unstable: bool = False
    claims: tuple[ToldClaim, ...] = ()
    spans: tuple[ToldClaim, ...] = ()
    waits: tuple[ToldWait, ...] = ()
    reaches: tuple[Reach, ...] = ()
    starts: tuple[Pair, ...] = ()
    abandoned: tuple[OffsetRange, ...] = ()
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

    call = "cooperative_reset"
    route = OF_GROUP

    group_id: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeResetResponse(Response):
    reset_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeDeleteRequest(Request["CooperativeDeleteResponse"]):
    """Delete a group that has no members with all that is kept of it. topics: only what is kept of these partitions,
    after their committed offsets were deleted (`OffsetDeleteRequest`), where those are another server's."""

    call = "cooperative_delete"
    route = OF_GROUP

    group_id: str
    topics: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeDeleteResponse(Response):
    """It is gone, or why not."""
