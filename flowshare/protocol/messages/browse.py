"""Looking at a share-partition without taking anything, and acting on what others hold (flowshare's own)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flowshare.protocol.declaration import OF_GROUP
from flowshare.protocol.messages.base import Request, Response
from flowshare.share.browse import Hole, SeenRun
from flowshare.share.intervene import Intervened

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
    runs: tuple[SeenRun, ...] = ()
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
