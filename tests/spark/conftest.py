"""One Spark session for the whole run: it takes five seconds to start, and a process has one JVM."""

from __future__ import annotations

import os

import kio.static.primitive  # noqa: F401 - pytest rewrites a module once, and not in two threads at a time
import pytest

from flowshare.spark.session import SparkMissing, activate, session

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
        if os.environ.get("CI") == "true":
            pytest.fail(f"{error} (in CI nothing is skipped)", pytrace=False)
        pytest.skip(str(error))
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()
