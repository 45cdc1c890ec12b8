"""Checks before a deed on a group: the kind of the group, its parked keys, keys that dead workers still hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from flowshare.agents.handler.texts import amount
from flowshare.client.errors import ServerError, Unsupported
from flowshare.ops import Failure
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.ops.session import CommandSession

T = TypeVar("T")

PATIENCE_S: Final = 120.0
"""Time, in s, that a deed waits, where this process leads, for the leases of dead workers; an agent's lease is 30 s
unless it says more."""
AGAIN_S: Final = 0.5


async def is_cooperative(session: CommandSession, group: str) -> bool:
    """Tell if this is a cooperative group that has begun with a partition."""
    if not session.backend.capabilities.key_order:
        return False
    try:
        return bool(await session.admin.cooperative.offsets(group))
    except ServerError as error:
        if error.retriable:
            raise
        return False  # it is another kind of group, or may not be seen


async def refuse_cooperative(session: CommandSession, group: str, instead: str) -> None:
    """Check that the group is no cooperative one. instead: the remedy. Raises: Failure."""
    if await is_cooperative(session, group):
        raise Failure(f"{group} is a cooperative group: {instead}")


async def check_pausing(session: CommandSession, group: str) -> None:
    """Check that the group exists and can be paused. Raises: Failure (it cannot), ServerError (no such group)."""
    instead = "stop its workers, or call `agent.pause()` in each of them"
    await refuse_cooperative(session, group, instead)
    if not session.backend.capabilities.pausing:
        raise Failure(f"Kafka's brokers cannot pause group {group}: {instead}")
    await session.admin.describe_group(group)  # a mistyped name would be taken, as groups can be set up beforehand


async def patiently(session: CommandSession, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call that is refused while members hold keys, and wait for their leases if this process leads.

    Where this process leads, no worker runs: held keys are a dead worker's, and free when its lease ends. Elsewhere the
    refusal is raised at once.
    """
    until_s, told = session.clock.monotonic() + PATIENCE_S, False
    while True:
        try:
            return await call()
        except ServerError as error:
            held = error.code is ErrorCode.NON_EMPTY_GROUP
            if not held or not session.leads or session.clock.monotonic() > until_s:
                raise
        if not told:
            told = True
            session.reporter.tell("keys are held by workers that do not run any more: waiting until their leases end")
        await session.clock.sleep(AGAIN_S)


async def parked_count(admin: ShareAdmin, group: str, topics: Sequence[str]) -> int:
    """Return the number of a group's parked keys in these topics (none: in all); brokers have none.

    Raises: ServerError.
    """
    try:
        told = await admin.parked_keys(group)
    except Unsupported:
        return 0
    except ServerError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise  # who cannot see them must not forget them
        return 0
    return sum(not topics or one.topic in topics for one in told.keys)


def parked_text(group: str, count: int) -> str:
    """Return a number of parked keys as a sentence."""
    return f"group {group} has {amount(count, 'parked key')} (flowshare dlq parked {group})"


async def keep_parked(session: CommandSession, group: str, topics: Sequence[str]) -> None:
    """Check that no key is parked in these topics (none: in any): new positions would forget it. Raises: Failure."""
    if count := await parked_count(session.admin, group, topics):
        raise Failure(
            f"{parked_text(group, count)}, and new positions would forget them: records that wait behind a dead "
            "letter of their key would run as if there was none. Replay or unpark them first, or add "
            "--forget-parked"
        )
