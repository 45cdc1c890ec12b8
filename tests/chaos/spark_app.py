"""The pipelines that chaos kills: numbers from a topic into files, by Spark's file sink and batch by batch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import flowshare as fs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUT = os.environ.get("CHAOS_OUT", "/tmp/nowhere")
TOPIC = os.environ.get("CHAOS_TOPIC", "numbers")
SOURCE = {"records_per_trigger": int(os.environ.get("CHAOS_BATCH", "2000")), "lock_duration": 15}
COLUMNS = ("CAST(CAST(value AS STRING) AS BIGINT) AS id", "partition", "offset", "attempt")

app = fs.App(f"chaos-{TOPIC}", broker="embedded:///tmp/nowhere", datadir=f"{OUT}/data")


@app.share_pipeline(TOPIC, sink=fs.Folder(f"{OUT}/files/rows"), source=SOURCE)
def files(numbers: DataFrame) -> DataFrame:
    """Spark's file sink, which knows the batches that it wrote."""
    return numbers.selectExpr(*COLUMNS)


@app.share_pipeline(TOPIC, source=SOURCE)
def batches(batch: DataFrame, number: int) -> None:
    """foreachBatch: a folder for each batch, which its repetition replaces."""
    batch.selectExpr(*COLUMNS).write.mode("overwrite").parquet(f"{OUT}/batches/rows/batch={number}")
