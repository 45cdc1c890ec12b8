"""Processes are told by number and birth."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from flowshare import processes
from flowshare.protocol import client_software
from flowshare.server.edge import api_versions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")


def test_this_process_runs_and_nobody_else_had_its_number():
    own = processes.own()
    assert own is not None
    assert own[0] == os.getpid()
    assert processes.runs(own)
    assert not processes.runs((own[0], own[1] - 1))


def test_one_that_has_ended_does_not_run_though_nobody_has_collected_it():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = processes.birth(child.pid)
    assert born is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.runs((child.pid, born))
    child.communicate()
    assert processes.birth(child.pid) is None


@pytest.mark.parametrize(
    ("host", "version", "believed"),
    [
        ("127.0.0.1", "own", True),
        ("10.0.0.7", "own", False),
        ("127.0.0.1", "0.1.0-process.1.9999999", False),
        ("127.0.0.1", "0.1.0-worker.3", False),
    ],
)
def test_what_a_client_says_of_its_process_is_believed_where_it_can_be_seen(host, version, believed):
    own = processes.own()
    told = client_software.version("0.1.0", None, own) if version == "own" else version
    call = SimpleNamespace(peer=SimpleNamespace(connection=SimpleNamespace(host=host)))
    assert api_versions._process(call, told) == (own if believed else None)
