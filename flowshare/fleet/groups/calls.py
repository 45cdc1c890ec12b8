"""Calls between workers, at the worker that is called.

A caller that does not prove to be a worker of the fleet (`fleet.peer_login`) is refused. Where the listener has rights,
a caller that may not do CLUSTER_ACTION is refused, too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowshare.fleet import messages as m
from flowshare.fleet.directory import Claimed
from flowshare.fleet.groups.leaders import state_of
from flowshare.log.base import NotLed
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.messages.base import Response
from flowshare.protocol.messages.browse import ShareBrowseResponse, ShareInterveneResponse
from flowshare.protocol.private import OwnCall, read
from flowshare.protocol.rights import CLUSTER_NAME, Operation, ResourceType
from flowshare.server.runtime.failures import EXPECTED, Refused, refusal
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
    from flowshare.share.group_state import ToInitialize

logger = logging.getLogger(__name__)


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
        self._configs: Mapping[type[Any], Callable[[Any, InProcess], Awaitable[Response]]] = {
            m.DescribeGroupConfigs: configs.answer_describe,
            m.AlterGroupConfigs: configs.answer_alter,
            m.ConfiguredHere: configs.answer_configured,
        }
        self._answers: Mapping[type[Any], Callable[[Any], Awaitable[Response]]] = {
            m.FactsRequest: self._facts,
            m.FactsChanged: self._facts_changed,
            m.MemberGone: self._gone,
            m.BeginStates: self._begin,
            m.ReplaceStates: self._replace,
            m.OffsetsRequest: self._offsets,
            m.ParkedRequest: self._parked,
            m.BrowseLed: self._browse,
            m.InterveneLed: self._intervene,
            m.LeaseRequest: self.limits.answer,
            m.FleetSettingsRequest: settings.answer,
            m.FleetSettingsChanged: settings.told,
            m.AlterFleetSettings: settings.answer_set,
            m.HandOver: self._hand_over,
            m.SlotClaimed: self._claimed,
            m.WorkerLeaving: self._leaving,
        }
        self._kinds = {kind.own.name: kind for kind in (*self._configs, *self._answers)}

    def ways(self) -> Mapping[OwnCall, Callable[[SocketCall, Any], Awaitable[Response]]]:
        """Return the calls at the socket, for `server.edge.private`."""
        return {m.PROVEN: self.answer, m.GREET: self.greet, m.HAS: self.has, m.WHO: self.who}

    async def answer(self, call: SocketCall, request: m.ProvenCall) -> Response:
        """Answer another worker's call. Raises: Refused."""
        _need_worker(call.peer)
        opened = self.door.open(call, request)
        return opened.answered(await self._answer(opened, call.peer.connection))

    async def _answer(self, opened: OpenedCall, connection: InProcess) -> Response:
        try:
            kind = self._kinds[opened.name]
            request = read(kind, opened.text)
        except (KeyError, DecodeError) as error:
            text = f"the call makes no sense here ({error}); are versions mixed?"
            return Response(error=ErrorCode.INVALID_REQUEST, message=text)
        try:
            if kind in self._configs:
                return await self._configs[kind](request, connection)
            return await self._answers[kind](request)
        except EXPECTED as error:
            return refusal(Response, error)
        except (LookupError, ValueError, TypeError, AttributeError) as error:  # values that no worker of here sends
            logger.exception("call failed: %s", opened.name)
            text = f"the call failed here ({error!r}); are versions mixed? The worker's log has more"
            return Response(error=ErrorCode.INVALID_REQUEST, message=text)

    async def greet(self, call: SocketCall, request: m.GreetRequest) -> m.GreetResponse:
        """Begin a line with another worker. Raises: Refused."""
        _need_worker(call.peer)
        return await self.door.greet(call, request)

    async def has(self, _: SocketCall, request: m.HasGroupRequest) -> m.HasGroupResponse:
        """Tell if the fleet has a group."""
        try:
            self.service.duties.check_coordinator(request.group_id)
        except EXPECTED as error:
            return refusal(m.HasGroupResponse, error)
        return m.HasGroupResponse(exists=request.group_id in self.service.coordinator.groups)

    async def who(self, call: SocketCall, _: m.WhoRequest) -> m.WhoResponse:
        """Tell the answering worker and the caller."""
        return m.WhoResponse(node_id=self.node_id(), principal=call.peer.principal, worker=_is_worker(call.peer))

    async def _facts(self, request: m.FactsRequest) -> m.FactsResponse:
        return m.FactsResponse(facts=self.groups.facts(request.group_id))

    async def _facts_changed(self, request: m.FactsChanged) -> Response:
        self.groups.told(request.facts)
        return Response()

    async def _gone(self, request: m.MemberGone) -> Response:
        self.groups.member_gone(request.group_id, request.member_id, request.version, died=request.died)
        return Response()

    async def _begin(self, request: m.BeginStates) -> Response:
        group_id = request.group_id
        for item in request.items:
            self.service.duties.check_leader(ShareKey(group_id, item.topic_id, item.partition))
        await self._need_topics(request.items)
        facts = await self.groups.ask(group_id)
        self.groups.told(facts)
        config = self.service.duties.config_of(group_id)
        async with self.service.local.beginning(group_id, config, request.items) as writes:
            await self.store.write(writes)
        return Response()

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

    async def _replace(self, request: m.ReplaceStates) -> Response:
        self._check_led(key for key, _ in request.states)
        states = {key: state_of(start) for key, start in request.states}
        async with self.service.local.replacing(states) as writes:
            await self.store.write(writes)
        return Response()

    async def _offsets(self, request: m.OffsetsRequest) -> m.OffsetsResponse:
        self._check_led(request.keys)
        return m.OffsetsResponse(offsets=tuple(await self.service.local.offsets(request.keys)))

    async def _parked(self, request: m.ParkedRequest) -> m.ParkedResponse:
        self._check_led(request.keys)
        rows = await self.service.local.parked(request.keys, request.act, request.key)
        return m.ParkedResponse(parked=tuple(map(tuple, rows)))

    async def _browse(self, request: m.BrowseLed) -> ShareBrowseResponse:
        self._check_led((request.key,))
        return await self.service.local.browse(request.key, request.ask)

    async def _intervene(self, request: m.InterveneLed) -> ShareInterveneResponse:
        self._check_led((request.key,))
        return await self.service.local.intervene(request.key, request.ask)

    def _check_led(self, keys: Iterable[ShareKey]) -> None:
        """Check that this worker leads all of these. Raises: NotLed."""
        for key in keys:
            self.service.duties.check_leader(key)

    async def _hand_over(self, request: m.HandOver) -> Response:
        await self.slot_manager.hand_over(request.slot, request.to)
        return Response()

    async def _claimed(self, request: m.SlotClaimed) -> Response:
        self.directory.claimed(request.slot, Claimed(request.epoch, request.node))
        return Response()

    async def _leaving(self, _: m.WorkerLeaving) -> Response:
        self.look()
        return Response()


def _is_worker(peer: Peer) -> bool:
    return peer.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)


def _need_worker(peer: Peer) -> None:
    """Check the right of workers. Raises: Refused."""
    if not _is_worker(peer):
        raise Refused(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"{peer.principal} is no worker here: name it in listen_super_users of all workers",
        )
