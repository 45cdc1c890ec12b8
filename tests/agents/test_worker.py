"""A worker as a process of its own: signals, bad handlers, restarts, exit codes, and what it says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowshare.backend.path_workers import running_workers
from flowshare.clock import LoopClock
from flowshare.log.owner import read_owner
from tests.agents.processes import Processes
from tests.waiting import LIMIT_S, blocking_pause, blocking_until

pytestmark = pytest.mark.slow

APP = """
import asyncio, ctypes, os, re, time
import flowshare as fs

app = fs.App("shop", broker=os.environ["URL"])

def note(word, order):
    with open(os.environ["JOURNAL"], "a") as file:
        file.write(f"{word} {order['id']} {time.time()} {os.getpid()}\\n")

"""

ASYNC = """
@app.share_agent("orders", concurrency=4, drain_timeout=5)
async def bill(order: dict) -> None:
    note("begin", order)
    await asyncio.sleep(order.get("sleep", 0))
    note("end", order)
"""

BLOCKING = """
@app.share_agent("orders", concurrency=4, drain_timeout=2)
async def bill(order: dict) -> None:
    note("begin", order)
    time.sleep(order.get("block", 0))
    note("end", order)
"""

GATED = """
@app.share_agent("orders", concurrency=1, lock_duration=2)
async def bill(order: dict) -> None:
    note("begin", order)
    while "gate" in order and not os.path.exists(order["gate"]):
        time.sleep(0.01)
    note("end", order)
"""

REGEX = """
@app.share_agent("orders", concurrency=4, drain_timeout=1)
async def bill(order: dict) -> None:
    note("begin", order)
    re.match(r"(a|aa)+$", "a" * 90 + "b")
"""

HOLDING = """
@app.share_agent("orders", concurrency=4, drain_timeout=5)
async def bill(order: dict) -> None:
    note("begin", order)
    if "pipe" in order:  # with the interpreter lock until somebody writes to it
        while ctypes.PyDLL(None).open(order["pipe"].encode(), os.O_RDONLY) < 0:
            pass
    note("end", order)
"""

FOR_EVER_S = 600
"""Longer than any test waits: what is done before that did not wait for it."""


class Shop(Processes):
    """A folder with an app, its log, and the processes that run it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, f"embedded://{folder}/log")
        self.path = folder / "log"

    def write(self, body: str) -> None:
        (self.folder / "shop.py").write_text(APP + textwrap.dedent(body))

    def order(self, *orders: dict) -> None:
        self.send("orders", *(json.dumps(order).encode() for order in orders))

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        return self.cli("worker", "shop:app", *options)

    def noted(self, word: str) -> list[tuple[int, float, int]]:
        """Order, time and process of each note."""
        return [(int(order), float(at), int(pid)) for said, order, at, pid in self.notes() if said == word]

    def ids(self, word: str) -> list[int]:
        return [order for order, _, _ in self.noted(word)]

    def wait_for(self, word: str, count: int) -> None:
        self.wait(lambda: len(self.noted(word)) >= count, f"{count} × {word}")

    def address(self, process: subprocess.Popen[bytes]) -> str:
        """Where its health pages are; empty while it has none."""
        entries = {entry.pid: entry.address for entry in running_workers(self.path)}
        return entries.get(process.pid, "")

    def page(self, process: subprocess.Popen[bytes], page: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address(process)}{page}", timeout=LIMIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def end(self, process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
        """Signal it and wait; its exit code."""
        process.send_signal(number)
        return process.wait(LIMIT_S)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with contextlib.closing(Shop(tmp_path)) as made:
        yield made


def test_sigterm_lets_handlers_finish_and_nothing_comes_twice(shop):
    shop.write(ASYNC)
    shop.order(*({"id": n, "sleep": 0.5} for n in range(8)))
    worker = shop.worker("--drain-timeout", str(FOR_EVER_S))
    shop.wait_for("begin", 4)

    assert shop.end(worker) == 0, shop.log(worker)

    assert sorted(shop.ids("end")) == sorted(shop.ids("begin"))
    second = shop.worker()
    shop.wait_for("end", 8)
    shop.end(second)
    assert sorted(shop.ids("end")) == list(range(8))


def test_an_idle_worker_ends_at_once(shop):
    shop.write(ASYNC)
    worker = shop.worker("--drain-timeout", str(FOR_EVER_S))
    shop.wait_log(worker, "ready after")

    assert shop.end(worker, signal.SIGINT) == 0, shop.log(worker)


def test_a_handler_past_the_drain_deadline_is_cut_off_and_its_record_runs_again(shop):
    shop.write(ASYNC)
    shop.order({"id": 1, "sleep": FOR_EVER_S})
    worker = shop.worker("--drain-timeout", "1")
    shop.wait_for("begin", 1)

    assert shop.end(worker) == 3, shop.log(worker)

    again = shop.worker()
    shop.wait_for("begin", 2)
    assert again.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_handler_that_blocks_its_loop_cannot_hold_off_the_end(shop, number):
    shop.write(BLOCKING)
    shop.order({"id": 1, "block": FOR_EVER_S})
    worker = shop.worker()
    shop.wait_for("begin", 1)

    assert shop.end(worker, number) == 3, shop.log(worker)

    assert "time.sleep(order.get" in shop.log(worker)


def test_a_second_ctrl_c_ends_at_once_with_130(shop):
    shop.write(BLOCKING)
    shop.order({"id": 1, "block": FOR_EVER_S})
    worker = shop.worker("--drain-timeout", str(FOR_EVER_S))
    shop.wait_for("begin", 1)
    worker.send_signal(signal.SIGINT)
    shop.wait_log(worker, "second Ctrl-C")

    assert shop.end(worker, signal.SIGINT) == 130


def test_health_locks_and_heartbeats_go_on_while_a_handler_blocks(shop):
    gate = shop.folder / "gate"
    shop.write(GATED)
    shop.order({"id": 1, "gate": str(gate)}, {"id": 2})
    worker = shop.worker()
    shop.wait_for("begin", 1)
    shop.wait_log(worker, "the handler loop has been blocked")
    shop.wait(lambda: shop.address(worker), "health pages")

    assert "os.path.exists(order" in shop.log(worker) or "time.sleep(0.01)" in shop.log(worker)
    assert shop.page(worker, "/live")[0] == 200
    assert json.loads(shop.page(worker, "/inflight?stacks=1")[1])[0]["offset"] == 0
    shop.wait(lambda: shop.page(worker, "/ready")[0] == 503, "not ready")
    thrice = 'type="renew"} [3-9]'  # 0.8 s apart: longer than the lock of 2 s
    shop.wait(lambda: re.search(thrice, shop.page(worker, "/metrics")[1]), "renewals")
    gate.touch()
    shop.wait_for("end", 2)

    assert shop.end(worker) == 0, shop.log(worker)
    assert shop.ids("end") == [1, 2]


def test_code_that_holds_the_gil_is_shown_and_survived(shop):
    pipe = shop.folder / "pipe"
    os.mkfifo(pipe)
    shop.write(HOLDING)
    shop.order({"id": 1, "pipe": str(pipe)}, {"id": 2})
    worker = shop.worker()
    shop.wait_for("begin", 1)
    shop.wait_log(worker, "most recent call first")
    blocking_pause(0.6, "the stack is shown a moment before it counts as a standstill")

    pipe.write_bytes(b"go on")
    shop.wait_for("end", 2)
    shop.wait_log(worker, "every thread of this process stood still")

    assert "in bill" in shop.log(worker)
    assert shop.end(worker) == 0
    assert sorted(shop.ids("end")) == [1, 2]


def test_code_that_never_lets_the_gil_go_is_ended_after_the_drain_time(shop):
    shop.write(REGEX)
    shop.order({"id": 1})
    worker = shop.worker()
    shop.wait_for("begin", 1)

    assert shop.end(worker) != 0


def test_sigusr1_prints_what_is_in_flight(shop):
    shop.write(ASYNC)
    shop.order({"id": 1, "sleep": FOR_EVER_S})
    worker = shop.worker("--drain-timeout", "0")
    shop.wait_for("begin", 1)

    def asked() -> str:
        worker.send_signal(signal.SIGUSR1)
        return shop.log(worker)

    # The handler may still be writing that it began; asked again, it sleeps.
    log = blocking_until(asked, good=lambda log: "await asyncio.sleep(order.get" in log, look_s=0.5)

    assert "in flight: 1 record\n" in log
    assert "bill orders-0@0 attempt 1" in log


def test_commands_work_beside_running_workers(shop):
    shop.write(ASYNC)
    shop.order({"id": 1, "sleep": FOR_EVER_S}, {"id": 2, "sleep": FOR_EVER_S})
    workers = [shop.worker("-c", "1", "--drain-timeout", "0") for _ in range(2)]
    shop.wait_for("begin", 2)
    shop.wait(lambda: all(map(shop.address, workers)), "health pages")

    found = json.loads(shop.run("inflight", "shop:app", "--json"))
    begun_by = {order: str(pid) for order, _, pid in shop.noted("begin")}
    assert {(row["worker"], row["offset"] + 1) for row in found} == {(begun_by[1], 1), (begun_by[2], 2)}
    assert "WORKER" in shop.run("inflight", "shop:app")
    [row] = json.loads(shop.run("inflight", "--web", shop.address(workers[1]), "--json"))
    assert (row["worker"], row["agent"]) == (shop.address(workers[1]), "bill")
    [row] = json.loads(shop.run("lag", "--app", "shop:app", "--json"))
    assert (row["group"], row["backlog"], row["in_flight"]) == ("shop.bill", 2, 2)
    assert row["rate"] == 0
    assert "orders" in shop.run("topics", "ls", "--app", "shop:app")
    assert f"process {workers[0].pid} works on it already" in shop.run("check", "shop:app")


def test_a_worker_waits_for_a_command_that_has_the_path(shop):
    shop.write(ASYNC)
    shop.order({"id": 1})
    command = subprocess.Popen(
        [sys.executable, "-m", "flowshare.cli", "send", "orders", "--lines", "--app", "shop:app"],
        cwd=shop.folder,
        env=shop.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    shop.wait(lambda: (owner := read_owner(shop.path)) is not None and owner.pid == command.pid, "the path is taken")
    worker = shop.worker()

    command.communicate(b'{"id": 2}\n', timeout=LIMIT_S)
    shop.wait_for("end", 2)

    assert read_owner(shop.path).pid == worker.pid


def test_kill_9_loses_nothing(shop):
    shop.write(ASYNC)
    shop.order(*({"id": n, "sleep": 0.01} for n in range(300)))
    worker = shop.worker()
    shop.wait_for("end", 50)
    worker.kill()
    worker.wait()

    second = shop.worker()
    shop.wait(lambda: set(shop.ids("end")) == set(range(300)), "all ended")

    assert shop.end(second) == 0
    ended = shop.ids("end")
    assert len(ended) - len(set(ended)) <= 60


def test_a_worker_handles_its_first_record_soon(shop):
    shop.write(ASYNC)
    shop.order({"id": 1})
    begun = LoopClock().now_ms() / 1000
    worker = shop.worker()
    shop.wait_for("begin", 1)
    took = shop.noted("begin")[0][1] - begun
    shop.end(worker)

    sys.stderr.write(f"first record after {took:.2f} s\n")


@pytest.mark.parametrize("options", [(), ("--procs", "2")], ids=["one", "supervised"])
def test_a_worker_whose_path_is_removed_ends_and_makes_no_new_one(shop, options):
    shop.write(ASYNC)
    worker = shop.worker(*options)
    shop.wait_log(worker, "workers are ready" if options else "ready after")
    shop.order({"id": 1})
    shop.wait_for("end", 1)

    shop.path.rename(shop.folder / "elsewhere")
    code = worker.wait(LIMIT_S)

    assert code == 1
    assert f"{shop.path} was removed or replaced while this process worked on it: put it back" in shop.log(worker)
    assert not shop.path.exists()


def test_reload_restarts_after_a_change(shop):
    shop.write(ASYNC)
    worker = shop.worker("--reload", "--log-format", "json")
    shop.wait_log(worker, "ready after")
    shop.write(ASYNC.replace("async def bill", "async def charge"))
    shop.wait_log(worker, "shop.charge")

    assert shop.end(worker, signal.SIGINT) == 0, shop.log(worker)
    assert "stopped" in shop.log(worker)


ENDING = """
async def part(order):
    raise {"exit": SystemExit(9), "interrupt": KeyboardInterrupt(), "closed": GeneratorExit()}[order["how"]]

@app.share_agent("orders", retry=fs.Retry(max_attempts=2, delay=0), drain_timeout=5)
async def bill(order: dict) -> None:
    note("begin", order)
    if "how" in order:
        if order["own"]:
            await part(order)
        async with asyncio.TaskGroup() as group:
            group.create_task(part(order))
            group.create_task(asyncio.sleep(60))
    note("end", order)
"""


def test_no_exit_out_of_a_handler_or_of_its_tasks_ends_a_worker_and_each_is_named_in_its_dead_letter(shop):
    shop.write(ENDING)
    hows = [(how, own) for how in ("exit", "interrupt", "closed") for own in (True, False)]
    shop.order(*({"id": n, "how": how, "own": own} for n, (how, own) in enumerate(hows)))
    worker = shop.worker("--drain-timeout", str(FOR_EVER_S))
    shop.wait_for("begin", 2 * len(hows))
    shop.order({"id": 99})
    shop.wait_for("end", 1)

    assert shop.end(worker, signal.SIGINT) == 0, shop.log(worker)

    letters = shop.run("dlq", "show", "shop.bill.dlq", "--broker", f"embedded://{shop.path}")
    assert letters.count("SystemExit: 9") == 2, letters
    assert letters.count("KeyboardInterrupt") == 2, letters
    assert letters.count("GeneratorExit") == 2, letters  # of a group, too: its reason names the errors in it
    assert "CancelledError" not in letters
