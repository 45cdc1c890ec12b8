"""One path, several processes: this one leads it, or is joined to the one that does.

Whoever has the path's lock opens the storage, serves it, listens on a loopback port and writes that into
`owner.json`; the others connect there. The system drops the lock with its process, so when the leader ends, in order
or not, one of the others takes it within moments, opens the storage, and listens on the same port if it is free.

    SEEKING -- the lock was free --> LEADING            until `close`
    LEADING -- another one leads, too --> SEEKING       where locks are not kept (`log.owner`)
    SEEKING -- the leader listens --> JOINED            until its connection ends
    JOINED  -- the connection ended --> SEEKING         trying the lock first

A process that others are to come before (a short command, a supervisor's worker) has patience: while workers live on
the path, it tries the lock only after that time.

Invariant: only a process that holds the lock is LEADING; a process is JOINED only while a connection to the leader
stands. `connect` waits for either.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from flowshare.backend.base import BackendError
from flowshare.backend.workers import running_workers
from flowshare.log.base import StorageHeld
from flowshare.log.owner import read_owner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from flowshare.backend.leading import Leading
    from flowshare.client.security import Security
    from flowshare.client.tcp import TcpConnection
    from flowshare.clock import Clock
    from flowshare.log.owner import Owner
    from flowshare.protocol.kafka import Side
    from flowshare.protocol.messages import Connection

logger = logging.getLogger(__name__)

FIRST_LIMIT_S: Final = 10.0
"""How long the first opening waits for a leader that has the lock but cannot be reached; for the next one anew."""
FIRST_TRIES: Final = 20
"""So often it tries at least: on a busy machine a try can take seconds."""
SEEK_S: Final = 0.05
"""Pause between two tries for the lock or the leader's address."""
SEEK_SLOW_S: Final = 0.5
"""The same after a while without success."""
SEEK_FAST_TRIES: Final = 100
_SIDES: Final[tuple[Side, ...]] = ("request", "response")


class SharedPath:
    """The path at this process's side. `start`, `close` and all else on one loop."""

    def __init__(
        self, path: Path, *, clock: Clock, lead: Callable[[str | None], Awaitable[Leading]], patience_s: float = 0.0
    ) -> None:
        """lead: takes the lock and serves, on the given `host:port` if it can. Raises: StorageHeld, LogError.

        patience_s: how long a living worker of the path is left to lead it.
        """
        self._path = path
        self._clock = clock
        self._lead = lead
        self._patience_s = patience_s
        self._patient_until_s = 0.0
        self._address: str | None = None
        self._security: Security | None = None
        self._watched: TcpConnection | None = None
        self._known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._holder: Owner | None = None
        self.leading: Leading | None = None

    @property
    def address(self) -> str | None:
        """`host:port` where the leader listens, when that is known."""
        return self._address

    @property
    def security(self) -> Security | None:
        """How this user's processes log in at `address`; None: nobody has to. Only when that is known."""
        return self._security

    async def start(self) -> None:
        """Lead or join. Raises: StorageHeld (somebody has the path and lets nobody join), LogError, BackendError."""
        deadline_s = self._clock.monotonic() + FIRST_LIMIT_S
        self._patient_until_s = self._clock.monotonic() + self._patience_s
        holder, tries = self._holder, 0
        while not await self._settle():
            tries += 1
            if holder != self._holder:
                holder, tries = self._holder, 0
                deadline_s = self._clock.monotonic() + FIRST_LIMIT_S
            elif tries >= FIRST_TRIES and self._clock.monotonic() >= deadline_s:
                raise self._error or BackendError(f"{self._path}: nobody leads it and it cannot be opened")
            await self._clock.sleep(SEEK_S)
        self._task = asyncio.create_task(self._follow(), name=f"follow {self._path}")

    async def close(self) -> None:
        """Let go of the path."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        watched, self._watched = self._watched, None
        if watched is not None:
            await watched.close()
        leading, self.leading = self.leading, None
        if leading is not None:
            await leading.close()

    async def connect(self, client_id: str) -> Connection:
        """A connection to the leader, this process or another. Raises: OSError while there is none; callers try again.

        The caller bounds the wait.
        """
        await self._known.wait()
        if self.leading is not None:
            return self.leading.connect(client_id)
        if self._address is None:
            raise ConnectionError(f"{self._path}: nobody leads it at the moment")
        return await self._open(self._address, client_id, self._security)

    async def _settle(self) -> bool:
        """One try to lead or to join; whether it came to either.

        Raises: LogError (but StorageHeld), BackendError (the leader lets nobody in without a login).
        """
        if await self._to_wait():
            return await self._join()
        try:
            self.leading = await self._lead(self._address)
        except StorageHeld as held:
            self._error = held
            return await self._join()
        self._address, self._security = self.leading.address, self.leading.security
        self._known.set()
        return True

    async def _to_wait(self) -> bool:
        """Whether it is a worker's turn to lead."""
        if self._clock.monotonic() >= self._patient_until_s:
            return False
        return bool(await asyncio.to_thread(running_workers, self._path))

    async def _join(self) -> bool:
        self._holder = owner = await asyncio.to_thread(read_owner, self._path)
        if owner is None or owner.listener is None:
            return False
        try:
            await asyncio.to_thread(_import)  # most of a second, and this loop may have timers to keep
            security = await asyncio.to_thread(_security_at, self._path, owner.listener)
            self._watched = await self._open(owner.listener, "flowshare-watch", security)
        except OSError as error:
            self._error = BackendError(
                f"{self._path} is held by {owner}, which cannot be reached: {error}; stop that process, or wait for it "
                "(a flowshare serve with TLS is reached by its address, kafka://host:port?security=SSL, only)"
            )
            return False
        if security is None and self._watched.asks_for_login:
            watched, self._watched = self._watched, None
            await watched.close()
            raise BackendError(
                f"{self._path} is held by {owner}, which asks for a login: use its address as the broker, "
                f"kafka://user:password@{owner.listener}?security=SASL_PLAINTEXT (SASL_SSL with TLS), or stop it first"
            )
        self._address, self._security = owner.listener, security
        logger.info("joined the leader of %s: %s", self._path, owner)
        self._known.set()
        return True

    async def _open(self, address: str, client_id: str, security: Security | None) -> TcpConnection:
        from flowshare.client.errors import ClientError
        from flowshare.client.settings import LinkSettings
        from flowshare.client.tcp import open_tcp

        host, _, port = address.rpartition(":")
        try:
            connection = await open_tcp(
                host, int(port), client_id=client_id, clock=self._clock, settings=LinkSettings(), security=security
            )
        except ClientError as error:  # of the login: another one may listen there, or the secret is a new one
            raise ConnectionError(
                f"what listens on {address} did not prove that it leads {self._path}: {error}"
            ) from error
        if not connection.is_flowshare:
            await connection.close()
            raise ConnectionError(f"what listens on {address} is not flowshare")
        return connection

    async def _follow(self) -> None:
        """Stay with the leader; when it is gone, lead or find the next one."""
        while True:
            if self.leading is not None:
                await self.leading.lost.wait()
                self._known.clear()
                leading, self.leading = self.leading, None
                try:
                    await leading.close()
                except Exception:
                    logger.exception("%s could not be closed in order", self._path)
            else:
                assert self._watched is not None
                await self._watched.wait_closed()
                self._watched = None
                self._known.clear()
                logger.warning("the leader of %s is gone; taking its place or joining the next one", self._path)
            await self._seek()

    async def _seek(self) -> None:
        tries = 0
        self._patient_until_s = self._clock.monotonic() + self._patience_s
        while True:
            try:
                if await self._settle():
                    return
            except Exception as error:
                if not isinstance(error, BackendError) and repr(error) != repr(self._error):
                    logger.exception("%s cannot be led from here, trying on", self._path)
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


def _import() -> None:
    from flowshare.client import tcp  # noqa: F401
    from flowshare.client.handshake import API_VERSIONS_HIGHEST
    from flowshare.protocol.kafka import entity

    for side in _SIDES:
        entity("api_versions", API_VERSIONS_HIGHEST, side)
