"""Calls between workers, at the worker that is called.

A caller that does not prove to be a worker of the fleet (`fleet.peer_login`) is refused. Where the listener has rights,
a caller that may not do CLUSTER_ACTION is refused, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flowshare.fleet.directory import Claimed, WorkerAddress
from flowshare.fleet.groups.configs import ALTER, CONFIGURED, DESCRIBE
from flowshare.fleet.groups.facts import FACTS, HAS, SETTINGS, GroupFacts
from flowshare.fleet.groups.leaders import (
    BEGIN,
    BROWSE,
    GONE,
    INTERVENE,
    OFFSETS,
    PARKED,
    REPLACE,
    first_of,
    key_of,
    state_of,
    tell_offsets,
    tell_parked,
)
from flowshare.fleet.groups.limits import LEASE
from flowshare.fleet.groups.settings import ASK as OWN_SETTINGS
from flowshare.fleet.groups.settings import SET as SET_OWN_SETTINGS
from flowshare.fleet.groups.settings import TELL as TELL_OWN_SETTINGS
from flowshare.fleet.peer_login import GREET
from flowshare.fleet.slot_manager import CLAIMED, HAND_OVER
from flowshare.log.base import NotLed
from flowshare.protocol.browse_codec import CALLS as BROWSE_CALLS
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.browse import ShareBrowseRequest, ShareInterveneRequest
from flowshare.protocol.rights import CLUSTER_NAME, Operation, ResourceType
from flowshare.server.edge.base import may_group
from flowshare.server.edge.private import refusal
from flowshare.server.runtime.failures import EXPECTED, Refused, failure
from flowshare.server.runtime.state import ShareKey

if TYPE_CHECKING:
    import uuid

    from flowshare.fleet.directory import Directory
    from flowshare.fleet.groups.configs import FleetConfigs
    from flowshare.fleet.groups.facts import FleetGroups
    from flowshare.fleet.groups.limits import FleetLimits
    from flowshare.fleet.groups.settings import FleetSettings
    from flowshare.fleet.peer_login import OpenedCall, PeerDoor
    from flowshare.fleet.slot_manager import SlotManager
    from flowshare.log.base import StateStore
    from flowshare.server.edge.base import Peer, SocketCall
    from flowshare.server.runtime.connection import InProcess
    from flowshare.server.share.service import ShareService
    from flowshare.share.group import ToInitialize

LEAVING: Final = "fleet_leaving"
"""{} -> {}: a worker left the slot group; look now instead of at the next heartbeat."""

WHO: Final = "fleet_who"
"""{} -> node_id, principal, worker: the worker that answers, the caller's principal, and if it counts as a worker.

Needs no proof: a worker asks itself before it joins, to see that its address leads to it and its login is a worker's.
"""

Body = dict[str, Any]


@dataclass(eq=False, kw_only=True)
class FleetCalls:
    """Answers the workers' calls, by name.

    know: looks for topics by their ids. look: makes the slot group's member look now. node_id: returns this worker's.
    """

    service: ShareService
    store: StateStore
    directory: Directory
    groups: FleetGroups
    configs: FleetConfigs
    limits: FleetLimits
    settings: FleetSettings
    slot_manager: SlotManager
    door: PeerDoor
    know: Callable[[Collection[uuid.UUID]], Awaitable[None]]
    look: Callable[[], object]
    node_id: Callable[[], int]

    def __post_init__(self) -> None:
        configs, settings = self.configs, self.settings
        self._configs: Mapping[str, Callable[[Body, InProcess], Awaitable[Body]]] = {
            DESCRIBE: configs.answer_describe,
            ALTER: configs.answer_alter,
            CONFIGURED: configs.answer_configured,
        }
        self._calls: Mapping[str, Callable[[Body], Awaitable[Body]]] = {
            FACTS: self._facts,
            SETTINGS: self._settings,
            GONE: self._gone,
            BEGIN: self._begin,
            REPLACE: self._replace,
            OFFSETS: self._offsets,
            PARKED: self._parked,
            BROWSE: self._browse,
            INTERVENE: self._intervene,
            LEASE: self.limits.answer,
            OWN_SETTINGS: settings.answer,
            TELL_OWN_SETTINGS: settings.told,
            SET_OWN_SETTINGS: settings.answer_set,
            HAND_OVER: self._hand_over,
            CLAIMED: self._claimed,
            LEAVING: self._leaving,
        }

    def by_name(self) -> Mapping[str, Callable[[SocketCall], Awaitable[Body]]]:
        """Return the calls, for `server.edge.private`."""
        return {
            **dict.fromkeys((*self._calls, *self._configs), self.answer),
            GREET: self.greet,
            HAS: self.has,
            WHO: self.who,
        }

    async def answer(self, call: SocketCall) -> Body:
        """Answer another worker's call, or refuse with the reason."""
        if not _is_worker(call.peer):
            return _no_worker(call.peer)
        try:
            opened = self.door.open(call)
        except Refused as refused:
            return refusal(*failure(refused))
        return opened.answered(await self._answer(opened, call.peer.connection))

    async def _answer(self, opened: OpenedCall, connection: InProcess) -> Body:
        try:
            if opened.name in self._configs:
                return await self._configs[opened.name](opened.body, connection)
            return await self._calls[opened.name](opened.body)
        except EXPECTED as error:
            return refusal(*failure(error))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            return refusal(ErrorCode.INVALID_REQUEST, f"the call makes no sense here ({error!r}); are versions mixed?")

    async def greet(self, call: SocketCall) -> Body:
        """Begin a line with another worker."""
        if not _is_worker(call.peer):
            return _no_worker(call.peer)
        try:
            return await self.door.greet(call)
        except Refused as refused:
            return refusal(*failure(refused))

    async def has(self, call: SocketCall) -> Body:
        """Tell if the fleet has a group."""
        group_id = call.request.get("group_id")
        if not isinstance(group_id, str):
            return refusal(ErrorCode.INVALID_REQUEST, f"{HAS} needs a group_id")
        if not may_group(call.peer, Operation.DESCRIBE, group_id):
            return refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"describing group {group_id} is not allowed")
        try:
            self.service.duties.check_coordinator(group_id)
        except EXPECTED as error:
            return refusal(*failure(error))
        return {"exists": group_id in self.service.coordinator.groups}

    async def who(self, call: SocketCall) -> Body:
        """Tell the answering worker and the caller."""
        return {"node_id": self.node_id(), "principal": call.peer.principal, "worker": _is_worker(call.peer)}

    async def _facts(self, body: Body) -> Body:
        return self.groups.facts(str(body["group_id"])).to_json()

    async def _settings(self, body: Body) -> Body:
        self.groups.told(GroupFacts.from_json(body))
        return {}

    async def _gone(self, body: Body) -> Body:
        epoch, count = body["version"]
        version = int(epoch), int(count)
        self.groups.member_gone(str(body["group_id"]), str(body["member_id"]), version, died=bool(body["died"]))
        return {}

    async def _begin(self, body: Body) -> Body:
        group_id = str(body["group_id"])
        items = [first_of(told) for told in body["items"]]
        for item in items:
            self.service.duties.check_leader(ShareKey(group_id, item.topic_id, item.partition))
        await self._need_topics(items)
        facts = await self.groups.ask(group_id)
        self.groups.told(facts)
        config = self.service.duties.config_of(group_id)
        async with self.service.local.beginning(group_id, config, items) as writes:
            await self.store.write(writes)
        return {}

    async def _need_topics(self, items: Sequence[ToInitialize]) -> None:
        """Make sure that this worker knows the partitions, too: a partition left out here would begin elsewhere later.

        Raises: NotLed (not yet; the coordinator tries again)
        """
        if unknown := [item.topic_id for item in items if not self._knows(item)]:
            await self.know(unknown)
        for item in items:
            if not self._knows(item):
                raise NotLed(f"partition {item.partition} of topic {item.topic_id} is not known here yet")

    def _knows(self, item: ToInitialize) -> bool:
        topic = self.service.topics.by_id(item.topic_id)
        return topic is not None and item.partition < topic.partitions

    async def _replace(self, body: Body) -> Body:
        states = dict(state_of(told) for told in body["states"])
        for key in states:
            self.service.duties.check_leader(key)
        async with self.service.local.replacing(states) as writes:
            await self.store.write(writes)
        return {}

    async def _offsets(self, body: Body) -> Body:
        keys = [key_of(told) for told in body["keys"]]
        for key in keys:
            self.service.duties.check_leader(key)
        return {"offsets": [tell_offsets(part) for part in await self.service.local.offsets(keys)]}

    async def _parked(self, body: Body) -> Body:
        keys = [key_of(told) for told in body["keys"]]
        for key in keys:
            self.service.duties.check_leader(key)
        rows = await self.service.local.parked(keys, str(body["act"]), bytes.fromhex(body["key"]))
        return {"parked": [tell_parked(one) for one in rows]}

    async def _browse(self, body: Body) -> Body:
        key, call = key_of(body["key"]), BROWSE_CALLS[str(ShareBrowseRequest.call)]
        self.service.duties.check_leader(key)
        return call.answer(await self.service.local.browse(key, call.read_request(body["ask"])))

    async def _intervene(self, body: Body) -> Body:
        key, call = key_of(body["key"]), BROWSE_CALLS[str(ShareInterveneRequest.call)]
        self.service.duties.check_leader(key)
        return call.answer(await self.service.local.intervene(key, call.read_request(body["ask"])))

    async def _hand_over(self, body: Body) -> Body:
        await self.slot_manager.hand_over(int(body["slot"]), str(body["to"]))
        return {}

    async def _claimed(self, body: Body) -> Body:
        node_id, host, port = body["node"]
        claim = Claimed(int(body["epoch"]), WorkerAddress(int(node_id), str(host), int(port)))
        self.directory.claimed(int(body["slot"]), claim)
        return {}

    async def _leaving(self, _: Body) -> Body:
        self.look()
        return {}


def _is_worker(peer: Peer) -> bool:
    return peer.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)


def _no_worker(peer: Peer) -> Body:
    return refusal(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        f"{peer.principal} is no worker here: name it in listen_super_users of all workers",
    )
