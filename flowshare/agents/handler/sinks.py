"""Where a pipeline's rows go: topics, folders of files, tables of databases, the console.

Plain descriptions; `flowshare.spark` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from flowshare.agents.errors import OptionError

Delivery = Literal["at_least_once", "exactly_once"]


@dataclass(frozen=True, slots=True)
class Folder:
    """Files below a path of any file system that Spark reaches; each batch is there once, whatever crashes.

    format: parquet, or what the session's packages know (delta, orc, json, csv, …). partition_by: columns whose values
    become folders. options: the writer's.

    A pipeline's only sink is written by Spark's own file sink, which keeps a list of what counts in `_spark_metadata`.
    The folder is one query's then: a pipeline with a new checkpoint needs a new folder. Beside other sinks, or with
    output_mode="update", each batch is a folder `flowshare_query=<id>/flowshare_batch=<n>` that a repeated batch
    replaces. With output_mode="complete" the folder holds the last batch only.
    """

    path: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Jdbc:
    """A table of a database. Its driver's jar has to be among Spark's (`spark.jars`, `--packages`).

    Rows get three more columns, `flowshare_pipeline`, `flowshare_query` (its id, another one with a new checkpoint) and
    `flowshare_batch`: a batch that is repeated first deletes its rows of before. The table is made if it is not there.
    With output_mode="complete" its rows are replaced.
    properties: the driver's (user, password, driver, …); they are never shown.
    """

    url: str
    table: str
    properties: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True)
class Console:
    """The terminal, for looking at a pipeline while it is written. rows: how many of a batch are shown."""

    rows: int = 20


@dataclass(frozen=True, slots=True)
class Produce:
    """A topic (of the app, or its name), with options of flowshare's sink (docs/spark.md).

    delivery: at_least_once, or exactly_once for each batch: as a pipeline's only sink.
    options: the sink's others, such as compression.
    """

    topic: Any
    delivery: Delivery = "at_least_once"
    options: Mapping[str, str] = field(default_factory=dict[str, str])


Sink = Folder | Jdbc | Console | Produce


def check_sinks(given: Any) -> tuple[Sink, ...]:
    """One sink or a list of them; topics become `Produce`. Raises: OptionError."""
    sinks = tuple(_check(sink) for sink in (given if isinstance(given, (list, tuple)) else (given,)))
    if not sinks:
        raise OptionError("sink=[] names nothing; leave sink out where the function writes each batch itself")
    if len(sinks) > 1 and any(isinstance(sink, Produce) and sink.delivery == "exactly_once" for sink in sinks):
        raise OptionError(
            "delivery='exactly_once' is for a pipeline's only sink: give each topic a pipeline of its own"
        )
    return sinks


def _check(sink: Any) -> Sink:
    if isinstance(sink, str) or hasattr(sink, "get_topic_name"):
        return Produce(sink)
    if not isinstance(sink, Sink):
        raise OptionError(
            f"sink takes fs.Folder(…), fs.Jdbc(…), fs.Console(), fs.Produce(…), a topic or a list of them, not {sink!r}"
        )
    if isinstance(sink, Produce) and sink.delivery not in get_args(Delivery):
        raise OptionError(f"delivery takes at_least_once or exactly_once, not {sink.delivery!r}")
    return sink
