"""A share agent: the decorated function, what it takes, where from, and with which options."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal, Protocol, get_args, get_origin, get_type_hints

from flowshare.agents.handler.batch import Records
from flowshare.agents.handler.codec import Codec, CodecDecoder, Encoded, Missing, find_codec
from flowshare.agents.handler.delivery import SENT_LATER, Delivery
from flowshare.agents.handler.encoding import encode
from flowshare.agents.handler.errors import AnnotationError, OptionError, UndecodableValue, Unencodable, UsageError
from flowshare.agents.handler.middleware import Middleware, check
from flowshare.agents.handler.options import AgentOptions
from flowshare.agents.handler.send import (
    ProducerRecord,
    Send,
    is_topic,
    missing_to_send,
    output_topic,
    record_of,
    topic_name,
)
from flowshare.agents.handler.texts import said, shown
from flowshare.agents.handler.values import Decoder, check_topic_type, decoder, describe, explain

logger = logging.getLogger(__name__)

_EMPTY: Final = inspect.Parameter.empty


class Signature:
    """How a handler is called: which parameter gets the value (or the records) and which the delivery."""

    __slots__ = ("annotation", "delivery_name", "delivery_positional", "is_async", "value_annotated")

    def __init__(
        self, name: str, fun: Callable[..., Any], *, batch: bool, scope: Mapping[str, Any] | None = None
    ) -> None:
        called = fun if inspect.isroutine(fun) else getattr(fun, "__call__", fun)  # noqa: B004 - its kind, not if it is
        self.is_async = _is_async(name, called)
        hints = _hints(name, called, scope)
        parameters = [
            one
            for one in inspect.signature(fun).parameters.values()
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
        if not parameters:
            raise AnnotationError(f"agent {name}: the handler takes no value; write `async def {name}(value: dict)`")
        value, *others = parameters
        if value.kind is value.KEYWORD_ONLY:
            raise AnnotationError(f"agent {name}: the first parameter is the value and must be positional")
        hint = hints.get(value.name, _EMPTY)
        if hint is Delivery:
            raise AnnotationError(f"agent {name}: the first parameter is the value; put the fs.Delivery after it")
        self.value_annotated = hint is not _EMPTY
        self.annotation = _batch_annotation(name, hint) if batch else (Any if hint is _EMPTY else hint)
        if not batch and Records in (hint, get_origin(hint)):
            raise AnnotationError(f"agent {name}: a handler that takes fs.Records needs batch=fs.Batch(size, within=…)")
        self.delivery_name: str | None = None
        self.delivery_positional = False
        self._find_delivery(name, others, hints, batch)

    def _find_delivery(
        self, name: str, others: Sequence[inspect.Parameter], hints: Mapping[str, Any], batch: bool
    ) -> None:
        for index, one in enumerate(others):
            hint = hints.get(one.name, _EMPTY)
            wanted = hint is Delivery or (hint is _EMPTY and (one.name == "delivery" or index == 0))
            if wanted and self.delivery_name is None and not (hint is _EMPTY and one.default is not _EMPTY):
                self.delivery_name = one.name
                self.delivery_positional = one.kind is not one.KEYWORD_ONLY and index == 0
            elif one.default is _EMPTY:
                raise AnnotationError(
                    f"agent {name}: no value for the parameter {one.name!r}. A handler takes the value and, if it "
                    "likes, `delivery: fs.Delivery`; give other parameters a default."
                )
        if batch and self.delivery_name is not None:
            raise AnnotationError(
                f"agent {name}: a batch handler takes fs.Records only; each of its records has a .delivery"
            )


class Pausable(Protocol):
    """An agent at work in this process."""

    @property
    def paused(self) -> bool:
        """Whether it fetches nothing until `resume`."""

    def pause(self) -> None:
        """Fetch nothing more, give back what no handler has begun."""

    def resume(self) -> None:
        """Fetch again."""


class Application(Protocol):
    """What an agent asks of its app, `agents.app.App`."""

    app_id: str
    share: str
    conf: Any
    """Faust's settings: `topic_partitions`, `topic_allow_declare`."""
    middlewares: list[Middleware]
    has_codecs: bool
    """Whether a topic has a codec."""
    share_agents: dict[str, ShareAgent]

    def runtime_of(self, agent: str) -> Pausable | None:
        """The agent of this name at work; None where the app does not run."""


class ShareAgent:
    """One share agent of an app. Made by `@app.share_agent`; calling it calls the function."""

    group_type: ClassVar[Literal["share", "cooperative", "consumer"]] = "share"
    """What its group is: a share group, a cooperative one, or a consumer group that knows nothing but offsets."""
    unshared = False
    """Whether one member reads a partition at a time, so that more members than partitions are of no use."""
    ordered_outputs = False
    """Whether outputs that are settled become visible in the order of their partition."""

    def __init__(
        self,
        app: Application,
        fun: Callable[..., Any],
        topics: Sequence[Any],
        options: Mapping[str, Any],
        name: str,
        *,
        scope: Mapping[str, Any] | None = None,
    ) -> None:
        """scope: names that annotations may use besides the function's own globals.

        Raises: OptionError, AnnotationError, UsageError with what to change."""
        self.app = app
        self.fun = fun
        self.name = name
        self.options = AgentOptions.parse(name, options)
        self.signature = Signature(name, fun, batch=self.options.batch is not None, scope=scope)
        if not topics:
            raise UsageError(f"agent {name}: no topic; write @app.share_agent('topic', …)")
        self._check_annotated(topics)
        self.channels: tuple[Any, ...] = tuple(topics)
        self.topics: tuple[str, ...] = tuple(_channel_name(name, topic) for topic in topics)
        self.group = self.options.group or f"{app.app_id}.{name}"
        self._decoders = self._build_decoders()
        self._key_decoders = {
            name: self._key_decoder(name, channel) for name, channel in zip(self.topics, self.channels, strict=True)
        }
        self._check_outputs()
        self._sink_encoders = [(self._output_topic(sink), _value_encoder(sink)) for sink in self.options.sink]
        self._warned = False
        self.__doc__ = fun.__doc__
        self.__name__ = getattr(fun, "__name__", name)
        self.__wrapped__ = fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as a unit test does."""
        return self.fun(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<ShareAgent {self.name} of {', '.join(self.topics)}, group {self.group}>"

    @property
    def is_async(self) -> bool:
        """Whether the handler is an `async def`."""
        return self.signature.is_async

    @property
    def dead_letter_topic(self) -> str | None:
        """Name of the dead-letter topic; None when rejected records have none."""
        wanted = self.options.dead_letter
        if wanted is None:
            return None
        return f"{self.group}.dlq" if wanted is True else topic_name(wanted)

    @property
    def sinks(self) -> tuple[str, ...]:
        """Names of the topics that returned values go to."""
        return tuple(topic_name(sink) for sink in self.options.sink)

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """The app's middleware, then the agent's. Raises: UsageError when one cannot stand around this handler."""
        chain = (*self.app.middlewares, *self.options.middleware)
        check(self.name, chain, is_async=self.is_async)
        return chain

    # --- while a worker runs ------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether `pause` is in force in this process."""
        runtime = self.app.runtime_of(self.name)
        return runtime is not None and runtime.paused

    def pause(self) -> None:
        """Fetch nothing more in this process until `resume`; handlers that run finish, what no handler has begun is
        given back. Any thread. Raises: UsageError when the app does not run here."""
        self._running("pause").pause()

    def resume(self) -> None:
        """Fetch again after `pause`. Any thread. Raises: UsageError when the app does not run here."""
        self._running("resume").resume()

    def _running(self, what: str) -> Pausable:
        runtime = self.app.runtime_of(self.name)
        if runtime is None:
            raise UsageError(
                f"agent {self.name} does not run in this process, so there is nothing to {what}: call it where the "
                "app runs (a handler, a timer, a web page, inside `async with app.running():`)"
            )
        return runtime

    # --- what a pool asks ---------------------------------------------------------------------------------------

    def decoder(self, topic: str) -> Decoder | None:
        """How values of this topic are decoded; None: they are passed as bytes."""
        return self._decoders[topic]

    def key_decoder(self, topic: str) -> Decoder | None:
        """How keys of this topic are decoded, by its `key_type`; None: they are passed as bytes."""
        return self._key_decoders[topic]

    def explain(self, raw: bytes | None, error: BaseException) -> UndecodableValue:
        """One error for a value that the decoder refused."""
        return explain(raw, self.signature.annotation, error)

    def outputs(self, result: Any, headers: tuple[tuple[str, bytes], ...]) -> tuple[ProducerRecord, ...]:
        """What a handler's result produces: `Send`s, or the value for each sink. Raises: Unencodable."""
        if result is None or result is SENT_LATER:
            return ()
        if isinstance(result, Send):
            return (result.encode(headers),)
        if type(result) in (list, tuple) and any(isinstance(one, Send) for one in result):
            return tuple(_of_sends(one).encode(headers) for one in result)
        if not self._sink_encoders:
            self._warn_of_lost_value(result)
            return ()
        return tuple([record_of(name, in_bytes(result), headers) for name, in_bytes in self._sink_encoders])

    @property
    def looks_up(self) -> bool:
        """Whether a codec may have to look something up before a record is read or an output written."""
        decoders = (*self._decoders.values(), *self._key_decoders.values())
        return self.app.has_codecs or any(isinstance(one, CodecDecoder) and one.looks_up for one in decoders)

    def missing_outputs(self, result: Any) -> Missing | None:
        """What has to be fetched before `outputs` can encode this result; None: nothing."""
        if isinstance(result, Send):
            return missing_to_send(result.topic)
        if type(result) in (list, tuple) and any(isinstance(one, Send) for one in result):
            found = (missing_to_send(one.topic) for one in result if isinstance(one, Send))
        else:
            found = (missing_to_send(sink) for sink in self.options.sink)
        return next((one for one in found if one is not None), None)

    def _warn_of_lost_value(self, value: Any) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "agent %s returned a value of type %s but has no sink: the value is dropped. "
                "Add sink=[topic], return fs.Send(topic, value), or return None.",
                self.name,
                type(value).__name__,
            )

    def describe(self) -> dict[str, Any]:
        """The agent's settings by name, for the line at the worker's start and for `--json`."""
        options = self.options
        return {
            "agent": self.name,
            "topics": list(self.topics),
            "group": self.group,
            "value": describe(self.signature.annotation),
            "handler": "async def" if self.is_async else "def",
            "start": options.auto_offset_reset,
            "concurrency": options.concurrency,
            "batch": None if options.batch is None else {"size": options.batch.size, "within": options.batch.within_s},
            "max_attempts": options.retry.max_attempts,
            "timeout": options.timeout,
            "lock_duration": options.lock_duration,
            "dead_letter": self.dead_letter_topic,
            "sinks": list(self.sinks),
            "at_most_once": options.at_most_once,
            "exactly_once": options.exactly_once,
            "drain_timeout": options.drain_timeout,
            "rate_limit": None if options.rate_limit is None else options.rate_limit.per_s,
        }

    def _build_decoders(self) -> dict[str, Decoder | None]:
        built: dict[str, Decoder | None] = {}
        for name, channel in zip(self.topics, self.channels, strict=True):
            annotation = self.signature.annotation
            value_type = getattr(channel, "value_type", None)
            codec = self._codec("value", name, channel)
            if self.signature.value_annotated:
                check_topic_type(annotation, value_type, self.name, name)
            elif value_type is not None and not isinstance(value_type, str):
                annotation = value_type
            elif codec is not None:
                annotation = getattr(codec, "model", None) or annotation
            try:
                if codec is not None:
                    built[name] = CodecDecoder(codec, annotation)
                else:
                    built[name] = channel.decoder("value", annotation) if is_topic(channel) else decoder(annotation)
            except AnnotationError as error:
                raise AnnotationError(f"agent {self.name}: {error}") from None
        return built

    def _codec(self, what: str, topic: str, channel: Any) -> Codec | None:
        """Of a topic's keys or values: the topic's own, or the agent's. Raises: OptionError: both, or a serializer."""
        option = f"{what}_codec"
        given, own = getattr(self.options, option), getattr(channel, option, None)
        if given is None:
            return own
        besides = option if own is not None else f"{what}_serializer"
        if own is not None or getattr(channel, f"{what}_serializer", None) is not None:
            raise OptionError(
                f"agent {self.name}: topic {topic!r} has a {besides} of its own, and the agent a {option}: "
                "leave one of them out"
            )
        try:
            return find_codec(given, option, topic, what)
        except OptionError as error:
            raise OptionError(f"agent {self.name}: {error}") from None

    def _key_decoder(self, topic: str, channel: Any) -> Decoder | None:
        key_type = getattr(channel, "key_type", None)
        codec = self._codec("key", topic, channel)
        if codec is None and (
            isinstance(key_type, str) or (key_type is None and getattr(channel, "key_serializer", None) is None)
        ):
            return None
        try:
            if codec is not None:
                return CodecDecoder(codec, Any if key_type is None or isinstance(key_type, str) else key_type)
            made: Decoder | None = channel.decoder("key", Any if key_type is None else key_type)
        except AnnotationError as error:
            raise AnnotationError(f"agent {self.name}: the key_type of topic {topic!r}: {error}") from None
        return made

    def _check_annotated(self, topics: Sequence[Any]) -> None:
        if self.signature.value_annotated:
            return
        untyped = [topic for topic in topics if getattr(topic, "value_type", None) is None and not self._model(topic)]
        if untyped:
            batch = self.options.batch is not None
            written = f"def {self.name}(records: fs.Records[dict])" if batch else f"def {self.name}(value: dict)"
            raise AnnotationError(
                f"agent {self.name}: the handler does not say what its values are. Annotate its first parameter, "
                f"`{written}` (bytes, str, dict, a dataclass, a TypedDict, a fs.Record, …; Any for any JSON), or give "
                f"topic {_channel_name(self.name, untyped[0])!r} a value_type"
            )

    def _model(self, topic: Any) -> Any:
        """What a topic's codec makes of values, where it says so."""
        codec = getattr(topic, "value_codec", None) or self.options.value_codec
        return getattr(codec, "model", None)

    def _output_topic(self, topic: Any) -> str:
        """Raises: OptionError."""
        try:
            return output_topic(topic)
        except Unencodable as error:
            raise OptionError(f"agent {self.name}: {error}") from None

    def _check_outputs(self) -> None:
        wanted = self.options.dead_letter
        if wanted is not None and wanted is not True and not (isinstance(wanted, str) or is_topic(wanted)):
            raise OptionError(f"agent {self.name}: dead_letter takes True, a topic, a name or None, not {wanted!r}")
        if self.dead_letter_topic is not None:
            self._output_topic(self.dead_letter_topic)
        if self.dead_letter_topic in self.topics:
            raise OptionError(
                f"agent {self.name}: its dead-letter topic {self.dead_letter_topic!r} is one that it reads"
            )


def _value_encoder(sink: Any) -> Callable[[Any], Encoded | None]:
    """How a returned value goes to a sink."""
    return encode if isinstance(sink, str) else partial(sink.encode, "value")


def _channel_name(agent: str, topic: Any) -> str:
    if isinstance(topic, str) and topic:
        return topic
    if is_topic(topic):
        if getattr(topic, "pattern", None):
            raise UsageError(f"agent {agent}: topic patterns are not supported; list the topics by name")
        return str(topic.get_topic_name())
    raise UsageError(f"agent {agent}: {topic!r} is not a topic; give a name or what app.topic(…) returned")


def _is_async(name: str, called: Callable[..., Any]) -> bool:
    if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        raise AnnotationError(
            f"agent {name}: the handler yields. A share agent is called once per record (or batch) and returns; "
            "return fs.Send(topic, value), or a list of them, to produce several records."
        )
    return inspect.iscoroutinefunction(called)


def _hints(name: str, called: Callable[..., Any], scope: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return get_type_hints(called, localns=dict(scope) if scope else None)
    except Exception as error:
        raise AnnotationError(
            f"agent {name}: its annotations cannot be evaluated ({said(error)}). Types that a handler's annotations "
            "name must be importable where the handler is defined, not only under TYPE_CHECKING or inside a function."
        ) from error


def _batch_annotation(name: str, hint: Any) -> Any:
    if hint is _EMPTY or hint is Records:
        return Any
    if get_origin(hint) is Records:
        return get_args(hint)[0]
    raise AnnotationError(f"agent {name}: a batch handler takes fs.Records[…], not {describe(hint)}")


def _of_sends(one: Any) -> Send:
    """One of what a handler returned in a list with `Send`s. Raises: Unencodable."""
    if isinstance(one, Send):
        return one
    raise Unencodable(
        f"the handler returned a list in which some are fs.Send and others are not ({shown(one)}): wrap these in "
        "fs.Send(topic, value), too, or send the others by delivery.send(topic, value) and return the value alone"
    )
