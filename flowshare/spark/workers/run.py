"""`flowshare worker --on`: everything that a fleet needs at the driver, started and ended in order.

Start: signals → the backend, which leads what workers lead (an embedded path, a share of `share="workers"`), so that no
handler can stall the fleet → Spark → the application's files → the control channel → the health pages → the workers.
Stop: the workers drain → pages → control channel → Spark → backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.autoscale import Autoscaler
from flowshare.agents.capabilities import asked_of
from flowshare.agents.gate import SECRETS, PageSettings
from flowshare.agents.loading import split_path
from flowshare.agents.scaling import TARGET_AGE_S, ScalePolicy
from flowshare.agents.service import new_loop
from flowshare.agents.signals import stop_signals
from flowshare.agents.worker import flush_output
from flowshare.backend import open_backend
from flowshare.client.admin import ShareAdmin
from flowshare.clock import LoopClock
from flowshare.spark.control import ControlServer, new_token
from flowshare.spark.fleet import FleetOnSpark
from flowshare.spark.fleet_pages import FleetPages, FleetView
from flowshare.spark.jobs import SparkJobs, start_spark
from flowshare.spark.leaving import Leaving
from flowshare.spark.masters import BadMaster, Master, Size
from flowshare.spark.shipping import ship
from flowshare.spark.task import WorkerTask

if TYPE_CHECKING:
    from flowshare.agents.app import App
    from flowshare.backend.base import Backend
    from flowshare.backend.url import BrokerUrl

logger = logging.getLogger("flowshare.spark")

EXIT_CLEAN: Final = 0
EXIT_INTERRUPTED: Final = 130
SPARK_STOP_S: Final = 20.0
BROKER_ENV: Final = "FLOWSHARE_BROKER"
PREFIX: Final = "FLOWSHARE_"
NOT_PASSED: Final = frozenset(
    {"FLOWSHARE_SUPERVISOR_PID", "FLOWSHARE_WORKER_NUMBER", "FLOWSHARE_READY_FD"}
    | {"FLOWSHARE_LISTEN", "FLOWSHARE_ADVERTISE", "FLOWSHARE_STATE_DIR"}
    | SECRETS
)
"""Variables that are about the driver's own process: its pages' token is of no use to others."""
NAME_MAX: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """What `flowshare worker --on` was told.

    workers: None: as many as the master has slots. drain_timeout_s: None: what the agents say. prepare: sets logging up
    in a worker, told its slot; importable there. pages: where health and metrics
    are served, and to whom.
    """

    app_path: str
    master: Master
    size: Size
    concurrency: int | None = None
    drain_timeout_s: float | None = None
    pages: PageSettings = field(default_factory=PageSettings)
    prepare: Callable[[int], object] | None = None


def check(app: App, settings: FleetSettings) -> None:
    """See that the app can run there. Raises: BadMaster, UsageError (it has no broker)."""
    broker = app.broker_address
    if broker.kind == "memory":
        raise BadMaster("memory:// is one process's own; a fleet needs kafka://, or with --on local embedded:///path")
    if broker.kind == "embedded" and not settings.master.local:
        raise BadMaster(
            f"{broker} is a directory of this machine, and the workers on {settings.master.shown} run on others: use "
            "kafka://host:port as the broker, or --on local[N] to run them here"
        )


def run_fleet(app: App, settings: FleetSettings) -> int:
    """Run a fleet on the calling (main) thread until SIGTERM, SIGINT or a failure; the exit code.

    0: all workers drained. 3: some were cut off. 1: it could not start, or Spark ended. 130: a second Ctrl-C.
    Raises: BadMaster, BackendError and what else refused to start.
    """
    check(app, settings)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_Run(app, settings).run())


class _Run:
    def __init__(self, app: App, settings: FleetSettings) -> None:
        self._app = app
        self._settings = settings
        self._clock = LoopClock()
        self._fleet: FleetOnSpark | None = None
        self._stopped = False

    async def run(self) -> int:
        with self._signals():
            async with AsyncExitStack() as stack:
                fleet, pages = await self._start(stack)
                if self._stopped:
                    logger.info("stopped before it had started")
                    return EXIT_CLEAN
                self._fleet = fleet
                size = self._settings.size
                return await fleet.run(size.fewest, self._scaling(pages) if size.follows else None)

    async def _start(self, stack: AsyncExitStack) -> tuple[FleetOnSpark, FleetPages]:
        app, settings = self._app, self._settings
        backend = await self._open(stack)
        groups = {name: agent.group for name, agent in app.share_agents.items()}
        leaving = Leaving(lambda: backend.connect(app.app_id), groups, clock=self._clock)
        stack.push_async_callback(leaving.close)
        jobs = await stack.enter_async_context(self._spark())
        tag = fleet_tag(app.app_id, jobs.application)
        first = self._first_task(tag)
        bind, host, port = jobs.address(settings.master)
        fleet = FleetOnSpark(
            jobs,
            lambda slot, run: replace(first, slot=slot, run=run, member_id=f"{tag}-{slot}", driver=(host, bound)),
            leaving.leave,
            agents=tuple(groups),
            drain_timeout_s=app.drain_timeout_s if settings.drain_timeout_s is None else settings.drain_timeout_s,
        )
        control = ControlServer(first.token, fleet.listener)
        _, bound = await control.start(bind, port)
        stack.push_async_callback(control.close)
        pages, address = await self._serve(stack, fleet, backend)
        logger.info(
            "%d workers on %s (%s), fleet %s; health and metrics at http://%s (process %d)",
            settings.size.fewest,
            settings.master.shown,
            jobs.application,
            tag,
            address,
            os.getpid(),
        )
        return fleet, pages

    async def _open(self, stack: AsyncExitStack) -> Backend:
        """The backend, which leads what is to be led. Raises: BackendError."""
        asked = asked_of(self._app.share_agents.values())
        backend = open_backend(self._app.broker_address, clock=self._clock, lead=True, asked=asked)
        await backend.start()
        stack.push_async_callback(backend.close)
        return backend

    def _first_task(self, tag: str) -> WorkerTask:
        """What all workers are told."""
        settings = self._settings
        return WorkerTask(
            app_path=settings.app_path,
            slot=0,
            run="",
            member_id=tag,
            driver=("", 0),
            token=new_token(),
            environment=environment(self._app.broker_address),
            prepare=settings.prepare,
            concurrency=settings.concurrency,
        )

    async def _serve(self, stack: AsyncExitStack, fleet: FleetOnSpark, backend: Backend) -> tuple[FleetPages, str]:
        """Health and metrics. Raises: PagesError."""
        admin = ShareAdmin(lambda: backend.connect(self._app.app_id), clock=self._clock)
        stack.push_async_callback(admin.close)
        view = FleetView(self._app, fleet, backend, admin, self._clock)
        pages = FleetPages(view, self._settings.pages)
        stack.push_async_callback(pages.close)
        address = await pages.start()
        await backend.set_address(address)
        return pages, address

    @asynccontextmanager
    async def _spark(self) -> AsyncIterator[SparkJobs]:
        """Spark with the application's files, ended at the end."""
        settings = self._settings
        context = await asyncio.to_thread(start_spark, settings.master, self._app.app_id)
        jobs = SparkJobs(context)
        try:
            with tempfile.TemporaryDirectory(prefix="flowshare-app-") as folder:
                if not settings.master.local:
                    await asyncio.to_thread(_ship, jobs, settings.app_path, Path(folder))
                yield jobs
        finally:
            stopping = asyncio.ensure_future(asyncio.to_thread(jobs.stop))
            await asyncio.wait({stopping}, timeout=SPARK_STOP_S)
            if not stopping.done():
                logger.error("Spark does not stop within %.0f s; ending without it", SPARK_STOP_S)
            elif stopping.exception() is not None:
                logger.debug("stopping Spark: %r", stopping.exception())

    def _scaling(self, pages: FleetPages) -> Callable[[FleetOnSpark], Any]:
        size = self._settings.size
        policy = ScalePolicy(min=size.fewest, max=size.most)

        async def ask(_address: str, _page: str) -> dict[str, Any]:
            return await pages.report(TARGET_AGE_S)

        def beside(fleet: FleetOnSpark) -> Any:
            return Autoscaler(policy, target_age_s=TARGET_AGE_S, ask=ask, clock=self._clock).run(fleet)

        return beside

    # --- signals ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Any:
        loop = asyncio.get_running_loop()
        stops = stop_signals()
        for number in stops:
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGUSR1, self._on_show)
        try:
            yield
        finally:
            for number in (*stops, signal.SIGUSR1):
                loop.remove_signal_handler(number)

    def _on_stop(self, number: signal.Signals) -> None:
        if self._stopped and number == signal.SIGINT:
            flush_output("Ctrl-C again: ending at once; what was running runs again")
            os._exit(EXIT_INTERRUPTED)  # Spark's JVM and its workers end with this process
        if not self._stopped:
            logger.info("%s: finishing what is running (a second Ctrl-C ends at once)", signal.Signals(number).name)
        self._stopped = True
        if self._fleet is not None:
            self._fleet.stop(number)

    def _on_show(self) -> None:
        if self._fleet is not None:
            task = asyncio.ensure_future(self._fleet.show())
            task.add_done_callback(lambda done: done.exception())


# --- what workers are told ----------------------------------------------------------------------------------------


def fleet_tag(app_id: str, application: str) -> str:
    """Names a fleet in its members' ids: the app and, in eight digits, this run of it on Spark."""
    digest = hashlib.sha256(f"{app_id}\n{application}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9._]', '-', app_id)[:NAME_MAX]}-{digest}"


def environment(broker: BrokerUrl) -> dict[str, str]:
    """The variables that workers get: the driver's FLOWSHARE_*, and the broker's URL as the driver has it."""
    found = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and name not in NOT_PASSED}
    return {**found, BROKER_ENV: _for_workers(broker).revealed()}


def _for_workers(broker: BrokerUrl) -> BrokerUrl:
    """Without what is about the driver's own process, and with the password itself instead of this machine's file."""
    left_out = {"listen", "advertise", "state_dir"}
    password = broker.password
    if "password_file" in broker.options and not password:
        password = broker.security().password
        left_out.add("password_file")
    options = {name: text for name, text in broker.options.items() if name not in left_out}
    return replace(broker, options=options, password=password)


def _ship(jobs: SparkJobs, app_path: str, folder: Path) -> None:
    """Give executors the application. Blocks. Raises: NotShipped."""
    module, _ = split_path(app_path)
    archive = ship(module, folder)
    if archive is None:
        logger.info("%s is installed, or was shipped by spark-submit: it is not shipped", module)
        return
    jobs.add_file(archive)
    logger.info("%s goes to the executors: %d KiB", module, archive.stat().st_size // 1024)
