"""`FleetWorker`: one worker of a fleet that leads share groups on a Kafka without them, from `start` to `close`.

Start: state topic → listener → slot group → (slots are claimed and served as they are chosen).
Stop: leave the slot group → the others ask for the slots, one by one → the rest is given away → listener.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from flowshare.core_errors import InconsistentGroupProtocol
from flowshare.fleet.directory import Directory, WorkerAddress
from flowshare.fleet.groups.calls import FleetCalls
from flowshare.fleet.groups.configs import FleetConfigs
from flowshare.fleet.groups.duties import FleetDuties, FleetSlotContents
from flowshare.fleet.groups.facts import FleetGroups, KnownGroups
from flowshare.fleet.groups.leaders import FleetLeaders
from flowshare.fleet.groups.limits import FleetLimits
from flowshare.fleet.groups.metadata import FleetMetadata
from flowshare.fleet.groups.other_fleets import OtherFleets
from flowshare.fleet.groups.settings import FleetConfig, FleetSettings
from flowshare.fleet.inspection import described
from flowshare.fleet.log.kafka_log import KafkaLog
from flowshare.fleet.messages import WorkerLeaving
from flowshare.fleet.peer_login import KeyPair, KnownKeys, PeerDoor
from flowshare.fleet.peers import Peers
from flowshare.fleet.server import FleetServer
from flowshare.fleet.slot_group import SlotGroup
from flowshare.fleet.slot_manager import SlotManager
from flowshare.fleet.state.outputs import ends_transactions
from flowshare.fleet.state.reading import SlotTails
from flowshare.fleet.state.slot import Slot
from flowshare.fleet.state.topic import StateTopic, check_formats
from flowshare.fleet.storage import FleetStorage
from flowshare.log.base import StorageError, StorageHeld
from flowshare.server.cooperative.beside import InKafka
from flowshare.server.cooperative.coordinator import CooperativeGroups
from flowshare.server.cooperative.stats import Stats
from flowshare.server.net.limits import ListenerLimits
from flowshare.server.records.configs import ConfigApis
from flowshare.server.share.service import ShareService
from flowshare.share.config import ServerConfig
from flowshare.slots.placement import SLOTS_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from flowshare.client.net.cluster import Cluster
    from flowshare.clock import Clock
    from flowshare.fleet.peers import Dial
    from flowshare.fleet.state.cache import SlotCache
    from flowshare.server.runtime.connection import InProcess
    from flowshare.server.runtime.state import ShareKey

PROCESSES_MAX: Final = 256
"""The most processes of one machine that keep state in one directory."""
LEAVE_S: Final = 3.0
"""Time, in s, for a stopping worker to leave and for the others to ask for its slots, both in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """One worker's part in a fleet.

    fleet: its name. node_id: drawn at random, 31 bits. instance: the worker's name among the others when it keeps no
    state of its own; with a state directory it has the directory's, so that a restarted worker is known again. slots:
    of the fleet. state_dir: holds a directory for each process of this machine, None: keep nothing. config: used until
    the fleet has settings of its own. settings: the fleet's settings, if it never had any.
    """

    fleet: str
    node_id: int
    instance: str
    slots: int = SLOTS_DEFAULT
    state_dir: Path | None = None
    config: ServerConfig = field(default_factory=ServerConfig.embedded)
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


class FleetWorker:
    """One worker. `cluster`: the started connection to Kafka. `dial`: opens connections to other workers."""

    def __init__(self, cluster: Cluster, options: FleetOptions, *, clock: Clock, dial: Dial) -> None:
        self._cluster = cluster
        self._options = options
        self._clock = clock
        self._dial = dial
        self._pair = KeyPair(os.urandom)
        self._cache: SlotCache | None = None
        self._instance = options.instance
        self._kafka = cluster.connect(f"flowshare-{options.fleet}")
        self._tail_kafka = cluster.connect(f"flowshare-{options.fleet}-tails")
        self._log = KafkaLog(cluster)
        self._topic = StateTopic(self._kafka, options.fleet)
        self._closing = AsyncExitStack()
        self._closing.push_async_callback(self._kafka.close)
        self._closing.push_async_callback(self._tail_kafka.close)
        self._started = False
        self.ended = False
        """True if the worker was closed."""
        self.server: FleetServer
        self.calls: FleetCalls
        self.directory: Directory
        self.settings: FleetSettings

    # --- life ---------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Find or make the state topic, and put the parts together. Raises: ClientError, LogError, OSError."""
        slots = await self._topic.ensure(self._options.slots)
        await check_formats(self._kafka, self._topic.name, slots)
        cached = await self._open_cache(slots)
        self._closing.push_async_callback(self._log.close)
        await self._log.start()
        self.directory = Directory(slots)
        self._known = KnownKeys(self.directory, self._clock, lambda: described(self._kafka, self._topic.name))
        self._peers = Peers(self.directory, self._dial, self._clock, pair=self._pair, known=self._known)
        self._known_groups = KnownGroups(self._options.config, self._clock)
        self._groups = FleetGroups(directory=self.directory, peers=self._peers, known_groups=self._known_groups)
        self._build(slots, cached)
        for close in (
            self._tails.close,
            self._known.close,
            self._peers.close,
            self._limits.close,
            self.settings.close,
            self._contents.close,
            self._cooperative.close,
            self._service.close_partitions,
            self._service.close_groups,
            self._slot_group.close,
        ):
            self._closing.push_async_callback(close)
        await self._service.start()
        self._cooperative.start()
        self._limits.start()
        self.settings.start()

    async def join(self, host: str, port: int) -> None:
        """Join the fleet as the worker reached at `host` and `port`. Returns when the slots' leaders are known.

        Raises: ClientError, OSError
        """
        self.directory.place = WorkerAddress(self._options.node_id, host, port)
        await self._slot_group.start(host, port)
        self._started = True

    async def leave(self) -> None:
        """Leave the slots to others; members of other processes keep their records. Sockets are still served."""
        if not self._started:
            return
        self._service.prepare_close()
        until = self._clock.monotonic() + LEAVE_S
        await self._slot_group.leave()
        self._peers.tell_all(WorkerLeaving())
        left_s = max(until - self._clock.monotonic(), 0.0)  # leaving may have taken all the time
        await self._slot_manager.close(wait_s=left_s if self.directory.other_nodes else 0.0)

    async def close(self) -> None:
        """End; call `leave` first."""
        self.ended = True
        await self._closing.aclose()

    async def _open_cache(self, slots: int) -> tuple[int, ...]:
        """Take the first directory that no other process has; return the slots with content in it.

        Raises: StorageError
        """
        state_dir, topic_id = self._options.state_dir, self._topic.topic_id
        if state_dir is None or topic_id is None:
            return ()
        from flowshare.fleet.state.cache import SlotCache

        for number in range(PROCESSES_MAX):
            cache = SlotCache(state_dir / str(number), clock=self._clock, topic_id=topic_id)
            try:
                await cache.open()
            except StorageHeld:
                continue
            self._cache, self._instance = cache, cache.identity
            self._closing.push_async_callback(cache.close)
            return await cache.kept(slots)
        raise StorageError(f"{PROCESSES_MAX} processes have directories in {state_dir}; name another one (state_dir)")

    # --- what is asked ------------------------------------------------------------------------------------------

    def connect(self, client_id: str) -> InProcess:
        """Return a connection of this process's own members."""
        return self.server.connect_own(client_id)

    @property
    def node_id(self) -> int:
        """The node id under which this worker is known."""
        place = self.directory.place
        return self._options.node_id if place is None else place.node_id

    @property
    def sure(self) -> bool:
        """True if the slot group surely has this worker. Otherwise the worker may be wrong about the slots' leaders."""
        return self._slot_group.sure

    @property
    def served(self) -> frozenset[int]:
        """Slots that this worker leads and serves."""
        return self._slot_manager.served

    @property
    def settled(self) -> bool:
        """True if this worker serves all slots that it was chosen for. Before that, lists of groups lack some."""
        return self._slot_manager.settled

    def stats(self) -> Mapping[str, Any]:
        """Return counters and gauges of this worker's slots and groups."""
        slot_manager = self._slot_manager
        return {
            **self.server.stats(),
            **self._storage.counts(),
            "slots": len(slot_manager.served),
            "slots_claimed": slot_manager.claimed,
            "slots_lost": slot_manager.lost,
        }

    # --- the parts ----------------------------------------------------------------------------------------------

    def _build(self, slots: int, cached: tuple[int, ...]) -> None:
        """Put the parts together: service, slots, server."""
        self._tails = SlotTails(self._tail_kafka, topic=self._topic.name, clock=self._clock)
        led: dict[int, Slot] = {}
        storage = self._storage = FleetStorage(self._log, led, slots)
        if ends_transactions(self._cluster.api_versions):
            storage.write_outputs(self._cluster, self._topic.name)
        duties = self._build_service(storage)
        self._cooperative = self._cooperative_groups(storage, duties)
        self._contents = FleetSlotContents(
            service=self._service,
            settings=self.settings,
            groups=self._groups,
            log=self._log,
            slots=slots,
            cooperative=self._cooperative,
            clock=self._clock,
        )
        self._build_slots(slots, cached, led)
        self._build_server(storage, duties)

    def _build_service(self, storage: FleetStorage) -> FleetDuties:
        directory, clock = self.directory, self._clock
        limits = self._limits = FleetLimits(
            directory=directory,
            peers=self._peers,
            known_groups=self._known_groups,
            check=lambda group_id: duties.check_coordinator(group_id),
            clock=clock,
        )
        duties = FleetDuties(
            directory=directory,
            serves=lambda slot: self._slot_manager.serves(slot),
            known_groups=self._known_groups,
            ask=self._groups.ask,
            limits=limits,
            log=self._log,
            topic_name=self._topic_name,
            other_fleets=OtherFleets(self._kafka, self._options.fleet, dial=self._dial, clock=clock),
            clock=clock,
        )
        config = replace(self._options.config, return_grace_ms=self._options.config.return_grace_ms or 3_000)
        self.settings = FleetSettings(
            FleetConfig(config, ListenerLimits()),
            first=self._options.settings,
            store=storage,
            directory=directory,
            peers=self._peers,
            check=duties.check_coordinator,
            clock=clock,
        )
        self._service = ShareService(
            storage=storage,
            config=config,
            clock=clock,
            duties=duties,
            kafka=self._log,
            members_resume=True,
            leaders=lambda local: FleetLeaders(
                local=local,
                store=storage,
                directory=directory,
                peers=self._peers,
                clock=clock,
                configured=self._groups.configured,
                version=self._groups.version,
            ),
        )
        self._groups.service = limits.service = self._service
        self._service.breakers = limits
        self.settings.on_change(self._configure)
        return duties

    def _cooperative_groups(self, storage: FleetStorage, duties: FleetDuties) -> CooperativeGroups:
        """Return this worker's cooperative groups: Kafka manages their members and their ordinary offsets."""

        def check(group_id: str) -> None:
            duties.check_coordinator(group_id)
            if self._service.knows_group(group_id):
                raise InconsistentGroupProtocol(f"{group_id!r} is a share group; use another group.id")

        groups = CooperativeGroups(
            storage=storage,
            topics=self._service.topics,
            clock=self._clock,
            beside=InKafka(storage),
            budget=self._service.budget,
            stats=Stats(),
            groups_max=self._options.config.share_groups_max,
            check=check,
            exists=self._log.exists,
            follow=self._log.follow,
            unfollow=self._log.unfollow,
            ends_known=False,
        )
        self._log.on_cut(groups.cut)
        return groups

    def _configure(self, config: FleetConfig) -> None:
        self._known_groups.configure(config.server)
        self._service.configure(config.server)

    def _build_slots(self, slots: int, cached: tuple[int, ...], led: dict[int, Slot]) -> None:
        self._slot_manager = SlotManager(
            directory=self.directory,
            peers=self._peers,
            make_slot=self._slot,
            take_up=self._take_up,
            lay_down=self._lay_down,
            sure=lambda: self.sure,
            instance=self._instance,
            clock=self._clock,
            led=led,
        )
        self._slot_group = SlotGroup(
            self._cluster,
            topic=self._topic.name,
            slots=slots,
            instance=self._instance,
            node_id=self._options.node_id,
            claims=self._slot_manager.claims,
            on_map=self.directory.agreed,
            on_doubt=self._slot_manager.doubted,
            cached=cached,
            key=self._pair.mark,
            clock=self._clock,
        )

    async def _take_up(self, slot: int, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Take a slot up. The former leader is shut out first, so that none of its open settles is decided later."""
        self._storage.take_over(slot)
        await self._contents.take_up(slot, entries)

    async def _lay_down(self, slot: int) -> None:
        """Lay a slot down. Settles come first: their decisions are written with the queued writes."""
        await self._storage.lay_down(slot)
        await self._contents.lay_down(slot)

    def _build_server(self, storage: FleetStorage, duties: FleetDuties) -> None:
        service, directory = self._service, self.directory
        directory.on_left(service.coordinator.workers_left)
        configs = FleetConfigs(
            local=ConfigApis(service, storage),
            settings=self.settings,
            directory=directory,
            peers=self._peers,
            check=duties.check_coordinator,
        )
        self.calls = FleetCalls(
            service=service,
            store=storage,
            directory=directory,
            groups=self._groups,
            configs=configs,
            limits=self._limits,
            settings=self.settings,
            slot_manager=self._slot_manager,
            door=PeerDoor(self._pair, self._known, directory),
            know=self._contents.know,
            look=self._slot_group.look,
            node_id=lambda: self.node_id,
        )
        self.server = FleetServer(
            service,
            storage=storage,
            directory=directory,
            metadata=FleetMetadata(log=self._log, topics=service.topics, directory=directory, kafka=self._kafka),
            configs=configs,
            calls=self.calls,
            look=self._log.refresh,
            cooperative=self._cooperative,
        )

    def _slot(self, number: int, lost: Callable[[], object]) -> Slot:
        return Slot(
            self._kafka,
            topic=self._topic.name,
            slot=number,
            clock=self._clock,
            tails=self._tails,
            cache=self._cache,
            lease=lambda: self.sure,
            on_lost=lambda _: lost(),
        )

    def _topic_name(self, key: ShareKey) -> str | None:
        topic = self._service.topics.by_id(key.topic_id)
        return None if topic is None else topic.name
