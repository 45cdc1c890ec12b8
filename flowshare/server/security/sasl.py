"""The server's side of SASL: which mechanisms are on, and the steps of one login."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from flowshare.protocol.scram import base64_of

if TYPE_CHECKING:
    from flowshare.server.security.users import Users

MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""All that are spoken, best first."""
HASHED: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
"""Those by which nobody who listens on the network learns a password."""


class LoginFailed(Exception):
    """The login is over; the text goes to the other end, and says nothing about which users there are."""


class UnknownMechanism(ValueError):
    """A mechanism that is not spoken here, or not on."""


WRONG: Final = "the user name or the password is wrong"
"""The one text for an unknown user and for a wrong password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a message of the client leads to: bytes to send back, and who it is once that is proven."""

    reply: bytes
    user: str | None = None


class Login(Protocol):
    """One login under way: a state machine without I/O."""

    mechanism: str
    """Its name."""
    slow: bool
    """Whether a step computes for milliseconds and belongs on a thread."""

    def decides(self, message: bytes) -> str | None:
        """The user whose password, or a proof of it, the next message gives; None: it gives none."""
        ...

    def step(self, message: bytes) -> Step:
        """Take the client's next message. Raises: LoginFailed (nothing may be asked of this login again)."""
        ...


def words_of(text: str) -> tuple[str, ...]:
    """Mechanisms as an option names them, separated by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def offered(named: Sequence[str] | None, *, tls: bool) -> tuple[str, ...]:
    """Mechanisms of a listener, best first: those named; None: all, PLAIN with TLS only. Raises: UnknownMechanism."""
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

    def login(self, mechanism: str) -> Login:
        """Begin a login. Raises: UnknownMechanism."""
        from flowshare.server.security.plain import PlainLogin
        from flowshare.server.security.scram import ScramLogin

        if mechanism not in self.mechanisms:
            raise UnknownMechanism(f"this listener speaks {', '.join(self.mechanisms)}")
        if mechanism == "PLAIN":
            return PlainLogin(self.users)
        return ScramLogin(self.users, mechanism, nonce=base64_of(self._random(24)))
