"""Browse a share-partition without acquiring, and act on records that members hold (flowshare's own)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flowshare.protocol.declaration import OF_GROUP, Route, To
from flowshare.protocol.messages.base import Request, Response
from flowshare.share.browse import Hole, SeenRuns
from flowshare.share.intervene import Intervened
from flowshare.share.types import BlockedKey

RUNS_MAX: Final = 10_000
"""The most runs and holes in one answer."""
RANGES_MAX: Final = 1_000
"""The most ranges that one call acts on."""
RECORDS_MAX: Final = 10_000
"""The most records that one call acts on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBrowseRequest(Request["ShareBrowseResponse"]):
    """Ask for the runs of a share-partition. offset: the first one; −1: the share-partition's start. limit: runs and
    holes, 1 to `RUNS_MAX`. states: only runs in these, by the names of `share.browse`; empty: all, and holes."""

    route = OF_GROUP
    call = "share_browse"

    group_id: str
    topic: str
    partition: int
    offset: int = -1
    limit: int = RUNS_MAX
    states: tuple[str, ...] = ()


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

    route = OF_GROUP
    call = "share_places"

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlacesResponse(Response):
    """Topic and partition of each share-partition with state, in order, but for topics that do not exist any more."""

    places: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareInterveneRequest(Request["ShareInterveneResponse"]):
    """Act on records that members hold, or that wait. ranges: ascending and disjoint, first and last inclusive.

    act: release, reject, dead_letter or now (`share.intervene`). dry_run: only report what would be done.
    """

    route = OF_GROUP
    call = "share_intervene"

    group_id: str
    topic: str
    partition: int
    act: str
    ranges: tuple[tuple[int, int], ...]
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


def _node(request: ShareChangesRequest) -> int | None:
    return request.node if request.node >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareChangesRequest(Request["ShareChangesResponse"]):
    """Ask for the states of the share-partitions that a server leads, as far as they changed since an earlier answer.

    node: the worker of a fleet; −1: any, its answer names the others. server, since: `server` and `version` of its last
    answer; another or restarted server reports everything.
    """

    route = Route(To.BROKER, _node)
    call = "share_changes"

    node: int = -1
    server: str = ""
    since: int = 0


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
