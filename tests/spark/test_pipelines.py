"""`flowshare pipeline` as a user runs it: a process that is started, watched through its pages, killed and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from flowshare.agents.pages import own_user
from flowshare.dev.jars import libraries
from flowshare.spark.source.ledger import PREFIX
from tests.chaos.spark import jvm_of
from tests.jvm import QUICK_DRIVER
from tests.spark.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(480)]
APP = "tests.spark.pipes:app"
ROOT = Path(__file__).parents[2]
SQLITE = Path(__file__).with_name("sqlite.xml")
LIMIT_S = 240
CONF = ("spark.ui.enabled=false", "spark.sql.shuffle.partitions=1", "spark.driver.memory=700m", QUICK_DRIVER)


class Pipes:
    """The command, with its output."""

    def __init__(self, broker, out, *arguments):
        out.mkdir(exist_ok=True)
        elsewhere = tempfile.mkdtemp(dir=out.parent)  # nothing depends on where a command is started
        conf = [part for text in CONF for part in ("--conf", text)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flowshare.cli", "pipeline", APP, *arguments, *conf, "--master", "local[2,4]"],
            env={**os.environ, "FLOWSHARE_BROKER": broker, "PIPES_OUT": str(out), "PYTHONPATH": str(ROOT)},
            cwd=elsewhere,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.seen = ""
        self._guard = threading.Timer(LIMIT_S, self.kill)
        self._guard.start()

    def until(self, pattern):
        """Read on until a line matches."""
        for line in self.process.stdout:
            self.seen += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it ended before {pattern!r}:\n{self.seen}")

    def end(self):
        """Its exit code when it ends by itself."""
        self.seen += self.process.stdout.read()
        return self.process.wait()

    def kill(self):
        """End it and its JVM and Python workers, as a machine does that goes down."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self):
        self._guard.cancel()
        self.kill()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture
def pipes(tmp_path):
    made = []

    def start(*arguments):
        made.append(Pipes(f"embedded://{tmp_path}/broker", tmp_path / "out", *arguments))
        return made[-1]

    yield start
    for one in made:
        one.close()


def fill(tmp_path, count):
    with serving(f"embedded://{tmp_path}/broker") as broker:
        topic = broker.topic("sales", partitions=2)
        broker.topic("large")
        broker.produce(topic, [sale(number) for number in range(count)])


def checkpoint(tmp_path, pipeline):
    """Where it is by default: with the embedded path, and not with whoever starts the command."""
    return tmp_path / "broker" / "apps" / "pipes" / "pipelines" / pipeline


def sale(number):
    return json.dumps({"shop": f"shop {number % 3}", "cents": number}).encode()


def page(address, path):
    return own_user.ask(address, path, timeout_s=10).body.decode()


def test_pipelines_run_once_into_folders_topics_and_batches(tmp_path, pipes):
    import pyarrow.parquet as parquet

    fill(tmp_path, 3000)
    run = pipes("large", "totals", "counted", "copied", "--once")
    code = run.end()
    large = [row for path in (tmp_path / "out" / "large").rglob("*.parquet") for row in _rows(parquet, path)]
    totals = [row for path in (tmp_path / "out" / "totals").rglob("*.parquet") for row in _rows(parquet, path)]
    counted = [
        json.loads(line)["sales"]
        for path in (tmp_path / "out" / "counted").rglob("*.json")
        for line in path.read_text().splitlines()
    ]
    with serving(f"embedded://{tmp_path}/broker") as broker:
        produced, copied = broker.read("large"), broker.read("copied")
        backlogs = [broker.backlog(f"pipes.{name}") for name in ("large", "totals", "counted", "copied")]

    assert code == 0, run.seen
    assert len(large) == len(produced) == 1999
    assert json.loads(produced[0].value)["cents"] > 1000
    assert {row["shop"]: row["cents"] for row in totals} == {
        f"shop {shop}": sum(range(shop, 3000, 3)) for shop in range(3)
    }
    assert sum(counted) == 3000
    assert list((tmp_path / "out" / "csv").rglob("*.csv"))
    assert sorted((one.key, json.loads(one.value)["cents"]) for one in copied) == sorted(
        (f"shop {number % 3}".encode(), number) for number in range(3000)
    )
    assert backlogs == [0, 0, 0, 0]


def _rows(parquet, path):
    return parquet.ParquetFile(path).read().to_pylist()


def test_a_pipeline_writes_what_is_good_and_rejects_what_is_not(tmp_path, pipes):
    fill(tmp_path, 3000)
    run = pipes("judged", "--once")
    code = run.end()
    written = [
        json.loads(line)["cents"]
        for path in (tmp_path / "out" / "judged").rglob("*.json")
        for line in path.read_text().splitlines()
    ]
    with serving(f"embedded://{tmp_path}/broker") as broker:
        letters = broker.read("pipes.judged.dlq")
        backlog = broker.backlog("pipes.judged")

    assert code == 0, run.seen
    assert sorted(written) == list(range(0, 3000, 2))
    assert sorted(json.loads(one.value)["cents"] for one in letters) == list(range(1, 3000, 2))
    assert {dict(one.headers)["flowshare.dlq.reason"] for one in letters} == {b"odd"}
    assert backlog == 0


def forget_what_was_accepted(tmp_path, root):
    """Delete the query's ledger, by which a checkpoint that is older than the group is refused."""
    newest = max((root / "offsets").glob("[0-9]*"), key=lambda one: int(one.name))
    member = json.loads(newest.read_text().splitlines()[-1])["member"]
    with serving(f"embedded://{tmp_path}/broker") as broker:
        broker.call(broker.admin.delete_group(PREFIX + member))


def test_a_batch_that_is_repeated_is_in_its_table_once(tmp_path, pipes):
    (driver,) = libraries("sqlite-driver", SQLITE.read_bytes()).glob("sqlite-jdbc-*.jar")
    commits = checkpoint(tmp_path, "recorded") / "commits"

    def run():
        run = pipes("recorded", "--once", "--conf", f"spark.jars={driver}")
        assert run.end() == 0, run.seen
        with contextlib.closing(sqlite3.connect(tmp_path / "out" / "sales.db")) as table:
            return table.execute("SELECT flowshare_pipeline, cents FROM sales ORDER BY cents").fetchall()

    fill(tmp_path, 1000)
    once = run()
    max(commits.glob("[0-9]*"), key=lambda one: int(one.name)).unlink()  # as if it had died before it said so
    forget_what_was_accepted(tmp_path, checkpoint(tmp_path, "recorded"))
    again = run()

    assert once == [("recorded", cents) for cents in range(1000)]
    assert again == once


def test_a_new_checkpoint_is_another_query_whose_batches_replace_none_of_the_earlier_ones(tmp_path, pipes):
    import pyarrow.parquet as parquet

    (driver,) = libraries("sqlite-driver", SQLITE.read_bytes()).glob("sqlite-jdbc-*.jar")

    def run(code, *names):
        run = pipes(*names, "--once", "--conf", f"spark.jars={driver}")
        assert run.end() == code, run.seen
        return run.seen

    def rows(name):
        paths = (tmp_path / "out" / name).rglob("*.parquet")
        return sorted(row["cents"] for path in paths for row in _rows(parquet, path))

    fill(tmp_path, 1100)
    run(0, "large", "recorded", "plain")
    for name in ("large", "recorded", "plain"):
        shutil.rmtree(checkpoint(tmp_path, name))
    with serving(f"embedded://{tmp_path}/broker") as broker:
        broker.produce("sales", [sale(number) for number in range(1100, 1200)])
    said = run(1, "large", "recorded", "plain")
    with contextlib.closing(sqlite3.connect(tmp_path / "out" / "sales.db")) as table:
        recorded = [cents for (cents,) in table.execute("SELECT cents FROM sales ORDER BY cents")]
    with serving(f"embedded://{tmp_path}/broker") as broker:
        backlog = broker.backlog("pipes.plain")

    assert rows("large") == list(range(1001, 1200))
    assert recorded == list(range(1200))
    assert rows("plain") == list(range(1100))
    assert backlog == 100
    assert re.search(r"pipeline plain: the folder \S+/out/plain has \d+ batches of a query, and its checkpoint", said)
    assert "Give the pipeline that checkpoint" in said
    shutil.rmtree(tmp_path / "out" / "plain")
    run(0, "plain")
    assert rows("plain") == list(range(1100, 1200))


def test_a_pipeline_whose_jvm_is_killed_says_so_and_ends(tmp_path, pipes):
    fill(tmp_path, 10)
    run = pipes("totals")
    run.until(r"pipeline=totals group=pipes.totals runs")
    os.kill(jvm_of(run.process.pid), signal.SIGKILL)

    assert run.end() == 1
    assert "Spark has ended: its JVM is gone. Start the pipelines again: they go on from their checkpoints" in run.seen
    assert "Traceback" not in run.seen.rpartition("Spark has ended")[2]


def test_a_running_pipeline_tells_how_it_gets_on_and_stops_in_order(tmp_path, pipes):
    fill(tmp_path, 500)
    run = pipes("totals", "broken")
    address = run.until(r"metrics at http://(\S+)")[1]
    run.until(r"pipeline=broken failed and starts again")
    run.until(r"pipeline=totals running: 500 records in \d+ batches.*backlog 0")
    metrics = page(address, "/metrics")
    states = {one["name"]: one["state"] for one in json.loads(page(address, "/pipelines"))}
    run.process.send_signal(signal.SIGTERM)
    code = run.end()

    assert 'flowshare_pipeline_records_total{group="pipes.totals",pipeline="totals"} 500.0' in metrics
    assert 'flowshare_pipeline_backlog_records{group="pipes.totals",pipeline="totals"} 0.0' in metrics
    assert states == {"totals": "running", "broken": "waiting"}
    assert code == 0, run.seen


def test_an_unknown_pipeline_is_refused_with_the_nearest_name(tmp_path, pipes):
    run = pipes("total")

    assert run.end() == 1
    assert "the app has no pipeline 'total'. Did you mean 'totals'?" in run.seen
