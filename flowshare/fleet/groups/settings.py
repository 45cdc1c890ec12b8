"""A fleet's own settings: defaults and bounds of its share groups, and the limits of its workers' listeners.

They are stored as the settings of the group without a name, which no group can be (Kafka's default broker has no name
either), in the slot of that name; the slot's leader writes them and tells all others.

    the slot is claimed     read; if none were ever set, the broker URL's are written; told
    altered                 checked, written, told
    a worker starts         asks the slot's leader, and again every `ASK_S`: a telling may be lost

Invariant: a worker acts by the settings with the highest (epoch of the slot's claim, count) that it heard of, so that a
late telling undoes nothing; and a slot is served only when they are known, or after `KNOW_S` (then with a warning).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from flowshare.client.errors import ClientError
from flowshare.core_errors import InvalidConfig
from flowshare.fleet.directory import NOBODY
from flowshare.fleet.messages import (
    AlterFleetSettings,
    FleetSettingsChanged,
    FleetSettingsRequest,
    FleetSettingsResponse,
    Version,
)
from flowshare.log.base import LogError
from flowshare.protocol.messages import ConfigEntry, Response
from flowshare.server.net.limits import KIB, LISTENER_CONFIGS, ListenerLimits
from flowshare.server.runtime.failures import Refused
from flowshare.server.share.group_configs import PREFIX
from flowshare.share.config import EMBEDDED_CONFIGS, ServerConfig
from flowshare.share.settings import Setting, unknown
from flowshare.slots.placement import group_slot
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.peers import Peers
    from flowshare.log.base import StateStore

NAME: Final = ""
"""The name of the group as whose settings they are stored."""
KEY: Final = PREFIX + NAME.encode()
ASK_S: Final = 5.0
PAUSE_S: Final = 0.1
CALL_S: Final = 2.0
KNOW_S: Final = 3.0

NOT_OF_FLEETS: Final = frozenset(
    {
        "auto.create.topics.enable",
        "num.partitions",
        "max.partitions",
        "max.request.new.partitions",
        "controller_mutation_rate",
        "controller.quota.window.num",
        "controller.quota.window.size.seconds",
        "share.acquire.durable",
        "group.share.assignors",
        "group.share.initialize.retry.interval.ms",
        "share.coordinator.snapshot.update.records.per.snapshot",
    }
)
"""Settings of servers that a fleet cannot choose: topics are the brokers', writes are the slots'."""

LEAST: Final[Mapping[str, int]] = {
    "max.connections": 100,
    "max.connections.per.ip": 100,
    "socket.request.max.bytes": 64 * KIB,
    "socket.plain.request.max.bytes": 64 * KIB,
    "queued.max.request.bytes": 1024 * KIB,
    "connection.queued.max.request.bytes": 64 * KIB,
    "connection.queued.max.response.bytes": 64 * KIB,
    "queued.max.response.bytes": 1024 * KIB,
    "connections.max.idle.ms": 10_000,
    "connection.setup.max.ms": 1_000,
    "sasl.server.max.receive.size": 4 * KIB,
    "queued.max.login.bytes": 256 * KIB,
    "login.arrival.max.ms": 1_000,
    "request.arrival.max.ms": 1_000,
    "response.unread.max.ms": 1_000,
    "group.share.return.grace.ms": 1_000,
}
"""Least values: a fleet's workers reach each other through their listeners, and so does a client that would mend a
limit."""

FLEET_CONFIGS: Final[Mapping[str, Setting]] = {
    name: replace(setting, low=LEAST.get(name, setting.low))
    for name, setting in {**EMBEDDED_CONFIGS, **LISTENER_CONFIGS}.items()
    if name not in NOT_OF_FLEETS
}
"""Name -> setting that a fleet may have."""


logger = logging.getLogger(__name__)


class FleetConfig(NamedTuple):
    """Settings that a worker follows."""

    server: ServerConfig
    limits: ListenerLimits

    def changed(self, values: Mapping[str, str]) -> FleetConfig:
        """Return these settings with changes. Raises InvalidConfig (unknown, out of bounds, a contradiction)."""
        for name in values:
            if name not in FLEET_CONFIGS:
                raise unknown(name, FLEET_CONFIGS)
        limits = {
            FLEET_CONFIGS[name].field: FLEET_CONFIGS[name].parse(text)
            for name, text in values.items()
            if name in LISTENER_CONFIGS
        }
        server = {name: text for name, text in values.items() if name not in LISTENER_CONFIGS}
        return FleetConfig(self.server.changed(server, table=FLEET_CONFIGS), replace(self.limits, **limits))

    def entries(self, set_: Mapping[str, str]) -> tuple[ConfigEntry, ...]:
        """Return all settings with their values in effect. set_: those that were set."""
        return tuple(
            ConfigEntry(
                name=name,
                value=setting.text(getattr(self.limits if name in LISTENER_CONFIGS else self.server, setting.field)),
                is_default=name not in set_,
                documentation=setting.doc,
            )
            for name, setting in sorted(FLEET_CONFIGS.items())
        )


def check_settings(values: Mapping[str, str]) -> None:
    """Check settings. Raises InvalidConfig."""
    FleetConfig(ServerConfig.embedded(), ListenerLimits()).changed(values)


@dataclass(eq=False)
class FleetSettings:
    """A worker's copy of the fleet's settings, and their writer where their slot is led.

    default: the settings without any set. first: the broker URL's, for a fleet that never had settings.
    check: raises Refused when a group is not coordinated here. Raises InvalidConfig (first).
    """

    default: FleetConfig
    _: KW_ONLY
    first: Mapping[str, str]
    store: StateStore
    directory: Directory
    peers: Peers
    check: Callable[[str], None]
    clock: Clock

    def __post_init__(self) -> None:
        self._version: Version = (-1, 0)
        self._stored: dict[str, str] | None = None
        self._counts = itertools.count(1)
        self._writing = asyncio.Lock()
        self._known = asyncio.Event()
        self._heard: list[Callable[[FleetConfig], object]] = []
        self._warned: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        self.slot = group_slot(NAME, self.directory.slots)
        self.acting = self.default.changed(self.first)
        """The settings that this worker follows: those of its URL, until it hears of others."""

    def on_change(self, listener: Callable[[FleetConfig], object]) -> None:
        """Call `listener` with the settings in effect, now and after each change."""
        self._heard.append(listener)
        listener(self.acting)

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(self._ask_on(), name="settings of the fleet")

    async def close(self) -> None:
        """Stop asking."""
        await cancelled(self._task)

    async def known(self) -> None:
        """Wait until the settings are known, or for `KNOW_S`."""
        if self._known.is_set():
            return
        try:
            await self.clock.wait_for(self._known.wait(), KNOW_S)
        except TimeoutError:
            logger.warning("the fleet's settings cannot be learned now; until then its workers act by the defaults")
            self._known.set()  # one wait is enough: others serve by now

    # --- what is asked --------------------------------------------------------------------------------------------

    def entries(self) -> tuple[ConfigEntry, ...]:
        """Return all settings with their values in effect here."""
        return self.acting.entries(self._stored or {})

    async def refresh(self) -> None:
        """Fetch the present settings, if the slot's leader can be asked."""
        node = self.directory.group_leader(NAME)
        if node == NOBODY or self.directory.is_me(node):
            return
        try:
            self._hear(await self.peers.call(node, FleetSettingsRequest(), limit_s=CALL_S))
        except (OSError, ClientError) as error:
            logger.debug("settings of the fleet are not told: %s", error)

    async def alter(
        self, changes: Mapping[str, str | None], *, validate_only: bool = False, first: bool = False
    ) -> None:
        """Set (None: unset) settings, all or none; first: only if none were ever set.

        Raises: InvalidConfig, Refused, ClientError, LogError.
        """
        request = AlterFleetSettings(changes=dict(changes), validate_only=validate_only, first=first)
        self._hear(await self.peers.ask_coordinator(NAME, request, lambda: self.answer_set(request)))

    # --- asking -------------------------------------------------------------------------------------------------

    async def _ask_on(self) -> None:
        while True:
            try:
                await self.refresh()
                if self._stored is None and self.first and self._version[0] >= 0:
                    await self._offer()
            except Exception:  # an answer that cannot be read
                logger.exception("the fleet's settings cannot be learned now, tried again in %g s", ASK_S)
                await self.clock.sleep(ASK_S)
            await self.clock.sleep(ASK_S if self._known.is_set() else PAUSE_S)

    async def _offer(self) -> None:
        """Set the URL's settings, because none were ever set."""
        try:
            await self.alter(self.first, first=True)
        except (OSError, ClientError, LogError, Refused, InvalidConfig) as error:
            logger.debug("the URL's settings are not set now: %s", error)

    # --- hearing ------------------------------------------------------------------------------------------------

    async def told(self, request: FleetSettingsChanged) -> Response:
        """Take in settings that the slot's leader tells."""
        self._hear(request)
        return Response()

    def _hear(self, told: FleetSettingsChanged | FleetSettingsResponse) -> None:
        self._learn(told.version, None if told.settings is None else dict(told.settings))

    def _learn(self, version: Version, stored: dict[str, str] | None) -> None:
        if version <= self._version:
            return
        self._version, self._stored = version, stored
        if stored is not None or not self.first:
            self._act(stored or {})
            self._compare(stored or {})
            self._known.set()

    def _act(self, stored: Mapping[str, str]) -> None:
        acting = self._effective(stored)
        if acting != self.acting:
            told = " ".join(f"{name}={text}" for name, text in sorted(stored.items()))
            logger.info("the fleet has other settings from now on: %s", told or "the defaults")
            self.acting = acting
            for listener in self._heard:
                listener(acting)

    def _effective(self, stored: Mapping[str, str]) -> FleetConfig:
        """Return the settings in effect. Stored settings of another version that this worker cannot follow are left
        out, with an error in the log."""
        acting = self.default
        try:
            return acting.changed(stored)
        except InvalidConfig:
            pass  # one by one
        for name, text in sorted(stored.items()):
            try:
                acting = acting.changed({name: text})
            except InvalidConfig as error:
                logger.error("a setting of the fleet is not followed by this worker: %s", error)  # noqa: TRY400
        return acting

    def _compare(self, stored: Mapping[str, str]) -> None:
        """Warn once that the URL's settings are not followed."""
        differ = {name: text for name, text in self.first.items() if stored.get(name) != text}
        if differ and differ != self._warned:
            logger.warning(
                "the fleet has settings of its own, so those in this worker's broker URL are not heeded; "
                "`flowshare fleet config %s` sets them",
                " ".join(f"{name}={text}" for name, text in sorted(differ.items())),
            )
        self._warned = differ

    # --- as the owner of the slot ---------------------------------------------------------------------------------

    async def take_up(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in the settings of the slot that was claimed here. Raises NotLed, LogError."""
        value = next((value for key, value in entries if key == KEY), None)
        stored: dict[str, str] | None = None
        if value is not None:
            try:
                stored = {str(name): str(text) for name, text in orjson.loads(value).items()}
            except (ValueError, AttributeError) as error:
                logger.error("what is stored of the fleet's settings cannot be read (%s); set them anew", error)  # noqa: TRY400
                stored = {}
        elif self.first:
            stored = dict(self.first)
            await self.store.write([(KEY, orjson.dumps(stored))])
        self._learn((self.directory.group_epoch(NAME), next(self._counts)), stored)
        self._tell()

    async def answer(self, _: FleetSettingsRequest) -> FleetSettingsResponse:
        """Return the settings, at the worker that leads their slot. Raises: Refused."""
        self.check(NAME)
        return self._told()

    async def answer_set(self, request: AlterFleetSettings) -> FleetSettingsResponse:
        """Set settings, where the slot is led. Raises Refused, InvalidConfig, LogError."""
        self.check(NAME)
        changes = request.changes
        async with self._writing:
            before = self._stored or {}
            if request.first and self._stored is not None:
                return self._told()
            wanted = {name: text for name, text in {**before, **changes}.items() if text is not None}
            # Settings from workers of a later version are kept, as long as no change names them.
            self.default.changed(
                {name: text for name, text in wanted.items() if name in FLEET_CONFIGS or name in changes}
            )
            for name in changes:
                if name not in FLEET_CONFIGS and name not in before:
                    raise unknown(name, FLEET_CONFIGS)
            if not request.validate_only:
                await self.store.write([(KEY, orjson.dumps(wanted))])
                self._learn((self._version[0], next(self._counts)), wanted)
                self._tell()
            return self._told()

    def _told(self) -> FleetSettingsResponse:
        return FleetSettingsResponse(version=self._version, settings=self._stored)

    def _tell(self) -> None:
        self.peers.tell_all(FleetSettingsChanged(version=self._version, settings=self._stored))
