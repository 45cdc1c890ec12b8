"""Commands that ask a worker's pages: as its own user, with the token, and as anybody."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flowshare.agents.pages import own_user
from flowshare.agents.pages.gate import PageSettings
from flowshare.cli import main
from flowshare.cli.lag import _topics_of
from flowshare.cli.output import Failure
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
        """What a command prints that ends so: on stderr when it fails."""
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
    """What asks is another user's, or elsewhere."""
    monkeypatch.setattr(own_user, "connect", lambda address, timeout_s: None)


def test_the_workers_own_user_drains_it_and_sees_stacks(shell, worker):
    host, address = worker

    assert "drained" in shell("drain", "--web", address)
    assert host.drains == [None]
    assert "in bill" in shell("inflight", "--web", address, "--stacks")


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
        _topics_of(address)


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
    monkeypatch.setattr("os.geteuid", lambda: 4712)

    assert "is another user's" in shell("drain", "--web", address, code=1)


@pytest.mark.parametrize("command", ["worker", "scale", "pipeline"])
def test_hosts_and_tokens_that_are_none_are_refused_before_anything_runs(shell, command, tmp_path, monkeypatch):
    (tmp_path / "paged.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    more = ("--max", "2") if command == "scale" else ()

    assert "is no host" in shell(command, "paged:app", *more, "--web-host", "a/b", code=1)
    assert "cannot be read" in shell(command, "paged:app", *more, "--web-token-file", str(tmp_path / "none"), code=1)
