"""Looking at a share-partition without taking anything, and acting on what others hold (flowshare's own)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flowshare.protocol.declaration import OF_GROUP, Route, To
from flowshare.protocol.messages.base import Request, Response
from flowshare.share.browse import Hole, SeenRuns
from flowshare.share.intervene import Intervened
from flowshare.share.types import BlockedKey

RUNS_MAX: Final = 10_000
"""Runs and holes in one answer."""
RANGES_MAX: Final = 1_000
"""Ranges that one call acts on."""
RECORDS_MAX: Final = 10_000
"""Records that one call acts on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBrowseRequest(Request["ShareBrowseResponse"]):
    """offset: where to begin; −1: where the share-partition does. limit: runs and holes, 1 to `RUNS_MAX`. states: only
    runs in one of them, by the names of `share.browse`; none: all, and holes."""

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
    """What stands there at one moment, `taken_ms` (of the machine's clock), ascending.

    loaded: it is what the leader decides by; False: what is stored, nothing was loaded. start_offset: −1: it was never
    initialised. log_start to last_stable: of the log. leader: node id of the worker that leads it, −1: there is one
    server. next: where to go on, −1: that was all. order: `share.key.order` of the group.
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
    """With which partitions a group has begun; nothing is loaded to know it."""

    route = OF_GROUP
    call = "share_places"

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlacesResponse(Response):
    """Topic and partition of each share-partition that has state, in order; those of topics that are gone are not."""

    places: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareInterveneRequest(Request["ShareInterveneResponse"]):
    """Act on records that others hold, or that wait. ranges: ascending and disjoint, first and last inclusive.

    act: release, reject, dead_letter or now (`share.intervene`). dry_run: say what would be done.
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
    """What became of the records of each range; durable."""

    found: tuple[Intervened, ...] = ()


class Standing(NamedTuple):
    """Where a share-partition stands, as `SharePartitionOffsets`, with the log's end; in a few numbers.

    lag: −1: not known. oldest_ms: timestamp of the first unfinished record, −1: none or not known. stuck: as told in
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
    """How the share-partitions stand that one server leads, as far as that has changed since an earlier answer.

    node: which one of a fleet's workers; −1: any, it says who else there is. server, since: `server` and `version` of
    its last answer; another server, or one that was started anew, tells all.
    """

    route = Route(To.BROKER, _node)
    call = "share_changes"

    node: int = -1
    server: str = ""
    since: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareChangesResponse(Response):
    """whole: `rows` are all there are, and what is not among them is gone. gone: group, topic and partition of what
    this server leads no more, or has forgotten. Only what the asker may DESCRIBE is told. node: this worker's id,
    nodes: of all of its fleet; −1 and none: it is by itself."""

    server: str = ""
    version: int = 0
    whole: bool = True
    rows: tuple[Standing, ...] = ()
    gone: tuple[tuple[str, str, int], ...] = ()
    node: int = -1
    nodes: tuple[int, ...] = ()
