"""`flowshare dev up`, `status` and `down`, with a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from flowshare.dev import cache_dir
from flowshare.dev.jars import jars
from flowshare.dev.processes import birth, process

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(func_only=True)]


@pytest.fixture
def dev(tmp_path, monkeypatch):
    """Run `flowshare dev …` with a state of its own and the jars of everybody; the broker is ended afterwards."""
    jars()
    own = tmp_path / "cache" / "flowshare"
    own.mkdir(parents=True)
    (own / "kafka").symlink_to(cache_dir() / "kafka")

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flowshare.cli", "dev", *args],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    yield run
    run("down")


def facts(dev):
    return json.loads(dev("status", "--json").stdout)


def test_up_status_and_down(dev):
    before = dev("status")
    first = dev("up", "--port", "0", "--by", "jars")
    (pid,) = facts(dev)["pids"]
    again = dev("up", "--by", "jars")
    status = dev("status")
    other = dev("up", "--version", "3.9.1")
    down = dev("down")
    after = dev("status")
    nothing = dev("down")

    assert (before.returncode, first.returncode, status.returncode, after.returncode) == (3, 0, 0, 3), first.stderr
    assert first.stdout.startswith("kafka://127.0.0.1:")
    assert again.stdout == first.stdout
    assert "it runs already" in again.stderr
    assert first.stdout.strip() in status.stdout
    assert other.returncode == 1
    assert "flowshare dev down" in other.stderr
    assert down.returncode == 0
    assert birth(pid) is None
    assert "no broker runs" in nothing.stderr
    assert nothing.returncode == 0


def test_a_broker_that_died_is_told_and_replaced(dev):
    first = dev("up", "--port", "0", "--by", "jars")
    (pid,) = facts(dev)["pids"]
    os.kill(pid, signal.SIGSTOP)
    silent = dev("status")
    found = process(pid)
    assert found is not None
    found.end(0)
    died = dev("status")
    second = dev("up", "--port", "0", "--by", "jars")

    assert first.returncode == 0, first.stderr
    assert silent.returncode == 1
    assert "does not answer" in silent.stdout
    assert died.returncode == 3
    assert "died" in died.stdout
    assert second.returncode == 0, second.stderr
    assert facts(dev)["pids"] != [pid]


def test_down_leaves_a_process_alone_that_only_has_the_number(dev, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    state = {"version": "4.3.1", "addresses": ["127.0.0.1:1"], "processes": [[child.pid, "another birth"]]}
    file = tmp_path / "cache" / "flowshare" / "dev-broker.json"
    file.write_text(json.dumps({**state, "container": None, "data": None, "keep": False}))

    assert dev("status").returncode == 3
    assert dev("down").returncode == 0

    assert child.poll() is None
    child.communicate(b"\n")
    assert not file.exists()


def test_data_that_was_named_is_there_the_next_time(dev, tmp_path):
    from confluent_kafka.admin import AdminClient, NewTopic

    def broker() -> AdminClient:
        up = dev("up", "--port", "0", "--data", str(tmp_path / "data"))
        assert up.returncode == 0, up.stderr
        return AdminClient({"bootstrap.servers": up.stdout.strip().removeprefix("kafka://")})

    admin = broker()
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(20)
    down = dev("down")

    assert str(tmp_path / "data") in down.stderr
    assert "kept" in broker().list_topics(timeout=20).topics


def test_a_broker_that_cannot_start_shows_the_end_of_its_log(tmp_path):
    from flowshare.dev import DevFailure
    from flowshare.dev.broker import Wanted, start

    with pytest.raises(DevFailure, match=r"ended while it started|could not format") as refused:
        start(Wanted(settings={"group.share.max.size": "-1"}), tied=True, how="jars")

    assert "group.share.max.size" in str(refused.value)


def test_a_tied_broker_ends_with_a_process_that_is_killed():
    source = (
        "import os, signal\n"
        "from flowshare.dev.broker import Wanted, start\n"
        "broker = start(Wanted(), tied=True)\n"
        "print(broker.processes[0].pid, broker.data, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False)

    pid, data = done.stdout.split()
    found = process(int(pid))
    assert found is None or found.gone_within(10)
    subprocess.run(["rm", "-rf", data], check=True)
