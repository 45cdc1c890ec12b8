"""Sessions: the users that have logged in, by a cookie. No I/O; time and secrets come in.

A cookie is a secret of 32 bytes; only its hash is kept here. Each session has a page token, which forms carry: another
site's page can send a form, but has never seen a token. A session ends when it was not used for `IDLE_S`, is older than
`AGE_S`, its login is gone or has another role or password, or when there are more than `SESSIONS_MAX`, or `OF_ONE_MAX`
of one name: then the one of these unused for longest ends.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.console.logins import Role

IDLE_S: Final = 12 * 3600.0
AGE_S: Final = 7 * 24 * 3600.0
SESSIONS_MAX: Final = 1_000
OF_ONE_MAX: Final = 50
"""The most sessions of one name: repeated logins under a name end no other name's sessions."""
NOTICES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Notice:
    """Result of an action."""

    text: str
    good: bool


@dataclass(slots=True)
class Session:
    """A user who has logged in. proof: of the login at that time, so that a changed login ends the session."""

    name: str
    role: Role
    page_token: str
    begun_s: float
    used_s: float
    proof: bytes = b""
    notices: list[Notice] = field(default_factory=list)

    def add_notice(self, text: str, *, good: bool) -> None:
        """Add a notice for the next page."""
        self.notices.append(Notice(text, good))
        del self.notices[:-NOTICES_MAX]

    def take_notices(self) -> list[Notice]:
        """Return the notices that are to be shown, once."""
        taken, self.notices = self.notices, []
        return taken

    def is_page(self, token: str) -> bool:
        """True if a form that carries this token came from a page of this session."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.page_token.encode())


class Sessions:
    """All sessions. secret: returns a new secret at each call, as text."""

    def __init__(self, secret: Callable[[], str]) -> None:
        self._secret = secret
        self._by_hash: OrderedDict[bytes, Session] = OrderedDict()

    def begin(self, name: str, role: Role, now_s: float, proof: bytes = b"") -> tuple[str, Session]:
        """Begin a session; return its cookie and the session."""
        cookie = self._secret()
        session = Session(name, role, self._secret(), now_s, now_s, proof)
        own = [key for key, one in self._by_hash.items() if one.name == name]
        if len(own) >= OF_ONE_MAX:
            del self._by_hash[own[0]]
        self._by_hash[_hash(cookie)] = session
        while len(self._by_hash) > SESSIONS_MAX:
            self._by_hash.popitem(last=False)
        return cookie, session

    def find(self, cookie: str, now_s: float) -> Session | None:
        """Return the session of a cookie, and count that as use; None: no such session, or it has ended."""
        key = _hash(cookie)
        session = self._by_hash.get(key)
        if session is None:
            return None
        if now_s - session.used_s > IDLE_S or now_s - session.begun_s > AGE_S:
            del self._by_hash[key]
            return None
        session.used_s = now_s
        self._by_hash.move_to_end(key)
        return session

    def end(self, cookie: str) -> None:
        """End a session; harmless without one."""
        self._by_hash.pop(_hash(cookie), None)

    def __len__(self) -> int:
        return len(self._by_hash)


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).digest()
