"""`Settles`: a consumer's accepts that are written in one step with outputs (SG-19), asked until the outcome is known.

A settle outlives the call that began it: a caller that waits no longer asks for the same records again, and hears what
became of the first settle. So outputs of a record are sent again only after an answer that says that nothing of it was
written.

    the server says                         the caller hears          the records are
    written                                 True                      gone
    some are not the member's (any more)    False                     gone, these; the others in hand
    the same, after an unknown outcome      ClientError: unknown      gone, these; the others in hand
    it cannot say (`outcome unknown`)       ClientError: unknown      in hand as far as the member holds them
    an output cannot be written, …          ServerError, Unsupported  in hand
    not now, not its turn (`ordered`)       (it is asked again)       being settled
    (this consumer released an earlier one) False                     given back, unrun, to come behind it
    nothing, in the caller's time           ClientError: ask again    being settled
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from flowshare.client.consumer.commits import ASK_AGAIN, Commits
from flowshare.client.consumer.inflight import Held
from flowshare.client.errors import ClientError, ConnectionLost, NotConnected, ServerError, Unsupported, check
from flowshare.client.producer.channel import TopicPlace
from flowshare.client.producer.outputs import packed
from flowshare.client.session.ranges import AckResult
from flowshare.protocol.errors import ErrorCode
from flowshare.share.ranges import merged
from flowshare.share.types import AcknowledgeType, AckRange
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowshare.client.consumer.inflight import Named
    from flowshare.client.producer.message import Message
    from flowshare.client.session.member import ShareMember
    from flowshare.clock import Clock
    from flowshare.protocol.messages import RefusedOutput, SettleOutput, TopicMetadata

K = TypeVar("K")
V = TypeVar("V")

NOT_NOW: Final = ASK_AGAIN | {ErrorCode.THROTTLING_QUOTA_EXCEEDED}
"""Errors with which nothing was done: ask again after a pause."""
PAUSE_S: Final = 0.1
TOPICS_S: Final = 300.0
"""Seconds for which the sizes of topics are used."""
KEPT_MAX: Final = 10_000
"""The most records of which it is kept what became of them, the newest; who never asks does not care."""
BEHIND_MAX_S: Final = 5.0
"""The longest delay of what is given back behind a delayed record: a tool may end that one's delay sooner."""
RELEASE: Final = bytes((AcknowledgeType.RELEASE,))
ACCEPT: Final = bytes((AcknowledgeType.ACCEPT,))
UNKNOWN: Final = "outcome unknown"
NOT_HERE: Final = "only flowshare's own servers settle records together with outputs"
AGAIN: Final = "the records come again where they are not accepted"
ABSENT: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
_Task = asyncio.Task[bool | ClientError]
"""A settle under way; the result is True, False, or the error to raise."""
Parts = dict[Held[K, V], list[int]]
"""Offsets of one settle, by the holder of their records."""


class Settles(Generic[K, V]):
    """Settles of one consumer."""

    def __init__(self, member: ShareMember, commits: Commits[K, V], *, clock: Clock) -> None:
        self._member = member
        self._commits = commits
        self._clock = clock
        self._under_way: dict[Named, _Task] = {}
        self._written: dict[Named, None] = {}
        """Records whose settle was written, until a caller is told."""
        self._doubted: dict[Named, int] = {}
        """Records of settles with an unknown outcome, with the attempt that was settled."""
        self._topics: dict[str, tuple[TopicPlace, float]] = {}
        self._missing: Sequence[str] = ()
        self._said: dict[Named, str | None] = {}
        """Why the server asked a settle to wait last, by its first record."""
        self._spread = 0
        self._closing = False

    async def settle(
        self,
        named: Sequence[Named],
        messages: Mapping[str, Sequence[Message]],
        *,
        ordered: bool = False,
        timeout_s: float,
    ) -> bool:
        """Accept records in hand and write outputs, as `ShareConsumer.settle`. named: ascending, of one partition.

        Raises: IllegalState, ServerError, RecordTooLarge, Unsupported, ClientError (not known, or not in time).
        """
        if not self._member.at_flowshare:
            raise Unsupported(NOT_HERE)
        try:
            told = await self._clock.wait_for(self._told(tuple(named), messages, ordered=ordered), timeout_s)
        except TimeoutError:
            trouble = self._why(named[0], ordered=ordered)
            raise ClientError(f"not settled within {timeout_s:g} s: {trouble}; settle the same records again") from None
        finally:
            self._missing = ()
        if isinstance(told, ClientError):
            raise told
        return told

    def _why(self, first: Named, *, ordered: bool) -> str:
        """Say why a settle takes long."""
        if self._missing:
            return f"there is no topic {', '.join(self._missing)}: create it, or check its name"
        before = self._commits.first_in_hand(*first[:2]) if ordered else None
        if before is not None and before < first[2]:
            return f"{first[0]}-{first[1]}@{before} is in hand and comes first"
        return self._member.trouble or self._said.get(first) or "the server has not answered"

    async def finish(self, timeout_s: float) -> None:
        """Wait for all settles under way, at most `timeout_s` seconds; what the server does not settle now is left."""
        self._closing = True
        tasks = set(self._under_way.values())
        if not tasks:
            return
        try:
            await self._clock.wait_for(asyncio.wait(tasks), timeout_s)
        except TimeoutError:
            return
        finally:
            await cancelled(*tasks)

    async def _told(
        self, named: tuple[Named, ...], messages: Mapping[str, Sequence[Message]], *, ordered: bool
    ) -> bool | ClientError:
        """Settle, when earlier settles of these records have ended; return True, False, or the error."""
        outputs: list[SettleOutput] | None = None
        while True:
            earlier = next((self._under_way[one] for one in named if one in self._under_way), None)
            parts = self._parts(named)
            if earlier is not None:
                await asyncio.wait({earlier})
            elif parts is None:
                return self._written.keys() >= set(named) and self._forgets(named)
            elif outputs is None:
                outputs = await self._packed(messages)
            else:
                told = await asyncio.shield(self._begin(named, parts, outputs, ordered=ordered))
                return self._forgets(named) if told is True else told

    def _forgets(self, named: Iterable[Named]) -> bool:
        """Forget that these were written: the caller is told."""
        for one in named:
            self._written.pop(one, None)
        return True

    def _parts(self, named: Iterable[Named]) -> Parts[K, V] | None:
        """Return the offsets by holder; None: a record is not in hand."""
        parts: Parts[K, V] = {}
        for one in named:
            held = self._commits.holder(*one)
            if held is None:
                return None
            parts.setdefault(held, []).append(one[2])
        return parts

    def _begin(
        self, named: tuple[Named, ...], parts: Parts[K, V], outputs: Sequence[SettleOutput], *, ordered: bool
    ) -> _Task:
        attempts: dict[int, int] = {}
        for held, offsets in parts.items():
            attempts.update(zip(offsets, held.begin_settle(offsets), strict=True))
        work = self._carried_out(named, parts, attempts, outputs, ordered=ordered)
        task = asyncio.get_running_loop().create_task(work, name="settle")
        self._under_way.update(dict.fromkeys(named, task))
        return task

    async def _carried_out(
        self,
        named: tuple[Named, ...],
        parts: Parts[K, V],
        attempts: Mapping[int, int],
        outputs: Sequence[SettleOutput],
        *,
        ordered: bool,
    ) -> bool | ClientError:
        gone: set[int] = set()
        try:
            result = await self._asked(named, parts, _batches(attempts), outputs, ordered=ordered)
            if not isinstance(result, AckResult):
                gone = set(attempts)
                self._give_back(parts, attempts, result)
                return False
            gone = self._gone(result, parts, attempts)
            self._commits.sent += len(named)
            self._commits.failed += 0 if result.error is ErrorCode.NONE else len(named)
            return self._outcome(named, result, gone, attempts)
        finally:
            for held, offsets in parts.items():
                held.end_settle(offsets, gone)
            for one in named:
                self._under_way.pop(one, None)
            self._said.pop(named[0], None)

    def _give_back(self, parts: Parts[K, V], attempts: Mapping[int, int], delay_s: float) -> None:
        """Give records back that come behind a released one, not to be delivered before it; no handler's attempt is
        lost."""
        delay_ms = math.ceil(1000 * min(delay_s, BEHIND_MAX_S))
        for held, offsets in parts.items():
            acks = _batches({offset: attempts[offset] for offset in offsets})
            back = [ack._replace(types=RELEASE, delay_ms=delay_ms, unrun=True) for ack in acks]
            self._commits.give_back(held, back)

    async def _asked(
        self,
        named: Sequence[Named],
        parts: Parts[K, V],
        acks: Sequence[AckRange],
        outputs: Sequence[SettleOutput],
        *,
        ordered: bool,
    ) -> AckResult | float:
        """Settle until the answer is final; a number: of seconds until an earlier record is there that this consumer
        released, and nobody polls meanwhile. Raises: ValueError."""
        place, offsets = named[0][:2], [offset for _, _, offset in named]
        sure, waited = ordered and self._doubted.keys().isdisjoint(named), False
        tp = next(iter(parts)).source.tp
        generation = min(held.generation for held in parts)
        while True:
            if ordered:  # who waits here for the outcome does not poll, and only a poll sends them
                self._commits.send_before(place, offsets[0])
            if sure and (back_s := self._commits.comes_back_before(place, offsets, waited=waited)) is not None:
                return back_s
            result = await self._member.settle(tp, acks, outputs, generation=generation, ordered=ordered)
            self._said[named[0]] = result.message
            waited = result.error is ErrorCode.REQUEST_TIMED_OUT  # there, for its turn
            if self._closing or (result.error not in NOT_NOW and not waited):
                return result
            if not waited:
                await self._clock.sleep(PAUSE_S)

    def _gone(self, result: AckResult, parts: Parts[K, V], attempts: Mapping[int, int]) -> set[int]:
        """Return the offsets that are not in hand any more."""
        if result.error is ErrorCode.NONE:
            return set(attempts)
        refused = {offset for first, last in result.refused for offset in range(first, last + 1)}
        lost = [offsets for held, offsets in parts.items() if not self._member.holds(held.source.tp, held.generation)]
        return refused.intersection(attempts).union(*lost)

    def _outcome(
        self, named: Sequence[Named], result: AckResult, gone: set[int], attempts: Mapping[int, int]
    ) -> bool | ClientError:
        about = f"settling {result.topic}-{result.partition}"
        if result.error is ErrorCode.NONE:
            self._commits.finished(named[0][:2], attempts)
            for one in named:
                keep(self._written, one, None)
                self._doubted.pop(one, None)
            return True
        if (result.message or "").startswith(UNKNOWN):
            for one in named:
                keep(self._doubted, one, attempts[one[2]])
            return ClientError(f"{about}: {result.message}; {AGAIN}")
        if gone:
            doubted = [one for one in named if one[2] in gone and self._doubted.pop(one, -1) == attempts[one[2]]]
            return ClientError(f"{about}: {UNKNOWN}; {AGAIN}") if doubted else False
        self._topics.clear()
        return refusal(result.error, result.message, result.outputs, about)

    # --- outputs ------------------------------------------------------------------------------------------------

    async def _packed(self, messages: Mapping[str, Sequence[Message]]) -> list[SettleOutput]:
        """Pack outputs, as soon as their topics are known. Raises: ServerError, RecordTooLarge, TypeError."""
        now_s = self._clock.monotonic()
        self._topics = {name: known for name, known in self._topics.items() if known[1] > now_s}
        while missing := [name for name in messages if name not in self._topics]:
            for found in await self._seen(missing):
                if found.error not in ABSENT:
                    check(found.error, None, f"topic {found.name}")
                    self._topics[found.name] = TopicPlace(found.partitions, found.topic_id), now_s + TOPICS_S
            self._missing = [name for name in missing if name not in self._topics]
            if self._missing:
                await self._clock.sleep(PAUSE_S)
        self._spread += 1
        places = {name: self._topics[name][0] for name in messages}
        try:
            return packed(messages, places, now_ms=self._clock.now_ms(), spread=self._spread)
        except ServerError:  # the topic may have grown
            self._topics.clear()
            raise

    async def _seen(self, names: Sequence[str]) -> Sequence[TopicMetadata]:
        try:
            return await self._member.topics(names)
        except (ConnectionLost, NotConnected):
            return ()


def refusal(code: ErrorCode, message: str | None, outputs: Sequence[RefusedOutput], about: str) -> ClientError:
    """Return the error of a settle that was refused, of which nothing is written."""
    if code is ErrorCode.UNSUPPORTED_VERSION:
        return Unsupported(message or NOT_HERE)
    if outputs:
        return ServerError(outputs[0].error, outputs[0].message, about="an output")
    return ServerError(code, message, about=about)


def _batches(attempts: Mapping[int, int]) -> list[AckRange]:
    """Return accepts of these offsets, each with its attempt, ascending."""
    by_attempt: dict[int, list[tuple[int, int]]] = {}
    for offset, attempt in attempts.items():
        by_attempt.setdefault(attempt, []).append((offset, offset))
    return sorted(
        AckRange(first, last, ACCEPT, attempt=attempt)
        for attempt, offsets in by_attempt.items()
        for first, last in merged(offsets)
    )


def keep(kept: dict[Named, Any], named: Named, what: object) -> None:
    """Keep it, and of too many the newest."""
    kept.pop(named, None)
    kept[named] = what
    if len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]
