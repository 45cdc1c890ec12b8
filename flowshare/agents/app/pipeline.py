"""`@app.share_pipeline`: a function from DataFrame to DataFrame that Spark runs, fed by a share group.

    @app.share_pipeline(orders, sink=fs.Folder("/data/orders"), trigger="10 seconds")
    def paid(orders: DataFrame) -> DataFrame:
        return orders.where("value.state = 'paid'").select("value.*")

This module only declares pipelines; `flowshare.spark.pipeline` runs them (`flowshare pipeline app:app`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from flowshare.agents.handler.awaiting import dispose, function_below, gives_coroutine, is_awaitable, refusal_of_unrun
from flowshare.agents.handler.errors import OptionError, UsageError, refuse_unknown
from flowshare.agents.handler.send import topic_name
from flowshare.agents.handler.sinks import Produce, Sink, pipeline_sinks

if TYPE_CHECKING:
    from flowshare.agents.app.app import App

OutputMode = Literal["append", "update", "complete"]
DURATION: Final = re.compile(
    r"\s*\d+(\.\d+)?\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?)\s*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """Settings of one pipeline.

    group: share group; None: `<app id>.<function>`.
    sink: where the rows go that the function returns: `fs.Folder`, `fs.Jdbc`, `fs.Console`, `fs.Produce`, a topic,
        or a list of them. Without a sink the function is called with each micro-batch (and its number, if it takes
        two arguments), writes it itself and returns None; after a crash a batch comes again under the same number.
        With source={"outcomes": True} it says by `flowshare.spark.settle` what became of records.
    trigger: how often a micro-batch begins, as text such as `"10 seconds"`; None: as soon as the last one has ended.
    checkpoint: folder of the query's write-ahead log; None: `<app's datadir>/pipelines/<function>`, which is below an
        embedded path's own folder, else below XDG_STATE_HOME. Whoever deletes it starts a new query: what was not
        accepted comes again, and a folder of files needs a new place.
    output_mode: append, update or complete, as Spark's; the last two are for aggregations.
    source: options of the source beside these, see `flowshare.spark.source.options.SourceOptions`.
    conf: settings of the Spark session that this pipeline needs.
    """

    group: str | None = None
    sink: tuple[Sink, ...] | None = None
    trigger: str | None = None
    checkpoint: str | None = None
    output_mode: OutputMode = "append"
    source: Mapping[str, Any] = field(default_factory=dict[str, Any])
    conf: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def parse(cls, pipeline: str, given: Mapping[str, Any]) -> PipelineOptions:
        """Check and complete the options that a user gave. Raises: OptionError, naming the pipeline."""
        if "exactly_once" in given:
            raise OptionError(
                f"pipeline {pipeline}: exactly_once is for agents, which accept record by record; of a pipeline "
                'each batch is there once with sink=fs.Produce(topic, delivery="exactly_once"), or in a folder or table'
            )
        refuse_unknown(f"pipeline {pipeline}:", given, [one.name for one in fields(cls)])
        checked = dict(given)
        try:
            if given.get("sink") is not None:
                checked["sink"] = pipeline_sinks(given["sink"])
            _check_trigger(given.get("trigger"))
            if given.get("output_mode", "append") not in get_args(OutputMode):
                raise OptionError(f"output_mode takes append, update or complete, not {given['output_mode']!r}")
            _check_delivery(checked.get("sink"), given.get("output_mode"))
            for name in {"broker", "group", "topics"} & {str(key).lower() for key in given.get("source", ())}:
                raise OptionError(f"source={{{name!r}: …}} is the pipeline's own: give it to @app.share_pipeline")
        except OptionError as error:
            raise OptionError(f"pipeline {pipeline}: {error}") from None
        return cls(**checked)


class SharePipeline:
    """One declared pipeline. `fun` is the user's function."""

    def __init__(
        self, app: App, fun: Callable[..., Any], topics: Sequence[Any], given: Mapping[str, Any], name: str
    ) -> None:
        """Raises: UsageError, OptionError."""
        self.app = app
        self.fun = fun
        self.name = name
        self.options = PipelineOptions.parse(name, given)
        if not topics:
            raise UsageError(f"pipeline {name}: name a topic: @app.share_pipeline('orders', …)")
        self.channels = tuple(topics)
        for topic in topics:
            serializer = getattr(topic, "value_serializer", None)
            if serializer not in (None, "json", "raw"):
                raise UsageError(
                    f"pipeline {name}: topic {topic_name(topic)!r} has value_serializer={serializer!r}, which Spark "
                    "does not know: name a topic without it, and decode the bytes in the pipeline's function"
                )
            codec = getattr(topic, "value_codec", None)
            if codec is not None and not hasattr(codec, "registry"):
                raise UsageError(
                    f"pipeline {name}: topic {topic_name(topic)!r} has a codec of the application's, which Spark does "
                    "not know: give the topic's name, and decode the bytes in the pipeline's function"
                )
        self.topics = tuple(topic_name(topic) for topic in topics)
        self.arguments = _arguments(name, fun, writes=self.options.sink is None)

    @property
    def group(self) -> str:
        """The share group."""
        return self.options.group or f"{self.app.app_id}.{self.name}"

    @property
    def value_type(self) -> Any:
        """The type of the values, if all topics have the same type; None: bytes."""
        types = [getattr(channel, "value_type", None) for channel in self.channels]
        return types[0] if types and all(one == types[0] for one in types) else None

    def refuse_unrun(self, result: Any) -> None:
        """Check that a call of the function that writes a batch has run. Raises: UsageError: nothing of it ran."""
        if is_awaitable(result) or refusal_of_unrun(result) is not None:
            dispose(result)
            raise UsageError(
                f"pipeline {self.name}: its function returned a {type(result).__name__}, so that nothing of it ran for "
                "this batch: make it, and what stands around it, a plain def that writes the batch"
            )

    def __call__(self, *arguments: Any) -> Any:
        """Call the user's function: for tests."""
        return self.fun(*arguments)


def _arguments(name: str, fun: Callable[..., Any], *, writes: bool) -> int:
    called = function_below(fun)
    if gives_coroutine(fun) or inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise UsageError(
            f"pipeline {name}: Spark calls the function, which cannot be async and cannot yield; write `def {name}(…)`"
        )
    count = len(inspect.signature(fun).parameters)
    if count == 1 or (writes and count == 2):
        return count
    takes = "the batch, or the batch and its number" if writes else "one DataFrame"
    raise UsageError(f"pipeline {name}: the function takes {takes}, and this one takes {count} arguments")


def _check_delivery(sinks: Sequence[Sink] | None, mode: str | None) -> None:
    if mode == "complete" and any(isinstance(one, Produce) and one.delivery == "exactly_once" for one in sinks or ()):
        raise OptionError("delivery='exactly_once' goes with output_mode append or update, not complete")


def _check_trigger(trigger: Any) -> None:
    if trigger is not None and (not isinstance(trigger, str) or DURATION.fullmatch(trigger) is None):
        raise OptionError(f'trigger takes text such as "10 seconds", not {trigger!r}')
