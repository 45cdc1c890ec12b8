"""The calls of browsing as JSON: what is written is read again, and what makes no sense is refused."""

from __future__ import annotations

import orjson
import pytest

from flowshare.protocol.browse_codec import CALLS
from flowshare.protocol.cooperative_codec import Malformed
from flowshare.protocol.messages.browse import (
    ShareBrowseRequest,
    ShareBrowseResponse,
    ShareInterveneRequest,
    ShareInterveneResponse,
    SharePlacesRequest,
    SharePlacesResponse,
)
from flowshare.share.browse import Hole, SeenRun, SeenRuns
from flowshare.share.intervene import Intervened

PLACE = {"group_id": "g", "topic": "t", "partition": 3}
REQUESTS = [
    SharePlacesRequest(group_id="größe"),
    ShareBrowseRequest(**PLACE),
    ShareBrowseRequest(**PLACE, offset=7, limit=1, states=("acquired", "hole")),
    ShareInterveneRequest(**PLACE, act="dead_letter", ranges=((0, 0), (2, 9)), dry_run=True),
]
RUNS = SeenRuns.of([SeenRun(5, 7, "acquired", 2, "m", 99), SeenRun(8, 8, "blocked", 0, "", 0, 5)])
ANSWERS = [
    ("share_places", SharePlacesResponse(places=(("t", 0), ("u", 12)))),
    ("share_browse", ShareBrowseResponse()),
    (
        "share_browse",
        ShareBrowseResponse(
            taken_ms=1,
            loaded=True,
            start_offset=5,
            end_offset=9,
            log_start=0,
            log_end=20,
            last_stable=19,
            leader=101,
            leader_epoch=4,
            next=9,
            runs=RUNS,
            holes=(Hole(9, 9, "log"),),
            order="key",
        ),
    ),
    ("share_intervene", ShareInterveneResponse(found=(Intervened(0, 4, 1, 1, 1, 1, 1),))),
]


def sent(body):
    """Return the body as it arrives over a socket."""
    return orjson.loads(orjson.dumps(body))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_a_request_comes_back(request_):
    call = CALLS[request_.call]

    assert call.read_request(sent(call.request(request_))) == request_


@pytest.mark.parametrize(("name", "answer"), ANSWERS, ids=lambda one: one if isinstance(one, str) else "")
def test_an_answer_comes_back(name, answer):
    call = CALLS[name]

    assert call.read_answer(sent(call.answer(answer))) == answer


ACT = {**PLACE, "act": "now", "ranges": [[0, 1]]}


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("share_places", {}, "group_id is no text"),
        ("share_places", {"group_id": "g" * 5_000}, "group_id is no text"),
        ("share_browse", {**PLACE, "topic": None}, "topic is no text"),
        ("share_browse", {**PLACE, "partition": -1}, "partition is no number"),
        ("share_browse", {**PLACE, "partition": 1.0}, "partition is no number"),
        ("share_browse", {**PLACE, "limit": 0}, "limit is no number"),
        ("share_browse", {**PLACE, "limit": 10_001}, "limit is no number"),
        ("share_browse", {**PLACE, "offset": "1"}, "offset is no number"),
        ("share_browse", {**PLACE, "states": {}}, "states is no list"),
        ("share_browse", {**PLACE, "states": ["acquired"] * 21}, "states is no list"),
        ("share_browse", {**PLACE, "states": [["acquired"]]}, "states holds"),
        ("share_browse", {**PLACE, "states": ["gone"]}, "there is no state"),
        ("share_intervene", {**ACT, "act": "burn"}, "act is none of"),
        ("share_intervene", {**ACT, "act": {}}, "act is none of"),
        ("share_intervene", {**ACT, "dry_run": 1}, "dry_run is neither"),
        ("share_intervene", {**ACT, "ranges": []}, "ranges is no list"),
        ("share_intervene", {**ACT, "ranges": [[0, 0]] * 1_001}, "ranges is no list"),
        ("share_intervene", {**ACT, "ranges": [3]}, "no pair of offsets"),
        ("share_intervene", {**ACT, "ranges": [[1, 0]]}, "ascending and disjoint"),
        ("share_intervene", {**ACT, "ranges": [[0, 4], [4, 5]]}, "ascending and disjoint"),
        ("share_intervene", {**ACT, "ranges": [[0, 10_000]]}, "10000 records at most"),
    ],
)
def test_what_makes_no_sense_is_refused(name, body, why):
    with pytest.raises(Malformed, match=why):
        CALLS[name].read_request(body)
