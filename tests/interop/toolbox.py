"""Kafka's command-line tools and the Java programs in `java/`, in one JVM for a whole run of tests.

The programs are compiled once for each of their contents, with Kafka's own jars as class path.
"""

from __future__ import annotations

import hashlib
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flowshare.dev import cache_dir
from flowshare.dev.jars import class_path, jars, locked
from flowshare.dev.java import java, javac
from flowshare.dev.processes import tied_to_parent
from tests.kafka.versions import is_from

SOURCES = Path(__file__).with_name("java")
TOOLS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand" if is_from("4.4") else "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "share-client": "ShareClient",
    "committed-client": "CommittedReader",
    "group-client": "GroupClient",
    "transaction-client": "TransactionClient",
}
ANSWER_LIMIT_S = 90
COMPILE_LIMIT_S = 120


@dataclass(frozen=True)
class Told:
    """Output and exit code of a tool."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The lines of a table, split at blanks."""
        return [line.split() for line in self.out.splitlines() if line.strip()]

    @property
    def records(self) -> list[dict]:
        """Records that the share client got, in order."""
        return [record for line in self.out.splitlines() for record in json.loads(line)["records"]]


class Toolbox:
    """The JVM. One tool at a time."""

    def __init__(self) -> None:
        command = [str(java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{programs()}:{class_path(jars())}"]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed in close()
        self._process = subprocess.Popen(
            [*command, "Toolbox"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            preexec_fn=tied_to_parent(),
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __call__(self, tool: str, *args: str, stdin: str = "") -> Told:
        """Run a tool and wait until it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"main": TOOLS[tool], "args": args, "stdin": stdin}) + "\n")
        self._process.stdin.flush()
        try:
            answer = self._answers.get(timeout=ANSWER_LIMIT_S)
        except queue.Empty:
            self._process.kill()
            raise AssertionError(f"{tool} {' '.join(args)} did not end within {ANSWER_LIMIT_S} s") from None
        if not answer:
            self._log.seek(0)
            raise AssertionError(f"the JVM of the tools is gone: {self._log.read().decode()[-2000:]}")
        return Told(**json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._answers.put(line)
        finally:
            self._answers.put("")


def programs() -> Path:
    """The directory with the compiled programs."""
    sources = sorted(SOURCES.glob("*.java"))
    content = b"".join(one.read_bytes() for one in sources) + str(jars()).encode()

    def command(target: Path) -> list[str]:
        return [str(javac()), "-Werror", "-cp", class_path(jars()), "-d", str(target), *map(str, sources)]

    return compiled("interop", content, command, SOURCES)


def compiled(name: str, content: bytes, command: Callable[[Path], list[str]], folder: Path) -> Path:
    """The directory with what `command`, run in `folder`, compiles into it; kept as long as `content` is the same."""
    target = cache_dir() / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
    if target.is_dir():
        return target
    with locked(cache_dir() / f"{name}.lock", COMPILE_LIMIT_S):
        if not target.is_dir():
            draft = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache_dir()))
            done = subprocess.run(
                command(draft), cwd=folder, capture_output=True, text=True, check=False, timeout=COMPILE_LIMIT_S
            )
            if done.returncode != 0:
                shutil.rmtree(draft)
                raise AssertionError(f"the programs in {folder} do not compile:\n{done.stderr}")
            draft.rename(target)
    return target
