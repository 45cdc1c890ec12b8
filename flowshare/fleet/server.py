"""`FleetServer`: answers a fleet worker's clients: its own members in the process, and others by socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from flowshare.fleet.directory import NOBODY, OF_WORKERS
from flowshare.fleet.groups.metadata import NoRecords
from flowshare.protocol.kafka import ApiKey
from flowshare.server.cooperative.members import CooperativeMembers
from flowshare.server.cooperative.settle import CooperativeSettling
from flowshare.server.cooperative.store import group_ids
from flowshare.server.cooperative.tools import CooperativeTools
from flowshare.server.runtime.connection import Table
from flowshare.server.share.browsing import BrowseApis
from flowshare.server.share.changes import ChangeApis
from flowshare.server.share.groups import GroupApis
from flowshare.server.share.offsets import ShareOffsetApis

if TYPE_CHECKING:
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.groups.calls import FleetCalls
    from flowshare.fleet.groups.configs import FleetConfigs
    from flowshare.fleet.groups.metadata import FleetMetadata
    from flowshare.log.base import Storage
    from flowshare.server.cooperative.coordinator import CooperativeGroups
    from flowshare.server.edge.base import Endpoint
    from flowshare.server.runtime.connection import InProcess
    from flowshare.server.security.sasl import Sasl
    from flowshare.server.share.service import ShareService
    from flowshare.share.config import ServerConfig

ADVERTISED: Final = OF_WORKERS | {
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.API_VERSIONS,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.FLOWSHARE,
}
"""APIs that a worker answers; it answers Produce and Fetch by refusing (`fleet.groups.metadata`). For records,
producers and consumer groups, clients use Kafka's own brokers."""


class FleetServer:
    """Share groups of a fleet at one worker; `Listener` serves it to sockets."""

    def __init__(
        self,
        service: ShareService,
        *,
        storage: Storage,
        directory: Directory,
        metadata: FleetMetadata,
        configs: FleetConfigs,
        calls: FleetCalls,
        look: Callable[[Collection[str]], Awaitable[object]],
        cooperative: CooperativeGroups,
    ) -> None:
        """look: finds topics by name that are not known here yet. cooperative: the cooperative groups of this
        worker."""
        self._service = service
        self.clock, self.topics = service.clock, service.topics
        self.authorize = service.authorize
        self._cooperative = cooperative
        self._directory = directory
        self._calls = calls
        self._handlers = Table(
            (
                *service.families(),
                GroupApis(service, cooperative=lambda: group_ids(storage)),
                configs,
                ShareOffsetApis(service, storage, look),
                BrowseApis(service, look),
                ChangeApis(service, storage, self._nodes),
                CooperativeMembers(cooperative),
                CooperativeSettling(cooperative),
                CooperativeTools(cooperative),
                metadata,
                NoRecords(),
            )
        )

    def _nodes(self) -> tuple[int, Collection[int]]:
        place = self._directory.place
        return NOBODY if place is None else place.node_id, tuple(self._directory.nodes)

    def stats(self) -> Mapping[str, Any]:
        """Return counters and gauges, see `Server.stats`."""
        return {**self._service.figures(), "cooperative": self._cooperative.figures()}

    @property
    def config(self) -> ServerConfig:
        """Settings of the share groups' servers."""
        return self._service.config

    async def size(self, topic: str, partition: int) -> int:
        """Return 0: the brokers have the logs."""
        return 0

    def connect(self, *, client_id: str, host: str) -> InProcess:
        """Return a new connection. `host` stands in the descriptions of its members."""
        return self._service.connect(self._handlers, client_id=client_id, host=host)

    def connect_own(self, client_id: str) -> InProcess:
        """Return a connection of this process's own members."""
        place = self._directory.place
        connection = self.connect(client_id=client_id, host="" if place is None else place.host)
        connection.own = True
        connection.worker = None if place is None else place.node_id
        return connection

    def apis(self, *, sasl: Sasl | None = None) -> Mapping[int, Endpoint]:
        """Return the APIs that sockets are served. They are imported here because that takes a third of a second.

        sasl: checks logins. Rights are the listener's: it gives each peer its authorizer.
        """
        from flowshare.server.edge import configs, cooperative, groups, metadata, private, records, share
        from flowshare.server.edge.sasl import SaslApis
        from flowshare.server.edge.table import table

        endpoints = (
            *(() if sasl is None else SaslApis(sasl, self.clock).apis()),
            *share.ENDPOINTS,
            *cooperative.ENDPOINTS,
            *groups.ENDPOINTS,
            *configs.ENDPOINTS,
            *metadata.ENDPOINTS,
            *records.ENDPOINTS,
            private.endpoint(self._calls.ways()),
        )
        return table(endpoints, only=ADVERTISED)
