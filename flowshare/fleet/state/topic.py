"""The topic with a fleet's state: its name, its creation, and the check that this release can read it.

One name serves for the topic, the slot group and the start of the producers' names, so that one prefixed ACL of each
kind, `__flowshare_state.<fleet>`, covers all that a fleet needs for itself.

`StateTopic` makes the topic, or checks it, before anything is written to it. The topic is not compacted and nothing in
it expires by age or size: the slots' owners delete records that are needed no more (`slots.pruning`). With a setting
that would lose records a fleet does not start, and names the command that mends it. A missing topic is made with the
cluster's own replication factor; with three replicas or more, two of them have to have a record before it is confirmed.
Another worker may be making the topic, too: the check waits for it. Without the right to read a topic's settings they
are believed to be right, with a warning.

A fleet that had a state topic before is told from a new one by a transactional id, that of the writer of its first slot
(`sender`): its coordinator knows it for a week longer (`transactional.id.expiration.ms`). The ledgers of its lanes are
no sign: they are offsets in the state topic, and brokers delete those of a topic with it.

`check_formats` is called before a worker joins: a slot's leader writes in its own format, its claim first of all, so
the last record of each slot shows which releases lead. A worker that could not follow them would be chosen for slots
and never claim them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.admin.internal_topics import FLEET_STATE
from flowshare.client.errors import ClientError, ServerError, check
from flowshare.fleet.state.reading import found_in
from flowshare.log.base import OffsetOutOfRange, StorageDamaged
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreateTopicRequest,
    DescribeConfigsRequest,
    DescribeTransactionRequest,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    TopicMetadata,
)
from flowshare.protocol.messages.records import LATEST, FetchPartition
from flowshare.slots.errors import NewerFormat

if TYPE_CHECKING:
    import uuid

    from flowshare.client.net.routing import ClusterConnection

SETTLED_S: Final = 5.0
"""Time, in s, that another worker, or a broker that is behind, has to finish making the topic."""
PAUSE_S: Final = 0.1
TRACES_S: Final = 5.0
"""Time, in s, that a coordinator has to tell if there was such a topic before; a new cluster's needs a second."""
FIRST_SLOT: Final = 0
MESSAGE_BYTES_MIN: Final = 1_048_588
"""Kafka's own default of max.message.bytes; the largest batch that is written has half of it."""
REPLICAS_SAFE: Final = 3
MIN_INSYNC: Final = "min.insync.replicas"
WANTED: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}
MADE_WITH: Final[Mapping[str, str]] = {**WANTED, "segment.bytes": str(64 << 20)}
"""Settings of a new topic. Deleted records take up disk until their segment is full; Kafka's own segments have 1
GiB."""
ABSENT: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
FORBIDDEN: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})

logger = logging.getLogger(__name__)


class StateTopicRefused(ClientError):
    """Error: the fleet's state topic has wrong settings; the text has the command that mends it."""


class StateTopic:
    """The state topic of one fleet. Raises ClientError if the fleet's name is not allowed."""

    def __init__(self, kafka: ClusterConnection, fleet: str) -> None:
        self._kafka = kafka
        self._made = False
        self.name = state_topic(fleet)
        self.topic_id: uuid.UUID | None = None
        """Id of the topic that `ensure` found."""

    async def ensure(self, slots: int) -> int:
        """Make the topic with `slots` partitions, or check its settings; return its number of partitions.

        Raises: StateTopicRefused, ServerError (not allowed), ClientError, OSError.
        """
        clock = self._kafka.cluster.clock
        deadline_s = clock.monotonic() + SETTLED_S
        while not (await self._is_right(slots, last=clock.monotonic() + PAUSE_S >= deadline_s)):
            await clock.sleep(PAUSE_S)
        return slots

    async def _is_right(self, slots: int, *, last: bool) -> bool:
        """Make the topic if it is missing, and check it; True if its settings are right.

        False: they may be so in a moment; the `last` look raises StateTopicRefused instead.
        """
        found = await self._find()
        if found is None:
            if last:
                raise StateTopicRefused(f"the brokers do not tell of {self.name} after it was made; look at their logs")
            await self._make(slots)
            return False
        self.topic_id = found.topic_id
        if found.partitions != slots:
            raise StateTopicRefused(
                f"the state topic {self.name} has {found.partitions} partitions, and this worker was told of {slots} "
                f"slots: start all workers of the fleet with {found.partitions}. Or begin anew, without the state of "
                f"all its groups: {self._tool('topics')} --delete --topic {self.name}"
            )
        settings = await self._settings()
        if settings is None:
            if last:
                raise StateTopicRefused(f"the brokers do not tell the settings of {self.name}; look at their logs")
            return False
        faults = wrong_settings(settings, found.replicas)
        if set(faults) == {MIN_INSYNC} and not last:
            if self._made:
                await self._set(faults)
            return False  # else the topic's maker is about to set it
        if faults:
            raise StateTopicRefused(self._refusal(settings, faults))
        if found.replicas == 1:
            logger.warning(
                "the fleet's state has one replica only: if its broker is lost, all groups start anew topic=%s",
                self.name,
            )
        return True

    async def _find(self) -> TopicMetadata | None:
        """Return the topic. Raises ServerError."""
        answer = await self._kafka.send(MetadataRequest(topics=(self.name,)))
        (topic,) = answer.topics
        if topic.error in ABSENT:
            return None
        if topic.error not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            raise ServerError(topic.error, about=f"looking for the state topic {self.name}")
        return topic

    async def _make(self, slots: int) -> None:
        """Make the topic. Raises StateTopicRefused."""
        if self._made:
            return  # the broker that was asked has not heard of it yet
        had_one = await self._had_one()
        request = CreateTopicRequest(name=self.name, partitions=slots, configs=MADE_WITH)
        answer = await self._kafka.send(request)
        if answer.error is ErrorCode.NONE:
            self._made = True
            logger.info("made the state topic topic=%s slots=%d", self.name, slots)
            if had_one:
                logger.warning(
                    "the state topic of this fleet was deleted, and is made anew without the state of its groups: they "
                    "begin where their agents' `start` says, so records that were finished run again, and their "
                    "outputs are written again, those of exactly_once=True, too; where that is not wanted, stop all "
                    "workers now, and see docs/operations.md (the state topic is lost) for how to begin later "
                    "topic=%s",
                    self.name,
                )
        elif answer.error is not ErrorCode.TOPIC_ALREADY_EXISTS:
            error = ServerError(answer.error, answer.message, about=f"making the state topic {self.name}")
            if error.retriable:
                return
            configs = "".join(f" --config {name}={value}" for name, value in MADE_WITH.items())
            raise StateTopicRefused(
                f"{error}; make it with: {self._tool('topics')} --create --topic {self.name} --partitions {slots} "
                f"--replication-factor 3 --config {MIN_INSYNC}=2{configs}"
            )

    async def _had_one(self) -> bool:
        """True if the fleet had such a topic before; False, too, if that cannot be found out in a few seconds."""
        request = DescribeTransactionRequest(transactional_id=f"{self.name}.{FIRST_SLOT}")
        try:
            answer = await self._kafka.cluster.clock.wait_for(self._kafka.send(request), TRACES_S)
        except (OSError, ClientError) as error:
            logger.debug("whether %s was there before is not known: %s", self.name, error)
            return False
        return answer.error is ErrorCode.NONE

    async def _settings(self) -> Mapping[str, str] | None:
        """Return the topic's settings, an empty mapping if they may not be read; None: the broker does not know them
        yet."""
        answer = await self._kafka.send(DescribeConfigsRequest(resource_type="topic", resource=self.name))
        if answer.error in ABSENT:
            return None
        if answer.error in FORBIDDEN:
            logger.warning(
                "the settings of the state topic cannot be checked: the workers need DESCRIBE_CONFIGS on it topic=%s",
                self.name,
            )
            return {}
        if answer.error is not ErrorCode.NONE:
            raise ServerError(answer.error, answer.message, about=f"settings of the state topic {self.name}")
        return {entry.name: entry.value for entry in answer.entries}

    async def _set(self, settings: Mapping[str, str]) -> None:
        request = IncrementalAlterConfigsRequest(resource_type="topic", resource=self.name, configs=settings)
        answer = await self._kafka.send(request)
        if answer.error is not ErrorCode.NONE:
            error = ServerError(answer.error, answer.message, about=f"settings of the state topic {self.name}")
            raise StateTopicRefused(f"{error}; set them with: {self._mend(settings)}")

    def _refusal(self, settings: Mapping[str, str], faults: Mapping[str, str]) -> str:
        found = ", ".join(f"{name}={settings[name]}" for name in faults)
        return f"the state topic {self.name} has {found}, which can lose the fleet's state; set: {self._mend(faults)}"

    def _mend(self, settings: Mapping[str, str]) -> str:
        pairs = ",".join(f"{name}={value}" for name, value in settings.items())
        return f"{self._tool('configs')} --alter --entity-type topics --entity-name {self.name} --add-config {pairs}"

    def _tool(self, name: str) -> str:
        nodes = self._kafka.cluster.topology.nodes
        host, port = nodes[min(nodes)]
        return f"kafka-{name}.sh --bootstrap-server {host}:{port}"


def wrong_settings(settings: Mapping[str, str], replicas: int) -> dict[str, str]:
    """Return the settings that have to change, with their right values. Settings missing from `settings` count as
    right."""
    faults = {name: value for name, value in WANTED.items() if settings.get(name, value) != value}
    if int(settings.get("max.message.bytes", MESSAGE_BYTES_MIN)) < MESSAGE_BYTES_MIN:
        faults["max.message.bytes"] = str(MESSAGE_BYTES_MIN)
    if replicas >= REPLICAS_SAFE and int(settings.get(MIN_INSYNC, 2)) < 2:
        faults[MIN_INSYNC] = "2"
    return faults


PREFIX: Final = FLEET_STATE
LENGTH_MAX: Final = 200
"""The longest fleet name. A topic's name may have 249 characters; this leaves room for the prefix and a slot's
number."""
_ALLOWED: Final = re.compile(r"[a-zA-Z0-9._-]+")


def state_topic(fleet: str) -> str:
    """Return the name of the topic with the fleet's state. Raises ClientError if the fleet's name is not allowed."""
    if not _ALLOWED.fullmatch(fleet) or len(fleet) > LENGTH_MAX:
        raise ClientError(
            f"a fleet cannot be called {fleet!r}: use up to {LENGTH_MAX} letters, digits, dots, dashes and underscores"
        )
    return PREFIX + fleet


def slot_group(fleet: str) -> str:
    """Return the id of the consumer group in which the fleet's workers share its slots out. Raises: as
    `state_topic`."""
    return state_topic(fleet)


PART_BYTES: Final = 1
"""Bytes asked of each slot: brokers give at least one whole batch."""


async def check_formats(kafka: Any, topic: str, slots: int) -> None:
    """Check the formats of each slot's last record. kafka: a connection to the cluster.

    Raises: StateTopicRefused, OSError, ClientError
    """
    asked = (ListOffsetsRequest(topic=topic, partition=slot, timestamp_ms=LATEST) for slot in range(slots))
    ends = await asyncio.gather(*(kafka.send(one) for one in asked))
    for end in ends:
        try:
            check(end.error, end.message, f"looking for the ends of {topic}")
        except ServerError as error:
            if not error.retriable:  # else the partition has no leader yet, and its offset is -1 here
                raise
    lasts = [FetchPartition(topic, slot, end.offset - 1, PART_BYTES) for slot, end in enumerate(ends) if end.offset > 0]
    answers = await asyncio.gather(*(kafka.send(FetchRequest(partitions=(last,))) for last in lasts))
    for last, answer in zip(lasts, answers, strict=True):
        try:
            found_in(answer.partitions[0], last.offset)
        except StorageDamaged as error:
            if isinstance(error.__cause__, NewerFormat):
                where = f"{topic}-{last.partition}"
                raise StateTopicRefused(
                    f"the fleet's state in {where} was written by a newer flowshare: {error.__cause__}"
                ) from None
        except (OffsetOutOfRange, ServerError):
            continue  # as with damage: the slot's follower reports the fault
