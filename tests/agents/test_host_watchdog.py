"""The watchdog sees a handler loop that stands still, and says where."""

import asyncio
import logging
import threading

import pytest

from flowshare.agents.host.watchdog import LIVE_S, Watchdog


class FakeClock:
    """Time that is moved by hand; timers are kept, not run."""

    def __init__(self):
        self.now = 100.0
        self.timers = []

    def monotonic(self):
        return self.now

    def call_later(self, _delay, callback):
        self.timers.append(callback)
        return asyncio.get_running_loop().call_later(1000, callback)


@pytest.mark.asyncio
async def test_a_blocked_handler_loop_is_reported_with_its_stack(caplog):
    clock = FakeClock()
    dog = Watchdog(clock, dump_to_stderr=False)
    go_on = threading.Event()
    blocked = threading.Event()

    async def handler_that_blocks():
        dog.beat_from_here()
        blocked.set()
        go_on.wait()

    thread = threading.Thread(target=lambda: asyncio.run(handler_that_blocks()))
    thread.start()
    await asyncio.to_thread(blocked.wait)
    with caplog.at_level(logging.WARNING):
        dog.watch_from_here()
        for _ in range(6):
            clock.now += 0.3
            clock.timers[-1]()
    go_on.set()
    thread.join()

    assert dog.stalls == 1
    assert len(caplog.records) == 1
    assert "handler_that_blocks" in caplog.text
    assert "asyncio.to_thread" in caplog.text
    assert dog.ready()
    clock.now += 4.0
    assert not dog.ready()
    assert dog.live()
    clock.now += LIVE_S
    assert not dog.live()
    dog.stop()
    assert dog.live()


@pytest.mark.asyncio
async def test_a_process_that_stood_still_is_told_apart(caplog):
    clock = FakeClock()
    dog = Watchdog(clock, dump_to_stderr=False)
    dog.beat_from_here()
    dog.watch_from_here()

    clock.now += 3.0
    clock.timers[-1]()
    dog.stop()

    assert "every thread of this process stood still for 2.8 s" in caplog.text
