"""As many names as a request may have: what is done with each does not depend on how many others there are.

Where it did, the server stood still for minutes, and the client's time limit ended the test. Nor do all of them hold
up what others ask.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from flowshare.protocol.kafka import REQUEST_PARTS_MAX, ApiKey
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    FetchRequest,
    OffsetCommitRequest,
    OffsetToCommit,
)
from flowshare.server.edge import base
from flowshare.server.edge.base import AdvertisedNode, Peer, SocketCall
from flowshare.server.net.listener import LARGE_AT_ONCE
from flowshare.server.net.requests import PARTS
from flowshare.server.runtime import answers
from flowshare.server.runtime.answers import AnswerSpace
from flowshare.server.runtime.turns import TURN, Turns
from flowshare.testing.clock import ManualClock
from tests.server.edge.kit import Edge, build, edge, errors, ms, part
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

NAMES = [f"n{number}" for number in range(REQUEST_PARTS_MAX - 2)]
TOPICS = [part(name=name) for name in NAMES]
REQUESTS = {
    "delete_groups": (2, {"groups_names": NAMES}, {"group_id_not_found"}),
    "describe_topic_partitions": (
        0,
        {"topics": TOPICS, "response_partition_limit": 2_000, "cursor": None},
        {"unknown_topic_or_partition"},
    ),
    "list_transactions": (1, {"state_filters": NAMES, "producer_id_filters": [], "duration_filter": -1}, set()),
    "find_coordinator": (6, {"coordinator_keys": NAMES, "key_type": 0}, set()),
    "metadata": (
        9,
        {
            "topics": TOPICS,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False,
        },
        {"unknown_topic_or_partition"},
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_of_tens_of_thousands_of_names_is_answered(name: str) -> None:
    version, fields, told = REQUESTS[name]
    async with edge() as e:
        s = await e.socket()
        assert errors(await s.ask(name, version, **fields)) == told


@pytest.mark.parametrize("count", [PARTS // 2, PARTS + 1])
@pytest.mark.parametrize("name", ["produce", "delete_groups"])
async def test_a_request_of_many_parts_is_read_beside_the_loop_however_few_bytes_it_has(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by: list[int] = []
    read = base.read_request

    def noted(*args: Any, **options: Any) -> Any:
        found = read(*args, **options)
        read_by.append(threading.get_ident())
        return found

    monkeypatch.setattr(base, "read_request", noted)
    nothing = [part(index=number, records=None) for number in range(count)]
    fields: dict[str, Any] = {
        "produce": {
            "transactional_id": None,
            "acks": 1,
            "timeout": ms(1),
            "topic_data": [part(name="t", partition_data=nothing)],
        },
        "delete_groups": {"groups_names": NAMES[:count]},
    }[name]
    async with edge() as e:
        s = await e.socket()
        await s.ask(name, 3 if name == "produce" else 2, **fields)
    assert [one != threading.get_ident() for one in read_by] == [count > PARTS]


MANY_PARTS = {
    "max_wait": ms(600_000),
    "min_bytes": 1,
    "max_bytes": 1,
    "isolation_level": 0,
    "topics": [
        part(topic="t", partitions=[part(partition=n, fetch_offset=0, partition_max_bytes=1) for n in range(PARTS + 1)])
    ],
}
"""A Fetch."""


async def test_requests_of_many_parts_are_bytes_until_they_have_a_place_and_others_are_answered() -> None:
    async with edge() as e:
        for _ in range(LARGE_AT_ONCE):
            await e.listener.places.take("others")
        large, small = await e.socket(), await e.socket()
        await large.tell("delete_groups", 2, groups_names=NAMES)
        assert errors(await small.ask("delete_groups", 2, groups_names=NAMES[:9])) == {"group_id_not_found"}
        assert e.listener.pool.held > len(NAMES)
        for _ in range(LARGE_AT_ONCE):
            e.listener.places.give()
        assert errors(await large.answer("delete_groups", 2)) == {"group_id_not_found"}
        assert e.listener.places.free == LARGE_AT_ONCE


async def test_a_fetch_of_many_partitions_that_waits_has_no_place() -> None:
    async with edge() as e:
        await e.topic("t", partitions=PARTS + 1)
        s = await e.socket()
        await s.tell("fetch", 4, **MANY_PARTS)
        await until(lambda: e.server._handlers[FetchRequest].__self__._purgatory)
        await until(lambda: e.listener.places.free == LARGE_AT_ONCE)


FEW = NAMES[: 4 * TURN]
NUMBERS = range(4 * TURN)
TO_MAKE = [part(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for name in FEW]
WITH_TURNS = {
    **{name: (version, fields) for name, (version, fields, _) in REQUESTS.items() if name != "list_transactions"},
    "describe_groups": (5, {"groups": FEW, "include_authorized_operations": True}),
    "share_group_describe": (1, {"group_ids": FEW, "include_authorized_operations": True}),
    "describe_share_group_offsets": (1, {"groups": [part(group_id=name, topics=None) for name in FEW]}),
    "offset_fetch": (8, {"groups": [part(group_id=name, topics=None) for name in FEW], "require_stable": False}),
    "describe_transactions": (0, {"transactional_ids": FEW}),
    "describe_producers": (0, {"topics": [part(name="t", partition_indexes=list(NUMBERS))]}),
    "list_offsets": (
        7,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [part(name="t", partitions=[part(partition_index=n, timestamp=-1) for n in NUMBERS])],
        },
    ),
    "offset_for_leader_epoch": (
        4,
        {
            "replica_id": -2,
            "topics": [part(topic="t", partitions=[part(partition=n, leader_epoch=0) for n in NUMBERS])],
        },
    ),
    "delete_records": (
        2,
        {
            "topics": [part(name="t", partitions=[part(partition_index=n, offset=-1) for n in NUMBERS])],
            "timeout": ms(0),
        },
    ),
    "fetch": (
        11,
        {
            "replica_id": -1,
            "max_wait": ms(0),
            "min_bytes": 0,
            "isolation_level": 0,
            "topics": [
                part(topic="t", partitions=[part(partition=n, fetch_offset=0, partition_max_bytes=1) for n in NUMBERS])
            ],
            "forgotten_topics_data": [],
            "rack_id": "",
        },
    ),
    "create_topics": (5, {"topics": TO_MAKE, "timeout": ms(0), "validate_only": True}),
    "delete_topics": (5, {"topic_names": FEW, "timeout": ms(0)}),
    "create_partitions": (
        3,
        {
            "topics": [part(name=name, count=2, assignments=None) for name in FEW],
            "timeout": ms(0),
            "validate_only": False,
        },
    ),
    "incremental_alter_configs": (
        1,
        {"resources": [part(resource_type=2, resource_name=name, configs=[]) for name in FEW], "validate_only": False},
    ),
    "describe_configs": (
        4,
        {
            "resources": [part(resource_type=2, resource_name=name, configuration_keys=None) for name in FEW],
            "include_synonyms": True,
            "include_documentation": True,
        },
    ),
}


TO_COMMIT = [
    part(
        name="t",
        partitions=[
            part(partition_index=n, committed_offset=1, committed_leader_epoch=-1, committed_metadata="")
            for n in NUMBERS
        ],
    )
]
COMMIT = {"group_id": "g", "member_id": "", "group_instance_id": None, "topics": TO_COMMIT}
IN_PARTS = {
    "offset_commit": (8, {**COMMIT, "generation_id_or_member_epoch": -1}),
    "txn_offset_commit": (
        3,
        {**COMMIT, "transactional_id": "x", "producer_id": 0, "producer_epoch": 0, "generation_id": -1},
    ),
    "offset_delete": (
        0,
        {"group_id": "g", "topics": [part(name="t", partitions=[part(partition_index=n) for n in NUMBERS])]},
    ),
    "offset_fetch": (
        8,
        {
            "groups": [part(group_id="g", topics=[part(name="t", partition_indexes=list(NUMBERS))])],
            "require_stable": True,
        },
    ),
    "add_partitions_to_txn": (
        3,
        {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": 0,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [part(name="t", partitions=list(NUMBERS))],
        },
    ),
    "produce": (
        9,
        {
            "transactional_id": None,
            "acks": -1,
            "timeout": ms(0),
            "topic_data": [part(name="t", partition_data=[part(index=n, records=b"") for n in NUMBERS])],
        },
    ),
    "leave_group": (
        4,
        {"group_id": "g", "members": [part(member_id=name, group_instance_id=None) for name in FEW]},
    ),
    "alter_share_group_offsets": (
        0,
        {
            "group_id": "s",
            "topics": [part(topic_name="t", partitions=[part(partition_index=n, start_offset=0) for n in NUMBERS])],
        },
    ),
    "describe_share_group_offsets": (
        1,
        {"groups": [part(group_id="s", topics=[part(topic_name="t", partitions=list(NUMBERS))])]},
    ),
    "delete_share_group_offsets": (0, {"group_id": "s", "topics": [part(topic_name=name) for name in FEW]}),
    "metadata": (
        9,
        {
            "topics": [part(name="t")],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False,
        },
    ),
    **{name: WITH_TURNS[name] for name in ("list_offsets", "offset_for_leader_epoch", "delete_records", "fetch")},
}


TIMES = {"metadata": 1}
"""How often at least all parts are gone through, where it is not twice."""


@pytest.mark.parametrize("name", IN_PARTS)
async def test_a_request_of_many_partitions_lets_others_run_while_it_is_read_and_while_it_is_answered(
    name: str,
) -> None:
    version, fields = IN_PARTS[name]
    async with edge() as e:
        await e.topic("t", partitions=len(NUMBERS))
        await e.admin.send(OffsetCommitRequest(group_id="g", offsets=(OffsetToCommit("t", 0, 1),)))
        await e.admin.send(AlterShareGroupOffsetsRequest(group_id="s", offsets={("t", 0): 0}))
        rounds = await rounds_of(e, name, version, fields)
    # A turn for a part of it each time that it is gone through: when it is read, and when it is done or answered.
    assert rounds >= TIMES.get(name, 2) * len(NUMBERS) // TURN


@pytest.mark.parametrize("name", WITH_TURNS)
async def test_a_request_of_many_names_lets_others_run_after_every_few(name: str) -> None:
    version, fields = WITH_TURNS[name]
    async with edge() as e:
        assert await rounds_of(e, name, version, fields) >= len(NUMBERS) // TURN


async def rounds_of(e: Edge, name: str, version: int, fields: dict[str, Any]) -> int:
    """Rounds of the loop in which the request is answered, on a clock that tells of no time that passes."""
    node = AdvertisedNode(host="127.0.0.1", port=1)
    peer = Peer(server=e.server, connection=e.admin, node=node, host="127.0.0.1", turns=Turns(ManualClock()))
    call = SocketCall(peer=peer, version=version, client_id="c", request=build(name, version, **fields))
    answers.enter(AnswerSpace(turns=peer.turns))
    answering = asyncio.ensure_future(e.listener.endpoints[ApiKey[name.upper()]].answer(call))
    rounds = 0
    while not answering.done():
        await asyncio.sleep(0)
        rounds += 1
    await answering
    return rounds
