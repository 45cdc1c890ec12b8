"""Logins (SASL; KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flowshare.protocol.declaration import Api
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Request, Response


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest(Request["SaslHandshakeResponse"]):
    """Begin a login. In version 0 bare tokens follow, no requests."""

    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse(Response):
    mechanisms: tuple[str, ...] = ()
    """The mechanisms that the broker accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"]):
    """One message of the mechanism."""

    auth_bytes: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse(Response):
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0
    """How long the complete login holds, in milliseconds; 0: as long as the connection."""


SASL_HANDSHAKE: Final = Api(
    ApiKey.SASL_HANDSHAKE,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    server=(0, 1),
    client=(1, 1),
    request_shape={},
    response_shape={},
)
SASL_AUTHENTICATE: Final = Api(
    ApiKey.SASL_AUTHENTICATE,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    server=(0, 2),
    client=(0, 2),
    request_shape={},
    response_shape={},
)
