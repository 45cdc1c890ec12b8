"""`FleetServer`: what a worker of a fleet answers, to its own members within the process and to others by socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from flowshare.fleet.records import NoRecords
from flowshare.protocol.kafka import ApiKey
from flowshare.server.groups import GroupApis
from flowshare.server.later import Table
from flowshare.server.share_offsets import ShareOffsetApis

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.calls import FleetCalls
    from flowshare.fleet.configs import FleetConfigs
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.places import FleetPlaces
    from flowshare.log.base import Storage
    from flowshare.server.connection import InProcess
    from flowshare.server.edge.base import Api, Authorizer
    from flowshare.server.security.sasl import Sasl
    from flowshare.server.share_service import ShareService
    from flowshare.server.topic_index import TopicIndex
    from flowshare.share.config import ServerConfig

ADVERTISED: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.LIST_GROUPS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.DELETE_GROUPS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ApiKey.FLOWSHARE,
    }
)
"""What a worker answers, Produce and Fetch by refusing (`fleet.records`); for records, producers and consumer groups
clients use Kafka's own brokers."""


class FleetServer:
    """Share groups of a fleet at one worker; `Listener` serves it to sockets."""

    def __init__(
        self,
        service: ShareService,
        *,
        storage: Storage,
        directory: Directory,
        places: FleetPlaces,
        configs: FleetConfigs,
        calls: FleetCalls,
        look: Callable[[Collection[str]], Awaitable[object]],
    ) -> None:
        """look: finds topics that are not known here yet, by name."""
        self._service = service
        self._directory = directory
        self._calls = calls
        self._places = places
        self._handlers = Table(
            (
                *service.families(),
                GroupApis(coordinator=service.coordinator, topics=service.topics, clock=service.clock),
                configs,
                ShareOffsetApis(
                    log=storage,
                    topics=service.topics,
                    leaders=service.leaders,
                    coordinator=service.coordinator,
                    clock=service.clock,
                    look=look,
                ),
                places,
                NoRecords(),
            ),
            {},
        )

    @property
    def config(self) -> ServerConfig:
        """Settings of the share groups' servers."""
        return self._service.config

    @property
    def clock(self) -> Clock:
        """What rules all waiting."""
        return self._service.clock

    @property
    def topics(self) -> TopicIndex:
        """The topics that are known here."""
        return self._service.topics

    def authorize(self, authorizer: Authorizer) -> None:
        """Who may do what at this worker's sockets, see `ShareService.authorize`."""
        self._service.authorize(authorizer)

    def connect(self, *, client_id: str, host: str) -> InProcess:
        """A new connection. `host` stands in the descriptions of its members."""
        return self._service.connect(self._handlers, client_id=client_id, host=host)

    def connect_own(self, client_id: str) -> InProcess:
        """A connection of this process's own members."""
        place = self._directory.place
        connection = self.connect(client_id=client_id, host="" if place is None else place.host)
        connection.own = True
        connection.worker = None if place is None else place.node_id
        return connection

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges, see `Server.stats`."""
        return self._service.figures()

    def apis(self, *, sasl: Sasl | None = None) -> Mapping[int, Api]:
        """What sockets are served; imported here because it takes a third of a second. sasl: who may log in.

        Rights are the listener's: it gives each peer its authorizer.
        """
        from flowshare.server.edge import table
        from flowshare.server.edge.configs import ConfigsEdge
        from flowshare.server.edge.groups import GroupsEdge
        from flowshare.server.edge.metadata import MetadataEdge
        from flowshare.server.edge.positions import PositionsEdge
        from flowshare.server.edge.private import PrivateApis
        from flowshare.server.edge.records import RecordsEdge
        from flowshare.server.edge.sasl import SaslApis
        from flowshare.server.edge.share import ShareApis
        from flowshare.server.edge.share_admin import ShareAdminApis

        families = (
            *(() if sasl is None else (SaslApis(sasl, self.clock),)),
            ShareApis(),
            ShareAdminApis(self.topics),
            GroupsEdge(lambda kind, key: self._places.coordinator(kind.name.lower(), key)),
            ConfigsEdge(),
            MetadataEdge(self.config),
            PositionsEdge(),
            RecordsEdge(self.topics),
            PrivateApis(self._calls.by_name()),
        )
        return table.table(families, only=ADVERTISED)
