"""All faces of one group show the same figures: commands, the console, a worker's metrics and pages."""

from __future__ import annotations

import asyncio
import contextlib
import re
from types import SimpleNamespace

import pytest

import flowshare as fs
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend.memory import MemoryBackend
from flowshare.cli import groups, lag, top
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.producer import Message
from flowshare.clock import LoopClock
from flowshare.ops.figures import PartitionFigures
from flowshare.ops.load import LoadWatch
from flowshare.ops.reading import partitions
from flowshare.ops.session import CommandSession
from flowshare.web.metrics import Metrics
from flowshare.web.server import WebServer
from tests.agents.agents_kit import one_agent
from tests.console.world import MemorySource, browser, console, words
from tests.waiting import until

GROUP = "t.agent"
RECORDS = [("a", "poison"), ("a", "follows"), *[("b", "hangs")] * 3, ("c", "fails"), ("d", "done")]
COLUMNS = ("backlog", "in_flight", "delayed", "blocked", "parked")


class SessionSource(MemorySource):
    """A console's source that asks a session of somebody else."""

    def __init__(self, session: CommandSession) -> None:
        super().__init__()
        self.session = session

    async def ask(self, question, *, limit_s=0.0):
        return await question(self.session)


class Kept:
    """A `KeptSession` of somebody else."""

    def __init__(self, session: CommandSession) -> None:
        self.session, self.clock = session, session.clock

    @contextlib.asynccontextmanager
    async def look(self):
        yield self.session

    async def close(self) -> None:
        pass


@contextlib.asynccontextmanager
async def troubled():
    """A host with one agent, and a session beside it: a key is parked after its dead letter, another one is held and
    blocks records, and a record waits for its next attempt."""
    hang = asyncio.Event()

    async def handler(value: str) -> None:
        if value == "poison":
            raise fs.Reject("poison")
        if value == "fails":
            raise ValueError(value)
        if value == "hangs":
            await hang.wait()

    clock = LoopClock()
    backend = MemoryBackend(clock=clock)
    await backend.start()
    session = CommandSession(backend, ShareAdmin(lambda: backend.connect("test"), clock=clock), clock)
    app = one_agent(handler, order="key", after_dead_letter="park", retry=fs.Retry(max_attempts=9, delay=600))
    host = Host(app, backend=backend, clock=clock, settings=HostSettings(threads=False, linger=0))
    try:
        await session.admin.create_topic("in", partitions=1)
        await host.start()
        messages = [Message(value.encode(), key=key.encode(), partition=0) for key, value in RECORDS]
        await session.producer.send_many("in", messages)
        yield host, session
    finally:
        hang.set()
        await host.stop()
        await session.close()


async def settled(session: CommandSession) -> PartitionFigures:
    """The group's only partition, once everything is where it stays."""

    async def part():
        (found,) = await partitions(session.admin, {GROUP: "share"}, 0)
        return found

    def done(found):
        return (found.backlog, found.delayed, found.parked) == (4, 1, 1) and found.in_flight and found.blocked

    return await until(part, "a parked key, a held one, a delayed record", good=done)


async def lag_says(session: CommandSession, *, parts: bool) -> dict[str, int]:
    source = lag._LagSource("memory://")
    source.session = Kept(session)
    view = lag.View(GROUP, None, partitions=parts, as_json=True)
    (row,) = view.prepare(await source.look(), source.watcher, {})
    await source.close()
    return {name: row[name] for name in COLUMNS}


async def top_says(session: CommandSession) -> dict[str, int]:
    found = await top.Looks(Kept(session), SimpleNamespace(known=False), 100).look(session)
    row = top._row(found.groups[GROUP], as_json=True)
    return {name: row[name] for name in COLUMNS if name in row}


async def groups_say(session: CommandSession) -> dict[str, int]:
    (row,) = (await groups._facts(session, GROUP))["offsets"]
    return {name: row[name] for name in COLUMNS}


async def worker_says(host: Host) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Figures of `/metrics`, `/scale` and `/lag`."""
    load = LoadWatch(host.runtimes, host.admin, host.backend.capabilities, clock=host.clock)
    await load.look()
    text = Metrics(host, load).text().decode()
    where = f'{{group="{GROUP}",partition="0",topic="in"}}'
    told = {key: re.search(rf"^flowshare_{name}{re.escape(where)} (.*)$", text, re.MULTILINE) for key, name in METRICS}
    ((topic,),) = (agent["topics"] for agent in load.report()["agents"])
    (row,) = await WebServer(host)._positions(every=False)
    return (
        {key: int(float(match[1])) for key, match in told.items()},
        {name: topic[name] for name in COLUMNS},
        {name: row[name] for name in COLUMNS},
    )


METRICS = [
    ("backlog", "backlog_records"),
    ("in_flight", "in_flight_messages"),
    ("delayed", "delayed_records"),
    ("blocked", "blocked_records"),
    ("parked", "parked_keys"),
]


async def console_says(session: CommandSession, folder) -> tuple[dict[str, int], dict[str, int]]:
    """Figures of the page of all groups, and of the page of the group."""
    async with console(folder, source=SessionSource(session)) as made, browser(made) as who:
        await made.look()
        row = re.search(r'<tr id="g-.*?</tr>', await who.page("/groups"), re.DOTALL)[0]
        cells = [words(cell) for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
        told = dict(zip(("backlog", "in_flight", "delayed", "blocked"), map(int, cells[1:5]), strict=True))
        told["letters"] = int(cells[-1])
        page = await who.page(f"/group?name={GROUP}")
        said = words(page)
        part = re.search(r'<tr id="p-.*?</tr>', page, re.DOTALL)[0]
        counts = [words(cell) for cell in re.findall(r"<td.*?</td>", part, re.DOTALL)]
        of_group = dict(zip(COLUMNS, map(int, counts[1:6]), strict=True))
        assert int(re.search(r"in flight (\d+)", said)[1]) == of_group["in_flight"]
        assert int(re.search(r"delayed (\d+)", said)[1]) == of_group["delayed"]
        of_group["letters"] = int(re.search(r"dead letters (\d+)", said)[1])
        return told, of_group


@pytest.mark.slow
@pytest.mark.asyncio
async def test_every_face_shows_the_same_backlog_flight_delays_blocked_records_parked_keys_and_letters(tmp_path):
    async with troubled() as (host, session):
        part = await settled(session)
        wanted = {name: getattr(part, name) for name in COLUMNS} | {"letters": 2}

        faces = [
            await lag_says(session, parts=False),
            await lag_says(session, parts=True),
            await top_says(session),
            await groups_say(session),
            *await worker_says(host),
            *await console_says(session, tmp_path),
        ]

    for face in faces:
        assert face == {name: wanted[name] for name in face}
    assert set().union(*faces) == wanted.keys()
    assert min(wanted.values()) > 0
