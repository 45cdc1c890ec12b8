"""`flowshare worker --on`: starts and ends, in order, everything that workers on Spark need at the driver.

Start: signals → the backend, which leads for the workers (an embedded path, a share of `share="workers"`), so that no
handler can stall them all → Spark → the application's files → the control channel → the health pages → the workers.
Stop: the workers drain → pages → control channel → Spark → backend.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.feed.backend_limits import asked_of
from flowshare.agents.feed.members import member_ids, retry_member_id
from flowshare.agents.pages.gate import SECRETS, PageSettings
from flowshare.agents.worker.signals import EXIT_INTERRUPTED, on_loop
from flowshare.agents.worker.worker import EXIT_CLEAN, flush_output
from flowshare.backend import open_backend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ClientError
from flowshare.client.net.link import Connect, Link
from flowshare.client.session.membership import EPOCH_LEAVE
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock, new_loop
from flowshare.ops.scaling import TARGET_AGE_S, Autoscaler, ScalePolicy
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ShareGroupHeartbeatRequest
from flowshare.spark.workers.control import ControlServer, new_token
from flowshare.spark.workers.jobs import BadMaster, Master, Size, SparkJobs, give_app, start_spark
from flowshare.spark.workers.pages import WorkersPages, WorkersView
from flowshare.spark.workers.supervisor import SparkSupervisor
from flowshare.spark.workers.task import WorkerTask

if TYPE_CHECKING:
    from flowshare.agents.app.app import App
    from flowshare.backend.base import Backend
    from flowshare.backend.url import BrokerUrl
    from flowshare.clock import Clock

logger = logging.getLogger("flowshare.spark")

SPARK_STOP_S: Final = 20.0
BROKER_ENV: Final = "FLOWSHARE_BROKER"
PREFIX: Final = "FLOWSHARE_"
NOT_PASSED: Final = frozenset(
    {"FLOWSHARE_SUPERVISOR_PID", "FLOWSHARE_WORKER_NUMBER", "FLOWSHARE_READY_FD"}
    | {"FLOWSHARE_LISTEN", "FLOWSHARE_ADVERTISE", "FLOWSHARE_STATE_DIR"}
    | SECRETS
)
"""Variables of the driver's own process, not passed on: the token of its pages is useless to others."""
NAME_MAX: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWorkerSettings:
    """Settings of `flowshare worker --on`.

    size: number of workers. drain_timeout_s: seconds; None: the agents' setting. prepare: sets up logging in a worker,
    and gets the worker's number. loaded, started: set up logging after the application was loaded there, and after it
    has started. All three must be importable there. pages: addresses and access of health and metrics.
    """

    app_path: str
    master: Master
    size: Size
    concurrency: int | None = None
    drain_timeout_s: float | None = None
    pages: PageSettings = field(default_factory=PageSettings)
    prepare: Callable[[int], object] | None = None
    loaded: Callable[[], object] | None = None
    started: Callable[[], object] | None = None


def check(app: App, settings: SparkWorkerSettings) -> None:
    """Check that the app can run there. Raises: BadMaster, UsageError (it has no broker)."""
    broker = app.broker_address
    if broker.kind == "memory":
        raise BadMaster(
            "memory:// is one process's own; workers on Spark need kafka://, or with --on local embedded:///path"
        )
    if broker.kind == "embedded" and not settings.master.local:
        raise BadMaster(
            f"{broker} is a directory of this machine, and the workers on {settings.master.shown} run on others: use "
            "kafka://host:port as the broker, or --on local[N] to run them here"
        )


def run_workers(app: App, settings: SparkWorkerSettings) -> int:
    """Run the workers on the calling (main) thread until SIGTERM, SIGINT or a failure; return the exit code.

    0: all workers drained. 3: some were cut off. 1: it could not start, or Spark ended. 130: a second Ctrl-C.
    Raises: BadMaster, BackendError and other errors of the start.
    """
    check(app, settings)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_SparkRun(app, settings).run())


class _SparkRun:
    def __init__(self, app: App, settings: SparkWorkerSettings) -> None:
        self._app = app
        self._settings = settings
        self._clock = LoopClock()
        self._supervisor: SparkSupervisor | None = None
        self._stopped = False

    async def run(self) -> int:
        with on_loop(self._on_stop, self._on_show):
            async with AsyncExitStack() as stack:
                supervisor, pages = await self._start(stack)
                if self._stopped:
                    logger.info("stopped before it had started")
                    return EXIT_CLEAN
                self._supervisor = supervisor
                size = self._settings.size
                return await supervisor.run(size.fewest, self._scaling(pages) if size.follows else None)

    async def _start(self, stack: AsyncExitStack) -> tuple[SparkSupervisor, WorkersPages]:
        app, settings = self._app, self._settings
        backend = await self._open(stack)
        groups = {name: agent.group for name, agent in app.share_agents.items()}
        leaving = MemberRemoval(lambda: backend.connect(app.app_id), groups, clock=self._clock)
        stack.push_async_callback(leaving.close)
        jobs = await stack.enter_async_context(self._spark())
        tag = run_tag(app.app_id, jobs.application)
        bind, host, port = jobs.address(settings.master)
        token, variables = new_token(), environment(app.broker_address)

        def make_task(number: int, run: str) -> WorkerTask:
            return WorkerTask(
                app_path=settings.app_path,
                number=number,
                run=run,
                member_id=f"{tag}-{number}",
                driver=(host, bound),
                token=token,
                environment=variables,
                prepare=settings.prepare,
                loaded=settings.loaded,
                started=settings.started,
                concurrency=settings.concurrency,
            )

        supervisor = SparkSupervisor(
            jobs,
            make_task,
            leaving.leave,
            agents=tuple(groups),
            drain_timeout_s=app.drain_timeout_s if settings.drain_timeout_s is None else settings.drain_timeout_s,
        )
        control = ControlServer(token, opened=supervisor.opened, heard=supervisor.heard, closed=supervisor.closed)
        _, bound = await control.start(bind, port)
        stack.push_async_callback(control.close)
        pages, address = await self._serve(stack, supervisor, backend)
        logger.info(
            "%d workers on %s (%s), members %s-…; health and metrics at http://%s (process %d)",
            settings.size.fewest,
            settings.master.shown,
            jobs.application,
            tag,
            address,
            os.getpid(),
        )
        return supervisor, pages

    async def _open(self, stack: AsyncExitStack) -> Backend:
        """Open the backend, which leads where needed. Raises: BackendError."""
        asked = asked_of(self._app.share_agents.values())
        backend = open_backend(self._app.broker_address, clock=self._clock, lead=True, asked=asked)
        await backend.start()
        stack.push_async_callback(backend.close)
        return backend

    async def _serve(
        self, stack: AsyncExitStack, supervisor: SparkSupervisor, backend: Backend
    ) -> tuple[WorkersPages, str]:
        """Serve health and metrics. Raises: PagesError."""
        admin = ShareAdmin(lambda: backend.connect(self._app.app_id), clock=self._clock)
        stack.push_async_callback(admin.close)
        view = WorkersView(self._app, supervisor, backend, admin, self._clock)
        pages = WorkersPages(view, self._settings.pages)
        stack.push_async_callback(pages.close)
        address = await pages.start()
        await backend.set_address(address, supervisor=address)
        return pages, address

    @asynccontextmanager
    async def _spark(self) -> AsyncIterator[SparkJobs]:
        """Provide Spark with the application's files, and stop it at the end."""
        settings = self._settings
        context = await asyncio.to_thread(start_spark, settings.master, self._app.app_id)
        jobs = SparkJobs(context)
        try:
            with tempfile.TemporaryDirectory(prefix="flowshare-app-") as folder:
                if not settings.master.local:
                    await asyncio.to_thread(give_app, context, settings.app_path, Path(folder))
                yield jobs
        finally:
            stopping = asyncio.ensure_future(asyncio.to_thread(jobs.stop))
            await asyncio.wait({stopping}, timeout=SPARK_STOP_S)
            if not stopping.done():
                logger.error("Spark does not stop within %.0f s; ending without it", SPARK_STOP_S)
            elif stopping.exception() is not None:
                logger.debug("stopping Spark: %r", stopping.exception())

    def _scaling(self, pages: WorkersPages) -> Callable[[SparkSupervisor], Any]:
        size = self._settings.size
        policy = ScalePolicy(min=size.fewest, max=size.most)

        async def ask(_address: str, _page: str) -> dict[str, Any]:
            return await pages.report(TARGET_AGE_S)

        return Autoscaler(policy, target_age_s=TARGET_AGE_S, ask=ask, clock=self._clock).run

    # --- signals ----------------------------------------------------------------------------------------------------

    def _on_stop(self, number: signal.Signals) -> None:
        if self._stopped and number == signal.SIGINT:
            flush_output("Ctrl-C again: ending at once; what was running runs again")
            os._exit(EXIT_INTERRUPTED)  # Spark's JVM and its workers end with this process
        if not self._stopped:
            logger.info("%s: finishing what is running (a second Ctrl-C ends at once)", signal.Signals(number).name)
        self._stopped = True
        if self._supervisor is not None:
            self._supervisor.stop(number)

    def _on_show(self) -> None:
        if self._supervisor is not None:
            task = asyncio.ensure_future(self._supervisor.show())
            task.add_done_callback(lambda done: done.exception())


# --- what workers are told ----------------------------------------------------------------------------------------


def run_tag(app_id: str, application: str) -> str:
    """Return the prefix of the workers' member ids: the app and, in eight digits, this run of it on Spark."""
    digest = hashlib.sha256(f"{app_id}\n{application}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9._]', '-', app_id)[:NAME_MAX]}-{digest}"


def environment(broker: BrokerUrl) -> dict[str, str]:
    """Return the variables for workers: the driver's FLOWSHARE_*, and the driver's broker URL."""
    found = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and name not in NOT_PASSED}
    return {**found, BROKER_ENV: _for_workers(broker).revealed()}


def _for_workers(broker: BrokerUrl) -> BrokerUrl:
    """Return the URL without options of the driver's own process, and with the password itself in place of a local
    file."""
    left_out = {"listen", "advertise", "state_dir"}
    password = broker.password
    if "password_file" in broker.options and not password:
        password = broker.security().password
        left_out.add("password_file")
    options = {name: text for name, text in broker.options.items() if name not in left_out}
    return replace(broker, options=options, password=password)


# --- members of dead workers ---------------------------------------------------------------------------------------

LIMIT_S: Final = 2.0
"""The time limit, in seconds, for a group's coordinator; after it the group finds out by itself."""
GONE: Final = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})


class MemberRemoval:
    """Sends the leaving heartbeat of members of dead workers. Call all methods on one loop.

    A member that died stays in its group on Kafka's brokers until its session times out, 45 s by default, and its
    partitions are not fetched meanwhile. Any client may send the heartbeat by which a member leaves: the driver does,
    as the end of a connection tells it of a worker's death.
    """

    def __init__(self, connect: Connect, groups: Mapping[str, str], *, clock: Clock) -> None:
        """groups: the group of each agent, by the agent's name."""
        self._groups = groups
        self._clock = clock
        self._link = Link(connect, clock=clock, settings=LinkSettings(), name="spark-members")

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def leave(self, prefix: str) -> None:
        """Take the members with this id prefix out of their groups; never raises."""
        ids = member_ids(prefix, self._groups)
        wanted = [(self._groups[name], one) for name, found in ids.items() for one in (found, retry_member_id(found))]
        await asyncio.gather(*(self._leave(group, member_id) for group, member_id in wanted))

    async def _leave(self, group: str, member_id: str) -> None:
        request = ShareGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=EPOCH_LEAVE)
        trouble: object = None
        for _ in range(2):  # the connection may have ended since it was used last
            try:
                answer = (await self._clock.wait_for(self._link.send(request), LIMIT_S)).error
            except (ClientError, OSError, TimeoutError) as error:
                trouble = repr(error)
                continue
            if answer in GONE:
                return
            trouble = answer.name
        logger.warning(
            "group=%s: member %s of a dead worker stays until its session ends: %s", group, member_id, trouble
        )
