"""The server's side of SASL: the mechanisms that are on, and the steps of one login by each.

PLAIN (RFC 4616) is one message with the name and the password. SCRAM (RFC 5802, RFC 7677):

    client  n,,n=alice,r=CLIENT
    server  r=CLIENTSERVER,s=salt,i=4096
    client  c=biws,r=CLIENTSERVER,p=proof
    server  v=signature

A name that no user has gets a salt too and fails at its proof, as a wrong password does.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

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

if TYPE_CHECKING:
    from flowshare.server.security.users import Users

MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""All supported mechanisms, best first."""
HASHED: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
"""Mechanisms that show no password to a listener on the network."""


PLAIN_BYTES_MAX: Final = 4_096
"""Longest PLAIN message that is read, in bytes."""


class LoginFailed(Exception):
    """The login failed; the text goes to the client, and does not tell which users exist."""


class UnknownMechanism(ValueError):
    """A mechanism that is not supported, or not on."""


WRONG: Final = "the user name or the password is wrong"
"""The one text for an unknown user and for a wrong password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginStep:
    """The result of a client's message: bytes to send back, and the user once that is proven."""

    reply: bytes
    user: str | None = None


class ServerLogin(Protocol):
    """One login under way: a state machine without I/O."""

    mechanism: str
    """Mechanism name."""
    slow: bool
    """True if a step computes for milliseconds and belongs on a thread."""

    def decides(self, message: bytes) -> str | None:
        """Return the user whose password, or a proof of it, the next message gives; None: it gives none."""
        ...

    def step(self, message: bytes) -> LoginStep:
        """Process the client's next message. Raises: LoginFailed (the login must not be used again)."""
        ...


def words_of(text: str) -> tuple[str, ...]:
    """Split an option's comma-separated mechanisms."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def offered(named: Sequence[str] | None, *, tls: bool) -> tuple[str, ...]:
    """Return a listener's mechanisms, best first: those named; None: all, PLAIN with TLS only. Raises:
    UnknownMechanism."""
    if named is None:
        return MECHANISMS if tls else HASHED
    for mechanism in named:
        if mechanism not in MECHANISMS:
            raise UnknownMechanism(f"the SASL mechanism {mechanism!r} is none of {', '.join(MECHANISMS)}")
    if not named:
        raise UnknownMechanism(f"no SASL mechanism is on; name at least one of {', '.join(MECHANISMS)}")
    return tuple(mechanism for mechanism in MECHANISMS if mechanism in named)


class Sasl:
    """Mechanisms and users of a listener.

    managed: users can be made over the wire. Raises at making: UnknownMechanism.
    """

    def __init__(
        self,
        users: Users,
        *,
        random: Callable[[int], bytes],
        mechanisms: Sequence[str] = MECHANISMS,
        managed: bool = True,
    ) -> None:
        self.mechanisms = offered(mechanisms, tls=True)
        self.users = users
        self.managed = managed
        self._random = random

    def login(self, mechanism: str) -> ServerLogin:
        """Begin a login. Raises: UnknownMechanism."""
        if mechanism not in self.mechanisms:
            raise UnknownMechanism(f"this listener speaks {', '.join(self.mechanisms)}")
        if mechanism == "PLAIN":
            return PlainLogin(self.users)
        return ScramLogin(self.users, mechanism, nonce=base64_of(self._random(24)))


class PlainLogin:
    """One login by PLAIN."""

    slow = True
    mechanism = "PLAIN"

    def __init__(self, users: Users) -> None:
        self._users = users
        self._over = False

    def decides(self, message: bytes) -> str | None:
        """Return the user's name; empty when the message is malformed."""
        try:
            return _plain(message)[0]
        except LoginFailed:
            return ""

    def step(self, message: bytes) -> LoginStep:
        """Check `[authorization id] NUL name NUL password`. Raises: LoginFailed."""
        if self._over:
            raise LoginFailed("the login is over already")
        self._over = True
        name, password = _plain(message)
        if not self._users.password_fits(name, password):
            raise LoginFailed(WRONG)
        return LoginStep(reply=b"", user=name)


def _plain(message: bytes) -> tuple[str, str]:
    parts = message.split(b"\0")
    if len(message) > PLAIN_BYTES_MAX or len(parts) != 3 or not parts[1] or not parts[2]:
        raise LoginFailed(
            f"the PLAIN message is not [authorization id] NUL name NUL password in {PLAIN_BYTES_MAX} bytes at most"
        )
    try:
        acting, name = (prepared(part.decode()) for part in parts[:2])
        password = parts[2].decode()
    except UnicodeDecodeError:
        raise LoginFailed("the PLAIN message is no UTF-8") from None
    except ScramError as error:
        raise LoginFailed(f"the PLAIN message has a name that cannot be one: {error}") from None
    if acting not in ("", name):
        raise LoginFailed("nobody can act for another user here; leave the authorization id empty")
    return name, password


class Turn(enum.Enum):
    """The client's message that comes next."""

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
        """Return the user, when the proof comes next, else None."""
        del message
        return self._name if self._turn is Turn.FINAL else None

    def step(self, message: bytes) -> LoginStep:
        """Process the client's next message. Raises: LoginFailed."""
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

    def _first(self, text: str) -> LoginStep:
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
        return LoginStep(reply=reply.encode())

    def _final(self, text: str) -> LoginStep:
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
        return LoginStep(reply=f"v={base64_of(signature)}".encode(), user=self._name)


def _split_first(text: str) -> tuple[str, str]:
    """Split off RFC 5802's gs2-header; return it and client-first-message-bare."""
    flag, separator, rest = text.partition(",")
    acting, separator_2, bare = rest.partition(",")
    if not separator or not separator_2:
        raise ScramError("the SCRAM message does not begin with n,,")
    if flag.startswith("p="):
        raise ScramError("channel binding is not spoken here; begin with n,,")
    if flag not in ("n", "y"):
        raise ScramError("the SCRAM message does not begin with n,,")
    return f"{flag},{acting},", bare
