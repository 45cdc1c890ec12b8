"""A broker in a thread behind a proxy that cuts connections, and the broker as a process that can be killed."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from flowshare.clock import LoopClock
from flowshare.dev.processes import tied_to_parent
from flowshare.server.standalone import Address, Standalone, StandaloneOptions
from tests.waiting import blocking_until

LIMIT_S = 60.0


class Proxy:
    """Passes bytes on between clients and one server; cuts connections when an answer of the server comes by.

    On plain sockets: asyncio's servers lose what they have accepted when their loop ends in the same moment.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cut_share = 0.0
        """Of the answers: so many are thrown away together with their connection."""
        self.cuts = 0
        self.target: Address | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self) -> int:
        """The port to connect to; accepts on the running loop."""
        self.loop = asyncio.get_running_loop()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.loop.add_reader(self.listener, self._accept)
        return int(self.listener.getsockname()[1])

    async def close(self) -> None:
        """Cut everything and listen no more."""
        self.loop.remove_reader(self.listener)
        self.listener.close()
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            client, _ = self.listener.accept()
            client.setblocking(False)
            task = self.loop.create_task(self._pass(client))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            task.add_done_callback(lambda _: client.close())  # a task that never began has no `finally`

    async def _pass(self, client: socket.socket) -> None:
        """Until either end closes."""
        assert self.target is not None
        with closing(socket.socket()) as server, suppress(OSError):  # nobody is there
            server.setblocking(False)
            await self.loop.sock_connect(server, (self.target.host, self.target.port))
            ways = [
                asyncio.ensure_future(self._copy(client, server, answers=False)),
                asyncio.ensure_future(self._copy(server, client, answers=True)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _copy(self, source: socket.socket, target: socket.socket, *, answers: bool) -> None:
        with suppress(ConnectionError):
            while data := await self.loop.sock_recv(source, 1 << 16):
                if answers and self.chance.random() < self.cut_share:
                    self.cuts += 1
                    return
                await self.loop.sock_sendall(target, data)


@contextmanager
def broker_behind_proxy(folder: Path, seed: int) -> Iterator[tuple[Proxy, str]]:
    """The proxy, and the address that clients are to use."""
    proxy, ready, address = Proxy(seed), threading.Event(), list[str]()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # ends what is left
            runner.run(main())

    async def main() -> None:
        port = proxy.start()
        told = Address(host="127.0.0.1", port=port)
        proxy.target = Address(host="127.0.0.1", port=free_port())
        broker = Standalone(StandaloneOptions(data=folder, listen=proxy.target, advertise=told), clock=LoopClock())
        await broker.start()
        address.append(str(told))
        ready.set()
        await stop.wait()
        await broker.close()
        await proxy.close()

    thread = threading.Thread(target=run, name="broker")
    thread.start()
    try:
        assert ready.wait(LIMIT_S)
        yield proxy, address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)


class Process:
    """`flowshare serve` at one address; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it listens. The thread that calls it must outlive the broker: the system ties them together."""
        self.child = subprocess.Popen(
            [sys.executable, "-m", "flowshare.cli", "serve", "--data", str(self.folder), "--listen", self.address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=tied_to_parent(),
        )

        def listens() -> bool:
            assert self.child.poll() is None, "flowshare serve ended"
            with closing(socket.socket()) as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        blocking_until(listens, "flowshare serve listens", limit_s=LIMIT_S)

    def kill(self) -> None:
        """kill -9."""
        assert self.child is not None
        self.child.kill()
        self.child.wait()


def free_port() -> int:
    """A port that nobody has now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
