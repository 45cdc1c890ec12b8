"""SaslHandshake and SaslAuthenticate: a socket says who it is (KIP-43, KIP-152).

A login is made once: there is no re-authentication, and none is asked for (session lifetime 0). A failed one is
answered after `FAILED_S` and ends the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.server.edge.base import Api, Call, Peer
from flowshare.server.security.guesses import Guesses
from flowshare.server.security.sasl import Login, LoginFailed, Sasl, UnknownMechanism

if TYPE_CHECKING:
    from flowshare.clock import Clock

logger = logging.getLogger(__name__)

FAILED_S: Final = 0.1
"""From a login's last message to the answer that it failed (Kafka's connection.failed.authentication.delay.ms)."""

LOGIN: Final = "login"
"""Where a peer keeps its login under way."""


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
        if peer.principal is not None or LOGIN in peer.extra:
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
            text = "this connection is logged in" if peer.principal else "send a SaslHandshake first"
            return _authenticated(call.version, ErrorCode.ILLEGAL_SASL_STATE, text)
        try:
            reply = await self.step(peer, call.request.auth_bytes)
        except LoginFailed as error:
            peer.closing = True
            return _authenticated(call.version, ErrorCode.SASL_AUTHENTICATION_FAILED, str(error))
        return _authenticated(call.version, ErrorCode.NONE, None, reply)

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
            del peer.extra[LOGIN]
            peer.raw = None
            peer.principal = f"User:{user}"
        return step.reply

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


def _authenticated(version: int, error: ErrorCode, text: str | None, reply: bytes = b"") -> Any:
    from kio.schema.errors import ErrorCode as KafkaError

    made: Any = module("sasl_authenticate", version, "response")
    return made.SaslAuthenticateResponse(error_code=KafkaError(int(error)), error_message=text, auth_bytes=reply)
