"""The TCP listener: accepts sockets, watches their time, closes them in order.

One `ListenerSocket` a connection does the reading and writing. All waiting that is no more than "has this taken too
long" is one timer for all connections, so that an idle connection costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket as sockets
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from flowshare.errors import FlowshareError
from flowshare.forks import hold_alone
from flowshare.log.descriptors import connections as descriptors_left
from flowshare.log.descriptors import limit_now
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

CLOSE_S: Final = 2.0
"""Time that sockets get to take their last answers, and requests to end, when the listener closes."""


ACCEPT_AT_ONCE: Final = 50
"""Connections taken before others have their turn."""
LOOK_S: Final = 0.5
"""Time between two looks at begun requests while others wait for room."""
ACCEPT_AGAIN_S: Final = 0.5
"""Wait after a connection could not be accepted."""
LARGE_AT_ONCE: Final = 4
"""Requests of many parts that are read and neither answered nor waiting: each takes up to some 50 MB, of a client that
sent less than one."""
HANDSHAKES_MAX: Final = 256
"""TLS handshakes at a time: each may take the 256 KiB of the loop's buffer and 128 KiB of OpenSSL's, of a stranger."""
HANDSHAKE_S: Final = 1.0
"""A handshake that takes longer gives way when others want to begin."""
HANDSHAKE_AGAIN_S: Final = 0.02
"""Wait while all handshakes are younger than that."""


class ListenerError(FlowshareError):
    """The listener cannot start; the text says what to do."""


class Listener:
    """Serves a `Server` to sockets. `start` and `close` on the server's loop; the server is the caller's to close."""

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
        """node: what clients are told; None: the address listened at (its port, too, when the node's is 0).

        tls: wraps every socket. sasl: who may log in; None: nobody has to. apis: instead of the whole table.
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
        """Of who has to log in and has not."""
        self._looking: TimerHandle | None = None
        self.answers = Answers(*_answer_limits(self.limits))
        self.answers.unread = self._unread_bytes
        self.line = TurnLine()
        self.beside = asyncio.Lock()
        """Held by who reads a long request or writes a long answer beside the loop: more at once would only take the
        interpreter from it."""
        self.places = Places(LARGE_AT_ONCE)
        self._apis = apis
        self.unread: set[ListenerSocket] = set()
        """Sockets whose clients have more to read than they may."""
        self.holding: set[ListenerSocket] = set()
        """Sockets that may have answers which are finished and not read."""
        self._node = node
        self._sockets: set[ListenerSocket] = set()
        self._silent: dict[ListenerSocket, None] = {}
        """Those that have asked for nothing since they connected, or have to log in and have not, oldest first."""
        self._addresses: Counter[str] = Counter()
        self._handshaking: dict[ListenerSocket, None] = {}
        """Those whose TLS handshake is under way, oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: list[sockets.socket] = []
        self._accepting_again: dict[sockets.socket, TimerHandle] = {}
        self._timer: TimerHandle | None = None
        self._emptied: asyncio.Event = asyncio.Event()

    @cached_property
    def endpoints(self) -> Mapping[int, Endpoint]:
        """API key -> what answers it.

        Imported at the first request: an embedded path that only its own process uses never gets one, and starts in
        two thirds of the time.
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
        """The broker that clients are told of has this id; connections that are open keep the one they know."""
        self._node = replace(self.node, node_id=node_id)

    @property
    def connections_max(self) -> int:
        """Connections that there may be: `max.connections`, or what the process's descriptors leave."""
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

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; port 0: a free one. Returns where. Raises: ListenerError when the address cannot be had."""
        self._say_if_fewer()
        try:
            self._listening = await _listen(host, port, self.limits.backlog)
        except OSError as error:
            raise ListenerError(
                f"cannot listen on {host}:{port}: {_reason(error)}; choose another address, or port 0 for a free one"
            ) from error
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
        """Listen no more, close all connections, end what is under way; harmless when it is not open."""
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
        """Other limits hold from now on, for connections that are open, too; none of them is closed for it."""
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

    # What sockets ask and tell.

    def forget(self, socket: ListenerSocket) -> None:
        """A socket is gone; harmless when that is known."""
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
        """A client, logged in if it has to, has asked for something."""
        self._silent.pop(socket, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work of a socket, to its end even when the socket goes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def too_much_unread(self) -> None:
        """A client has much to read; when all of them together have too much, the worst loses its socket."""
        total = self._unread_bytes()
        if total > self.limits.queued_answer_bytes_max:
            worst = max(self.holding, key=lambda socket: socket.unread_bytes)
            worst.end(
                f"{worst.unread_bytes} bytes of answers wait for it, and {total} for all clients "
                "(queued.max.response.bytes)",
                at_once=True,
            )

    def too_many_strangers(self) -> None:
        """Who has not logged in has sent something; when all of them have sent too much, the oldest one goes."""
        while self.strangers.full and (oldest := self.strangers.oldest()) is not None:
            oldest.end(
                f"{self.strangers.held} bytes came of clients that have not logged in (queued.max.login.bytes)",
                at_once=True,
            )

    def look_soon(self) -> None:
        """A connection is not read from because of what all hold: look who only holds."""
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
        """Bytes of answers that are finished and not read."""
        total = 0
        for socket in tuple(self.holding):
            count = socket.unread_bytes
            if not count:
                self.holding.discard(socket)
            total += count
        return total

    def _accept_on(self, listening: sockets.socket) -> None:
        """Take connections for as long as the listener is open.

        Not left to the loop's own servers: those would only tell of a connection when its TLS handshake is over, and
        until then nothing would count it. Nor to a task: one that is cancelled may have a socket in hand.
        """
        self._accepting_again.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: sockets.socket) -> None:
        """Take the connections that wait, or some of many; the loop calls again while there are more."""
        for _ in range(ACCEPT_AT_ONCE):
            if not self._accept_one(listening):
                return

    def _accept_one(self, listening: sockets.socket) -> bool:
        """Whether there may be another one waiting."""
        from flowshare.server.net.socket import ListenerSocket  # not before one comes: see `endpoints`

        if not self._room_for_handshake():
            self._accept_later(listening, HANDSHAKE_AGAIN_S)
            return False
        try:
            socket, (address, port, *_) = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False  # none there any more
        except OSError as error:  # the process may have no more files open
            logger.warning("a connection could not be accepted: %s", _reason(error))
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
        """Whether a TLS handshake may begin; the oldest one goes for it if it has had its time."""
        if len(self._handshaking) < HANDSHAKES_MAX:
            return True
        oldest = next(iter(self._handshaking))
        if self.clock.monotonic() - oldest.made < HANDSHAKE_S:
            return False
        oldest.end(f"its TLS handshake took more than {HANDSHAKE_S:g} s, and others want to connect", at_once=True)
        self.forget(oldest)
        return True

    def _room_for(self, network: str, *, own: bool) -> str | None:
        """Why there may be no further connection from an address; None when there may. own: it is this machine's.

        Where all are taken the oldest one goes of those that were only made; of this address, if it has its part.
        """
        most = self.connections_max
        allowed = self.limits.connections_from(most, own=own)
        crowded = self._addresses[network] >= allowed
        if not crowded and len(self._sockets) < most:
            return None
        oldest = next((one for one in self._silent if not crowded or one.network == network), None)
        if oldest is not None:
            oldest.end("it asked for nothing, and others want to connect (max.connections)", at_once=True)
            self.forget(oldest)  # it counts no more, whenever the loop says that it is gone
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
        """The connection is the loop's now, or it is over.

        A callback, not the end of the task: a task that is cancelled before its first step never runs a line.
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
        """Look at the time of all sockets, now and again later."""
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
    """Sockets that listen on all addresses of a host; port 0 is the same free one for all. Raises: OSError."""
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
    except OSError:
        for one in made:
            one.close()
        raise
    return made


def _reason(error: OSError) -> str:
    """What the system says, without the loop's own words around it."""
    if isinstance(error, sockets.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)
