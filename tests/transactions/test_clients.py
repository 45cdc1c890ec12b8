"""Real producers whose connections are cut and whose broker is killed: no record twice, none lost, none half."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from tests.transactions.cutting import LIMIT_S, Process, broker_behind_proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(func_only=True)]


KILLS = 6


def make_topic(address: str, name: str = "t") -> str:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(LIMIT_S)
    return name


def read(address: str, count: int, *, topic: str = "t", extra_s: float = 0.5) -> list[str]:
    """Committed values from the beginning, `count` of them and what comes within `extra_s` more."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([Place(topic, 0, 0)])
    found: list[str] = []
    for _ in range(200):
        taken = consumer.consume(5000, timeout=extra_s if len(found) >= count else 1.0)
        found += [message.value().decode() for message in taken if message.error() is None]
        if not taken and len(found) >= count:
            break
    consumer.close()
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_default_producer_whose_connections_are_cut_writes_every_record_once(tmp_path, seed):
    print(f"seed={seed}")
    with broker_behind_proxy(tmp_path / "log", seed) as (proxy, address):
        make_topic(address)
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0}
        fast = {"linger.ms": 1, "batch.num.messages": 20, "reconnect.backoff.ms": 10, "retry.backoff.ms": 10}
        producer = Producer({**settings, **fast})
        told: list[object] = []
        proxy.cut_share = 0.1
        for number in range(3000):
            producer.produce("t", str(number), on_delivery=lambda error, _: told.append(error))
            producer.poll(0.001 if number % 20 == 0 else 0)
        assert producer.flush(2 * LIMIT_S) == 0
        proxy.cut_share = 0.0

        assert told == [None] * 3000
        assert read(address, 3000) == [str(number) for number in range(3000)]
        assert proxy.cuts > 0


@pytest.mark.parametrize("seed", [11, 12])
def test_a_transactional_producer_whose_connections_are_cut_commits_all_or_nothing(tmp_path, seed):
    print(f"seed={seed}")
    with broker_behind_proxy(tmp_path / "log", seed) as (proxy, address):
        make_topic(address)
        producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": "tx",
                "reconnect.backoff.ms": 10,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        producer.init_transactions(LIMIT_S)
        proxy.cut_share = 0.05
        wanted = []
        for number in range(60):
            wanted += run_transaction(producer, number, abort=number % 4 == 0)
        proxy.cut_share = 0.0

        assert read(address, len(wanted)) == wanted


def run_transaction(producer: Producer, number: int, *, abort: bool) -> list[str]:
    """One transaction of three records, tried until it ends as wanted; what is to be read of it."""
    values = [f"{number}-{part}" for part in range(3)]
    while True:
        producer.begin_transaction()
        try:
            for value in values:
                producer.produce("t", value)
            if abort:
                producer.flush(LIMIT_S)
                again(producer.abort_transaction)
                return []
            again(producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            again(producer.abort_transaction)
        else:
            return values


def again(call) -> None:
    """Call until it is done; librdkafka says which errors only want another try."""
    while True:
        try:
            call(LIMIT_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


def test_a_killed_broker_finishes_what_was_committed_and_nothing_else(tmp_path):
    seed = 21
    print(f"seed={seed}")
    broker, chance = Process(tmp_path / "log"), random.Random(seed)
    done, still, over = threading.Event(), threading.Event(), threading.Event()
    broker.start()

    def kill_sometimes() -> None:
        for _ in range(KILLS):
            if not done.wait(chance.uniform(0.2, 2)):
                broker.kill()
                broker.start()
        done.set()
        still.set()
        over.wait(LIMIT_S)

    killer = threading.Thread(target=kill_sometimes)
    try:
        make_topic(broker.address)
        producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "transactional.id": "tx",
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        producer.init_transactions(LIMIT_S)
        killer.start()
        wanted, number = [], 0
        while not done.is_set():
            wanted += run_transaction(producer, number, abort=number % 4 == 0)
            number += 1
        assert still.wait(LIMIT_S)

        assert read(broker.address, len(wanted)) == wanted
    finally:
        done.set()
        over.set()
        if killer.ident is not None:
            killer.join()
        broker.kill()


def test_aiokafka_reads_processes_and_writes_exactly_once(tmp_path):
    async def work(address: str) -> tuple[list[bytes], int]:
        async with AIOKafkaProducer(bootstrap_servers=address) as feeding:
            for number in range(20):
                await feeding.send_and_wait("source", b"%d" % number, partition=0)
        source, target = TopicPartition("source", 0), TopicPartition("target", 0)
        settings = {"bootstrap_servers": address, "isolation_level": "read_committed", "enable_auto_commit": False}
        async with AIOKafkaProducer(bootstrap_servers=address, transactional_id="copy") as producer:
            for attempt in range(4):
                async with AIOKafkaConsumer(group_id="g", auto_offset_reset="earliest", **settings) as consumer:
                    consumer.assign([source])
                    taken = [await consumer.getone() for _ in range(10 if attempt != 3 else 0)]
                    await producer.begin_transaction()
                    for record in taken:
                        await producer.send("target", record.value, partition=0)
                    if taken:
                        await producer.send_offsets_to_transaction({source: taken[-1].offset + 1}, "g")
                    # Every second one is thrown away: its records are read again.
                    await (producer.abort_transaction() if attempt % 2 == 0 else producer.commit_transaction())
                    if attempt == 2:
                        break
            await producer.begin_transaction()
            last = [await one for one in [await producer.send("target", b"end", partition=0)]]
            await producer.commit_transaction()
            assert last
        async with AIOKafkaConsumer(auto_offset_reset="earliest", **settings) as consumer:
            consumer.assign([target])
            await consumer.seek_to_beginning(target)
            read_back = [(await consumer.getone()).value for _ in range(11)]
        async with AIOKafkaConsumer(group_id="g", **settings) as consumer:
            return read_back, await consumer.committed(source)

    with broker_behind_proxy(tmp_path / "log", 0) as (_, address):
        for name in ("source", "target"):
            make_topic(address, name)
        values, committed = asyncio.run(work(address))

    assert values == [b"%d" % number for number in range(10)] + [b"end"]
    assert committed == 10
