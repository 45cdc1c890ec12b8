"""SaslHandshake and SaslAuthenticate: a socket says who it is (KIP-43, KIP-152).

A login holds for connections.max.reauth.ms, which the client is told; until then it logs in again on the same
connection, as the same user by the same mechanism (KIP-368), while other requests go on. Who does not loses the
connection (`listener_socket`), so a user that was removed, or whose password is another, has none any more after that
time. A failed login, the first or a later one, is answered after `FAILED_S` and ends the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.server.edge.base import Api, Call, Peer
from flowshare.server.edge.forms import duration, form
from flowshare.server.security.guesses import Guesses
from flowshare.server.security.sasl import Login, LoginFailed, Sasl, UnknownMechanism

if TYPE_CHECKING:
    from flowshare.clock import Clock

logger = logging.getLogger(__name__)

FAILED_S: Final = 0.1
"""From a login's last message to the answer that it failed (Kafka's connection.failed.authentication.delay.ms)."""

LOGIN: Final = "login"
"""Where a peer keeps its login under way."""
MADE: Final = "login made"
"""Where a peer keeps mechanism and time of its last login."""
AGAIN_S: Final = 1.0
"""Least time from a login to the next one of the connection, as in Kafka."""


class SaslApis:
    """The two APIs of a listener with SASL."""

    def __init__(self, sasl: Sasl, clock: Clock) -> None:
        self._sasl = sasl
        self._clock = clock
        self._guesses = Guesses(clock)

    def apis(self) -> Sequence[Api]:
        """SaslHandshake v0-1, SaslAuthenticate v0-2."""
        return (
            Api(key=ApiKey.SASL_HANDSHAKE, lowest=0, highest=1, answer=self._handshake),
            Api(key=ApiKey.SASL_AUTHENTICATE, lowest=0, highest=2, answer=self._authenticate),
        )

    async def _handshake(self, call: Call) -> Any:
        peer = call.peer
        if LOGIN in peer.extra or not self._may_begin(peer, call.version, call.request.mechanism):
            return self._mechanisms(call.version, ErrorCode.ILLEGAL_SASL_STATE)
        try:
            peer.extra[LOGIN] = self._sasl.login(call.request.mechanism)
        except UnknownMechanism:
            peer.closing = True
            return self._mechanisms(call.version, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        if call.version == 0:
            peer.raw = _RawLogin(self, peer)
        return self._mechanisms(call.version, ErrorCode.NONE)

    async def _authenticate(self, call: Call) -> Any:
        peer = call.peer
        if LOGIN not in peer.extra:
            peer.closing = peer.principal is None
            text = "send a SaslHandshake first"
            return _authenticated(call.version, ErrorCode.ILLEGAL_SASL_STATE, text)
        try:
            reply = await self.step(peer, call.request.auth_bytes)
        except LoginFailed as error:
            peer.closing = True
            return _authenticated(call.version, ErrorCode.SASL_AUTHENTICATION_FAILED, str(error))
        lifetime_ms = 0 if LOGIN in peer.extra else peer.reauth_max_ms or 0
        return _authenticated(call.version, ErrorCode.NONE, None, reply, lifetime_ms)

    def _may_begin(self, peer: Peer, version: int, mechanism: str) -> bool:
        """Whether a login may begin: the first one, or another like it, not by bare tokens and not at once."""
        made = peer.extra.get(MADE)
        if made is None:
            return peer.principal is None
        before, at_s = made
        return version > 0 and mechanism == before and self._clock.monotonic() - at_s >= AGAIN_S

    async def step(self, peer: Peer, message: bytes) -> bytes:
        """Take a login's next message; the reply.

        Raises: LoginFailed, after a time that tells nothing; ConnectionError: too many failed before it.
        """
        login: Login = peer.extra[LOGIN]
        name = login.decides(message)
        attempt = None if name is None else await self._guesses.begin(peer.host, name)
        begun = self._clock.monotonic()
        user: str | None = None
        try:
            step = await asyncio.to_thread(login.step, message) if login.slow else login.step(message)
            user = step.user
        except LoginFailed as error:
            logger.warning("login failed: host=%s client=%r: %s", peer.host, peer.connection.client_id[:100], error)
            await self._clock.sleep(max(0.0, begun + FAILED_S - self._clock.monotonic()))
            raise
        finally:
            if attempt is not None:
                attempt.end(failed=user is None)
        if user is not None:
            self._logged_in(peer, f"User:{user}", login.mechanism)
        return step.reply

    def _logged_in(self, peer: Peer, principal: str, mechanism: str) -> None:
        """Raises: LoginFailed (it was somebody else before)."""
        if peer.principal not in (None, principal):
            logger.warning("login failed: host=%s: it was made again as another user", peer.host)
            raise LoginFailed("log in again as the same user; who is another one opens a connection of its own")
        del peer.extra[LOGIN]
        peer.raw = None
        peer.principal = principal
        now_s = self._clock.monotonic()
        peer.extra[MADE] = (mechanism, now_s)
        lifetime_ms = peer.reauth_max_ms
        peer.logged_in_until_s = None if lifetime_ms is None else now_s + lifetime_ms / 1000

    def _mechanisms(self, version: int, error: ErrorCode) -> Any:
        from kio.schema.errors import ErrorCode as KafkaError

        made: Any = module("sasl_handshake", version, "response")
        return made.SaslHandshakeResponse(error_code=KafkaError(int(error)), mechanisms=self._sasl.mechanisms)


class _RawLogin:
    """What takes the bare tokens after a SaslHandshake v0."""

    def __init__(self, apis: SaslApis, peer: Peer) -> None:
        self._apis = apis
        self._peer = peer

    async def __call__(self, token: bytes) -> bytes:
        try:
            return await self._apis.step(self._peer, token)
        except LoginFailed as error:
            raise ConnectionError(str(error)) from None


def _authenticated(version: int, error: ErrorCode, text: str | None, reply: bytes = b"", lifetime_ms: int = 0) -> Any:
    """lifetime_ms: how long the login holds, once it is complete."""
    make = form("sasl_authenticate", version)
    return make(
        "SaslAuthenticateResponse",
        error_code=error,
        error_message=text,
        auth_bytes=reply,
        session_lifetime=duration(lifetime_ms),
    )
