"""The Spark blocks of README and the page on Spark run, in one program over an embedded path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowshare.dev import DevFailure
from flowshare.dev.java import java_home
from tests.docs.test_docs import ROOT, blocks
from tests.kafka.fixtures import refuse

LIMIT_S = 200.0

BEFORE = """
import flowshare as fs
from flowshare.ops.session import run

BROKER = "embedded://{folder}/shop"
run(BROKER, lambda made: made.admin.create_topic("orders"), create=True)
app = fs.App("shop", broker=BROKER)
url, login = "jdbc:none", {{}}
started = []
"""
COLUMNS = """
orders = orders.selectExpr("*", "1 AS stock", "CAST(key AS STRING) AS customer")
frame = spark.createDataFrame([(b"one",)], "value binary")
"""
AFTER = """
import asyncio

for query in spark.streams.active:
    query.processAllAvailable()
    query.stop()
spark.stop()
ends = run(BROKER, lambda made: made.admin.offsets("seed", 0))
assert ends.high_watermark == 1, ends
assert set(app.pipelines) == {"large", "checked"}, app.pipelines
"""


@pytest.mark.slow
@pytest.mark.java
def test_the_spark_blocks_run(tmp_path: Path) -> None:
    try:
        java_home()
    except DevFailure as error:
        refuse(str(error))
    source, judged, outcomes, sink = blocks((ROOT / "docs/spark.md").read_text(), "py")
    [pipeline] = blocks((ROOT / "README.md").read_text(), "py")
    as_topic = "topic = app.topic('orders', value_type=dict)\n"
    program = [
        BEFORE.format(folder=tmp_path),
        as_topic,
        outcomes.replace("orders, source", "topic, source"),
        pipeline.replace("share_pipeline(orders", "share_pipeline(topic"),
        source,
        COLUMNS,
        judged.replace('"checkpointLocation", "…"', f'"checkpointLocation", "{tmp_path}/judged"'),
        sink,
        AFTER,
    ]
    text = "\n".join(program)
    for written, real in (
        ("kafka://localhost:9092", f"embedded://{tmp_path}/shop"),
        ('"broker", "…"', '"broker", BROKER'),
        ("embedded:///data/shop", f"embedded://{tmp_path}/shop"),
        ("/data/", f"{tmp_path}/"),
    ):
        text = text.replace(written, real)
    (tmp_path / "page.py").write_text(text)

    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": f"{ROOT}"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
