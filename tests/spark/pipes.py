"""An app of pipelines, run by the tests as a user would."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypedDict

import flowshare as fs
from flowshare.spark import settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUT = os.environ.get("PIPES_OUT", "/tmp/nowhere")


class Sale(TypedDict):
    """One sale."""

    shop: str
    cents: int


app = fs.App("pipes", broker="embedded:///tmp/nowhere")
sales = app.topic("sales", value_type=Sale)


@app.share_pipeline(sales, sink=[fs.Folder(f"{OUT}/large"), fs.Folder(f"{OUT}/csv", format="csv"), "large"])
def large(sales: DataFrame) -> DataFrame:
    """Sales of more than ten."""
    return sales.where("value.cents > 1000").selectExpr("value.shop AS shop", "value.cents AS cents")


@app.share_pipeline(sales, sink=fs.Produce("copied", delivery="exactly_once"))
def copied(sales: DataFrame) -> DataFrame:
    """All sales, into a topic alone."""
    return sales.selectExpr("value.shop AS key", "value.cents AS cents")


@app.share_pipeline(sales, sink=fs.Folder(f"{OUT}/totals"), output_mode="complete")
def totals(sales: DataFrame) -> DataFrame:
    """Return the sum of each shop's sales."""
    return sales.groupBy("value.shop").agg({"value.cents": "sum"}).toDF("shop", "cents")


@app.share_pipeline(
    sales,
    sink=fs.Jdbc(f"jdbc:sqlite:{OUT}/sales.db", "sales", {"driver": "org.sqlite.JDBC", "numPartitions": "1"}),
)
def recorded(sales: DataFrame) -> DataFrame:
    """All sales, in a table."""
    return sales.selectExpr("value.shop AS shop", "value.cents AS cents")


@app.share_pipeline(sales, sink=fs.Folder(f"{OUT}/plain"))
def plain(sales: DataFrame) -> DataFrame:
    """All sales, by Spark's own file sink."""
    return sales.selectExpr("value.shop AS shop", "value.cents AS cents")


@app.share_pipeline(sales)
def counted(batch: DataFrame, number: int) -> None:
    """How many sales each batch had."""
    batch.selectExpr("count(*) AS sales").write.mode("overwrite").json(f"{OUT}/counted/{number}")


@app.share_pipeline(sales, source={"outcomes": True})
def judged(batch: DataFrame, number: int) -> None:
    """Sales of even cents, in a folder a batch; the others are rejected."""
    even = "value.cents % 2 = 0"
    batch.where(even).selectExpr("value.cents AS cents").write.mode("overwrite").json(f"{OUT}/judged/{number}")
    odd = batch.where(f"NOT {even}").selectExpr(
        "topic", "partition", "offset", "'reject' AS outcome", "'odd' AS reason"
    )
    settle(odd)


@app.share_pipeline(sales, sink=fs.Console())
def broken(sales: DataFrame) -> DataFrame:
    """A pipeline that never runs."""
    return sales.select("value.no_such_field")
