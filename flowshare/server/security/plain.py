"""SASL PLAIN (RFC 4616), the server's side: one message with the name and the password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.protocol.scram import ScramError, prepared
from flowshare.server.security.sasl import WRONG, LoginFailed, Step

if TYPE_CHECKING:
    from flowshare.server.security.users import Users

MESSAGE_MAX: Final = 4_096
"""Longest message read, in bytes."""


class PlainLogin:
    """One login by PLAIN."""

    slow = True
    mechanism = "PLAIN"

    def __init__(self, users: Users) -> None:
        self._users = users
        self._over = False

    def decides(self, message: bytes) -> str | None:
        """The user; empty when the message makes no sense."""
        try:
            return _read(message)[0]
        except LoginFailed:
            return ""

    def step(self, message: bytes) -> Step:
        """Check `[authorization id] NUL name NUL password`. Raises: LoginFailed."""
        if self._over:
            raise LoginFailed("the login is over already")
        self._over = True
        name, password = _read(message)
        if not self._users.password_fits(name, password):
            raise LoginFailed(WRONG)
        return Step(reply=b"", user=name)


def _read(message: bytes) -> tuple[str, str]:
    parts = message.split(b"\0")
    if len(message) > MESSAGE_MAX or len(parts) != 3 or not parts[1] or not parts[2]:
        raise LoginFailed(
            f"the PLAIN message is not [authorization id] NUL name NUL password in {MESSAGE_MAX} bytes at most"
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
