"""Producers and transactions at a socket: every version, every right, and errors in the words of the version."""

from __future__ import annotations

import uuid

import pytest

from flowshare.groups.types import ClassicConfig
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge import transactions
from flowshare.server.edge.derived import handed_on
from flowshare.share.config import ServerConfig
from flowshare.transactions.coordinator import TransactionConfig
from tests.server.edge.kit import edge, errors, ms, part

pytestmark = pytest.mark.asyncio

VERSIONS = {api.key: range(api.versions[0], api.versions[1] + 1) for api in (*transactions.ENDPOINTS, *handed_on())}
ID = {"transactional_id": "tx", "v3_and_below_transactional_id": "tx"}
WRITE_ID = (Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "tx")


async def init(socket, version=4, *, transactional_id="tx", timeout_ms=60_000, known=(-1, -1)):
    """InitProducerId."""
    return await socket.ask(
        "init_producer_id",
        version,
        transactional_id=transactional_id,
        transaction_timeout=ms(timeout_ms),
        producer_id=known[0],
        producer_epoch=known[1],
    )


def of(made):
    """A producer's identity as requests have it."""
    both = (int(made.producer_id), int(made.producer_epoch))
    old = {"v3_and_below_producer_id": both[0], "v3_and_below_producer_epoch": both[1]}
    return {"producer_id": both[0], "producer_epoch": both[1], **old}


async def add(socket, made, version=3, topics=(("t", (0,)),)):
    """AddPartitionsToTxn: error names by partition."""
    wanted = [part(name=name, partitions=numbers) for name, numbers in topics]
    answer = await socket.ask("add_partitions_to_txn", version, v3_and_below_topics=wanted, **ID, **of(made))
    return {
        (topic.name, one.partition_index): one.partition_error_code.name
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    }


async def end(socket, made, version=4, *, committed=True):
    """EndTxn: the error's name."""
    answer = await socket.ask("end_txn", version, committed=committed, **ID, **of(made))
    return answer.error_code.name


async def offsets(socket, made, version=4):
    """AddOffsetsToTxn: the error's name."""
    return (await socket.ask("add_offsets_to_txn", version, group_id="g", **ID, **of(made))).error_code.name


async def test_every_version_of_a_transaction_works() -> None:
    async with edge() as e:
        await e.topic("t", partitions=2)
        s = await e.socket()
        for version in VERSIONS[ApiKey.INIT_PRODUCER_ID]:
            made = await init(s, version)
            assert not errors(made)
            assert not errors(await init(s, version, transactional_id=None))
        for version in range(5):
            if version in VERSIONS[ApiKey.ADD_PARTITIONS_TO_TXN]:
                assert await add(s, made, version, (("t", (0, 1)),)) == {("t", 0): "none", ("t", 1): "none"}
            assert await offsets(s, made, version) == "none"
            assert await end(s, made, version, committed=version % 2 == 0) == "none"


async def test_no_version_is_offered_that_needs_transactions_of_version_2() -> None:
    assert VERSIONS[ApiKey.END_TXN].stop - 1 == 4
    assert VERSIONS[ApiKey.ADD_PARTITIONS_TO_TXN].stop - 1 == 3


async def test_a_fenced_producer_is_told_so_in_the_words_of_its_version() -> None:
    async with edge() as e:
        await e.topic("t")
        s = await e.socket()
        old = await init(s)
        await init(s)

        known = (int(old.producer_id), int(old.producer_epoch))
        told = {version: (await init(s, version, known=known)).error_code.name for version in (3, 4, 5)}
        assert told == {3: "invalid_producer_epoch", 4: "producer_fenced", 5: "producer_fenced"}
        assert [await end(s, old, version) for version in (1, 2)] == ["invalid_producer_epoch", "producer_fenced"]
        assert [await offsets(s, old, version) for version in (1, 2)] == ["invalid_producer_epoch", "producer_fenced"]
        assert (await add(s, old, 1))["t", 0] == "invalid_producer_epoch"
        assert (await add(s, old, 2))["t", 0] == "producer_fenced"


async def test_partitions_are_added_all_or_none() -> None:
    async with edge((Operation.WRITE, ResourceType.TOPIC, "secret")) as e:
        await e.topic("t")
        await e.topic("secret")
        s = await e.socket()
        made = await init(s)

        assert await add(s, made, topics=(("t", (0, 9)), ("none", (0,)), ("secret", (0,)))) == {
            ("t", 0): "operation_not_attempted",
            ("t", 9): "unknown_topic_or_partition",
            ("none", 0): "unknown_topic_or_partition",
            ("secret", 0): "topic_authorization_failed",
        }
        assert await end(s, made) == "invalid_txn_state"


async def test_who_may_not_write_with_the_id_is_refused_everywhere() -> None:
    async with edge(WRITE_ID, (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "tx")) as e:
        await e.topic("t")
        s = await e.socket()
        refused = "transactional_id_authorization_failed"
        made = await init(s)
        assert made.error_code.name == refused
        assert await add(s, made) == {("t", 0): refused}
        assert await offsets(s, made) == refused
        assert await end(s, made) == refused
        assert errors(await s.ask("describe_transactions", 0, transactional_ids=("tx",))) == {refused}


async def test_a_group_that_may_not_be_read_is_not_added() -> None:
    async with edge((Operation.READ, ResourceType.GROUP, "g")) as e:
        s = await e.socket()
        assert await offsets(s, await init(s)) == "group_authorization_failed"


async def test_an_idempotent_producer_needs_one_topic_to_write_to() -> None:
    cluster = (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, None)
    async with edge(cluster) as e:
        assert not errors(await init(await e.socket(), transactional_id=None))
    async with edge(cluster, (Operation.WRITE, ResourceType.TOPIC, None)) as e:
        answer = await init(await e.socket(), transactional_id=None)
        assert errors(answer) == {"cluster_authorization_failed"}


async def test_transactions_and_producers_can_be_looked_at() -> None:
    hidden = (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "hidden")
    async with edge(hidden, (Operation.READ, ResourceType.TOPIC, "secret")) as e:
        await e.topic("t", partitions=2)
        s = await e.socket()
        made = await init(s, timeout_ms=5000)
        await init(s, transactional_id="hidden")
        await add(s, made, topics=(("t", (1, 0)),))

        answer = await s.ask("describe_transactions", 0, transactional_ids=("tx", "none"))
        one, none = answer.transaction_states
        assert (one.transaction_state, one.producer_id, one.producer_epoch) == ("Ongoing", made.producer_id, 0)
        assert (one.transaction_timeout, one.topics[0].topic, one.topics[0].partitions) == (ms(5000), "t", (0, 1))
        assert one.transaction_start_time.year > 2000
        assert none.error_code.name == "transactional_id_not_found"
        await end(s, made)
        for version in VERSIONS[ApiKey.LIST_TRANSACTIONS]:
            listed = await s.ask(
                "list_transactions", version, state_filters=("What",), producer_id_filters=(), duration_filter=-1
            )
            assert (listed.unknown_state_filters, listed.transaction_states) == (("What",), ())
            listed = await s.ask(
                "list_transactions", version, state_filters=(), producer_id_filters=(), duration_filter=-1
            )
            assert [state.transactional_id for state in listed.transaction_states] == ["tx"]
        wanted = [part(name="t", partition_indexes=(0, 7)), part(name="secret", partition_indexes=(0,))]
        known, refused = (await s.ask("describe_producers", 0, topics=wanted)).topics
        assert [one.error_code.name for one in known.partitions] == ["none", "unknown_topic_or_partition"]
        (producer,) = known.partitions[0].active_producers
        assert (producer.producer_id, producer.last_sequence, producer.current_txn_start_offset) == (
            made.producer_id,
            -1,
            -1,
        )
        assert refused.partitions[0].error_code.name == "topic_authorization_failed"


async def test_one_client_makes_only_as_many_transactional_ids_and_groups_as_are_left():
    async with edge(config=ServerConfig(share_groups_max=4)) as e:
        e.server._transactions._config = TransactionConfig(ids_max=4)
        e.server.classic.config = ClassicConfig(groups_max=4)
        s = await e.socket()
        found = []
        for number in range(4):
            name = f"n{number}"
            made = await init(s, transactional_id=name)
            joined = await s.ask(
                "join_group",
                4,
                group_id=name,
                session_timeout=ms(30_000),
                rebalance_timeout=ms(30_000),
                member_id="",
                group_instance_id=None,
                protocol_type="consumer",
                protocols=[part(name="range", metadata=b"")],
            )
            beat = await s.ask(
                "share_group_heartbeat",
                1,
                group_id=f"s{number}",
                member_id=str(uuid.uuid4()),
                member_epoch=0,
                rack_id=None,
                subscribed_topic_names=["t"],
            )
            found.append([int(one.error_code) for one in (made, joined, beat)])
        refused = int(ErrorCode.POLICY_VIOLATION)
        asked_again = int(ErrorCode.MEMBER_ID_REQUIRED)
        assert found == [[0, asked_again, 0]] * 2 + [[refused] * 3] * 2
