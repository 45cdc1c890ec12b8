"""Everything on Spark, through PySpark (the extra `flowshare[spark]`); the only layer that imports it.

    from flowshare.spark import session

    spark = session()
    orders = spark.readStream.format("flowshare").option("broker", "kafka://localhost:9092") \\
        .option("topics", "orders").option("group", "etl").load()

`source` and `sink` are the two halves of `format("flowshare")`, `datasource` Spark's names for them, `sessions` the
settings that they need. `pipeline` runs an app's declared pipelines, `workers` its agents as tasks on a cluster. What
is common to them: `checks` of options, `errors`. Nothing here decides over records: a share group is read and
acknowledged as any member does (`flowshare.client`), led by whoever leads it.

Names are loaded at first use, so that importing this costs nothing where Spark is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    **dict.fromkeys(("SparkMissing", "activate", "register", "session"), "flowshare.spark.sessions"),
    "settle": "flowshare.spark.sink.outcomes",
}

__all__ = ["SparkMissing", "activate", "register", "session", "settle"]

if TYPE_CHECKING:
    from flowshare.spark.sessions import SparkMissing as SparkMissing
    from flowshare.spark.sessions import activate as activate
    from flowshare.spark.sessions import register as register
    from flowshare.spark.sessions import session as session
    from flowshare.spark.sink.outcomes import settle as settle


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'flowshare.spark' has no attribute {name!r}")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value
