"""The rehearsal of a pipeline for `flowshare check`: faults that would keep its query from running.

Folders and tables of sinks are checked only when the query starts, as that takes a JVM.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.send import topic_name
from flowshare.agents.handler.sinks import Console, Folder, Jdbc, Produce
from flowshare.spark.pipeline.query import check_sinks, checkpoint, source_options_of
from flowshare.spark.sessions import need_spark
from flowshare.spark.source.columns import source_schema
from flowshare.spark.source.group import refuse_other_kinds
from flowshare.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from flowshare.agents.app.pipeline import SharePipeline
    from flowshare.agents.handler.sinks import Sink
    from flowshare.client.admin.admin import ShareAdmin

_OPTION: Final = re.compile(r'\.option\("(\w+)", ([^()]*)\)')


def line(pipeline: SharePipeline) -> str:
    """Return the pipeline's settings in one line."""
    options = pipeline.options
    sinks = ", ".join(_sink(one) for one in options.sink or ()) or "the function writes each batch"
    trigger = "as soon as the last batch has ended" if options.trigger is None else f"every {options.trigger}"
    return " · ".join(
        (
            f"{pipeline.name} (pipeline): topic {', '.join(pipeline.topics)}",
            f"group {pipeline.group}",
            f"sink {sinks}",
            f"output mode {options.output_mode}",
            f"a batch {trigger}",
            f"checkpoint {checkpoint(pipeline)}",
        )
    )


def rehearse_options(pipeline: SharePipeline, broker: str) -> None:
    """Check that Spark is installed, and that the source accepts the pipeline's options.

    broker: its URL. Raises: UsageError, OptionError, SparkMissing, each with what to do.
    """
    need_spark()
    try:
        options = SourceOptions.parse(source_options_of(pipeline, broker, 1))
    except UsageError as error:
        text = _OPTION.sub(_declared, str(error))
        raise UsageError(text if pipeline.name in text else f"pipeline {pipeline.name}: {text}") from error
    if not options.registry:  # else the newest schema is the registry's to tell
        source_schema(options)
    check_sinks(pipeline)


def _declared(option: re.Match[str]) -> str:
    """Rewrite an option of a user's own source as a declared pipeline writes it."""
    name, value = option.groups()
    if name in ("topics", "topics_pattern"):
        return "the first argument of @app.share_pipeline(…)"
    if name == "broker":
        return f"the app's broker={value}"
    return f"group={value}" if name == "group" else f'source={{"{name}": {value}}}'


async def rehearse_group(pipeline: SharePipeline, admin: ShareAdmin) -> None:
    """Check that the pipeline's query can be a member of its group. Raises: OptionError, ServerError."""
    await refuse_other_kinds(pipeline.group, admin)


def _sink(sink: Sink) -> str:
    match sink:
        case Folder():
            return f"{sink.format} in {sink.path}"
        case Jdbc():
            return f"table {sink.table}"
        case Console():
            return "the terminal"
        case Produce():
            return f"topic {topic_name(sink.topic)}{', exactly once' if sink.delivery == 'exactly_once' else ''}"
