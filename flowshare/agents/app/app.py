"""`App`, which an application imports, declares share agents and pipelines, and runs them or only sends.

Faust's part of an app (timers, tasks, pages, topics, tables) is in `agents.faust.app`. Share agents are not in
`app.agents`, whose manager would cancel them first at every stop.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, Unpack

from flowshare.agents.app.pipeline import SharePipeline
from flowshare.agents.cooperative.agent import CooperativeAgent, CooperativeArguments
from flowshare.agents.faust.app import FaustApp
from flowshare.agents.faust.settings import read_options, read_share, read_web_hosts
from flowshare.agents.faust.streams import DRAIN_S
from flowshare.agents.feed.setup import group_settings
from flowshare.agents.handler.agent import ShareAgent
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.middleware import Middleware
from flowshare.agents.handler.options import AgentArguments
from flowshare.agents.handler.send import is_topic
from flowshare.agents.host.runtime import AgentRuntime
from flowshare.agents.host.sending import SendingThread
from flowshare.agents.kmq.agent import KmqAgent, KmqArguments
from flowshare.agents.run import logs
from flowshare.backend.url import BrokerUrl

F = TypeVar("F", bound=Callable[..., Any])


class App(FaustApp):
    """An application of share agents.

    id: names the app's groups. broker: URL of the log, e.g. `embedded:///var/lib/shop` (the environment variable
    FLOWSHARE_BROKER replaces it). share: leader of the share groups on a Kafka cluster, `auto` (the brokers, where they
    can), `native` (the brokers) or `workers` (the workers themselves, which needs no share groups of the brokers).
    fleet: names the workers that lead together, by default the app's id. web_hosts: host names under which other
    machines ask for the app's pages, e.g. `["shop.example.com"]` (docs/security.md). The other options are Faust's
    (timezone, web_port, datadir, …); an unknown one is refused.
    """

    def __init__(self, id: str, *, broker: str | None = None, **options: Any) -> None:  # noqa: A002 - as in Faust
        """Raises: OptionError, UsageError with what to write instead."""
        if broker is not None:
            options["broker"] = broker
        self.share = read_share(id, options.get("share", "auto"))
        """Leader of the share groups of a Kafka cluster: `auto`, `native` or `workers`."""
        web_hosts = read_web_hosts(id, options.get("web_hosts", ()))
        self._broker, options = read_options(id, options)
        self.share_agents: dict[str, ShareAgent] = {}
        self.kmq_agents: dict[str, KmqAgent] = {}
        self.cooperative_agents: dict[str, CooperativeAgent] = {}
        self.pipelines: dict[str, SharePipeline] = {}
        self.middlewares: list[Middleware] = []
        self.sending_thread = SendingThread(self)
        super().__init__(id, web_hosts=web_hosts, **options)
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

    # --- declaring ----------------------------------------------------------------------------------------------

    def share_agent(
        self, *topics: Any, name: str | None = None, **options: Unpack[AgentArguments]
    ) -> Callable[[Any], ShareAgent]:
        """Make a function a share agent, called for every record of the topics, at least once.

        topics: topics of the app, or names, or a list of them. name: by default the function's name. The options are
        the fields of `AgentOptions`; an unknown one is refused at import.
        """
        listed = _listed("share_agent", topics)
        scope = sys._getframe(1).f_locals  # noqa: SLF001 - types of a handler defined inside a function

        def decorate(fun: Any) -> ShareAgent:
            agent_name = self._free_name(fun, name)
            agent = ShareAgent(self, fun, listed, options, agent_name, scope=scope)
            self._check_group(agent)
            self.share_agents[agent_name] = agent
            return agent

        return decorate

    def kmq_agent(
        self, topic: Any, *, name: str | None = None, **options: Unpack[KmqArguments]
    ) -> Callable[[Any], KmqAgent]:
        """Make a function an agent of a KMQ queue, called for every record of the topic, at least once.

        topic: the queue's, a topic of the app or a name. options: `markers=` names the topic of its markers; the others
        are those of `KmqAgent`; an option without effect on a KMQ queue is refused at import, with the reason.
        """
        listed = _listed("kmq_agent", (topic,))
        scope = sys._getframe(1).f_locals  # noqa: SLF001 - types of a handler defined inside a function

        def decorate(fun: Any) -> KmqAgent:
            agent = KmqAgent(self, fun, listed, options, self._free_name(fun, name), scope=scope)
            for other in (*self.kmq_agents.values(), *self.share_agents.values()):
                if other.group == agent.group:
                    raise UsageError(
                        f"agents {other.name!r} and {agent.name!r} share group {agent.group!r}: the consumers of a KMQ "
                        "queue are a group by themselves. Give one of them another group=…"
                    )
            self.kmq_agents[agent.name] = agent
            return agent

        return decorate

    def cooperative_agent(
        self, *topics: Any, name: str | None = None, **options: Unpack[CooperativeArguments]
    ) -> Callable[[Any], CooperativeAgent]:
        """Make a function an agent of a cooperative group: called for every record of the topics, at least once, for
        the records of one key one after the other.

        topics, name: as for share agents. The options are those of `CooperativeAgent`; an option without effect in a
        cooperative group is refused at import, with the reason.
        """
        listed = _listed("cooperative_agent", topics)
        scope = sys._getframe(1).f_locals  # noqa: SLF001 - types of a handler defined inside a function

        def decorate(fun: Any) -> CooperativeAgent:
            agent = CooperativeAgent(self, fun, listed, options, self._free_name(fun, name), scope=scope)
            for other in (*self.kmq_agents.values(), *self.share_agents.values(), *self.cooperative_agents.values()):
                if other.group == agent.group:
                    raise UsageError(
                        f"agents {other.name!r} and {agent.name!r} share group {agent.group!r}: the members of a "
                        "cooperative group all read the same for the same agent. Give one of them another group=…"
                    )
            self.cooperative_agents[agent.name] = agent
            return agent

        return decorate

    def _free_name(self, fun: Any, name: str | None) -> str:
        """Return the name of a new agent. Raises: UsageError when the app has an agent of this name."""
        found = name or str(getattr(fun, "__name__", type(fun).__name__))
        if found in self.share_agents or found in self.kmq_agents or found in self.cooperative_agents:
            raise UsageError(f"App({self.app_id!r}) has an agent {found!r} already; give one of them a name=…")
        return found

    def share_pipeline(self, *topics: Any, name: str | None = None, **options: Any) -> Callable[[Any], SharePipeline]:
        """Make a function a pipeline: Spark runs it on the topics' records, which a share group hands out.

        The function takes a DataFrame and returns one, whose rows go to `sink`; without a sink it is called with each
        batch.
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
        for one in (*self.kmq_agents.values(), *self.cooperative_agents.values()):
            if one.group == agent.group:
                raise UsageError(
                    f"agents {one.name!r} and {agent.name!r} share group {agent.group!r}, which is a consumer group "
                    "for the one and a share group for the other: give them different groups"
                )
        for other in self.share_agents.values():
            if other.group == agent.group and set(other.topics) & set(agent.topics):
                raise UsageError(
                    f"agents {other.name!r} and {agent.name!r} share group {agent.group!r} and a topic: each record "
                    "would go to one of them by chance. Give them different groups."
                )
            orders = other.options.order, agent.options.order
            if other.group == agent.group and None in orders and orders[0] != orders[1]:
                raise UsageError(
                    f"agents {other.name!r} and {agent.name!r} share group {agent.group!r}, which has one order "
                    f"for all (share.key.order), but want order={orders[0]!r} and order={orders[1]!r}: give them the "
                    "same, or different groups."
                )
            if other.group == agent.group and (texts := _differences(group_settings(other), group_settings(agent))):
                raise UsageError(
                    f"agents {other.name!r} and {agent.name!r} share group {agent.group!r} and with it its settings, "
                    f"but want different ones: {texts}. Give them the same options, or different groups."
                )

    def middleware(self, fun: F) -> F:
        """Put a function around every handler call: `async def fun(delivery, call_next)`; the first is outermost.

        Around a batch handler the function gets the `fs.Records` in place of the delivery; both have `agent` and
        `group`.
        """
        self.middlewares.append(fun)
        return fun

    def is_leader(self) -> bool:
        """Tell if this process holds the app's lease now: `on_leader` tasks run here and nowhere else.

        The lease may be lost at the caller's next await. In an app without any `on_leader` task, the first call makes
        the process ask for the lease and returns False.
        """
        return self.lease_guard.held

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that handlers get when the process stops: the longest `drain_timeout` of the agents."""
        streams_s = DRAIN_S if self.streams.declared else 0.0
        agents = (*self.share_agents.values(), *self.kmq_agents.values(), *self.cooperative_agents.values())
        return max([streams_s, *(agent.options.drain_timeout for agent in agents)])

    # --- running ------------------------------------------------------------------------------------------------

    def runtime_of(self, agent: str) -> AgentRuntime | None:
        """Return the agent of this name at work; None where the app does not run."""
        return None if self.host is None else self.host.runtimes.get(agent)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[App]:
        """Run the whole app (agents, timers, pages) inside the block, on the running loop: a worker within a program.

        At the end the agents drain as a worker's do. Use `sending` in a program that only sends.
        """
        from flowshare.agents.host.host import hosted

        await self.sending_thread.give_way()
        async with hosted(self, sends_only=False):
            yield self

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[App]:
        """Send to the app's topics inside the block, and run nothing: for scripts and web servers.

        No agent handles a record here, no timer runs, and the process is no member of a group. On an embedded path that
        nobody leads, the process leads the log meanwhile. All sent records are confirmed at the end of the block.
        """
        from flowshare.agents.host.host import hosted

        await self.sending_thread.give_way()
        async with hosted(self, sends_only=True):
            yield self

    async def start(self) -> None:
        """Start the app; an app that was stopped can be started again, on another loop too.

        Raises: UsageError when share agents would not run, as nothing of flowshare hosts the app.
        """
        agents = self.share_agents or self.kmq_agents or self.cooperative_agents
        if self.host is None and (agents or self.streams.declared):
            raise UsageError(
                f"App({self.app_id!r}) has agents, which Faust's own worker does not run: use `flowshare worker "
                "module:app`, or `async with app.running():` in a program of your own"
            )
        await super().start()


def _differences(one: Mapping[str, str | None], other: Mapping[str, str | None]) -> str:
    """List in words the settings that both agents have with different values."""
    names = sorted(name for name in one.keys() & other.keys() if one[name] != other[name])
    return ", ".join(f"{name} ({one[name]} and {other[name]})" for name in names)


def _listed(decorator: str, topics: Iterable[Any]) -> list[Any]:
    """Flatten topics and lists of topics into one list. Raises: UsageError when a function was given."""
    listed = [one for topic in topics for one in (topic if isinstance(topic, (list, tuple, set)) else (topic,))]
    if listed and callable(listed[0]) and not is_topic(listed[0]):
        raise UsageError(
            f"write @app.{decorator}('topic') above {getattr(listed[0], '__name__', 'the function')}: "
            "the decorator needs a topic"
        )
    return listed
