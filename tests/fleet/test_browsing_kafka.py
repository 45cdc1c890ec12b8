"""Browsing on a real Kafka: a group that workers lead, and one that the brokers lead."""

from __future__ import annotations

import pytest
import pytest_asyncio

from flowshare.client.errors import ServerError, Unsupported
from flowshare.client.session.member import ShareMember
from flowshare.protocol.errors import ErrorCode
from tests.fleet.test_move_kafka import Cluster
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.java]


@pytest_asyncio.fixture
async def cluster(kafka, unique):
    made = Cluster(kafka, unique)
    await made.fill()
    return made


def states(page):
    return [(one.first, one.last, one.state) for one in page.runs]


def finished(page):
    """Offsets that are, those below the start among them: the brokers tell that late."""
    runs = [(one.first, one.last) for one in page.runs if one.state == "acknowledged"]
    return {*range(page.start_offset), *(offset for first, last in runs for offset in range(first, last + 1))}


async def test_workers_tell_what_each_record_is_and_who_has_it_and_take_it_away(cluster):
    async with cluster.opened("workers", lead=True) as (backend, admin):
        await admin.alter_group_configs(cluster.group, {"share.auto.offset.reset": "earliest"})
        await cluster.work(backend, 0, 1, 4, 5, 8, count=10)

        page = await admin.browse(cluster.group, cluster.topic, 0)

        assert (page.kind, page.start_offset, page.log_end) == ("share", 2, 10)
        assert states(page) == [
            (2, 3, "available"),
            (4, 5, "acknowledged"),
            (6, 7, "available"),
            (8, 8, "acknowledged"),
            (9, 9, "available"),
        ]
        assert await admin.places(cluster.group) == [(cluster.topic, 0)]
        member = ShareMember(
            lambda: backend.connect("m"), group_id=cluster.group, topics=[cluster.topic], clock=cluster.clock
        )
        await member.start()
        assert await member.fetch(records_max=10, max_wait_s=10)
        held = await admin.browse(cluster.group, cluster.topic, 0, states=["acquired"])
        assert (held.loaded, {one.member_id for one in held.runs}) == (True, {member.member_id})
        (taken,) = await admin.intervene(cluster.group, cluster.topic, 0, [(2, 9)], "reject")
        assert (taken.done, taken.gone) == (5, 3)
        assert (await admin.browse(cluster.group, cluster.topic, 0)).start_offset == 10
        records = await admin.records(cluster.topic, 0, [(2, 3), (9, 12)])
        assert [(one.offset, one.value) for one in records.records] == [(2, b"2"), (3, b"3"), (9, b"9")]
        assert records.missing == ((10, 12),)
        await member.close()


async def test_of_the_brokers_own_group_it_is_told_what_they_tell_and_said_what_they_do_not(cluster):
    async with cluster.opened("native") as (backend, admin):
        await admin.alter_group_configs(cluster.group, {"share.auto.offset.reset": "earliest"})
        await cluster.work(backend, 0, 1, 4, 5, 8, count=10)

        page = await until(
            lambda: admin.browse(cluster.group, cluster.topic, 0), good=lambda page: finished(page) == {0, 1, 4, 5, 8}
        )

        assert (page.kind, page.loaded, page.log_end) == ("native", False, 10)
        assert "do not tell which member holds a record" in page.unknown
        assert await admin.places(cluster.group) == [(cluster.topic, 0)]
        with pytest.raises(Unsupported, match="Kafka's brokers lead group"):
            await admin.intervene(cluster.group, cluster.topic, 0, [(2, 2)], "release")
        with pytest.raises(ServerError) as refused:
            await admin.browse("nobody", cluster.topic, 0)
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
