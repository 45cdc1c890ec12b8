"""Logins (SASL; KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flowshare.protocol.declaration import Api
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Request, Response


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest(Request["SaslHandshakeResponse"]):
    """Begin a login. In version 0 what follows are bare tokens, no requests."""

    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse(Response):
    mechanisms: tuple[str, ...] = ()
    """Those that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"]):
    """One step of the mechanism."""

    auth_bytes: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse(Response):
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0
    """How long the login holds, once it is complete; 0: as long as the connection."""


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
