"""The native backend: share groups that Kafka's own brokers lead (Kafka 4.2 and newer, KIP-932)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from flowshare.backend.base import NOTHING_ASKED, Asked, BackendError, Capabilities, KafkaAddress
from flowshare.backend.capabilities import NATIVE
from flowshare.backend.fleet_options import fleet_of
from flowshare.backend.places import Places
from flowshare.client.cluster import Cluster
from flowshare.client.errors import ClientError
from flowshare.clock import LoopClock
from flowshare.protocol.kafka import ApiKey

if TYPE_CHECKING:
    from flowshare.backend.url import BrokerUrl
    from flowshare.client.kafka_producer import KafkaProducer
    from flowshare.client.security import Security
    from flowshare.client.settings import ProducerSettings
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection

NEEDED: Final = {
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_FETCH: 2,
    ApiKey.SHARE_ACKNOWLEDGE: 2,
}
"""API -> version that must be there: with the first one of 78 and 79 there is neither record_limit nor renewal."""


def missing_apis(cluster: Cluster) -> list[str]:
    """Names of the APIs that a started cluster lacks for share groups; empty when it has them all."""
    return [
        key.name.title().replace("_", "")
        for key, version in NEEDED.items()
        if cluster.api_versions.get(key, (0, -1))[1] < version
    ]


class NativeBackend:
    """A Kafka cluster with share groups. `broker`: its URL."""

    def __init__(self, broker: BrokerUrl, *, clock: Clock | None = None, asked: Asked = NOTHING_ASKED) -> None:
        """asked: what is known of its groups. Raises: BadBrokerUrl (how it is secured cannot be)."""
        self._asked = asked
        self._broker = broker
        self._clock = clock or LoopClock()
        self._security: Security = broker.security()
        self._cluster: Cluster | None = None

    @property
    def kind(self) -> str:
        """`native`."""
        return "native"

    @property
    def capabilities(self) -> Capabilities:
        """What Kafka's brokers can do."""
        return NATIVE

    @property
    def kafka(self) -> KafkaAddress:
        """The brokers."""
        return KafkaAddress(hosts=self._broker.hosts, security=self._security)

    async def start(self) -> None:
        """Find the brokers, see whether they have share groups, and whether the groups are elsewhere.

        Raises: BackendError.
        """
        if self._cluster is not None:
            raise BackendError("the native backend is open already")
        cluster = Cluster(self._broker.hosts, clock=self._clock, security=self._security)
        try:
            await cluster.start()
            self._check(cluster)
            await self._places(cluster).check(self._asked.groups, "native")
        except (OSError, ClientError) as error:
            await cluster.close()
            raise BackendError(f"broker {self._broker}: {error}") from error
        except BaseException:
            await cluster.close()
            raise
        self._cluster = cluster

    def _places(self, cluster: Cluster) -> Places:
        return Places(cluster, fleet_of(self._broker), native=True, clock=self._clock)

    async def check_groups(self, groups: Collection[str]) -> None:
        """See that no fleet has them. Raises: BackendError with what to do, ClientError, OSError."""
        if self._cluster is None:
            raise BackendError("the native backend is not open")
        await self._places(self._cluster).check(groups, "native")

    def _check(self, cluster: Cluster) -> None:
        missing = missing_apis(cluster)
        if missing:
            raise BackendError(
                f"broker {self._broker} offers no share groups ({', '.join(missing)} of Kafka 4.2 or newer with the "
                "feature share.version=1): upgrade it, turn the feature on (kafka-features.sh upgrade --feature "
                'share.version=1), or let the workers lead the groups: share="workers"'
            )

    async def close(self) -> None:
        """Forget the cluster; connections are closed by those who opened them."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    async def connect(self, client_id: str) -> Connection:
        """A new connection to the cluster. Raises: BackendError before `start` and after `close`."""
        if self._cluster is None:
            raise BackendError("the native backend is not open")
        return self._cluster.connect(client_id)

    def producer(
        self, *, client_id: str, linger_s: float | None = None, settings: ProducerSettings | None = None
    ) -> KafkaProducer:
        """A producer on the cluster; it connects at the first record."""
        from flowshare.client.kafka_producer import KafkaProducer

        return KafkaProducer(
            self._broker.hosts,
            lambda: self.connect(client_id),
            clock=self._clock,
            client_id=client_id,
            linger_s=linger_s,
            settings=settings,
            security=self._security,
        )

    async def set_address(self, address: str) -> None:
        """Nothing: workers on a cluster are found by their group (`flowshare groups members`)."""

    def stats(self) -> Mapping[str, Any]:
        """None: the brokers lead, and have metrics of their own."""
        return {}
