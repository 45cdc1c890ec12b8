"""The place of each share group of a Kafka cluster: with its brokers, or with the workers of a fleet.

A group that is begun in the wrong place runs everything again. So before a group is used in one place, these are
checked: the mark of its last move (`read_marks`), the brokers' groups, and the fleets' state topics. Invariant: a group
is begun anew only if no group of its name is anywhere else.

    mark of a move      on the brokers   in the fleet   asked: native           asked: workers
    here                any              any            goes on                 goes on
    elsewhere           any              any            refused: moved          refused: moved
    none                yes              yes            refused: in two places  refused: in two places
    none                yes              no             goes on                 refused: move it
    none                no               yes            refused: move it        goes on
    none                no               no             begins anew; refused    begins anew, told where another fleet
                                                        where another fleet     has one; refused where a consumer group
                                                        has it                  of this name has committed offsets

"In the fleet" is the fleet that the URL names. Two fleets may have groups of one name, so a group of another fleet is
only logged, unless the group was moved there. A place that may not be read (no right) counts as empty.

A move's mark says where a group was moved to last; its old and its new place can read the mark. Marks lie in one small
compacted topic of the cluster, `__flowshare_moves`: key the group, value the mark. The first `flowshare groups move`
makes the topic; a cluster on which nothing was moved has none.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

import orjson

from flowshare.backend.base import BackendError
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.admin.internal_topics import MOVES
from flowshare.client.errors import ServerError
from flowshare.client.producer.message import Message
from flowshare.fleet.inspection import fleets_of, known_groups, slots_of
from flowshare.fleet.state.topic import state_topic
from flowshare.log.base import LogError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ListGroupsRequest

if TYPE_CHECKING:
    from flowshare.client.net.cluster import Cluster
    from flowshare.client.net.routing import ClusterConnection
    from flowshare.client.producer.producer import Producer
    from flowshare.clock import Clock

Where = Literal["native", "workers"]
CONSUMER_KINDS: Final = frozenset({"classic", "consumer"})
FORBIDDEN: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLocation:
    """The places where one group was found.

    mark: of its last move. brokers: True: the brokers have a share group of the name. fleet: True: the URL's fleet has
    one. others: other fleets that have one. consumer: True: a consumer group of the name has committed offsets.
    """

    group: str
    mark: MoveMark | None = None
    brokers: bool = False
    fleet: bool = False
    others: tuple[str, ...] = ()
    consumer: bool = False

    def is_in(self, fleet: str) -> Where | None:
        """Return the group's place, for this fleet's workers; None: nowhere. Raises: BackendError (in two places)."""
        if self.mark is not None:
            return "workers" if self.mark.place == "workers" else "native"
        if self.brokers and self.fleet:
            raise BackendError(
                f"group {self.group} is on the brokers and with the workers of fleet {fleet}, and nothing says which "
                f"one is right: delete it in one place (flowshare groups delete {self.group}, with share=native or "
                f"share=workers&fleet={fleet} in the broker's URL)"
            )
        return "native" if self.brokers else "workers" if self.fleet else None

    def refusal(self, asked: Where, fleet: str) -> str | None:
        """Say why the group cannot be used there, and what to do; None: it can. Raises: BackendError (in two
        places)."""
        group = self.group
        back = f"flowshare groups move {group} --to {asked}"
        if self.mark is not None:
            return self._moved(asked, fleet, back)
        where = self.is_in(fleet)
        if where not in (None, asked):
            there = "the brokers" if where == "native" else f"the workers of fleet {fleet}"
            return (
                f"group {group} lives with {there}; begun anew here it would run everything again: start with "
                f'share="{where}", or move it while no worker runs: {back}'
            )
        if where is None and asked == "native" and self.others:
            return (
                f"group {group} lives with the workers of fleet {self.others[0]}; begun anew on the brokers it would "
                f'run everything again: use share="workers" with fleet={self.others[0]}, move it '
                f"({back} --fleet {self.others[0]}), or give this one another name"
            )
        if where is None and asked == "workers" and self.consumer:
            return (
                f"{group!r} is a consumer group on the brokers that has committed offsets; begun anew the share group "
                "would run everything again: give it another name (group=…), and let it begin where that one is: "
                f"flowshare groups seed NAME --from-consumer-group {group}"
            )
        return None

    def _moved(self, asked: Where, fleet: str, back: str) -> str | None:
        mark = self.mark
        assert mark is not None
        if mark.place == asked and (asked == "native" or mark.fleet == fleet):
            return None
        if mark.place == "native":
            return (
                f'group {self.group} was moved to the brokers at {mark.when}: start with share="native", or move it '
                f"back: {back}"
            )
        back += f" --fleet {mark.fleet}" if asked == "native" else ""
        other = f"move it to the brokers first: flowshare groups move {self.group} --to native --fleet {mark.fleet}"
        return (
            f"group {self.group} was moved to the workers of fleet {mark.fleet} at {mark.when}: start with "
            f'share="workers" and fleet={mark.fleet}, or {other if asked == "workers" else f"move it back: {back}"}'
        )


@dataclass(slots=True)
class GroupLocations:
    """Finder of the places of groups on one cluster. fleet: of the URL. native: True: the brokers have share groups."""

    cluster: Cluster
    fleet: str
    native: bool
    clock: Clock
    _kinds: Mapping[str, str] = field(default_factory=dict)

    async def check(self, groups: Collection[str], asked: Where) -> None:
        """Check that these groups can be used there. Raises: BackendError, ClientError, OSError."""
        for location in (await self.look(groups, asked)).values():
            refusal = location.refusal(asked, self.fleet)
            if refusal is not None:
                raise BackendError(refusal)
            if asked == "workers" and location.others and location.is_in(self.fleet) is None:
                logger.warning(
                    "group=%s is begun in fleet %s; fleet %s has a group of this name, too. Was the fleet renamed? "
                    "Then name it fleet=%s",
                    location.group,
                    self.fleet,
                    location.others[0],
                    location.others[0],
                )

    async def left_for_brokers(self) -> bool:
        """Tell if groups were moved from the fleet to the brokers, and the fleet has none any more.

        Raises: ClientError, OSError.
        """
        kafka, admin = self._opened()
        try:
            marks = (await read_marks(admin)).values()
            if not any(mark.place == "native" and mark.fleet == self.fleet for mark in marks):
                return False
            return not await self._known(kafka, self.fleet, None)
        finally:
            await admin.close()
            await kafka.close()

    async def look(self, groups: Collection[str], asked: Where | None = None) -> Mapping[str, GroupLocation]:
        """Find the places of each group. asked: the place to be used; facts that cannot matter for it are not looked
        up.

        Raises: ClientError, OSError.
        """
        if not groups:
            return {}
        kafka, admin = self._opened()
        try:
            marks = await read_marks(admin)
            await self._list(kafka)
            unmarked = [group for group in groups if group not in marks]
            shares = {group for group in unmarked if self._kinds.get(group) == "share"}
            consumers = set() if asked == "native" else await self._committed(admin, unmarked)
            found = await self._in_fleets(kafka, unmarked, shares, asked)
            return {
                group: GroupLocation(
                    group=group,
                    mark=marks.get(group),
                    brokers=group in shares,
                    fleet=group in found.get(self.fleet, ()),
                    others=tuple(name for name, known in found.items() if name != self.fleet and group in known),
                    consumer=group in consumers,
                )
                for group in groups
            }
        finally:
            await admin.close()
            await kafka.close()

    def _opened(self) -> tuple[ClusterConnection, ShareAdmin]:
        async def connect() -> ClusterConnection:
            return self.cluster.connect("flowshare-locations")

        return self.cluster.connect("flowshare-locations"), ShareAdmin(connect, clock=self.clock, client_id="locations")

    async def _list(self, kafka: ClusterConnection) -> None:
        answer = await kafka.send(ListGroupsRequest())
        kinds = {}
        for group in answer.groups:
            kind = group.type.lower() or "classic"
            kinds[group.group_id] = kind if kind != "share" or self.native else "classic"
        self._kinds = kinds

    async def _committed(self, admin: ShareAdmin, groups: Collection[str]) -> set[str]:
        found = set()
        for group in groups:
            if self._kinds.get(group) in CONSUMER_KINDS:
                try:
                    offsets = await admin.committed_offsets(group)
                except ServerError as error:
                    if error.code not in FORBIDDEN:
                        raise
                    continue
                if any(part.offset >= 0 for part in offsets):
                    found.add(group)
        return found

    async def _in_fleets(
        self, kafka: ClusterConnection, groups: Collection[str], shares: set[str], asked: Where | None
    ) -> dict[str, frozenset[str]]:
        """Return which fleet has which of the groups; other fleets are asked only for groups found nowhere yet."""
        if not await has_state(kafka, self.fleet):
            own: frozenset[str] = frozenset()
        elif asked == "workers":  # groups found nowhere else are the fleet's, old or new
            own = await self._known(kafka, self.fleet, [group for group in groups if group in self._kinds])
            groups = ()
        else:
            own = await self._known(kafka, self.fleet, groups)
        found = {self.fleet: own}
        new = set(groups) - shares - own
        if not new or asked is None:
            return found
        for name in await fleets_of(kafka):
            if name != self.fleet:
                found[name] = await self._known(kafka, name, new)
        return found

    async def _known(self, kafka: ClusterConnection, fleet: str, groups: Collection[str] | None) -> frozenset[str]:
        """Return the groups that a fleet has. Raises: BackendError (the own fleet's state cannot be read now),
        ClientError, OSError."""
        try:
            return await known_groups(kafka, fleet, groups, clock=self.clock)
        except (ServerError, LogError) as error:
            if not _forbidden(error) and fleet == self.fleet:
                raise BackendError(
                    f"it cannot be seen which groups the fleet {fleet} has ({error}): see that the brokers of "
                    f"{state_topic(fleet)} are well, then start again"
                ) from error
            logger.info("the state of fleet %s cannot be read, it counts as empty: %s", fleet, error)
            return frozenset()


def _forbidden(error: BaseException) -> bool:
    """Tell if the error says that this login may not read."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ServerError):
        cause = cause.__cause__
    return cause is not None and cause.code in FORBIDDEN


async def has_state(kafka: ClusterConnection, fleet: str) -> bool:
    """Tell if the fleet has a state topic. Raises: ClientError, OSError."""
    try:
        return bool(await slots_of(kafka, fleet))
    except ServerError as error:
        if error.code not in FORBIDDEN:
            raise
        return False


TOPIC: Final = MOVES
CONFIGS: Final = {"cleanup.policy": "compact", "max.compaction.lag.ms": "604800000"}
MARKS_MAX: Final = 1_000_000
NOT_THERE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""Errors that mean: no marks, or none that this login may read."""


@dataclass(frozen=True, slots=True)
class MoveMark:
    """Mark of a group's last move. fleet: its new fleet, or with `native` the fleet it left. at_ms: time, since
    1970."""

    place: Literal["native", "workers"]
    fleet: str
    at_ms: int

    @property
    def when(self) -> str:
        """The moment in UTC, for people."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


async def read_marks(admin: ShareAdmin) -> Mapping[str, MoveMark]:
    """Read the last mark of each group. Raises: ClientError, OSError."""
    try:
        await admin.describe_topic(TOPIC)
        records = await admin.read(TOPIC, 0, limit=MARKS_MAX)
    except ServerError as error:
        if error.code in NOT_THERE:
            return {}
        raise
    found: dict[str, MoveMark] = {}
    for record in records:
        group = (record.key or b"").decode(errors="replace")
        found.pop(group, None)
        mark = None if record.value is None else _decode(record.value)
        if mark is not None:
            found[group] = mark
    return found


async def mark_move(admin: ShareAdmin, producer: Producer, group: str, mark: MoveMark | None) -> None:
    """Write a group's place; None: the group is nowhere, and its mark is deleted. Raises: ClientError, OSError."""
    try:
        await admin.describe_topic(TOPIC)
    except ServerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        await admin.create_topic(TOPIC, configs=CONFIGS, exist_ok=True)
    value = None if mark is None else orjson.dumps({"to": mark.place, "fleet": mark.fleet, "at_ms": mark.at_ms})
    await producer.send_many(TOPIC, [Message(value, key=group.encode(), partition=0)])


def _decode(value: bytes) -> MoveMark | None:
    """Decode a mark; None: of a later release, or not flowshare's."""
    try:
        read = orjson.loads(value)
        place = read["to"]
        return MoveMark(place, str(read["fleet"]), int(read["at_ms"])) if place in ("native", "workers") else None
    except (ValueError, TypeError, KeyError):
        return None
