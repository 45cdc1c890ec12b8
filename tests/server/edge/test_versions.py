"""Every API of these families answers in every version that is advertised."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as KafkaError

from flowshare.protocol.kafka import ApiKey
from flowshare.server.edge.table import endpoints, table
from tests.server.edge.kit import batch, edge, errors, ms, part

pytestmark = pytest.mark.asyncio


def requests(topic_id):
    """API -> fields of a request that is answered without an error."""
    member = {"group_id": "g", "member_id": "m"}
    limits = {"max_wait": ms(0), "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 10, "batch_size": 10}
    state = {"group_id": "kept", "state_epoch": 1, "leader_epoch": 0, "start_offset": 0}
    states = {
        "group_id": "kept",
        "topics": [
            part(
                topic_id=topic_id,
                partitions=[part(partition=0, state_batches=(), delivery_complete_count=0, **_without(state))],
            )
        ],
    }
    topic = part(name="t", topic=None, topic_id=topic_id, partitions=[0])
    records = [part(index=0, records=batch(b"a", b"b"))]
    fetched = part(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    listed = part(partition_index=0, timestamp=-2, offset=1)
    return {
        "produce": {
            "transactional_id": None,
            "acks": -1,
            "timeout": ms(1000),
            "topic_data": [part(name="t", topic_id=topic_id, partition_data=records)],
        },
        "fetch": {
            "max_wait": ms(0),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "replica_id": -1,
            "topics": [part(topic="t", topic_id=topic_id, partitions=[fetched])],
            "forgotten_topics_data": (),
        },
        "list_offsets": {
            "replica_id": -1,
            "isolation_level": 0,
            "timeout": ms(1000),
            "topics": [part(name="t", partitions=[listed])],
        },
        "metadata": {
            "topics": [part(name="t", topic_id=None)],
            "include_cluster_authorized_operations": True,
            "include_topic_authorized_operations": True,
        },
        "find_coordinator": {"key": "g", "key_type": 0, "coordinator_keys": ("g", "h")},
        "list_groups": {},
        "delete_groups": {"groups_names": ("gone",)},
        "create_topics": {
            "topics": [
                part(name="new", num_partitions=2, replication_factor=1, assignments=(), configs=()),
            ],
            "timeout": ms(5000),
            "validate_only": True,
        },
        "delete_topics": {
            "topic_names": ("old",),
            "topics": [part(name="old", topic_id=None)],
            "timeout": ms(5000),
        },
        "create_partitions": {
            "topics": [part(name="t", count=2, assignments=None)],
            "timeout": ms(5000),
            "validate_only": True,
        },
        "delete_records": {"topics": [part(name="t", partitions=[listed])], "timeout": ms(1000)},
        "offset_for_leader_epoch": {"topics": [part(topic="t", partitions=[part(partition=0, leader_epoch=0)])]},
        "describe_configs": {
            "resources": [
                part(resource_type=kind, resource_name=name, configuration_keys=None)
                for kind, name in ((2, "t"), (4, "1"), (32, "g"))
            ],
            "include_synonyms": True,
            "include_documentation": True,
        },
        "incremental_alter_configs": {
            "resources": [
                part(
                    resource_type=32,
                    resource_name="g",
                    configs=[part(name="share.auto.offset.reset", config_operation=0, value="earliest")],
                )
            ],
            "validate_only": False,
        },
        "alter_configs": {
            "resources": [
                part(
                    resource_type=32,
                    resource_name="g",
                    configs=[part(name="share.auto.offset.reset", value="earliest")],
                )
            ],
            "validate_only": False,
        },
        "describe_log_dirs": {"topics": None},
        "list_config_resources": {"resource_types": ()},
        "describe_cluster": {"include_cluster_authorized_operations": True, "include_fenced_brokers": False},
        "describe_topic_partitions": {"topics": [part(name="t")]},
        "list_partition_reassignments": {"topics": None},
        "share_group_heartbeat": {**member, "member_epoch": 0, "rack_id": None, "subscribed_topic_names": ("t",)},
        "share_group_describe": {"group_ids": ("kept-group",), "include_authorized_operations": True},
        "share_fetch": {
            **member,
            **limits,
            "share_session_epoch": 0,
            "topics": [part(topic_id=topic_id, partitions=[part(partition_index=0, acknowledgement_batches=())])],
            "forgotten_topics_data": [part(topic_id=topic.topic_id, partitions=(9,))],
        },
        "share_acknowledge": {**member, "share_session_epoch": -1, "topics": ()},
        "describe_share_group_offsets": {
            "groups": [part(group_id="kept-group", topics=None)],
        },
        "alter_share_group_offsets": {
            "group_id": "altered",
            "topics": [part(topic_name="t", partitions=[part(partition_index=0, start_offset=0)])],
        },
        "delete_share_group_offsets": {"group_id": "kept-group", "topics": ()},
        "initialize_share_group_state": states,
        "read_share_group_state": states,
        "write_share_group_state": states,
        "delete_share_group_state": states,
        "read_share_group_state_summary": states,
    }


def _without(state):
    return {name: value for name, value in state.items() if name != "group_id"}


OURS = (
    *(ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.LIST_GROUPS),
    *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS, ApiKey.OFFSET_FOR_LEADER_EPOCH),
    *(ApiKey.DESCRIBE_CONFIGS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_GROUPS, ApiKey.INCREMENTAL_ALTER_CONFIGS),
    *(ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_CLUSTER, ApiKey.LIST_CONFIG_RESOURCES),
    *(ApiKey.ALTER_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS),
    *(ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.SHARE_FETCH),
    *(ApiKey.SHARE_ACKNOWLEDGE, ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE),
    *(ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY),
    *(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS),
)


@pytest.mark.parametrize("key", OURS, ids=lambda key: key.name.lower())
async def test_an_api_answers_in_every_version_that_is_advertised(key: ApiKey) -> None:
    name = key.name.lower()
    async with edge() as e:
        api = table(endpoints(clock=e.server.clock))[key]
        topic_id = await e.topic()
        s = await e.socket()
        fields = requests(topic_id)
        await s.ask("produce", 13, **fields["produce"])
        await s.ask("alter_share_group_offsets", 0, **{**fields["alter_share_group_offsets"], "group_id": "kept-group"})
        await s.ask("initialize_share_group_state", 0, **fields["initialize_share_group_state"])
        for version in range(api.versions[0], api.versions[1] + 1):
            if key is ApiKey.DELETE_TOPICS:
                await e.topic("old")
            if key is ApiKey.DELETE_GROUPS:
                again = {**fields["alter_share_group_offsets"], "group_id": "gone"}
                await s.ask("alter_share_group_offsets", 0, **again)
            if key is ApiKey.SHARE_ACKNOWLEDGE:
                await s.ask("share_fetch", version, **fields["share_fetch"])

            answer = await s.ask(name, version, **fields[name])

            assert errors(answer) == set(), (version, answer)


async def test_what_clients_ask_for_is_advertised() -> None:
    async with edge() as e:
        s = await e.socket()
        answer = await s.ask("api_versions", 3, client_software_name="t", client_software_version="1")
        ranges = {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in answer.api_keys}
        assert answer.error_code is KafkaError.none
        assert ranges[ApiKey.PRODUCE] == (3, 13)
        assert ranges[ApiKey.FETCH] == (4, 18)
        assert ranges[ApiKey.SHARE_FETCH] == (1, 2)
        assert ranges[ApiKey.METADATA] == (0, 13)
