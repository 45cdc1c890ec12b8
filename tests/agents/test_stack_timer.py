"""The stack of a thread that nobody hears from, written while no Python code can run, and without harm to any."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="the kernel's timers are Linux's")]

START = """
import re, sys, threading, time
from flowshare.agents.host.watchdog import StackTimer

timer = StackTimer()
assert timer.works
"""


def run(code):
    """Run it; what it wrote to stderr."""
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stderr


def test_the_stack_of_a_thread_that_holds_the_interpreter_lock_is_written():
    written = run(
        """
def catastrophic():
    re.match(r"(a+)+$", "a" * 22 + "b")

timer.arm(0.05)
catastrophic()
timer.close()
"""
    )

    assert "most recent call first" in written
    assert "in catastrophic" in written


def test_threads_that_run_meanwhile_are_not_harmed():
    """faulthandler's own timer ends such a process by SIGSEGV, after some seconds."""
    written = run(
        """
def deep(left):
    return 0 if left == 0 else deep(left - 1) + len([one for one in range(3)])

def busy():
    while True:
        deep(50)

for _ in range(3):
    threading.Thread(target=busy, daemon=True).start()

end_s = time.monotonic() + 3
while time.monotonic() < end_s:
    timer.arm(0.0005)
    for _ in range(20):
        deep(60)
timer.close()
"""
    )

    assert written.count("most recent call first") > 10


def test_it_comes_due_unless_it_is_armed_anew_or_closed():
    """The signal is blocked, so that it can be waited for."""
    written = run(
        """
import signal
from flowshare.agents.host.watchdog import NUMBER

signal.pthread_sigmask(signal.SIG_BLOCK, [NUMBER])
timer.arm(0.001)
assert signal.sigtimedwait([NUMBER], 30) is not None

closed = StackTimer()
timer.arm(1.0)
closed.arm(1.0)
timer.arm(60.0)
closed.close()
closed.arm(0.001)
assert signal.sigtimedwait([NUMBER], 1.5) is None
"""
    )

    assert not written


def test_a_signal_that_the_application_handles_is_left_to_it():
    written = run(
        """
import signal
from flowshare.agents.host.watchdog import NUMBER

timer.close()
signal.signal(NUMBER, lambda *_: print("mine", file=sys.stderr))
other = StackTimer()
assert not other.works
other.arm(0.01)
signal.raise_signal(NUMBER)
"""
    )

    assert written == "mine\n"
