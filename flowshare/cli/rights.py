"""What `flowshare check` says of the ACLs that a fleet of workers needs on Kafka's brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.agents.capabilities import asked_of

if TYPE_CHECKING:
    from flowshare.agents.app import App
    from flowshare.backend.url import BrokerUrl
    from flowshare.client.cluster import Cluster
    from flowshare.client.routing import ClusterConnection

ANONYMOUS: Final = "User:ANONYMOUS"
Said = tuple[str, str]
"""Level (`ok` or `error`) and text."""


async def of_fleet(app: App) -> list[Said]:
    """The ACLs of the app's fleet as commands, those that are missing as errors; none where the brokers lead.

    Raises: what opening a connection to the brokers ends with.
    """
    broker = app.broker_address
    if broker.kind != "kafka" or broker.share == "native":
        return []
    from flowshare.client.cluster import Cluster
    from flowshare.clock import LoopClock

    cluster = Cluster(broker.hosts, clock=LoopClock(), security=broker.security())
    try:
        await cluster.start()
        kafka = cluster.connect("flowshare-check")
        try:
            if broker.share == "auto" and not await _workers_lead(cluster, kafka, app):
                return []
            return await _rights(kafka, broker, app)
        finally:
            await kafka.close()
    finally:
        await cluster.close()


async def _workers_lead(cluster: Cluster, kafka: ClusterConnection, app: App) -> bool:
    """As `backend.auto` decides."""
    from flowshare.backend.fleet_options import fleet_of
    from flowshare.backend.native import missing_apis
    from flowshare.fleet.names import state_topic
    from flowshare.fleet.rights import absent

    if missing_apis(cluster) or any(asked_of(app.share_agents.values()).groups.values()):
        return True
    return not await absent(kafka, [state_topic(fleet_of(app.broker_address))])


async def _rights(kafka: ClusterConnection, broker: BrokerUrl, app: App) -> list[Said]:
    from flowshare.agents.candidate import leader_group
    from flowshare.backend.fleet_options import fleet_of
    from flowshare.fleet.rights import READ, Right, absent, missing, needed
    from flowshare.server.edge.base import ResourceType

    agents = app.share_agents.values()
    reads = {name for agent in agents for name in agent.topics}
    writes = {name for agent in agents for name in (*agent.sinks, agent.dead_letter_topic) if name is not None}
    makes = await absent(kafka, sorted(reads | writes)) if app.conf.topic_allow_declare else []
    rights = needed(fleet_of(broker), reads=reads, writes=writes, makes=makes)
    if app.leader.wanted:
        rights.append(
            Right(ResourceType.GROUP, leader_group(app.app_id), (READ,), "one process runs what is on_leader")
        )
    lacks = [await missing(kafka, right) for right in rights]
    principal = _principal(broker)
    if not any(lacks) and principal == ANONYMOUS:
        return [("ok", f"the brokers allow the fleet all that it needs: {len(rights)} ACLs, if they ask for any")]
    found: list[Said] = []
    for right, lack in zip(rights, lacks, strict=True):
        command = right.command(broker.hosts[0], principal)
        if lack:
            names = ", ".join(operation.name for operation in lack)
            found.append(("error", f"the brokers do not allow the fleet {right}; {names} is missing: {command}"))
        else:
            found.append(("ok", f"the fleet needs {right}: {command}"))
    return found


def _principal(broker: BrokerUrl) -> str:
    if broker.username:
        return f"User:{broker.username}"
    return "User:<subject of the certificate>" if "certificate_file" in broker.options else ANONYMOUS
