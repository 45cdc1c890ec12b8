"""One Spark session for the whole run: it takes five seconds to start, and a process has one JVM."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import kio.static.primitive  # noqa: F401 - pytest rewrites a module once, and not in two threads at a time
import pyspark
import pytest

from flowshare.dev.java import java_home
from flowshare.dev.probe import free_ports
from flowshare.spark.sessions import SparkMissing, activate, session
from tests.kafka.fixtures import refuse
from tests.spark.serving import serving, url_of
from tests.waiting import blocking_until

KINDS = ("embedded", *(pytest.param(kind, marks=pytest.mark.real) for kind in ("native", "workers")))
"""A path of one machine, Kafka's share groups, groups led by flowshare on the same Kafka."""
CLUSTER_S = 120.0
CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.pollingDelay": "10ms",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests that take a session as `java`: a session starts a JVM."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.java)


@pytest.fixture
def spark(spark_session):
    """Py4j may go on over another of the JVM's threads than the one in which the session was made."""
    activate(spark_session)
    return spark_session


@pytest.fixture(scope="session")
def spark_session():
    try:
        made = session("flowshare-tests", master="local[2,4]", conf=CONF)
    except SparkMissing as error:
        refuse(str(error))
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="module", params=KINDS)
def broker(request, tmp_path_factory):
    """A broker of each kind, led by this process."""
    with serving(url_of(request.param, request, tmp_path_factory.mktemp("broker"))) as broker:
        yield broker


@pytest.fixture
def stream(spark, broker, topic):
    """The source's stream for a group, over the module's `topic` unless told otherwise."""

    def make(group, **options):
        given = {"broker": broker.url, "topics": topic, "group": group, "tasks": "2", **options}
        return spark.readStream.format("flowshare").options(**given).load()

    return make


@pytest.fixture
def standalone(tmp_path):
    """A standalone cluster of one machine: its `spark://…`."""
    bin_dir = Path(pyspark.__path__[0], "bin")
    port, *web = free_ports(3)
    environment = {**os.environ, "JAVA_HOME": str(java_home()), "SPARK_WORKER_DIR": str(tmp_path / "work")}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    url = f"spark://127.0.0.1:{port}"
    commands = (
        ("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web[0])),
        ("worker.Worker", "--host", "127.0.0.1", "--webui-port", str(web[1]), "--cores", "2", "--memory", "2g", url),
    )
    log = tmp_path / "standalone"
    made = []
    try:
        for name, *arguments in commands:
            with log.open("ab") as said:
                command = [str(bin_dir / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
                made.append(
                    subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
                )
        assert blocking_until(log.read_text, good=lambda text: "Registering worker" in text, limit_s=CLUSTER_S)
        yield url
    finally:
        for one in made:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()
