"""`flowshare send`: records from an argument, a file or standard input into a topic."""

from __future__ import annotations

import asyncio
import difflib
import io
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, cast

import click

from flowshare.agents.handler.texts import amount
from flowshare.cli.options import facts_options
from flowshare.cli.output import TERMINAL, emit_json, say
from flowshare.ops.arguments import pair
from flowshare.ops.session import CommandSession, run

_ROUND: Final = 5_000
"""Records that are confirmed together: the progress bar's step, and what is held in memory."""
_CLOSE: Final = 0.8
"""How much a name has to be like another one to be taken for a slip; `payments` and `shipments` are meant."""
_OWN: Final = (".dlq", ".retry")
"""Ends of names that are like others by design."""


@click.command("send")
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--key", help="Key of each record; records with one key go to one partition.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read from a file.")
@click.option("--lines", is_flag=True, help="Each line of the file or of standard input is a record.")
@facts_options
def send(
    topic: str,
    value: str | None,
    key: str | None,
    headers: tuple[str, ...],
    path: Path | None,
    lines: bool,
    as_json: bool,
    url: str,
    app_path: str | None,
) -> None:
    """Send VALUE to TOPIC, or with --file, or from standard input.

    A topic that does not exist is created, as an agent of the app declares it, else with one partition.

    \b
    flowshare send orders '{"id": 1}' --key c1 --broker embedded:///tmp/shop
    flowshare send orders --lines --file orders.jsonl --app shop:app
    """
    if value is not None and path is not None:
        raise click.UsageError("give VALUE or --file, not both")
    if value is not None and lines:
        raise click.UsageError("--lines goes with --file or standard input, not with VALUE")
    if value is None and path is None and sys.stdin.isatty():
        raise click.UsageError("give a VALUE, --file, or pipe something in")
    pairs = tuple((name, text.encode()) for name, text in (pair(text, "--header") for text in headers))
    read = _values(value, path, lines)
    if app_path:
        read = _warning(read, topic, app_path)

    async def call(session: CommandSession) -> bool:
        session.send_as(app_path)
        known = {found.name for found in await session.admin.list_topics()}
        if app_path and topic not in known:
            await _declare(app_path, topic, session)
        with _first_interrupt() as interrupt:
            await _send(session, topic, read, key, pairs, as_json=as_json, interrupt=interrupt)
        if topic not in known and topic in (made := {one.name: one for one in await session.admin.list_topics()}):
            count = made[topic].partitions
            say(f"created topic {topic} with {amount(count, 'partition')}", err=True)
            meant = topic.endswith(_OWN) or bool(app_path and topic in _declared(app_path))
            if not meant and (close := difflib.get_close_matches(topic, known, n=1, cutoff=_CLOSE)):
                say(f"did you mean {close[0]}? If so: flowshare topics delete {topic}, and send it again", err=True)
        return interrupt.is_set()

    if run(url, call, create=True):
        raise click.Abort


@contextmanager
def _first_interrupt() -> Iterator[asyncio.Event]:
    """Set by Ctrl-C, which ends the reading and not the sending of what was read; the second one ends all."""
    loop, interrupt = asyncio.get_running_loop(), asyncio.Event()

    def interrupted() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupt.set()

    try:
        loop.add_signal_handler(signal.SIGINT, interrupted)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows, or no main thread
        yield interrupt
        return
    try:
        yield interrupt
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _declare(app_path: str, topic: str, session: CommandSession) -> None:
    from flowshare.agents.app.loading import load_app
    from flowshare.agents.feed.setup import declare

    app = load_app(app_path)
    await declare((*app.share_agents.values(), *app.cooperative_agents.values()), topic, session.admin)


async def _send(
    session: CommandSession,
    topic: str,
    values: Iterator[bytes],
    key: str | None,
    headers: tuple[tuple[str, bytes | None], ...],
    *,
    as_json: bool,
    interrupt: asyncio.Event,
) -> None:
    from flowshare.client.producer.producer import Message

    begun = session.clock.monotonic()
    key_bytes = key.encode() if key is not None else None
    sent, last = 0, None
    with TERMINAL.bar(f"sending to {topic}", None) as step:
        async for batch in _as_read(values, interrupt):
            messages = [Message(value, key_bytes, headers) for value in batch]
            confirmed = await session.producer.send_many(topic, messages)
            sent, last = sent + len(confirmed), confirmed[-1]
            step(len(confirmed))
    if as_json:
        at = None if last is None else {"partition": last.partition, "offset": last.offset}
        emit_json({"topic": topic, "sent": sent, "last": at})
    elif last is None:
        say("nothing to send: the input is empty", err=True)
    elif sent == 1:
        say(f"sent to {topic}-{last.partition}@{last.offset}")
    else:
        seconds = max(session.clock.monotonic() - begun, 1e-6)
        say(f"sent {sent} records to {topic} in {seconds:.1f} s ({sent / seconds:,.0f}/s)")


async def _as_read(values: Iterator[bytes], interrupt: asyncio.Event) -> AsyncIterator[list[bytes]]:
    """Yield the values read so far, up to _ROUND at a time: input may come slowly, and never end.

    interrupt: ends the iteration after the values read until then.
    """
    loop, ready, room = asyncio.get_running_loop(), asyncio.Event(), threading.Condition()
    found: deque[bytes] = deque()
    ended: list[BaseException | None] = []

    def tell() -> None:
        with suppress(RuntimeError):  # the loop has ended, after an interrupt
            loop.call_soon_threadsafe(ready.set)

    def read() -> None:
        error: BaseException | None = None
        try:
            for value in values:
                with room:
                    room.wait_for(lambda: len(found) < 2 * _ROUND)
                    found.append(value)
                    first = len(found) == 1
                if first:
                    tell()
        except Exception as raised:  # noqa: BLE001 - it is raised where the values are wanted
            error = raised
        ended.append(error)
        tell()

    async def stop() -> None:
        await interrupt.wait()
        ended.append(None)
        ready.set()

    threading.Thread(target=read, name="reading input", daemon=True).start()
    stopping = asyncio.create_task(stop())
    try:
        while not ended or found:
            await ready.wait()
            ready.clear()
            while found:
                with room:
                    batch = [found.popleft() for _ in range(min(_ROUND, len(found)))]
                    room.notify()
                yield batch
        if ended[0] is not None:
            raise ended[0]
    finally:
        stopping.cancel()


def _values(value: str | None, path: Path | None, lines: bool) -> Iterator[bytes]:
    if value is not None:
        yield value.encode()
    elif path is not None:
        with path.open("rb") as file:
            yield from _read(file, lines)
    else:
        yield from _read(_standard_input(), lines)


def _declared(app_path: str) -> set[str]:
    """Topics that the app's agents and pipelines read: they are meant."""
    from flowshare.agents.app.loading import load_app

    app = load_app(app_path)
    agents = (*app.share_agents.values(), *app.cooperative_agents.values(), *app.kmq_agents.values())
    return {name for one in agents for name in one.topics} | {
        name for one in app.pipelines.values() for name in one.topics
    }


def _warning(values: Iterator[bytes], topic: str, app_path: str) -> Iterator[bytes]:
    """The values as they are; a warning for the first that an agent of the app cannot decode."""
    from flowshare.agents.app.loading import load_app

    app = load_app(app_path)
    declared = (*app.share_agents.values(), *app.cooperative_agents.values())
    agents = [agent for agent in declared if topic in agent.topics]
    for value in values:
        for agent in list(agents):
            decode = agent.decoder(topic)
            try:
                if decode is not None:
                    decode(value)
            except Exception as error:  # noqa: BLE001 - a decoder raises anything when a value does not fit
                agents.remove(agent)
                say(f"warning: agent {agent.name} will not take it: {agent.explain(value, error)}", err=True)
        yield value


def _standard_input() -> IO[bytes]:
    """Standard input without Python's own buffer, whose lock a thread that reads would keep when the process ends."""
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # it is no file
        return sys.stdin.buffer
    return cast("IO[bytes]", io.BufferedReader(io.FileIO(descriptor, closefd=False)))


def _read(file: IO[bytes], lines: bool) -> Iterator[bytes]:
    if not lines:
        data = file.read()
        if data:
            yield data
        return
    for line in file:
        if text := line.rstrip(b"\r\n"):
            yield text
