"""The TCP listener: accepts sockets, watches their time limits, closes them in order.

One `ListenerSocket` a connection does the reading and writing. One timer for all connections checks every time limit,
so that an idle connection costs nothing.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket as sockets
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from flowshare.core_errors import FlowshareError
from flowshare.forks import hold_alone
from flowshare.log.descriptors import connections as descriptors_left
from flowshare.log.descriptors import limit_now
from flowshare.protocol.kafka import load
from flowshare.server.edge.base import AdvertisedNode
from flowshare.server.net.limits import ListenerLimits
from flowshare.server.net.memory_pool import MemoryPool
from flowshare.server.runtime.answers import Answers
from flowshare.server.runtime.turns import Places, TurnLine
from flowshare.server.security.acls import Authorizer
from flowshare.server.security.guesses import is_loopback, network_of
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from flowshare.clock import Clock, TimerHandle
    from flowshare.server.edge.base import Endpoint, ServerBehind
    from flowshare.server.net.socket import ListenerSocket
    from flowshare.server.security.sasl import Sasl

logger = logging.getLogger(__name__)

FIRST_WORDS: Final = (*(("api_versions", version) for version in range(6)), ("metadata", 1), ("metadata", 12))
"""APIs and versions of clients' first requests."""
CLOSE_S: Final = 2.0
"""Seconds that sockets get to take their last answers, and requests to end, when the listener closes."""


NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
"""Errors of `bind` for an address that this machine does not have."""
ACCEPT_AT_ONCE: Final = 50
"""Connections accepted before other work of the loop has its turn."""
LOOK_S: Final = 0.5
"""Seconds between two looks at begun requests while others wait for room."""
ACCEPT_AGAIN_S: Final = 0.5
"""Seconds before the next try after a connection could not be accepted."""
LARGE_AT_ONCE: Final = 4
"""Requests of many parts that are read and neither answered nor waiting: each takes up to some 50 MB, for less than 1
MB that the client sent."""
HANDSHAKES_MAX: Final = 256
"""TLS handshakes at a time: each may take the 256 KiB of the loop's buffer and 128 KiB of OpenSSL's, for a stranger."""
HANDSHAKE_S: Final = 1.0
"""Seconds after which a handshake gives way when other clients want to begin one."""
HANDSHAKE_AGAIN_S: Final = 0.02
"""Seconds to wait while all handshakes are younger than `HANDSHAKE_S`."""


class ListenerError(FlowshareError):
    """The listener cannot start; the error's text says how to mend that."""


class Listener:
    """Serves a `Server` to sockets. Call `start` and `close` on the server's loop; the caller closes the server."""

    def __init__(
        self,
        server: ServerBehind,
        *,
        node: AdvertisedNode | None = None,
        clock: Clock,
        limits: ListenerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        sasl: Sasl | None = None,
        authorizer: Authorizer | None = None,
        apis: Mapping[int, Endpoint] | None = None,
    ) -> None:
        """node: the broker that clients are told of; None: the address listened at (its port, too, when the node's is
        0).

        tls: wraps every socket. sasl: the logins; None: clients need no login. apis: endpoints in place of the whole
        table.
        """
        self.server = server
        self.clock = clock
        self.limits = limits or ListenerLimits()
        self.tls = tls
        self.sasl = sasl
        self._given_authorizer = authorizer
        self._descriptors = limit_now()
        self.authorizer: Authorizer = authorizer or Authorizer()
        if authorizer is not None:
            server.authorize(authorizer)
        self.pool = MemoryPool(self.limits.queued_request_bytes_max)
        self.strangers = MemoryPool(self.limits.queued_login_bytes_max)
        """Memory of clients that have to log in and have not."""
        self._looking: TimerHandle | None = None
        self.answers = Answers(*_answer_limits(self.limits))
        self.answers.unread = self._unread_bytes
        self.line = TurnLine()
        self.beside = asyncio.Lock()
        """Held while a long request is read or a long answer is written in a thread: more threads would only take the
        interpreter from the loop."""
        self.places = Places(LARGE_AT_ONCE)
        self._apis = apis
        self.unread: set[ListenerSocket] = set()
        """Sockets whose clients have more to read than allowed."""
        self.holding: set[ListenerSocket] = set()
        """Sockets that may have finished answers which clients have not read."""
        self._node = node
        self._sockets: set[ListenerSocket] = set()
        self._silent: dict[ListenerSocket, None] = {}
        """Sockets that have asked for nothing since they connected, or have to log in and have not, oldest first."""
        self._addresses: Counter[str] = Counter()
        self._handshaking: dict[ListenerSocket, None] = {}
        """Sockets whose TLS handshake is under way, oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: list[sockets.socket] = []
        self._accepting_again: dict[sockets.socket, TimerHandle] = {}
        self._timer: TimerHandle | None = None
        self._emptied: asyncio.Event = asyncio.Event()

    @cached_property
    def endpoints(self) -> Mapping[int, Endpoint]:
        """Endpoints by API key.

        Imported at the first request: an embedded path that only its own process uses never gets one, and starts in two
        thirds of the time.
        """
        apis = self._apis
        if apis is None:
            from flowshare.server.edge.table import endpoints, table

            apis = table(endpoints(clock=self.clock, sasl=self.sasl, authorizer=self._given_authorizer))
        return apis

    @property
    def node(self) -> AdvertisedNode:
        """The broker that clients are told of. Raises: ListenerError before `start` when none was given."""
        if self._node is None:
            raise ListenerError("the listener does not listen yet; start it first")
        return self._node

    def rename(self, node_id: int) -> None:
        """Advertise this node id to clients from now on; open connections keep the id that they know."""
        self._node = replace(self.node, node_id=node_id)

    @property
    def connections_max(self) -> int:
        """Most connections that may be open: `max.connections`, or as many as the process's descriptors allow."""
        return descriptors_left(self._descriptors, self.limits.connections_max)

    def _say_if_fewer(self) -> None:
        if self.connections_max < self.limits.connections_max:
            logger.warning(
                "max.connections is %d and not %d: the process may have %s descriptors open; raise that (ulimit -n)",
                self.connections_max,
                self.limits.connections_max,
                self._descriptors,
            )

    @property
    def connections(self) -> int:
        """Open sockets."""
        return len(self._sockets)

    async def load(self) -> None:
        """Import the modules that the first request needs: the import takes a second of processor time, more than some
        clients wait.

        Meant for listeners with clients of other makers; a path's own members have codecs of their own.
        """
        await asyncio.to_thread(load, FIRST_WORDS)
        await asyncio.to_thread(lambda: self.endpoints)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen at `host` and `port` (0: a free one). Return the bound address. Raises: ListenerError when it cannot
        be had."""
        self._say_if_fewer()
        try:
            self._listening = await _listen(host, port, self.limits.backlog)
        except (OSError, UnicodeError) as error:
            why = not_bound(
                error,
                host="name an address of this machine (--listen; in a fleet listen=), 0.0.0.0 for all",
                port="choose another address, or port 0 for a free one",
            )
            raise ListenerError(f"cannot listen on {host}:{port}: {why}") from error
        bound_host, bound_port = self._listening[0].getsockname()[:2]
        if self._node is None:
            self._node = AdvertisedNode(host=bound_host, port=bound_port)
        elif self._node.port == 0:
            self._node = replace(self._node, port=bound_port)
        for listening in self._listening:
            hold_alone(listening.fileno())
            self._accept_on(listening)
        self._watch()
        return bound_host, bound_port

    async def close(self) -> None:
        """Stop listening, close all connections, end work under way; harmless when the listener is not open."""
        if not self._listening:
            return
        listening, self._listening = self._listening, []
        for timer in (*self._accepting_again.values(), self._timer, self._looking):
            if timer is not None:
                timer.cancel()
        self._accepting_again.clear()
        for one in listening:
            asyncio.get_running_loop().remove_reader(one)
            one.close()
        for socket in tuple(self._sockets):
            socket.stop()
        if self._sockets or self._tasks:
            self._emptied.clear()
            try:
                await self.clock.wait_for(self._emptied.wait(), CLOSE_S)
            except TimeoutError:
                logger.warning("%d connections did not close in %g s and are cut", len(self._sockets), CLOSE_S)
        for socket in tuple(self._sockets):
            socket.abort()
        await cancelled(*self._tasks)

    def configure(self, limits: ListenerLimits) -> None:
        """Apply other limits from now on, to open connections, too; no connection is closed for that."""
        told = self.limits.connections_max
        self.limits = limits
        if limits.connections_max != told:
            self._say_if_fewer()
        self.pool.configure(limits.queued_request_bytes_max)
        self.strangers.configure(limits.queued_login_bytes_max)
        self.answers.configure(*_answer_limits(limits))
        for socket in tuple(self._sockets):
            socket.configure(limits)
        for one in self._listening:
            one.listen(limits.backlog)
        if self._timer is not None and self._listening:
            self._timer.cancel()
            self._watch()

    # Methods that sockets call.

    def forget(self, socket: ListenerSocket) -> None:
        """Remove a socket that is gone; harmless when the socket was removed before."""
        if socket not in self._sockets:
            return
        self._sockets.discard(socket)
        self._silent.pop(socket, None)
        self._handshaking.pop(socket, None)
        self.unread.discard(socket)
        self.holding.discard(socket)
        self._addresses[socket.network] -= 1
        if not self._addresses[socket.network]:
            del self._addresses[socket.network]
        self._look_whether_empty()

    def spoke(self, socket: ListenerSocket) -> None:
        """Note that a client, logged in if it has to be, has asked for something."""
        self._silent.pop(socket, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work of a socket, to its end even when the socket is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def too_much_unread(self) -> None:
        """Check unread answers after a client's grew; over the limit of all clients, close the socket with the most."""
        total = self._unread_bytes()
        if total > self.limits.queued_answer_bytes_max:
            worst = max(self.holding, key=lambda socket: socket.unread_bytes)
            worst.end(
                f"{worst.unread_bytes} bytes of answers wait for it, and {total} for all clients "
                "(queued.max.response.bytes)",
                at_once=True,
            )

    def too_many_strangers(self) -> None:
        """Check the bytes of clients that have not logged in; over the limit, close the oldest ones."""
        while self.strangers.full and (oldest := self.strangers.oldest()) is not None:
            oldest.end(
                f"{self.strangers.held} bytes came of clients that have not logged in (queued.max.login.bytes)",
                at_once=True,
            )

    def look_soon(self) -> None:
        """Look soon for begun requests without progress: a connection is not read from, as the memory of all is
        short."""
        if self._looking is None and self._listening:
            self._looking = self.clock.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = None
        for holder in self.pool.look():
            if not self.pool.waiting:
                break
            holder.end(
                "others wait for what its begun request takes, of which little comes (queued.max.request.bytes)",
                at_once=True,
            )
        if self.pool.waiting:
            self.look_soon()

    def _unread_bytes(self) -> int:
        """Return the bytes of answers that are finished and not read."""
        total = 0
        for socket in tuple(self.holding):
            count = socket.unread_bytes
            if not count:
                self.holding.discard(socket)
            total += count
        return total

    def _accept_on(self, listening: sockets.socket) -> None:
        """Accept connections for as long as the listener is open.

        The loop's own servers do not fit: they tell of a connection only when its TLS handshake is over, so that
        nothing would count it before. A task does not fit either: a cancelled task may have a socket in hand.
        """
        self._accepting_again.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: sockets.socket) -> None:
        """Accept the waiting connections, or some of many; the loop calls again while there are more."""
        for _ in range(ACCEPT_AT_ONCE):
            if not self._accept_one(listening):
                return

    def _accept_one(self, listening: sockets.socket) -> bool:
        """Accept one connection; return True if another one may be waiting."""
        from flowshare.server.net.socket import ListenerSocket  # imported at the first connection: see `endpoints`

        if not self._room_for_handshake():
            self._accept_later(listening, HANDSHAKE_AGAIN_S)
            return False
        try:
            socket, (address, port, *_) = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False  # no connection waits any more
        except OSError as error:  # the process may have no more files open
            logger.warning("a connection could not be accepted: %s", error.strerror or error)
            self._accept_later(listening, ACCEPT_AGAIN_S)
            return False
        hold_alone(socket.fileno())
        socket.setblocking(False)
        refused = self._room_for(network_of(address), own=is_loopback(address) or address == socket.getsockname()[0])
        if refused is not None:
            logger.warning("closed peer=%s:%d: %s", address, port, refused)
            socket.close()
            return True
        made = ListenerSocket(self, address, port)
        self._sockets.add(made)
        self._silent[made] = None
        self._addresses[made.network] += 1
        if self.tls is not None:
            self._handshaking[made] = None
        made.connecting = self.spawn(self._connect(made, socket))
        made.connecting.add_done_callback(lambda _: self._connected(made, socket))
        return True

    def _accept_later(self, listening: sockets.socket, seconds: float) -> None:
        asyncio.get_running_loop().remove_reader(listening)
        again = self.clock.call_later(seconds, lambda: self._accept_on(listening))
        self._accepting_again[listening] = again

    def _room_for_handshake(self) -> bool:
        """Make room for a TLS handshake, ending the oldest one if it is older than `HANDSHAKE_S`; False if there is no
        room."""
        if len(self._handshaking) < HANDSHAKES_MAX:
            return True
        oldest = next(iter(self._handshaking))
        if self.clock.monotonic() - oldest.made < HANDSHAKE_S:
            return False
        oldest.end(f"its TLS handshake took more than {HANDSHAKE_S:g} s, and others want to connect", at_once=True)
        self.forget(oldest)
        return True

    def _room_for(self, network: str, *, own: bool) -> str | None:
        """Return the reason why an address may have no further connection; None when it may. own: the address is this
        machine's.

        When all connections are taken, the oldest silent one is closed; one of this address, if the address has its
        part.
        """
        most = self.connections_max
        allowed = self.limits.connections_from(most, own=own)
        crowded = self._addresses[network] >= allowed
        if not crowded and len(self._sockets) < most:
            return None
        oldest = next((one for one in self._silent if not crowded or one.network == network), None)
        if oldest is not None:
            oldest.end("it asked for nothing, and others want to connect (max.connections)", at_once=True)
            self.forget(oldest)  # not counted any more, whenever the loop reports the closing
            return None
        if crowded:
            return f"there are {allowed} connections from {network} already (max.connections.per.ip)"
        return f"there are {most} connections already (max.connections)"

    async def _connect(self, made: ListenerSocket, socket: sockets.socket) -> None:
        seconds = self.limits.setup_max_ms / 1000 if self.tls is not None else None
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: made, socket, ssl=self.tls, ssl_handshake_timeout=seconds)
        except OSError as error:  # ssl.SSLError and time-outs among them
            made.end(f"TLS handshake failed: {error}", at_once=True)

    def _connected(self, made: ListenerSocket, socket: sockets.socket) -> None:
        """End the connecting: the loop has the connection now, or the connection is over.

        Called back rather than run at the task's end: a task that is cancelled before its first step never runs a line.
        """
        made.connecting = None
        self._handshaking.pop(made, None)
        if not made.connected:
            made.connection_lost(None)  # the loop does not call it: the protocol was not connected yet
            socket.close()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._look_whether_empty()

    def _look_whether_empty(self) -> None:
        if not self._listening and not self._sockets and not self._tasks:
            self._emptied.set()

    def _watch(self) -> None:
        """Check the time limits of all sockets, now and again later."""
        now = self.clock.monotonic()
        for socket in tuple(self._sockets):
            socket.check(now)
        limits = self.limits
        shortest_ms = min(
            limits.idle_max_ms,
            limits.setup_max_ms,
            limits.idle_max_ms if self.sasl is None else limits.login_arrival_max_ms,
            limits.arrival_max_ms,
            limits.unread_max_ms,
            limits.reauth_max_ms or limits.idle_max_ms,
        )
        self._timer = self.clock.call_later(min(shortest_ms / 4000, 5.0), self._watch)


def _answer_limits(limits: ListenerLimits) -> tuple[int, int, int]:
    return limits.queued_answer_bytes_max, limits.connection_answer_bytes_max, limits.answer_bytes_max


async def _listen(host: str, port: int, backlog: int) -> list[sockets.socket]:
    """Open sockets that listen on all addresses of a host; port 0 is the same free one for all. Raises: OSError."""
    loop = asyncio.get_running_loop()
    flags = sockets.AI_PASSIVE
    infos = await loop.getaddrinfo(host or None, port, type=sockets.SOCK_STREAM, flags=flags)
    made: list[sockets.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            one = sockets.socket(family, kind, protocol)
            made.append(one)
            one.setblocking(False)
            one.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
            if family == sockets.AF_INET6:
                one.setsockopt(sockets.IPPROTO_IPV6, sockets.IPV6_V6ONLY, 1)
            one.bind((address[0], port, *address[2:]))
            port = one.getsockname()[1]
            one.listen(backlog)
    except OSError:  # a name that is none raises UnicodeError before any socket is made
        for one in made:
            one.close()
        raise
    return made


def not_bound(error: OSError | UnicodeError, *, host: str, port: str) -> str:
    """Return why an address cannot be listened on, with what to do: `host` if this machine has no such address, `port`
    if the port cannot be had. error: of a look-up, or of `bind`."""
    if isinstance(error, UnicodeError):
        return f"no host has such a name; {host}"
    if isinstance(error, sockets.gaierror) or error.errno is None:
        return f"{error.strerror or error}; {host}"
    # The system's text alone: Python's own adds words around it.
    return f"{os.strerror(error.errno)}; {host if error.errno in NO_SUCH_ADDRESS else port}"
