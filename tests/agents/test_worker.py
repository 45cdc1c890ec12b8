"""A worker as a process of its own: signals, bad handlers, restarts, exit codes, and what it says."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request

import pytest

from flowshare.backend.workers import running_workers
from flowshare.clock import LoopClock
from flowshare.log.owner import read_owner

pytestmark = pytest.mark.slow

APP = """
import asyncio, json, os, re, sys, time
import flowshare as fs

app = fs.App("shop", broker="embedded://" + os.environ["SHOP"])

def note(what):
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps([what, time.time(), os.getpid()]) + "\\n")

"""

ASYNC = """
@app.share_agent("orders", concurrency=4, drain_timeout=5)
async def bill(order: dict) -> None:
    note(["begin", order["id"]])
    await asyncio.sleep(order.get("sleep", 0))
    note(["end", order["id"]])
"""

BLOCKING = """
@app.share_agent("orders", concurrency=4, drain_timeout=2)
async def bill(order: dict) -> None:
    note(["begin", order["id"]])
    time.sleep(order.get("block", 0))
    note(["end", order["id"]])
"""

REGEX = """
@app.share_agent("orders", concurrency=4, drain_timeout=5)
async def bill(order: dict) -> None:
    note(["begin", order["id"]])
    if order.get("regex"):
        re.match(r"(a|aa)+$", "a" * order["regex"] + "b")
    note(["end", order["id"]])
"""


EXIT_S = 4
"""What a loaded machine may take to end a process, beyond its drain time; how long it takes, benchmarks print."""


class Shop:
    """A folder with an app, its log, and the processes that run it."""

    def __init__(self, folder):
        self.folder = folder
        self.notes_path = folder / "notes"
        self.path = folder / "log"
        self.env = {**os.environ, "SHOP": str(self.path), "NOTES": str(self.notes_path), "PYTHONUNBUFFERED": "1"}
        self.workers = []

    def write(self, body):
        (self.folder / "shop.py").write_text(APP + textwrap.dedent(body))

    def run(self, *args, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "flowshare.cli", *args],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def send(self, *orders):
        lines = "\n".join(json.dumps(order) for order in orders)
        (self.folder / "orders.jsonl").write_text(lines)
        self.run("send", "orders", "--lines", "--file", "orders.jsonl", "--app", "shop:app")

    def worker(self, *args):
        path = self.folder / f"worker-{len(self.workers)}.log"
        with path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "flowshare.cli", "worker", "shop:app", *args],
                cwd=self.folder,
                env=self.env,
                stdout=log,
                stderr=log,
            )
        process.log_path = path
        self.workers.append(process)
        return process

    def log(self, process):
        return process.log_path.read_text()

    def written(self):
        return self.notes_path.read_text() if self.notes_path.exists() else ""

    def notes(self, what):
        if not self.notes_path.exists():
            return []
        found = [json.loads(line) for line in self.notes_path.read_text().splitlines()]
        return [(note[1], at, pid) for note, at, pid in found if note[0] == what]

    def ids(self, what):
        return [note[0] for note in self.notes(what)]

    def wait_for(self, what, count, limit=30.0):
        self.wait(lambda: len(self.notes(what)) >= count, limit, f"{count} × {what}")

    def wait(self, ready, limit, name):
        until = time.monotonic() + limit
        while not ready():
            assert time.monotonic() < until, (name, self.written(), [self.log(worker) for worker in self.workers])
            for worker in self.workers[-1:]:
                assert worker.poll() is None or ready(), self.log(worker)
            time.sleep(0.02)

    def wait_log(self, process, text, limit=20.0):
        self.wait(lambda: text in self.log(process), limit, text)

    def address(self, process):
        """Where its health pages are; empty while it has none."""
        entries = {entry.pid: entry.address for entry in running_workers(self.path)}
        return entries.get(process.pid, "")

    def page(self, process, page):
        address = self.address(process)
        try:
            with urllib.request.urlopen(f"http://{address}{page}", timeout=2) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def end(self, process, number=signal.SIGTERM, limit=15.0):
        """Signal it and wait; exit code and seconds that it took."""
        begun = time.monotonic()
        process.send_signal(number)
        code = process.wait(limit)
        return code, time.monotonic() - begun


@pytest.fixture
def shop(tmp_path):
    shop = Shop(tmp_path)
    yield shop
    for process in shop.workers:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_sigterm_lets_handlers_finish_and_nothing_comes_twice(shop):
    shop.write(ASYNC)
    shop.send(*({"id": n, "sleep": 0.5} for n in range(8)))
    worker = shop.worker("--drain-timeout", "30")
    shop.wait_for("begin", 4)

    code, took = shop.end(worker)

    assert code == 0, shop.log(worker)
    assert took < 0.5 + EXIT_S, "it waited for the drain time though all was done"
    assert sorted(shop.ids("end")) == sorted(shop.ids("begin"))
    second = shop.worker()
    shop.wait_for("end", 8)
    shop.end(second)
    assert sorted(shop.ids("end")) == list(range(8))


def test_an_idle_worker_ends_at_once(shop):
    shop.write(ASYNC)
    worker = shop.worker("--drain-timeout", "30")
    shop.wait_log(worker, "ready after")

    code, took = shop.end(worker, signal.SIGINT)

    assert code == 0, shop.log(worker)
    assert took < EXIT_S, "it waited for the drain time though there was nothing to drain"


def test_a_handler_past_the_drain_deadline_is_cut_off_and_its_record_runs_again(shop):
    shop.write(ASYNC)
    shop.send({"id": 1, "sleep": 60})
    worker = shop.worker("--drain-timeout", "1")
    shop.wait_for("begin", 1)

    code, took = shop.end(worker)

    assert code == 3, shop.log(worker)
    assert 0.8 <= took < 1 + EXIT_S, "the handler gets the drain time, and no more"
    again = shop.worker()
    shop.wait_for("begin", 2)
    assert again.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_handler_that_blocks_its_loop_cannot_hold_off_the_end(shop, number):
    shop.write(BLOCKING)
    shop.send({"id": 1, "block": 60})
    worker = shop.worker()
    shop.wait_for("begin", 1)

    code, took = shop.end(worker, number)

    assert code == 3, shop.log(worker)
    assert took < 2 + EXIT_S
    assert "time.sleep(order.get" in shop.log(worker)


def test_a_second_ctrl_c_ends_at_once_with_130(shop):
    shop.write(BLOCKING)
    shop.send({"id": 1, "block": 60})
    worker = shop.worker("--drain-timeout", "30")
    shop.wait_for("begin", 1)
    worker.send_signal(signal.SIGINT)
    shop.wait_log(worker, "second Ctrl-C")

    code, took = shop.end(worker, signal.SIGINT)

    assert code == 130
    assert took < EXIT_S, "it waited for the drain time"


def test_health_locks_and_heartbeats_go_on_while_a_handler_blocks(shop):
    shop.write(BLOCKING.replace("concurrency=4", "concurrency=1, lock_duration=2"))
    shop.send({"id": 1, "block": 7}, {"id": 2})
    worker = shop.worker()
    shop.wait_for("begin", 1)
    shop.wait_log(worker, "the handler loop has been blocked")
    shop.wait(lambda: shop.address(worker), 10, "health pages")

    assert "time.sleep(order.get" in shop.log(worker)
    assert shop.page(worker, "/live")[0] == 200
    assert json.loads(shop.page(worker, "/inflight?stacks=1")[1])[0]["offset"] == 0
    shop.wait(lambda: shop.page(worker, "/ready")[0] == 503, 10, "not ready")
    shop.wait_for("end", 2)
    code, _ = shop.end(worker)

    assert code == 0, shop.log(worker)
    assert shop.ids("end") == [1, 2]  # a lock of 2 s was renewed through a block of 7 s


def test_code_that_holds_the_gil_is_shown_and_survived(shop):
    shop.write(REGEX)
    shop.send({"id": 1, "regex": 38}, {"id": 2})
    worker = shop.worker()
    shop.wait_for("end", 2, limit=60)
    shop.wait_log(worker, "every thread of this process stood still")

    assert "most recent call first" in shop.log(worker)
    assert "re.py" in shop.log(worker) or "re/__init__.py" in shop.log(worker)
    code, _ = shop.end(worker)
    assert code == 0
    assert sorted(shop.ids("end")) == [1, 2]


def test_code_that_never_lets_the_gil_go_is_ended_after_the_drain_time(shop):
    shop.write(REGEX.replace("drain_timeout=5", "drain_timeout=1"))
    shop.send({"id": 1, "regex": 90})
    worker = shop.worker()
    shop.wait_for("begin", 1)

    code, took = shop.end(worker)

    assert code != 0
    assert took < 8


def test_sigusr1_prints_what_is_in_flight(shop):
    shop.write(ASYNC)
    shop.send({"id": 1, "sleep": 30})
    worker = shop.worker("--drain-timeout", "0")
    shop.wait_for("begin", 1)

    worker.send_signal(signal.SIGUSR1)
    shop.wait_log(worker, "in flight: 1 records")

    assert "bill orders-0@0 attempt 1" in shop.log(worker)
    assert "await asyncio.sleep(order.get" in shop.log(worker)


def test_commands_work_beside_running_workers(shop):
    shop.write(ASYNC)
    shop.send({"id": 1, "sleep": 30}, {"id": 2, "sleep": 30})
    workers = [shop.worker("-c", "1", "--drain-timeout", "0") for _ in range(2)]
    shop.wait_for("begin", 2)
    shop.wait(lambda: all(map(shop.address, workers)), 10, "health pages")

    found = json.loads(shop.run("inflight", "shop:app", "--json"))
    begun_by = {offset: str(pid) for offset, _, pid in shop.notes("begin")}
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
    shop.send({"id": 1})
    command = subprocess.Popen(
        [sys.executable, "-m", "flowshare.cli", "send", "orders", "--lines", "--app", "shop:app"],
        cwd=shop.folder,
        env=shop.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    shop.wait(
        lambda: (owner := read_owner(shop.path)) is not None and owner.pid == command.pid, 20, "the path is taken"
    )
    worker = shop.worker()

    command.communicate(b'{"id": 2}\n', timeout=20)
    shop.wait_for("end", 2)

    assert read_owner(shop.path).pid == worker.pid


def test_kill_9_loses_nothing(shop):
    shop.write(ASYNC)
    shop.send(*({"id": n, "sleep": 0.01} for n in range(300)))
    worker = shop.worker()
    shop.wait_for("end", 50)
    worker.kill()
    worker.wait()

    second = shop.worker()
    shop.wait(lambda: set(shop.ids("end")) == set(range(300)), 30, "all ended")
    code, _ = shop.end(second)

    assert code == 0
    ended = shop.ids("end")
    assert len(ended) - len(set(ended)) <= 60


def test_a_worker_handles_its_first_record_soon(shop):
    shop.write(ASYNC)
    shop.send({"id": 1})
    begun = LoopClock().now_ms() / 1000
    worker = shop.worker()
    shop.wait_for("begin", 1)
    took = shop.notes("begin")[0][1] - begun
    shop.end(worker)

    sys.stderr.write(f"first record after {took:.2f} s\n")


def test_reload_restarts_after_a_change(shop):
    shop.write(ASYNC)
    worker = shop.worker("--reload", "--log-format", "json")
    shop.wait_log(worker, "ready after")
    shop.write(ASYNC.replace("async def bill", "async def charge"))
    shop.wait_log(worker, "shop.charge")

    code, _ = shop.end(worker, signal.SIGINT)

    assert code == 0, shop.log(worker)
    assert "stopped" in shop.log(worker)


ENDING = """
async def part(order):
    raise {"exit": SystemExit(9), "interrupt": KeyboardInterrupt(), "closed": GeneratorExit()}[order["how"]]

@app.share_agent("orders", retry=fs.Retry(max_attempts=2, delay=0), drain_timeout=5)
async def bill(order: dict) -> None:
    note(["begin", order["id"]])
    if "how" in order:
        if order["own"]:
            await part(order)
        async with asyncio.TaskGroup() as group:
            group.create_task(part(order))
            group.create_task(asyncio.sleep(60))
    note(["end", order["id"]])
"""


def test_no_exit_out_of_a_handler_or_of_its_tasks_ends_a_worker_and_each_is_named_in_its_dead_letter(shop):
    shop.write(ENDING)
    hows = [(how, own) for how in ("exit", "interrupt", "closed") for own in (True, False)]
    shop.send(*({"id": n, "how": how, "own": own} for n, (how, own) in enumerate(hows)))
    worker = shop.worker()
    shop.wait_for("begin", 2 * len(hows))
    shop.send({"id": 99})
    shop.wait_for("end", 1)

    code, took = shop.end(worker, signal.SIGINT)

    assert code == 0, shop.log(worker)
    assert took < EXIT_S, "it waited for the drain time though there was nothing to drain"
    letters = shop.run("dlq", "show", "shop.bill.dlq", "--broker", f"embedded://{shop.path}")
    assert letters.count("SystemExit: 9") == 2, letters
    assert letters.count("KeyboardInterrupt") == 2, letters
    assert letters.count("GeneratorExit") == 1, letters  # of a group it is one of several
    assert "CancelledError" not in letters
