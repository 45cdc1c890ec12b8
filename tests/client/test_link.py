"""Tests of a link's reports of an outage, and of their frequency."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from flowshare.backoff import QUICK, Backoff
from flowshare.client.net.link import Link
from flowshare.client.settings import LinkSettings
from flowshare.tasks import cancelled
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run


class Line:
    """A connection that answers until it is `broken`."""

    is_flowshare = True
    keeps_time = False

    def __init__(self) -> None:
        self.broken = False

    async def send(self, request):
        if self.broken:
            raise ConnectionError("it broke")
        return request

    async def close(self):
        """Nothing."""


class Place:
    """Where connections lead; nobody is reached while it is `down`."""

    def __init__(self) -> None:
        self.down = False
        self.lines: list[Line] = []

    async def connect(self):
        if self.down:
            raise ConnectionRefusedError("refused")
        self.lines.append(Line())
        return self.lines[-1]

    def fail(self) -> None:
        self.down = self.lines[-1].broken = True


async def lose(link):
    """Send until it is noticed that there is no connection any more."""
    try:
        await link.send("ping")
    except ConnectionError:
        return
    raise AssertionError("it was not lost")


def outages(caplog, tries_s):
    """Texts of the warnings that outages of these lengths in seconds cause."""
    caplog.set_level(logging.DEBUG, "flowshare.client.net.link")

    async def scenario(clock):
        place = Place()
        link = Link(place.connect, clock=clock, settings=LinkSettings(), name="m1 at worker 7")
        for outage_s in tries_s:
            await link.send("ping")
            place.fail()
            await lose(link)
            try:
                await link.connection(outage_s)
            except ConnectionError:
                place.down = False
        await link.close()

    run(scenario(LoopTimeClock()))
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_outage_is_told_once_though_every_try_fails(caplog):
    warnings = outages(caplog, [5.0])

    assert warnings == ["m1 at worker 7 lost its connection: it broke"]
    assert any("cannot connect, try 3" in record.getMessage() for record in caplog.records)


def test_the_next_outage_is_told_again(caplog):
    warnings = outages(caplog, [5.0, 5.0])

    assert warnings == ["m1 at worker 7 lost its connection: it broke"] * 2


def test_an_outage_that_lasts_is_told_again_from_time_to_time(caplog):
    _, *reminders = outages(caplog, [3600.0])

    assert [text.split(", ")[1] for text in reminders[:3]] == ["try 16: refused", "try 32: refused", "try 64: refused"]
    assert len(reminders) < 12


@pytest.mark.parametrize("backoff", [LinkSettings().backoff, QUICK, Backoff(0.1, 0.5)])
def test_links_that_failed_together_do_not_come_back_together_whatever_their_pauses_are(backoff):
    settings = LinkSettings(backoff=backoff)
    links = [Link(None, clock=LoopTimeClock(), settings=settings, name=f"{group}: member") for group in "abcd"]

    for failures in (1, 3, 20):
        pauses = {link.pause_s(failures) for link in links}
        assert len(pauses) == len(links)
        assert 0.5 * backoff.after(failures) <= min(pauses) < max(pauses) <= backoff.after(failures)


def test_who_is_cancelled_together_with_the_task_that_connects_ends():
    async def scenario(clock):
        place = Place()
        place.down = True
        link = Link(place.connect, clock=clock, settings=LinkSettings(), name="m1 at worker 7")

        async def tries():
            while True:
                with contextlib.suppress(OSError):
                    await link.connection(60)

        waits = asyncio.create_task(tries())
        await clock.sleep(1)
        opens = next(one for one in asyncio.all_tasks() if one not in (waits, asyncio.current_task()))
        await cancelled(waits, opens)
        assert waits.cancelled()

    run(scenario(LoopTimeClock()))
