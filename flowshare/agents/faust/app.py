"""`App`: a `faust.App` whose share agents run on flowshare.

Timers, cron jobs, tasks, web pages, models and commands are Faust's own; so are its agents, streams and tables, whose
transport starts only in an app that has some (`streams.py`). Share agents are not in `app.agents`, whose manager would
cancel them first at every stop.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Unpack, cast, overload

import faust
import faust.app.base
from mode import ServiceT

from flowshare.agents import logs
from flowshare.agents.agent import ShareAgent
from flowshare.agents.capabilities import refusals
from flowshare.agents.coding import check_declared
from flowshare.agents.errors import UsageError
from flowshare.agents.faust_producer import FaustProducer
from flowshare.agents.leader import Leader
from flowshare.agents.pipeline import SharePipeline
from flowshare.agents.sending import SendingThread
from flowshare.agents.settings import read_options, read_share, read_web_hosts
from flowshare.agents.setup import group_settings
from flowshare.agents.streams import DRAIN_S, Streams
from flowshare.agents.topic import Topic
from flowshare.log.folder import OwnFolder, make_private

if TYPE_CHECKING:
    from flowshare.agents.host import Host
    from flowshare.agents.middleware import Middleware
    from flowshare.agents.options import AgentArguments
    from flowshare.backend.url import BrokerUrl
    from flowshare.client.settings import ProducerSettings

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")


class BootStrategy(faust.app.base.BootStrategy):
    """What Faust starts: its transport only when the app uses it, a web server only when there are pages for it."""

    @property
    def enable_kafka(self) -> bool:  # type: ignore[override]
        """Whether Faust's producer, consumer, conductor and tables start."""
        return cast("App", self.app).streams.running

    def agents(self) -> Iterable[ServiceT]:
        """Faust's own, if there are some."""
        return super().agents() if self.enable_kafka else []

    def _should_enable_web(self) -> bool:
        return bool(cast("App", self.app).has_pages and super()._should_enable_web())


class App(faust.App):
    """An application of share agents.

    id: names the app's groups. broker: where the log is, e.g. `embedded:///var/lib/shop` (the environment variable
    FLOWSHARE_BROKER replaces it). share: who leads the share groups on a Kafka cluster, `auto` (the brokers, where they
    can), `native` (the brokers) or `workers` (the workers themselves, which needs no share groups of the brokers).
    fleet: names the workers that lead together, by default the app's id. web_hosts: by which hosts others than this
    machine ask for its pages, e.g. `["shop.example.com"]` (docs/security.md). The other options are Faust's (timezone,
    web_port, datadir, …); an unknown one is refused.
    """

    BootStrategy = BootStrategy
    SCAN_CATEGORIES: ClassVar[list[str]] = [*faust.App.SCAN_CATEGORIES, "flowshare.share_agent"]

    def __init__(self, id: str, *, broker: str | None = None, **options: Any) -> None:  # noqa: A002 - as in Faust
        """Raises: OptionError, UsageError with what to write instead."""
        if broker is not None:
            options["broker"] = broker
        self.share = read_share(id, options.get("share", "auto"))
        """Who leads the share groups of a Kafka cluster: `auto`, `native` or `workers`."""
        self.web_hosts = read_web_hosts(id, options.get("web_hosts", ()))
        """Further hosts by which pages may be asked for."""
        self._broker, options = read_options(id, options)
        options.setdefault("Topic", Topic)
        options.setdefault("Serializers", "flowshare.agents.registry:Registry")
        self.app_id = id
        self.share_agents: dict[str, ShareAgent] = {}
        self.pipelines: dict[str, SharePipeline] = {}
        self.middlewares: list[Middleware] = []
        self.host: Host | None = None
        """The host that runs this app, set by the host."""
        self.leader = Leader()
        """Runs what is `on_leader`, while this process holds the app's lease."""
        self._start_functions: list[Callable[..., Any]] = []
        self._drain_functions: list[Callable[..., Any]] = []
        self.has_pages = False
        self.sending_thread = SendingThread(self)
        """Sends for threads, where nothing runs the app (`topic.send_sync`)."""
        self.streams = Streams(self)
        """Faust's own agents, streams and tables."""
        super().__init__(id, **options)
        logs.install()

    # --- where the log is ---------------------------------------------------------------------------------------

    @property
    def broker_url(self) -> str:
        """The broker's URL to show: without a password. Raises: UsageError when the app has none."""
        return str(self.broker_address)

    @property
    def broker_address(self) -> BrokerUrl:
        """The broker's URL to open. Raises: UsageError when the app has none."""
        if self._broker is None:
            raise UsageError(
                f"App({self.app_id!r}) has no broker: write App({self.app_id!r}, broker='embedded:///path/to/data'), "
                "or set FLOWSHARE_BROKER"
            )
        return self._broker

    @property
    def backend_kind(self) -> str:
        """`embedded`, `memory`, …: that of the running backend, else of the broker's URL."""
        if self.host is not None:
            return self.host.backend.kind
        return "memory" if self._broker is None else self._broker.kind

    @property
    def producer_settings(self) -> ProducerSettings | None:
        """What Faust's options (`producer_max_request_size`) say of flowshare's producer, too; None: nothing.

        Raises: UsageError.
        """
        from flowshare.client.settings import ProducerSettings

        _, options = self._default_options  # its settings do not tell a default apart
        largest = options.get("producer_max_request_size")
        try:
            return None if largest is None else ProducerSettings(request_bytes_max=largest)
        except (TypeError, ValueError):
            raise UsageError(
                f"App({self.app_id!r}): producer_max_request_size is a number of bytes from 1 on, not {largest!r}"
            ) from None

    def running_host(self) -> Host:
        """The host that runs this app. Raises: UsageError when nothing runs it."""
        if self.host is None:
            raise UsageError(
                f"App({self.app_id!r}) does not run, so nothing can be sent: write `async with app.sending():` around "
                "the code, or `topic.send_sync(…)` where there is no event loop"
            )
        return self.host

    # --- declaring ----------------------------------------------------------------------------------------------

    @overload
    def topic(self, *topics: str, key_type: Any = None, value_type: type[V], **options: Any) -> Topic[V]: ...
    @overload
    def topic(self, *topics: str, key_type: Any = None, value_type: Any = None, **options: Any) -> Topic[Any]: ...
    def topic(self, *topics: str, key_type: Any = None, value_type: Any = None, **options: Any) -> Topic[Any]:
        """Name a topic of the app; what is sent is encoded, and what agents get decoded, by the types.

        key_type, value_type: bytes, str, dict, a dataclass, a TypedDict, a `fs.Record`, …; None: by the handler's
        annotation. key_serializer, value_serializer: a codec of Faust's (`json`, `raw`, `pickle`, …) that stands
        between the type and the bytes, in both directions. The other options are Faust's.
        Raises: OptionError: a type and a serializer do not go together, or there is no such serializer.
        """
        name = ", ".join(map(str, topics))
        check_declared(name, "key", key_type, options.get("key_serializer"))
        check_declared(name, "value", value_type, options.get("value_serializer"))
        made: Topic[Any] = super().topic(*topics, key_type=key_type, value_type=value_type, **options)  # type: ignore[assignment,unused-ignore]
        return made

    def share_agent(
        self, *topics: Any, name: str | None = None, **options: Unpack[AgentArguments]
    ) -> Callable[[Any], ShareAgent]:
        """Make a function a share agent: it is called for every record of the topics, at least once.

        topics: topics of the app, or names, or a list of them. name: the function's name. The options are the fields
        of `AgentOptions`; an unknown one is refused at import.
        """
        listed = _listed("share_agent", topics)
        scope = sys._getframe(1).f_locals  # noqa: SLF001 - types of a handler defined inside a function

        def decorate(fun: Any) -> ShareAgent:
            agent_name = name or str(getattr(fun, "__name__", type(fun).__name__))
            if agent_name in self.share_agents:
                raise UsageError(
                    f"App({self.app_id!r}) has a share agent {agent_name!r} already; give one of them a name=…"
                )
            agent = ShareAgent(self, fun, listed, options, agent_name, scope=scope)
            self._check_group(agent)
            self.share_agents[agent_name] = agent
            return agent

        return decorate

    def share_pipeline(self, *topics: Any, name: str | None = None, **options: Any) -> Callable[[Any], SharePipeline]:
        """Make a function a pipeline: Spark runs it on the topics' records, which a share group hands out.

        It takes a DataFrame and returns one, whose rows go to `sink`; without a sink it is called with each batch.
        topics, name: as for agents. The options are the fields of `PipelineOptions`; an unknown one is refused at
        import. `flowshare pipeline` runs it.
        """
        listed = _listed("share_pipeline", topics)

        def decorate(fun: Any) -> SharePipeline:
            pipeline = SharePipeline(self, fun, listed, options, name or str(fun.__name__))
            taken = {one.group for one in self.pipelines.values()}
            taken |= {one.group for one in self.share_agents.values()}
            if pipeline.name in self.pipelines or pipeline.group in taken:
                raise UsageError(
                    f"App({self.app_id!r}) has a pipeline {pipeline.name!r} or the group {pipeline.group!r} already; "
                    "give the pipeline a name=… and a group=… of its own"
                )
            self.pipelines[pipeline.name] = pipeline
            return pipeline

        return decorate

    def _check_group(self, agent: ShareAgent) -> None:
        for other in self.share_agents.values():
            if other.group == agent.group and set(other.topics) & set(agent.topics):
                raise UsageError(
                    f"agents {other.name!r} and {agent.name!r} share group {agent.group!r} and a topic: each record "
                    "would go to one of them by chance. Give them different groups."
                )
            if other.group == agent.group and (texts := _differences(group_settings(other), group_settings(agent))):
                raise UsageError(
                    f"agents {other.name!r} and {agent.name!r} share group {agent.group!r} and with it its settings, "
                    f"but want different ones: {texts}. Give them the same options, or different groups."
                )

    def middleware(self, fun: F) -> F:
        """Put a function around every handler call: `async def fun(delivery, call_next)`; the first is outermost."""
        self.middlewares.append(fun)
        return fun

    @overload
    def on_start(self) -> Coroutine[Any, Any, None]: ...
    @overload
    def on_start(self, fun: F) -> F: ...
    def on_start(self, fun: Any = None) -> Any:
        """Decorator: call the function on the handler loop before anything is fetched (open pools, clients, …).

        Without a function it is Faust's own hook.
        """
        if fun is None:
            return self._starting()
        self._start_functions.append(fun)
        return fun

    def on_drain(self, fun: F) -> F:
        """Decorator: call the function on the handler loop when all handlers have ended, last declared first."""
        self._drain_functions.append(fun)
        return fun

    def stream(self, channel: Any, *args: Any, **options: Any) -> Any:
        """Faust's `stream`, on Faust's transport, which starts then if it does not run.

        Raises: UsageError on the memory backend, which has no such transport.
        """
        self.streams.ask()
        stream = super().stream(channel, *args, **options)
        self.streams.add(stream)
        return stream

    async def _on_agent_error(self, agent: Any, exc: BaseException) -> None:
        if self.host is not None:
            self.streams.crashed(agent.name, exc, self.host.clock.monotonic())
        await super()._on_agent_error(agent, exc)

    def page(self, path: str, **options: Any) -> Any:
        """Faust's `page`: a web page of the app; having one turns the app's web server on.

        It listens on `web_bind` (127.0.0.1) and `web_port` (a free one, which is printed), both options of `App`.
        """
        self.has_pages = True
        return super().page(path, **options)

    def is_leader(self) -> bool:
        """Whether this process holds the app's lease now: what is `on_leader` runs here, and nowhere else.

        Who is told so may lose it at the next await. In an app without anything `on_leader` the first question makes
        the process ask for the lease, and gets False.
        """
        return self.leader.held

    def timer(  # type: ignore[override,unused-ignore]
        self, interval: Any, on_leader: bool = False, *args: Any, **options: Any
    ) -> Any:
        """Faust's `timer`. on_leader: only in the one process of the app that holds its lease; cancelled if it loses
        it meanwhile."""
        made = super().timer(interval, False, *args, **options)
        return (lambda fun: made(self.leader.guard(fun))) if on_leader else made

    def crontab(  # type: ignore[override,unused-ignore]
        self, cron_format: str, *, on_leader: bool = False, **options: Any
    ) -> Any:
        """Faust's `crontab`; on_leader: as for `timer`."""
        made = super().crontab(cron_format, **options)
        return (lambda fun: made(self.leader.guard(fun))) if on_leader else made

    def task(  # type: ignore[override,unused-ignore]
        self, fun: Any = None, *, on_leader: bool = False, **options: Any
    ) -> Any:
        """Faust's `task`: run once when the app starts.

        on_leader: run once in each process that comes to hold the app's lease, as soon as it does; cancelled if it
        loses it meanwhile, and begun again when it has it again.
        """
        if fun is None:
            return lambda fun: self.task(fun, on_leader=on_leader, **options)
        return super().task(self.leader.guard_task(fun) if on_leader else fun, **options)

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that handlers get when the process stops: the longest `drain_timeout` of the agents."""
        streams_s = DRAIN_S if self.streams.declared else 0.0
        return max([streams_s, *(agent.options.drain_timeout for agent in self.share_agents.values())])

    # --- running ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[App]:
        """Run the whole app (agents, timers, pages) inside the block, on the running loop: a worker within a program.

        At the end the agents drain as a worker's do. A program that only sends writes `sending`.
        """
        async with self._hosted(sends_only=False):
            yield self

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[App]:
        """Send to the app's topics inside the block, and run nothing: for scripts and web servers.

        No agent handles a record here, no timer runs, and the process is no member of a group. On an embedded path that
        nobody leads it leads the log meanwhile. What was sent is confirmed at the end.
        """
        async with self._hosted(sends_only=True):
            yield self

    @asynccontextmanager
    async def _hosted(self, *, sends_only: bool) -> AsyncIterator[Host]:
        from flowshare.agents.host import Host, HostSettings

        await self.sending_thread.give_way()
        if self.host is not None:
            raise UsageError(self._runs_already())
        host = Host(self, settings=HostSettings(sends_only=sends_only, lead=not sends_only))
        await host.start()
        try:
            yield host
        finally:
            await host.drain()
            await host.stop()

    def _runs_already(self) -> str:
        """What runs the app here, in words, and what to do."""
        assert self.host is not None
        if self.host.settings.sends_only:
            return (
                f"App({self.app_id!r}) sends in this process already, inside another `async with app.sending():`: its "
                "topics send here, too, so leave the inner one out; what runs agents begins when that one has ended"
            )
        return (
            f"App({self.app_id!r}) runs already in this process, and one app runs once at a time; its topics send here "
            "as they are, without `app.sending()`"
        )

    async def start(self) -> None:
        """Start; an app that was stopped can be started again, on another loop too.

        Raises: UsageError when share agents would not run, as nothing of flowshare hosts the app.
        """
        if self.host is None and (self.share_agents or self.streams.declared):
            raise UsageError(
                f"App({self.app_id!r}) has agents, which Faust's own worker does not run: use `flowshare worker "
                "module:app`, or `async with app.running():` in a program of your own"
            )
        if self._stopped.is_set() or self._started.is_set():
            self._forget_last_run()
        self._loop = asyncio.get_running_loop()
        if self.host is not None and self.host.settings.streams:
            self.streams.connect(self.host.backend)
        if self.has_pages and self.conf.web_enabled and self.conf.web_transport.scheme == "tcp":
            from flowshare.agents.web import listen_for_pages

            listen_for_pages(self)
        await super().start()

    def _forget_last_run(self) -> None:
        self.service_reset()
        self._children.clear()
        self._extra_service_instances = None
        self._producer = None
        self._monitor = None
        self._http_client = None
        for name in ("flow_control", "web"):
            if name == "web" and self.has_pages:
                continue
            self.__dict__.pop(name, None)

    async def _starting(self) -> None:
        self.finalize()
        if self.streams.running:
            self.topics.beacon.reattach(self.consumer.beacon)
        if self.host is not None:
            for agent in self.share_agents.values():
                for refusal in refusals(agent, self.backend_kind, self.host.backend.capabilities):
                    self.log.warning(refusal)
        for fun in self._start_functions:
            await self._call_hook(fun)

    async def _call_hook(self, fun: Callable[..., Any]) -> None:
        result = fun(self) if inspect.signature(fun).parameters else fun()
        if inspect.isawaitable(result):
            await result

    async def on_stop(self) -> None:
        """Faust's hook: resources are closed after the handlers have ended, while sending still works."""
        await self.streams.drain()
        if self.streams.running:
            await self.agents.stop()
        for fun in reversed(self._drain_functions):
            try:
                await self._call_hook(fun)
            except BaseException:
                task = asyncio.current_task()
                if task is None or task.cancelling():  # it is this stop that is given up
                    raise
                self.log.exception("on_drain function %r failed", getattr(fun, "__name__", fun))
        await self.on_before_shutdown.send()
        if self.streams.running:
            await self._producer_flush(self.log)
        await self._maybe_close_http_client()

    async def on_first_start(self) -> None:
        """Faust's hook: makes the data directory (`datadir`) if a table keeps its data on disk."""
        if self.streams.on_disk:
            make_private(Path(self.conf.datadir))
            OwnFolder.own(Path(self.conf.appdir)).close()  # what tables keep is no other user's to read
            self._create_directories()

    async def _wait_for_table_recovery_completed(self) -> bool:
        return self.streams.running and bool(await super()._wait_for_table_recovery_completed())

    async def maybe_start_producer(self) -> Any:
        """Faust's way to a producer."""
        return await super().maybe_start_producer() if self.streams.running else self.producer

    def _new_producer(self) -> Any:
        return super()._new_producer() if self.streams.running else FaustProducer(self)

    @cached_property
    def _reply_consumer(self) -> Any:
        from flowshare.agents.transport import ReplyConsumer

        return ReplyConsumer(self, loop=self.loop, beacon=self.beacon)

    def _new_transport(self) -> Any:
        from flowshare.agents.transport import Transport

        return Transport(self.conf.broker_consumer, self)


def _differences(one: Mapping[str, str | None], other: Mapping[str, str | None]) -> str:
    """Settings that both agents have, and not the same, in words."""
    names = sorted(name for name in one.keys() & other.keys() if one[name] != other[name])
    return ", ".join(f"{name} ({one[name]} and {other[name]})" for name in names)


def _listed(decorator: str, topics: Iterable[Any]) -> list[Any]:
    """Topics, lists of topics among them taken apart. Raises: UsageError when it is a function."""
    listed = [one for topic in topics for one in (topic if isinstance(topic, (list, tuple, set)) else (topic,))]
    if listed and callable(listed[0]) and not isinstance(listed[0], faust.TopicT):
        raise UsageError(
            f"write @app.{decorator}('topic') above {getattr(listed[0], '__name__', 'the function')}: "
            "the decorator needs a topic"
        )
    return listed
