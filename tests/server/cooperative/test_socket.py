"""Cooperative groups over TCP: members that race, rights, and requests that make no sense."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager

import pytest

from flowshare.client.errors import ServerError
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.cooperative.types import HASHES
from flowshare.protocol.decoding import decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CooperativeCommitRequest,
    CooperativeOffsetsRequest,
    CooperativeResetRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from flowshare.protocol.messages.cooperative import PartitionCommit, stable_metadata
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.share.config import ServerConfig
from tests.client.sockets import raw_call
from tests.server.cooperative.world import LOWER, NONE, UPPER, WHOLE, Member
from tests.server.edge.kit import edge
from tests.server.test_settle import output
from tests.server.world import batch

pytestmark = pytest.mark.asyncio
READ, DESCRIBE = Operation.READ, Operation.DESCRIBE
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


class Site:
    """A listening server with a topic `t`."""

    def __init__(self, made, topic_id) -> None:
        self.edge = made
        self.topic_id = topic_id
        self.connections = []

    async def connect(self, name: str = "c"):
        made = await open_tcp(
            self.edge.host, self.edge.port, client_id=name, clock=self.edge.server.clock, settings=LinkSettings()
        )
        self.connections.append(made)
        return made

    async def member(self, name: str) -> Member:
        connection = await self.connect(name)
        made = Member(connection.send, name, self.topic_id)
        made.connection = connection
        made.lease_ms = 600_000  # time is real here, and the machine may be slow
        return made


@asynccontextmanager
async def site(*denied, records: int = 100, partitions: int = 1, config: ServerConfig | None = None):
    async with edge(*denied, config=config) as made:
        topic_id = await made.topic("t", partitions)
        for partition in range(partitions) if records else ():
            await made.admin.send(ProduceRequest(topic="t", partition=partition, records=batch(records)))
        here = Site(made, topic_id)
        try:
            yield here
        finally:
            for connection in here.connections:
                await connection.close()


# --- members ----------------------------------------------------------------------------------------------------------


async def test_a_member_over_tcp_is_told_what_one_in_the_process_is():
    async with site() as s:
        m = await s.member("m")
        first = await m.hold(WHOLE)
        await m.commit((3, 5), (7, 9))
        local = s.edge.server.connect(client_id="look")
        remote = await s.connect()

        request = CooperativeOffsetsRequest(group_id="g", ranges_from=0)
        assert await remote.send(request) == await local.send(request)
        assert first.ranges.pairs() == []
        fetched = await remote.send(OffsetFetchRequest(group_id="g", partitions=(("t", 0),)))
        assert fetched.partitions[0].metadata == stable_metadata(first.reset_epoch, first.topic_id)


async def test_two_members_that_race_over_tcp_never_hold_the_same_keys():
    async with site() as s:
        a, b = await s.member("a"), await s.member("b")
        for _ in range(20):
            one, two = await asyncio.gather(a.hold(WHOLE), b.hold(WHOLE))
            assert bool(one.held) != bool(two.held)
            assert (one.blocked or two.blocked)[0].holder == ("b" if two.held else "a")
            await asyncio.gather(a.leaves(), b.leaves())


async def test_two_members_commit_their_parts_over_tcp_and_nothing_is_lost():
    async with site(records=200) as s:
        a, b = await s.member("a"), await s.member("b")
        await a.hold(LOWER)
        await b.hold(UPPER)

        await asyncio.gather(
            *(a.commit((offset, offset + 1)) for offset in range(0, 200, 2)),
            *(b.commit((offset, offset + 1)) for offset in range(1, 200, 2)),
        )

        answer = await (await s.connect()).send(CooperativeOffsetsRequest(group_id="g", ranges_from=0))
        assert (answer.partitions[0].stable, answer.partitions[0].count) == (200, 0)


async def test_two_members_settle_over_tcp_and_each_output_is_there_once():
    async with site(records=60) as s:
        out = await s.edge.topic("out", 1)
        a, b = await s.member("a"), await s.member("b")
        await a.hold(LOWER)
        await b.hold(UPPER)

        answers = await asyncio.gather(
            *(
                (a, b)[offset % 2].settle((offset, offset + 1), output=output(out, str(offset)), ordered=offset > 40)
                for offset in (*range(60), *range(10))
            )
        )

        done = [one for one in answers if one.error is NONE]
        again = [one for one in answers if one.error is ErrorCode.INVALID_RECORD_STATE]
        assert (len(done), len(again), sum(len(one.committed) for one in again)) == (60, 10, 10)
        read = await s.edge.server._storage.read("out", 0, 0, max_bytes=1 << 20)
        values = [int(record.value) for record in decode_all(read.records)]
        assert sorted(values) == list(range(60))
        assert values[-19:] == list(range(41, 60))


@pytest.mark.parametrize(
    ("denied", "refused"),
    [
        ((READ, GROUP, "g"), ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ((READ, TOPIC, "t"), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ((Operation.WRITE, TOPIC, "out"), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
async def test_who_settles_reads_group_and_topic_and_writes_the_outputs(denied, refused):
    async with site(denied) as s:
        out = await s.edge.topic("out", 1)
        m = await s.member("m")
        m.send = s.edge.server.connect(client_id="m").send
        await m.hold(WHOLE)
        m.send = m.connection.send

        answer = await m.settle((0, 2), output=output(out, "x"))

        assert answer.error is refused
        assert [one.place for one in answer.outputs] == ([0] if denied[2] == "out" else [])
        assert s.edge.server._storage.offsets("out", 0).high_watermark == 0


async def test_a_reset_over_tcp():
    async with site() as s:
        connection = await s.connect()
        m = await s.member("m")
        await m.hold(WHOLE)
        request = CooperativeResetRequest(group_id="g", topic="t", partition=0, offset=20)

        refused = await connection.send(request)
        await m.leaves()
        done = await connection.send(request)

        assert refused.error is ErrorCode.NON_EMPTY_GROUP
        assert done.error is NONE
        assert done.reset_epoch > m.epochs[0]
        assert (await m.hold(WHOLE)).stable == 20


async def test_ranges_are_told_in_pages():
    async with site(records=1_000) as s:
        m = await s.member("m")
        await m.hold(WHOLE)
        await m.commit(*((offset, offset + 1) for offset in range(1, 1_000, 2)))
        connection = await s.connect()

        answer = await connection.send(CooperativeOffsetsRequest(group_id="g", ranges_from=991))

        (part,) = answer.partitions
        assert [tuple(one) for one in part.ranges.pairs()] == [(offset, offset + 1) for offset in range(991, 1_000, 2)]
        assert not part.more


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["hold", "commit", "reset"])
async def test_members_need_read_on_the_group(call):
    async with site((READ, GROUP, "g")) as s:
        assert await error_of(s, call) is ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert await s.edge.storage.scan(b"k/") == []


@pytest.mark.parametrize("call", ["hold", "commit", "reset"])
async def test_members_need_read_on_the_topic(call):
    async with site((READ, TOPIC, "t")) as s:
        assert await error_of(s, call) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await s.edge.storage.scan(b"k/") == []


async def test_tools_need_describe_on_the_group():
    async with site((DESCRIBE, GROUP, "g")) as s:
        answer = await (await s.connect()).send(CooperativeOffsetsRequest(group_id="g"))

        assert answer.error is ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_of_topics_that_may_not_be_seen_nothing_is_told():
    async with site((DESCRIBE, TOPIC, "t")) as s:
        await Member(s.edge.admin.send, "m", s.topic_id).hold(WHOLE)

        answer = await (await s.connect()).send(CooperativeOffsetsRequest(group_id="g"))

        assert (answer.error, answer.partitions) == (NONE, ())


async def error_of(s, call):
    """The error of a call, of the whole or of its only partition."""
    m = await s.member("m")
    m.epochs[0], m.held[0] = 0, ((0, HASHES, 1),)
    match call:
        case "hold":
            answer = await m.asks({0: WHOLE})
        case "commit":
            part = PartitionCommit(s.topic_id, 0, 0, (m.entry((0, 1)),))
            answer = await m.send(CooperativeCommitRequest(group_id="g", member_id="m", partitions=(part,)))
        case _:
            answer = await m.send(CooperativeResetRequest(group_id="g", topic="t", partition=0, offset=0))
    return answer.error or answer.partitions[0].error


# --- what makes no sense ----------------------------------------------------------------------------------------------


HOLD = {
    "group_id": "g",
    "member_id": "m",
    "generation": 1,
    "sequence": 1,
    "lease_ms": 10_000,
    "mode": "strict",
    "drain_timeout_ms": 1_000,
    "auto_offset_reset": "earliest",
    "partitions": [],
}
ID = uuid.UUID(int=1).hex
COMMIT = {"group_id": "g", "member_id": "m", "partitions": []}
HOSTILE = [
    ("cooperative_hold", {}),
    ("cooperative_hold", {**HOLD, "group_id": ""}),
    ("cooperative_hold", {**HOLD, "group_id": 7}),
    ("cooperative_hold", {**HOLD, "group_id": "g" * 1_025}),
    ("cooperative_hold", {**HOLD, "member_id": ""}),
    ("cooperative_hold", {**HOLD, "member_id": "m" * 4_000}),
    ("cooperative_hold", {**HOLD, "sequence": -1}),
    ("cooperative_hold", {**HOLD, "sequence": True}),
    ("cooperative_hold", {**HOLD, "sequence": 1.5}),
    ("cooperative_hold", {**HOLD, "generation": 1 << 63}),
    ("cooperative_hold", {**HOLD, "lease_ms": 1}),
    ("cooperative_hold", {**HOLD, "lease_ms": 1 << 40}),
    ("cooperative_hold", {**HOLD, "mode": "careless"}),
    ("cooperative_hold", {**HOLD, "drain_timeout_ms": 1 << 40}),
    ("cooperative_hold", {**HOLD, "partitions": {}}),
    ("cooperative_hold", {**HOLD, "partitions": [[]]}),
    ("cooperative_hold", {**HOLD, "partitions": [["no id", 0, []]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[None, 0, []]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[ID, -1, []]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[ID, 0, [[1]]]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[ID, 0, [["a", "b"]]]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[ID, 0, [], []]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[ID, 0, []], [ID, 0, []]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[ID, at, []] for at in range(1_001)]}),
    ("cooperative_hold", {**HOLD, "partitions": [[ID, 0, [[2 * at, 2 * at + 1] for at in range(17_000)]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": None}),
    ("cooperative_commit", {**COMMIT, "partitions": [[ID, 0, 0]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[ID, 0, 0, [[]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[ID, 0, 0, [[1, 2, 3]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[ID, 0, 0, [[1, [[0, 1]]]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[ID, 0, 0, [[1, [[0, "x"]], [0, 5]]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[ID, 0, 0, [[1, [[-5, 2]], [0, 5]]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[ID, 0, 0, [[1, [[0, 1]], [0, 5]]] * 10_001]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[ID, 0, 0, [[1, [[0, 1]] * 10_001, [0, 5]]]]]}),
    ("cooperative_offsets", {"group_id": "g", "topics": []}),
    ("cooperative_offsets", {"group_id": "g", "topics": {"t": ["0"]}}),
    ("cooperative_offsets", {"group_id": "g", "topics": {"t": list(range(10_001))}}),
    ("cooperative_offsets", {"group_id": "g", "topics": None, "ranges_from": -1}),
    ("cooperative_reset", {"group_id": "g", "topic": "t", "partition": "0", "offset": 0}),
    ("cooperative_reset", {"group_id": "g", "topic": "nothing", "partition": 0, "offset": 0}),
    ("cooperative_reset", {"group_id": "g", "topic": "t", "partition": 5, "offset": 0}),
    ("cooperative_reset", {"group_id": "g", "topic": "t", "partition": 0, "offset": -1}),
]


async def test_what_makes_no_sense_is_refused_with_a_sentence_and_changes_nothing():
    async with site() as s:
        connection = await s.connect()
        for name, body in HOSTILE:
            with pytest.raises(ServerError) as refused:
                await raw_call(connection, name, **body)
            assert refused.value.code is not ErrorCode.UNKNOWN_SERVER_ERROR, (name, body)
            assert len(str(refused.value)) < 600, (name, body)
        assert not connection.closed
        assert await s.edge.storage.scan(b"k/") == []


@pytest.mark.parametrize(
    "keys", [((5, 5),), ((9, 5),), ((0, HASHES + 1),), ((0, 10), (5, 20))], ids=["empty", "turned", "outside", "twice"]
)
async def test_keys_that_cannot_be_held_are_refused_by_their_partition(keys):
    async with site() as s:
        (part,) = (await (await s.member("m")).asks({0: keys})).partitions

        assert part.error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("ranges", [((5, 5),), ((9, 5),), ((0, 101),), ((1 << 61, 1 << 61 | 1),)])
async def test_offsets_that_cannot_be_committed_are_refused(ranges):
    async with site() as s:
        m = await s.member("m")
        await m.hold(WHOLE)

        told = await m.commits(m.entry(*ranges))

        assert told.error in (ErrorCode.INVALID_REQUEST, ErrorCode.OFFSET_OUT_OF_RANGE)


async def test_partitions_and_topics_that_are_not_there_are_refused_one_by_one():
    async with site() as s:
        m = await s.member("m")

        answer = await m.asks({0: WHOLE, 7: WHOLE, 1 << 40: WHOLE})

        assert [part.error for part in answer.partitions] == [NONE, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2]
        m.topic_id = uuid.UUID(int=9)
        assert (await m.asks({0: WHOLE})).partitions[0].error is ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_party_makes_the_server_hold_only_so_much():
    """A small budget: many claims of many members are refused before they fill it, and others still get theirs."""
    async with site(partitions=40, config=ServerConfig(coordinator_state_bytes=60_000)) as s:
        connection = await s.connect()
        errors = []
        for number in range(40):
            m = Member(connection.send, f"m{number}", s.topic_id)
            answer = await m.asks({number: tuple((2 * at, 2 * at + 1) for at in range(20))})
            errors += [part.error for part in answer.partitions] or [answer.error]

        assert errors[0] is NONE
        assert errors[-1] is ErrorCode.POLICY_VIOLATION
        owner = Member(s.edge.admin.send, "own", s.topic_id)
        assert (await owner.hold(WHOLE, at=39)).held
