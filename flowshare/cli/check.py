"""`flowshare check module:app`: what would go wrong if the app was started, without starting it.

Of the ACLs that a fleet of workers needs on Kafka's brokers it says which there are (`fleet_acls`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from contextlib import asynccontextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from flowshare.agents.feed.backend_limits import asked_of
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.texts import clip
from flowshare.backend.url import BadBrokerUrl
from flowshare.cli.options import debug_option, json_option
from flowshare.cli.output import emit_json, explain
from flowshare.client.errors import ClientError
from flowshare.ops.session import CommandSession, brokers_of, embedded_path, open_session, run
from flowshare.share.config import ISOLATION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flowshare.agents.app.app import App
    from flowshare.backend.url import BrokerUrl
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.net.routing import ClusterConnection

_DISK_LOW: Final = 1 << 30
GROUPS_MAX: Final = 100
"""Groups of others that are looked at."""


class Finding(NamedTuple):
    """One line of the answer. level: `ok`, `warning` or `error`."""

    level: str
    text: str


@click.command("check")
@click.argument("app_path", metavar="MODULE:APP")
@json_option
@debug_option
def check(app_path: str, as_json: bool) -> int:
    """Say what would go wrong if the app was started. Exit code 1 when something would."""
    from flowshare.agents.app.loading import AppNotFound, load_app
    from flowshare.printable import printable

    try:
        findings = examine(load_app(app_path))
    except AppNotFound as error:
        findings = [Finding("error", str(error))]
    failed = any(finding.level == "error" for finding in findings)
    if as_json:
        emit_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            colour = {"ok": "green", "warning": "yellow", "error": "red"}[finding.level]
            click.echo(f"{click.style(finding.level.ljust(7), fg=colour)} {printable(finding.text, lines=True)}")
    return 1 if failed else 0


def examine(app: App) -> list[Finding]:
    """Everything that can be known of an app without starting it."""
    from flowshare.agents.app import summary

    agents, queues = list(app.share_agents.values()), list(app.kmq_agents.values())
    sharing = map(summary.cooperative_line, app.cooperative_agents.values())
    findings = [Finding("ok", text) for text in (*map(summary.line, agents), *map(summary.kmq_line, queues), *sharing)]
    findings += _streams(app) + _pipelines(app)
    if not findings:
        text = "the app has neither an agent nor a pipeline; decorate a function with @app.share_agent('topic')"
        findings.append(Finding("error", text))
    findings += [Finding("warning", text) for text in (*summary.surprises(agents), *summary.kmq_surprises(queues))]
    findings += [Finding("warning", text) for text in summary.uncommitted(app)]
    findings += _middleware(app)
    return findings + _fleet_rights(app) + _broker(app)


def _streams(app: App) -> list[Finding]:
    declared = app.streams.declared
    if not declared:
        return []
    try:
        app.streams.check(app.broker_address.kind)
    except UsageError as error:
        return [Finding("error", str(error))]
    return [Finding("ok", f"Faust's own, in consumer group {app.conf.id}: {', '.join(declared)}")]


def _pipelines(app: App) -> list[Finding]:
    """Pipelines, each with its settings or with the error that would keep it from starting."""
    if not app.pipelines:
        return []
    try:
        from flowshare.spark.pipeline.rehearsal import line, rehearse_options
    except ImportError as error:
        return [
            Finding("error", f"pipelines run on Spark, and {error.name} is missing: pip install 'flowshare[spark]'")
        ]
    findings = []
    for pipeline in app.pipelines.values():
        try:
            rehearse_options(pipeline, app.broker_address.revealed())
            findings.append(Finding("ok", line(pipeline)))
        except Exception as error:  # noqa: BLE001 - what would refuse the start is what we are here to say
            findings.append(Finding("error", explain(error)))
    return findings


def _middleware(app: App) -> list[Finding]:
    findings = []
    for agent in (*app.share_agents.values(), *app.kmq_agents.values(), *app.cooperative_agents.values()):
        try:
            _ = agent.middleware
        except Exception as error:  # noqa: BLE001 - what would refuse the start is what we are here to say
            findings.append(Finding("error", explain(error)))
    return findings


def _fleet_rights(app: App) -> list[Finding]:
    """List the rights that brokers must grant a fleet of workers; `_broker` reports errors that prevent asking."""
    try:
        return asyncio.run(fleet_acls(app))
    except (OSError, ClientError, BadBrokerUrl):
        return []


def _broker(app: App) -> list[Finding]:
    from flowshare.backend.path_workers import running_workers
    from flowshare.log.owner import exists

    url = app.broker_address.revealed()
    try:
        path = embedded_path(url)
        if path is not None and not exists(path):
            return [*_new_path(path), *run("memory://", lambda session: _log(session, app))]
        findings: list[Finding] = []
        if path is not None:
            findings += _disk(path)
            findings += _leader(path)
            findings += [
                Finding("ok", f"process {entry.pid} works on it already, health at http://{entry.address}")
                for entry in running_workers(path)
            ]
        asked = asked_of(app.share_agents.values())
        cooperative = [agent.group for agent in app.cooperative_agents.values()]
        return findings + run(url, lambda session: _log(session, app), asked=asked, cooperative=cooperative)
    except Exception as error:  # noqa: BLE001 - what would refuse the start is what we are here to say
        return [Finding("error", explain(error))]


def _leader(path: Path) -> list[Finding]:
    """Which process leads the path now, if one does, with its program where this user may see it."""
    from flowshare.log.owner import holder

    owner = holder(path)
    if owner is None:
        return [Finding("ok", f"nobody leads {path} now: the first worker will")]
    try:
        words = Path(f"/proc/{owner.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    text = _program(words)
    return [Finding("ok", f"{path} is led by {owner}{f': {clip(text, 200)}' if text else ''}")]


def _program(words: list[str]) -> str:
    """The program of a command line, and its script or module: what comes behind them may be a password."""
    first = [
        word.split(maxsplit=1)[0] if word.strip() else "" for word in words[:3]
    ]  # some write their title as one word
    plain = list(takewhile(lambda word: not any(sign in word for sign in ("=", "://", "@")), first))
    if len(plain) > 2 and plain[1] == "-m":
        return " ".join(plain[:3])
    return " ".join(word for word in plain[:2] if not word.startswith("-")).strip()


def _new_path(path: Path) -> list[Finding]:
    parent = path
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        return [Finding("error", f"{parent} is a file, so that {path} cannot be made; change the broker URL")]
    try:
        Path(tempfile.mkdtemp(prefix=".flowshare-check-", dir=parent)).rmdir()  # as a worker finds out: by trying
    except OSError as error:
        return [Finding("error", f"{path} cannot be made in {parent}: {error.strerror}; change the broker URL")]
    return [Finding("ok", f"a new log will be made at {path}"), *_disk(parent)]


def _disk(path: Path) -> list[Finding]:
    if not os.access(path, os.W_OK):
        return [Finding("error", f"no right to write in {path}")]
    free = shutil.disk_usage(path).free
    if free < _DISK_LOW:
        return [Finding("warning", f"only {free / (1 << 20):,.0f} MiB are free on the disk of {path}")]
    return []


async def _log(session: CommandSession, app: App) -> list[Finding]:
    topics = {topic.name for topic in await session.admin.list_topics()}
    findings: list[Finding] = []
    groups: set[str] = set()
    if session.led:
        groups = {group.group_id for group in await session.admin.list_groups()}
    else:
        findings.append(Finding("ok", "no worker of the fleet runs: where its groups stand is not known now"))
    for agent in app.share_agents.values():
        refused = await _rehearsal(session, agent)
        findings += refused
        missing = [] if refused else [name for name in agent.topics if name not in topics]
        findings += [Finding("ok", f"{agent.name}: topic {name} is not there yet and will be made") for name in missing]
        if agent.group in groups:
            findings += [await _position(session, agent)]
    for sharing in app.cooperative_agents.values():
        findings += await _cooperative(session, sharing, topics)
    for queue in app.kmq_agents.values():
        findings += await _queue_rehearsal(session, queue)
    findings += await _groups_of_pipelines(session, app, topics)
    return [*findings, *await _left_behind(session, app, groups), *await _uncommitted(session, app, groups)]


async def _groups_of_pipelines(session: CommandSession, app: App, topics: set[str]) -> list[Finding]:
    """Topics that pipelines wait for, and groups that they cannot be members of; a query makes no topic."""
    if not app.pipelines:
        return []
    try:
        from flowshare.spark.pipeline.rehearsal import rehearse_group
    except ImportError:  # told by `_pipelines`
        return []
    findings = []
    for pipeline in app.pipelines.values():
        for name in pipeline.topics:
            if name not in topics:
                text = (
                    f"pipeline {pipeline.name}: topic {name} is not there; the pipeline fails and is tried again until "
                    f"it is: flowshare topics create {name} --app MODULE:APP"
                )
                findings.append(Finding("warning", text))
        if session.led:
            try:
                await rehearse_group(pipeline, session.admin)
            except (UsageError, ClientError) as error:
                findings.append(Finding("error", f"pipeline {pipeline.name}: {error}"))
    return findings


async def _cooperative(session: CommandSession, agent: Any, topics: set[str]) -> list[Finding]:
    """List the problems that would stop a cooperative agent at its start, the topics to be made, and where its group
    is."""
    from flowshare.agents.cooperative.feeder import rehearse

    try:
        async with _knowing_groups(session) as groups:
            await rehearse(agent, session.admin, session.backend.capabilities, groups)
        findings = [
            Finding("ok", f"{agent.name}: topic {name} is not there yet and will be made")
            for name in agent.topics
            if name not in topics
        ]
        if not session.led:
            return findings
        parts = await session.admin.cooperative.offsets(agent.group)
    except (UsageError, ClientError) as error:
        return [Finding("error", str(error))]
    if parts:
        backlog = sum(max(0, part.unfinished) for part in parts)
        text = f"{agent.name}: cooperative group {agent.group} goes on where it was, with a backlog of {backlog}"
        findings.append(Finding("ok", text))
    return findings


async def _queue_rehearsal(session: CommandSession, agent: Any) -> list[Finding]:
    """List the problems that would stop an agent of a KMQ queue at its start: its topics, its group."""
    from flowshare.agents.kmq.setup import rehearse

    try:
        async with _knowing_groups(session) as groups:
            await rehearse(agent, session.admin, groups)
    except (UsageError, ClientError) as error:
        return [Finding("error", str(error))]
    return []


async def _rehearsal(session: CommandSession, agent: Any) -> list[Finding]:
    """List the problems that would stop an agent at its start: limits of the brokers, names and settings of topics,
    settings of the group."""
    from flowshare.agents.feed.setup import rehearse

    try:
        async with _knowing_groups(session) as groups:
            await rehearse(agent, session.admin, session.backend.capabilities, groups)
    except (UsageError, ClientError) as error:
        return [Finding("error", str(error))]
    return []


@asynccontextmanager
async def _knowing_groups(session: CommandSession) -> AsyncIterator[ShareAdmin]:
    """Who is asked about groups: where nobody leads the fleet's now, a server of its own, which has none yet."""
    if session.led:
        yield session.admin
        return
    async with open_session("memory://") as alone:
        yield alone.admin


async def _position(session: CommandSession, agent: Any) -> Finding:
    parts = await session.admin.group_offsets(agent.group)
    backlog = sum(max(0, part.lag) for part in parts)
    return Finding("ok", f"{agent.name}: group {agent.group} goes on where it was, with a backlog of {backlog}")


async def _uncommitted(session: CommandSession, app: App, groups: set[str]) -> list[Finding]:
    """Share groups of others that read all records of what this app writes exactly once, in transactions of Kafka's."""
    from flowshare.agents.app import summary

    writers = {} if session.backend.kafka is None else summary.once_outputs(app)
    own = {agent.group for agent in app.share_agents.values()} | {one.group for one in app.pipelines.values()}
    findings = []
    for group in sorted(groups - own)[: GROUPS_MAX if writers else 0]:
        try:
            read = {part.topic for part in await session.admin.group_offsets(group)} & writers.keys()
            configs = {entry.name: entry.value for entry in await session.admin.group_configs(group)} if read else {}
        except ClientError:  # no right to see it
            continue
        findings += [
            Finding(
                "warning",
                f"group {group} reads {topic} with {ISOLATION}={configs[ISOLATION]}, and {writers[topic]} writes it "
                "exactly once: of what a crash made it write again both are read; `flowshare groups config "
                f"{group} {ISOLATION}=read_committed`",
            )
            for topic in sorted(read)
            if configs.get(ISOLATION) == "read_uncommitted"
        ]
    return findings


async def _left_behind(session: CommandSession, app: App, groups: set[str]) -> list[Finding]:
    """Groups of this app that no agent uses any more: a renamed function leaves its backlog behind."""
    used = {agent.group for agent in app.share_agents.values()} | {one.group for one in app.pipelines.values()}
    findings = []
    for group in sorted(groups - used):
        if not group.startswith(f"{app.conf.id}."):
            continue
        backlog = sum(max(0, part.lag) for part in await session.admin.group_offsets(group))
        if backlog:
            text = (
                f"group {group} has a backlog of {backlog} and no agent; set group={group!r} on the agent that had it"
            )
            findings.append(Finding("warning", text))
    return findings


ANONYMOUS: Final = "User:ANONYMOUS"


async def fleet_acls(app: App) -> list[Finding]:
    """The ACLs of the app's fleet as commands, those that are missing as errors; none where the brokers lead.

    Raises: what opening a connection to the brokers ends with.
    """
    broker = app.broker_address
    if broker.kind != "kafka" or broker.share == "native":
        return []
    async with brokers_of(broker) as kafka:
        if broker.share == "auto" and not await _workers_lead(kafka, app):
            return []
        return await _rights(kafka, broker, app)


async def _workers_lead(kafka: ClusterConnection, app: App) -> bool:
    """As `backend.auto` decides."""
    from flowshare.backend.fleet_options import fleet_of
    from flowshare.backend.native import missing_apis
    from flowshare.fleet.rights import absent
    from flowshare.fleet.state.topic import state_topic

    lacks = app.cooperative_agents or any(asked_of(app.share_agents.values()).values())
    if missing_apis(kafka.cluster) or (lacks and not kafka.cluster.is_flowshare):
        return True
    return not await absent(kafka, [state_topic(fleet_of(app.broker_address))])


async def _rights(kafka: ClusterConnection, broker: BrokerUrl, app: App) -> list[Finding]:
    from flowshare.agents.host.candidate import leader_group
    from flowshare.backend.fleet_options import fleet_of
    from flowshare.fleet.rights import READ, Permission, absent, missing, needed
    from flowshare.protocol.rights import ResourceType

    agents = (*app.share_agents.values(), *app.cooperative_agents.values())
    reads = {name for agent in agents for name in agent.topics}
    writes = {name for agent in agents for name in (*agent.sinks, agent.dead_letter_topic) if name is not None}
    makes = await absent(kafka, sorted(reads | writes)) if app.conf.topic_allow_declare else []
    settles = any(agent.options.exactly_once for agent in (*agents, *app.cooperative_agents.values()))
    rights = needed(fleet_of(broker), reads=reads, writes=writes, makes=makes, settles=settles)
    rights += [
        Permission(ResourceType.GROUP, agent.group, (READ,), "its members share partitions in a group of the brokers'")
        for agent in app.cooperative_agents.values()
    ]
    if app.lease_guard.wanted:
        rights.append(
            Permission(ResourceType.GROUP, leader_group(app.app_id), (READ,), "one process runs what is on_leader")
        )
    lacks = [await missing(kafka, right) for right in rights]
    principal = _principal(broker)
    if not any(lacks) and principal == ANONYMOUS:
        return [
            Finding("ok", f"the brokers allow the fleet all that it needs: {len(rights)} ACLs, if they ask for any")
        ]
    found: list[Finding] = []
    for right, lack in zip(rights, lacks, strict=True):
        command = right.command(broker.hosts[0], principal)
        if lack:
            names = ", ".join(operation.name for operation in lack)
            found.append(Finding("error", f"the brokers do not allow the fleet {right}; {names} is missing: {command}"))
        else:
            found.append(Finding("ok", f"the fleet needs {right}: {command}"))
    return found


def _principal(broker: BrokerUrl) -> str:
    if broker.username:
        return f"User:{broker.username}"
    return "User:<subject of the certificate>" if "certificate_file" in broker.options else ANONYMOUS
