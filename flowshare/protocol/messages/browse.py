"""Browse a share-partition without acquiring, and act on records that members hold (flowshare's own)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from flowshare.protocol.declaration import OF_GROUP, Route, To
from flowshare.protocol.messages.base import Request, Response
from flowshare.protocol.private import (
    May,
    Number,
    NumberOrNone,
    OwnCall,
    Pair,
    Text,
    on_group,
    on_group_and_topic,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.share.browse import Hole, SeenRuns
from flowshare.share.intervene import Intervened
from flowshare.share.types import BlockedKey

RUNS_MAX: Final = 10_000
"""The most runs and holes in one answer."""
RANGES_MAX: Final = 1_000
"""The most ranges that one call acts on."""
RECORDS_MAX: Final = 10_000
"""The most records that one call acts on."""
STATES_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBrowseRequest(Request["ShareBrowseResponse"]):
    """Ask for the runs of a share-partition. offset: the first one; −1: the share-partition's start. limit: runs and
    holes, 1 to `RUNS_MAX`. states: only runs in these, by the names of `share.browse`; empty: all, and holes."""

    group_id: Text
    topic: Text
    partition: Number
    offset: NumberOrNone = -1
    limit: Annotated[int, Meta(ge=1, le=RUNS_MAX)] = RUNS_MAX
    states: Annotated[tuple[Text, ...], Meta(max_length=STATES_MAX)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBrowseResponse(Response):
    """The records of a share-partition at one moment, `taken_ms` (of the machine's clock), in ascending order.

    loaded: True: the state by which the leader decides; False: the stored state, nothing was loaded. start_offset: −1:
    the share-partition was never initialised. log_start to last_stable: bounds of the log. leader: node id of the
    worker that leads the share-partition, −1: there is only one server. next: the offset where to go on, −1: there is
    no more. order: `share.key.order` of the group.
    """

    taken_ms: int = 0
    loaded: bool = False
    start_offset: int = -1
    end_offset: int = -1
    log_start: int = -1
    log_end: int = -1
    last_stable: int = -1
    leader: int = -1
    leader_epoch: int = -1
    next: int = -1
    runs: SeenRuns = field(default_factory=SeenRuns)
    holes: tuple[Hole, ...] = ()
    order: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlacesRequest(Request["SharePlacesResponse"]):
    """Ask for the partitions that a group has begun with; nothing is loaded for the answer."""

    group_id: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlacesResponse(Response):
    """Topic and partition of each share-partition with state, in order, but for topics that do not exist any more."""

    places: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareInterveneRequest(Request["ShareInterveneResponse"]):
    """Act on records that members hold, or that wait. ranges: ascending and disjoint, first and last inclusive.

    act: release, reject, dead_letter or now (`share.intervene`). dry_run: only report what would be done.
    """

    group_id: Text
    topic: Text
    partition: Number
    act: Text
    ranges: Annotated[tuple[Pair, ...], Meta(min_length=1, max_length=RANGES_MAX)]
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareInterveneResponse(Response):
    """The outcome for the records of each range; it is durable."""

    found: tuple[Intervened, ...] = ()


class Standing(NamedTuple):
    """The state of a share-partition in a few numbers, as in `SharePartitionOffsets`, with the log's end.

    lag: −1: not known. oldest_ms: timestamp of the first unfinished record, −1: none or not known. stuck: as in
    `SharePartitionOffsets`.
    """

    group_id: str
    topic: str
    partition: int
    start_offset: int = -1
    log_end: int = -1
    lag: int = -1
    in_flight: int = 0
    delayed: int = 0
    blocked: int = 0
    archiving: int = 0
    parked: int = 0
    redeliveries: int = 0
    oldest_ms: int = -1
    stuck: tuple[BlockedKey, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareChangesRequest(Request["ShareChangesResponse"]):
    """Ask for the states of the share-partitions that a server leads, as far as they changed since an earlier answer.

    node: the worker of a fleet; −1: any, its answer names the others. server, since: `server` and `version` of its last
    answer; another or restarted server reports everything.
    """

    node: NumberOrNone = -1
    server: Text = ""
    since: Number = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareChangesResponse(Response):
    """The changed states, of groups that the caller may DESCRIBE. whole: True: `rows` are complete, others are gone.
    gone: group, topic and partition that this server leads no more, or has forgotten. node: this worker's id, nodes:
    ids of its whole fleet; −1 and empty: a server without a fleet."""

    server: str = ""
    version: int = 0
    whole: bool = True
    rows: tuple[Standing, ...] = ()
    gone: tuple[tuple[str, str, int], ...] = ()
    node: int = -1
    nodes: tuple[int, ...] = ()


def _places_shown(answer: SharePlacesResponse, may: May) -> SharePlacesResponse:
    """Leave out partitions of topics that the peer may not describe."""
    shown = (one for one in answer.places if may(Operation.DESCRIBE, ResourceType.TOPIC, one[0]))
    return replace(answer, places=tuple(shown))


def _changes_shown(answer: ShareChangesResponse, may: May) -> ShareChangesResponse:
    """Leave out rows of groups and topics that the peer may not describe; each is checked once."""
    checked: dict[tuple[ResourceType, str], bool] = {}

    def known(group_id: str, topic: str) -> bool:
        for one in ((ResourceType.GROUP, group_id), (ResourceType.TOPIC, topic)):
            if one not in checked:
                checked[one] = may(Operation.DESCRIBE, *one)
            if not checked[one]:
                return False
        return True

    return replace(
        answer,
        rows=tuple(row for row in answer.rows if known(row.group_id, row.topic)),
        gone=tuple(one for one in answer.gone if known(one[0], one[1])),
    )


BROWSE_CALLS: Final = (
    OwnCall(
        "share_places",
        SharePlacesRequest,
        SharePlacesResponse,
        route=OF_GROUP,
        rights=on_group(Operation.DESCRIBE),
        shown=_places_shown,
    ),
    OwnCall(
        "share_browse",
        ShareBrowseRequest,
        ShareBrowseResponse,
        route=OF_GROUP,
        rights=on_group_and_topic(Operation.DESCRIBE),
    ),
    OwnCall(
        "share_intervene",
        ShareInterveneRequest,
        ShareInterveneResponse,
        route=OF_GROUP,
        rights=on_group_and_topic(Operation.READ),
    ),
    OwnCall(
        "share_changes",
        ShareChangesRequest,
        ShareChangesResponse,
        route=Route(To.BROKER, lambda request: request.node if request.node >= 0 else None),
        shown=_changes_shown,
    ),
)
