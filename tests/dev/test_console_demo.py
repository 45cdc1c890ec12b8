"""`make console-demo` goes on when somebody kills a worker to look at that, and says so."""

from __future__ import annotations

import pytest

from examples.flights.console_demo import Processes
from examples.flights.demo import DemoFailed


class Ended:
    """A process that has; or that has not."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code


def processes(tmp_path, **codes: int | None) -> Processes:
    made = Processes(tmp_path)
    made._running = {name: Ended(code) for name, code in codes.items()}
    return made


def test_a_worker_that_was_killed_is_told_once_and_the_others_go_on(tmp_path, capsys):
    made = processes(tmp_path, first=-9, second=None, console=None)
    for _ in range(2):
        made.check(needed=("console",))
    assert capsys.readouterr().out.count("first ended with exit code -9") == 1


@pytest.mark.parametrize(("needed", "who"), [(("console",), "console"), (None, "first")])
def test_without_a_console_or_at_the_start_without_a_worker_it_ends(tmp_path, needed, who):
    codes = {"first": None, "console": None, who: 1}
    with pytest.raises(DemoFailed, match=f"{who} ended with exit code 1"):
        processes(tmp_path, **codes).check(needed)
