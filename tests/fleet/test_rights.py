"""Tests of the rights that a fleet needs at Kafka's brokers: listed as commands, complete, and missing rights are
found."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

import flowshare as fs
from flowshare.agents.host.host import Host
from flowshare.cli.check import fleet_acls
from flowshare.dev.broker import Wanted, running
from flowshare.dev.probe import HOST, free_ports
from flowshare.fleet.rights import needed
from tests.waiting import until

LIMIT_S = 60.0
KINDS = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
}
OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "AlterConfigs": AclOperation.ALTER_CONFIGS,
}


def test_rights_are_told_as_commands_that_name_no_more_than_the_fleet() -> None:
    rights = needed("shop", reads=["orders"], writes=["paid", "orders"], makes=["paid"])

    assert [right.command("kafka:9092", "User:worker") for right in rights] == [
        "kafka-acls.sh --bootstrap-server kafka:9092 --add --allow-principal User:worker --operation Read --operation "
        "Write --operation Create --operation Delete --operation DescribeConfigs --operation AlterConfigs --topic "
        "__flowshare_state.shop",
        "kafka-acls.sh --bootstrap-server kafka:9092 --add --allow-principal User:worker --operation Read --group "
        "__flowshare_state.shop",
        "kafka-acls.sh --bootstrap-server kafka:9092 --add --allow-principal User:worker --operation Write "
        "--transactional-id __flowshare_state.shop. --resource-pattern-type prefixed",
        "kafka-acls.sh --bootstrap-server kafka:9092 --add --allow-principal User:worker --operation Read --operation "
        "Write --topic orders",
        "kafka-acls.sh --bootstrap-server kafka:9092 --add --allow-principal User:worker --operation Write --operation "
        "Create --topic paid",
    ]
    assert str(rights[-1]) == "Write, Create on topic paid (written)"


def test_a_fleet_that_settles_counts_in_groups_of_its_own() -> None:
    plain = needed("shop", reads=["orders"], writes=["paid"], makes=[])
    rights = needed("shop", reads=["orders"], writes=["paid"], makes=[], settles=True)

    assert [right.command("kafka:9092", "User:worker") for right in rights if right not in plain] == [
        "kafka-acls.sh --bootstrap-server kafka:9092 --add --allow-principal User:worker --operation Read --group "
        "__flowshare_state.shop.ledger. --resource-pattern-type prefixed"
    ]


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """A Kafka with an authorizer: one port for its super user, and one that asks for a login."""
    plain, login, controller = free_ports(3)
    listeners = f"PLAINTEXT://{HOST}:{plain},LOGIN://{HOST}:{login}"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{module} required user_worker="secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with running(Wanted(port=plain, settings=settings)):
        yield plain, login


def grant(admin: AdminClient, command: str) -> None:
    """Create the ACLs that Kafka's own tool would create for the command."""
    words = shlex.split(command)[1:]
    prefixed = "prefixed" in words
    kind, name = next((KINDS[word], words[at + 1]) for at, word in enumerate(words) if word in KINDS)
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    principal = words[words.index("--allow-principal") + 1]
    wanted = [words[at + 1] for at, word in enumerate(words) if word == "--operation"]
    bindings = [
        AclBinding(kind, name, pattern, principal, "*", OPERATIONS[word], AclPermissionType.ALLOW) for word in wanted
    ]
    for done in admin.create_acls(bindings).values():
        done.result(LIMIT_S)


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(func_only=True)
async def test_with_the_acls_that_check_prints_a_fleet_works_and_without_them_it_says_which_are_missing(ports) -> None:
    plain, login = ports
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{plain}"})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(LIMIT_S)
    url = f"kafka://worker:secret@{HOST}:{login}?security=SASL_PLAINTEXT&sasl_mechanism=PLAIN&share=workers&slots=4"
    app = fs.App("shop", broker=f"{url}&listen=127.0.0.1:0")
    handled = []

    @app.share_agent("orders", name="pay", start="earliest", sink=["paid"], dead_letter=True, retry=None)
    async def pay(order: bytes) -> bytes:
        handled.append(order)
        if order == b"bad":
            raise ValueError("no")
        return order

    before = await fleet_acls(app)
    assert {level for level, _ in before} == {"error"}
    assert "READ is missing: kafka-acls.sh" in before[1][1]
    for _, text in before:
        grant(admin, text[text.index("kafka-acls.sh") :])
    said: list[tuple[str, str]] = before
    async with asyncio.timeout(LIMIT_S):
        while any(level == "error" for level, _ in said):  # brokers learn of ACLs a little later
            said = await fleet_acls(app)
            creating = [text for level, text in said if level == "error" and "kafka-acls.sh" in text]
            for text in creating:  # with DESCRIBE it is known which topics are not there and have to be made
                grant(admin, text[text.index("kafka-acls.sh") :])

    host = Host(app)
    await host.start()
    try:
        await asyncio.to_thread(produce, plain)
        async with fs.ShareAdmin(f"kafka://{HOST}:{plain}?share=native") as admin:
            for topic in ("shop.pay.dlq", "paid"):
                await one_record(admin, topic)
    finally:
        await host.drain(10.0)
        await host.stop()
    assert sorted(set(handled)) == [b"bad", b"good"]


async def one_record(admin: fs.ShareAdmin, topic: str) -> None:
    """Wait until the topic has one."""
    await until(lambda: admin.read(topic, 0))


def produce(port: int) -> None:
    """Two records, by somebody else."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": f"{HOST}:{port}"})
    for value in (b"good", b"bad"):
        producer.produce("orders", value)
    assert producer.flush(LIMIT_S) == 0
