"""`FaustApp` is Faust's part of an app, with the changes that share agents need.

Web pages, models and commands are Faust's own; so are its agents, streams and tables, whose transport starts only in an
app that has some (`streams.py`). Faust begins timers, cron jobs and tasks, `jobs.py` runs them. Users take
`agents.app.App`, which adds share agents.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, timedelta, tzinfo
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, overload

import faust
import faust.app.base
from mode import Service, ServiceT

from flowshare.agents.faust.cron import Cron, zone_of
from flowshare.agents.faust.jobs import Jobs, interval_of, job_of
from flowshare.agents.faust.models import check_declared
from flowshare.agents.faust.streams import Streams
from flowshare.agents.faust.topic import Topic
from flowshare.agents.handler.codec import Codec, find_codec
from flowshare.agents.handler.errors import OptionError, UsageError
from flowshare.agents.handler.send import ProducerRecord, encode_headers
from flowshare.agents.host.lease import LeaseGuard
from flowshare.log.folder import OwnFolder, make_private

if TYPE_CHECKING:
    from flowshare.agents.host.host import Host
    from flowshare.agents.host.sending import SendingThread
    from flowshare.client.settings import ProducerSettings

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")


class BootStrategy(faust.app.base.BootStrategy):
    """Chooses the services that Faust starts.

    The transport starts only if the app uses it, the web server only if there are pages for it.
    """

    @property
    def enable_kafka(self) -> bool:  # type: ignore[override]
        """True if Faust's producer, consumer, conductor and tables start."""
        return cast("FaustApp", self.app).streams.running

    def sensors(self) -> Iterable[ServiceT]:
        """Return the user's sensors, and Faust's monitor only when it has something to measure each second."""
        idle = None if self.enable_kafka else cast("FaustApp", self.app).monitor
        return [sensor for sensor in super().sensors() if sensor is not idle]

    def agents(self) -> Iterable[ServiceT]:
        """Return Faust's own agents, if any."""
        return super().agents() if self.enable_kafka else []

    def _should_enable_web(self) -> bool:
        return bool(cast("FaustApp", self.app).has_pages and super()._should_enable_web())


class FaustApp(faust.App):
    """A `faust.App` that starts only what it uses, and sends through the producer of the host that runs it."""

    sending_thread: SendingThread
    """Sends for threads when nothing runs the app (`topic.send_sync`)."""
    BootStrategy = BootStrategy
    SCAN_CATEGORIES: ClassVar[list[str]] = [*faust.App.SCAN_CATEGORIES, "flowshare.share_agent"]

    def __init__(self, id: str, *, web_hosts: tuple[str, ...] = (), **options: Any) -> None:  # noqa: A002 - as in Faust
        """options: as `settings.read_options` returns them."""
        options.setdefault("Topic", Topic)
        options.setdefault("Serializers", "flowshare.agents.faust.models:Registry")
        self.app_id = id
        self.host: Host | None = None
        """The host that runs this app, set by the host."""
        self.web_hosts = web_hosts
        """Further hosts under which pages may be asked for."""
        self.has_pages = False
        self.lease_guard = LeaseGuard()
        """Runs `on_leader` functions while this process holds the app's lease."""
        self.jobs = Jobs(self)
        """Timers, cron jobs and tasks."""
        self.streams = Streams(self)
        """Faust's own agents, streams and tables."""
        self.has_codecs = False
        """True if a topic has a codec."""
        self._declared: dict[str, Topic[Any]] = {}
        self._start_functions: list[Callable[..., Any]] = []
        self._drain_functions: list[Callable[..., Any]] = []
        super().__init__(id, **options)

    def running_host(self) -> Host:
        """Return the host that runs this app. Raises: UsageError when nothing runs it."""
        if self.host is None:
            raise UsageError(
                f"App({self.app_id!r}) does not run, so nothing can be sent: write `async with app.sending():` around "
                "the code, or `topic.send_sync(…)` where there is no event loop"
            )
        return self.host

    async def make_topic(self, topic: str, partitions: int, config: Mapping[str, Any] | None) -> None:
        """Make a topic if it is missing. Raises: UsageError when nothing runs the app."""
        host = self.running_host()
        configs = {key: str(value) for key, value in (config or {}).items()}
        await host.service.call(
            lambda: host.admin.create_topic(topic, partitions=partitions, configs=configs, exist_ok=True)
        )

    @property
    def producer_settings(self) -> ProducerSettings | None:
        """Producer settings from Faust's options (`producer_max_request_size`); None: the options set nothing.

        Raises: UsageError.
        """
        from flowshare.client.settings import ProducerSettings

        _, options = self._default_options  # its settings do not tell a default apart
        largest = options.get("producer_max_request_size")
        try:
            return None if largest is None else ProducerSettings(max_request_size=largest)
        except (TypeError, ValueError):
            raise UsageError(
                f"App({self.app_id!r}): producer_max_request_size is a number of bytes from 1 on, not {largest!r}"
            ) from None

    # --- declaring ----------------------------------------------------------------------------------------------

    @overload
    def topic(self, *topics: str, key_type: Any = None, value_type: type[V], **options: Any) -> Topic[V]: ...
    @overload
    def topic(self, *topics: str, key_type: Any = None, value_type: Any = None, **options: Any) -> Topic[Any]: ...
    def topic(self, *topics: str, key_type: Any = None, value_type: Any = None, **options: Any) -> Topic[Any]:
        """Name a topic of the app; its types encode sent records, and decode the records of agents.

        key_type, value_type: bytes, str, dict, a dataclass, a TypedDict, a `fs.Record`, …; None: by the handler's
        annotation. key_serializer, value_serializer: a codec of Faust's (`json`, `raw`, `pickle`, …) that stands
        between the type and the bytes, in both directions. key_codec, value_codec: a codec in its place (`fs.Avro(…)`,
        an object with `decode` and `encode`, or the name of a registered one). The other options are Faust's.
        Raises: OptionError: a type and a serializer do not go together, or an unknown serializer or codec, or no number
        of partitions.
        """
        name = ", ".join(map(str, topics))
        partitions = options.get("partitions")
        if partitions is not None and (type(partitions) is not int or partitions < 1):
            raise OptionError(
                f"topic {name!r}: partitions is a whole number from 1 on, or None for the app's topic_partitions, not "
                f"{partitions!r}"
            )
        for what, typ in (("key", key_type), ("value", value_type)):
            if options.get(f"{what}_codec") is None:
                check_declared(name, what, typ, options.get(f"{what}_serializer"))
        codecs = {what: _codec_of(name, what, options) for what in ("key", "value")}
        made: Topic[Any] = super().topic(*topics, key_type=key_type, value_type=value_type, **options)  # type: ignore[assignment,unused-ignore]
        made.key_codec, made.value_codec = codecs["key"], codecs["value"]
        self.has_codecs |= made.key_codec is not None or made.value_codec is not None
        self._declared.update(dict.fromkeys(map(str, topics), made))
        return made

    def declared(self, topic: str) -> Topic[Any] | None:
        """Return the app's declaration of a topic (`app.topic`); None: the app declares none."""
        return self._declared.get(topic)

    def stream(self, channel: Any, *args: Any, **options: Any) -> Any:
        """Read a channel by Faust's `stream`, on Faust's transport, which starts then if it does not run.

        Raises: UsageError on the memory backend, which has no such transport.
        """
        if getattr(channel, "key_codec", None) or getattr(channel, "value_codec", None):
            raise UsageError(
                f"topic {channel.get_topic_name()!r} has a codec, which Faust's agents and streams do not know: read "
                "it with a share agent, which may send to a topic that Faust reads"
            )
        self.streams.ask()
        stream = super().stream(channel, *args, **options)
        self.streams.add(stream)
        return stream

    async def _on_agent_error(self, agent: Any, exc: BaseException) -> None:
        if self.host is not None:
            self.streams.crashed(agent.name, exc, self.host.clock.monotonic())
        await super()._on_agent_error(agent, exc)

    def page(self, path: str, **options: Any) -> Callable[[Any], Any]:
        """Declare a web page of the app (Faust's `page`); the first one turns the app's web server on.

        The server listens on `web_bind` (127.0.0.1) and `web_port` (a free one, which is printed), both options of
        `App`.
        """
        self.has_pages = True
        made: Callable[[Any], Any] = super().page(path, **options)
        return made

    def timer(  # type: ignore[override,unused-ignore]
        self, interval: float | timedelta, on_leader: bool = False, traced: bool = True, name: str | None = None
    ) -> Callable[[F], F]:
        """Decorator: run the function at each interval after the start, one tick at a time.

        interval: seconds, or a timedelta. on_leader: only in the one process that holds the app's lease; a tick is
        cancelled when the process loses the lease. traced: True: the app's `tracer` has a span of each tick. name: in
        logs, by default the function's. An exception costs one tick and is logged.
        Raises: OptionError; UsageError without parentheses.
        """
        _refuse_function(interval, "timer(interval=…)")

        def decorate(fun: F) -> F:
            with _naming("timer", name, fun):
                seconds = interval_of(interval)
            job = job_of(self, "timer", fun, name=name, on_leader=on_leader, traced=traced)
            super(FaustApp, self).task(self.jobs.timer(job, seconds), traced=False)
            return fun

        return decorate

    def crontab(  # type: ignore[override,unused-ignore]
        self,
        cron_format: str,
        *,
        timezone: str | tzinfo | None = None,
        on_leader: bool = False,
        traced: bool = True,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Decorator: run the function at its local times, as cron does, also when clocks are changed.

        cron_format: minute, hour, day, month and weekday. timezone: a `ZoneInfo` or its name; None: the app's
        `timezone`, by default UTC. The others: as for `timer`. Raises: OptionError; UsageError without parentheses.
        """
        _refuse_function(cron_format, "crontab('0 3 * * *')")

        def decorate(fun: F) -> F:
            with _naming("cron job", name, fun):
                zone = None if timezone is None else zone_of(timezone)
                Cron(cron_format, UTC if zone is None else zone)
            job = job_of(self, "cron job", fun, name=name, on_leader=on_leader, traced=traced)
            times = self.jobs.cron(job, lambda: Cron(cron_format, self.conf.timezone if zone is None else zone))
            super(FaustApp, self).task(times, traced=False)
            return fun

        return decorate

    @overload  # type: ignore[override,unused-ignore]
    def task(self, fun: F, *, on_leader: bool = False, traced: bool = True) -> F: ...
    @overload
    def task(self, fun: None = None, *, on_leader: bool = False, traced: bool = True) -> Callable[[F], F]: ...
    def task(self, fun: Any = None, *, on_leader: bool = False, traced: bool = True) -> Any:
        """Decorator: run the function once when the app has started. An exception of the function ends the app's host.

        on_leader: run once in each process that gets the app's lease, as soon as it does; cancelled when the process
        loses the lease, and begun again when it has the lease again. traced: as for `timer`. Raises: OptionError.
        """
        if fun is None:
            return lambda fun: self.task(fun, on_leader=on_leader, traced=traced)
        job = job_of(self, "task", fun, name=None, on_leader=on_leader, traced=traced)
        super().task(self.jobs.task(job), traced=False)
        return fun

    @overload
    def on_start(self) -> Coroutine[Any, Any, None]: ...
    @overload
    def on_start(self, fun: F) -> F: ...
    def on_start(self, fun: Any = None) -> Any:
        """Decorator: call the function on the handler loop before anything is fetched (open pools, clients, …).

        Without a function, this is Faust's own hook.
        """
        if fun is None:
            return self._starting()
        self._start_functions.append(fun)
        return fun

    def on_drain(self, fun: F) -> F:
        """Decorator: call the function on the handler loop when all handlers have ended, last declared first."""
        self._drain_functions.append(fun)
        return fun

    # --- starting and stopping --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the app; an app that was stopped can be started again, on another loop too."""
        if self._stopped.is_set() or self._started.is_set():
            self._forget_last_run()
        self._loop = asyncio.get_running_loop()
        self.jobs.begin()
        if self.host is not None and self.host.settings.streams:
            self.streams.connect(self.host.backend)
        if self.has_pages and self.conf.web_enabled and self.conf.web_transport.scheme == "tcp":
            from flowshare.agents.faust.web import listen_for_pages

            listen_for_pages(self)
        await super().start()

    def _forget_last_run(self) -> None:
        self.service_reset()
        for event in (self._started, self._stopped, self._shutdown, self._crashed):
            event._loop = None  # noqa: SLF001 - mode's events keep the loop that first waited for them
        self._children.clear()
        self._extra_service_instances = None
        self._producer = None
        if self._monitor is not None:
            with suppress(KeyError):
                self.sensors.remove(self._monitor)
        self._monitor = None
        self._http_client = None
        self.__dict__.pop("flow_control", None)
        if not self.has_pages:
            self.__dict__.pop("web", None)

    async def _starting(self) -> None:
        self.finalize()
        if self.streams.running:
            self.topics.beacon.reattach(self.consumer.beacon)
        for fun in self._start_functions:
            await self._call_hook(fun)

    async def _call_hook(self, fun: Callable[..., Any]) -> None:
        result = fun(self) if inspect.signature(fun).parameters else fun()
        if inspect.isawaitable(result):
            await result

    async def on_stop(self) -> None:
        """Close resources (Faust's hook), after the handlers have ended, while sending still works."""
        await self.streams.drain()
        if self.streams.running:
            await self.agents.stop()
        for fun in reversed(self._drain_functions):
            try:
                await self._call_hook(fun)
            except BaseException:
                task = asyncio.current_task()
                if task is None or task.cancelling():  # this stop itself is cancelled
                    raise
                self.log.exception("on_drain function %r failed", getattr(fun, "__name__", fun))
        await self.on_before_shutdown.send()
        if self.streams.running:
            await self._producer_flush(self.log)
        await self._maybe_close_http_client()

    async def on_first_start(self) -> None:
        """Make the data directory (`datadir`) if a table keeps its data on disk (Faust's hook)."""
        if self.streams.on_disk:
            make_private(Path(self.conf.datadir))
            OwnFolder.own(Path(self.conf.appdir)).close()  # tables' data is private to this user
            self._create_directories()

    async def _wait_for_table_recovery_completed(self) -> bool:
        return self.streams.running and bool(await super()._wait_for_table_recovery_completed())

    async def maybe_start_producer(self) -> Any:
        """Return the producer, for Faust."""
        return await super().maybe_start_producer() if self.streams.running else self.producer

    def _new_producer(self) -> Any:
        return super()._new_producer() if self.streams.running else FaustProducer(self)

    @cached_property
    def _reply_consumer(self) -> Any:
        from flowshare.agents.faust.transport import ReplyConsumer

        return ReplyConsumer(self, loop=self.loop, beacon=self.beacon)

    def _new_transport(self) -> Any:
        from flowshare.agents.faust.transport import Transport

        return Transport(self.conf.broker_consumer, self)


def _refuse_function(given: Any, written: str) -> None:
    """Refuse a decorator without parentheses, which gets the function as its first option. Raises: UsageError."""
    if callable(given):
        raise UsageError(
            f"write @app.{written} above {getattr(given, '__name__', 'the function')}: the decorator needs its time"
        )


@contextmanager
def _naming(kind: str, name: str | None, fun: Any) -> Iterator[None]:
    """Name the job in the error of a refused option."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"{kind} {name or getattr(fun, '__name__', type(fun).__name__)}: {error}") from None


def _codec_of(topic: str, what: str, options: dict[str, Any]) -> Codec | None:
    """Take the codec out of a topic's options and return it. Raises: OptionError."""
    option = f"{what}_codec"
    codec = find_codec(options.pop(option, None), option, topic, what)
    if codec is not None and options.get(f"{what}_serializer") is not None:
        raise OptionError(f"topic {topic!r}: {what}_serializer and {option} do the same: leave one of them out")
    return codec


class FaustProducer(Service):
    """`app.producer` for Faust, over flowshare's one producer: the parts that work without Kafka."""

    def __init__(self, app: FaustApp) -> None:
        self._app = app
        super().__init__()

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
        **_options: Any,
    ) -> asyncio.Future[Any]:
        """Hand a record over; the returned future gets the result."""
        record = ProducerRecord(topic, value, key, encode_headers(headers), partition, timestamp)
        return await self._app.running_host().outbox.enqueue(record)

    async def send_and_wait(self, *args: Any, **options: Any) -> Any:
        """Send and wait for the confirmation."""
        return await (await self.send(*args, **options))

    def send_soon(self, fut: Any) -> None:
        """Send a Faust `FutureMessage` without waiting."""
        message = fut.message
        self.add_future(message.channel.publish_message(fut))

    async def flush(self) -> None:
        """Wait until all records handed over are confirmed."""
        if self._app.host is not None:
            await self._app.host.outbox.flush()

    async def create_topic(self, topic: str, partitions: int, replication: int = 1, **options: Any) -> None:
        """Make a topic if it is missing."""
        del replication
        await self._app.make_topic(topic, partitions, options.get("config"))

    def supports_headers(self) -> bool:
        """Records have headers."""
        return True

    def key_partition(self, topic: str, key: bytes) -> Any:
        """Refuse: only the service loop knows a topic's number of partitions. Raises: UsageError."""
        raise UsageError(f"the partition of a key of topic {topic!r} is not known in advance; send without it")
