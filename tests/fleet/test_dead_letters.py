"""Dead letters of a fleet go to Kafka, which does not tell with a topic how large its batches may be."""

from __future__ import annotations

import pytest

from flowshare.protocol.batches import decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import CreateTopicRequest, IncrementalAlterConfigsRequest
from flowshare.share.types import AcknowledgeType, AckRange
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.test_worker import take
from tests.fleet.world import EARLIEST, Fleet

REJECT = bytes([AcknowledgeType.REJECT])
ORIGIN = "__dlq.errors.offset"


def test_a_topic_that_takes_small_batches_gets_every_letter_once_in_batches_that_fit():
    async def scenario(clock):
        async with Fleet(clock) as fleet:
            await fleet.topic("orders")
            await fleet.kafka.storage.create_topic("dead", partitions=1, configs={"max.message.bytes": "2000"})
            await fleet.configure(**EARLIEST, **{"errors.deadletterqueue.topic.name": "dead"})
            for number in range(50):
                await fleet.produce("orders", b"%d" % number)
            member = fleet.member("orders")
            await member.start()

            _, fetched = await take(member, 50)
            for one in fetched:
                acks = {one.tp: tuple(AckRange(part.first, part.last, REJECT) for part in one.acquired)}
                await member.acknowledge(acks, generation=one.generation)
            await clock.sleep(10.0)

            read = await fleet.kafka.storage.read("dead", 0, 0, max_bytes=1 << 20)
            assert [int(dict(letter.headers)[ORIGIN]) for letter in decode_all(read.records)] == list(range(50))
            assert len(read.batches) > 5

    run(scenario(LoopTimeClock()))


def test_who_named_the_topic_is_known_to_the_coordinator_and_to_all_leaders_whoever_was_asked():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders")
            asked = next(machine for machine in fleet.machines if machine is not fleet.coordinator("g"))
            settings = {**EARLIEST, "errors.deadletterqueue.topic.name": "dlq.g"}
            connection = asked.worker.server.connect(client_id="somebody", host="10.0.0.7")
            request = IncrementalAlterConfigsRequest(
                resource_type="group", resource="g", configs=settings, by=("User:bob", "10.0.0.7")
            )
            assert (await connection.send(request)).error == 0
            member = fleet.member("orders")
            await member.start()
            await fleet.produce("orders", b"1")
            await take(member, 1)

            leader = fleet.leader("orders", 0).worker
            assert leader._known_groups.config_of("g").dead_letter_by == ("User:bob", "10.0.0.7")

    run(scenario(LoopTimeClock()))


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (ErrorCode.POLICY_VIOLATION, True),
        (ErrorCode.INVALID_CONFIG, True),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, True),
        (ErrorCode.INVALID_REPLICATION_FACTOR, False),  # until enough brokers are up again
    ],
)
def test_a_topic_that_kafka_refuses_to_make_is_given_up_after_five_tries_unless_that_may_pass(error, final, caplog):
    async def scenario(clock):
        async with Fleet(clock) as fleet:
            await fleet.topic("orders")
            await fleet.configure(**EARLIEST, **{"errors.deadletterqueue.topic.name": "dlq.orders"})
            await fleet.produce("orders", b"1")
            member = fleet.member("orders")
            await member.start()
            _, (fetched,) = await take(member, 1)
            fleet.kafka.refuse(CreateTopicRequest, error, count=8)
            acks = {fetched.tp: (AckRange(0, 0, REJECT),)}
            await member.acknowledge(acks, generation=fetched.generation)
            await clock.sleep(30.0)

            assert ("dead letters are given up" in caplog.text) is final
            assert "by hand" in caplog.text

    run(scenario(LoopTimeClock()))
