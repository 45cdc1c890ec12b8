"""The bulk data pipeline on Spark, through PySpark (the extra `flowshare[spark]`); the only layer that imports it.

    from flowshare.spark import session

    spark = session()
    orders = spark.readStream.format("flowshare").option("broker", "kafka://localhost:9092") \\
        .option("topics", "orders").option("group", "etl").load()

Names are loaded at first use, so that importing this costs nothing where Spark is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    **dict.fromkeys(("SparkMissing", "activate", "register", "session"), "flowshare.spark.session"),
    "settle": "flowshare.spark.outcomes",
}

__all__ = ["SparkMissing", "activate", "register", "session", "settle"]

if TYPE_CHECKING:
    from flowshare.spark.outcomes import settle as settle
    from flowshare.spark.session import SparkMissing as SparkMissing
    from flowshare.spark.session import activate as activate
    from flowshare.spark.session import register as register
    from flowshare.spark.session import session as session


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'flowshare.spark' has no attribute {name!r}")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value
