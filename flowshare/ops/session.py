"""The session of a command that talks to a log: backend, admin client and producer, opened and closed in order.

If a fleet has no workers at the moment, the command leads it itself (`_lead`), so that its groups can be managed while
all workers are stopped. It listens on this machine only. Workers that start meanwhile find the slots claimed, and take
them when the command ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.backend import open_backend, parse_broker
from flowshare.backend.base import NOTHING_ASKED
from flowshare.clock import LoopClock
from flowshare.ops import Failure, Reporter

if TYPE_CHECKING:
    from flowshare.backend.base import Backend, GroupNeeds
    from flowshare.backend.fleet import WorkersBackend
    from flowshare.backend.url import BrokerUrl
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.net.routing import ClusterConnection
    from flowshare.client.producer.producer import Producer
    from flowshare.client.settings import ProducerSettings
    from flowshare.clock import Clock

T = TypeVar("T")

PATIENCE_S: Final = 5.0
"""How long a command waits for one of an embedded path's workers to lead it before it opens the path itself."""
SETTLED_S: Final = 30.0
"""How long one that leads a fleet waits for all its slots."""
LOOK_S: Final = 0.02
LISTEN: Final = "127.0.0.1:0"
OF_WORKERS: Final = ("advertise", "state_dir")
"""Options of a fleet's URL that are for its workers, not for a command."""


@dataclass(slots=True)
class CommandSession:
    """An open log. `producer` is made when first asked for."""

    backend: Backend
    admin: ShareAdmin
    clock: Clock
    producer_settings: ProducerSettings | None = None
    """Of the producer, when it is made: what an app says."""
    reporter: Reporter = field(default_factory=Reporter)
    """The place where long deeds tell how they go."""
    _producer: Producer | None = None

    def send_as(self, app_path: str | None) -> None:
        """Let the producer be made as the app's, before it is asked for. Raises: AppNotFound, UsageError."""
        if app_path:
            from flowshare.agents.app.loading import load_app

            self.producer_settings = load_app(app_path).producer_settings

    @property
    def led(self) -> bool:
        """True if somebody leads the groups; False: workers should, and none of them runs."""
        return bool(getattr(serving(self.backend), "led", True))

    @property
    def leads(self) -> bool:
        """True if this process has an embedded path to itself, or leads a fleet of which no worker runs."""
        from flowshare.backend.embedded import EmbeddedBackend

        backend = serving(self.backend)
        if isinstance(backend, EmbeddedBackend):
            return backend.leading
        return getattr(backend, "worker", None) is not None

    @property
    def producer(self) -> Producer:
        """A producer on this log."""
        if self._producer is None:
            from flowshare.client.producer.producer import Producer

            self._producer = Producer(
                lambda: self.backend.connect("flowshare-cli"),
                clock=self.clock,
                settings=self.producer_settings,
                client_id="flowshare-cli",
            )
        return self._producer

    async def close(self) -> None:
        """Close what was opened, last first."""
        if self._producer is not None:
            await self._producer.close()
        await self.admin.close()
        await self.backend.close()


def serving(backend: Backend) -> Any:
    """The backend, or the one that `share=auto` chose."""
    return getattr(backend, "chosen", backend)


@asynccontextmanager
async def open_session(
    url: str | BrokerUrl,
    *,
    create: bool = False,
    groups: bool = False,
    asked: GroupNeeds = NOTHING_ASKED,
    cooperative: Collection[str] = (),
) -> AsyncIterator[CommandSession]:
    """Open the log at `url`: an embedded path beside the workers that run on it, or alone when there are none.

    create: make an embedded path, or a fleet, that does not exist; without it that is a Failure, as it would be a
    typing mistake. groups: it is about groups: where workers lead them and none runs, this process leads meanwhile.
    asked, cooperative: what an app's groups ask for, by which `share=auto` chooses.

    Raises: Failure, and what the backend refuses with (StorageHeld names the holder).
    """
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.log.owner import exists

    broker = parse_broker(url) if isinstance(url, str) else url
    path = embedded_path(broker)
    if path is not None and not create and not exists(path):
        raise Failure(f"nothing is stored at {path} yet; a worker, or `flowshare topics create`, makes it")
    clock = LoopClock()
    backend = open_backend(
        broker, clock=clock, listen=False, patience_s=PATIENCE_S, asked=asked, cooperative=cooperative
    )
    await backend.start()
    if groups and not getattr(serving(backend), "led", True):
        await backend.close()
        backend = await _lead(broker, create=create)
    session = CommandSession(backend, ShareAdmin(lambda: backend.connect("flowshare-cli"), clock=clock), clock)
    try:
        yield session
    finally:
        await session.close()


class KeptSession:
    """The session of one command that looks at a log again and again: open as long as somebody else leads the groups.
    Otherwise the path is opened, or the fleet led, and let go of after each look: a worker may come.

    Close it in the end, and after an error.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: tuple[AsyncExitStack, CommandSession] | None = None
        self.moving = False
        """True if the last look found that somebody may work on the group, so that a rate can be measured."""
        self.clock: Clock = LoopClock()

    @asynccontextmanager
    async def look(self) -> AsyncIterator[CommandSession]:
        """Yield the session for one look; open it first if needed.

        Raises: Failure, LogError, BackendError, ClientError, OSError.
        """
        if self._open is None:
            stack = AsyncExitStack()
            self._open = stack, await stack.enter_async_context(open_session(self._url, groups=True))
        try:
            yield self._open[1]
        finally:
            await self._let_go()

    @property
    def leads(self) -> bool:
        """True if this process leads in place of workers, because none runs."""
        return self._open is not None and self._open[1].leads

    async def _let_go(self) -> None:
        """A look is over: keep nothing that a worker may want."""
        self.moving = not self.leads
        if self.leads:
            await self.close()

    async def close(self) -> None:
        """Let go of what is open."""
        opened, self._open = self._open, None
        if opened is not None:
            await opened[0].aclose()


def run(
    url: str,
    function: Callable[[CommandSession], Awaitable[T]],
    *,
    create: bool = False,
    groups: bool = False,
    asked: GroupNeeds = NOTHING_ASKED,
    cooperative: Collection[str] = (),
    reporter: Reporter | None = None,
) -> T:
    """Open the log as `open_session` does, await `function(session)`, close the log. reporter: of a long deed."""

    async def call() -> T:
        async with open_session(url, create=create, groups=groups, asked=asked, cooperative=cooperative) as session:
            session.reporter = reporter or session.reporter
            return await function(session)

    return asyncio.run(call())


def embedded_path(url: str | BrokerUrl) -> Path | None:
    """The folder of an embedded broker URL; None for other kinds. Raises: what `parse_broker` refuses with."""
    parsed = parse_broker(url) if isinstance(url, str) else url
    return Path(parsed.path) if parsed.kind == "embedded" and parsed.path is not None else None


async def _lead(url: BrokerUrl, *, create: bool) -> WorkersBackend:
    """Lead the fleet in this process; returns when it leads all slots. create: also one that has no state yet.

    Raises: Failure, BackendError, OSError, ClientError.
    """
    from flowshare.backend.base import BackendError
    from flowshare.backend.fleet import WorkersBackend
    from flowshare.backend.fleet_options import fleet_of

    slots = await slots_of(url)
    if not slots and not create:
        raise Failure(
            f"the fleet {fleet_of(url)} has no state on {url} yet; a worker makes it. A fleet of another name (its "
            "app's id, unless `fleet=` in the URL says otherwise) is named by `fleet=` or by `--app`"
        )
    clock = LoopClock()
    backend = WorkersBackend(led_here(url, slots), clock=clock, lead=True)
    await backend.start()
    until_s = clock.monotonic() + SETTLED_S
    while backend.worker is not None and not backend.worker.settled:
        if clock.monotonic() > until_s:
            await backend.close()
            raise BackendError(
                f"the slots of the fleet {backend.fleet} could not all be claimed within {SETTLED_S:g} s: see whether "
                "the brokers of its state topic are well"
            )
        await clock.sleep(LOOK_S)
    return backend


async def slots_of(url: BrokerUrl) -> int:
    """How many slots the fleet has; 0: it has no state topic. Raises: OSError, ClientError."""
    from flowshare.backend.fleet_options import fleet_of
    from flowshare.fleet import inspection

    async with brokers_of(url) as kafka:
        return await inspection.slots_of(kafka, fleet_of(url))


@asynccontextmanager
async def brokers_of(url: BrokerUrl) -> AsyncIterator[ClusterConnection]:
    """A connection to the brokers of a kafka:// URL, whoever leads there. Raises: OSError, ClientError."""
    from flowshare.client.net.cluster import Cluster

    cluster = Cluster(url.hosts, clock=LoopClock(), security=url.security())
    try:
        await cluster.start()
        kafka = cluster.connect("flowshare-cli")
        try:
            yield kafka
        finally:
            await kafka.close()
    finally:
        await cluster.close()


def led_here(url: BrokerUrl, slots: int) -> BrokerUrl:
    """The URL for leading the fleet in this process. slots: that it has, 0: it is a new one."""
    left: tuple[str, ...] = OF_WORKERS
    if "listen_tls_cert" not in url.options:
        left += tuple(name for name in url.options if name.startswith(("fleet_", "listen_")))
    options = {name: text for name, text in url.options.items() if name not in left}
    if "listen_tls_cert" in options:
        options["fleet_check_hostname"] = "false"  # its certificate names another address
    if slots:
        options["slots"] = str(slots)
    return replace(url, options={**options, "share": "workers", "listen": LISTEN})
