"""Which rights the private calls need of who looks after groups, and what is left out of their answers without."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreatePartitionsRequest,
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
    ShareInterveneRequest,
    ShareInterveneResponse,
    SharePlacesRequest,
    SharePlacesResponse,
    Standing,
)
from flowshare.protocol.messages.state import ParkedKeyTold
from flowshare.protocol.private import write
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import SocketCall
from flowshare.server.edge.private import ON_TOPICS, endpoint
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


API = endpoint(ON_TOPICS)


async def ask(peer: Who, request: Any) -> Any:
    """Ask as over a socket. Raises Refused."""
    read = API.decode
    assert read is not None
    call = SocketCall(peer=peer, version=0, client_id="c", request=read(write(request), 0, 0))  # type: ignore[arg-type]
    answer = await API.answer(call)
    if answer.error is not ErrorCode.NONE:
        raise Refused(answer.error, answer.message or "")
    return answer


async def test_parked_keys_are_listed_of_the_topics_that_may_be_read():
    peer = Who(GROUP, TOPIC)

    answer = await ask(peer, ParkedKeysRequest(group_id="g"))

    assert [one.topic for one in answer.keys] == ["t"]


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
    asked = ShareBreakerRequest(group_id="g", act=act, member_id="m", outcomes=(1, 2, 3, 4), known=("open", 5, 6))
    peer = Told((needs, ResourceType.GROUP, "g"))

    assert await ask(peer, asked) == ShareBreakerResponse(state="open", why="9 of 10", left_ms=5, open_ms=7)
    assert peer.sent == [asked]
    others = {Operation.DESCRIBE, Operation.READ, Operation.ALTER_CONFIGS} - {needs}
    with pytest.raises(Refused):
        await ask(Told(*((one, ResourceType.GROUP, "g") for one in others)), asked)


@pytest.mark.parametrize("rights", [(), (GROUP,), (TOPIC,)], ids=["none", "group only", "topic only"])
@pytest.mark.parametrize("act", ["replay", "unpark"])
async def test_who_may_not_read_group_and_topic_changes_no_parked_key(act: str, rights: tuple[Right, ...]):
    peer = Who(*rights)

    with pytest.raises(Refused):
        await ask(peer, ParkedKeysRequest(group_id="g", act=act, topic="t", partition=0, key=b"a"))

    assert peer.sent == []


async def test_who_may_read_both_changes_a_parked_key():
    peer = Who(GROUP, TOPIC)

    asked = ParkedKeysRequest(group_id="g", act="unpark", topic="t", partition=0, key=b"a")

    await ask(peer, asked)

    assert peer.sent == [asked]


async def test_who_may_only_read_a_topic_does_not_add_partitions_to_it():
    peer = Who(GROUP, TOPIC)

    with pytest.raises(Refused):
        await ask(peer, CreatePartitionsRequest(name="t", total=2, breaks_order=True))

    assert peer.sent == []


DESCRIBED: Right = (Operation.DESCRIBE, ResourceType.GROUP, "g")
DESCRIBED_TOPIC: Right = (Operation.DESCRIBE, ResourceType.TOPIC, "t")
PLACE = {"group_id": "g", "topic": "t", "partition": 0}
BROWSED = ShareBrowseRequest(**PLACE)


@pytest.mark.parametrize("rights", [(), (DESCRIBED,), (DESCRIBED_TOPIC,)], ids=["none", "group only", "topic only"])
async def test_who_may_not_describe_group_and_topic_browses_nothing(rights: tuple[Right, ...]):
    peer = Who(*rights)

    with pytest.raises(Refused):
        await ask(peer, BROWSED)

    assert peer.sent == []


async def test_who_may_describe_both_browses():
    peer = Who(DESCRIBED, DESCRIBED_TOPIC, answer=ShareBrowseResponse(start_offset=7))

    answer = await ask(peer, BROWSED)

    assert peer.sent == [BROWSED]
    assert answer.start_offset == 7


@pytest.mark.parametrize("rights", [(), (GROUP, DESCRIBED_TOPIC), (DESCRIBED, TOPIC)])
@pytest.mark.parametrize("act", ["release", "reject", "dead_letter", "now"])
async def test_who_may_not_read_group_and_topic_takes_nothing_from_others(act: str, rights: tuple[Right, ...]):
    peer = Who(*rights)

    with pytest.raises(Refused):
        await ask(peer, ShareInterveneRequest(**PLACE, act=act, ranges=((0, 0),)))

    assert peer.sent == []


async def test_who_may_read_both_acts():
    peer = Who(GROUP, TOPIC, answer=ShareInterveneResponse(found=(Intervened(0, 0, 1),)))

    answer = await ask(peer, ShareInterveneRequest(**PLACE, act="release", ranges=((0, 0),)))

    assert [request.act for request in peer.sent] == ["release"]
    assert answer.found == (Intervened(0, 0, 1),)


async def test_partitions_of_topics_that_may_not_be_described_are_not_named():
    places = SharePlacesResponse(places=(("t", 0), ("u", 0)))

    asked = SharePlacesRequest(group_id="g")

    assert (await ask(Who(DESCRIBED, DESCRIBED_TOPIC, answer=places), asked)).places == (("t", 0),)
    with pytest.raises(Refused):
        await ask(Who(DESCRIBED_TOPIC, answer=places), asked)


PLACES = (("g", "t", 0), ("g", "u", 0), ("h", "t", 0), ("h", "u", 1))


@pytest.mark.parametrize(
    ("rights", "seen"),
    [((), []), ((DESCRIBED,), []), ((DESCRIBED_TOPIC,), []), ((DESCRIBED, DESCRIBED_TOPIC), [("g", "t", 0)])],
)
async def test_of_what_has_changed_only_that_is_told_whose_group_and_topic_may_be_described(rights, seen):
    rows = tuple(Standing(*place, lag=5) for place in PLACES)
    peer = Who(*rights, answer=ShareChangesResponse(server="s", version=7, whole=False, rows=rows, gone=PLACES))

    answer = await ask(peer, ShareChangesRequest(node=-1, server="s", since=3))

    assert peer.sent == [ShareChangesRequest(node=-1, server="s", since=3)]
    assert [row[:3] for row in answer.rows] == seen
    assert list(answer.gone) == seen
    assert (answer.server, answer.version, answer.whole) == ("s", 7, False)


async def test_each_right_is_asked_about_once_however_many_share_partitions_there_are():
    asked = []
    rows = tuple(Standing("g", "t", number) for number in range(1_000))
    peer = Who(DESCRIBED, DESCRIBED_TOPIC, answer=ShareChangesResponse(rows=rows))
    may = peer.may
    peer.may = lambda *right: asked.append(right) or may(*right)  # type: ignore[method-assign]

    answer = await ask(peer, ShareChangesRequest())

    assert len(answer.rows) == 1_000
    assert len(asked) == 2
