"""Calls that browse and act, as JSON: what is sent is what is read, and what is no request is refused."""

from __future__ import annotations

import contextlib
import json
import random

import pytest

from flowshare.protocol.browse_codec import CALLS
from flowshare.protocol.cooperative_codec import NUMBER_MAX, Malformed
from flowshare.protocol.messages.browse import (
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
from flowshare.share.browse import Hole, SeenRun, SeenRuns
from flowshare.share.intervene import Intervened
from flowshare.share.types import BlockedKey

KEY = BlockedKey(*range(len(BlockedKey._fields)))
ROW = Standing("gé", "t", 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, (KEY, KEY))
REQUESTS = [
    SharePlacesRequest(group_id="g"),
    ShareBrowseRequest(group_id="g", topic="t", partition=3, offset=5, limit=7, states=("acquired", "hole")),
    ShareInterveneRequest(group_id="g", topic="t", partition=3, act="now", ranges=((0, 3), (5, 5)), dry_run=True),
    ShareChangesRequest(),
    ShareChangesRequest(node=7, server="a-b", since=NUMBER_MAX - 1),
]
ANSWERS = [
    SharePlacesResponse(places=(("t", 0), ("u", 3))),
    ShareBrowseResponse(taken_ms=5, loaded=True, start_offset=1,
                        runs=SeenRuns.of([SeenRun(1, 2, "acquired", 3, "m", 4)]),
                        holes=(Hole(3, 4, "x"),), order="key"),
    ShareBrowseResponse(),
    ShareInterveneResponse(found=(Intervened(0, 3, 1, 2),)),
    ShareChangesResponse(server="s", version=9, whole=False, rows=(ROW, Standing("g", "t", 0)),
                         gone=(("g", "t", 1), ("h", "u", 2)), node=3, nodes=(1, 3)),
    ShareChangesResponse(),
]  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_what_is_asked_is_what_is_read(request_):
    how = CALLS[request_.call]

    assert how.read_request(json.loads(json.dumps(how.request(request_)))) == request_


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: type(one).__name__)
def test_what_is_answered_is_what_is_read(answer):
    name = {"SharePlaces": "share_places", "ShareBrowse": "share_browse", "ShareIntervene": "share_intervene",
            "ShareChanges": "share_changes"}[type(answer).__name__.removesuffix("Response")]  # fmt: skip
    how = CALLS[name]

    assert how.read_answer(json.loads(json.dumps(how.answer(answer)))) == answer


@pytest.mark.parametrize("seed", range(10))
def test_requests_of_any_kind_are_read_or_refused(seed):
    rng = random.Random(seed)
    odd = [
        None,
        -1,
        0,
        1,
        True,
        1 << 63,
        1.5,
        "",
        "g",
        [],
        [[0, 3]],
        [[3, 1]],
        ["acquired"],
        {},
        "\ud800",
        [None],
        [[]],
    ]
    names = (
        "group_id", "topic", "partition", "offset", "limit", "states", "act", "ranges", "dry_run", "node", "server",
        "since",
    )  # fmt: skip
    for _ in range(300):
        body = {name: rng.choice(odd) for name in rng.sample(names, rng.randrange(len(names)))}
        for name, how in CALLS.items():
            with contextlib.suppress(Malformed):
                assert how.read_request(body).call == name, (seed, body)
