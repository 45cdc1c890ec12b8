"""Sinks: the destinations of results of agents and pipelines, one or a list of them.

A topic of the app, or its name, is a sink of both. Spark's sinks (folders of files, tables of databases, the console)
are for pipelines. These are plain descriptions: `agents.feed.completion` produces for agents, `flowshare.spark` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from flowshare.agents.handler.errors import OptionError
from flowshare.agents.handler.send import is_topic

Delivery = Literal["at_least_once", "exactly_once"]


@dataclass(frozen=True, slots=True)
class Folder:
    """Files below a path of any file system that Spark reaches; each batch is there once, whatever crashes.

    format: parquet, or one that the session's packages know (delta, orc, json, csv, …). partition_by: columns whose
    values become folders. options: the writer's.

    A pipeline's only sink is written by Spark's own file sink, which lists the valid files in `_spark_metadata`. Then
    the folder belongs to one query: a pipeline with a new checkpoint needs a new folder. Beside other sinks, or with
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
    `flowshare_batch`: a repeated batch first deletes its earlier rows. The table is made if it is missing. With
    output_mode="complete" its rows are replaced.
    properties: the driver's (user, password, driver, …); they are never shown.
    """

    url: str
    table: str
    properties: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True)
class Console:
    """The terminal, for looking at a pipeline while it is written. rows: most rows shown of a batch."""

    rows: int = 20


@dataclass(frozen=True, slots=True)
class Produce:
    """A topic (of the app, or its name) with options, where the topic alone says too little.

    delivery: at_least_once, or exactly_once for each batch: as a pipeline's only sink.
    options: others of a pipeline's sink (docs/spark.md), such as compression.
    """

    topic: Any
    delivery: Delivery = "at_least_once"
    options: Mapping[str, str] = field(default_factory=dict[str, str])


Sink = Folder | Jdbc | Console | Produce


def pipeline_sinks(given: Any) -> tuple[Sink, ...]:
    """Return a pipeline's sinks; topics become `Produce`. Raises: OptionError."""
    sinks = tuple(_check(sink) for sink in several(given))
    if not sinks:
        raise OptionError("sink=[] names nothing; leave sink out where the function writes each batch itself")
    if len(sinks) > 1 and any(isinstance(sink, Produce) and sink.delivery == "exactly_once" for sink in sinks):
        raise OptionError(
            "delivery='exactly_once' is for a pipeline's only sink: give each topic a pipeline of its own"
        )
    return sinks


def agent_sinks(given: Any) -> tuple[Any, ...]:
    """Return the topics (of the app, or names) that are an agent's sinks. Raises: OptionError."""
    return tuple(_topic(sink) for sink in several(given))


def several(given: Any) -> tuple[Any, ...]:
    """Return as a tuple an option that may be given as one thing, as a list of things, or not at all."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (list, tuple, set, frozenset)) else (given,)


def _is_topic(sink: Any) -> bool:
    return isinstance(sink, str) or is_topic(sink)


def _check(sink: Any) -> Sink:
    if _is_topic(sink):
        return Produce(sink)
    if not isinstance(sink, Sink):
        raise OptionError(
            f"sink takes fs.Folder(…), fs.Jdbc(…), fs.Console(), fs.Produce(…), a topic or a list of them, not {sink!r}"
        )
    if isinstance(sink, Produce) and sink.delivery not in get_args(Delivery):
        raise OptionError(f"delivery takes at_least_once or exactly_once, not {sink.delivery!r}")
    return sink


def _topic(sink: Any) -> Any:
    if isinstance(sink, Produce) and (sink.delivery != "at_least_once" or sink.options):
        raise OptionError(
            "delivery and options of fs.Produce(…) are for pipelines: an agent's sink is fs.Produce(topic)"
        )
    topic = sink.topic if isinstance(sink, Produce) else sink
    if _is_topic(topic):
        return topic
    if isinstance(sink, Sink):
        raise OptionError(
            f"fs.{type(sink).__name__}(…) is a sink of pipelines (@app.share_pipeline), written by Spark; "
            "an agent's sinks are topics: sink=[topic]"
        )
    raise OptionError(f"sink takes a topic, its name or a list of them, not {sink!r}")
