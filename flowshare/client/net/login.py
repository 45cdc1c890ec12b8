"""The client's side of SASL PLAIN and SCRAM: state machines without I/O."""

from __future__ import annotations

import hmac
from typing import Final

from flowshare.client.errors import ClientError
from flowshare.protocol.scram import (
    DIGESTS,
    ITERATIONS_MIN,
    NO_BINDING,
    ScramError,
    base64_of,
    client_proof,
    escaped,
    fields,
    keyed,
    salted_password,
    server_key,
    text_of,
    unbase64,
)

ITERATIONS_MAX: Final = 1_000_000
"""The most iterations of hashing that a server may ask for: under a second."""


class LoginError(ClientError):
    """The server's message is no login, or the server could not prove that it knows the user."""


class PlainClient:
    """PLAIN (RFC 4616): the server's one answer is empty."""

    def __init__(self, username: str, password: str) -> None:
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        """Return the first message: name and password."""
        return self._message

    def next(self, message: bytes) -> bytes | None:
        """Return the answer to the server's message; None: the login is complete."""
        del message
        return None


class ScramClient:
    """SCRAM (RFC 5802, RFC 7677). nonce: fresh and random, printable ASCII without a comma.

    The password is hashed as written, not normalised, as in Kafka's own tools and clients.
    """

    def __init__(self, mechanism: str, username: str, password: str, *, nonce: str) -> None:
        self._digest = DIGESTS[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={escaped(username)},r={nonce}"
        self._signature: bytes | None = None
        """The signature that the server's last message must prove; None before the client's own proof is sent."""

    def first(self) -> bytes:
        """Return the first message: name and nonce."""
        return NO_BINDING + self._bare.encode()

    def next(self, message: bytes) -> bytes | None:
        """Return the proof for the server's first message; None for its last. Computes for milliseconds.

        Raises: LoginError
        """
        try:
            text = text_of(message)
            if text.startswith("e="):
                raise ScramError(f"the broker refused: {text[2:]}")
            if self._signature is None:
                return self._proof(text)
            (signature,) = fields(text, "v")
            if not hmac.compare_digest(unbase64(signature), self._signature):
                raise ScramError("the broker could not prove that it knows the user; it may be another's")
        except ScramError as error:
            raise LoginError(str(error)) from None
        return None

    def _proof(self, text: str) -> bytes:
        nonce, salt, rounds = fields(text, "rsi")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the broker answered another login")
        if not (rounds.isascii() and rounds.isdigit() and ITERATIONS_MIN <= int(rounds[:9]) <= ITERATIONS_MAX):
            raise ScramError(f"the broker asks for iterations not from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
        unproven = f"c={base64_of(NO_BINDING)},r={nonce}"
        dialogue = f"{self._bare},{text},{unproven}".encode()
        salted = salted_password(self._digest, self._password, unbase64(salt), int(rounds))
        self._signature = keyed(self._digest, server_key(self._digest, salted), dialogue)
        return f"{unproven},p={base64_of(client_proof(self._digest, salted, dialogue))}".encode()
