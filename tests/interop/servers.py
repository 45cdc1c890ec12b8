"""The servers that tests here run against: a real Kafka, the control, `flowshare serve`, a fleet of workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TypeVar

from confluent_kafka import Message, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from flowshare.dev.processes import tail, tied_to_parent
from tests.waiting import blocking_until

T = TypeVar("T")

START_LIMIT_S = 60.0
CALL_LIMIT_S = 20

GROUP = {
    "share.auto.offset.reset": "earliest",
    # Stock clients learn at their second heartbeat what they are assigned.
    "share.heartbeat.interval.ms": "300",
    "share.assignment.interval.ms": "0",
    "share.record.lock.duration.ms": "30000",
}
SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "6000",
}


class Server:
    """A server and short ways to prepare it. Preparation goes through librdkafka, a client of neither side.

    records: who has the topics, when that is another than who has the share groups.
    """

    def __init__(self, name: str, bootstrap: str, *, records: str | None = None) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.records = records or bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # it outlives its server
        self._topics = AdminClient({"bootstrap.servers": self.records, "log_level": 0})

    @property
    def is_flowshare(self) -> bool:
        return self.name != "kafka"

    def topic(self, name: str, partitions: int = 1) -> str:
        made = self._topics.create_topics([NewTopic(name, partitions, 1)], operation_timeout=CALL_LIMIT_S)
        made[name].result(CALL_LIMIT_S)
        return name

    def share_group(self, name: str, **settings: str) -> str:
        """Settings by Kafka's names, with `_` for `.`, over GROUP."""
        wanted = {**GROUP, **{key.replace("_", "."): value for key, value in settings.items()}}
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in wanted.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, name, incremental_configs=entries)
        for done in self.admin.incremental_alter_configs([resource]).values():
            done.result(CALL_LIMIT_S)
        return name

    def produce(self, topic: str, *values: str, partition: int = 0) -> list[int]:
        """Send and confirm. Returns the offsets."""
        offsets: list[int] = []

        def confirmed(error: object, message: Message) -> None:
            assert error is None, error
            offset = message.offset()
            assert offset is not None
            offsets.append(offset)

        producer = Producer({"bootstrap.servers": self.records, "linger.ms": 20})
        for value in values:
            producer.produce(topic, value.encode(), partition=partition, on_delivery=confirmed)
        assert producer.flush(CALL_LIMIT_S) == 0
        return offsets


class FlowshareProcess:
    """A `flowshare serve` of its own. data: the directory in `folder` that it serves."""

    def __init__(self, folder: Path, *, port: int = 0, data: str = "log") -> None:
        self._folder = folder
        self._data = folder / data
        self._log = folder / "serve.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._listen = f"127.0.0.1:{port}"

    def start(self) -> None:
        """Start it, on the data that it had, and wait until it listens."""
        # As on the control: ACLs can be made, and everybody here is a super user.
        acls = self._folder / "acls"
        acls.touch()
        command = [sys.executable, "-m", "flowshare.cli", "serve", "--listen", self._listen]
        command += ["--data", str(self._data), "--acls", str(acls), "--super-user", "User:ANONYMOUS"]
        command += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, preexec_fn=tied_to_parent()
            )
        self.server = Server("flowshare", self._address(self._process))

    def kill(self) -> None:
        """`kill -9`."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM; if that does not end it in time, SIGKILL."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _address(self, process: subprocess.Popen[bytes]) -> str:
        def address() -> str:
            for line in self._log.read_text().splitlines():
                if "listening on " in line:
                    return line.rpartition("listening on ")[2].split()[0]
            assert process.poll() is None, f"flowshare serve ended:\n{tail(self._log)}"
            return ""

        return blocking_until(address, lambda: f"flowshare serve is ready:\n{tail(self._log)}", limit_s=START_LIMIT_S)
