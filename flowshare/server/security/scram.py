"""SASL SCRAM (RFC 5802, RFC 7677), the server's side.

    client  n,,n=alice,r=CLIENT
    server  r=CLIENTSERVER,s=salt,i=4096
    client  c=biws,r=CLIENTSERVER,p=proof
    server  v=signature

A name that no user has gets a salt too and fails at its proof, as a wrong password does.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from flowshare.protocol.scram import (
    DIGESTS,
    ScramError,
    base64_of,
    fields,
    keyed,
    prepared,
    proof_holds,
    text_of,
    unbase64,
    unescaped,
)
from flowshare.server.security.sasl import WRONG, LoginFailed, Step

if TYPE_CHECKING:
    from flowshare.server.security.users import Users


class Turn(enum.Enum):
    """Which message of the client comes next."""

    FIRST = enum.auto()
    FINAL = enum.auto()
    NONE = enum.auto()


class ScramLogin:
    """One login by SCRAM. `nonce`: fresh and random, printable ASCII without a comma."""

    slow = False

    def __init__(self, users: Users, mechanism: str, *, nonce: str) -> None:
        self._users = users
        self.mechanism = mechanism
        self._own_nonce = nonce
        self._turn = Turn.FIRST
        self._binding = b""
        self._nonce = ""
        self._name = ""
        self._dialogue = ""

    def decides(self, message: bytes) -> str | None:
        """The user, when the proof comes."""
        del message
        return self._name if self._turn is Turn.FINAL else None

    def step(self, message: bytes) -> Step:
        """Take the client's next message. Raises: LoginFailed."""
        turn, self._turn = self._turn, Turn.NONE
        try:
            text = text_of(message)
            if turn is Turn.FIRST:
                return self._first(text)
            if turn is Turn.FINAL:
                return self._final(text)
        except ScramError as error:
            raise LoginFailed(str(error)) from None
        raise LoginFailed("the login is over already")

    def _first(self, text: str) -> Step:
        header, bare = _split_first(text)
        name, nonce = fields(bare, "nr")
        self._name = prepared(unescaped(name))
        acting = header.split(",")[1]
        if acting and (not acting.startswith("a=") or prepared(unescaped(acting[2:])) != self._name):
            raise ScramError("nobody can act for another user here; leave the authorization id empty")
        if not self._name or not nonce:
            raise ScramError("the SCRAM message has an empty user name or nonce")
        credential, _ = self._users.credential(self.mechanism, self._name)
        self._binding = header.encode()
        self._nonce = nonce + self._own_nonce
        reply = f"r={self._nonce},s={base64_of(credential.salt)},i={credential.iterations}"
        self._dialogue = f"{bare},{reply}"
        self._turn = Turn.FINAL
        return Step(reply=reply.encode())

    def _final(self, text: str) -> Step:
        unproven, _, proof = text.rpartition(",p=")
        binding, nonce = fields(unproven, "cr")
        if unbase64(binding) != self._binding or nonce != self._nonce:
            raise ScramError("the SCRAM message does not go on with the login that it began")
        dialogue = f"{self._dialogue},{unproven}".encode()
        digest = DIGESTS[self.mechanism]
        credential, known = self._users.credential(self.mechanism, self._name)
        holds = proof_holds(digest, credential.stored_key, dialogue, unbase64(proof))
        if not (holds and known):
            raise LoginFailed(WRONG)
        signature = keyed(digest, credential.server_key, dialogue)
        return Step(reply=f"v={base64_of(signature)}".encode(), user=self._name)


def _split_first(text: str) -> tuple[str, str]:
    """RFC 5802's gs2-header and client-first-message-bare."""
    flag, separator, rest = text.partition(",")
    acting, separator_2, bare = rest.partition(",")
    if not separator or not separator_2:
        raise ScramError("the SCRAM message does not begin with n,,")
    if flag.startswith("p="):
        raise ScramError("channel binding is not spoken here; begin with n,,")
    if flag not in ("n", "y"):
        raise ScramError("the SCRAM message does not begin with n,,")
    return f"{flag},{acting},", bare
