"""The calls `share_places`, `share_browse` and `share_intervene` as JSON, under flowshare's own API key
(`protocol.private`); both ends.

    share_places     {group_id} -> {places: [[topic, partition], …]}
    share_browse     {group_id, topic, partition, offset: −1 or where to begin, limit, states: [name, …]}
                     -> {facts: [taken_ms, loaded, start_offset, end_offset, log_start, log_end, last_stable, leader,
                     leader_epoch, next, order], runs: [firsts, lasts, states, delivery counts, members, due_ms, heads],
                     holes: [[first, last, why], …]}
    share_intervene  {group_id, topic, partition, act, ranges: [[first, last], …], dry_run}
                     -> {found: [[first, last, done, not_held, gone, busy, blocked], …]}
    share_changes    {node, server, since} -> {server, version, whole, rows: [fields of `Standing`, …],
                     gone: [[group_id, topic, partition], …], node, nodes: [node, …]}

Runs travel as columns, as there may be 10,000. Nothing in a request is trusted: every field is checked when
it is read. Workers of a fleet ask each other with the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, cast

from flowshare.protocol.cooperative_codec import NUMBER_MAX, TEXT_MAX, Call, Malformed
from flowshare.protocol.messages.browse import (
    RANGES_MAX,
    RECORDS_MAX,
    RUNS_MAX,
    ShareBrowseRequest,
    ShareBrowseResponse,
    ShareChangesRequest,
    ShareChangesResponse,
    ShareInterveneRequest,
    ShareInterveneResponse,
    SharePlacesRequest,
    SharePlacesResponse,
    Standing,
)
from flowshare.share.browse import Hole, SeenRuns, wanted_states
from flowshare.share.intervene import Act, Intervened
from flowshare.share.ranges import Range
from flowshare.share.types import BlockedKey

Body = dict[str, Any]
STATES_MAX: Final = 20
FACTS: Final = (
    "taken_ms", "loaded", "start_offset", "end_offset", "log_start", "log_end", "last_stable", "leader",
    "leader_epoch", "next", "order",
)  # fmt: skip


def _place(body: Mapping[str, Any]) -> Body:
    """Read the fields that name a share-partition. Raises: Malformed."""
    return {
        **{name: _text(body.get(name), name) for name in ("group_id", "topic")},
        "partition": _number(body.get("partition"), "partition"),
    }


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise Malformed(f"{what} is no text of at most {TEXT_MAX} characters")
    return value


def _number(value: object, what: str, least: int = 0, most: int = NUMBER_MAX - 1) -> int:
    if type(value) is not int or not least <= value <= most:
        raise Malformed(f"{what} is no number from {least} to {most}")
    return value


def _places(request: SharePlacesRequest) -> Body:
    return {"group_id": request.group_id}


def _read_places(body: Mapping[str, Any]) -> SharePlacesRequest:
    return SharePlacesRequest(group_id=_text(body.get("group_id"), "group_id"))


def _placed(answer: SharePlacesResponse) -> Body:
    return {"places": answer.places}


def _read_placed(body: Body) -> SharePlacesResponse:
    return SharePlacesResponse(places=tuple((str(topic), int(partition)) for topic, partition in body["places"]))


def _browse(request: ShareBrowseRequest) -> Body:
    names = ("group_id", "topic", "partition", "offset", "limit", "states")
    return {name: getattr(request, name) for name in names}


def _read_browse(body: Mapping[str, Any]) -> ShareBrowseRequest:
    states = body.get("states", [])
    if not isinstance(states, list) or len(named := cast("list[object]", states)) > STATES_MAX:
        raise Malformed(f"states is no list of at most {STATES_MAX} names")
    texts = tuple(one for one in named if isinstance(one, str))
    if len(texts) < len(named):
        raise Malformed("states holds what is no text")
    try:
        wanted_states(texts)
    except ValueError as error:
        raise Malformed(str(error)) from None
    return ShareBrowseRequest(
        **_place(body),
        offset=_number(body.get("offset", -1), "offset", -1),
        limit=_number(body.get("limit", RUNS_MAX), "limit", 1, RUNS_MAX),
        states=texts,
    )


def _browsed(answer: ShareBrowseResponse) -> Body:
    return {
        "facts": [getattr(answer, name) for name in FACTS],
        "runs": answer.runs.columns,
        "holes": [tuple(one) for one in answer.holes],
    }


def _read_browsed(body: Body) -> ShareBrowseResponse:
    return ShareBrowseResponse(
        **dict(zip(FACTS, body["facts"], strict=False)),
        runs=SeenRuns(*body["runs"]),
        holes=tuple(Hole(*hole) for hole in body["holes"]),
    )


def _intervene(request: ShareInterveneRequest) -> Body:
    names = ("group_id", "topic", "partition", "act", "ranges", "dry_run")
    return {name: getattr(request, name) for name in names}


def _read_intervene(body: Mapping[str, Any]) -> ShareInterveneRequest:
    act, dry_run = body.get("act"), body.get("dry_run", False)
    if not isinstance(act, str) or act not in {one.value for one in Act}:
        raise Malformed(f"act is none of {', '.join(Act)}")
    if not isinstance(dry_run, bool):
        raise Malformed("dry_run is neither true nor false")
    ranges = _ranges(body.get("ranges"))
    return ShareInterveneRequest(**_place(body), act=act, ranges=ranges, dry_run=dry_run)


def _ranges(value: object) -> tuple[Range, ...]:
    if not isinstance(value, list) or not 1 <= len(pairs := cast("list[object]", value)) <= RANGES_MAX:
        raise Malformed(f"ranges is no list of 1 to {RANGES_MAX} pairs")
    found: list[Range] = []
    for one in pairs:
        if not isinstance(one, list) or len(pair := cast("list[object]", one)) != 2:
            raise Malformed("ranges holds what is no pair of offsets")
        found.append((_number(pair[0], "an offset"), _number(pair[1], "an offset")))
    check_ranges(found)
    return tuple(found)


def check_ranges(ranges: Sequence[Range]) -> None:
    """Check the ranges of a call: ascending, disjoint, at most RECORDS_MAX records together. Raises: Malformed."""
    if any(last < first for first, last in ranges) or any(b[0] <= a[1] for a, b in pairwise(ranges)):
        raise Malformed("ranges are to be ascending and disjoint, each from its first to its last offset")
    if sum(last - first + 1 for first, last in ranges) > RECORDS_MAX:
        raise Malformed(f"one call acts on {RECORDS_MAX} records at most; send several")


def _intervened(answer: ShareInterveneResponse) -> Body:
    return {"found": [tuple(one) for one in answer.found]}


def _read_intervened(body: Body) -> ShareInterveneResponse:
    return ShareInterveneResponse(found=tuple(Intervened(*one) for one in body["found"]))


def _changes(request: ShareChangesRequest) -> Body:
    return {"node": request.node, "server": request.server, "since": request.since}


def _read_changes(body: Mapping[str, Any]) -> ShareChangesRequest:
    server = body.get("server", "")
    if not isinstance(server, str) or len(server) > TEXT_MAX:
        raise Malformed(f"server is no text of at most {TEXT_MAX} characters")
    return ShareChangesRequest(
        node=_number(body.get("node", -1), "node", -1), server=server, since=_number(body.get("since", 0), "since")
    )


def _changed(answer: ShareChangesResponse) -> Body:
    return {
        "server": answer.server,
        "version": answer.version,
        "whole": answer.whole,
        "rows": [[*row[:-1], [list(key) for key in row.stuck]] for row in answer.rows],
        "gone": [list(one) for one in answer.gone],
        "node": answer.node,
        "nodes": list(answer.nodes),
    }


def _read_changed(body: Body) -> ShareChangesResponse:
    return ShareChangesResponse(
        server=body["server"],
        version=body["version"],
        whole=body["whole"],
        rows=tuple(Standing._make((*row, tuple(BlockedKey(*key) for key in stuck))) for *row, stuck in body["rows"]),
        gone=tuple((group_id, topic, partition) for group_id, topic, partition in body["gone"]),
        node=body["node"],
        nodes=tuple(body["nodes"]),
    )


CALLS: Final[Mapping[str, Call]] = {
    str(SharePlacesRequest.call): Call(_places, _read_places, _placed, _read_placed, SharePlacesResponse),
    str(ShareChangesRequest.call): Call(_changes, _read_changes, _changed, _read_changed, ShareChangesResponse),
    str(ShareBrowseRequest.call): Call(_browse, _read_browse, _browsed, _read_browsed, ShareBrowseResponse),
    str(ShareInterveneRequest.call): Call(
        _intervene, _read_intervene, _intervened, _read_intervened, ShareInterveneResponse
    ),
}
"""The codec of each call, by name."""
