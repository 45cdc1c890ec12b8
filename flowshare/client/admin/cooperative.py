"""`CooperativeAdmin`: manages cooperative groups, see `ShareAdmin.cooperative`.

To Kafka a cooperative group is a consumer group, and in a fleet its membership is Kafka's. Flowshare's servers report
the claims and commits of its members. Errors are those of `ShareAdmin`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.client.admin.admin import OffsetReset
from flowshare.client.errors import ServerError, check
from flowshare.cooperative.types import HASHES
from flowshare.protocol import messages
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import stable_metadata
from flowshare.protocol.messages.groups import COOPERATIVE
from flowshare.slots.consumer_protocol import decode_assignment

if TYPE_CHECKING:
    import uuid

    from flowshare.client.admin.admin import ResetTarget, ShareAdmin

EMPTY: Final = ("", "Dead", "Empty")
Ask = Callable[[Any], Awaitable[Any]]


class CooperativeMemberFacts(NamedTuple):
    """A member. assignment: the partitions, by topic, whose keys the member shall have."""

    member_id: str
    client_id: str
    client_host: str
    assignment: Mapping[str, Sequence[int]]


class CooperativeGroup(NamedTuple):
    """A group. state: of the membership, with Kafka's names: Empty, Stable, …"""

    group_id: str
    state: str
    members: tuple[CooperativeMemberFacts, ...] = ()


class CooperativeAdmin:
    """Manages cooperative groups. Kafka's brokers have no such groups: do not ask them."""

    def __init__(self, admin: ShareAdmin, *, ask: Ask, send: Ask, target: Callable[..., Awaitable[int]]) -> None:
        """ask, send: the admin's functions for requests that only read, and for those that change something. target:
        finds the target offset of a reset."""
        self._admin = admin
        self._ask = ask
        self._send = send
        self._target = target

    async def names(self) -> list[str]:
        """Return all cooperative groups, sorted by name."""
        answer = await self._ask(messages.ListGroupsRequest(types=(COOPERATIVE,)))
        check(answer.error, None, "listing cooperative groups")
        return sorted(group.group_id for group in answer.groups)

    async def describe(self, group_id: str) -> CooperativeGroup:
        """Return a group's state and members. Raises: ServerError."""
        answer = await self._ask(messages.DescribeGroupRequest(group_id=group_id))
        check(answer.error, answer.message, f"group {group_id}")
        members = tuple(
            CooperativeMemberFacts(one.member_id, one.client_id, one.client_host, _assigned(one.assignment))
            for one in answer.members
        )
        return CooperativeGroup(group_id, "Empty" if answer.state in EMPTY else answer.state, members)

    async def offsets(self, group_id: str) -> list[messages.PartitionOffsets]:
        """Return the state of each partition that the group has begun with. Raises: ServerError."""
        answer = await self._ask(messages.CooperativeOffsetsRequest(group_id=group_id))
        check(answer.error, answer.message, f"offsets of cooperative group {group_id}")
        for part in answer.partitions:
            check(
                part.error, part.message, f"offsets of cooperative group {group_id} for {part.topic}-{part.partition}"
            )
        return sorted(answer.partitions, key=lambda part: (part.topic, part.partition))

    async def reset(
        self, group_id: str, *, to: ResetTarget, topics: Sequence[str] | None = None, dry_run: bool = False
    ) -> list[OffsetReset]:
        """Move the start offsets of a group, in `topics` (None: in all that the group has); no member may hold anything
        there.

        An offset outside the log is moved to its nearer end. dry_run: change nothing.
        Raises: ServerError (NON_EMPTY_GROUP: the text says which members to stop).
        """
        moves: list[OffsetReset] = []
        ids: list[uuid.UUID] = []
        for part in await self.offsets(group_id):
            if topics is not None and part.topic not in topics:
                continue
            bounds = await self._admin.offsets(part.topic, part.partition)
            after = await self._target(part.topic, part.partition, to, bounds)
            moves.append(
                OffsetReset(part.topic, part.partition, part.stable, after, max(0, bounds.high_watermark - after))
            )
            ids.append(part.topic_id)
        if not dry_run:
            for move, topic_id in zip(moves, ids, strict=True):
                await self._reset(group_id, move, topic_id)
        return moves

    async def _reset(self, group_id: str, move: OffsetReset, topic_id: uuid.UUID) -> None:
        answer = await self._send(
            messages.CooperativeResetRequest(
                group_id=group_id, topic=move.topic, partition=move.partition, offset=move.after
            )
        )
        check(answer.error, answer.message, f"resetting group {group_id} in {move.topic}-{move.partition}")
        metadata = stable_metadata(answer.reset_epoch, topic_id)
        told = await self._ask(
            messages.OffsetFetchRequest(group_id=group_id, partitions=((move.topic, move.partition),))
        )
        if any((one.offset, one.metadata) != (move.after, metadata) for one in told.partitions):
            # In a fleet other tools show Kafka's offset, and the group has no member to commit it.
            await self._admin.commit_offsets(
                group_id, [messages.OffsetToCommit(move.topic, move.partition, move.after, -1, metadata)]
            )

    async def delete(self, group_id: str) -> None:
        """Remove a group without members, with its offsets. Raises: ServerError (NON_EMPTY_GROUP, …)."""
        await self._delete(group_id, None)

    async def delete_offsets(self, group_id: str, topics: Sequence[str]) -> None:
        """Delete the commits in these topics of a group without members. Raises: ServerError."""
        places = [(one.topic, one.partition) for one in await self.offsets(group_id) if one.topic in topics]
        missing = sorted(set(topics) - {topic for topic, _ in places})
        if missing:
            raise ServerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"it has nothing committed in {', '.join(missing)}",
                about=f"deleting offsets of cooperative group {group_id}",
            )
        answer = await self._send(messages.OffsetDeleteRequest(group_id=group_id, partitions=tuple(places)))
        about = f"deleting offsets of cooperative group {group_id}"
        check(answer.error, answer.message, about)
        for part in answer.partitions:
            check(part.error, None, f"{about} in {part.topic}-{part.partition}")
        by_topic: dict[str, tuple[int, ...]] = {}
        for topic, partition in places:
            by_topic[topic] = (*by_topic.get(topic, ()), partition)
        await self._delete(group_id, by_topic)

    async def _delete(self, group_id: str, topics: Mapping[str, tuple[int, ...]] | None) -> None:
        answer = await self._send(messages.CooperativeDeleteRequest(group_id=group_id, topics=topics))
        check(answer.error, answer.message, f"deleting cooperative group {group_id}")


def held_share(part: messages.PartitionOffsets) -> float:
    """Return the share of a partition's key hashes that members hold, 0 to 1."""
    return sum(one.end - one.first for one in part.claims) / HASHES


def longest_wait_ms(part: messages.PartitionOffsets) -> int | None:
    """Return the longest wait for keys of another member, in milliseconds; None: no member waits."""
    return max((one.waited_ms for one in part.waits), default=None)


def _assigned(data: bytes) -> dict[str, list[int]]:
    return {topic: sorted(numbers) for topic, numbers in decode_assignment(data).partitions.items()} if data else {}
