"""Settings, coordinators and groups of any kind, at a socket."""

from __future__ import annotations

import base64
import uuid

import pytest

from flowshare.log.base import StorageError, UnknownTopic
from flowshare.protocol.messages import ShareGroupHeartbeatRequest
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.records.configs import ConfigApis
from flowshare.server.runtime.turns import Turns
from tests.server.edge.kit import batch, edge, part

pytestmark = pytest.mark.asyncio

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


async def describe(socket, kind, name, *, keys=None, version=4, **more):
    """Error name and settings (value, source) of one resource."""
    resource = part(resource_type=kind, resource_name=name, configuration_keys=keys)
    answer = await socket.ask("describe_configs", version, resources=[resource], **more)
    (found,) = answer.results
    return found.error_code.name, {one.name: (one.value, one.config_source) for one in found.configs}


async def alter(socket, *resources, validate_only=False):
    """Error names of (kind, name, [(operation, setting, value)])."""
    asked = [
        part(
            resource_type=kind,
            resource_name=name,
            configs=[part(name=key, config_operation=operation, value=value) for operation, key, value in changes],
        )
        for kind, name, changes in resources
    ]
    answer = await socket.ask("incremental_alter_configs", 1, resources=asked, validate_only=validate_only)
    return [one.error_code.name for one in answer.responses]


async def test_settings_of_topics_groups_and_the_server_are_described() -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()

        error, topic = await describe(s, TOPIC, "t")
        assert (error, topic["retention.ms"]) == ("none", ("-1", 5))
        assert await describe(s, TOPIC, "t", keys=("retention.ms",)) == ("none", {"retention.ms": ("-1", 5)})
        error, group = await describe(s, GROUP, "g")
        assert (error, group["share.auto.offset.reset"]) == ("none", ("latest", 5))
        error, server = await describe(s, BROKER, "1")
        assert (error, server["group.share.record.lock.duration.ms"]) == ("none", ("30000", 5))
        assert await describe(s, BROKER, "") == ("none", {})
        assert (await describe(s, BROKER, "2"))[0] == "invalid_request"
        assert (await describe(s, LOGGER, "1"))[0] == "invalid_request"
        assert (await describe(s, TOPIC, "none"))[0] == "unknown_topic_or_partition"


async def replace(socket, kind, name, configs, *, version=2, validate_only=False):
    """Error name of AlterConfigs for one resource."""
    resource = part(resource_type=kind, resource_name=name, configs=[part(name=k, value=v) for k, v in configs])
    answer = await socket.ask("alter_configs", version, resources=[resource], validate_only=validate_only)
    return [one.error_code.name for one in answer.responses]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_older_way_to_alter_settings_unsets_all_that_it_does_not_name(version) -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        await alter(s, (TOPIC, "t", [(SET, "retention.ms", "9"), (SET, "max.message.bytes", "5000")]))
        await alter(s, (GROUP, "g", [(SET, "share.auto.offset.reset", "earliest")]))

        named = [("retention.ms", "10"), ("retention.bytes", "7")]
        assert await replace(s, TOPIC, "t", named, version=version, validate_only=True) == ["none"]
        assert (await describe(s, TOPIC, "t"))[1]["max.message.bytes"] == ("5000", 1)
        assert await replace(s, TOPIC, "t", named, version=version) == ["none"]
        found = (await describe(s, TOPIC, "t"))[1]
        assert {name: value for name, (value, source) in found.items() if source == 1} == dict(named)
        assert await replace(s, GROUP, "g", [], version=version) == ["none"]
        assert (await describe(s, GROUP, "g"))[1]["share.auto.offset.reset"] == ("latest", 5)
        for wrong in ([("retention.ms", None)], [("retention.ms", "1"), ("retention.ms", "2")]):
            assert await replace(s, TOPIC, "t", wrong, version=version) == ["invalid_request"]
        assert await replace(s, TOPIC, "t", [("no.such", "1")], version=version) == ["invalid_config"]
        assert await replace(s, TOPIC, "none", named, version=version) == ["unknown_topic_or_partition"]
        assert (await describe(s, TOPIC, "t"))[1]["retention.bytes"] == ("7", 1)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_the_sizes_of_logs_are_told_of_one_directory(version) -> None:
    async with edge() as e:
        await e.topic()
        await e.storage.append("t", 0, batch(b"x" * 200))
        s = await e.socket()

        (told,) = (await s.ask("describe_log_dirs", version, topics=None)).results
        (topic,) = told.topics
        assert (told.error_code.name, topic.name) == ("none", "t")
        assert topic.partitions[0].partition_size > 100
        asked = [
            part(topic="t", partitions=(0, 0, 99)),
            part(topic="t", partitions=(0,)),
            part(topic="x", partitions=(0,)),
        ]
        (told,) = (await s.ask("describe_log_dirs", version, topics=asked)).results
        assert [(one.name, [row.partition_index for row in one.partitions]) for one in told.topics] == [("t", [0])]


async def test_others_run_while_it_is_gathered_of_which_partitions_the_sizes_are_asked_for(monkeypatch) -> None:
    things: list[int] = []
    take = Turns.take

    async def counted(turns, count=1):
        things.append(count)
        await take(turns, count)

    monkeypatch.setattr(Turns, "take", counted)
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        asked = [part(topic="t", partitions=(number,)) for number in range(3_000)]
        things.clear()
        (told,) = (await s.ask("describe_log_dirs", 4, topics=asked)).results
        assert [row.partition_index for row in told.topics[0].partitions] == [0]
        assert sum(things) > 3_000


async def test_the_sizes_of_a_topic_that_is_deleted_meanwhile_are_left_out(monkeypatch) -> None:
    async with edge() as e:
        await e.topic("a")
        await e.topic("t")
        s = await e.socket()
        size = e.server.size

        async def gone(topic: str, partition: int) -> int:
            if topic == "a":
                raise UnknownTopic("it was deleted")
            return await size(topic, partition)

        monkeypatch.setattr(e.server, "size", gone)
        (told,) = (await s.ask("describe_log_dirs", 4, topics=None)).results
        assert (told.error_code.name, [one.name for one in told.topics]) == ("none", ["t"])


async def test_a_disk_that_fails_is_told_of_where_sizes_are_asked_for(monkeypatch) -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()

        async def fails(topic: str, partition: int) -> int:
            raise StorageError("the disk failed")

        monkeypatch.setattr(e.server, "size", fails)
        (told,) = (await s.ask("describe_log_dirs", 4, topics=None)).results
        assert (told.error_code.name, told.topics) == ("kafka_storage_error", ())


async def test_settings_that_cannot_be_read_are_not_taken_as_none_where_others_are_to_be_unset(monkeypatch) -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        await alter(s, (TOPIC, "t", [(SET, "retention.ms", "9")]))

        def fails(*_) -> None:
            raise StorageError("the disk failed")

        with monkeypatch.context() as broken:
            broken.setattr(ConfigApis, "_describe", fails)
            named = [(SET, "errors.deadletterqueue.copy.record.enable", "true")]
            assert await alter(s, (GROUP, "g", named)) == ["kafka_storage_error"], "where do they go?"
            assert await replace(s, TOPIC, "t", [("max.message.bytes", "5000")]) == ["kafka_storage_error"]
        assert (await describe(s, TOPIC, "t"))[1]["retention.ms"] == ("9", 1)


async def test_what_is_asked_for_twice_is_described_once() -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        resource = part(resource_type=TOPIC, resource_name="t", configuration_keys=None)

        answer = await s.ask("describe_configs", 4, resources=[resource] * 3)

        assert len(answer.results) == 1


async def test_synonyms_and_documentation_come_only_when_asked_for() -> None:
    async with edge() as e:
        s = await e.socket()
        resource = part(resource_type=BROKER, resource_name="1", configuration_keys=("num.partitions",))

        plain = await s.ask("describe_configs", 4, resources=[resource])
        full = await s.ask(
            "describe_configs", 4, resources=[resource], include_synonyms=True, include_documentation=True
        )

        (short,), (long,) = plain.results[0].configs, full.results[0].configs
        assert (short.synonyms, short.documentation, short.read_only, short.config_type) == ((), None, True, 5)
        assert [(one.name, one.value) for one in long.synonyms] == [("num.partitions", "1")]
        assert long.documentation


async def test_settings_are_set_and_unset_all_or_none_of_a_resource() -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        reset = "share.auto.offset.reset"

        good = await alter(s, (GROUP, "g", [(SET, reset, "earliest")]), (TOPIC, "t", [(SET, "retention.ms", "9")]))
        bad = await alter(
            s,
            (GROUP, "g", [(SET, reset, "latest"), (SET, "share.record.lock.duration.ms", "1")]),
            (GROUP, "h", [(SET, "no.such", "1")]),
            (TOPIC, "t", [(APPEND, "cleanup.policy", "compact")]),
            (TOPIC, "u", [(SET, "retention.ms", "1")]),
            (TOPIC, "v", [(SET, "retention.ms", None)]),
            (TOPIC, "w", [(7, "retention.ms", "1")]),
            (TOPIC, "x", [(SET, "retention.ms", "1"), (DELETE, "retention.ms", None)]),
            (BROKER, "1", [(SET, "num.partitions", "4")]),
            (METRICS, "m", [(SET, "interval.ms", "4")]),
        )

        assert good == ["none", "none"]
        assert bad == [
            "invalid_config",
            "invalid_config",
            "invalid_config",
            "unknown_topic_or_partition",
            "invalid_request",
            "invalid_request",
            "invalid_request",
            "invalid_request",
            "invalid_request",
        ]
        assert (await describe(s, GROUP, "g"))[1][reset] == ("earliest", 8)
        assert (await describe(s, TOPIC, "t"))[1]["retention.ms"] == ("9", 1)
        assert await alter(s, (GROUP, "g", [(DELETE, reset, None)])) == ["none"]
        assert (await describe(s, GROUP, "g"))[1][reset] == ("latest", 5)
        assert await alter(s, (GROUP, "g", []), (GROUP, "g", [])) == ["invalid_request"]
        assert await alter(s, (GROUP, "g", [(SET, reset, "earliest")]), validate_only=True) == ["none"]
        assert (await describe(s, GROUP, "g"))[1][reset] == ("latest", 5)


async def test_settings_need_rights() -> None:
    async with edge((Operation.DESCRIBE_CONFIGS, None, None), (Operation.ALTER_CONFIGS, None, None)) as e:
        await e.topic()
        s = await e.socket()

        assert [(await describe(s, *at))[0] for at in ((TOPIC, "t"), (GROUP, "g"), (BROKER, "1"))] == [
            "topic_authorization_failed",
            "group_authorization_failed",
            "cluster_authorization_failed",
        ]
        assert await alter(s, (TOPIC, "t", []), (GROUP, "g", []), (BROKER, "1", [])) == [
            "topic_authorization_failed",
            "group_authorization_failed",
            "cluster_authorization_failed",
        ]
        listed = await s.ask("list_config_resources", 1, resource_types=())
        assert (listed.error_code.name, listed.config_resources) == ("cluster_authorization_failed", ())


async def test_what_has_settings_is_listed_by_type() -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        await alter(s, (GROUP, "not made yet", [(SET, "share.auto.offset.reset", "earliest")]))

        async def resources(version, *types):
            answer = await s.ask("list_config_resources", version, resource_types=types)
            if answer.error_code.name != "none":
                return answer.error_code.name
            return [one.resource_name for one in answer.config_resources]

        assert await resources(1) == ["t", "not made yet", "1"]
        assert await resources(1, GROUP) == ["not made yet"]
        assert await resources(1, TOPIC, BROKER) == ["t", "1"]
        assert await resources(1, 99) == "unsupported_version"
        assert await resources(0) == []


# --- coordinators and groups ----------------------------------------------------------------------------------------


async def find(socket, kind, *keys, version=6):
    """(error name, node, host) for each key."""
    answer = await socket.ask("find_coordinator", version, key_type=kind, coordinator_keys=keys)
    return [(one.error_code.name, one.node_id, one.port) for one in answer.coordinators]


def share_key(group_id="g", topic_id=None, partition="0"):
    """Key of a share-partition's coordinator."""
    encoded = base64.urlsafe_b64encode((topic_id or uuid.uuid4()).bytes).decode().rstrip("=")
    return f"{group_id}:{encoded}:{partition}"


async def test_everything_is_coordinated_here() -> None:
    async with edge() as e:
        s = await e.socket()
        here = ("none", 1, e.port)

        assert await find(s, 0, "g", "h") == [here, here]
        assert await find(s, 1, "a transaction") == [here]
        assert await find(s, 2, share_key(), share_key("with:colons")) == [here, here]
        one = await s.ask("find_coordinator", 2, key="g", key_type=0)
        assert (one.error_code.name, one.node_id, one.host, one.port) == ("none", 1, e.host, e.port)


@pytest.mark.parametrize(
    "key",
    ["", "g", "g:0", "g:short:0", share_key(""), share_key(partition="-1"), share_key(partition="x"), "g:%%%%:0"],
    ids=["empty", "group", "no id", "short id", "no group", "below 0", "no number", "no base64"],
)
async def test_a_malformed_share_partition_key_is_refused(key: str) -> None:
    async with edge() as e:
        s = await e.socket()

        assert await find(s, 2, key) == [("invalid_request", -1, -1)]


async def test_key_types_of_other_versions_are_refused() -> None:
    async with edge() as e:
        s = await e.socket()

        assert (await find(s, 2, share_key(), version=5))[0][0] == "invalid_request"
        assert (await find(s, 9, "g"))[0][0] == "invalid_request"


async def test_coordinators_are_told_to_those_who_may_know() -> None:
    async with edge((Operation.DESCRIBE, None, None), (Operation.CLUSTER_ACTION, None, None)) as e:
        s = await e.socket()

        assert [(await find(s, kind, share_key()))[0][0] for kind in (0, 1, 2)] == [
            "group_authorization_failed",
            "transactional_id_authorization_failed",
            "cluster_authorization_failed",
        ]
        one = await s.ask("find_coordinator", 1, key="g", key_type=0)
        assert (one.error_code.name, one.node_id, one.host) == ("group_authorization_failed", -1, "")


async def made(socket, *names):
    """Share groups without members."""
    for name in names:
        asked = [part(topic_name="t", partitions=[part(partition_index=0, start_offset=0)])]
        answer = await socket.ask("alter_share_group_offsets", 0, group_id=name, topics=asked)
        assert answer.error_code.name == "none"


async def listed(socket, *, states=(), types=(), version=5):
    """Groups listed."""
    answer = await socket.ask("list_groups", version, states_filter=states, types_filter=types)
    return [one.group_id for one in answer.groups]


async def test_groups_are_listed_by_state_and_type() -> None:
    async with edge() as e:
        await e.topic()
        s = await e.socket()
        await made(s, "empty")
        fields = {"group_id": "busy", "member_id": "m", "member_epoch": 0, "rack_id": None}
        await s.ask("share_group_heartbeat", 1, subscribed_topic_names=("t",), **fields)

        answer = await s.ask("list_groups", 5, states_filter=(), types_filter=("share",))

        assert [(one.group_id, one.protocol_type, one.group_state, one.group_type) for one in answer.groups] == [
            ("busy", "share", "Stable", "share"),
            ("empty", "share", "Empty", "share"),
        ]
        assert await listed(s, states=("empty",)) == ["empty"]
        assert await listed(s, types=("classic",)) == []
        assert await listed(s, version=4, states=("Stable",)) == ["busy"]


async def test_who_may_not_describe_the_cluster_sees_its_own_groups() -> None:
    denied = (Operation.DESCRIBE, ResourceType.CLUSTER, None), (Operation.DESCRIBE, ResourceType.GROUP, "theirs")
    async with edge(*denied) as e:
        await e.topic()
        s = await e.socket()
        await made(s, "mine", "theirs")

        assert await listed(s) == ["mine"]


async def test_groups_are_deleted_by_who_may() -> None:
    async with edge((Operation.DELETE, ResourceType.GROUP, "kept")) as e:
        await e.topic()
        s = await e.socket()
        await made(s, "a", "kept")

        answer = await s.ask("delete_groups", 2, groups_names=("a", "kept", "none"))

        assert {one.group_id: one.error_code.name for one in answer.results} == {
            "a": "none",
            "none": "group_id_not_found",
            "kept": "group_authorization_failed",
        }
        assert await listed(s) == ["kept"]


async def test_a_dead_letter_topic_is_named_only_by_who_may_write_to_it() -> None:
    name = "errors.deadletterqueue.topic.name"
    async with edge((Operation.WRITE, ResourceType.TOPIC, "dlq.theirs")) as e:
        s = await e.socket()

        assert await alter(s, (GROUP, "g", [(SET, name, "dlq.mine")])) == ["none"]
        refused = (GROUP, "g", [(SET, name, "dlq.theirs"), (SET, "share.delivery.count.limit", "3")])
        assert await alter(s, refused) == await alter(s, refused, validate_only=True) == ["topic_authorization_failed"]
        error, found = await describe(s, GROUP, "g")
        assert (error, found[name][0], found["share.delivery.count.limit"][1]) == ("none", "dlq.mine", 5)
        assert await alter(s, (GROUP, "g", [(SET, name, "")])) == ["none"]
        assert await alter(s, (GROUP, "g", [(DELETE, name, None)])) == ["none"]


async def test_a_dead_letter_topic_is_named_only_by_who_may_read_what_the_group_reads() -> None:
    name, copied = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
    async with edge((Operation.READ, ResourceType.TOPIC, "secrets")) as e:
        s = await e.socket()
        assert await alter(s, (GROUP, "g", [(SET, name, "dlq.mine")])) == ["none"]
        for topic in ("mine", "secrets"):
            await e.topic(topic)
            joining = ShareGroupHeartbeatRequest(
                group_id="g", member_id=topic, member_epoch=0, subscribed_topics=(topic,)
            )
            await e.admin.send(joining)

        refused = ["topic_authorization_failed"]
        assert await alter(s, (GROUP, "g", [(SET, name, "dlq.mine")])) == refused
        assert await alter(s, (GROUP, "g", [(SET, copied, "true")])) == refused
        assert await alter(s, (GROUP, "g", [(SET, "share.delivery.count.limit", "3")])) == ["none"]
        assert await alter(s, (GROUP, "g", [(SET, name, "")])) == ["none"]


async def test_nobody_says_in_whose_name_dead_letters_are_written() -> None:
    async with edge() as e:
        s = await e.socket()

        assert await alter(s, (GROUP, "g", [(SET, "errors.deadletterqueue.named.by", "h User:a")])) == [
            "invalid_config"
        ]
        assert await alter(s, (GROUP, "g", [(SET, "errors.deadletterqueue.topic.name", "dlq.t")])) == ["none"]
        assert e.server.share.configs.acting("g").dead_letter_by == ("User:ANONYMOUS", "127.0.0.1")
        error, found = await describe(s, GROUP, "g")
        assert error == "none"
        assert "errors.deadletterqueue.named.by" not in found
