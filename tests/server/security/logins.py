"""Users over memory, and both ends of a login without a network."""

from __future__ import annotations

from flowshare.client.net.login import PlainClient, ScramClient
from flowshare.log.memory import MemoryStorage
from flowshare.server.security.sasl import Sasl
from flowshare.server.security.users import Users
from flowshare.server.security.users_file import parse_users
from flowshare.testing.clock import ManualClock


def memory() -> MemoryStorage:
    """A store that keeps nothing."""
    return MemoryStorage(ManualClock())


def numbered(count: int) -> bytes:
    """Bytes in place of random ones."""
    return bytes(range(count))


async def users(text: str = "alice=wonder land\nbob=builder\n", *, storage=None) -> Users:
    """Users of a file's text, started."""
    found = Users(storage or memory(), parse_users(text, where="users") if text else None)
    await found.start(numbered)
    return found


async def sasl(text: str = "alice=wonder land\nbob=builder\n", **options) -> Sasl:
    """All mechanisms for the users of a file's text."""
    return Sasl(await users(text), random=numbered, **options)


def client(mechanism: str, name: str, password: str):
    """The other end."""
    return (
        PlainClient(name, password)
        if mechanism == "PLAIN"
        else ScramClient(mechanism, name, password, nonce="clientnonce")
    )


def log_in(sasl: Sasl, mechanism: str, name: str, password: str) -> str | None:
    """Both ends to their end; who the server thinks it is. Raises: what either end raises."""
    server, own = sasl.login(mechanism), client(mechanism, name, password)
    message = own.first()
    while True:
        step = server.step(message)
        answer = own.next(step.reply)
        if answer is None:
            return step.user
        message = answer
