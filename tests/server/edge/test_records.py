"""Produce, Fetch, ListOffsets, DeleteRecords and OffsetForLeaderEpoch at a socket."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode as KafkaError

from flowshare.protocol.batches import decode_all
from flowshare.protocol.messages import FetchedLog, FetchRequest, FetchResponse
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.records import records
from tests.server.edge.kit import NONE, batch, edge, ms, part
from tests.waiting import until

pytestmark = pytest.mark.asyncio

WRITE_SECRET = (Operation.WRITE, ResourceType.TOPIC, "secret")
READ_SECRET = (Operation.READ, ResourceType.TOPIC, "secret")
TO_SHARE = {
    "group_id": "g",
    "member_id": str(uuid.UUID(int=1)),
    "share_session_epoch": 0,
    "max_wait": ms(0),
    "min_bytes": 0,
    "max_bytes": 1 << 20,
    "max_records": 1,
    "batch_size": 1,
    "forgotten_topics_data": (),
}
"""A ShareFetch of whatever topics."""


async def produce(socket, *places, acks=-1, version=12, transactional_id=None):
    """Produce records to (topic, partition, bytes); errors by place."""
    answer = await socket.ask("produce", version, **_to_produce(places, acks=acks, transactional_id=transactional_id))
    return {(topic.name, one.index): one.error_code for topic in answer.responses for one in topic.partition_responses}


def _to_produce(places, *, acks, transactional_id=None):
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": ms(1000),
        "topic_data": [
            part(name=name, partition_data=[part(index=number, records=records)]) for name, number, records in places
        ],
    }


def to_fetch(*places, wait=0, least=1, most=1 << 20, version=12, epoch=-1, session=0, committed=False):
    """Fields of a Fetch of (topic or id, partition, offset)."""
    named = "topic" if version < 13 else "topic_id"
    return {
        "max_wait": ms(wait),
        "min_bytes": least,
        "max_bytes": most,
        "isolation_level": int(committed),
        "session_id": session,
        "session_epoch": epoch,
        "topics": [
            part(
                **{named: topic},
                partitions=[part(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20, **more)],
            )
            for topic, number, offset, more in ((*place, {})[:4] for place in places)
        ],
        "forgotten_topics_data": (),
    }


def parts(answer):
    """Partitions of a Fetch's answer."""
    return [one for topic in answer.responses for one in topic.partitions]


async def test_partitions_of_one_request_are_appended_each_with_its_own_result() -> None:
    async with edge(WRITE_SECRET) as e:
        await e.topic("t", partitions=2)
        await e.topic("secret")
        s = await e.socket()
        damaged = bytearray(batch())
        damaged[-1] ^= 1

        got = await produce(
            s,
            ("t", 0, batch(b"a")),
            ("t", 1, bytes(damaged)),
            ("t", 7, batch()),
            ("none", 0, batch()),
            ("secret", 0, batch()),
        )

        assert got == {
            ("t", 0): NONE,
            ("t", 1): KafkaError.corrupt_message,
            ("t", 7): KafkaError.unknown_topic_or_partition,
            ("none", 0): KafkaError.unknown_topic_or_partition,
            ("secret", 0): KafkaError.topic_authorization_failed,
        }
        assert e.storage.offsets("t", 0).high_watermark == 1


async def test_what_is_no_batch_of_format_2_or_compressed_too_newly_is_refused() -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        old = bytearray(batch())
        old[16] = 1

        assert await produce(s, ("t", 0, bytes(old))) == {("t", 0): KafkaError.invalid_record}
        assert await produce(s, ("t", 0, b"")) == {("t", 0): KafkaError.invalid_record}
        assert await produce(s, ("t", 0, None)) == {("t", 0): KafkaError.invalid_record}
        assert await produce(s, ("t", 0, batch()), acks=2) == {("t", 0): KafkaError.invalid_required_acks}
        zstd = batch(b"a" * 99, compression="zstd")
        assert await produce(s, ("t", 0, zstd), version=6) == {("t", 0): KafkaError.unsupported_compression_type}
        assert await produce(s, ("t", 0, zstd), version=7) == {("t", 0): NONE}


async def test_a_transaction_needs_the_right_to_its_id() -> None:
    async with edge((Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "mine")) as e:
        await e.topic()
        s = await e.socket()
        transactional = bytearray(batch())
        transactional[22] |= 0x10
        denied = KafkaError.transactional_id_authorization_failed

        assert await produce(s, ("t", 0, bytes(transactional))) == {("t", 0): denied}
        assert await produce(s, ("t", 0, bytes(transactional)), transactional_id="mine") == {("t", 0): denied}


async def test_without_acks_nothing_is_answered_and_a_failure_closes_the_connection() -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        await s.tell("produce", 9, **_to_produce([("t", 0, batch(b"a"))], acks=0))
        await s.tell("list_groups", 5)
        assert (await s.answer("list_groups", 5)).error_code is NONE
        assert e.storage.offsets("t", 0).high_watermark == 1

        await s.tell("produce", 9, **_to_produce([("none", 0, batch(b"a"))], acks=0))

        assert await s.ended()


async def test_topics_are_named_by_id_from_version_13_on() -> None:
    async with edge() as e:
        topic_id, unknown = await e.topic(), uuid.uuid4()
        s = await e.socket()
        data = [part(topic_id=one, partition_data=[part(index=0, records=batch(b"a"))]) for one in (topic_id, unknown)]
        made = await s.ask("produce", 13, transactional_id=None, acks=1, timeout=ms(1000), topic_data=data)
        read = await s.ask("fetch", 18, **to_fetch((topic_id, 0, 0), (unknown, 0, 0), version=18))

        assert [(one.topic_id, one.partition_responses[0].error_code) for one in made.responses] == [
            (topic_id, NONE),
            (unknown, KafkaError.unknown_topic_id),
        ]
        assert [(one.topic_id, one.partitions[0].error_code) for one in read.responses] == [
            (topic_id, NONE),
            (unknown, KafkaError.unknown_topic_id),
        ]
        assert [record.value for record in decode_all(parts(read)[0].records)] == [b"a"]


async def test_who_may_not_use_a_topic_is_not_told_its_name_by_its_id() -> None:
    async with edge((None, ResourceType.TOPIC, "hidden")) as e:
        topic_id = await e.topic("hidden")
        s = await e.socket()
        data = [part(topic_id=topic_id, partition_data=[part(index=0, records=batch(b"a"))])]
        made = await s.ask("produce", 13, transactional_id=None, acks=1, timeout=ms(1000), topic_data=data)
        wanted = [part(topic_id=topic_id, partitions=[part(partition_index=0, acknowledgement_batches=[])])]
        read = await s.ask("share_fetch", 1, **TO_SHARE, topics=wanted)

        refused = [made.responses[0].partition_responses[0], read.responses[0].partitions[0]]
        assert {one.error_code for one in refused} == {KafkaError.topic_authorization_failed}
        assert "hidden" not in "".join(one.error_message for one in refused)


async def test_the_log_says_when_it_stamped_records() -> None:
    async with edge() as e:
        await e.storage.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
        await e.topic("t")
        s = await e.socket()

        answer = await s.ask(
            "produce", 9, **_to_produce([(name, 0, batch(b"a")) for name in ("stamped", "t")], acks=-1)
        )

        stamped, kept = (topic.partition_responses[0].log_append_time for topic in answer.responses)
        read = await e.storage.read("stamped", 0, 0, max_bytes=1 << 20)
        assert round(stamped.timestamp() * 1000) == decode_all(read.records)[0].timestamp_ms
        assert kept is None


async def test_requests_of_one_connection_are_appended_in_their_order() -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        for number in range(20):
            await s.tell("produce", 9, **_to_produce([("t", 0, batch(b"%d" % number))], acks=-1))
        bases = [(await s.answer("produce", 9)).responses[0].partition_responses[0].base_offset for _ in range(20)]

        read = await e.storage.read("t", 0, 0, max_bytes=1 << 20)

        assert bases == list(range(20))
        assert [record.value for record in decode_all(read.records)] == [b"%d" % number for number in range(20)]


async def test_a_fetch_bounds_its_bytes_over_all_partitions_but_gives_at_least_one_batch() -> None:
    async with edge() as e:
        await e.topic("t", partitions=3)
        one = batch(b"x" * 1000)
        for number in (1, 2):
            await e.storage.append("t", number, one)
            await e.storage.append("t", number, one)
        s = await e.socket()
        places = [("t", number, 0) for number in range(3)]

        tiny = parts(await s.ask("fetch", 12, **to_fetch(*places, most=1)))
        three = parts(await s.ask("fetch", 12, **to_fetch(*places, most=3 * len(one))))

        assert [len(found.records or b"") for found in tiny] == [0, len(one), 0]
        assert [len(found.records or b"") for found in three] == [0, 2 * len(one), len(one)]
        assert [found.high_watermark for found in three] == [0, 2, 2]


async def test_a_fetch_waits_for_records_and_for_enough_of_them() -> None:
    async with edge() as e:
        await e.topic("t", partitions=2)
        one = batch(b"a")
        s, other = await e.socket(), await e.socket()
        await s.tell("fetch", 11, **to_fetch(("t", 0, 0), ("t", 1, 0), wait=15_000, least=2 * len(one)))
        await produce(other, ("t", 1, one))
        await produce(other, ("t", 0, one))

        found = parts(await s.answer("fetch", 11))

        assert [len(one_part.records) for one_part in found] == [len(one), len(one)]


async def test_a_fetch_answers_with_what_it_has_when_its_time_is_over() -> None:
    async with edge() as e:
        await e.topic()
        await e.storage.append("t", 0, batch(b"a"))
        s = await e.socket()

        empty = parts(await s.ask("fetch", 11, **to_fetch(("t", 0, 1), wait=30)))
        little = parts(await s.ask("fetch", 11, **to_fetch(("t", 0, 0), wait=30, least=1 << 19)))

        assert (empty[0].error_code, empty[0].records or b"") == (NONE, b"")
        assert len(little[0].records) == len(batch(b"a"))


async def test_a_fetch_that_waited_gives_nothing_that_may_not_be_read_any_more() -> None:
    async with edge() as e:
        await e.topic("secret")
        await e.topic("t")
        s = await e.socket()
        one = batch(b"a")

        async def wait(request, connection):
            del connection
            e.listener.authorizer.denied = (READ_SECRET,)
            found = tuple(FetchedLog(topic=asked.topic, partition=0, records=one) for asked in request.partitions)
            return FetchResponse(partitions=found)

        e.server._handlers[FetchRequest] = wait
        secret, other = parts(await s.ask("fetch", 11, **to_fetch(("secret", 0, 0), ("t", 0, 0))))

        assert (secret.error_code, secret.records or b"") == (KafkaError.topic_authorization_failed, b"")
        assert (other.error_code, other.records) == (NONE, one)


async def test_what_cannot_be_fetched_is_told_at_once_beside_what_can() -> None:
    async with edge(READ_SECRET) as e:
        await e.topic(partitions=2)
        await e.topic("secret")
        await e.storage.append("t", 0, batch(b"a"))
        s = await e.socket()

        asked = to_fetch(("t", 0, 0), ("t", 1, 9), ("t", 4, 0), ("none", 0, 0), ("secret", 0, 0), wait=15_000)
        found = parts(await s.ask("fetch", 12, **asked))

        assert [one.error_code.name for one in found] == [
            "none",
            "offset_out_of_range",
            "unknown_topic_or_partition",
            "unknown_topic_or_partition",
            "topic_authorization_failed",
        ]
        assert found[0].records


async def test_fetch_sessions_are_not_kept() -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()

        opened = await s.ask("fetch", 12, **to_fetch(("t", 0, 0), epoch=0))
        followed = await s.ask("fetch", 12, **to_fetch(epoch=1, session=77))

        assert (opened.error_code, opened.session_id) == (NONE, 0)
        assert followed.error_code is KafkaError.fetch_session_id_not_found


async def test_a_leader_epoch_that_has_not_come_is_unknown() -> None:
    async with edge() as e:
        await e.topic(partitions=2)
        s = await e.socket()
        early = {"current_leader_epoch": 3}

        found = parts(
            await s.ask("fetch", 12, **to_fetch(("t", 0, 0, early), ("t", 1, 0, {"current_leader_epoch": 0})))
        )
        listed = await s.ask(
            "list_offsets",
            9,
            replica_id=-1,
            isolation_level=0,
            topics=[part(name="t", partitions=[part(partition_index=0, timestamp=-1, **early)])],
        )

        assert [one.error_code.name for one in found] == ["unknown_leader_epoch", "none"]
        assert listed.topics[0].partitions[0].error_code is KafkaError.unknown_leader_epoch


async def offset(socket, timestamp, *, version=11, topic="t", twice=False):
    """Error, offset and timestamp that ListOffsets answers for a partition."""
    one = part(partition_index=0, timestamp=timestamp)
    answer = await socket.ask(
        "list_offsets",
        version,
        replica_id=-1,
        isolation_level=0,
        timeout=ms(1000),
        topics=[part(name=topic, partitions=[one, one] if twice else [one])],
    )
    found = answer.topics[0].partitions[0]
    return found.error_code.name, found.offset, found.timestamp


async def test_offsets_are_found_by_time_and_by_the_special_times_of_each_version() -> None:
    async with edge((Operation.DESCRIBE, ResourceType.TOPIC, "secret")) as e:
        await e.topic()
        await e.topic("secret")
        await e.storage.append("t", 0, batch(b"a", b"b", timestamp_ms=100))
        await e.storage.append("t", 0, batch(b"c", b"d", timestamp_ms=500))
        await e.storage.append("t", 0, batch(b"e", timestamp_ms=200))
        s = await e.socket()

        assert await offset(s, -1) == ("none", 5, -1)
        assert await offset(s, -2) == ("none", 0, -1)
        assert await offset(s, -3) == ("none", 3, 501)
        assert await offset(s, -4) == ("none", 0, -1)
        assert await offset(s, -5) == ("none", -1, -1)
        assert await offset(s, -6) == ("none", -1, -1)
        assert await offset(s, 101) == ("none", 1, 101)
        assert await offset(s, 502) == ("none", -1, -1)
        assert (await offset(s, -3, version=6))[0] == "unsupported_version"
        assert (await offset(s, -4, version=7))[0] == "unsupported_version"
        assert (await offset(s, -7))[0] == "unsupported_version"
        assert (await offset(s, -1, topic="none"))[0] == "unknown_topic_or_partition"
        assert (await offset(s, -1, topic="secret"))[0] == "topic_authorization_failed"
        assert (await offset(s, -1, twice=True))[0] == "invalid_request"


async def test_an_empty_log_has_no_highest_timestamp() -> None:
    async with edge() as e:
        await e.topic()

        assert await offset(await e.socket(), -3) == ("none", -1, -1)


async def test_records_are_deleted_up_to_an_offset() -> None:
    async with edge((Operation.DELETE, ResourceType.TOPIC, "secret")) as e:
        await e.topic("t", partitions=2)
        await e.topic("secret")
        await e.storage.append("t", 0, batch(b"a", b"b", b"c"))
        s = await e.socket()

        async def cut(topic, number, before):
            asked = [part(name=topic, partitions=[part(partition_index=number, offset=before)])]
            answer = await s.ask("delete_records", 2, topics=asked, timeout=ms(1000))
            found = answer.topics[0].partitions[0]
            return found.error_code.name, found.low_watermark

        assert await cut("t", 0, 2) == ("none", 2)
        assert await cut("t", 0, 9) == ("offset_out_of_range", -1)
        assert await cut("t", 0, -2) == ("offset_out_of_range", -1)
        assert await cut("t", 0, -1) == ("none", 3)
        assert await cut("t", 5, 0) == ("unknown_topic_or_partition", -1)
        assert await cut("secret", 0, 0) == ("topic_authorization_failed", -1)


async def test_the_one_leader_epoch_goes_to_the_end_of_the_log() -> None:
    async with edge((Operation.DESCRIBE, ResourceType.TOPIC, "secret"), (Operation.CLUSTER_ACTION, None, None)) as e:
        await e.topic()
        await e.topic("secret")
        await e.storage.append("t", 0, batch(b"a", b"b"))
        s = await e.socket()

        async def end(topic, epoch, known=-1):
            asked = [part(topic=topic, partitions=[part(partition=0, leader_epoch=epoch, current_leader_epoch=known)])]
            found = (await s.ask("offset_for_leader_epoch", 4, topics=asked)).topics[0].partitions[0]
            return found.error_code.name, found.leader_epoch, found.end_offset

        assert await end("t", 0) == ("none", 0, 2)
        assert await end("t", 5) == ("none", -1, -1)
        assert (await end("t", 0, known=4))[0] == "unknown_leader_epoch"
        assert (await end("none", 0))[0] == "unknown_topic_or_partition"
        assert (await end("secret", 0))[0] == "topic_authorization_failed"


async def test_when_fetches_of_too_many_partitions_wait_those_of_most_are_answered(monkeypatch) -> None:
    monkeypatch.setattr(records, "WAITING_PARTS_MAX", 10)
    async with edge() as e:
        await e.topic(partitions=9)
        small, large, other = [await e.socket() for _ in range(3)]
        waiting = e.server._handlers[FetchRequest].__self__._purgatory
        for s, count, parked in ((small, 2, 2), (large, 8, 10), (other, 3, 5)):
            await s.tell("fetch", 12, **to_fetch(*(("t", number, 0) for number in range(count)), wait=600_000))
            await until(lambda parked=parked: len(waiting) == parked)

        assert len(parts(await large.answer("fetch", 12))) == 8
        await produce(large, ("t", 0, batch(b"a")))
        assert [len(parts(await s.answer("fetch", 12))) for s in (small, other)] == [2, 3]
        assert len(waiting) == 0


async def test_a_fetch_of_a_closed_connection_leaves_nothing_behind() -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        await s.tell("fetch", 12, **to_fetch(("t", 0, 0), wait=600_000))
        handler = e.server._handlers[FetchRequest].__self__
        await until(lambda: len(handler._watch._waiters) == 1)

        await s.close()

        await until(lambda: len(handler._watch._waiters) == 0)
