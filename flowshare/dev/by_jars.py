"""A throw-away Kafka from its jars: one JVM a node, and one for ZooKeeper where the version needs it."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flowshare.dev import DevFailure
from flowshare.dev import kafka_settings as settings
from flowshare.dev.broker import DevBroker, Wanted, await_ready
from flowshare.dev.jars import class_path, jars
from flowshare.dev.java import java
from flowshare.dev.probe import HOST, free_ports, is_free
from flowshare.dev.processes import Process, process, said, tail, tied_to_parent

_FORMAT_LIMIT_S: Final = 60
_TRIES: Final = 3


def start(wanted: Wanted, *, tied: bool) -> DevBroker:
    """Start it and wait until it is ready. Raises: DevFailure."""
    if wanted.port and not is_free(wanted.port):
        raise DevFailure(f"port {wanted.port} is in use: name another one, or 0 for any that is free")
    machine = _Machine(java(), jars(wanted.version), (f"-Xmx{wanted.heap}", *wanted.jvm), tied)
    for attempt in range(1, _TRIES + 1):
        try:
            return _start(wanted, machine)
        except DevFailure as error:
            # A free port can be taken by somebody else before the broker comes to it.
            if attempt == _TRIES or wanted.port or "Address already in use" not in str(error):
                raise
    raise AssertionError("the last attempt returns or raises")


def _start(wanted: Wanted, machine: _Machine) -> DevBroker:
    data = wanted.data.absolute() if wanted.data is not None else Path(tempfile.mkdtemp(prefix="flowshare-kafka-"))
    started: list[_Node] = []
    try:
        data.mkdir(parents=True, exist_ok=True)
        plan = _plan(wanted, data)
        if settings.kraft(wanted.version):
            _format(machine, plan)
        for node in plan:
            node.run(machine)
            started.append(node)
        broker = DevBroker(
            version=wanted.version,
            addresses=tuple(node.address for node in plan if node.address),
            processes=tuple(node.process for node in started),
            data=data,
            keep=wanted.data is not None,
            children=tuple(node.child for node in started),
        )
        await_ready(
            broker, lambda: "\n".join(tail(node.log) for node in plan if not node.process.runs) or tail(plan[-1].log)
        )
    except BaseException as error:
        for node in started:
            node.process.end(0)
            node.child.poll()
        if wanted.data is None:
            shutil.rmtree(data, ignore_errors=True)
        if isinstance(error, OSError):
            raise DevFailure(f"{error.filename or data}: {error.strerror}; name a directory to write to") from error
        raise
    return broker


# --- what is started ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Machine:
    """How a JVM is started here."""

    java: Path
    jars: Path
    options: tuple[str, ...]
    tied: bool

    def command(self, main: str, *args: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [str(self.java), *self.options, quiet, "-cp", class_path(self.jars), main, *args]


@dataclass(slots=True)
class _Node:
    """One JVM: a Kafka node, or ZooKeeper (then without an address)."""

    name: str
    main: str
    data: Path
    address: str
    settings: Mapping[str, str]
    child: subprocess.Popen[bytes] = field(init=False)
    process: Process = field(init=False)

    @property
    def config(self) -> Path:
        return self.data / f"{self.name}.properties"

    @property
    def log(self) -> Path:
        return self.data / f"{self.name}.log"

    def run(self, machine: _Machine) -> None:
        """Start it in a session of its own, so that an interrupt at the terminal does not reach it."""
        self.config.write_text(settings.properties(self.settings))
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                machine.command(self.main, str(self.config)),
                cwd=self.data,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=tied_to_parent() if machine.tied else None,
            )
        self.process = process(self.child.pid) or Process(self.child.pid, "ended at once")


def _plan(wanted: Wanted, data: Path) -> list[_Node]:
    """The processes in the order of their start: nodes, and before them ZooKeeper where the version needs it."""
    first, *ports = free_ports(wanted.nodes + 1)
    ports[0] = wanted.port or ports[0]
    keeper = f"{HOST}:{first}"
    common = settings.common(wanted.version, wanted.settings)
    plan: list[_Node] = []
    kraft = settings.kraft(wanted.version)
    if not kraft:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        plan.append(_Node("zookeeper", main, data, "", settings.zookeeper(first, HOST, str(data / "zookeeper"))))
    for number, port in enumerate(ports, 1):
        name, address = f"node-{number}", f"{HOST}:{port}"
        place = str(data / name)
        own = (
            settings.kraft_node(number, address, address, (keeper, keeper), place)
            if kraft
            else settings.zookeeper_node(number, address, keeper, place)
        )
        plan.append(_Node(name, "kafka.Kafka", data, address, {**own, **common}))
    return plan


def _format(machine: _Machine, plan: list[_Node]) -> None:
    """Make the nodes' directories, those that are not there yet. Raises: DevFailure."""
    cluster = _cluster_id(plan)
    for node in plan:
        if Path(node.settings["log.dirs"], "meta.properties").exists():
            continue
        node.config.write_text(settings.properties(node.settings))
        command = machine.command(
            "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(node.config)
        )
        try:
            done = said(command, _FORMAT_LIMIT_S, node.data)
        except subprocess.TimeoutExpired as error:
            raise DevFailure(f"Kafka did not format {node.data} within {_FORMAT_LIMIT_S} s; try again") from error
        if done.returncode != 0:
            raise DevFailure(f"Kafka could not format {node.data}; it says:\n{done.stdout}{done.stderr}")


def _cluster_id(plan: list[_Node]) -> str:
    """That of a node that was formatted before, else a new one."""
    for node in plan:
        made = Path(node.settings["log.dirs"], "meta.properties")
        if made.exists():
            for line in made.read_text().splitlines():
                if line.startswith("cluster.id="):
                    return line.partition("=")[2].strip()
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
