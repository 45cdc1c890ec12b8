"""Prefetching: how many records an agent fetches ahead of its handlers, and when.

An agent holds what its handlers work on and what they finish in about 50 ms. Slow handlers keep next to nothing in the
buffer, so that other members find work; fast ones keep thousands, so that none waits for the next fetch. Against a
broker the record locks bound it, too: they are shared with the other members of the group, and a fetch takes a part of
an agent's own, never all at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import ClientError, Closed
from flowshare.client.session.ranges import number_of
from flowshare.client.session.share_session import Plan
from flowshare.share.types import AcquireMode
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.agents.feed.ack_sender import AckSender
    from flowshare.agents.feed.delays import Delays
    from flowshare.agents.feed.locks import HeldRecords
    from flowshare.agents.feed.members import Member
    from flowshare.agents.feed.reader import Reader
    from flowshare.agents.feed.settler import Settler
    from flowshare.agents.feed.stalls import StallWatch
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.handler.rate_limit import TokenBucket
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.session.member import Fetched
    from flowshare.clock import Clock, TimerHandle

logger = logging.getLogger("flowshare.agents")


AHEAD_S: Final = 0.05
"""How long the buffer should last."""
AHEAD_CAREFUL_S: Final = 0.2
"""The same where giving back costs an attempt: a fetch takes longer there, and nothing is held until it is sure to run
soon."""
FEWER_KEYS: Final = 2
"""So many keys fewer are held ahead where there is an order: one that waits here cannot be begun elsewhere."""
SOON_RATE: Final = 4.0
"""Records a second from which on one key is held ahead: it waits a quarter of a second at most. What members wait
for goes to them first, so nobody holds one ahead where keys are few."""
CHAINED_MAX: Final = 256
"""Records that a fetch asks for with an order, unless half as many keys are wanted: as many may follow as are begun, so
that whole batches can be had."""
STUCK_S: Final = 1.0
"""After so long without any record finished, the buffer is given back."""
BUFFER_MAX: Final = 8_000
BUFFER_KEYS_MAX: Final = 2_000
"""The same in keys, where there is an order."""
QUICK_S: Final = 0.002
"""Where handlers take no longer, all but a few keys are run, and acknowledged, before the next fetch: it leaves behind
what stands behind a key that is held, so that what it brings is in pieces, and a piece costs as much as ten records.
Slower ones lose less by the pieces than by the wait."""
GROWTH: Final = 8
"""Plain accepts after which a chain is one longer, up to what is asked for at most."""
CHAIN_S: Final = 1.0
"""How long what is fetched of one key may take; slower handlers would only give the rest back."""
LOW_S: Final = 0.008
"""How long what is held then lasts."""
_WINDOW_S: Final = 0.005
_WINDOW_RECORDS: Final = 500
ASK_S: Final = 5.0
SOON_S: Final = 1.0
"""After the start members come one after the other."""
SOON_TIMES: Final = 5
WINDOW_PARTS: Final = 3
"""Fetches that a member's record locks are meant for."""
UNCONFIRMED_MAX: Final = 50_000
"""Acknowledgements without an answer; with so many nothing is asked for."""
FEW: Final = 32
"""Records of a fetch that are handed to the handlers before the next fetch leaves."""
FETCH_BYTES_MAX: Final = 16 << 20
FETCH_BYTES_USUAL: Final = 1 << 20
"""What a fetch allows as long as its records need no more: a broker looks at every batch of what it may send."""
FETCH_WAIT_S: Final = 0.5
FAILED_WAIT_S: Final = 1.0
"""Pause after a fetch that failed."""


class Prefetch:
    """Measures the handlers' speed and says how many records to hold. Times are monotonic seconds."""

    __slots__ = ("_at_once", "_busy_s", "_careful", "_count", "_fixed", "_rate", "_running", "progress_at", "stuck")

    def __init__(self, at_once: int, *, fixed_buffer: int = 0, careful: bool = False, now: float = 0.0) -> None:
        """at_once: records that handlers work on at once. fixed_buffer: hold at least so many more (a whole batch).

        careful: giving back costs an attempt, so nothing is held that may have to go back.
        """
        self._careful = careful
        self._at_once = at_once
        self._fixed = fixed_buffer
        self._rate: float | None = None
        self._count = 0
        self._busy_s = 0.0
        self.progress_at = now
        self.stuck = False
        """Whether nothing finished for so long that nothing more should be buffered."""
        self._running = 0
        """What handlers held when it was found to be stuck: free ones beside them begin nothing (a blocked loop)."""

    def begun(self, now: float) -> None:
        """The pool gets work after it had none: the time before does not count."""
        self.progress_at = now

    def finished(self, count: int, now: float) -> None:
        """Records finished."""
        self._busy_s += now - self.progress_at
        self._count += count
        self.progress_at = now
        self.stuck = False
        if self._busy_s < _WINDOW_S and self._count < _WINDOW_RECORDS:
            return
        measured = self._count / max(self._busy_s, 1e-6)
        self._rate = measured if self._rate is None else (self._rate + measured) / 2
        self._busy_s = 0.0
        self._count = 0

    def still_running(self, busy: int, now: float, *, full: bool) -> bool:
        """Look at the time since something finished; returns whether the buffer is to be given back.

        busy: records that handlers hold. full: what is buffered cannot be begun.
        """
        waited_s = now - self.progress_at
        if waited_s > 0.25 and self._rate is not None:
            self._rate = min(self._rate, max(busy, 1) / waited_s)
        if waited_s < STUCK_S or not full:
            return False
        self.stuck, self._running = True, busy
        return True

    def goes_on(self) -> None:
        """Free handlers begin what comes, though nothing has finished yet."""
        self.stuck = False

    @property
    def at_once(self) -> int:
        """Records that handlers work on at once."""
        return self._at_once

    @property
    def _stuck_target(self) -> int:
        return max(1, min(self._running, self._at_once))

    @property
    def target(self) -> int:
        """How many records to hold in all."""
        if self.stuck:
            return self._stuck_target
        if self._careful:
            ahead = 0 if self._rate is None else int(self._rate * AHEAD_CAREFUL_S)
            return self._at_once + max(min(BUFFER_MAX, ahead), self._fixed)
        # Until the speed is known as many wait as run; what slow handlers do not get to goes back.
        wanted = self._at_once if self._rate is None else int(self._rate * AHEAD_S)
        ahead = min(BUFFER_MAX, wanted)
        return self._at_once + max(1, ahead, self._fixed)


class KeyPrefetch(Prefetch):
    """The same for an agent with an order: how many keys to have begun, or ready to begin.

    Slow handlers have none ready, and others fewer than without an order: what waits here for a handler keeps its key
    from all other members, however idle they are, while a handler that has nothing to do waits for one fetch.
    """

    __slots__ = ()

    @property
    def target(self) -> int:
        """How many keys to hold in all."""
        if self.stuck:
            return self._stuck_target
        if self._rate is None or self._rate < SOON_RATE:
            return self._at_once
        ahead = int(self._rate * AHEAD_S) - FEWER_KEYS
        return self._at_once + max(1, min(BUFFER_KEYS_MAX, ahead))

    def chain(self, most: int, keys: int) -> int:
        """How many records of a key to fetch in a row: what `keys` handlers get to within a second, of `most`."""
        if self._rate is None:
            return most
        each = self._rate * CHAIN_S / max(1, min(keys, self._at_once))
        return max(1, min(most, int(each)))

    @property
    def low(self) -> int | None:
        """How few keys are held when all others are to be run and acknowledged before more are asked for; None: they
        are not to be."""
        if self.stuck or self._rate is None or self._rate * QUICK_S < self._at_once:
            return None
        return self._at_once + int(self._rate * LOW_S)


class Asked(NamedTuple):
    """What a fetch asks for: records in all, and with an order how many keys, and of each how many in a row."""

    records: int
    heads: int = 0
    chain: int = 1


class GroupSize:
    """How many members a group has, looked at now and then: nobody may take all of the record locks that they share.

    On the service loop.
    """

    def __init__(self, agent: ShareAgent, locks: int, *, clock: Clock, admin: ShareAdmin) -> None:
        """locks: records of one partition that may be in flight in the whole group."""
        self._group = agent.group
        self._topics = frozenset(agent.topics)
        self._group_locks = locks
        self._clock = clock
        self._admin = admin
        self._task: asyncio.Task[None] | None = None
        self.members = 1

    @property
    def locks(self) -> int:
        """Record locks for one member, at least one."""
        return max(1, self._group_locks // self.members)

    @property
    def fetch_locks(self) -> int:
        """Locks for one fetch, not all at once: while some are fetched, others are handled or acknowledged."""
        return max(1, self.locks // WINDOW_PARTS)

    async def start(self) -> None:
        """Look now, and then every few seconds."""
        await self._look()
        self._task = asyncio.create_task(self._watch(), name=f"members {self._group}")

    async def stop(self) -> None:
        """Look no more."""
        task, self._task = self._task, None
        await cancelled(task)

    async def _watch(self) -> None:
        looks = 0
        while True:
            await self._clock.sleep(SOON_S if looks < SOON_TIMES else ASK_S)
            looks += 1
            await self._look()

    async def _look(self) -> None:
        try:
            group = await self._admin.describe_group(self._group)
        except ClientError as error:
            logger.debug("group=%s: its members cannot be counted: %s", self._group, error)
            return
        self.members = max(1, sum(not self._topics.isdisjoint(member.subscribed_topics) for member in group.members))


class FetchSize:
    """How many records the next fetch asks for beside what is held; on the service loop."""

    __slots__ = ("_acks", "_delays", "_held", "_prefetch", "_reader", "group", "paused", "settler")

    def __init__(
        self, prefetch: Prefetch, held: HeldRecords, acks: AckSender, reader: Reader, delays: Delays | None
    ) -> None:
        """delays: holds records that no handler waits for, where servers have no delayed release."""
        self._prefetch = prefetch
        self._held = held
        self._acks = acks
        self._reader = reader
        self._delays = delays
        self.group: GroupSize | None = None
        """Who shares the record locks; None where servers count what each member holds."""
        self.settler: Settler | None = None
        """What settles records with their outputs: they are held, and no handler waits for them."""
        self.paused = False
        """Whether nothing is asked for. Set by any thread."""

    def wanted(self, unread: int = 0) -> int:
        """How many records to ask for; 0 when it is not worth asking.

        unread: records that were fetched and are not held yet.
        """
        target, held = self._target()
        count = target - held - unread
        # Ahead of the handlers it is not worth asking for a few; for some that have nothing to do it is.
        least = 1 if held + unread < min(target, self._prefetch.at_once) else max(1, target // 4)
        if self.paused or count < least or self._acks.unconfirmed >= UNCONFIRMED_MAX:
            return 0
        if self.settler is not None and self.settler.full:
            return 0
        return count if self.group is None else min(count, self.group.fetch_locks)

    def asked(self, count: int, records_max: int | None) -> Asked:
        """The fetch for what is `wanted`. records_max: what a rate limit allows; None: there is none."""
        return Asked(count if records_max is None else min(count, records_max))

    def ahead(self, unread: int) -> int:
        """The same before what came is read; 0 too where few came, which are read sooner than a fetch has left."""
        return self.wanted(unread) if unread > FEW else 0

    def whole(self, count: int) -> bool:
        """Whether batches may come whole: where no other member waits for its part, and they are no longer than it."""
        return self.group is not None and self.group.members == 1 and 0 < self._reader.batch_records <= count

    def _target(self) -> tuple[int, int]:
        """How many records to hold, and how many are held that handlers wait for."""
        if self.group is None or self._delays is None:
            return self._prefetch.target, self._held.outstanding - self._settling
        self._delays.locks = self.group.locks
        return min(self._prefetch.target, self.group.locks), self._held.outstanding - self._delays.waiting

    @property
    def _settling(self) -> int:
        return 0 if self.settler is None else self.settler.records


class KeyFetchSize(FetchSize):
    """The same for an agent with an order: what it counts are keys."""

    __slots__ = ("_by_speed", "_chain", "_uncut")

    def __init__(
        self,
        prefetch: KeyPrefetch,
        held: HeldRecords,
        acks: AckSender,
        reader: Reader,
        *,
        chain: int,
        by_speed: bool = True,
    ) -> None:
        """chain: records of one key to ask for in a row, at most. by_speed: no more than the handlers get to soon; not
        where one call takes many."""
        super().__init__(prefetch, held, acks, reader, None)
        self._prefetch: KeyPrefetch = prefetch
        self._chain = chain
        self._uncut = float(chain)
        self._by_speed = by_speed

    def wanted(self, unread: int = 0) -> int:
        """How many keys to ask for."""
        low = self._prefetch.low
        if low is not None and (self._acks.leaves_soon or self._target()[1] + unread > low):
            return 0
        return super().wanted(unread)

    def asked(self, count: int, records_max: int | None) -> Asked:
        """So many keys, and room for chains behind them."""
        chain = max(1, int(self._uncut))
        if self._by_speed:
            chain = self._prefetch.chain(chain, self._target()[1])
        records = count if chain == 1 else max(2 * count, min(chain * count, CHAINED_MAX))
        if records_max is not None:
            count, records = min(count, records_max), min(records, records_max)
        return Asked(records, count, chain)

    def ended(self, plain: int, cut: int) -> None:
        """So many records were accepted as they were, and behind so many a chain has ended: outputs are confirmed
        before the next of a key may begin. Chains are about as long as they get."""
        self._uncut = max(1.0, min(self._chain, (self._uncut + plain / GROWTH) / 2 ** min(cut, 10)))

    def _target(self) -> tuple[int, int]:
        return self._prefetch.target, self._held.outstanding - self._held.followers - self._settling


class Prefetcher:
    """Fetches of one agent, one after the other, each as soon as it is worth asking; on the service loop.

    Nothing waits in a task: what happens calls, so that a record that comes alone is with its handler in the turn of
    the loop that read it. Invariant: one fetch was asked for and has not ended (under way), or time must pass
    (resting), or neither (idle) and then what is wanted is not worth asking.

    | | idle | under way | resting |
    |---|---|---|---|
    | `look` | asks, or rests until the rate limit has room | – | – |
    | a fetch ends | what it brought is taken; looks | the same, idle first | is taken |
    | it fails, or taking what it brought does | rests | rests | rests anew |
    | time has passed | – | – | idle; looks |

    Acknowledgements that wait ride on each fetch at a broker: without them the locks that they free are missing for it,
    and the broker gives nothing.

    A broker takes 1 to 2 ms for a fetch with acknowledgements, reading 1,000 records 0.5 ms: there the next fetch
    leaves before what the last one brought is read. Few records are handed to the handlers first: these get the
    interpreter's lock at once then, and not after the next request was written.
    """

    def __init__(
        self,
        agent: ShareAgent,
        size: FetchSize,
        bucket: TokenBucket | None,
        stall: StallWatch,
        take: Callable[[list[Fetched]], bool],
        *,
        clock: Clock,
        ride: Callable[[], object],
    ) -> None:
        """take: is given what a fetch brought (or nothing); returns whether somebody will call `look` soon. ride: gives
        the member the acknowledgements that are to go with the fetch that is asked for next."""
        self._agent = agent
        self._size = size
        self._bucket = bucket
        self._stall = stall
        self._take = take
        self._clock = clock
        self._ride = ride
        self._member: Member | None = None
        self._record_bytes = 0
        self._under_way = False
        self._rest: TimerHandle | None = None
        self.trouble: str | None = None

    @property
    def started(self) -> bool:
        """Whether it was, and not stopped."""
        return self._member is not None

    def start(self, member: Member) -> None:
        """Begin to fetch over this member."""
        self._member = member
        member.on_fetched(self._go_on)
        self.look()

    def stop(self) -> None:
        """Ask for nothing any more; what fetches under way bring is left to the member's `last_fetch`."""
        member, self._member = self._member, None
        if member is not None:
            member.on_fetched(None)
        if self._rest is not None:
            self._rest.cancel()

    def look(self) -> None:
        """Ask if it is worth it: less is held than before, or more is allowed."""
        if self._member is None or self._under_way or self._rest is not None:
            return
        count, allowed = self._size.wanted(), None
        if count and self._bucket is not None:
            allowed = self._bucket.available(self._clock.monotonic())
            if allowed <= 0:
                self._stall.rate_limited(self._bucket.wait_s())
                self._pause(self._bucket.wait_s())
                return
        if count:
            self._ask(self._member, self._size.asked(count, allowed))
        elif self._size.paused:
            self._stall.paused()

    def _ask(self, member: Member, asked: Asked) -> None:
        """Whole record batches may come with more records than asked for, where that costs nobody anything: a part of
        one costs the broker and the member as many bytes as all of it."""
        count, heads, chain = asked
        mode = AcquireMode.BATCH_OPTIMIZED if self._size.whole(count) else AcquireMode.RECORD_LIMIT
        bytes_max = min(FETCH_BYTES_MAX, max(FETCH_BYTES_USUAL, 2 * count * self._record_bytes))
        self._under_way = True
        self._ride()
        try:
            beside = self._bucket is None
            member.ask(Plan(count, count, FETCH_WAIT_S, bytes_max, mode, beside=beside, heads=heads, chain=chain))
        except Exception as error:  # noqa: BLE001 - each kind is told in its way
            self._failed(error)

    def _go_on(self) -> None:
        """A fetch has ended: take what came and ask for more. Must not raise: others wait for their answers."""
        member = self._member
        if member is None:
            return
        self._under_way = False
        try:
            fetched = member.take_fetched()
            number = number_of(fetched)
            if number:
                self._record_bytes = sum(len(part.records) for part in fetched) // number
            # Only a broker works meanwhile.
            if self._size.group is not None and self._bucket is None and (more := self._size.ahead(number)):
                self._ask(member, self._size.asked(more, None))
            waits = self._take(fetched)
            if self._rest is None:
                self.trouble = None
        except Exception as error:  # noqa: BLE001 - each kind is told in its way
            self._failed(error)
            return
        if not waits:
            self.look()

    def _failed(self, error: Exception) -> None:
        self._under_way = False
        if isinstance(error, Closed):
            self.stop()
            return
        about = "agent=%s group=%s: %s"
        if isinstance(error, ClientError):
            self.trouble = f"fetching fails: {error}"
            logger.warning(about, self._agent.name, self._agent.group, self.trouble)
        else:  # a fault of ours must not end the agent in silence
            self.trouble = f"fetching failed unexpectedly: {type(error).__name__}: {error}"
            logger.error(about, self._agent.name, self._agent.group, self.trouble, exc_info=error)
        self._pause(FAILED_WAIT_S)

    def _pause(self, rest_s: float) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self._rest = self._clock.call_later(rest_s, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self.look()
