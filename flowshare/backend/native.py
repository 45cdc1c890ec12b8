"""The native backend: share groups that Kafka's own brokers lead (Kafka 4.2 and newer, KIP-932), or `flowshare serve`.

`KafkaBackend` has the parts shared with the other backends on a Kafka cluster.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from flowshare.backend.base import NATIVE, NOTHING_ASKED, SERVED, Backend, BackendError, GroupNeeds, KafkaAddress
from flowshare.backend.fleet_options import fleet_of
from flowshare.backend.group_location import GroupLocations
from flowshare.client.errors import ClientError
from flowshare.client.net.cluster import Cluster
from flowshare.clock import LoopClock
from flowshare.log.base import LogError
from flowshare.protocol.kafka import ApiKey

if TYPE_CHECKING:
    from flowshare.backend.url import BrokerUrl
    from flowshare.client.net.security import Security
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection

NEEDED: Final = {
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_FETCH: 2,
    ApiKey.SHARE_ACKNOWLEDGE: 2,
}
"""API -> least version needed: the first versions of 78 and 79 have neither record_limit nor renewal."""


def missing_apis(cluster: Cluster) -> list[str]:
    """Return the names of the APIs that a started cluster lacks for share groups; empty when it has them all."""
    return [
        key.name.title().replace("_", "")
        for key, version in NEEDED.items()
        if cluster.api_versions.get(key, (0, -1))[1] < version
    ]


class KafkaBackend(Backend):
    """Common base of the backends on a Kafka cluster. broker: its URL."""

    def __init__(self, broker: BrokerUrl, *, clock: Clock | None = None, asked: GroupNeeds = NOTHING_ASKED) -> None:
        """asked: needs of the app's groups. Raises: BadBrokerUrl (its security options are wrong)."""
        self._asked = asked
        self._broker = broker
        self._clock = clock or LoopClock()
        self._security: Security = broker.security()
        self._cluster: Cluster | None = None

    @property
    def kafka(self) -> KafkaAddress:
        """The brokers' address."""
        return KafkaAddress(hosts=self._broker.hosts, security=self._security)

    async def start(self) -> None:
        """Find the brokers, and check that the groups are in the right place. Raises: BackendError."""
        if self._cluster is not None:
            raise BackendError(f"the {self.kind} backend is open already")
        self._cluster = Cluster(self._broker.hosts, clock=self._clock, security=self._security)
        try:
            await self._cluster.start()
            await self._begin(self._cluster)
        except (OSError, ClientError, LogError) as error:
            await asyncio.shield(self.close())
            raise BackendError(f"broker {self._broker}: {error}") from error
        except BaseException:
            await asyncio.shield(self.close())
            raise

    @abstractmethod
    async def _begin(self, cluster: Cluster) -> None:
        """Begin with the found brokers. Raises: BackendError, OSError, ClientError, LogError."""

    async def check_groups(self, groups: Collection[str]) -> None:
        """Check that groups are not in the other place. Raises: BackendError with what to do, ClientError, OSError."""
        cluster = self._opened()
        native = not missing_apis(cluster)
        locations = GroupLocations(cluster, fleet_of(self._broker), native=native, clock=self._clock)
        await locations.check(groups, "native" if self.kind == "native" else "workers")

    def _opened(self) -> Cluster:
        if self._cluster is None:
            raise BackendError(f"the {self.kind} backend is not open")
        return self._cluster

    async def close(self) -> None:
        """Close the cluster; users close their connections themselves."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()


class NativeBackend(KafkaBackend):
    """A Kafka cluster with share groups. The brokers lead, and have metrics of their own. `flowshare serve` in their
    place has all capabilities of an embedded path."""

    kind = "native"
    capabilities = NATIVE

    def __init__(
        self,
        broker: BrokerUrl,
        *,
        clock: Clock | None = None,
        asked: GroupNeeds = NOTHING_ASKED,
        cooperative: Collection[str] = (),
    ) -> None:
        """cooperative: groups that Kafka's brokers do not keep. Raises: BadBrokerUrl."""
        super().__init__(broker, clock=clock, asked=asked)
        self._cooperative = sorted(cooperative)

    async def _begin(self, cluster: Cluster) -> None:
        """Check what the brokers can do, and that the groups are not elsewhere."""
        self._check(cluster)
        if cluster.is_flowshare:
            self.capabilities = SERVED
        elif self._cooperative:
            raise BackendError(
                f"Kafka's brokers keep no committed sets, and cooperative groups ({', '.join(self._cooperative)}) need "
                "them: let the workers keep them (share='workers' in place of 'native'), or take an embedded path"
            )
        await self.check_groups(self._asked)

    def _check(self, cluster: Cluster) -> None:
        missing = missing_apis(cluster)
        if missing:
            raise BackendError(
                f"broker {self._broker} offers no share groups ({', '.join(missing)} of Kafka 4.2 or newer with the "
                "feature share.version=1): upgrade it, turn the feature on (kafka-features.sh upgrade --feature "
                'share.version=1), or let the workers lead the groups: share="workers"'
            )

    async def connect(self, client_id: str) -> Connection:
        """Open a connection to the cluster. Raises: BackendError before `start` and after `close`."""
        return self._opened().connect(client_id)


class LogBackend(KafkaBackend):
    """A Kafka cluster used for topics and consumer groups only; its brokers need no share groups."""

    kind = "log"
    capabilities = NATIVE

    async def _begin(self, cluster: Cluster) -> None:
        """Do nothing more."""

    async def connect(self, client_id: str) -> Connection:
        """Open a connection to the cluster. Raises: BackendError before `start` and after `close`."""
        return self._opened().connect(client_id)
