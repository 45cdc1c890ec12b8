"""Which rights the private calls need of who looks after groups, and what is left out of their answers without."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    ParkedKeysRequest,
    ParkedKeysResponse,
    ShareBreakerRequest,
    ShareBreakerResponse,
)
from flowshare.protocol.messages.browse import (
    ShareBrowseRequest,
    ShareBrowseResponse,
    ShareChangesRequest,
    ShareChangesResponse,
    ShareInterveneResponse,
    SharePlacesResponse,
    Standing,
)
from flowshare.protocol.messages.state import ParkedKeyTold
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import SocketCall
from flowshare.server.edge.browse import BROWSE
from flowshare.server.edge.private import share_breaker, share_parked, topic_grow
from flowshare.server.runtime.failures import Refused
from flowshare.share.intervene import Intervened
from flowshare.share.parking import ParkedKey

pytestmark = pytest.mark.asyncio
Right = tuple[Operation, ResourceType, str]
GROUP: Right = (Operation.READ, ResourceType.GROUP, "g")
TOPIC: Right = (Operation.READ, ResourceType.TOPIC, "t")


class Who:
    """A peer that has these rights, and what was sent on its behalf."""

    def __init__(self, *rights: Right, answer: Any = None) -> None:
        """answer: to what is sent; None: two parked keys."""
        self._rights = rights
        self._answer = answer
        self.sent: list[Any] = []
        self.connection = SimpleNamespace(send=self._send)

    async def _send(self, request: Any) -> Any:
        self.sent.append(request)
        if self._answer is not None:
            return self._answer
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


class Told(Who):
    """One whose group has an open breaker."""

    async def _send(self, request: Any) -> Any:
        self.sent.append(request)
        return ShareBreakerResponse(state="open", why="9 of 10", left_ms=5, open_ms=7)


@pytest.mark.parametrize(
    ("act", "needs"),
    [("tell", Operation.DESCRIBE), ("report", Operation.READ), ("close", Operation.ALTER_CONFIGS)],
)
async def test_each_act_on_a_breaker_needs_a_right_of_its_own(act: str, needs: Operation):
    asked = {"group_id": "g", "act": act, "member_id": "m", "outcomes": [1, 2, 3, 4], "known": ["open", 5, 6]}
    peer = Told((needs, ResourceType.GROUP, "g"))

    assert await share_breaker(call(peer, **asked)) == {"state": "open", "why": "9 of 10", "left_ms": 5, "open_ms": 7}
    sent = ShareBreakerRequest(group_id="g", act=act, member_id="m", outcomes=(1, 2, 3, 4), known=("open", 5, 6))
    assert peer.sent == [sent]
    others = {Operation.DESCRIBE, Operation.READ, Operation.ALTER_CONFIGS} - {needs}
    with pytest.raises(Refused):
        await share_breaker(call(Told(*((one, ResourceType.GROUP, "g") for one in others)), **asked))


@pytest.mark.parametrize(
    "odd",
    [
        {"group_id": None},
        {"act": "open"},
        {"act": 3},
        {"member_id": 7},
        {"outcomes": [1, 2, 3]},
        {"outcomes": [1, 2, 3, -1]},
        {"outcomes": [1, 2, 3, True]},
        {"outcomes": [1, 2, 3, 2**60]},
        {"outcomes": "1234"},
        {"outcomes": None},
        {"known": None},
        {"known": ["open", 1]},
        {"known": ["ajar", 1, 2]},
        {"known": [["open"], 1, 2]},
        {"known": ["open", -1, 2]},
        {"known": ["open", 1, 2.5]},
    ],
)
async def test_what_a_breaker_is_told_that_makes_no_sense_is_refused(odd: dict[str, Any]):
    peer = Told((Operation.READ, ResourceType.GROUP, "g"))
    asked = {"group_id": "g", "act": "report", "member_id": "m", "outcomes": [1, 2, 3, 4], **odd}

    answer = await share_breaker(call(peer, **asked))

    assert answer["error"] == int(ErrorCode.INVALID_REQUEST)
    assert peer.sent == []


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


DESCRIBED: Right = (Operation.DESCRIBE, ResourceType.GROUP, "g")
DESCRIBED_TOPIC: Right = (Operation.DESCRIBE, ResourceType.TOPIC, "t")
PLACE = {"group_id": "g", "topic": "t", "partition": 0}


@pytest.mark.parametrize("rights", [(), (DESCRIBED,), (DESCRIBED_TOPIC,)], ids=["none", "group only", "topic only"])
async def test_who_may_not_describe_group_and_topic_browses_nothing(rights: tuple[Right, ...]):
    peer = Who(*rights)

    with pytest.raises(Refused):
        await BROWSE["share_browse"](call(peer, **PLACE))

    assert peer.sent == []


async def test_who_may_describe_both_browses():
    peer = Who(DESCRIBED, DESCRIBED_TOPIC, answer=ShareBrowseResponse(start_offset=7))

    answer = await BROWSE["share_browse"](call(peer, **PLACE))

    assert peer.sent == [ShareBrowseRequest(group_id="g", topic="t", partition=0)]
    assert 7 in answer["facts"]


@pytest.mark.parametrize("rights", [(), (GROUP, DESCRIBED_TOPIC), (DESCRIBED, TOPIC)])
@pytest.mark.parametrize("act", ["release", "reject", "dead_letter", "now"])
async def test_who_may_not_read_group_and_topic_takes_nothing_from_others(act: str, rights: tuple[Right, ...]):
    peer = Who(*rights)

    with pytest.raises(Refused):
        await BROWSE["share_intervene"](call(peer, **PLACE, act=act, ranges=[[0, 0]]))

    assert peer.sent == []


async def test_who_may_read_both_acts():
    peer = Who(GROUP, TOPIC, answer=ShareInterveneResponse(found=(Intervened(0, 0, 1),)))

    answer = await BROWSE["share_intervene"](call(peer, **PLACE, act="release", ranges=[[0, 0]]))

    assert [request.act for request in peer.sent] == ["release"]
    assert answer == {"found": [(0, 0, 1, 0, 0, 0, 0)]}


async def test_partitions_of_topics_that_may_not_be_described_are_not_named():
    places = SharePlacesResponse(places=(("t", 0), ("u", 0)))

    assert await BROWSE["share_places"](call(Who(DESCRIBED, DESCRIBED_TOPIC, answer=places), group_id="g")) == {
        "places": (("t", 0),)
    }
    with pytest.raises(Refused):
        await BROWSE["share_places"](call(Who(DESCRIBED_TOPIC, answer=places), group_id="g"))


PLACES = (("g", "t", 0), ("g", "u", 0), ("h", "t", 0), ("h", "u", 1))


@pytest.mark.parametrize(
    ("rights", "seen"),
    [((), []), ((DESCRIBED,), []), ((DESCRIBED_TOPIC,), []), ((DESCRIBED, DESCRIBED_TOPIC), [("g", "t", 0)])],
)
async def test_of_what_has_changed_only_that_is_told_whose_group_and_topic_may_be_described(rights, seen):
    rows = tuple(Standing(*place, lag=5) for place in PLACES)
    peer = Who(*rights, answer=ShareChangesResponse(server="s", version=7, whole=False, rows=rows, gone=PLACES))

    answer = await BROWSE["share_changes"](call(peer, node=-1, server="s", since=3))

    assert peer.sent == [ShareChangesRequest(node=-1, server="s", since=3)]
    assert [tuple(row[:3]) for row in answer["rows"]] == seen
    assert [tuple(one) for one in answer["gone"]] == seen
    assert (answer["server"], answer["version"], answer["whole"]) == ("s", 7, False)


async def test_each_right_is_asked_about_once_however_many_share_partitions_there_are():
    asked = []
    rows = tuple(Standing("g", "t", number) for number in range(1_000))
    peer = Who(DESCRIBED, DESCRIBED_TOPIC, answer=ShareChangesResponse(rows=rows))
    may = peer.may
    peer.may = lambda *right: asked.append(right) or may(*right)  # type: ignore[method-assign]

    answer = await BROWSE["share_changes"](call(peer))

    assert len(answer["rows"]) == 1_000
    assert len(asked) == 2
