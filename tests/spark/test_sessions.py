"""Sessions of Spark: the settings that a master asks for, and sessions that cannot be used."""

from __future__ import annotations

import os

import pytest

from flowshare.spark import sessions
from flowshare.spark.sessions import SparkMissing, register

MACHINE = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,4]", 3),
        ("local[*]", MACHINE),
        ("local[*,4]", MACHINE),
        ("local-cluster[2,3,1024]", 6),
    ],
)
def test_an_aggregation_on_this_machine_has_as_many_partitions_as_run_at_a_time(master, cores):
    assert sessions._cores(master) == cores


class SessionOfConnect:
    """A session as Spark Connect's client has it, as far as is looked at."""


SessionOfConnect.__module__ = "pyspark.sql.connect.session"


def test_a_session_of_spark_connect_is_refused_with_what_to_start_instead():
    with pytest.raises(SparkMissing, match=r"Spark Connect, which has no JVM .* spark-submit"):
        register(SessionOfConnect())  # type: ignore[arg-type]


def test_no_session_is_made_where_programs_are_clients_of_spark_connect(monkeypatch):
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")

    with pytest.raises(SparkMissing, match=r"with neither SPARK_REMOTE nor spark\.remote set"):
        sessions.session()


def test_only_a_session_of_this_machine_is_told_how_many_partitions_an_aggregation_has():
    assert sessions._defaults("local[2]")[sessions.SHUFFLES] == "2"
    assert sessions.SHUFFLES not in sessions._defaults("spark://master:7077")
