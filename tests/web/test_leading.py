"""Tests of a process's metrics about the groups that it leads, requests to it, its writes; `flowshare serve`, too."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

import flowshare as fs
from flowshare.cli.serve import serve
from flowshare.server.runtime.latencies import BOUNDS_S, Latencies
from flowshare.server.share.stats import Stats
from flowshare.web.metrics import LedMetrics, MergedMetrics
from tests.waiting import LIMIT_S, until


def told_of(stats: Mapping[str, Any]) -> dict[str, float]:
    lines = LedMetrics(stats).text().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


@pytest.mark.asyncio
async def test_a_leader_tells_what_was_asked_of_it_how_long_writes_took_and_in_which_state_groups_are():
    app = fs.App("t", broker="memory://")
    gate = asyncio.Event()

    @app.share_agent("in", name="agent", retry=fs.Retry(delay=0), dead_letter=None)
    async def agent(value: int, delivery: fs.Delivery) -> None:
        if value == 1:
            raise fs.Reject("no")
        if value == 2 and delivery.attempt == 1:
            raise ConnectionError("down")
        if value == 3:
            await gate.wait()

    async with app.running():
        host = app.running_host()
        for value in range(4):
            await app.topic("in").send(value=value)
        await until(host.led, good=lambda led: led["acks"]["accept"] == 2 and led["acks"]["reject"] == 1)
        told = told_of(host.led())
        gate.set()

    assert told['flowshare_led_record_acknowledgements_total{type="accept"}'] == 2
    assert told['flowshare_led_record_acknowledgements_total{type="release"}'] == 1
    assert told['flowshare_led_record_acknowledgements_total{type="reject"}'] == 1
    assert told['flowshare_groups{state="Stable",type="share"}'] == 1
    assert told['flowshare_group_rebalances_total{type="share"}'] == 1
    assert told["flowshare_share_sessions"] == told["flowshare_share_sessions_opened_total"] == 1
    assert told["flowshare_share_sessions_evicted_total"] == 0
    assert told["flowshare_led_in_flight_messages"] == 1
    assert told["flowshare_led_share_fetch_requests_total"] > 0
    assert told["flowshare_led_share_fetch_requests_failed_total"] == 0
    assert told["flowshare_share_partition_load_seconds_count"] == 1
    assert told["flowshare_state_write_seconds_count"] == told["flowshare_state_writes_total"]
    assert told['flowshare_state_write_seconds_bucket{le="+Inf"}'] == told["flowshare_state_writes_total"]


@pytest.mark.asyncio
async def test_a_leader_tells_of_consumer_groups_and_of_cooperative_ones():
    app = fs.App("t", broker="memory://")

    @app.cooperative_agent("in", name="agent")
    async def agent(value: int) -> None: ...

    async with app.running():
        host = app.running_host()
        await app.topic("in").send(value=1)
        await until(host.runtimes["agent"].stats, good=lambda stats: stats["accepted"] == 1)
        told = told_of(host.led())

    groups = {name: count for name, count in told.items() if name.startswith("flowshare_groups{")}
    assert sum(count for name, count in groups.items() if 'type="share"' not in name) == 1
    assert told['flowshare_group_rebalances_total{type="consumer"}'] >= 1
    assert told["flowshare_cooperative_partition_load_seconds_count"] >= 1
    assert told["flowshare_cooperative_state_write_seconds_count"] == told["flowshare_cooperative_state_writes_total"]


@pytest.mark.asyncio
async def test_a_session_that_ends_with_its_connection_counts_as_evicted():
    app = fs.App("t", broker="memory://")

    @app.share_agent("in", name="agent")
    async def agent(value: int) -> None: ...

    async with app.running():
        host = app.running_host()
        await until(host.led, good=lambda led: led["sessions"] == 1)
        sessions = host.backend._server.share.sessions
        for connection in tuple(sessions._cores._by_connection):
            sessions.disconnected(connection)
        told = told_of(host.led())

    assert told["flowshare_share_sessions_evicted_total"] == 1


def test_a_supervisor_that_leads_tells_the_same_on_its_page():
    stats = Stats()
    stats.write_s.add(0.003)
    led = {**stats.copy(), "groups": {"Empty": 0, "Stable": 1}, "rebalances": 2}

    page = MergedMetrics({}, states={"ready": 1}, ready=True, led=led).text().decode()

    assert 'flowshare_state_write_seconds_bucket{le="0.0025"} 0.0' in page
    assert 'flowshare_state_write_seconds_bucket{le="0.005"} 1.0' in page
    assert 'flowshare_groups{state="Stable",type="share"} 1.0' in page
    assert 'flowshare_group_rebalances_total{type="share"} 2.0' in page


def test_how_long_a_groups_rate_made_members_wait_is_told_by_group():
    told = LedMetrics({"rate_limited_s": {"shop.bill": 12.5}}).text().decode()

    assert 'flowshare_led_rate_limited_seconds_total{group="shop.bill"} 12.5' in told


def test_how_long_something_took_is_counted_up_to_each_bound():
    one = Latencies()
    for seconds in (0.0, BOUNDS_S[0], 0.003, 60.0):
        one.add(seconds)

    cumulative, sum_s = one.copy()

    assert [count for _, count in cumulative[:4]] == [2, 2, 2, 3]
    assert cumulative[-1] == (float("inf"), 4)
    assert sum_s == pytest.approx(60.0035)


def ask(address: str, page: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address}{page}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_a_broker_serves_health_and_metrics_where_it_is_told_to_with_the_rights_of_a_workers_pages(tmp_path):
    command = [
        sys.executable,
        "-m",
        "flowshare.cli",
        "serve",
        "--data",
        str(tmp_path / "log"),
        "--listen",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(
        [*command, "--web-port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        try:
            assert one.stdout is not None
            assert one.stderr is not None
            listening = one.stdout.readline()
            assert listening.startswith("listening on "), one.communicate(timeout=LIMIT_S)
            found = re.search(r"health and metrics at http://(\S+)", one.stderr.readline())
            assert found is not None
            address = found[1]
            assert ask(address, "/live")[0] == ask(address, "/ready")[0] == 200
            status, text = ask(address, "/metrics")
            assert status == 200
            assert "flowshare_ready 1.0" in text
            assert 'flowshare_groups{state="Empty",type="share"} 0.0' in text
            assert "flowshare_state_write_seconds_bucket" in text
            assert ask(address, "/metrics", Host="evil.example")[0] == 421
            assert ask(address, "/metrics", Origin="http://evil.example")[0] == 403
            assert ask(address, "/inflight")[0] == 404
            one.send_signal(signal.SIGTERM)
            assert one.wait(LIMIT_S) == 0
        finally:
            if one.poll() is None:
                one.kill()


def test_a_brokers_options_of_pages_want_a_port():
    done = CliRunner().invoke(serve, ["--data", ":memory:", "--web-bind", "0.0.0.0"])

    assert done.exit_code == 2
    assert "go with --web-port" in done.output


@pytest.mark.slow
def test_a_broker_that_cannot_serve_its_pages_does_not_start(tmp_path):
    command = [sys.executable, "-m", "flowshare.cli", "serve", "--data", ":memory:", "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, "--web-port", "0", "--web-bind", "192.0.2.1"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 1
    assert "--web-bind" in done.stderr
    assert "listening" not in done.stdout
