"""How fast passwords can be guessed, and who is not held back by it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from flowshare.server.security import guesses
from flowshare.server.security.guesses import ADDRESS_WAIT_S, WAITING_MAX, Guesses, is_loopback, network_of
from flowshare.testing.clock import ManualClock, settle

pytestmark = pytest.mark.asyncio


class Clients:
    """Logins that are begun, and how they ended."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.guesses = Guesses(self.clock)
        self.ends: Counter[tuple[str, str]] = Counter()
        """How many passwords were looked at, or connections closed, by address."""
        self._tasks: list[asyncio.Task[None]] = []

    async def log_in(self, host: str, name: str = "alice", *, right: bool = False, times: int = 1) -> int:
        """Begin logins side by side; how many passwords from this address have been looked at as yet."""
        self._tasks += [asyncio.create_task(self._one(host, name, right)) for _ in range(times)]
        await settle()
        return self.looked_at(host)

    async def later(self, host: str, seconds: float) -> int:
        """The same, some seconds later."""
        await self.clock.advance(seconds)
        return self.looked_at(host)

    def looked_at(self, host: str) -> int:
        return self.ends[host, "looked at"]

    def closed(self, host: str) -> int:
        return self.ends[host, "closed"]

    async def _one(self, host: str, name: str, right: bool) -> None:
        try:
            end = await self.guesses.begin(host, name)
        except ConnectionError:
            self.ends[host, "closed"] += 1
            return
        self.ends[host, "looked at"] += 1
        end(failed=not right)


async def test_an_address_guesses_ten_times_at_once_and_then_once_a_second() -> None:
    clients = Clients()

    assert await clients.log_in("10.0.0.1", times=50) == 10
    assert await clients.later("10.0.0.1", 0.5) == 10
    assert await clients.later("10.0.0.1", 1) == 11
    assert await clients.later("10.0.0.1", 1) == 12
    assert await clients.later("10.0.0.1", ADDRESS_WAIT_S - 3) == 19
    assert await clients.later("10.0.0.1", 1) == 19
    assert clients.closed("10.0.0.1") == 31


async def test_passwords_that_are_right_are_looked_at_all_at_once() -> None:
    assert await Clients().log_in("10.0.0.1", right=True, times=WAITING_MAX) == WAITING_MAX


async def test_who_waits_is_served_in_order_also_behind_guesses() -> None:
    clients = Clients()
    await clients.log_in("10.0.0.1", times=12)
    await clients.log_in("10.0.0.1", "bob", right=True)

    await clients.later("10.0.0.1", 2)
    assert clients.looked_at("10.0.0.1") == 12
    assert await clients.later("10.0.0.1", 1) == 13


async def test_no_more_wait_at_an_address_than_a_bound() -> None:
    clients = Clients()

    await clients.log_in("10.0.0.1", times=10 + WAITING_MAX + 5)

    assert clients.closed("10.0.0.1") == 5


async def test_whoever_guesses_a_name_locks_it_out_at_no_other_address() -> None:
    clients = Clients()
    assert await clients.log_in("10.0.0.1", right=True) == 1
    for number in range(60):
        await clients.log_in(f"10.1.0.{number}", times=10)

    assert await clients.log_in("10.0.0.1", right=True) == 2
    assert await clients.log_in("10.0.0.2", "bob", right=True) == 1
    assert await clients.log_in("10.0.0.3", right=True) == 0
    assert await clients.later("10.0.0.3", guesses.NAME_WAIT_S) == 1
    assert clients.closed("10.0.0.3") == 0


async def test_a_name_is_guessed_by_many_addresses_no_faster_than_by_a_few() -> None:
    clients = Clients()
    for number in range(60):
        await clients.log_in(f"10.1.0.{number}")

    assert clients.ends.total() == 20
    await clients.clock.advance(1)
    assert clients.ends.total() == 30


async def test_a_login_that_is_given_up_while_it_waits_holds_nobody_up() -> None:
    clients = Clients()
    await clients.log_in("10.0.0.1", times=12)
    clients._tasks[10].cancel()
    clients._tasks[11].cancel()
    await settle()

    await clients.log_in("10.0.0.1", "bob", right=True)
    assert await clients.later("10.0.0.1", 1) == 11


async def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(guesses, "REMEMBERED_MAX", 3)
    clients = Clients()
    for number in range(20):
        await clients.log_in(f"10.0.0.{number}", f"user{number}", right=number % 2 == 0)

    found = clients.guesses
    assert (len(found._addresses._tallies), len(found._names._tallies), len(found._familiar)) == (3, 3, 3)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
async def test_an_ipv6_address_counts_with_its_network(host: str, network: str) -> None:
    assert network_of(host) == network


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.9.8.7", True),
        ("::1", True),
        ("::1%lo", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("localhost.example.com", False),
        ("broker-1", False),
    ],
)
async def test_only_this_machine_reaches_its_loopback(host: str, own: bool) -> None:
    assert is_loopback(host) is own
