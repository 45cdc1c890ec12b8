"""One Spark session for the whole run: it takes five seconds to start, and a process has one JVM."""

from __future__ import annotations

import kio.static.primitive  # noqa: F401 - pytest rewrites a module once, and not in two threads at a time
import pytest

from flowshare.spark.session import SparkMissing, activate, session
from tests.kafka.fixtures import refuse
from tests.spark.serving import KINDS, serving, url_of

CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.pollingDelay": "10ms",
}


def pytest_collection_modifyitems(items):
    """What takes a session starts a JVM."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
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
