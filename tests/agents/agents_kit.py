"""Shared parts of the agents' tests: one app with one agent, run on a memory log with a clock that stands still."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import flowshare as fs
from flowshare.agents.host.host import Host
from flowshare.ops.figures import PartitionFigures
from flowshare.ops.reading import groups_of, partitions
from flowshare.testing import AgentReport, Bus, DeadLetter, SentRecord


@dataclass
class Seen:
    """Results of a run of one agent: outcomes, dead letters, outputs, time and stats."""

    report: AgentReport
    dead: list[DeadLetter]
    out: list[SentRecord]
    elapsed_s: float
    stats: dict[str, float]
    records: Callable[[str], list[SentRecord]]
    """Function that returns the records of a topic."""

    @property
    def outcomes(self) -> list[str]:
        return [one.outcome for one in self.report.settled]


def one_agent(fun: Callable[..., Any], **options: Any) -> fs.App:
    """An app whose only agent reads `in` and is called `agent`."""
    app = fs.App("t")
    app.share_agent("in", name="agent", **options)(fun)
    return app


def run_agent(
    fun: Callable[..., Any],
    values: Sequence[Any] = (b"x",),
    *,
    during: Callable[[Bus], Awaitable[None]] | None = None,
    limit_s: float = 3600.0,
    **options: Any,
) -> Seen:
    """Send the values, let the agent end them all; `during` runs between the two."""
    app = one_agent(fun, **options)
    return run_app(app, values, during=during, limit_s=limit_s)


def run_app(
    app: fs.App,
    values: Sequence[Any] = (b"x",),
    *,
    during: Callable[[Bus], Awaitable[None]] | None = None,
    limit_s: float = 3600.0,
) -> Seen:
    """The same for an app that is made already."""

    async def main() -> Seen:
        async with fs.testing.harness(app) as bus:
            began_s = bus.clock.monotonic()
            for value in values:
                await bus.send("in", value)
            if during is not None:
                await during(bus)
            report = await bus.run_until_idle(limit=limit_s)
            agent = app.share_agents["agent"]
            dead = bus.dead_letters(agent) if agent.dead_letter_topic else []
            runtime = app.host.runtimes["agent"]
            return Seen(
                report["agent"], dead, bus.records("out"), bus.clock.monotonic() - began_s, runtime.stats(), bus.records
            )

    return fs.testing.run(main())


async def positions(host: Host) -> list[PartitionFigures]:
    """The figures of each partition of the host's groups; on its service loop."""
    groups = groups_of(runtime.agent for runtime in host.runtimes.values())
    return await partitions(host.admin, groups, host.clock.now_ms())
