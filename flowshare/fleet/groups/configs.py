"""Settings of groups in a fleet: a group's coordinator keeps them; any other worker passes the question on.

Settings of "the broker" are the fleet's own (`fleet.groups.settings`): told under any worker's node id, set for all of
them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError, ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    ConfigEntry,
    ConfiguredGroupsRequest,
    ConfiguredGroupsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)
from flowshare.protocol.messages.base import Response
from flowshare.server.records.configs import BROKER, GROUP
from flowshare.server.runtime.failures import EXPECTED, Refused, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.fleet.directory import Directory
    from flowshare.fleet.groups.settings import FleetSettings
    from flowshare.fleet.peers import Peers
    from flowshare.server.records.configs import ConfigApis
    from flowshare.server.runtime.connection import Handlers, InProcess

DESCRIBE: Final = "fleet_describe_configs"
"""{"group_id"} -> {"entries": [[name, value, is default, documentation], …]}."""
ALTER: Final = "fleet_alter_configs"
"""{"group_id", "configs", "validate_only", "by"} -> {}. by: principal and host of the client that asked the other
worker."""
CONFIGURED: Final = "fleet_configured"
"""{} -> {"group_ids"}: groups with settings of their own that are coordinated there."""

Body = dict[str, Any]


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
            told = await self._ask(request.resource, DESCRIBE)
        except (ServerError, Refused) as error:
            return DescribeConfigsResponse(error=error.code, message=str(error))
        if told is None:
            return await self.local.describe(request, connection)
        return DescribeConfigsResponse(entries=_entries(told))

    async def alter(self, request: IncrementalAlterConfigsRequest, connection: InProcess) -> Response:
        """Set and unset settings of a group, or of the fleet."""
        if request.resource_type == BROKER:
            return await self._alter_fleet(request)
        if request.resource_type != GROUP:
            return await self.local.alter(request, connection)
        changes = dict(request.configs)
        try:
            told = await self._ask(
                request.resource, ALTER, configs=changes, validate_only=request.validate_only, by=request.by
            )
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
            *(self.peers.call(node, CONFIGURED) for node in self.directory.other_nodes), return_exceptions=True
        )
        found = set(own.group_ids)
        for answer in told:
            if isinstance(answer, dict):
                found.update(map(str, answer["group_ids"]))
            elif not isinstance(answer, OSError | ClientError):
                raise answer
        return ConfiguredGroupsResponse(group_ids=tuple(sorted(found)))

    async def _ask(self, group_id: str, call: str, **fields: Any) -> Body | None:
        """Ask the group's coordinator; None if this worker is the coordinator. Raises: ServerError, Refused."""

        async def here() -> None:
            self.check(group_id)

        return await self.peers.ask_coordinator(group_id, call, here, group_id=group_id, **fields)

    # --- asked by another worker --------------------------------------------------------------------------------

    async def answer_describe(self, body: Body, connection: InProcess) -> Body:
        """Describe a group that is coordinated here. Raises Refused."""
        group_id = str(body["group_id"])
        self.check(group_id)
        answer = await self.local.describe(DescribeConfigsRequest(resource_type=GROUP, resource=group_id), connection)
        if answer.error is not ErrorCode.NONE:
            return {"error": int(answer.error), "message": answer.message}
        entries = [[one.name, one.value, one.is_default, one.documentation] for one in answer.entries]
        return {"entries": entries}

    async def answer_alter(self, body: Body, connection: InProcess) -> Body:
        """Alter a group that is coordinated here. Raises Refused."""
        group_id = str(body["group_id"])
        self.check(group_id)
        request = IncrementalAlterConfigsRequest(
            resource_type=GROUP,
            resource=group_id,
            configs={str(name): None if text is None else str(text) for name, text in body["configs"].items()},
            validate_only=bool(body["validate_only"]),
            by=_asker(body["by"]),
        )
        answer = await self.local.alter(request, connection)
        return {} if answer.error is ErrorCode.NONE else {"error": int(answer.error), "message": answer.message}

    async def answer_configured(self, body: Body, connection: InProcess) -> Body:
        """Return the groups that are coordinated here."""
        del body
        return {"group_ids": list((await self.local.configured(ConfiguredGroupsRequest(), connection)).group_ids)}


def _asker(told: Any) -> tuple[str, str] | None:
    """Return a client's principal and host. Raises ValueError, TypeError (malformed)."""
    if told is None:
        return None
    principal, host = told
    return str(principal), str(host)


def _entries(told: Body) -> tuple[ConfigEntry, ...]:
    return tuple(
        ConfigEntry(name=str(name), value=str(value), is_default=bool(default), documentation=str(doc))
        for name, value, default, doc in told["entries"]
    )
