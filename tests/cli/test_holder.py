"""Who holds an embedded path, as commands find out without opening it."""

import asyncio
import http.server
import json
import os
import threading

import pytest

from flowshare.cli.errors import Failure
from flowshare.cli.holder import Holder, find
from flowshare.cli.lag import _Source
from flowshare.log.base import StorageHeld
from flowshare.log.owner import OwnerLock


def test_a_path_that_is_held_names_process_and_address(tmp_path):
    lock = OwnerLock(tmp_path, now_ms=1, address="127.0.0.1:99")

    found = find(tmp_path)

    assert found is not None
    assert (found.pid, found.address) == (os.getpid(), "127.0.0.1:99")
    lock.release()
    assert find(tmp_path) is None


def test_an_owner_file_that_a_killed_process_left_counts_not(tmp_path):
    lock = OwnerLock(tmp_path, now_ms=1)
    left = (tmp_path / "owner.json").read_bytes()
    lock.release()
    (tmp_path / "owner.json").write_bytes(left)

    assert find(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"pid": null}', "\x00"])
def test_a_damaged_owner_file_names_nobody(tmp_path, content):
    (tmp_path / "owner.json").write_text(content)

    assert find(tmp_path) is None


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = self.path == "/lag?all=1"
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps([{"backlog": 1}]).encode() if found else b"no")

    def log_message(self, *args):
        pass


def test_a_page_of_the_holder_is_json_or_one_line():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        holder = Holder(pid=7, host="box", address=f"127.0.0.1:{server.server_port}")

        assert holder.get("/lag?all=1") == [{"backlog": 1}]
        with pytest.raises(Failure, match="process 7 answered 404"):
            holder.get("/nothing")
        server.shutdown()
    with pytest.raises(Failure, match="process 7 does not answer"):
        holder.get("/lag?all=1")


def test_a_worker_that_starts_while_the_lag_is_looked_at_is_asked(monkeypatch):
    class Started:
        pid, address = 7, "box:1"

        def get(self, page):
            return [{"backlog": 3}]

    found = iter([None, Started()])
    monkeypatch.setattr("flowshare.cli.session.holder_of", lambda url: next(found))

    def held(url):
        raise StorageHeld(url)

    monkeypatch.setattr("flowshare.cli.session.open_session", held)

    assert asyncio.run(_Source("embedded:///x").rows()) == [{"backlog": 3}]
