"""Signals reach the worker through a descriptor, whatever the main thread does."""

import os
import queue
import signal

import pytest

from flowshare.agents.worker.signals import Signals
from flowshare.clock import LoopClock
from tests.waiting import LIMIT_S, blocking_pause


@pytest.fixture
def watched():
    seen = queue.Queue()
    signals = Signals(
        on_stop=lambda number: seen.put(("stop", number)),
        on_second=lambda number: seen.put(("second", number)),
        on_show=lambda: seen.put(("show", None)),
        clock=LoopClock(),
    )
    signals.install()
    yield seen
    signals.restore()


def test_the_first_ctrl_c_stops_and_the_second_ends(watched):
    os.kill(os.getpid(), signal.SIGINT)
    assert watched.get(timeout=LIMIT_S) == ("stop", signal.SIGINT)

    os.kill(os.getpid(), signal.SIGINT)
    assert watched.get(timeout=LIMIT_S) == ("second", signal.SIGINT)


def test_repeated_sigterm_changes_nothing(watched):
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGUSR1)

    assert watched.get(timeout=LIMIT_S) == ("stop", signal.SIGTERM)
    assert watched.get(timeout=LIMIT_S) == ("show", None)


def test_a_terminal_and_a_parent_that_pass_on_one_ctrl_c_do_not_count_twice(watched):
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGUSR1)

    assert [watched.get(timeout=LIMIT_S)[0] for _ in range(2)] == ["stop", "show"]


@pytest.mark.slow
def test_a_signal_is_seen_while_the_main_thread_sleeps(watched):
    import threading

    main = threading.get_ident()
    threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGTERM)).start()
    blocking_pause(0.4, "the main thread sleeps while the signal comes")

    assert watched.get(timeout=LIMIT_S) == ("stop", signal.SIGTERM)


def test_signals_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    signals = Signals(on_stop=print, on_second=print, on_show=print, clock=LoopClock())
    signals.install()
    signals.restore()

    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.set_wakeup_fd(-1) == -1
