"""One socket: bytes to frames, frames to calls, answers back in the order of their requests.

Requests are accepted in the order in which they came. A client that names itself `flowshare` gets each answer as soon
as the answer is ready (such a client tells answers apart by correlation id); all others get theirs in the order of
their requests.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, Any, Final, cast

from flowshare.protocol.client_software import OWN_SOFTWARE
from flowshare.protocol.kafka import ApiKey, RequestStart, request_start
from flowshare.protocol.walk import TooManyParts
from flowshare.server.edge.api_versions import refusal
from flowshare.server.edge.base import LOGIN_APIS, Endpoint, Peer, SocketCall
from flowshare.server.net.frames import FrameError, Frames
from flowshare.server.net.requests import LONG, PARTS, SHORT, WITH_RECORDS, OpenRequest, OpenRequests
from flowshare.server.runtime import answers
from flowshare.server.runtime.answers import AnswerSpace
from flowshare.server.runtime.turns import Turns
from flowshare.server.security.guesses import network_of
from flowshare.server.security.tls import principal_of

if TYPE_CHECKING:
    from flowshare.server.net.limits import ListenerLimits
    from flowshare.server.net.listener import Listener

logger = logging.getLogger(__name__)

READ_AHEAD: Final = 64 * 1024
"""Bytes read beyond the requests that can be accepted, so that a socket's end is seen even with many parked
requests."""
ACCEPTED_AT_ONCE: Final = 16
"""Requests of one connection that are accepted in one round of the loop."""
LINGER_S: Final = 5.0
"""Seconds after which a closed socket that stays open is cut."""
_LENGTH: Final = struct.Struct(">i")


class ListenerSocket(asyncio.Protocol):
    """The protocol of one accepted socket."""

    def __init__(self, listener: Listener, address: str, port: int) -> None:
        """address, port: the client's address."""
        self.connecting: asyncio.Task[None] | None = None
        """The TLS handshake under way."""
        self.address = address
        self.network = network_of(address)
        """The network of the address, as limits count it."""
        self._port = port
        self._listener = listener
        self._limits = limits = listener.limits
        self._frames = Frames(
            limits.plain_request_bytes_max if listener.sasl is None else limits.login_request_bytes_max
        )
        self._pool = listener.pool if listener.sasl is None else listener.strangers
        self._bytes = self._pool.open(self, self.network)
        self._transport: asyncio.Transport | None = None  # none before a TLS handshake is over
        self._peer: Peer | None = None
        self._logged_in = False
        self.made = self._progress = listener.clock.monotonic()
        self._turns = Turns(listener.clock, listener.line)
        self._under_way = OpenRequests(lambda: self._unwritten)
        self._reading = True
        self._pumping = False
        self._decoding = False  # True while a long request is read, which comes before any other
        self._deferred = False  # requests wait for the connection's next turn
        self._writing = True
        self._unread_then = 0
        self._unread_since = 0.0
        self._ending_since: float | None = None
        self._lost = False

    # Methods that the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a connected client, whose TLS handshake is over."""
        self._transport = cast("asyncio.Transport", transport)
        listener = self._listener
        self._peer = Peer(
            server=listener.server,
            connection=listener.server.connect(client_id="", host=self.address),
            node=listener.node,
            host=self.address,
            turns=self._turns,
            authorizer=listener.authorizer,
            reauth_max_ms=self._limits.reauth_max_ms,
            principal=None if listener.sasl is not None else principal_of(transport.get_extra_info("ssl_object")),
        )
        self._see_login(self._peer)
        self._limit_unread(self._transport)

    def data_received(self, data: bytes) -> None:
        """Take received bytes."""
        if self._ending_since is not None:
            return
        if not self._frames.buffered:
            self._progress = self._listener.clock.monotonic()
        self._frames.feed(data)
        self._pool.received(self._bytes, len(data))
        self._pump()
        if not self._logged_in:
            self._check_stranger()

    def connection_lost(self, exc: Exception | None) -> None:
        """End with a socket that is gone; the server releases at once the records of the socket's share sessions."""
        del exc
        if self._lost:
            return
        self._lost = True
        if self._ending_since is None:
            self._ending_since = self._listener.clock.monotonic()
        self._pool.left(self._bytes)
        self._frames.clear()
        self._under_way.clear()
        self._listener.forget(self)
        if self._peer is not None:
            self._listener.spawn(self._peer.connection.close())

    def pause_writing(self) -> None:
        """Note that the client is not reading."""
        self._writing = False
        self._unread_then = self._unwritten
        self._unread_since = self._listener.clock.monotonic()
        self._listener.unread.add(self)
        self._listener.too_much_unread()

    def resume_writing(self) -> None:
        """Go on after the client has read."""
        self._writing = True
        self._listener.unread.discard(self)
        self._under_way.feed()
        self._pump()

    # Methods that the listener calls.

    @property
    def connected(self) -> bool:
        """True if the event loop has the socket and its TLS handshake is done."""
        return self._transport is not None

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the client has not read."""
        return self._under_way.held + (0 if self._lost else self._unwritten)

    def configure(self, limits: ListenerLimits) -> None:
        """Apply other limits from now on; requests under way keep theirs."""
        self._limits = limits
        known = self._logged_in or self._listener.sasl is None
        self._frames.allow(limits.plain_request_bytes_max if known else limits.login_request_bytes_max)
        if self._peer is not None:
            self._peer.reauth_max_ms = limits.reauth_max_ms
        if self._logged_in:
            self._allow_longer()
        if self._transport is not None:
            self._limit_unread(self._transport)
            self._pump()

    def resume(self) -> None:
        """Read on, as the pool has room."""
        self._progress = self._listener.clock.monotonic()
        self._pump()

    @property
    def arriving(self) -> bool:
        """True if the client's bytes are being read now; False while its requests wait for room."""
        return self._reading and self._has_room and not self._deferred

    def check(self, now: float) -> None:
        """Close the socket if a time limit is over; `now`: monotonic seconds."""
        limits = self._limits
        if self._ending_since is not None:
            if now - self._ending_since > LINGER_S:
                self.abort()
        elif not self._logged_in:
            self._check_login(now)
        elif self._peer is not None and self._peer.outdated(now) and not self._peer.logs_in(now):
            self.end("it did not log in again in time (connections.max.reauth.ms)", at_once=True)
        elif not self._writing:
            self._check_reader(now)
        elif self._frames.buffered:
            if self.arriving and now - self._progress > limits.arrival_max_ms / 1000:
                self.end("a request did not arrive in time (request.arrival.max.ms)")
        elif not self._under_way and now - self._progress > limits.idle_max_ms / 1000:
            self.end("no request for too long (connections.max.idle.ms)", level=logging.INFO)

    def end(self, reason: str, *, at_once: bool = False, level: int = logging.WARNING) -> None:
        """Stop reading, and close when all requests under way are answered, at the latest after `LINGER_S`."""
        if self._ending_since is not None:
            return
        client = self._peer.connection.client_id if self._peer is not None else ""
        logger.log(level, "closed peer=%s:%d client=%r: %s", self.address, self._port, client, reason)
        self._ending_since = self._listener.clock.monotonic()
        self._pool.left(self._bytes)
        self._frames.clear()
        if at_once or self._transport is None:
            self.abort()
        else:
            self._transport.pause_reading()
            self._close_when_done()

    def stop(self) -> None:
        """Stop for a closing listener: accept no further request, answer none under way."""
        if self._ending_since is None:
            self._ending_since = self._listener.clock.monotonic()
        if self._transport is None:
            self.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Cut the socket."""
        if self._transport is not None:
            self._transport.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    # The client and its login.

    @property
    def _unwritten(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _see_login(self, peer: Peer) -> None:
        """Allow long requests after the login, and count the client in the pool of logged-in clients."""
        if not self._logged_in and peer.principal is not None:
            self._logged_in = True
            self._frames.allow(self._limits.plain_request_bytes_max)
            self._allow_longer()
            self._pool.left(self._bytes)
            self._pool = self._listener.pool
            self._bytes = self._pool.open(self, peer.party)
            self._pool.received(self._bytes, self._frames.buffered)

    def _check_stranger(self) -> None:
        """Close the socket of a client that sends much before its login; check all such clients together."""
        limit = self._limits.login_request_bytes_max
        if self._ending_since is None and self._frames.buffered > limit + _LENGTH.size:
            self.end(
                f"it sent {self._frames.buffered} bytes before it logged in (sasl.server.max.receive.size)",
                at_once=True,
            )
        self._listener.too_many_strangers()

    def _allow_longer(self) -> None:
        limits = self._limits
        longer = dict.fromkeys(WITH_RECORDS, limits.request_bytes_max)
        self._frames.allow_longer({**longer, ApiKey.SYNC_GROUP: limits.sync_request_bytes_max})

    def _limit_unread(self, transport: asyncio.Transport) -> None:
        high = self._limits.connection_answer_bytes_max
        transport.set_write_buffer_limits(high=high, low=high // 2)

    # Requests.

    @property
    def _has_room(self) -> bool:
        """True if another request may be accepted."""
        peer = self._peer
        if peer is None or self._ending_since is not None or not self._writing or self._decoding:
            return False
        if not self._logged_in:
            return not self._under_way  # a login decides about the requests that follow it
        limits, under_way = self._limits, self._under_way
        own = peer.software == OWN_SOFTWARE
        return (
            len(under_way) < (limits.own_connection_requests_max if own else limits.connection_requests_max)
            and under_way.request_bytes < limits.connection_request_bytes_max
            and under_way.held < limits.connection_answer_bytes_max
        )

    def _pump(self) -> None:
        """Accept buffered requests within the limits, then read on or pause."""
        if self._pumping:
            return  # called for a request that was answered on the spot; the loop below goes on
        self._pumping = True
        self._deferred = False
        self._turns.begin()
        accepted = 0
        try:
            while self._has_room:
                if accepted >= ACCEPTED_AT_ONCE or self._turns.over:
                    self._deferred = True
                    self._turns.call_next(self._pump)
                    break
                frame = self._frames.next()
                if frame is None:
                    break
                self._progress = self._listener.clock.monotonic()
                accepted += 1 if self._accept(frame) else ACCEPTED_AT_ONCE
        except FrameError as error:
            self.end(str(error))
        finally:
            self._pumping = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self._lost or self._ending_since is not None or self._transport is None:
            return
        taking = self._has_room and not self._deferred
        wanted = taking or (self._writing and self._frames.buffered < READ_AHEAD)
        if not wanted:
            self._pool.withdraw(self._bytes)
        elif not self._pool.allows(self._bytes):
            wanted = False
            self._listener.look_soon()
        if wanted and not self._reading:
            self._reading = True
            self._progress = self._listener.clock.monotonic()
            self._transport.resume_reading()
        elif self._reading and not wanted:
            self._reading = False
            self._transport.pause_reading()

    def _accept(self, frame: bytes) -> bool:
        """Take a request's place in the order of all, and start the request; return True if it is short."""
        peer = self._peer
        assert peer is not None
        space = AnswerSpace(self._listener.answers, self._under_way, self._turns)
        exchange = OpenRequest(len(frame) + 4, space, ordered=peer.software != OWN_SOFTWARE)
        if self._logged_in:
            self._listener.spoke(self)
        self._under_way.begin(exchange)
        self._pool.accepted(self._bytes, exchange.size)
        if peer.raw is not None:
            self._listener.spawn(self._answer_raw(peer.raw(frame), exchange))
            return True
        try:
            start = request_start(frame)
        except struct.error:
            self._drop(exchange, f"a request of {len(frame)} bytes is too short for a header")
            return True
        endpoint = self._listener.endpoints.get(start.key)
        problem = self._problem(peer, endpoint, start)
        if problem is not None:
            self._drop(exchange, problem)
            return True
        assert endpoint is not None
        if not endpoint.serves(start.version):
            self._finish(exchange, refusal(start.correlation_id))
            return True
        long = len(frame) > LONG and endpoint.key not in WITH_RECORDS
        client_id: str | None = None
        request: Any = None
        try:
            if not long:
                client_id, request = endpoint.read(start, frame, PARTS)
        except TooManyParts:
            long = True
        except Exception as error:  # noqa: BLE001 - any error of a decoder about bytes from outside
            self._drop(exchange, _no_request(endpoint, start, error))
            return True
        if long:
            self._decoding = True
            self._listener.spawn(self._answer_long(endpoint, peer, start, frame, exchange))
            return False
        call = SocketCall(peer=peer, version=start.version, client_id=client_id, request=request)
        self._listener.spawn(self._answer(endpoint, call, start.correlation_id, exchange))
        return start.key in SHORT

    def _problem(self, peer: Peer, endpoint: Endpoint | None, start: RequestStart) -> str | None:
        """Return the reason why a request is not answered at all, or None."""
        if endpoint is None:
            return f"it asked for API key {start.key}, which is not served"
        if not peer.answers(start.key):
            return f"it asked for {endpoint.name} before it logged in"
        if start.key not in LOGIN_APIS and peer.outdated(self._listener.clock.monotonic()):
            return f"it asked for {endpoint.name} and did not log in again in time (connections.max.reauth.ms)"
        if not endpoint.serves(start.version) and start.key != ApiKey.API_VERSIONS:
            lowest, highest = endpoint.versions
            return f"it asked for {endpoint.name} v{start.version}; served are v{lowest} to v{highest}"
        return None

    async def _answer_long(
        self, endpoint: Endpoint, peer: Peer, start: RequestStart, frame: bytes, exchange: OpenRequest
    ) -> None:
        """Read a long request in a thread, then answer it; requests behind it wait until it has its place."""
        if start.key != ApiKey.FLOWSHARE:  # requests of a fleet's own processes may wait for each other
            await self._listener.places.take(peer.party)
            exchange.space.take_place(self._listener.places.give)
        try:
            async with self._listener.beside:
                client_id, request = await asyncio.to_thread(endpoint.read, start, frame)
        except Exception as error:  # noqa: BLE001 - any error of a decoder about bytes from outside
            self._decoding = False
            self._drop(exchange, _no_request(endpoint, start, error))
        else:
            self._decoding = False
            asyncio.get_running_loop().call_soon(self._pump)  # when the first step of the answer has its place
            call = SocketCall(peer=peer, version=start.version, client_id=client_id, request=request)
            await self._answer(endpoint, call, start.correlation_id, exchange)
        finally:
            exchange.space.give_place()

    async def _answer(self, endpoint: Endpoint, call: SocketCall, correlation_id: int, exchange: OpenRequest) -> None:
        frame = b""
        answers.enter(exchange.space)
        call.peer.connection.client_id = call.client_id or ""
        try:
            answer = await endpoint.answer(call)
            if answer is not None and not self._lost:
                if exchange.space.built > LONG or (exchange.size > LONG and endpoint.key not in WITH_RECORDS):
                    async with self._listener.beside:
                        frame = await asyncio.to_thread(endpoint.write, correlation_id, call.version, answer)
                else:
                    frame = endpoint.write(correlation_id, call.version, answer)
        except answers.AnswerTooLarge as error:
            self._drop(exchange, f"{endpoint.name} v{call.version}: {error}")
        except ConnectionError as error:
            self._drop(exchange, f"{endpoint.name} v{call.version} could not be answered: {_text(error)}")
        except Exception as error:
            logger.exception("request failed: %s v%d client=%s", endpoint.name, call.version, call.client_id)
            self._drop(exchange, f"{endpoint.name} v{call.version} failed: {_text(error)}")
        else:
            self._finish(exchange, frame)

    async def _answer_raw(self, work: Any, exchange: OpenRequest) -> None:
        try:
            answer: bytes = await work
        except Exception as error:  # noqa: BLE001 - bytes from outside
            self._drop(exchange, f"its login failed: {_text(error)}")
        else:
            self._finish(exchange, _LENGTH.pack(len(answer)) + answer)

    # Answers.

    def _drop(self, exchange: OpenRequest, reason: str) -> None:
        """End the connection for a request without an answer."""
        self.end(reason)
        self._finish(exchange, b"")

    def _finish(self, exchange: OpenRequest, frame: bytes) -> None:
        """End a request; its answer is written when its turn has come."""
        self._under_way.end(exchange)
        if not self._under_way:
            self._progress = self._listener.clock.monotonic()  # idle from now on
        self._pool.finished(self._bytes, exchange.size)
        if self._lost:
            return
        assert self._transport is not None  # a request came over the transport
        self._listener.holding.add(self)
        for due in self._under_way.answer(exchange, frame):
            self._transport.write(due)
        self._under_way.feed()
        if len(frame) > LONG:
            self._listener.too_much_unread()
        assert self._peer is not None
        self._see_login(self._peer)
        if self._ending_since is not None:
            self._close_when_done()
        elif self._peer.closing:
            self.end("its login failed", level=logging.INFO)
        elif self._frames.buffered or not self._reading:
            self._pump()

    def _close_when_done(self) -> None:
        if not self._under_way and self._transport is not None:
            self._transport.close()

    def _check_login(self, now: float) -> None:
        limits = self._limits
        if now - self.made > limits.setup_max_ms / 1000:
            self.end("it did not log in in time (connection.setup.max.ms)", at_once=True)
        elif self._frames.buffered and now - self._progress > limits.login_arrival_max_ms / 1000:
            self.end("a request before the login did not arrive in time (login.arrival.max.ms)", at_once=True)

    def _check_reader(self, now: float) -> None:
        unread = self._unwritten
        if unread < self._unread_then:
            self._unread_then, self._unread_since = unread, now
        elif now - self._unread_since > self._limits.unread_max_ms / 1000:
            self.end(f"it does not read: {unread} bytes of answers wait for it (response.unread.max.ms)", at_once=True)


def _no_request(endpoint: Endpoint, start: RequestStart, error: Exception) -> str:
    return f"its bytes are no {endpoint.name} v{start.version} request: {_text(error)}"


def _text(error: BaseException) -> str:
    """Return an error's text on one line, at most 200 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
