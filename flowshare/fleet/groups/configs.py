"""Settings of groups in a fleet: a group's coordinator keeps them; any other worker passes the question on.

Settings of "the broker" are the fleet's own (`fleet.groups.settings`): told under any worker's node id, set for all of
them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from flowshare.client.errors import ClientError, ServerError
from flowshare.fleet.messages import AlterGroupConfigs, ConfiguredHere, ConfiguredHereResponse, DescribeGroupConfigs
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    ConfiguredGroupsRequest,
    ConfiguredGroupsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)
from flowshare.protocol.messages.base import Request, Response
from flowshare.server.records.configs import BROKER, GROUP
from flowshare.server.runtime.failures import EXPECTED, Refused, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.fleet.directory import Directory
    from flowshare.fleet.groups.settings import FleetSettings
    from flowshare.fleet.peers import Peers
    from flowshare.server.records.configs import ConfigApis
    from flowshare.server.runtime.connection import Handlers, InProcess

R = TypeVar("R")


@dataclass(eq=False, kw_only=True)
class FleetConfigs:
    """Answers the config APIs at any worker.

    check: raises Refused when a group is not coordinated here.
    """

    local: ConfigApis
    settings: FleetSettings
    directory: Directory
    peers: Peers
    check: Callable[[str], None]

    def handlers(self) -> Handlers:
        """Return the handlers of this family's requests."""
        return {
            DescribeConfigsRequest: self.describe,
            IncrementalAlterConfigsRequest: self.alter,
            ConfiguredGroupsRequest: self.configured,
        }

    # --- asked by anybody ---------------------------------------------------------------------------------------

    async def describe(self, request: DescribeConfigsRequest, connection: InProcess) -> DescribeConfigsResponse:
        """Return settings of a group, or of the fleet: all of them, or without a node id those that were set."""
        if request.resource_type == BROKER:
            await self.settings.refresh()
            entries = self.settings.entries()
            if not request.resource:
                entries = tuple(entry for entry in entries if not entry.is_default)
            return DescribeConfigsResponse(entries=entries)
        if request.resource_type != GROUP:
            return await self.local.describe(request, connection)
        try:
            told = await self._ask(request.resource, DescribeGroupConfigs(group_id=request.resource))
        except (ServerError, Refused) as error:
            return DescribeConfigsResponse(error=error.code, message=str(error))
        if told is None:
            return await self.local.describe(request, connection)
        return told

    async def alter(self, request: IncrementalAlterConfigsRequest, connection: InProcess) -> Response:
        """Set and unset settings of a group, or of the fleet."""
        if request.resource_type == BROKER:
            return await self._alter_fleet(request)
        if request.resource_type != GROUP:
            return await self.local.alter(request, connection)
        asked = AlterGroupConfigs(
            group_id=request.resource,
            configs=dict(request.configs),
            validate_only=request.validate_only,
            by=request.by,
        )
        try:
            told = await self._ask(request.resource, asked)
        except (ServerError, Refused) as error:
            return Response(error=error.code, message=str(error))
        if told is None:
            return await self.local.alter(request, connection)
        return Response()

    async def _alter_fleet(self, request: IncrementalAlterConfigsRequest) -> Response:
        if request.resource:
            return Response(
                error=ErrorCode.INVALID_REQUEST,
                message="the settings are those of all workers of the fleet: name no broker, but the default of all "
                "(flowshare fleet config NAME=VALUE; kafka-configs.sh --entity-type brokers --entity-default)",
            )
        try:
            await self.settings.alter(request.configs, validate_only=request.validate_only)
        except ServerError as error:
            return Response(error=error.code, message=error.message or str(error))
        except EXPECTED as error:
            return refusal(Response, error)
        return Response()

    async def configured(self, request: ConfiguredGroupsRequest, connection: InProcess) -> ConfiguredGroupsResponse:
        """Return the groups with settings of their own, of all workers that can be reached."""
        own = await self.local.configured(request, connection)
        told = await asyncio.gather(
            *(self.peers.call(node, ConfiguredHere()) for node in self.directory.other_nodes), return_exceptions=True
        )
        found = set(own.group_ids)
        for answer in told:
            if not isinstance(answer, BaseException):
                found.update(answer.group_ids)
            elif not isinstance(answer, OSError | ClientError):
                raise answer
        return ConfiguredGroupsResponse(group_ids=tuple(sorted(found)))

    async def _ask(self, group_id: str, request: Request[R]) -> R | None:
        """Ask the group's coordinator; None if this worker is the coordinator. Raises: ServerError, Refused."""

        async def here() -> None:
            self.check(group_id)

        return await self.peers.ask_coordinator(group_id, request, here)

    # --- asked by another worker --------------------------------------------------------------------------------

    async def answer_describe(self, asked: DescribeGroupConfigs, connection: InProcess) -> DescribeConfigsResponse:
        """Describe a group that is coordinated here. Raises Refused."""
        self.check(asked.group_id)
        request = DescribeConfigsRequest(resource_type=GROUP, resource=asked.group_id)
        return await self.local.describe(request, connection)

    async def answer_alter(self, asked: AlterGroupConfigs, connection: InProcess) -> Response:
        """Alter a group that is coordinated here. Raises Refused."""
        self.check(asked.group_id)
        request = IncrementalAlterConfigsRequest(
            resource_type=GROUP,
            resource=asked.group_id,
            configs=asked.configs,
            validate_only=asked.validate_only,
            by=asked.by,
        )
        return await self.local.alter(request, connection)

    async def answer_configured(self, _: ConfiguredHere, connection: InProcess) -> ConfiguredHereResponse:
        """Return the groups that are coordinated here."""
        own = await self.local.configured(ConfiguredGroupsRequest(), connection)
        return ConfiguredHereResponse(group_ids=own.group_ids)
