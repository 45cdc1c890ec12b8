"""Attacks on a server beside a well-behaved client.

    python -m tests.attack.run [--seconds 10] [--all-seconds 60] [--only bombs,pipelined_looks]

`flowshare serve` is started as anybody would; each attack runs again and again for some seconds, then all of them at
once, each in a process of its own. Beside them one client produces a record, fetches it, and so on, 50 times a second.
A table says how long that client's records took, how many were refused, and how much memory the server had at most.
At last the server is killed (-9) and started again: what it confirmed must be there. Exit code 1 when a record is
gone or was refused.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace as Part
from typing import Any

from flowshare.protocol.batches import decode_all
from tests.attack import answers, batches, openings, strangers
from tests.attack.answers import MIB, Line
from tests.attack.batches import record

Attack = Callable[[str, int], Coroutine[Any, Any, int]]
HOST = "127.0.0.1"
GOOD = "good"
EVERY_S = 0.02
GROUPS = 2_000
P99_MS = 250.0
MEMORY_BYTES = 1 << 30

ATTACKS: dict[str, Attack] = {
    "repeated_names": answers.repeated_names,
    "unread_fetches": answers.unread_fetches,
    "pipelined_looks": answers.pipelined_looks,
    "unknown_settings": answers.unknown_settings,
    "lying_batches": batches.lying_batches,
    "bombs": batches.bombs,
    "looks_for_times": batches.looks_for_times,
    "crowds_in_order": openings.crowds_in_order,
    "large_patterns": openings.large_patterns,
    "unfinished_requests": strangers.unfinished_requests,
    "all_connections": strangers.all_connections,
    "all_share_sessions": strangers.all_share_sessions,
    "all_names": strangers.all_names,
    "many_partitions": strangers.many_partitions,
}


class Server:
    """`flowshare serve` as a process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind((HOST, 0))
            self.port = int(free.getsockname()[1])
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "flowshare.cli", "serve", "--data", str(self._folder / "data")]
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen([*command, "--listen", f"{HOST}:{self.port}"], stdout=log, stderr=log)
        until = time.monotonic() + 60
        while True:
            with suppress(OSError), socket.create_connection((HOST, self.port), 1):
                return process
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server does not listen:\n{(self._folder / 'log').read_text()[-2_000:]}")
            time.sleep(0.05)

    def memory(self) -> int:
        """Resident bytes; 0 when it is gone."""
        with suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def kill_and_start(self) -> None:
        """kill -9, and another one over the same data."""
        self.close()
        self.process = self._start()

    def close(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Client:
    """The well-behaved one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._next = 0
        self.took_ms: list[float] = []
        self.confirmed: list[bytes] = []
        self.refused = 0

    async def prepare(self) -> None:
        """Make its topic."""
        line = await Line.to(HOST, self._port)
        topic = Part(name=GOOD, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        await line.ask("create_topics", 5, topics=[topic], timeout=timedelta(seconds=5), validate_only=False)
        line.close()

    async def work(self, ended: asyncio.Event) -> None:
        """Produce and fetch until `ended`."""
        line = await Line.to(HOST, self._port)
        while not ended.is_set():
            began = time.monotonic()
            value = b"%d" % len(self.confirmed)
            try:
                await self._once(line, value)
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                self.refused += 1
                print(f"refused: {type(error).__name__}: {error}", flush=True)
                line.close()
                line = await Line.to(HOST, self._port)
            self.took_ms.append((time.monotonic() - began) * 1e3)
            await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))
        line.close()

    async def _once(self, line: Line, value: bytes) -> None:
        data = Part(name=GOOD, partition_data=[Part(index=0, records=record(value))])
        told = await line.ask(
            "produce", 7, transactional_id=None, acks=-1, timeout=timedelta(seconds=5), topic_data=[data]
        )
        part = told.responses[0].partition_responses[0]
        if int(part.error_code):
            raise ValueError(f"produce: {part.error_code!r}")
        self.confirmed.append(value)
        found, self._next = await fetched(line, self._next)
        if value not in found:
            raise ValueError("what was confirmed is not there")

    def figures(self) -> tuple[float, float]:
        """p50 and p99 in ms since the last call."""
        took, self.took_ms = sorted(self.took_ms), []
        return (statistics.median(took), took[int(len(took) * 0.99)]) if took else (float("nan"), float("nan"))


async def fetched(line: Line, offset: int) -> tuple[list[bytes], int]:
    """Values from an offset on, and the offset behind them."""
    part = Part(partition=0, current_leader_epoch=-1, fetch_offset=offset, log_start_offset=-1, partition_max_bytes=MIB)
    told = await line.ask(
        "fetch",
        11,
        replica_id=-1,
        max_wait=timedelta(0),
        min_bytes=1,
        max_bytes=MIB,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[Part(topic=GOOD, partitions=[part])],
        forgotten_topics_data=[],
        rack_id="",
    )
    records = decode_all(told.responses[0].partitions[0].records or b"")
    return [one.value or b"" for one in records if one.offset >= offset], records[-1].offset + 1 if records else offset


async def watch(server: Server, ended: asyncio.Event) -> int:
    """The most memory the server had."""
    most = 0
    while not ended.is_set():
        most = max(most, server.memory())
        await asyncio.sleep(0.05)
    return most


def attacker(name: str, port: int, seconds: float) -> subprocess.Popen[bytes]:
    """One attack in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "tests.attack.run", "--attack", name, str(port), str(seconds)])


async def beside(server: Server, client: Client, names: list[str], seconds: float) -> int:
    """The client's work while these attacks run; the server's memory at most."""
    ended = asyncio.Event()
    tasks = [asyncio.create_task(client.work(ended)), asyncio.create_task(watch(server, ended))]
    attackers = [attacker(name, server.port, seconds) for name in names]
    try:
        await asyncio.sleep(seconds)
    finally:
        for process in attackers:
            process.kill()
            process.wait()
        ended.set()
    _, most = await asyncio.gather(*tasks)
    return int(most or 0)


async def attack_again(name: str, port: int, seconds: float) -> None:
    """One attack until the time is over: in a process of its own."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(OSError, asyncio.IncompleteReadError, struct.error):
            await ATTACKS[name](HOST, port)
        await asyncio.sleep(0.01)


async def kept(port: int) -> set[bytes]:
    """Return the values in the client's topic."""
    line = await Line.to(HOST, port)
    found: set[bytes] = set()
    offset = 0
    while True:
        values, behind = await fetched(line, offset)
        if behind == offset:
            line.close()
            return found
        found.update(values)
        offset = behind


async def main(options: argparse.Namespace) -> int:
    """Run all; the exit code."""
    names = options.only.split(",") if options.only else list(ATTACKS)
    with tempfile.TemporaryDirectory(prefix="flowshare-attack-") as folder:
        server = Server(Path(folder))
        try:
            await answers.prepare(HOST, server.port, groups=GROUPS, records=8)
            client = Client(server.port)
            await client.prepare()
            print(f"{'attack':<20} {'p50 ms':>8} {'p99 ms':>8} {'memory MB':>10} {'refused':>8}", flush=True)
            rows = [("none", [], options.seconds), *((name, [name], options.seconds) for name in names)]
            rows.append(("all at once", names, options.all_seconds))
            missed = []
            for title, attacks, seconds in rows:
                refused = client.refused
                most = await beside(server, client, attacks, seconds)
                p50, p99 = client.figures()
                print(f"{title:<20} {p50:8.1f} {p99:8.1f} {most / 1e6:10.0f} {client.refused - refused:8}", flush=True)
                if p99 > P99_MS or most > MEMORY_BYTES:
                    missed.append(title)
            server.kill_and_start()
            lost = set(client.confirmed) - await kept(server.port)
        finally:
            server.close()
    print(f"confirmed {len(client.confirmed)}, lost {len(lost)}, refused {client.refused}", flush=True)
    print(f"beyond {P99_MS:g} ms or 1 GiB: {', '.join(missed) or 'none'}", flush=True)
    return int(bool(lost or client.refused))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="How long each attack runs alone.")
    parser.add_argument("--all-seconds", type=float, default=60.0, help="How long all of them run together.")
    parser.add_argument("--only", default="", help="Names, separated by commas.")
    parser.add_argument(
        "--attack", nargs=3, metavar=("NAME", "PORT", "SECONDS"), help="Only attack what listens there."
    )
    chosen = parser.parse_args()
    if chosen.attack:
        asyncio.run(attack_again(chosen.attack[0], int(chosen.attack[1]), float(chosen.attack[2])))
    else:
        sys.exit(asyncio.run(main(chosen)))
