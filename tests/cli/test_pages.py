"""Commands that ask a worker's pages: as its own user, with the token, and as anybody."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import threading

import orjson
import pytest

from flowshare.agents.pages import own_user
from flowshare.agents.pages.gate import PageSettings
from flowshare.backend.path_workers import Registration
from flowshare.cli import main
from flowshare.cli.lag import _LagSource
from flowshare.ops import Failure
from flowshare.web.server import WebServer
from tests.waiting import LIMIT_S
from tests.web.test_web import TOKEN, Runtime, StandIn

APP = """
import flowshare as fs

app = fs.App("paged", broker="memory://")


@app.share_agent("in")
async def agent(value: bytes) -> None: ...


@app.share_pipeline("in", group="other")
def pipeline(rows): ...
"""


class Rows(StandIn):
    def __init__(self):
        super().__init__()
        self.runtimes = {"bill": Runtime()}

    def in_flight(self, *, stacks=False):
        row = {"agent": "bill", "topic": "orders", "partition": 0, "offset": 17, "attempt": 1, "age_s": 1.0}
        return [{**row, "lock_left_s": 9.0, **({"stack": "in bill"} if stacks else {})}]


@pytest.fixture
def shell(capsys):
    def run(*args, code=0):
        """Return the output of a command that ends with this code: stderr when it fails, else stdout."""
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        out, err = capsys.readouterr()
        assert stop.value.code == code, (out, err)
        return out if code == 0 else err

    return run


@pytest.fixture
def worker():
    """A worker's pages in a thread: its stand-in and their address."""
    host = Rows()
    server = WebServer(host, PageSettings(token=TOKEN.encode()))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    address = asyncio.run_coroutine_threadsafe(server.start(), loop).result(LIMIT_S)
    yield host, address
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(LIMIT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(LIMIT_S)
    loop.close()


@pytest.fixture
def stranger(monkeypatch):
    """Make each caller seem to be another user, or on another machine."""
    monkeypatch.setattr(own_user, "connect", lambda address, timeout_s: None)


def test_the_workers_own_user_drains_it_and_sees_stacks(shell, worker):
    host, address = worker

    assert "drained" in shell("drain", "--web", address)
    assert host.drains == [None]
    assert "in bill" in shell("inflight", "--web", address, "--stacks")


@pytest.mark.parametrize("command", ["inflight", "drain", "resize"])
def test_the_usage_shows_that_the_app_may_be_left_out(shell, command):
    assert "[MODULE:APP]" in shell(command, "--help").splitlines()[0]


def test_the_supervisor_of_a_paths_workers_is_told_to_drain_and_none_of_them(shell, worker, tmp_path):
    host, address = worker
    known = Registration(tmp_path, address="127.0.0.1:1", now_ms=1, supervisor=address)
    other = tmp_path / "workers" / "1.json"
    other.write_bytes(
        orjson.dumps({"pid": 1, "host": "h", "address": "127.0.0.1:2", "since_ms": 2, "supervisor": address})
    )
    with other.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "drained" in shell("drain", "--broker", f"embedded://{tmp_path}")
    assert host.drains == [None]
    assert "drained" in shell("drain", "--broker", f"embedded://{tmp_path}"), "one has registered, and has a supervisor"
    assert host.drains == [None, None]
    known.remove()


def test_the_one_worker_of_a_path_is_drained_by_it_and_of_several_one_is_named(shell, worker, tmp_path):
    host, address = worker
    known = Registration(tmp_path, address=address, now_ms=1)

    assert "drained" in shell("drain", "--broker", f"embedded://{tmp_path}")
    assert host.drains == [None]
    other = tmp_path / "workers" / "1.json"
    other.write_bytes(orjson.dumps({"pid": 1, "host": "h", "address": "127.0.0.1:1", "since_ms": 2}))
    with other.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "name one of them by --web" in shell("drain", "--broker", f"embedded://{tmp_path}", code=1)
    known.remove()
    assert "no worker runs on" in shell("drain", "--broker", f"embedded://{tmp_path}", code=1)


def test_the_one_supervisor_of_a_path_is_found_by_its_workers(shell, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("flowshare.cli.pages.ask", lambda *args, **more: asked.append(args) or {"workers": 3})
    path = f"embedded://{tmp_path}"
    alone = Registration(tmp_path, address="127.0.0.1:1", now_ms=1)
    assert "no supervisor has workers on" in shell("resize", "3", "--broker", path, code=1)
    alone.remove()
    known = Registration(tmp_path, address="127.0.0.1:1", now_ms=1, supervisor="127.0.0.1:9")

    assert "keeps 3 workers" in shell("resize", "3", "--broker", path)
    assert asked == [("127.0.0.1:9", "/resize?workers=3")]
    known.remove()
    assert "name one by --web" in shell("resize", "3", "--broker", "kafka://127.0.0.1:9", code=1)


@pytest.mark.parametrize("command", [["drain"], ["resize", "3"]])
def test_the_first_ctrl_c_ends_an_order_that_waits_for_its_answer(shell, monkeypatch, command):
    answered = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    def interrupted(*_, **__):
        signal.raise_signal(signal.SIGINT)
        answered.append(True)
        return {"drained": True, "workers": 3}

    monkeypatch.setattr("flowshare.cli.pages.ask", interrupted)

    try:
        assert "interrupted" in shell(*command, "--web", "127.0.0.1:1", code=130)
    finally:
        signal.signal(signal.SIGINT, before)
    assert answered == []


@pytest.mark.parametrize("answer", [{}, [], 3, {"workers": None, "drained": "yes"}])
@pytest.mark.parametrize("command", [["drain"], ["resize", "3"]])
def test_an_answer_without_the_figure_is_no_success(shell, monkeypatch, command, answer):
    monkeypatch.setattr("flowshare.cli.pages.ask", lambda *_, **__: answer)

    assert "is it a worker or supervisor" in shell(*command, "--web", "127.0.0.1:1", code=1)


async def needed_of(address: str):
    source = _LagSource("memory://", (address,))
    try:
        return await source.needed()
    finally:
        await source.close()


def test_anybody_else_is_told_what_it_takes(shell, worker, stranger):
    host, address = worker

    refused = shell("drain", "--web", address, code=1)
    assert "answered 403: this is for the operator" in refused
    assert "FLOWSHARE_WEB_TOKEN" in refused
    assert host.drains == []
    told = shell("inflight", "--web", address, "--stacks")
    assert "orders" not in told
    assert "bill" not in told
    with pytest.raises(Failure, match="names and stacks are told to the operator"):
        asyncio.run(needed_of(address))


def test_the_token_makes_an_operator_of_who_comes_from_elsewhere(shell, worker, stranger, monkeypatch, tmp_path):
    host, address = worker
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    monkeypatch.setenv("FLOWSHARE_WEB_TOKEN_FILE", str(file))

    assert "drained" in shell("drain", "--web", address)
    assert len(host.drains) == 1
    monkeypatch.setenv("FLOWSHARE_WEB_TOKEN_FILE", "/none")
    assert "cannot be read" in shell("drain", "--web", address, code=1)


def test_another_user_in_the_workers_place_is_not_believed(shell, worker, monkeypatch):
    _, address = worker
    monkeypatch.setattr(own_user, "_peer", lambda sock: (1, 4711))
    monkeypatch.setattr(own_user, "port_owner", lambda address: 4711)
    monkeypatch.setattr("os.geteuid", lambda: 4712)

    assert "is another user's" in shell("drain", "--web", address, code=1)


@pytest.mark.parametrize("command", ["worker", "scale", "pipeline"])
def test_hosts_and_tokens_that_are_none_are_refused_before_anything_runs(shell, command, tmp_path, monkeypatch):
    (tmp_path / "paged.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    more = ("--max", "2") if command == "scale" else ()

    assert "is no host" in shell(command, "paged:app", *more, "--web-host", "a/b", code=1)
    assert "cannot be read" in shell(command, "paged:app", *more, "--web-token-file", str(tmp_path / "none"), code=1)
