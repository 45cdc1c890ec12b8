"""`flowshare pipeline` on a cluster whose executors do not share this machine's files and directory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests.jvm import QUICK_DRIVER
from tests.spark.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(480)]
LIMIT_S = 240
CONF = (
    "spark.ui.enabled=false",
    "spark.driver.host=127.0.0.1",
    "spark.driver.memory=700m",
    "spark.executor.memory=512m",
    QUICK_DRIVER,
)
APP = """
    import flowshare as fs

    app = fs.App("far", broker="embedded:///tmp/nowhere")


    def loud(value: str) -> str:
        return value.upper()


    @app.share_pipeline("orders")
    def shouted(batch, number):
        from pyspark.sql.functions import udf

        rows = batch.selectExpr("CAST(value AS STRING) AS value")
        found = sorted(row.value for row in rows.select(udf(loud, "string")("value").alias("value")).collect())
        print(f"batch of {len(found)} in {batch.rdd.getNumPartitions()} tasks, the first {found[0]}")
"""


def run(folder, broker, master):
    """The command, in a directory that only the driver knows; its exit code and all it said."""
    place = folder / "here only"
    place.mkdir()
    (place / "far_app.py").write_text(textwrap.dedent(APP))
    conf = [part for text in CONF for part in ("--conf", text)]
    done = subprocess.run(
        [sys.executable, "-m", "flowshare.cli", "pipeline", "far_app:app", "--once", "--master", master, *conf],
        cwd=place,
        env={**os.environ, "FLOWSHARE_BROKER": broker, "PYSPARK_PYTHON": sys.executable, "XDG_STATE_HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_pipeline_runs_on_a_cluster_with_its_module_and_as_many_tasks_as_the_cluster_has_cores(
    tmp_path, standalone, kafka, unique
):
    url = f"kafka://{kafka.bootstrap}?share=native"
    with serving(url) as broker:
        broker.topic("orders")
        broker.produce("orders", [b"x%d" % number for number in range(100)])
    code, said = run(tmp_path, url, standalone)

    assert code == 0, said
    assert "batch of 100 in 2 tasks, the first X0" in said


def test_an_embedded_path_is_refused_where_executors_cannot_read_it(tmp_path, standalone):
    url = f"embedded://{tmp_path}/broker"
    with serving(url) as broker:
        broker.topic("orders")
    code, said = run(tmp_path, url, standalone)

    assert code == 1
    assert "an embedded path is one machine's" in said
    assert "flowshare serve --data PATH --listen HOST:9092" in said
