"""A share agent: the decorated function, its signature, its topics and its options."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Final, Literal, Protocol, Union, get_args, get_origin, get_type_hints

from flowshare.agents.handler.arriving import misfit
from flowshare.agents.handler.awaiting import (
    SENT_LATER,
    function_below,
    gives_coroutine,
    is_awaitable,
    refusal_of_unrun,
)
from flowshare.agents.handler.batch import Records
from flowshare.agents.handler.codec import Codec, CodecDecoder, Encoded, Missing, find_codec
from flowshare.agents.handler.delivery import Delivery
from flowshare.agents.handler.encoding import encode
from flowshare.agents.handler.errors import AnnotationError, OptionError, UndecodableValue, Unencodable, UsageError
from flowshare.agents.handler.middleware import Middleware, check
from flowshare.agents.handler.options import AgentOptions
from flowshare.agents.handler.outcomes import Reject, Release
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
from flowshare.agents.handler.values import (
    Decoder,
    alternatives,
    check_topic_type,
    decoder,
    describe,
    explain,
    plain,
    strip_none,
)

logger = logging.getLogger(__name__)

_EMPTY: Final = inspect.Parameter.empty


class Signature:
    """Call signature of a handler: the parameter for the value (or the records) and the one for the delivery."""

    __slots__ = ("annotation", "delivery_name", "delivery_positional", "is_async", "returns", "value_annotated")

    def __init__(
        self, name: str, fun: Callable[..., Any], *, batch: bool, scope: Mapping[str, Any] | None = None
    ) -> None:
        called = function_below(fun)
        self.is_async = _is_async(name, called)
        hints = _hints(name, called, scope)
        self.returns = hints.get("return", Any)
        parameters = [
            one for one in _signature(fun).parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
        if not parameters:
            raise AnnotationError(f"agent {name}: the handler takes no value; write `async def {name}(value: dict)`")
        value, *others = parameters
        if value.kind is value.KEYWORD_ONLY:
            raise AnnotationError(f"agent {name}: the first parameter is the value and must be positional")
        hint = hints.get(value.name, hints.get(_first_name(fun), _EMPTY))
        if _is_delivery(hint):
            raise AnnotationError(f"agent {name}: the first parameter is the value; put the fs.Delivery after it")
        self.value_annotated = hint is not _EMPTY
        self.annotation = _batch_annotation(name, hint) if batch else (Any if hint is _EMPTY else hint)
        bare = plain(strip_none(hint)[0])
        if not batch and Records in (bare, get_origin(bare)):
            raise AnnotationError(f"agent {name}: a handler that takes fs.Records needs batch=fs.Batch(size, within=…)")
        self.delivery_name: str | None = None
        self.delivery_positional = False
        self._find_delivery(name, others, hints, batch)

    def _find_delivery(
        self, name: str, others: Sequence[inspect.Parameter], hints: Mapping[str, Any], batch: bool
    ) -> None:
        for index, one in enumerate(others):
            hint = hints.get(one.name, _EMPTY)
            wanted = _is_delivery(hint) or (hint is _EMPTY and (one.name == "delivery" or index == 0))
            if wanted and self.delivery_name is None and not (hint is _EMPTY and one.default is not _EMPTY):
                self.delivery_name = one.name
                self.delivery_positional = one.kind is not one.KEYWORD_ONLY and index == 0
            elif one.default is _EMPTY:
                raise AnnotationError(
                    f"agent {name}: no value for the parameter {one.name!r}. A handler takes the value and, if it "
                    "likes, `delivery: fs.Delivery`; give other parameters a default, and where a decorator fills them "
                    "say so by its wrapper's __signature__, or by a wrapper without *args and **kwargs."
                )
        if batch and self.delivery_name is not None:
            raise AnnotationError(
                f"agent {name}: a batch handler takes fs.Records only; each of its records has a .delivery"
            )


class Pausable(Protocol):
    """An agent at work in this process, which can be paused."""

    @property
    def paused(self) -> bool:
        """True if the agent fetches nothing until `resume`."""

    def pause(self) -> None:
        """Fetch nothing more, release the records that no handler has begun."""

    def resume(self) -> None:
        """Fetch again."""


class Application(Protocol):
    """The app as an agent sees it; implemented by `agents.app.App`."""

    app_id: str
    share: str
    conf: Any
    """Faust's settings: `topic_partitions`, `topic_allow_declare`."""
    middlewares: list[Middleware]
    has_codecs: bool
    """True if a topic has a codec."""
    share_agents: dict[str, ShareAgent]

    def runtime_of(self, agent: str) -> Pausable | None:
        """Return the agent of this name at work; None where the app does not run."""


class ShareAgent:
    """A share agent of an app, made by `@app.share_agent`; calling the object calls the function."""

    group_type: ClassVar[Literal["share", "cooperative", "consumer"]] = "share"
    """Kind of the agent's group: a share group, a cooperative group, or a consumer group that only knows offsets."""
    unshared = False
    """True if only one member reads a partition at a time, so that more members than partitions are of no use."""
    ordered_outputs = False
    """True if settled outputs become visible in the order of their partition."""

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
        self._awaits = False
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
        """True if the handler is an `async def`."""
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
        """True if the agent is paused in this process."""
        runtime = self.app.runtime_of(self.name)
        return runtime is not None and runtime.paused

    def pause(self) -> None:
        """Fetch nothing more in this process until `resume`; running handlers finish, records that no handler has begun
        are released. Any thread. Raises: UsageError when the app does not run here."""
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
        """Return the decoder of this topic's values; None: values stay bytes."""
        return self._decoders[topic]

    def key_decoder(self, topic: str) -> Decoder | None:
        """Return the decoder of this topic's keys, by its `key_type`; None: keys stay bytes."""
        return self._key_decoders[topic]

    def explain(self, raw: bytes | None, error: BaseException) -> UndecodableValue:
        """Make the error for a value that the decoder refused."""
        return explain(raw, self.signature.annotation, error)

    def outputs(self, result: Any, headers: tuple[tuple[str, bytes], ...]) -> tuple[ProducerRecord, ...]:
        """Return the records that a handler's result produces: the `Send`s, or the value for each sink.

        Raises: Unencodable; UsageError: the result holds something that did not run.
        """
        if result is None or result is SENT_LATER:
            return ()
        if isinstance(result, Send):
            return (result.encode(headers),)
        if type(result) in (list, tuple) and any(isinstance(one, Send) for one in result):
            return tuple(_of_sends(one).encode(headers) for one in result)
        if not self._sink_encoders:
            if (refusal := refusal_of_unrun(result)) is not None:
                raise UsageError(f"agent {self.name}: {refusal}")
            self._warn_of_lost_value(result)
            return ()
        return tuple([record_of(name, in_bytes(result), headers) for name, in_bytes in self._sink_encoders])

    def is_awaitable(self, result: Any) -> bool:
        """Tell if the result of a handler call must still be awaited; for a plain `def` handler, log a warning once."""
        if not is_awaitable(result):
            return False
        if not (self.is_async or self._awaits):
            self._awaits = True
            logger.warning(
                "agent %s: its handler is a plain def that returned a %s, which is awaited on the handler loop while a "
                "thread waits, so that `timeout` cannot end it. Make what stands outermost around the handler an "
                "`async def`.",
                self.name,
                type(result).__name__,
            )
        return True

    @property
    def looks_up(self) -> bool:
        """True if a codec may need a look-up before a record is read or an output written."""
        decoders = (*self._decoders.values(), *self._key_decoders.values())
        return self.app.has_codecs or any(isinstance(one, CodecDecoder) and one.looks_up for one in decoders)

    def missing_outputs(self, result: Any) -> Missing | None:
        """Return the look-up that `outputs` needs before it can encode this result; None: it needs none."""
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
        """Return the agent's settings by name, for the line at the worker's start and for `--json`."""
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
        """Return the codec of a topic's keys or values, its own or the agent's. Raises: OptionError: both, or a
        serializer."""
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
        """Return the class that a topic's codec turns values into; None: the codec does not say."""
        codec = getattr(topic, "value_codec", None) or self.options.value_codec
        return getattr(codec, "model", None)

    def _output_topic(self, topic: Any) -> str:
        """Name a topic. Raises: OptionError."""
        try:
            return output_topic(topic)
        except Unencodable as error:
            raise OptionError(f"agent {self.name}: {error}") from None

    def _check_returns(self, sink: Any) -> None:
        """Check the handler's return type against the sink's. Raises: AnnotationError when no returned value fits."""
        typ = getattr(sink, "value_type", None)
        told = self.signature.returns
        if typ is None or isinstance(typ, str) or _produced(told) is None:
            return
        if getattr(sink, "value_codec", None) is not None or getattr(sink, "value_serializer", None) is not None:
            return
        if (why := misfit(_produced(told), typ)) is not None:
            raise AnnotationError(
                f"agent {self.name}: it returns {describe(told)}, and its sink {topic_name(sink)!r} has "
                f"value_type={describe(typ)}: {why}. Make them the same, or return fs.Send(topic, value)"
            )

    def _check_outputs(self) -> None:
        wanted = self.options.dead_letter
        if wanted is not None and wanted is not True and not (isinstance(wanted, str) or is_topic(wanted)):
            raise OptionError(f"agent {self.name}: dead_letter takes True, a topic, a name or None, not {wanted!r}")
        if self.dead_letter_topic is not None:
            self._output_topic(self.dead_letter_topic)
        for sink in self.options.sink:
            self._check_returns(sink)
        if self.dead_letter_topic in self.topics:
            raise OptionError(
                f"agent {self.name}: its dead-letter topic {self.dead_letter_topic!r} is one that it reads"
            )


def _produced(returns: Any) -> Any:
    """Return the part of a handler's return type that goes to its sinks; None: no part."""
    kept = [one for one in alternatives(returns) if not _is_no_value(one)]
    if len(kept) == 1:
        return kept[0]
    return Union[tuple(kept)] if kept else None  # noqa: UP007 - built at run time


def _is_no_value(one: Any) -> bool:
    kind = get_origin(one) or one
    if kind in (list, tuple):
        return any(Send in alternatives(arg) for arg in get_args(one))
    return isinstance(kind, type) and issubclass(kind, (Send, Release, Reject, type(None), Awaitable, type))


def _value_encoder(sink: Any) -> Callable[[Any], Encoded | None]:
    """Return the encoder of values that go to a sink."""
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
    return gives_coroutine(called)


def _signature(fun: Callable[..., Any]) -> inspect.Signature:
    """Return the outermost function's signature; if it has `*args` or `**kwargs`, that of the function it wraps."""
    seen: set[int] = set()
    while True:
        seen.add(id(fun))
        found = inspect.signature(fun, follow_wrapped=False)
        open_ended = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in found.parameters.values())
        inner = getattr(fun, "__wrapped__", None)
        if not open_ended:
            return found
        if inner is None or id(inner) in seen:
            return inspect.signature(fun)  # a partial of such a wrapper has its own signature
        fun = inner


def _first_name(fun: Callable[..., Any]) -> str:
    """Return the value parameter's name where it is annotated: a wrapper may name it otherwise."""
    return next(iter(inspect.signature(fun).parameters), "")


def _functions(called: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield a function and the functions that it wraps (`functools.wraps`), outermost first."""
    seen: set[int] = set()
    while id(called) not in seen:
        seen.add(id(called))
        yield called
        inner = getattr(called, "__wrapped__", None)
        called = called if inner is None else function_below(inner)


def _hints(name: str, called: Callable[..., Any], scope: Mapping[str, Any] | None) -> dict[str, Any]:
    """Evaluate the annotations of a function and those it wraps; the outermost one counts."""
    functions = list(_functions(called))
    named: dict[str, Any] = dict(scope) if scope else {}
    for one in reversed(functions):
        named.update(getattr(one, "__globals__", {}))
    hints: dict[str, Any] = {}
    try:
        for one, within in reversed([*zip(functions, [*functions[1:], None], strict=True)]):
            own = getattr(one, "__globals__", {})
            is_local = _is_nested(one) and own is getattr(functions[-1], "__globals__", None)
            local = dict(scope) if scope and is_local else None
            hints.update(get_type_hints(_own_annotations(one, within), {**named, **own}, local, include_extras=True))
    except Exception as error:
        raise AnnotationError(
            f"agent {name}: its annotations cannot be evaluated ({said(error)}). Types that a handler's annotations "
            "name must be importable where the handler is defined, not only under TYPE_CHECKING or inside a function."
        ) from error
    return hints


def _own_annotations(fun: Callable[..., Any], within: Callable[..., Any] | None) -> object:
    """Make an object with a function's own annotations, without those that `functools.wraps` copied from the wrapped
    one: only that one's module knows their names."""
    copied: Mapping[str, Any] = getattr(within, "__annotations__", None) or {}
    nothing = object()
    own = {
        name: hint
        for name, hint in (getattr(fun, "__annotations__", None) or {}).items()
        if not ((there := copied.get(name, nothing)) is hint or (isinstance(hint, str) and there == hint))
    }
    return SimpleNamespace(__annotations__=own, __type_params__=getattr(fun, "__type_params__", ()))


def _is_nested(fun: Callable[..., Any]) -> bool:
    """Tell if a function is defined in a function or class, whose names its annotations may use."""
    return "." in getattr(getattr(fun, "__code__", None), "co_qualname", "")


def _is_delivery(hint: Any) -> bool:
    """Tell if a parameter takes the delivery: `fs.Delivery`, also with `| None` or in an `Annotated`."""
    return Delivery in alternatives(hint)


def _batch_annotation(name: str, hint: Any) -> Any:
    hint = plain(strip_none(hint)[0])
    if hint is _EMPTY or hint is Records:
        return Any
    if get_origin(hint) is Records:
        return get_args(hint)[0]
    raise AnnotationError(f"agent {name}: a batch handler takes fs.Records[…], not {describe(hint)}")


def _of_sends(one: Any) -> Send:
    """Check one element of a returned list with `Send`s. Raises: Unencodable when it is none."""
    if isinstance(one, Send):
        return one
    raise Unencodable(
        f"the handler returned a list in which some are fs.Send and others are not ({shown(one)}): wrap these in "
        "fs.Send(topic, value), too, or send the others by delivery.send(topic, value) and return the value alone"
    )
