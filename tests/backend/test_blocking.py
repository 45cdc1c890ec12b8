"""The blocking consumer: the consumer's rules without coroutines, on a thread of its own."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
from unittest import mock

import pytest

from flowshare.backend import BadBrokerUrl, open_backend
from flowshare.backend.blocking import BlockingShareConsumer
from flowshare.backend.embedded import EmbeddedBackend
from flowshare.backend.memory import MemoryBackend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import Closed, IllegalState, Wakeup
from flowshare.client.producer.producer import Message, Producer
from flowshare.client.settings import ConsumerSettings
from flowshare.clock import LoopClock
from flowshare.share.types import AcknowledgeType

EXPLICIT = ConsumerSettings(acknowledgement_mode="explicit")
WAIT_S = 20.0


async def seed(backend, values):
    """A topic `orders` with these records, and a group `g` that begins with the first."""
    clock = LoopClock()

    async def connect():
        return await backend.connect("seed")

    admin, producer = ShareAdmin(connect, clock=clock), Producer(connect, clock=clock)
    await admin.create_topic("orders")
    await admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest"})
    await producer.send_many("orders", [Message(value) for value in values])
    await producer.close()
    await admin.close()


def seeded(*values):
    """Makes a backend in memory that has these records when it is open."""

    class Seeded(MemoryBackend):
        async def start(self):
            await super().start()
            await seed(self, values)

    return Seeded


def consumer(broker, **fields):
    """One at a URL, or at what makes a backend."""
    made = (lambda *_, **__: broker()) if callable(broker) else open_backend
    with mock.patch("flowshare.backend.broker.open_backend", made):
        return BlockingShareConsumer("memory://" if callable(broker) else broker, ["orders"], group_id="g", **fields)


def poll(one):
    """Records, polled for until some come."""
    records = []
    for _ in range(20):
        records = one.poll(WAIT_S)
        if records:
            break
    return records


def test_records_are_settled_with_outputs_and_released_with_a_delay():
    with consumer(seeded(b"a", b"b"), settings=EXPLICIT) as one:
        first, second = poll(one)

        assert one.settle([first], {"orders": [b"c"]})
        assert not one.settle([first], {"orders": [b"twice"]})
        one.release(second, delay=3600.0)
        (third,) = poll(one)

        assert third.value == b"c"
        one.release(third)


def test_records_are_polled_and_accepted_by_the_next_poll():
    with consumer(seeded(b"a", b"b")) as one:
        records = poll(one)

        assert [(record.offset, record.value, record.attempt) for record in records] == [
            (0, b"a", 1),
            (1, b"b", 1),
        ]
        assert one.poll(0.0) == []


def test_records_are_iterated_one_by_one_with_decoders():
    with consumer(seeded(b"1", b"2", b"3"), key_decoder=lambda key: key, value_decoder=int) as one:
        found = [record.value for record in itertools.islice(one, 3)]

        assert found == [1, 2, 3]


def test_the_commit_tells_what_became_of_what_is_in_hand():
    with consumer(seeded(b"a")) as one:
        poll(one)

        outcomes = one.commit(WAIT_S)

        assert list(outcomes.values()) == [None]


def test_what_was_released_comes_again():
    with consumer(seeded(b"a", b"b"), settings=EXPLICIT) as one:
        first, second = poll(one)
        one.acknowledge(first)
        one.acknowledge(second, AcknowledgeType.RELEASE)

        (again,) = poll(one)
        one.acknowledge(again)

        assert (again.offset, again.attempt) == (1, 2)


def test_a_contradiction_is_raised_where_it_was_made():
    with consumer(seeded(b"a")) as one:
        (record,) = poll(one)

        with pytest.raises(IllegalState, match="acknowledgements are implicit"):
            one.acknowledge(record)


def test_another_thread_wakes_a_poll_up():
    with consumer(seeded()) as one:
        waking = threading.Timer(0.01, one.wakeup)
        waking.start()

        with pytest.raises(Wakeup):
            one.poll(WAIT_S)
        waking.join()


def test_a_poll_that_was_interrupted_loses_nothing(monkeypatch):
    with consumer(seeded(b"a")) as one:

        def interrupt(_):
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(concurrent.futures, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.poll(WAIT_S)

        assert [record.value for record in poll(one)] == [b"a"]


def test_closing_ends_the_iteration_and_the_thread_and_may_be_repeated():
    one = consumer(seeded(b"a"))
    next(one)

    one.close()
    one.close()

    assert list(one) == []
    assert not one._thread.is_alive()
    with pytest.raises(Closed):
        one.poll(0.0)
    with pytest.raises(Closed):
        one.commit()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"broker": "nothing"}, BadBrokerUrl),
        ({"broker": "memory://", "topics": []}, ValueError),
        ({"broker": "memory://", "group_id": ""}, ValueError),
    ],
)
def test_what_cannot_work_is_refused_at_once_and_leaves_no_thread(fields, error):
    arguments = {"group_id": "g", "topics": ["orders"], **fields}
    broker = arguments.pop("broker")

    with pytest.raises(error):
        BlockingShareConsumer(broker, **arguments)

    assert not [
        thread for thread in threading.enumerate() if thread.name == "flowshare flowshare" and thread.is_alive()
    ]


@pytest.mark.slow
def test_what_was_not_accepted_on_an_embedded_path_comes_again_after_the_consumer_is_opened_anew(tmp_path):
    class Seeded(EmbeddedBackend):
        async def start(self):
            await super().start()
            await seed(self, [b"a"])

    with consumer(lambda: Seeded(tmp_path / "data")) as one:
        (first,) = poll(one)

    with consumer(f"embedded://{tmp_path}/data") as one:
        (again,) = poll(one)

    assert (first.value, again.value, again.attempt) == (b"a", b"a", 2)


def test_it_tells_of_partitions_and_what_it_has_counted():
    with consumer(seeded(b"a", b"bc")) as one:
        assert len(poll(one)) == 2
        assert [part.partition for part in one.partitions_for("orders")] == [0]
        assert one.metrics()["bytes_consumed_total"] == 3
