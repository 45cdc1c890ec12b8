"""Tests of the cost of a start: no needless module before the first record, and none twice before the collector."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from faust.tables import Table

from flowshare.agents.app.app import App
from flowshare.agents.host import service
from flowshare.garbage import keep_loaded

ROOT = Path(__file__).parents[2]
APP = """
import os, sys
import flowshare as fs

app = fs.App("shop", broker=os.environ["URL"])

@app.share_agent(app.topic("orders", value_type=bytes))
async def bill(value: bytes) -> None:
    print("HANDLED", *sys.modules, flush=True)
"""
NOT_NEEDED = {
    "faust.assignor",
    "faust.tables",
    "faust.worker",
    "confluent_kafka",
    "fastavro",
    "flowshare.agents.codecs.registry",
    "kio",
    "opentelemetry",
    "pydantic",
    "rich",
    "flowshare.backend.native",
    "flowshare.client.net.cluster",
    "flowshare.client.producer.transaction",
    "flowshare.client.net.tcp",
    "flowshare.protocol.messages.classic",
    "flowshare.protocol.messages.records",
    "flowshare.protocol.messages.state",
    "flowshare.protocol.messages.transactions",
    "flowshare.server.groups.members",
    "flowshare.server.groups.offsets",
    "flowshare.server.edge.api_versions",
    "flowshare.server.edge.table",
    "flowshare.server.net.socket",
    "flowshare.server.records.records",
    "flowshare.server.net.requests",
    "flowshare.server.share.offsets",
    "flowshare.server.share.state_apis",
    "flowshare.server.transactions.apis",
}


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    return {**os.environ, "URL": f"embedded://{tmp_path / 'broker'}", "PYTHONPATH": paths}


@pytest.mark.slow
def test_an_embedded_start_imports_nothing_that_its_first_record_does_not_need(tmp_path, environment):
    flowshare = [sys.executable, "-m", "flowshare.cli"]
    send = [*flowshare, "send", "orders", "1", "--broker", environment["URL"]]
    subprocess.run(send, env=environment, check=True, stdout=subprocess.DEVNULL)
    worker = subprocess.Popen(
        [*flowshare, "worker", "shop:app"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout is not None
        loaded = next(set(line.split()[1:]) for line in worker.stdout if line.startswith("HANDLED"))
    finally:
        worker.terminate()
        worker.communicate(timeout=60)

    assert {"flowshare.server.server", "flowshare.server.net.listener"} <= loaded
    assert NOT_NEEDED & loaded == set()


def test_what_both_threads_would_load_is_loaded_before_the_second_one_starts(monkeypatch):
    threads = []
    monkeypatch.setattr(service, "load_reader", lambda: threads.append([one.name for one in threading.enumerate()]))
    loop = service.ServiceLoop()

    loop.start()
    loop.stop()

    (at_loading,) = threads
    assert "flowshare-service" not in at_loading


def test_what_is_loaded_is_old_to_the_collector():
    gc.unfreeze()  # a Spark source of another test in this process freezes, for good
    young = [[] for _ in range(100)]

    keep_loaded()

    assert gc.get_freeze_count() == 0
    ids = {id(one) for one in young}
    assert ids <= {id(one) for one in gc.get_objects(generation=2)}


def test_what_an_application_froze_stays_frozen():
    gc.freeze()
    try:
        keep_loaded()

        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_the_classes_that_faust_makes_tables_and_workers_of_can_be_replaced():
    class Counted(Table):
        pass

    given, usual = App("given", broker="memory://", Table=Counted), App("usual", broker="memory://")

    assert given.conf.Table is Counted
    assert type(given.Table("counts")) is Counted
    assert type(usual.Table("counts")) is Table


@pytest.mark.slow
def test_hosting_feeding_and_handlers_load_no_faust():
    script = """
        import sys
        import flowshare.agents.host.host, flowshare.agents.host.sending, flowshare.ops.load
        print(*{"faust", "mode", "venusian"}.intersection(sys.modules))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
