"""Metadata and the APIs that make and remove topics, at a socket."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import CreateTopicRequest
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.share.config import ServerConfig
from tests.server.edge.kit import edge, ms, part
from tests.waiting import until

pytestmark = pytest.mark.asyncio

WITH_OPERATIONS = ("include_topic_authorized_operations", "include_cluster_authorized_operations")
DESCRIBE_SECRET = (Operation.DESCRIBE, ResourceType.TOPIC, "secret")


def named(*names):
    """Topics of a Metadata request."""
    return [part(name=name, topic_id=None) for name in names]


def topics(answer):
    """Error names by topic name."""
    return {topic.name: topic.error_code.name for topic in answer.topics}


async def metadata(socket, wanted, version=12, **more):
    """Ask for topics; without making any unless told to."""
    quiet = {"allow_auto_topic_creation": False, **dict.fromkeys(WITH_OPERATIONS, False)}
    return await socket.ask("metadata", version, **{"topics": wanted, **quiet, **more})


# --- metadata -------------------------------------------------------------------------------------------------------


async def test_everything_is_led_by_the_one_node() -> None:
    async with edge() as e:
        topic_id = await e.topic("t", partitions=2)
        s = await e.socket()

        answer = await metadata(s, None)

        assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(1, e.host, e.port)]
        assert (answer.controller_id, answer.cluster_id) == (1, "flowshare")
        (topic,) = answer.topics
        assert (topic.name, topic.topic_id, topic.is_internal) == ("t", topic_id, False)
        assert [(p.partition_index, p.leader_id, p.leader_epoch, p.isr_nodes) for p in topic.partitions] == [
            (0, 1, 0, (1,)),
            (1, 1, 0, (1,)),
        ]


@pytest.mark.parametrize("unnamed", [None, ""], ids=["librdkafka", "java"])
async def test_topics_are_found_by_id(unnamed) -> None:
    async with edge(DESCRIBE_SECRET) as e:
        topic_id, secret_id, unknown = await e.topic("t"), await e.topic("secret"), uuid.uuid4()
        s = await e.socket()

        answer = await metadata(s, [part(name=unnamed, topic_id=one) for one in (topic_id, unknown, secret_id)], 13)

        assert [(topic.topic_id, topic.name, topic.error_code.name) for topic in answer.topics] == [
            (topic_id, "t", "none"),
            (unknown, None, "unknown_topic_id"),
            (secret_id, None, "topic_authorization_failed"),
        ]


async def test_topics_that_may_not_be_described_are_left_out_unless_named() -> None:
    async with edge(DESCRIBE_SECRET) as e:
        await e.topic("t")
        await e.topic("secret")
        s = await e.socket()

        assert topics(await metadata(s, None)) == {"t": "none"}
        assert topics(await s.ask("metadata", 0, topics=())) == {"t": "none"}
        assert topics(await metadata(s, ())) == {}
        assert topics(await metadata(s, named("secret", "none", "bad/name"))) == {
            "secret": "topic_authorization_failed",
            "none": "unknown_topic_or_partition",
            "bad/name": "invalid_topic_exception",
        }


async def test_a_missing_topic_is_made_for_a_client_that_wants_it() -> None:
    config = ServerConfig.embedded({"num.partitions": "3"})
    async with edge((Operation.CREATE, ResourceType.CLUSTER, None), config=config) as e:
        s = await e.socket()

        assert topics(await metadata(s, named("no"))) == {"no": "unknown_topic_or_partition"}
        made = await metadata(s, named("yes"), allow_auto_topic_creation=True)

        assert topics(made) == {"yes": "none"}
        assert [len(topic.partitions) for topic in made.topics] == [3]
        assert topics(await s.ask("metadata", 1, topics=named("old"))) == {"old": "none"}


async def test_a_reserved_name_is_unknown_and_not_made_for_a_client_that_wants_it() -> None:
    async with edge() as e:
        s = await e.socket()

        for wanted in (False, True):  # flowshare's own clients ask whether groups were moved, of any broker
            asked = await metadata(s, named("__flowshare_moves"), allow_auto_topic_creation=wanted)
            assert topics(asked) == {"__flowshare_moves": "unknown_topic_or_partition"}


async def test_nothing_is_made_without_the_setting_or_the_right() -> None:
    off = ServerConfig.embedded({"auto.create.topics.enable": "false"})
    async with edge(config=off) as e:
        s = await e.socket()
        assert topics(await metadata(s, named("t"), allow_auto_topic_creation=True)) == {
            "t": "unknown_topic_or_partition"
        }
    async with edge((Operation.CREATE, None, None)) as e:
        s = await e.socket()
        assert topics(await metadata(s, named("t"), allow_auto_topic_creation=True)) == {
            "t": "topic_authorization_failed"
        }


async def test_rights_are_told_as_bits() -> None:
    async with edge((Operation.WRITE, ResourceType.TOPIC, "t")) as e:
        await e.topic("t")
        s = await e.socket()

        answer = await metadata(s, named("t"), 10, **dict.fromkeys(WITH_OPERATIONS, True))
        silent = await metadata(s, named("t"), 10, **dict.fromkeys(WITH_OPERATIONS, False))

        bits = answer.topics[0].topic_authorized_operations
        assert bits & (1 << Operation.READ)
        assert not bits & (1 << Operation.WRITE)
        assert answer.cluster_authorized_operations & (1 << Operation.CREATE)
        assert silent.topics[0].topic_authorized_operations == silent.cluster_authorized_operations == -(2**31)


async def test_partitions_come_in_pages() -> None:
    async with edge(DESCRIBE_SECRET) as e:
        for name, partitions in (("a", 3), ("b", 2), ("c", 1), ("secret", 1)):
            await e.topic(name, partitions=partitions)
        s = await e.socket()
        seen, cursor, pages = [], None, 0
        while True:
            asked = {"topics": (), "response_partition_limit": 2, "cursor": cursor}
            answer = await s.ask("describe_topic_partitions", 0, **asked)
            seen += [(topic.name, p.partition_index) for topic in answer.topics for p in topic.partitions]
            pages += 1
            if answer.next_cursor is None:
                break
            found = answer.next_cursor
            cursor = part(topic_name=found.topic_name, partition_index=found.partition_index)

        assert (seen, pages) == ([("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)], 3)
        answer = await s.ask("describe_topic_partitions", 0, topics=[part(name=n) for n in ("secret", "none", "a")])
        assert topics(answer) == {
            "a": "none",
            "none": "unknown_topic_or_partition",
            "secret": "topic_authorization_failed",
        }


async def test_a_brokers_address_is_no_controllers() -> None:
    async with edge((Operation.DESCRIBE, ResourceType.CLUSTER, None)) as e:
        s = await e.socket()
        asked = {"include_cluster_authorized_operations": True, "include_fenced_brokers": False}

        found = await s.ask("describe_cluster", 2, endpoint_type=1, **asked)
        other = await s.ask("describe_cluster", 2, endpoint_type=2, **asked)
        odd = await s.ask("describe_cluster", 1, endpoint_type=9, **asked)

        assert [(b.broker_id, b.host, b.port, b.is_fenced) for b in found.brokers] == [(1, e.host, e.port, False)]
        assert (found.cluster_id, found.cluster_authorized_operations) == ("flowshare", 0)
        assert other.error_code.name == "mismatched_endpoint_type"
        assert odd.error_code.name == "unsupported_endpoint_type"
        denied = await s.ask("list_partition_reassignments", 0, topics=None)
        assert denied.error_code.name == "cluster_authorization_failed"


# --- create ---------------------------------------------------------------------------------------------------------


def topic(name, partitions=1, replicas=1, *, configs=(), assignments=()):
    """One topic of a CreateTopics request."""
    return part(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[part(partition_index=n, broker_ids=b) for n, b in assignments],
        configs=[part(name=n, value=v) for n, v in configs],
    )


async def create(socket, *wanted, version=7, timeout=5000, validate_only=False):
    """Make topics; results by name."""
    answer = await socket.ask(
        "create_topics", version, topics=list(wanted), timeout=ms(timeout), validate_only=validate_only
    )
    return {one.name: one for one in answer.topics}


async def test_topics_are_made_with_their_settings() -> None:
    async with edge() as e:
        s = await e.socket()

        made = await create(s, topic("a", 3, 1, configs=[("retention.ms", "5000")]), topic("b", -1, -1))

        found = made["a"]
        assert (found.error_code.name, found.num_partitions, found.replication_factor) == ("none", 3, 1)
        assert found.topic_id == e.storage.topics()["a"].topic_id
        assert {c.name: (c.value, c.config_source) for c in found.configs}["retention.ms"] == ("5000", 1)
        assert e.storage.topics()["a"].configs == {"retention.ms": "5000"}
        assert e.storage.topics()["b"].partitions == 1


async def test_topics_that_cannot_be_made_are_refused_each_for_itself() -> None:
    no_create = (Operation.CREATE, ResourceType.CLUSTER, None), (Operation.CREATE, ResourceType.TOPIC, "secret")
    async with edge(*no_create) as e:
        await e.topic("there")
        s = await e.socket()

        made = await create(
            s,
            topic("ok"),
            topic("there"),
            topic("secret"),
            topic("bad name"),
            topic("twice"),
            topic("twice", 2),
            topic("many", 1, 3),
            topic("none", 1, 0),
            topic("zero", 0),
            topic("odd", configs=[("no.such", "1")]),
            topic("null", configs=[("retention.ms", None)]),
        )

        assert {name: one.error_code.name for name, one in made.items()} == {
            "ok": "none",
            "there": "topic_already_exists",
            "secret": "topic_authorization_failed",
            "bad name": "invalid_topic_exception",
            "twice": "invalid_request",
            "many": "invalid_replication_factor",
            "none": "invalid_replication_factor",
            "zero": "invalid_partitions",
            "odd": "invalid_config",
            "null": "invalid_config",
        }
        assert set(e.storage.topics()) == {"there", "ok"}
        assert all(one.error_message for name, one in made.items() if name != "ok")


async def test_replicas_assigned_by_hand_must_be_the_one_broker() -> None:
    async with edge() as e:
        s = await e.socket()

        made = await create(
            s,
            topic("ok", -1, -1, assignments=[(0, (1,)), (1, (1,))]),
            topic("other", -1, -1, assignments=[(0, (2,))]),
            topic("hole", -1, -1, assignments=[(1, (1,))]),
            topic("both", 1, -1, assignments=[(0, (1,))]),
        )

        assert {name: one.error_code.name for name, one in made.items()} == {
            "ok": "none",
            "other": "invalid_replica_assignment",
            "hole": "invalid_replica_assignment",
            "both": "invalid_request",
        }
        assert e.storage.topics()["ok"].partitions == 2


async def test_validating_makes_nothing_and_settings_need_a_right() -> None:
    async with edge((Operation.DESCRIBE_CONFIGS, None, None)) as e:
        s = await e.socket()

        seen = await create(s, topic("t", 2), topic("bad name"), validate_only=True)

        assert [one.error_code.name for one in seen.values()] == ["none", "invalid_topic_exception"]
        assert (seen["t"].num_partitions, seen["t"].configs) == (-1, None)
        assert seen["t"].topic_config_error_code == 29
        assert not e.storage.topics()


async def test_what_takes_longer_than_the_client_waits_is_done_all_the_same() -> None:
    async with edge() as e:
        go_on = asyncio.Event()
        e.storage.before_write = go_on.wait
        s = await e.socket()

        late = await create(s, topic("t"), timeout=20)
        e.storage.before_write = None
        go_on.set()

        assert late["t"].error_code.name == "request_timed_out"
        await until(lambda: "t" in e.storage.topics())


# --- delete and grow ------------------------------------------------------------------------------------------------


async def test_topics_are_deleted_by_name_and_by_id() -> None:
    async with edge((Operation.DELETE, ResourceType.TOPIC, "kept"), DESCRIBE_SECRET) as e:
        ids = {name: await e.topic(name) for name in ("a", "b", "kept", "secret", "twice")}
        s = await e.socket()
        unknown = uuid.uuid4()
        wanted = [
            part(name="a", topic_id=None),
            part(name=None, topic_id=ids["b"]),
            part(name=None, topic_id=unknown),
            part(name="kept", topic_id=None),
            part(name=None, topic_id=ids["secret"]),
            part(name="twice", topic_id=None),
            part(name="twice", topic_id=None),
            part(name="none", topic_id=None),
            part(name="kept", topic_id=ids["kept"]),
        ]

        answer = await s.ask("delete_topics", 6, topics=wanted, timeout=ms(5000))

        assert [one.error_code.name for one in answer.responses] == [
            "none",
            "none",
            "unknown_topic_id",
            "topic_authorization_failed",
            "topic_authorization_failed",
            "invalid_request",
            "unknown_topic_or_partition",
            "invalid_request",
        ]
        assert answer.responses[4].name is None
        assert set(e.storage.topics()) == {"kept", "secret", "twice"}


async def test_partitions_are_added() -> None:
    async with edge((Operation.ALTER, ResourceType.TOPIC, "kept")) as e:
        for name in ("a", "b", "c", "kept", "twice"):
            await e.topic(name)
        s = await e.socket()

        async def grow(*wanted, validate_only=False):
            asked = [
                part(
                    name=name,
                    count=count,
                    assignments=None if brokers is None else [part(broker_ids=one) for one in brokers],
                )
                for name, count, brokers in wanted
            ]
            answer = await s.ask("create_partitions", 3, topics=asked, timeout=ms(5000), validate_only=validate_only)
            return [(one.name, one.error_code.name) for one in answer.results]

        assert await grow(("a", 3, None), ("b", 1, None), ("none", 2, None), ("kept", 2, None)) == [
            ("a", "none"),
            ("b", "invalid_partitions"),
            ("none", "unknown_topic_or_partition"),
            ("kept", "topic_authorization_failed"),
        ]
        assert await grow(("b", 2, [(7,)]), ("c", 3, [(1,)]), ("twice", 2, None), ("twice", 3, None)) == [
            ("b", "invalid_replica_assignment"),
            ("c", "invalid_replica_assignment"),
            ("twice", "invalid_request"),
        ]
        assert await grow(("b", 2, [(1,)])) == [("b", "none")]
        assert await grow(("c", 9, None), validate_only=True) == [("c", "none")]
        assert {name: found.partitions for name, found in e.storage.topics().items()} == {
            "a": 3,
            "b": 2,
            "c": 1,
            "kept": 1,
            "twice": 1,
        }


# --- how many partitions ------------------------------------------------------------------------------------------


def wide(name, count):
    """A topic of a CreateTopics request."""
    return part(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])


async def test_one_request_makes_only_so_many_partitions():
    async with edge(config=ServerConfig(request_partitions_max=10)) as e:
        s = await e.socket()
        asked = [wide(name, 4) for name in "abc"]
        answer = await s.ask("create_topics", 5, topics=asked, timeout=ms(5_000), validate_only=False)
        assert topics(answer) == {"a": "none", "b": "none", "c": "policy_violation"}
        assert "max.request.new.partitions" in answer.topics[2].error_message

        more = [part(name=name, count=10, assignments=None) for name in "ab"]
        answer = await s.ask("create_partitions", 1, topics=more, timeout=ms(5_000), validate_only=False)
        assert {one.name: one.error_code.name for one in answer.results} == {"a": "none", "b": "policy_violation"}


async def test_all_topics_have_only_so_many_partitions_however_many_are_made_at_once():
    async with edge(config=ServerConfig(partitions_max=10)) as e:
        s = await e.socket()
        asked = [wide(name, 4) for name in "abc"]
        answer = await s.ask("create_topics", 5, topics=asked, timeout=ms(5_000), validate_only=False)
        assert sorted(topics(answer).values()) == ["none", "none", "policy_violation"]
        assert any("max.partitions" in (one.error_message or "") for one in answer.topics)

        (made, *_) = (name for name, error in topics(answer).items() if error == "none")
        more = [part(name=made, count=7, assignments=None)]
        answer = await s.ask("create_partitions", 1, topics=more, timeout=ms(5_000), validate_only=False)
        assert answer.results[0].error_code.name == "policy_violation"


async def test_a_request_may_see_whether_too_many_partitions_could_be_made():
    async with edge(config=ServerConfig(partitions_max=3)) as e:
        s = await e.socket()
        answer = await s.ask("create_topics", 5, topics=[wide("a", 4)], timeout=ms(5_000), validate_only=True)
        assert topics(answer) == {"a": "policy_violation"}


# --- how many partitions one party makes --------------------------------------------------------------------------

QUOTA = ServerConfig(mutation_rate=1, mutation_windows=4, partitions_max=1_000)


async def test_what_a_party_makes_and_removes_beyond_its_quota_is_refused_and_told_when_to_come_back():
    async with edge(config=QUOTA) as e:
        s = await e.socket()

        async def create(version, name, count=1, *, validate_only=False):
            asked = [wide(name, count)]
            return await s.ask("create_topics", version, topics=asked, timeout=ms(5_000), validate_only=validate_only)

        assert topics(await create(7, "a", 100)) == {"a": "none"}  # a topic may take more than is left
        for version in (2, 5, 6, 7):
            answer = await create(version, "b")
            assert topics(answer) == {"b": "throttling_quota_exceeded"}
            assert "controller_mutation_rate" in answer.topics[0].error_message
            assert ms(90_000) < answer.throttle_time <= ms(96_000)
        assert topics(await create(7, "b", validate_only=True)) == {"b": "none"}
        assert topics(await create(7, "a")) == {"a": "topic_already_exists"}

        more = [part(name="a", count=101, assignments=None)]
        grown = await s.ask("create_partitions", 3, topics=more, timeout=ms(5_000), validate_only=False)
        assert grown.results[0].error_code.name == "throttling_quota_exceeded"
        assert grown.throttle_time > ms(0)

        gone = await s.ask("delete_topics", 5, topic_names=["a"], timeout=ms(5_000))
        assert gone.responses[0].error_code.name == "throttling_quota_exceeded"
        assert gone.throttle_time > ms(0)
        assert set(e.storage.topics()) == {"a"}


async def test_each_topic_of_a_request_counts_and_those_beyond_the_quota_are_refused():
    async with edge(config=QUOTA) as e:
        s = await e.socket()
        asked = [wide(name, 2) for name in "abcd"]
        answer = await s.ask("create_topics", 7, topics=asked, timeout=ms(5_000), validate_only=False)
        assert list(topics(answer).values()) == ["none", "none", "none", "throttling_quota_exceeded"]


async def test_a_topic_that_is_only_asked_for_is_made_later_when_the_quota_is_used_up():
    async with edge(config=QUOTA) as e:
        s = await e.socket()
        await s.ask("create_topics", 7, topics=[wide("a", 100)], timeout=ms(5_000), validate_only=False)
        answer = await s.ask(
            "metadata",
            9,
            topics=[part(name="b")],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=False,
        )
        assert answer.topics[0].error_code.name == "leader_not_available"
        assert set(e.storage.topics()) == {"a"}


async def test_the_process_itself_makes_as_many_partitions_as_it_likes():
    async with edge(config=QUOTA) as e:
        for name in "abc":
            assert (await e.admin.send(CreateTopicRequest(name=name, partitions=100))).error is ErrorCode.NONE


# --- leaders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_the_one_node_leads_so_that_no_leader_is_to_be_elected(version) -> None:
    async with edge() as e:
        await e.topic("t", partitions=2)
        s = await e.socket()
        wanted = [part(topic="t", partitions=(0, 1, 1, 2)), part(topic="none", partitions=(0,))]

        answer = await s.ask("elect_leaders", version, election_type=0, topic_partitions=wanted, timeout=ms(1_000))
        nothing = await s.ask("elect_leaders", version, election_type=0, topic_partitions=None, timeout=ms(1_000))

        found = {
            (topic.topic, one.partition_id): one.error_code.name
            for topic in answer.replica_election_results
            for one in topic.partition_result
        }
        missing = "unknown_topic_or_partition"
        needless = "election_not_needed"
        assert found == {("t", 0): needless, ("t", 1): needless, ("t", 2): missing, ("none", 0): missing}
        assert nothing.replica_election_results == ()


async def test_electing_leaders_needs_a_right_on_the_cluster() -> None:
    async with edge((Operation.ALTER, ResourceType.CLUSTER, None)) as e:
        await e.topic("t")
        s = await e.socket()

        answer = await s.ask(
            "elect_leaders", 2, election_type=0, topic_partitions=[part(topic="t", partitions=(0,))], timeout=ms(1)
        )

        ((one,),) = [topic.partition_result for topic in answer.replica_election_results]
        assert one.error_code.name == "cluster_authorization_failed"
