"""ShareGroupHeartbeat, ShareFetch and ShareAcknowledge at a socket; the rules behind them have their own tests."""

from __future__ import annotations

import uuid

import pytest

from flowshare.protocol.batches import decode_all
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.share.config import ServerConfig
from tests.server.edge.kit import batch, edge, ms, part

pytestmark = pytest.mark.asyncio

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class Member:
    """One member that counts its session's epoch."""

    def __init__(self, socket, *, version=2, group_id="g", member_id="AAAA/bbb+CC==") -> None:
        self.socket = socket
        self.version = version
        self.ids = {"group_id": group_id, "member_id": member_id}
        self.epoch = 0

    async def fetch(self, *topics, forgotten=(), epoch=None, wait=0, **more):
        """ShareFetch of (topic id, partition, acknowledgements)."""
        limits = {"max_wait": ms(wait), "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
        return await self.socket.ask(
            "share_fetch",
            self.version,
            share_session_epoch=self._next(epoch),
            topics=_topics(topics),
            forgotten_topics_data=[part(topic_id=topic_id, partitions=numbers) for topic_id, numbers in forgotten],
            **{**self.ids, **limits, **more},
        )

    async def acknowledge(self, *topics, epoch=None, **more):
        """ShareAcknowledge of (topic id, partition, acknowledgements)."""
        return await self.socket.ask(
            "share_acknowledge",
            self.version,
            share_session_epoch=self._next(epoch),
            topics=_topics(topics),
            **{**self.ids, **more},
        )

    def _next(self, epoch):
        if epoch is not None:
            return epoch
        self.epoch += 1
        return self.epoch - 1


def _topics(topics):
    return [
        part(
            topic_id=topic_id,
            partitions=[
                part(
                    partition_index=number,
                    acknowledgement_batches=[
                        part(first_offset=first, last_offset=last, acknowledge_types=tuple(types))
                        for first, last, *types in acks
                    ],
                )
            ],
        )
        for topic_id, number, acks in topics
    ]


def parts(answer):
    """(topic id, partition) -> its part of an answer."""
    return {(topic.topic_id, one.partition_index): one for topic in answer.responses for one in topic.partitions}


def ranges(one):
    """Acquired ranges."""
    return [(found.first_offset, found.last_offset, found.delivery_count) for found in one.acquired_records]


async def ready(e, *, partitions=1, name="t", records=3):
    """A topic with records that group g reads from the start; its id."""
    topic_id = await e.topic(name, partitions=partitions)
    for number in range(partitions):
        await e.storage.append(name, number, batch(*[b"%d" % n for n in range(records)]))
    await e.configure(share_auto_offset_reset="earliest")
    return topic_id


@pytest.mark.parametrize("version", [1, 2])
async def test_records_are_fetched_and_acknowledged(version: int) -> None:
    async with edge() as e:
        topic_id = await ready(e)
        m = Member(await e.socket(), version=version)

        fetched = await m.fetch((topic_id, 0, ()))
        done = await m.acknowledge((topic_id, 0, [(0, 1, ACCEPT), (2, 2, RELEASE)]))
        again = await m.fetch()

        one = parts(fetched)[topic_id, 0]
        assert (fetched.error_code.name, fetched.acquisition_lock_timeout) == ("none", ms(30_000))
        assert ranges(one) == [(0, 2, 1)]
        assert [record.value for record in decode_all(one.records)] == [b"0", b"1", b"2"]
        assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == (-1, -1)
        assert fetched.node_endpoints == ()
        assert parts(done)[topic_id, 0].error_code.name == "none"
        assert ranges(parts(again)[topic_id, 0]) == [(2, 2, 2)]


async def test_every_partition_with_acknowledgements_is_listed_and_entries_for_one_topic_are_merged() -> None:
    async with edge() as e:
        topic_id, other = await ready(e, partitions=2), uuid.uuid4()
        m = Member(await e.socket())
        await m.fetch((topic_id, 0, ()))

        answer = await m.fetch((topic_id, 1, ()), (topic_id, 0, [(0, 2, ACCEPT)]), (other, 0, [(0, 0, ACCEPT)]))

        found = parts(answer)
        assert set(found) == {(topic_id, 0), (topic_id, 1), (other, 0)}
        assert ranges(found[topic_id, 1]) == [(0, 2, 1)]
        assert found[topic_id, 0].acknowledge_error_code == 0
        assert found[other, 0].acknowledge_error_code == 100


@pytest.mark.parametrize(
    ("version", "kind", "renewing", "error"),
    [
        (1, RENEW, False, "invalid_request"),
        (2, RENEW, False, "invalid_request"),
        (2, RENEW, True, "none"),
        (2, 5, True, "invalid_request"),
        (2, -1, False, "invalid_request"),
        (1, 0, False, "none"),
    ],
)
async def test_types_are_those_of_the_version(version: int, kind: int, renewing: bool, error: str) -> None:
    async with edge() as e:
        topic_id = await ready(e)
        m = Member(await e.socket(), version=version)
        await m.fetch((topic_id, 0, ()))

        answer = await m.acknowledge((topic_id, 0, [(0, 2, kind)]), is_renew_ack=renewing)

        assert parts(answer)[topic_id, 0].error_code.name == error


async def test_a_renewing_fetch_fetches_nothing() -> None:
    async with edge() as e:
        topic_id = await ready(e)
        m = Member(await e.socket())
        await m.fetch((topic_id, 0, ()))
        nothing = {"max_wait": ms(0), "min_bytes": 0, "max_bytes": 0, "max_records": 0}

        bad = await m.fetch((topic_id, 0, [(0, 2, RENEW)]), epoch=1, is_renew_ack=True)
        good = await m.fetch((topic_id, 0, [(0, 2, RENEW)]), epoch=1, is_renew_ack=True, **nothing)

        assert (bad.error_code.name, bad.acquisition_lock_timeout) == ("invalid_request", ms(0))
        assert parts(good)[topic_id, 0].acknowledge_error_code == 0


async def test_record_limit_hands_out_exactly_what_was_asked_for() -> None:
    async with edge() as e:
        topic_id = await ready(e, records=10)
        first, second = Member(await e.socket()), Member(await e.socket(), member_id="two")

        one = await first.fetch((topic_id, 0, ()), max_records=4, share_acquire_mode=1)
        two = await second.fetch((topic_id, 0, ()), max_records=4, share_acquire_mode=1)

        assert ranges(parts(one)[topic_id, 0]) == [(0, 3, 1)]
        assert ranges(parts(two)[topic_id, 0]) == [(4, 7, 1)]


async def test_records_of_a_closed_connection_are_free_at_once() -> None:
    async with edge() as e:
        topic_id = await ready(e)
        gone, other = Member(await e.socket()), Member(await e.socket(), member_id="two")
        await gone.fetch((topic_id, 0, ()))

        await gone.socket.close()
        found = await other.fetch((topic_id, 0, ()), wait=20_000)

        assert ranges(parts(found)[topic_id, 0]) == [(0, 2, 2)]


async def test_a_session_that_does_not_fit_is_told_at_the_top() -> None:
    async with edge() as e:
        topic_id = await ready(e)
        m = Member(await e.socket())
        await m.fetch((topic_id, 0, ()))

        assert (await m.fetch(epoch=9)).error_code.name == "invalid_share_session_epoch"
        assert (await m.acknowledge(epoch=0)).error_code.name == "invalid_share_session_epoch"
        assert (await m.fetch(epoch=1, member_id="x" * 37)).error_code.name == "invalid_request"
        assert (await m.fetch(epoch=1, group_id=None)).error_code.name == "invalid_request"
        assert (await m.fetch(epoch=1, member_id="nobody")).error_code.name == "share_session_not_found"


async def test_a_delivery_count_beyond_16_bits_is_told_as_the_highest_there_is() -> None:
    async with edge() as e:
        topic_id = await ready(e)
        m = Member(await e.socket())
        await e.configure(share_delivery_count_limit="1000000")
        asked = {"group_id": "g", "topics": [part(topic_id=topic_id, partitions=[_often_delivered()])]}
        s = await e.socket()
        start = part(partition=0, state_epoch=1, start_offset=0)
        await s.ask(
            "initialize_share_group_state", 0, group_id="g", topics=[part(topic_id=topic_id, partitions=[start])]
        )
        await s.ask("write_share_group_state", 1, **asked)

        found = await m.fetch((topic_id, 0, ()), max_records=1)

        assert ranges(parts(found)[topic_id, 0])[0][2] == 2**15 - 1


def _often_delivered():
    return part(
        partition=0,
        state_epoch=1,
        leader_epoch=0,
        start_offset=0,
        delivery_complete_count=0,
        state_batches=[part(first_offset=0, last_offset=2, delivery_state=0, delivery_count=2**15 - 1)],
    )


# --- rights ---------------------------------------------------------------------------------------------------------


async def test_a_group_that_may_not_be_read_is_refused_as_a_whole() -> None:
    async with edge((Operation.READ, ResourceType.GROUP, "g")) as e:
        topic_id = await ready(e)
        m = Member(await e.socket())

        fetched, acknowledged = await m.fetch((topic_id, 0, ()), epoch=0), await m.acknowledge(epoch=1)
        beat = await heartbeat(m.socket)

        assert fetched.error_code.name == acknowledged.error_code.name == "group_authorization_failed"
        assert beat.error_code.name == "group_authorization_failed"


async def test_topics_that_may_not_be_read_do_not_keep_others_from_being_read() -> None:
    async with edge((Operation.READ, ResourceType.TOPIC, "secret")) as e:
        topic_id, secret_id = await ready(e), await ready(e, name="secret")
        m = Member(await e.socket())

        fetched = await m.fetch((topic_id, 0, ()), (secret_id, 0, ()))
        again = await m.fetch((topic_id, 0, [(0, 2, ACCEPT)]), (secret_id, 0, [(0, 2, ACCEPT)]))

        first, second = parts(fetched), parts(again)
        assert (ranges(first[topic_id, 0]), first[topic_id, 0].error_code.name) == ([(0, 2, 1)], "none")
        assert first[secret_id, 0].error_code.name == "topic_authorization_failed"
        assert second[topic_id, 0].acknowledge_error_code == 0
        assert second[secret_id, 0].acknowledge_error_code == 29
        assert second[secret_id, 0].error_code.name == "topic_authorization_failed"


async def test_subscribing_needs_the_right_to_describe_every_topic() -> None:
    async with edge((Operation.DESCRIBE, ResourceType.TOPIC, "secret")) as e:
        await ready(e)
        s = await e.socket()

        denied = await heartbeat(s, "t", "secret")
        joined = await heartbeat(s, "t")

        assert (denied.error_code.name, denied.assignment) == ("topic_authorization_failed", None)
        assert "secret" in denied.error_message
        assert joined.error_code.name == "none"


# --- heartbeats -----------------------------------------------------------------------------------------------------


async def heartbeat(socket, *topics, epoch=0, member_id="m", group_id="g"):
    """A heartbeat's answer."""
    return await socket.ask(
        "share_group_heartbeat",
        1,
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        rack_id=None,
        subscribed_topic_names=topics or (None if epoch else ("t",)),
    )


async def test_a_member_has_its_partitions_with_its_first_heartbeat() -> None:
    async with edge(config=ServerConfig.embedded({"group.share.heartbeat.interval.ms": "700"})) as e:
        topic_id = await ready(e, partitions=2)
        s = await e.socket()

        joined = await heartbeat(s)
        still = await heartbeat(s, epoch=joined.member_epoch)
        left = await heartbeat(s, epoch=-1)
        unknown = await heartbeat(s, epoch=5, group_id="none")

        assert [(one.topic_id, one.partitions) for one in joined.assignment.topic_partitions] == [(topic_id, (0, 1))]
        assert (joined.member_id, joined.heartbeat_interval) == ("m", ms(700))
        assert (still.assignment, still.member_epoch) == (None, joined.member_epoch)
        assert left.member_epoch == -1
        assert unknown.error_code.name == "group_id_not_found"
