"""The embedded backend: one machine, no Kafka; log and state in a directory that several processes may share.

Whoever has the path's lock opens the storage, serves it, listens on a loopback port and writes that into
`owner.json`; the others connect there. The system drops the lock with its process, so when the leader ends, in order
or not, one of the others takes it within moments, opens the storage, and listens on the same port if it is free.

    SEEKING -- the lock was free --> LEADING            until `close`
    LEADING -- another one leads, too --> SEEKING       where locks are not kept (`log.owner`)
    SEEKING -- the leader listens --> JOINED            until its connection ends
    JOINED  -- the connection ended --> SEEKING         trying the lock first
    any     -- the directory is gone, or another --> LOST

Who is LOST leads and joins nothing any more: in an empty directory all groups would begin anew. It is looked for by who
leads, each second, and by the others when that one is gone.

A process that others are to come before (a short command, a supervisor's worker) has patience: while workers live on
the path, it tries the lock only after that time.

Invariant: only a process that holds the lock is LEADING; a process is JOINED only while a connection to the leader
stands. `connect` waits for either.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flowshare.backend.base import EMBEDDED, Backend, BackendError, KafkaAddress
from flowshare.backend.path_workers import Registration, running_workers
from flowshare.clock import LoopClock
from flowshare.log.base import StorageError, StorageHeld
from flowshare.log.folder import OwnFolder
from flowshare.log.owner import GONE, read_owner, still_there
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from flowshare.backend.path_login import PathDoor
    from flowshare.client.net.security import Security
    from flowshare.client.net.tcp import TcpConnection
    from flowshare.clock import Clock
    from flowshare.log.embedded import EmbeddedStorage
    from flowshare.log.owner import PathOwner
    from flowshare.protocol.kafka import Side
    from flowshare.protocol.messages import Connection
    from flowshare.server.net.limits import ListenerLimits
    from flowshare.server.net.listener import Listener
    from flowshare.server.server import Server
    from flowshare.server.settings import Settings

logger = logging.getLogger(__name__)

FIRST_LIMIT_S: Final = 10.0
"""How long the first opening waits for a leader that has the lock but cannot be reached; for the next one anew."""
FIRST_TRIES: Final = 20
"""So often it tries at least: on a busy machine a try can take seconds."""
SILENT_TRIES: Final = 2
"""So often a command, which does not listen, waits for a leader's answer; a worker does for as long as it tries."""
JOIN_S: Final = 5.0
"""How long a leader may take to prove who it is; one that takes longer is stopped, or its machine has no time."""
SEEK_S: Final = 0.05
"""Pause between two tries for the lock or the leader's address."""
SEEK_SLOW_S: Final = 0.5
"""The same after a while without success."""
SEEK_FAST_TRIES: Final = 100
LOOPBACK: Final = "127.0.0.1"
_SIDES: Final[tuple[Side, ...]] = ("request", "response")


class EmbeddedBackend(Backend):
    """The share groups at `path`, led by this process or by another one that has the path.

    What was confirmed survives the death of the process (`kill -9`); with `fsync` also a power cut, at the price of
    one disk flush a group of writes.
    settings: of the broker, while this process leads.
    listen: let other processes join while this one leads; without it they wait until it has ended.
    open_to_all: while this one leads, everybody on this machine may join and read and write; else this user's processes
    only, and who has the login in `client.properties` (`backend.path_login`).
    patience_s: how long others come first when nobody leads the path and a worker lives that could.
    """

    kind = "embedded"
    capabilities = EMBEDDED

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        fsync: bool = False,
        settings: Settings | None = None,
        listen: bool = True,
        patience_s: float = 0.0,
        open_to_all: bool = False,
    ) -> None:
        self.path = Path(path)
        self._clock = clock or LoopClock()
        self._fsync = fsync
        self._settings = settings
        self._listen = listen
        self._patience_s = patience_s
        self._silent_max = FIRST_TRIES if listen else SILENT_TRIES
        self._open_to_all = open_to_all
        self._registration: Registration | None = None
        self._patient_until_s = 0.0
        self._security: Security | None = None
        """How this user's processes log in at `bootstrap`; None: nobody has to."""
        self._watched: TcpConnection | None = None
        self._known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._holder: PathOwner | None = None
        self._silent = 0
        """How often in a row the leader did not answer."""
        self._led: LedPath | None = None
        self._folder: OwnFolder | None = None
        """The directory that is led or joined, open, so that it is told from another one at its path."""
        self._lost: BackendError | None = None
        self._lost_listeners: list[Callable[[BackendError], object]] = []
        self.bootstrap: str | None = None
        """`host:port` where Kafka clients reach the leader of the path; None while it is not known."""

    @property
    def leading(self) -> bool:
        """Whether this process leads the path now."""
        return self._led is not None

    @property
    def kafka(self) -> KafkaAddress | None:
        """The leader of the path, on the loopback interface; whoever leads next takes its port."""
        return None if self.bootstrap is None else KafkaAddress(hosts=(self.bootstrap,), security=self._security)

    async def start(self) -> None:
        """Lead the path, or join the process that does.

        Raises: StorageHeld (somebody has the path and lets nobody join), LogError, BackendError.
        """
        if self._task is not None:
            raise BackendError("the embedded backend is open already")
        try:
            await self._settled()
        except BaseException:
            await self.close()
            raise
        self._task = asyncio.create_task(self._follow(), name=f"follow {self.path}")

    async def _settled(self) -> None:
        deadline_s = self._clock.monotonic() + FIRST_LIMIT_S
        self._patient_until_s = self._clock.monotonic() + self._patience_s
        holder, tries = self._holder, 0
        while not await self._settle():
            tries += 1
            if holder != self._holder:
                holder, tries = self._holder, 0
                deadline_s = self._clock.monotonic() + FIRST_LIMIT_S
            elif (tries >= FIRST_TRIES or self._silent >= self._silent_max) and self._clock.monotonic() >= deadline_s:
                raise self._error or BackendError(f"{self.path}: nobody leads it and it cannot be opened")
            await self._clock.sleep(SEEK_S)

    async def close(self) -> None:
        """Close all connections, write what is queued, let go of the path; harmless when it is not open."""
        await self._unregister()
        task, self._task = self._task, None
        await cancelled(task)
        watched, self._watched = self._watched, None
        if watched is not None:
            await watched.close()
        led, self._led = self._led, None
        if led is not None:
            await led.close()
        self._let_go_of_folder()
        self._known, self.bootstrap, self._error, self._holder = asyncio.Event(), None, None, None
        self._lost = None

    async def connect(self, client_id: str) -> Connection:
        """A connection to the leader, this process or another; waits for one, so the caller bounds the wait.

        Raises: BackendError before `start` and after `close`, OSError while there is no leader: callers try again.
        """
        if self._task is None:
            raise BackendError("the embedded backend is not open")
        await self._known.wait()
        if self._lost is not None:
            raise ConnectionError(str(self._lost))
        if self._led is not None:
            return self._led.server.connect(client_id=client_id)
        if self.bootstrap is None:
            raise ConnectionError(f"{self.path}: nobody leads it at the moment")
        return await self._open(self.bootstrap, client_id, self._security)

    async def set_address(self, address: str) -> None:
        """Make this worker known in the path, where `flowshare inflight` finds it. Raises: OSError."""
        await self._unregister()
        now_ms = self._clock.now_ms()
        self._registration = await asyncio.to_thread(Registration, self.path, address=address, now_ms=now_ms)

    async def _unregister(self) -> None:
        before, self._registration = self._registration, None
        if before is not None:
            await asyncio.to_thread(before.remove)

    def on_lost(self, listener: Callable[[BackendError], object]) -> None:
        """Have `listener` told, once, when the path is gone while this process works on it."""
        self._lost_listeners.append(listener)

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges, see `Server.stats`; empty while another process leads."""
        return {} if self._led is None else self._led.server.stats()

    # --- leading and joining ------------------------------------------------------------------------------------

    async def _lead(self) -> LedPath:
        """Take the path's lock, open and serve it, on the port of before if it is free.

        Raises: StorageHeld, LogError.
        """
        await asyncio.to_thread(_import_server, listen=self._listen)  # this loop may have timers to keep
        from flowshare.log.embedded import EmbeddedStorage
        from flowshare.server.server import Server
        from flowshare.server.settings import Settings

        settings = self._settings or Settings.parse({})
        storage = await EmbeddedStorage.open(self.path, clock=self._clock, fsync=self._fsync)
        server = Server(
            storage=storage,
            config=settings.server,
            clock=self._clock,
            classic=settings.classic,
            transactions=settings.transactions,
        )
        led = LedPath(storage, server)
        try:
            await server.start()
            if self._listen:
                door = None if self._open_to_all else await _door(storage, self._clock)
                ports = _ports(self.bootstrap, storage.owner_before)
                led = await _listen(storage, server, self._clock, settings.limits, ports, door)
                await storage.set_listener(led.address, secret=door is not None)
        except BaseException as error:
            await asyncio.shield(led.close())
            if isinstance(error, OSError):
                raise StorageError(f"{self.path} cannot be used as a storage: {error}") from error
            raise
        return led

    async def _settle(self) -> bool:
        """One try to lead or to join; whether it came to either.

        Raises: LogError (but StorageHeld), BackendError (the leader lets nobody in without a login).
        """
        if not await self._lead_or_join():
            return False
        self._let_go_of_folder()
        self._folder = await asyncio.to_thread(OwnFolder.found, self.path)
        self._known.set()
        return True

    async def _lead_or_join(self) -> bool:
        """As `_settle`."""
        if await self._to_wait():
            return await self._join()
        try:
            self._led = await self._lead()
        except StorageHeld as held:
            self._error = held
            return await self._join()
        self.bootstrap, self._security = self._led.address, self._led.security
        return True

    async def _to_wait(self) -> bool:
        """Whether it is a worker's turn to lead."""
        if self._clock.monotonic() >= self._patient_until_s:
            return False
        return bool(await asyncio.to_thread(running_workers, self.path))

    async def _join(self) -> bool:
        self._holder = owner = await asyncio.to_thread(read_owner, self.path)
        if owner is None or owner.listener is None:
            return False
        try:
            await asyncio.to_thread(_import_client)  # most of a second, and this loop may have timers to keep
            security = await asyncio.to_thread(_security_at, self.path, owner.listener)
            self._watched = await self._clock.wait_for(self._open(owner.listener, "flowshare-watch", security), JOIN_S)
        except TimeoutError:
            self._silent += 1
            self._error = BackendError(
                f"{self.path} is held by {owner}, which does not answer: it is stopped (kill -CONT {owner.pid} lets it "
                f"go on), or has no processor time; kill -9 {owner.pid} has another process lead, and loses nothing"
            )
            return False
        except OSError as error:
            self._error = BackendError(
                f"{self.path} is held by {owner}, which cannot be reached: {error}; stop that process, or wait for it "
                "(a flowshare serve with TLS is reached by its address, kafka://host:port?security=SSL, only)"
            )
            return False
        self._silent = 0
        if security is None and self._watched.asks_for_login:
            watched, self._watched = self._watched, None
            await watched.close()
            raise BackendError(
                f"{self.path} is held by {owner}, which asks for a login: use its address as the broker, "
                f"kafka://user:password@{owner.listener}?security=SASL_PLAINTEXT (SASL_SSL with TLS), or stop it first"
            )
        self.bootstrap, self._security = owner.listener, security
        logger.info("joined the leader of %s: %s", self.path, owner)
        return True

    async def _open(self, address: str, client_id: str, security: Security | None) -> TcpConnection:
        from flowshare.client.errors import ClientError
        from flowshare.client.net.tcp import open_tcp
        from flowshare.client.settings import LinkSettings

        host, _, port = address.rpartition(":")
        try:
            connection = await open_tcp(
                host, int(port), client_id=client_id, clock=self._clock, settings=LinkSettings(), security=security
            )
        except ClientError as error:  # of the login: another one may listen there, or the secret is a new one
            raise ConnectionError(
                f"what listens on {address} did not prove that it leads {self.path}: {error}"
            ) from error
        if not connection.is_flowshare:
            await connection.close()
            raise ConnectionError(f"what listens on {address} is not flowshare")
        return connection

    async def _follow(self) -> None:
        """Stay with the leader; when it is gone, lead or find the next one, unless the path is gone."""
        while True:
            led = self._led is not None
            if self._led is not None:
                await self._led.storage.lost.wait()
                self._known.clear()
                leading, self._led = self._led, None
                try:
                    await leading.close()
                except Exception:
                    logger.exception("%s could not be closed in order", self.path)
            else:
                assert self._watched is not None
                await self._watched.wait_closed()
                self._watched = None
                self._known.clear()
            if await asyncio.to_thread(self._is_gone):
                self._lose(told=led)
                return
            if not led:
                logger.warning("the leader of %s is gone; taking its place or joining the next one", self.path)
            await self._seek()

    def _is_gone(self) -> bool:
        try:
            return self._folder is not None and not still_there(self._folder)
        except OSError as error:
            logger.debug("%s: %s", self.path, error)
            return False

    def _lose(self, *, told: bool) -> None:
        """Nothing is led or joined any more. told: the log has why."""
        self._lost = BackendError(f"{self.path} {GONE}")
        if not told:
            logger.critical("%s", self._lost)
        self._known.set()
        for listener in self._lost_listeners:
            listener(self._lost)

    def _let_go_of_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()

    async def _seek(self) -> None:
        tries = 0
        self._patient_until_s = self._clock.monotonic() + self._patience_s
        while True:
            try:
                if await self._settle():
                    return
            except Exception as error:
                if not isinstance(error, BackendError) and repr(error) != repr(self._error):
                    logger.exception("%s cannot be led from here, trying on", self.path)
                self._error = error
            tries += 1
            if tries == SEEK_FAST_TRIES:
                logger.error("still without a leader: %s", self._error)
            await self._clock.sleep(SEEK_S if tries < SEEK_FAST_TRIES else SEEK_SLOW_S)


def _security_at(path: Path, address: str) -> Security | None:
    """Raises: ConnectionError (the secret cannot be read)."""
    from flowshare.backend.path_login import NoLogin, security_at

    try:
        return security_at(path, address)
    except NoLogin as error:
        raise ConnectionError(str(error)) from error


def _import_client() -> None:
    from flowshare.client.net import tcp  # noqa: F401
    from flowshare.client.net.handshake import API_VERSIONS_HIGHEST
    from flowshare.protocol.kafka import entity

    for side in _SIDES:
        entity("api_versions", API_VERSIONS_HIGHEST, side)


@dataclass(slots=True)
class LedPath:
    """A path that this process leads: storage, server and, if others may join, a listener on a loopback port.

    security: how this user's processes log in at the address; None: nobody has to.
    """

    storage: EmbeddedStorage
    server: Server
    listener: Listener | None = None
    address: str | None = None
    security: Security | None = None

    async def close(self) -> None:
        """Hand over in order: members elsewhere keep what they hold, then the lock is let go."""
        self.server.prepare_close()
        try:
            if self.listener is not None:
                await self.listener.close()
        finally:
            self.storage.prepare_close()
            try:
                await self.server.close()
            finally:
                await self.storage.close()


async def _door(storage: EmbeddedStorage, clock: Clock) -> PathDoor:
    from flowshare.backend.path_login import make_logins, open_door

    logins = await asyncio.to_thread(make_logins, storage.folder, secrets.token_urlsafe)
    return await open_door(logins, clock)


async def _listen(
    storage: EmbeddedStorage,
    server: Server,
    clock: Clock,
    limits: ListenerLimits,
    ports: tuple[int, ...],
    door: PathDoor | None,
) -> LedPath:
    from flowshare.server.edge.base import AdvertisedNode
    from flowshare.server.net.listener import Listener, ListenerError
    from flowshare.server.server import cluster_id

    # A path's logins change only while nobody leads it, and aiokafka, Faust's client, cannot log in again (KIP-368).
    limits = replace(limits, reauth_max_ms=None)
    node = AdvertisedNode(host=LOOPBACK, port=0, cluster_id=await cluster_id(storage))
    for port in ports:
        listener = Listener(server, node=node, clock=clock, limits=limits, sasl=None if door is None else door.sasl())
        try:
            host, bound = await listener.start(LOOPBACK, port)
        except ListenerError as error:
            if port == ports[-1]:
                raise
            logger.warning("port %d of before is taken, another one is used: %s", port, error)
            continue
        # Nobody was let in yet: sockets are accepted when this loop goes on.
        address = f"{host}:{bound}"
        return LedPath(storage, server, listener, address, None if door is None else door.bound(address))
    raise AssertionError("the last port is any free one")


def _ports(preferred: str | None, before: PathOwner | None) -> tuple[int, ...]:
    """Ports to try: that of before, then any."""
    known = preferred or (before.listener if before is not None else None)
    return (int(known.rpartition(":")[2]), 0) if known else (0,)


def _import_server(*, listen: bool) -> None:
    importlib.import_module("flowshare.log.embedded")
    importlib.import_module("flowshare.server.server")
    if listen:
        importlib.import_module("flowshare.server.net.listener")
