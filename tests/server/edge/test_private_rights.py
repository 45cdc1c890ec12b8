"""Which rights the private calls of ordered groups need, and what is left out of their answers without them."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ParkedKeysRequest, ParkedKeysResponse
from flowshare.protocol.messages.state import ParkedKeyTold
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import SocketCall
from flowshare.server.edge.private import share_parked, topic_grow
from flowshare.server.runtime.failures import Refused
from flowshare.share.parking import ParkedKey

pytestmark = pytest.mark.asyncio
Right = tuple[Operation, ResourceType, str]
GROUP: Right = (Operation.READ, ResourceType.GROUP, "g")
TOPIC: Right = (Operation.READ, ResourceType.TOPIC, "t")


class Who:
    """A peer that has these rights, and what was sent on its behalf."""

    def __init__(self, *rights: Right) -> None:
        self._rights = rights
        self.sent: list[Any] = []
        self.connection = SimpleNamespace(send=self._send)

    async def _send(self, request: Any) -> Any:
        self.sent.append(request)
        parked = ParkedKey(first=0, done=-1, last=0)
        told = (ParkedKeyTold(topic, uuid.UUID(int=1), 0, b"a", parked) for topic in ("t", "u"))
        return ParkedKeysResponse(order="key", keys=tuple(told))

    def may(self, *right: Any) -> bool:
        return right in self._rights

    def need(self, *right: Any) -> None:
        if right not in self._rights:
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "")


def call(peer: Who, **request: Any) -> SocketCall:
    return SocketCall(peer=peer, version=0, client_id="c", request=request)  # type: ignore[arg-type]


async def test_parked_keys_are_listed_of_the_topics_that_may_be_read():
    peer = Who(GROUP, TOPIC)

    answer = await share_parked(call(peer, group_id="g", act="list"))

    assert [row[0] for row in answer["keys"]] == ["t"]


@pytest.mark.parametrize("rights", [(), (GROUP,), (TOPIC,)], ids=["none", "group only", "topic only"])
@pytest.mark.parametrize("act", ["replay", "unpark"])
async def test_who_may_not_read_group_and_topic_changes_no_parked_key(act: str, rights: tuple[Right, ...]):
    peer = Who(*rights)

    with pytest.raises(Refused):
        await share_parked(call(peer, group_id="g", act=act, topic="t", partition=0, key=b"a".hex()))

    assert peer.sent == []


async def test_who_may_read_both_changes_a_parked_key():
    peer = Who(GROUP, TOPIC)

    await share_parked(call(peer, group_id="g", act="unpark", topic="t", partition=0, key=b"a".hex()))

    assert peer.sent == [ParkedKeysRequest(group_id="g", act="unpark", topic="t", partition=0, key=b"a")]


async def test_who_may_only_read_a_topic_does_not_add_partitions_to_it():
    peer = Who(GROUP, TOPIC)

    with pytest.raises(Refused):
        await topic_grow(call(peer, topic="t", total=2))

    assert peer.sent == []
