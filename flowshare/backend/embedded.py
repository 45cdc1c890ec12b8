"""The embedded backend: one machine, no Kafka; log and state in a directory that several processes may share.

The process that has the path's lock leads: it opens the storage, serves it, listens on a loopback port and writes the
port into `owner.json`; the other processes connect there. The system drops the lock with its process, so when the
leader ends, in order or not, another process takes the lock within moments, opens the storage, and listens on the same
port if that is free.

    SEEKING -- the lock was free --> LEADING            until `close`
    LEADING -- another one leads, too --> SEEKING       where locks are not kept (`log.owner`)
    SEEKING -- the leader listens --> JOINED            until its connection ends
    JOINED  -- the connection ended --> SEEKING         trying the lock first
    any     -- the directory is gone, or another --> LOST

A LOST process leads and joins nothing any more: in an empty directory all groups would begin anew. The leader checks
the directory each second; the others check it when the leader is gone.

A process that should lead only after others (a short command, a supervisor's worker) has patience: while workers live
on the path, it tries the lock only after that time. A process that *yields* (a program that only sends, or a client)
also hands the path over in order as soon as a worker lives on it: then its work and its restarts do not touch the
workers.

    LEADING -- it yields, and a worker lives on the path --> SEEKING, with patience; not again for YIELD_AGAIN_S

Invariant: only a process that holds the lock is LEADING; a process is JOINED only while a connection to the leader
stands. `connect` waits until the process leads or has joined.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import secrets
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flowshare import processes
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
"""Seconds that the first opening waits for a leader that has the lock and cannot be reached; a new leader gets them
anew."""
FIRST_TRIES: Final = 20
"""Least number of tries of the first opening: on a busy machine a try can take seconds."""
SILENT_TRIES: Final = 2
"""Tries of a command, which does not listen, to reach a leader that does not answer; a worker makes FIRST_TRIES."""
JOIN_S: Final = 5.0
"""Seconds for a leader to prove its identity; a slower one is suspended, or its machine overloaded."""
SEEK_S: Final = 0.05
"""Seconds between two tries for the lock or the leader's address."""
SEEK_SLOW_S: Final = 0.5
"""Seconds between two tries after `SEEK_FAST_TRIES` without success."""
SEEK_FAST_TRIES: Final = 100
READY_S: Final = 5.0
"""Seconds after joining until a process loads the leader's modules, so that nobody waits when the leader ends."""
TALK_S: Final = 20.0
"""Seconds between two words of a joined process to its leader, which closes idle connections, and silent ones before
all others."""
UNANSWERED_S: Final = 86_400.0
"""Seconds that a joined process waits for the leader's answer: only the connection's end says that the leader is
gone, one that stands still goes on."""
YIELD_LOOK_S: Final = 1.0
"""Seconds between two looks for a worker, of a leader that yields."""
YIELD_AGAIN_S: Final = 60.0
"""Seconds after a yield in which the process does not yield again: it leads again as no worker took the path."""
LOOPBACK: Final = "127.0.0.1"
_SIDES: Final[tuple[Side, ...]] = ("request", "response")


class EmbeddedBackend(Backend):
    """The share groups at `path`, led by this process or by another one that has the path.

    Confirmed writes survive the death of the process (`kill -9`); with `fsync` also a power cut, at the price of one
    disk flush per group of writes.
    settings: of the broker, while this process leads.
    listen: let other processes join while this one leads; without `listen` they wait until this process has ended.
    open_to_all: while this process leads, everybody on this machine may join, read and write; else only this user's
    processes, and clients with the login in `client.properties` (`backend.path_login`).
    patience_s: seconds that a living worker comes first when nobody leads the path.
    yields: give the path to a worker as soon as one lives on it.
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
        yields: bool = False,
    ) -> None:
        self.path = Path(path)
        self._clock = clock or LoopClock()
        self._fsync = fsync
        self._settings = settings
        self._listen = listen
        self._patience_s = patience_s
        self._silent_max = FIRST_TRIES if listen else SILENT_TRIES
        self._open_to_all = open_to_all
        self._yields = yields
        self._yields_from_s = 0.0
        self._registration: Registration | None = None
        self._patient_until_s = 0.0
        self._security: Security | None = None
        """Login of this user's processes at `bootstrap`; None: no login is needed."""
        self._watched: TcpConnection | None = None
        self._known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._holder: PathOwner | None = None
        self._silent = 0
        """Number of times in a row that the leader did not answer."""
        self._led: LedPath | None = None
        self._ending: asyncio.Task[None] | None = None
        """Task that closes the led path, while it runs."""
        self._folder: OwnFolder | None = None
        """The directory that is led or joined, kept open to tell it from another one at its path."""
        self._lost: BackendError | None = None
        self._lost_listeners: list[Callable[[BackendError], object]] = []
        self.bootstrap: str | None = None
        """`host:port` where Kafka clients reach the leader of the path; None while it is not known."""

    @property
    def leading(self) -> bool:
        """True if this process leads the path now."""
        return self._led is not None

    @property
    def kafka(self) -> KafkaAddress | None:
        """Address of the path's leader, on the loopback interface; the next leader takes the same port."""
        return None if self.bootstrap is None else KafkaAddress(hosts=(self.bootstrap,), security=self._security)

    async def start(self) -> None:
        """Lead the path, or join its leader.

        Raises: StorageHeld (another process has the path and does not listen), LogError, BackendError (a server has the
        path, the leader cannot be reached, or does not answer).
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
        """Close all connections, write what is queued, release the path; harmless when it is not open."""
        async with contextlib.AsyncExitStack() as rest:  # from the last one on, even if the caller is cancelled
            rest.callback(self._let_go_of_folder)
            rest.push_async_callback(self._end_lead)
            rest.push_async_callback(self._end_watch)
            await self._unregister()

    async def _end_watch(self) -> None:
        """Follow no leader any more."""
        task, self._task = self._task, None
        try:
            await cancelled(task)
        finally:
            known, self._known = self._known, asyncio.Event()
            known.set()  # for those who wait for a leader
            watched, self._watched = self._watched, None
            self.bootstrap, self._error, self._holder, self._lost = None, None, None, None
            if watched is not None:
                await watched.close()

    async def connect(self, client_id: str) -> Connection:
        """Open a connection to the leader, this process or another; waits for a leader, so the caller bounds the wait.

        Raises: BackendError before `start` and after `close`; OSError while there is no leader: callers try again.
        """
        self._check_open()
        await self._known.wait()
        self._check_open()
        if self._lost is not None:
            raise ConnectionError(str(self._lost))
        if self._led is not None:
            connection = self._led.server.connect(client_id=client_id)
            connection.own = True  # its members hear of a dead member as soon as others do
            return connection
        if self.bootstrap is None:
            raise ConnectionError(f"{self.path}: nobody leads it at the moment")
        return await self._open(self.bootstrap, client_id, self._security)

    def _check_open(self) -> None:
        if self._task is None:
            raise BackendError("the embedded backend is not open")

    async def set_address(self, address: str, supervisor: str = "") -> None:
        """Make this worker known in the path, where `flowshare inflight` finds it. Raises: OSError."""
        await self._unregister()
        now_ms = self._clock.now_ms()
        made = partial(Registration, self.path, address=address, now_ms=now_ms, supervisor=supervisor)
        self._registration = await asyncio.to_thread(made)

    async def _unregister(self) -> None:
        before, self._registration = self._registration, None
        if before is not None:
            await asyncio.to_thread(before.remove)

    def on_lost(self, listener: Callable[[BackendError], object]) -> None:
        """Have `listener` told, once, when the path is gone while this process works on it."""
        self._lost_listeners.append(listener)

    def stats(self) -> Mapping[str, Any]:
        """Return counters and gauges, see `Server.stats`; empty while another process leads."""
        return {} if self._led is None else self._led.server.stats()

    # --- leading and joining ------------------------------------------------------------------------------------

    async def _lead(self) -> LedPath:
        """Take the path's lock, open and serve the path, on the previous port if that is free.

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
            consumer=settings.consumer,
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
        """Try once to lead or to join; return True if this process does either.

        Raises: LogError (but StorageHeld), BackendError (the holder lets nobody join).
        """
        if not await self._lead_or_join():
            return False
        self._let_go_of_folder()
        self._folder = await asyncio.to_thread(OwnFolder.found, self.path)
        self._known.set()
        return True

    async def _lead_or_join(self) -> bool:
        """Try to lead, else to join."""
        if await self._to_wait():
            return await self._join()
        try:
            self._led = await self._lead()
        except StorageHeld as held:
            self._error = held
            return await self._join(held=True)
        self.bootstrap, self._security = self._led.address, self._led.security
        return True

    async def _to_wait(self) -> bool:
        """Tell if this process must leave the lead to a worker for now."""
        if self._clock.monotonic() >= self._patient_until_s:
            return False
        return bool(await asyncio.to_thread(running_workers, self.path))

    async def _join(self, *, held: bool = False) -> bool:
        """Try to join the holder that `owner.json` names. held: the path's lock is held.

        Raises: BackendError (the holder lets nobody join).
        """
        before, self._holder = self._holder, await asyncio.to_thread(read_owner, self.path)
        owner = self._holder
        if owner is None or owner.listener is None:
            return False
        if owner.alone:
            if held and owner == before:  # twice: a new holder has the lock a moment before its name is written
                raise _served(self.path, owner)
            return False
        try:
            await asyncio.to_thread(_import_client)  # most of a second, and this loop may have timers to keep
            security = await asyncio.to_thread(_security_at, self.path, owner.listener)
            watching = self._open(owner.listener, "flowshare-watch", security, request_timeout=UNANSWERED_S)
            self._watched = await self._clock.wait_for(watching, JOIN_S)
        except TimeoutError:
            self._silent += 1
            self._error = BackendError(
                f"{self.path} is held by {owner}, which does not answer: it is stopped (kill -CONT {owner.pid} lets it "
                f"go on), or has no processor time; kill -9 {owner.pid} has another process lead, and loses nothing"
            )
            return False
        except OSError as error:
            self._error = BackendError(
                f"{self.path} is held by {owner}, which cannot be reached: {error}; stop that process, or wait for it"
            )
            return False
        self._silent = 0
        self.bootstrap, self._security = owner.listener, security
        logger.info("joined the leader of %s: %s", self.path, owner)
        return True

    async def _open(
        self, address: str, client_id: str, security: Security | None, *, request_timeout: float | None = None
    ) -> TcpConnection:
        from flowshare.client.errors import ClientError
        from flowshare.client.net.tcp import open_tcp
        from flowshare.client.settings import LinkSettings

        host, _, port = address.rpartition(":")
        try:
            connection = await open_tcp(
                host,
                int(port),
                client_id=client_id,
                clock=self._clock,
                settings=LinkSettings() if request_timeout is None else LinkSettings(request_timeout=request_timeout),
                security=security,
                process=processes.own(),
            )
        except ClientError as error:  # login failed: another process may listen there, or the secret is new
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
                await self._led_to_its_end(self._led)
                self._known.clear()
                try:
                    await self._end_lead()
                except Exception:
                    logger.exception("%s could not be closed in order", self.path)
            else:
                assert self._watched is not None
                await self._until_gone(self._watched)
                self._watched = None
                self._known.clear()
            if await asyncio.to_thread(self._is_gone):
                self._lose(told=led)
                return
            if not led:
                logger.warning("the leader of %s is gone; taking its place or joining the next one", self.path)
            await self._seek()

    async def _end_lead(self) -> None:
        """Release the path, to the end even if the caller is cancelled: cut off, it would keep the lock. A second
        caller waits for the same end."""
        led, self._led = self._led, None
        if led is not None:
            self._ending = asyncio.create_task(led.close(), name=f"let go of {self.path}")
        ending = self._ending
        if ending is not None:
            try:
                await asyncio.shield(ending)
            finally:
                if ending.done():
                    self._ending = None

    async def _until_gone(self, leader: TcpConnection) -> None:
        """Wait for the leader's end, in talks with it; a process that may lead next and has stayed joined loads the
        server's modules meanwhile."""
        talking = asyncio.create_task(self._talk(leader), name=f"talk to the leader of {self.path}")
        try:
            await self._clock.wait_for(leader.wait_closed(), READY_S if self._listen else None)
        except TimeoutError:
            await asyncio.to_thread(_import_server, listen=True)
            await leader.wait_closed()
        finally:
            await cancelled(talking)

    async def _talk(self, leader: TcpConnection) -> None:
        """Ask the leader for something small now and then, until the connection ends."""
        from flowshare.protocol.messages import MetadataRequest

        with contextlib.suppress(OSError):
            while True:
                await leader.send(MetadataRequest(topics=()))
                await self._clock.sleep(TALK_S)

    async def _led_to_its_end(self, led: LedPath) -> None:
        """Lead until the storage is lost, or until a worker should lead."""
        lost = asyncio.ensure_future(led.storage.lost.wait())
        try:
            while not lost.done():
                if self._yields and await self._is_awaited():
                    logger.info("a worker lives on %s, so it leads from now on, and this process joins it", self.path)
                    self._yields_from_s = self._clock.monotonic() + YIELD_AGAIN_S
                    return
                with contextlib.suppress(TimeoutError):
                    await self._clock.wait_for(asyncio.shield(lost), YIELD_LOOK_S if self._yields else None)
        finally:
            await cancelled(lost)

    async def _is_awaited(self) -> bool:
        """Tell if a worker runs that could lead in this process's place."""
        if self._clock.monotonic() < self._yields_from_s:
            return False
        return bool(await asyncio.to_thread(running_workers, self.path))

    def _is_gone(self) -> bool:
        try:
            return self._folder is not None and not still_there(self._folder)
        except OSError as error:
            logger.debug("%s: %s", self.path, error)
            return False

    def _lose(self, *, told: bool) -> None:
        """Stop for good: the path is gone. told: the log already has the reason."""
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


def _served(path: Path, owner: PathOwner) -> BackendError:
    return BackendError(
        f"{path} is served by {owner}, for clients: use kafka://{owner.listener} as the broker "
        f"(kafka://user:password@{owner.listener}?security=SASL_SSL where it has logins and TLS), or stop that server "
        "first, and the processes of the path share it"
    )


def _security_at(path: Path, address: str) -> Security | None:
    """Return `security_at(path, address)`. Raises: ConnectionError (the secret cannot be read)."""
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

    security: login of this user's processes at the address; None: no login is needed.
    """

    storage: EmbeddedStorage
    server: Server
    listener: Listener | None = None
    address: str | None = None
    security: Security | None = None

    async def close(self) -> None:
        """Hand over in order: members in other processes keep their records, then the lock is released."""
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
    """Return the ports to try: the previous one, then any."""
    known = preferred or (before.listener if before is not None else None)
    return (int(known.rpartition(":")[2]), 0) if known else (0,)


def _import_server(*, listen: bool) -> None:
    importlib.import_module("flowshare.log.embedded")
    importlib.import_module("flowshare.server.server")
    if listen:
        importlib.import_module("flowshare.server.net.listener")
