"""`plan_move` and `carry` move a share group from one backend to another: from Kafka's brokers to workers, or back.

Moved are the start offset of each share-partition, the finished ranges behind it where the target accepts them (workers
do, brokers do not), and the group's settings as far as the target knows them. Not moved are attempts, which are counted
anew, and delays of released records, which end.

The order, so that the group is never nowhere: write settings and positions at the target, check them there, write the
mark of the move, delete the source's group. After an interruption before the mark the group is in both places and
starts in neither; delete it in one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import ClientError, ServerError, Unsupported
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.protocol.messages import SharePartitionOffsets

Ranges = tuple[tuple[int, int], ...]
NOT_TOLD: Final = frozenset({ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED})


class Move(NamedTuple):
    """The move of one share-partition. finished: ranges behind `start` that are moved. again: finished records that are
    not."""

    topic: str
    partition: int
    start: int
    finished: Ranges
    again: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    """The plan of a move: all that would be carried to the target.

    unresolved: share-partitions whose start offset is not known yet; they begin anew. settings: settings that the
    target accepts; left: names of those that it does not accept. delayed: records whose delay ends. reason: why
    finished records are not carried.
    """

    group_id: str
    moves: Sequence[Move]
    unresolved: Sequence[tuple[str, int]] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    left: Sequence[str] = ()
    delayed: int = 0
    reason: str = ""

    @property
    def again(self) -> int:
        """The number of finished records that will run again."""
        return sum(move.again for move in self.moves)


async def plan_move(source: ShareAdmin, target: ShareAdmin | None, group_id: str, *, ranges: bool) -> MovePlan:
    """Plan the move of a group. target: None while the target does not exist. ranges: the target takes finished ranges.

    Raises: ClientError (the group is not empty, or is at the target already; ServerError: not there, not allowed),
    OSError.
    """
    await _check_empty(source, group_id)
    if target is not None:
        await _check_free(target, group_id)
    found = await source.group_offsets(group_id)
    moves: list[Move] = []
    reason = "" if ranges else "brokers take start offsets only"
    for part in found:
        if part.start_offset < 0:
            continue
        moves.append(await _move(source, group_id, part, ranges=ranges and not reason))
        if ranges and not reason and moves[-1].again:
            reason = "the brokers tell what is finished only to whoever may CLUSTER_ACTION on the cluster"
    settings, left = await _settings(source, target, group_id)
    return MovePlan(
        group_id=group_id,
        moves=moves,
        unresolved=[(part.topic, part.partition) for part in found if part.start_offset < 0],
        settings=settings,
        left=left,
        delayed=sum(max(0, part.delayed) for part in found),
        reason=reason,
    )


async def carry(
    source: ShareAdmin, target: ShareAdmin, plan: MovePlan, *, keep: bool, mark: Callable[[], Awaitable[object]]
) -> None:
    """Carry out a move as planned. keep: leave the group at the source, too. mark: records the group's new place.

    Raises: as `plan_move`.
    """
    group_id = plan.group_id
    await _check_empty(source, group_id)
    if plan.settings:
        await target.alter_group_configs(group_id, plan.settings)
    offsets = {(move.topic, move.partition): move.start for move in plan.moves}
    if offsets:
        await target.place_group(
            group_id, offsets, {(move.topic, move.partition): move.finished for move in plan.moves}
        )
        await _check_placed(target, plan)
    await mark()
    if not keep:
        await source.delete_group(group_id)


async def _check_empty(admin: ShareAdmin, group_id: str) -> None:
    """Check that a group has no members and no parked keys. Raises: ClientError with what to do first."""
    members = (await admin.describe_group(group_id)).members
    if members:
        raise ClientError(f"group {group_id} has {len(members)} members: stop its workers first, then move it")
    try:
        parked = (await admin.parked_keys(group_id)).keys
    except Unsupported:
        return  # brokers park nothing
    if parked:
        raise ClientError(
            f"group {group_id} has {len(parked)} parked keys, which are not taken along, and neither is their order: "
            f"replay or unpark them first (flowshare dlq parked {group_id})"
        )


async def _check_free(target: ShareAdmin, group_id: str) -> None:
    """Refuse a target that has the group already: parts of its state would be overwritten. Raises: ClientError."""
    if group_id not in {group.group_id for group in await target.list_groups()}:
        return
    if (await target.describe_group(group_id)).members or await target.group_offsets(group_id):
        raise ClientError(
            f"there is a group {group_id} already where it is to be moved to, with members or positions of its own: "
            "delete one of the two first (flowshare groups delete)"
        )


async def _move(source: ShareAdmin, group_id: str, part: SharePartitionOffsets, *, ranges: bool) -> Move:
    end = await source.log_end(part.topic, part.partition)
    count = max(0, end - part.start_offset - part.lag) if part.lag >= 0 else 0
    finished: Ranges = ()
    if ranges and count:
        try:
            known = await source.finished_ranges(group_id, part)
        except ServerError as error:
            if error.code not in NOT_TOLD:
                raise
        except Unsupported:
            pass
        else:
            finished = tuple(
                (max(first, part.start_offset), last) for first, last in known if last >= part.start_offset
            )
            count = 0
    start = part.start_offset
    while finished and finished[0][0] == start:  # brokers store a start that moved with the next write only
        start, finished = finished[0][1] + 1, finished[1:]
    return Move(part.topic, part.partition, start, finished, count)


async def _settings(source: ShareAdmin, target: ShareAdmin | None, group_id: str) -> tuple[dict[str, str], list[str]]:
    """Return the group's own settings that the target accepts, and the others; a target that does not exist accepts
    all."""
    taken: dict[str, str] = {}
    left: list[str] = []
    for entry in await source.group_configs(group_id):
        if entry.is_default:
            continue
        try:
            if target is not None:
                await target.alter_group_configs(group_id, {entry.name: entry.value}, dry_run=True)
        except ServerError as error:
            if error.retriable:
                raise
            left.append(f"{entry.name}={entry.value}")
        else:
            taken[entry.name] = entry.value
    return taken, left


async def _check_placed(target: ShareAdmin, plan: MovePlan) -> None:
    placed = {(part.topic, part.partition): part.start_offset for part in await target.group_offsets(plan.group_id)}
    for move in plan.moves:
        if placed.get((move.topic, move.partition), -1) < move.start:
            raise ClientError(
                f"group {plan.group_id} was written to its new place, but {move.topic}-{move.partition} does not stand "
                f"at {move.start} there; the old group is kept: delete the new one and try again"
            )
