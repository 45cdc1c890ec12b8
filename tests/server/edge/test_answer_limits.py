"""Tests of clients that do not read their answers, and of the bounds for answers, at the socket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import DescribeShareGroupOffsetsRequest
from tests.server.edge.kit import batch, edge, errors, ms, part

pytestmark = pytest.mark.asyncio

KIB = 1024


async def test_fetches_that_nobody_reads_reserve_before_they_read_and_all_get_records_in_the_end():
    async with edge() as e:
        queued, one = 1024 * KIB, batch(bytes(100 * KIB))
        limits = replace(e.listener.limits, queued_answer_bytes_max=queued, connection_answer_bytes_max=64 * KIB)
        e.listener.configure(limits)
        await e.topic()
        for _ in range(40):
            await e.storage.append("t", 0, one)
        held, read = [], e.storage.read

        async def watched(*args, **fields):
            held.append(e.listener.answers.held)
            return await read(*args, **fields)

        e.storage.read = watched
        s = await e.socket()
        asked = part(partition=0, fetch_offset=0, partition_max_bytes=4096 * KIB)
        for _ in range(32):
            await s.tell(
                "fetch",
                11,
                replica_id=-1,
                max_wait=ms(15_000),
                min_bytes=1,
                max_bytes=4096 * KIB,
                isolation_level=0,
                topics=[part(topic="t", partitions=[asked])],
                forgotten_topics_data=[],
                rack_id="",
            )
        got = [await s.answer("fetch", 11) for _ in range(32)]
        assert all(answer.responses[0].partitions[0].records for answer in got)
        assert max(held) <= queued + 2 * len(one)
        assert e.listener.answers.reserved == 0


async def test_groups_for_which_an_answer_has_no_room_are_refused_and_the_others_told():
    async with edge() as e:
        e.listener.configure(replace(e.listener.limits, answer_bytes_max=64 * KIB))
        s = await e.socket()
        names = [f"{number:04}" * 60 for number in range(200)]
        answer = await s.ask("describe_groups", 6, groups=names, include_authorized_operations=False)
        assert errors(answer) == {"group_id_not_found", "invalid_request"}
        assert [group.group_id for group in answer.groups] == names
        assert "response.max.bytes" in answer.groups[-1].error_message


async def test_a_call_for_the_offsets_of_more_share_partitions_than_an_answer_has_room_for_is_refused():
    async with edge() as e:
        e.listener.configure(replace(e.listener.limits, answer_bytes_max=64 * KIB))
        link = await open_tcp(e.host, e.port, client_id="c", clock=e.server.clock, settings=LinkSettings())
        try:
            few, many = (DescribeShareGroupOffsetsRequest(group_id="g", topics={"t": (*range(n),)}) for n in (9, 999))
            assert (await link.send(few)).error is ErrorCode.GROUP_ID_NOT_FOUND
            answer = await link.send(many)
            assert answer.error is ErrorCode.INVALID_REQUEST
            assert "response.max.bytes" in answer.message
            assert e.listener.answers.reserved == 0
        finally:
            await link.close()
