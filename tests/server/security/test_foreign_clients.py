"""Clients of others (librdkafka through confluent-kafka, aiokafka) against a broker with TLS, logins and ACLs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import AuthenticationFailedError, KafkaError, TopicAuthorizationFailedError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import KafkaError as Refusal
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from flowshare.client.net.security import Security
from tests.server.security.broker import Secured, secured
from tests.server.security.certificates import Certificates

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

DEADLINE_S = 60.0
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
ACLS = """
allow User:alice write topic orders
allow User:alice describe topic audit
allow User:bob read topic orders
allow User:bob read group billing
allow User:bob read topic audit
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def librdkafka(broker: Secured, files: Certificates, user: str, password: str, mechanism: str = "SCRAM-SHA-512"):
    """Settings of librdkafka's clients."""
    return {
        "bootstrap.servers": f"{broker.host}:{broker.port}",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(files.ca),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "socket.timeout.ms": 10_000,
        "log_level": 0,
    }


def ours(files: Certificates, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> Security:
    return Security(protocol="SASL_SSL", mechanism=mechanism, username=user, password=password, ca_file=files.ca)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_librdkafka_logs_in(tmp_path: Path, files: Certificates, mechanism: str) -> None:
    async with secured(tmp_path, tls=files.tls()) as broker:
        await broker.topic("orders")
        admin = AdminClient(librdkafka(broker, files, "alice", "wonder land", mechanism))
        seen = await asyncio.to_thread(admin.list_topics, timeout=DEADLINE_S)

    assert "orders" in seen.topics


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_librdkafka_is_told_of_a_wrong_password(tmp_path: Path, files: Certificates, mechanism: str) -> None:
    errors: list[Refusal] = []

    def wait_for_the_error(producer: Producer) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and not any(error.code() == Refusal._AUTHENTICATION for error in errors):
            producer.poll(0.05)

    async with secured(tmp_path, tls=files.tls()) as broker:
        settings = librdkafka(broker, files, "alice", "looking glass", mechanism)
        producer = Producer(settings | {"error_cb": errors.append})
        await asyncio.to_thread(wait_for_the_error, producer)

    told = [error for error in errors if error.code() == Refusal._AUTHENTICATION]
    assert told
    assert "the user name or the password is wrong" in str(told[0])


async def test_librdkafka_changes_acls_and_users(tmp_path: Path, files: Certificates) -> None:
    binding = AclBinding(
        ResourceType.TOPIC,
        "pay",
        ResourcePatternType.PREFIXED,
        "User:carol",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    new = UserScramCredentialUpsertion(
        "carol", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192), b"her word", b"salt"
    )

    async with secured(tmp_path, acls="", tls=files.tls()) as broker:
        await broker.topic("payments")
        admin = AdminClient(librdkafka(broker, files, "admin", "top secret"))

        async def done(futures):
            return [await asyncio.wait_for(asyncio.wrap_future(future), DEADLINE_S) for future in futures.values()]

        await done(await asyncio.to_thread(admin.create_acls, [binding]))
        assert list(await _one(await asyncio.to_thread(admin.describe_acls, everything))) == [binding]
        await done(await asyncio.to_thread(admin.alter_user_scram_credentials, [new]))
        found = await done(await asyncio.to_thread(admin.describe_user_scram_credentials, ["carol"]))
        assert [info.iterations for info in found[0].scram_credential_infos] == [8192]

        carol = AdminClient(librdkafka(broker, files, "carol", "her word"))
        seen = await asyncio.to_thread(carol.list_topics, timeout=DEADLINE_S)
        assert list(seen.topics) == ["payments"]

        gone = await done(await asyncio.to_thread(admin.delete_acls, [everything]))
        assert [list(acls) for acls in gone] == [[binding]]
        deletion = UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_512)
        await done(await asyncio.to_thread(admin.alter_user_scram_credentials, [deletion]))


async def _one(future):
    return await asyncio.wait_for(asyncio.wrap_future(future), DEADLINE_S)


async def test_librdkafka_is_refused_what_no_acl_allows(tmp_path: Path, files: Certificates) -> None:
    async with secured(tmp_path, acls=ACLS, tls=files.tls()) as broker:
        await broker.topic("orders", 3)
        await broker.topic("audit")
        alice = Producer(librdkafka(broker, files, "alice", "wonder land"))
        outcomes = await asyncio.to_thread(_produce, alice, "orders", "audit")
        bob = librdkafka(broker, files, "bob", "builder") | {"auto.offset.reset": "earliest"}
        read = await asyncio.to_thread(_consume, Consumer(bob | {"group.id": "billing"}), "orders", 4)
        refused = await asyncio.to_thread(_consume, Consumer(bob | {"group.id": "other"}), "orders", 1)
        eve = librdkafka(broker, files, "alice", "wonder land") | {"group.id": "billing"}
        closed = await asyncio.to_thread(_consume, Consumer(eve), "audit", 1)

    assert outcomes == {"orders": None, "audit": Refusal.TOPIC_AUTHORIZATION_FAILED}
    assert read == [None] * 4
    assert refused == [Refusal.GROUP_AUTHORIZATION_FAILED]
    assert closed == [Refusal.GROUP_AUTHORIZATION_FAILED]


def _produce(producer: Producer, *topics: str) -> dict[str, int | None]:
    """By topic: None, or the error's code."""
    outcomes: dict[str, int | None] = {}
    for topic in topics:
        producer.produce(
            topic,
            b"hello",
            on_delivery=lambda error, message: outcomes.update({message.topic(): error and error.code()}),
        )
    producer.flush(DEADLINE_S)
    return outcomes


def _consume(consumer: Consumer, topic: str, count: int) -> list[int | None]:
    """None for a record, or the code of an error, `count` of them."""
    found: list[int | None] = []
    deadline = time.monotonic() + DEADLINE_S
    consumer.subscribe([topic])
    try:
        while len(found) < count and time.monotonic() < deadline:
            try:
                message = consumer.poll(0.1)
            except KafkaException as error:
                found.append(error.args[0].code())
                continue
            if message is not None:
                error = message.error()
                found.append(None if error is None else error.code())
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_logs_in_with_our_settings(tmp_path: Path, files: Certificates, mechanism: str) -> None:
    async with secured(tmp_path, tls=files.tls()) as broker:
        await broker.topic("orders")
        at = {"bootstrap_servers": f"{broker.host}:{broker.port}"}
        producer = AIOKafkaProducer(**at, **ours(files, "alice", "wonder land", mechanism).for_aiokafka())
        await producer.start()
        try:
            await producer.send_and_wait("orders", b"hello")
        finally:
            await producer.stop()
        options = {**at, "auto_offset_reset": "earliest", "group_id": "billing"}
        consumer = AIOKafkaConsumer("orders", **options, **ours(files, "bob", "builder", mechanism).for_aiokafka())
        await consumer.start()
        try:
            record = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
        finally:
            await consumer.stop()

    assert record.value == b"hello"


async def test_aiokafka_is_told_of_a_wrong_password_and_of_a_missing_right(tmp_path: Path, files: Certificates) -> None:
    async with secured(tmp_path, acls=ACLS, tls=files.tls()) as broker:
        await broker.topic("audit")
        at = {"bootstrap_servers": f"{broker.host}:{broker.port}"}
        producer = AIOKafkaProducer(**at, **ours(files, "alice", "looking glass").for_aiokafka())
        with pytest.raises(KafkaError) as refused:
            await producer.start()
        await producer.stop()
        assert isinstance(refused.value, AuthenticationFailedError) or "Unable to bootstrap" in str(refused.value)

        producer = AIOKafkaProducer(**at, **ours(files, "alice", "wonder land").for_aiokafka())
        await producer.start()
        try:
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait("audit", b"hello")
        finally:
            await producer.stop()
