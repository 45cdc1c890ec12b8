"""Processes that run an app: a folder with its module, what they wrote, and their end with the test's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import flowshare as fs
from flowshare.dev.processes import tied_to_parent
from tests.waiting import LIMIT_S, blocking_until

ROOT = Path(__file__).parents[2]


class Processes:
    """Of an app on a broker, in a folder: whoever starts one finds URL and JOURNAL in its environment."""

    def __init__(self, folder: Path, url: str, **environment: str) -> None:
        self.folder = folder
        self.url = url
        self.journal = folder / "journal"
        self.started: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "URL": url,
            "JOURNAL": str(self.journal),
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        (folder / "hypothesis.py").write_text("raise ModuleNotFoundError")  # as where workers run: kio takes 0.4 s less

    def send(self, topic: str, *values: bytes) -> None:
        """Produce, confirmed, from this process."""

        async def main() -> None:
            async with fs.Producer(self.url) as producer:
                await producer.send_many(topic, values)

        asyncio.run(main())

    def run(self, *arguments: str) -> str:
        """A command of flowshare's, to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "flowshare.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A process of Python's; its output goes to a log of its own."""
        with (self.folder / f"log-{len(self.started)}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=tied_to_parent(),
            )
        self.started.append(process)
        return process

    def cli(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command of flowshare's that goes on."""
        return self.start("-m", "flowshare.cli", *arguments)

    def log(self, process: subprocess.Popen[bytes] | None = None) -> str:
        """Return the log of one process, or of all."""
        numbers = range(len(self.started)) if process is None else [self.started.index(process)]
        return "".join((self.folder / f"log-{number}").read_text() for number in numbers)

    def notes(self) -> list[list[str]]:
        """The words of each line of the journal that is whole."""
        text = self.journal.read_text() if self.journal.exists() else ""
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait(self, ready: Callable[[], object], what: str = "", limit_s: float = LIMIT_S) -> None:
        """Until it is ready; the last process that was started must not fail before."""
        told = lambda: f"{what}\n{self.notes()[-100:]}\n{self.log()[-20_000:]}"  # noqa: E731

        def right() -> bool:
            failed = bool(self.started and self.started[-1].poll())
            found = bool(ready())
            assert found or not failed, told()
            return found

        blocking_until(right, told, limit_s=limit_s)

    def wait_log(self, process: subprocess.Popen[bytes], text: str) -> None:
        """Until a process has said that."""
        self.wait(lambda: text in self.log(process), text)

    def workers(self) -> dict[int, int]:
        """The number of each process that a supervisor started, as its log has it; a number may have several."""
        return {int(pid): int(number) for number, pid in re.findall(r"worker (\d+) is process (\d+)", self.log())}

    def close(self) -> None:
        """End all of them."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        for pid in self.workers() if self.started else ():
            with contextlib.suppress(OSError):
                if str(self.folder).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(pid, signal.SIGKILL)
