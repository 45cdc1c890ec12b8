"""Faust's own agents, streams and tables, beside the share agents of an app.

They run on Faust's transport (aiokafka, one classic consumer group named as the app) at the address where the app's
backend speaks Kafka's protocol. An app without them has no transport: no consumer, no group, no `__assignor` topic, no
second producer.

    UNUSED  -- an agent, a table or a stream is declared before the start --> RUNNING at the start
    UNUSED  -- `app.stream(topic)` in a task, a timer, … --> RUNNING in a moment
    RUNNING -- the app drains --> DRAINED: nothing is read any more, what was read is handled and committed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakSet

from faust.streams import current_event
from mode import ServiceT
from yarl import URL

from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.texts import named

if TYPE_CHECKING:
    from flowshare.agents.faust.app import BootStrategy, FaustApp
    from flowshare.backend.base import Backend, KafkaAddress

DRAIN_S: Final = 25.0
"""Seconds that Faust's agents get at the end, as the default `drain_timeout` of a share agent."""


CRASH_S: Final = 60.0
"""Seconds that an agent counts as ill after it raised: Faust soon starts it again, mostly to raise again."""
ERROR_CHARS: Final = 200
CRASHES_MIN: Final = 2
"""Crashes within `CRASH_S` that make an agent ill: one bad record, which is skipped, does not."""


class Streams:
    """Agents, tables and streams that Faust itself runs for one app. On the handler loop."""

    def __init__(self, app: FaustApp) -> None:
        self._app = app
        self._asked = False
        self._open: WeakSet[Any] = WeakSet()
        self.running = False
        """True if Faust's transport runs, or is about to."""
        self._drained = False
        self._crashes: dict[str, list[tuple[float, str]]] = {}

    @property
    def declared(self) -> list[str]:
        """Names of the agents, tables and streams that need Faust's transport, in words."""
        app = self._app
        tables = app.tables if "tables" in app.__dict__ else ()
        found = [f"agent {name}" for name in app.agents] + [f"table {name}" for name in tables]
        return found or (["a stream"] if self._asked else [])

    @property
    def on_disk(self) -> bool:
        """True if a table's store is in files."""
        app = self._app
        tables = app.tables.values() if "tables" in app.__dict__ else ()
        return any((table._store or app.conf.store).scheme != "memory" for table in tables)  # noqa: SLF001

    def connect(self, backend: Backend) -> None:
        """Decide, before the app starts, if Faust's transport runs, and give it the broker's address.

        Raises: UsageError when the backend has no address, or the app has run already.
        """
        declared = self.declared
        if not declared:
            return
        address = backend.kafka
        self.check(backend.kind)
        if address is None:
            raise UsageError(f"the {backend.kind} backend is not open, so Faust's transport has nowhere to connect")
        if self._drained:
            raise UsageError(
                f"App({self._app.app_id!r}) has Faust's own {', '.join(declared)}, which run once in a process: "
                "make a new App, or use share agents only"
            )
        tell(self._app, address)
        self.running = True

    def check(self, kind: str) -> None:
        """Check that the declared parts can run on a kind of backend. Raises: UsageError."""
        if kind == "memory" and self.declared:
            raise UsageError(
                f"Faust's own agents, streams and tables do not run on the memory backend: {', '.join(self.declared)}. "
                "Use broker='embedded:///path' (in tests a temporary directory), or @app.share_agent instead."
            )

    def add(self, stream: Any) -> None:
        """Keep track of a stream that was made."""
        self._open.add(stream)

    @property
    def busy(self) -> bool:
        """True if a stream handles a record right now."""
        return any(stream.current_event is not None for stream in self._open)

    def crashed(self, agent: str, error: BaseException, now_s: float) -> None:
        """Note that one of Faust's agents raised; Faust starts it again."""
        crashes = [crash for crash in self._crashes.get(agent, ()) if now_s - crash[0] < CRASH_S]
        text = named(error, ERROR_CHARS)
        self._crashes[agent] = [*crashes[1 - CRASHES_MIN :], (now_s, text)]

    def problems(self, now_s: float) -> list[str]:
        """Return Faust's agents that keep crashing, one sentence each. From any thread."""
        found = []
        for agent, crashes in list(self._crashes.items()):
            if len(crashes) >= CRASHES_MIN and now_s - crashes[0][0] < CRASH_S:
                found.append(f"{agent} crashes again and again, last with {crashes[-1][1]}")
        return found

    def ask(self) -> None:
        """Note that `app.stream(topic)` needs Faust's transport; start it if the app runs. Raises: UsageError."""
        self._asked = True
        host = self._app.host
        if self.running or host is None:
            return
        self.connect(host.backend)
        self._app.producer = self._app._new_producer()  # noqa: SLF001 - Faust's name
        self._app.add_future(self._start_late())

    async def _start_late(self) -> None:
        """Start the services that Faust would have started with the app."""
        strategy = cast("BootStrategy", self._app.boot_strategy)
        services: list[ServiceT] = [
            self._app.monitor,
            *strategy.kafka_producer(),
            *strategy.kafka_consumer(),
            *strategy.agents(),
            *strategy.kafka_conductor(),
            *strategy.tables(),
        ]
        for service in services:
            await self._app.add_runtime_dependency(service)

    async def drain(self) -> None:
        """Read nothing more, wait until records already read are handled, commit; harmless when nothing runs or twice.

        The caller bounds the time (`stream_wait_empty=False` does not wait at all).
        """
        if not self.running or self._drained:
            return
        self._drained = True
        await self._app._stop_consumer()  # noqa: SLF001 - Faust's name

    def publishes(self, topic: Any) -> bool:
        """Tell if a record sent to the topic now goes through Faust's producer.

        This holds for records that Faust's own agents and streams send, and for records that Faust sends to its own
        topics (changelogs, replies, repartitioned streams). Faust flushes its producer before it commits offsets, and
        makes its producer part of the transaction under `processing_guarantee="exactly_once"`.
        """
        return self.running and (topic.internal or current_event() is not None)


def tell(app: FaustApp, address: KafkaAddress) -> None:
    """Put the broker's address and security into the app's settings, where Faust's transport looks."""
    urls = [URL(f"kafka://{host}") for host in address.hosts]
    for name, value in {"broker": urls, "broker_consumer": urls, "broker_producer": urls, **_login(address)}.items():
        object.__setattr__(app.conf, name, value)  # the settings' own __setattr__ warns of values already read
    app.transport.url = urls


def _login(address: KafkaAddress) -> Mapping[str, Any]:
    security = address.security
    if security is None or not (security.tls or security.sasl):
        return {}
    import faust.auth

    context = security.ssl_context()
    if not security.sasl:
        return {"broker_credentials": faust.auth.SSLCredentials(context)}
    return {
        "broker_credentials": faust.auth.SASLCredentials(
            username=security.username,
            password=security.password,
            mechanism=security.mechanism,
            ssl_context=context,
        )
    }
