"""Tests of a member's reading of the answer to a commit: a range without an answer does not count as committed."""

from __future__ import annotations

import uuid

import pytest

from flowshare.client.cooperative.commits import Commits
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import (
    CommittedPartition,
    CooperativeCommitResponse,
    PartitionCommit,
)
from flowshare.testing.clock import ManualClock

TOPIC = uuid.UUID(int=7)


class Link:
    """Answers each commit with these partitions."""

    def __init__(self, *parts):
        self.parts = parts

    async def send(self, _request):
        return CooperativeCommitResponse(partitions=self.parts)


class Troubles:
    """Troubles that the member reports."""

    def __init__(self):
        self.told = {"committing": "committing fails: an older trouble"}

    def works(self, what):
        self.told.pop(what, None)

    def lacks(self, what, text):
        self.told[what] = text

    def of(self, _topic_id, partition):
        return type("At", (), {"text": f"t-{partition}"})


def taken(partition, error=ErrorCode.NONE):
    return CommittedPartition(topic_id=TOPIC, partition=partition, error=error)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answered", "trouble"),
    [
        ((taken(0), taken(1)), None),
        ((taken(0),), "committing fails: t-1: the server has not answered for it"),
        ((taken(0), taken(1, ErrorCode.UNKNOWN_SERVER_ERROR)), "committing fails: t-1: UNKNOWN_SERVER_ERROR"),
    ],
    ids=["all", "one is left out", "one is refused"],
)
async def test_a_commit_works_when_each_partition_of_it_was_taken(answered, trouble):
    troubles = Troubles()
    commits = Commits(Link(*answered), troubles, "g", "m", clock=ManualClock())

    told = await commits._ask("committing", [PartitionCommit(TOPIC, number, 0, ()) for number in range(2)])

    assert troubles.told.get("committing") == trouble
    assert [part is not None for part in told] == [True, trouble is None]
