"""Requests of consumer groups and their offsets, in any version: what a test does not name is as usual."""

from __future__ import annotations

from tests.groups.builders import subscription
from tests.server.edge.kit import ms, part


def asked_to_join(member_id="", **fields):
    """Fields of a JoinGroup."""
    return {
        "group_id": "g",
        "session_timeout": ms(10_000),
        "rebalance_timeout": ms(30_000),
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [part(name="range", metadata=subscription("t"))],
        "reason": None,
        **fields,
    }


async def join(s, version=5, member_id="", **fields):
    """JoinGroup; with the id that a first one is told."""
    answer = await s.ask("join_group", version, **asked_to_join(member_id, **fields))
    if answer.error_code.name == "member_id_required":
        assert version >= 4
        return await s.ask("join_group", version, **asked_to_join(answer.member_id, **fields))
    return answer


async def sync(s, member_id, version=3, generation=1, **fields):
    """SyncGroup of a leader that assigns to itself."""
    return await s.ask(
        "sync_group",
        version,
        **{
            "group_id": "g",
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [part(member_id=member_id, assignment=b"mine")],
            **fields,
        },
    )


async def stable(s):
    """A group of one member; its id."""
    joined = await join(s)
    await sync(s, joined.member_id)
    return joined.member_id


def one(offset=7, partition=0, topic="t", topic_id=None):
    """Topics of a commit; version 10 has their ids."""
    made = part(partition_index=partition, committed_offset=offset, committed_leader_epoch=3, committed_metadata="note")
    return [part(name=topic, topic_id=topic_id, partitions=[made])]


async def commit(s, version=9, *, group="g", generation=-1, member_id="", topics=None, **fields):
    """OffsetCommit of a simple consumer, unless told otherwise."""
    return await s.ask(
        "offset_commit",
        version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=None,
        topics=topics or one(),
        **{"retention_time": ms(-1), **fields},
    )
