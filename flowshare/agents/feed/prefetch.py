"""Prefetching: how many records an agent fetches ahead of its handlers, and when.

An agent holds the records that its handlers work on, and those that they finish in about 50 ms. Slow handlers keep next
to nothing in the buffer, so that other members find work; fast ones keep thousands, so that no handler waits for the
next fetch. At a broker the record locks are a bound, too: the members of the group share them, and a fetch takes a part
of an agent's own locks, never all at once.
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
"""Seconds that the buffer should last."""
AHEAD_CAREFUL_S: Final = 0.2
"""Seconds that the buffer should last where a release costs an attempt: a fetch takes longer there, and held records
must be sure to run soon."""
FEWER_KEYS: Final = 2
"""Fewer keys held ahead with an order: a key that waits here cannot be begun elsewhere."""
SOON_RATE: Final = 4.0
"""Records a second from which on one key is held ahead: it waits a quarter of a second at most. Records that members
wait for go to them first, so nobody holds a key ahead where keys are few."""
CHAINED_MAX: Final = 256
"""Records that a fetch asks for with an order, unless half as many keys are wanted: as many may follow as are begun, so
that whole batches can be had."""
STUCK_S: Final = 1.0
"""Seconds without any finished record after which the buffer is released."""
BUFFER_MAX: Final = 8_000
BUFFER_KEYS_MAX: Final = 2_000
"""Most keys held ahead, with an order."""
QUICK_S: Final = 0.002
"""Seconds of a quick handler: up to that, all but a few keys are run and acknowledged before the next fetch. A fetch
leaves out records behind a held key, so its records come in pieces, and a piece costs as much as ten records. Slower
handlers lose less by pieces than by the wait."""
GROWTH: Final = 8
"""Plain accepts after which a chain is one record longer, up to the longest one."""
CHAIN_S: Final = 1.0
"""Seconds that the fetched records of one key may take; slower handlers would only release the rest."""
LOW_S: Final = 0.008
"""Seconds that the held records then last."""
_WINDOW_S: Final = 0.005
_WINDOW_RECORDS: Final = 500
ASK_S: Final = 5.0
SOON_S: Final = 1.0
"""Seconds between two looks after the start, when members come one after the other."""
SOON_TIMES: Final = 5
WINDOW_PARTS: Final = 3
"""Number of fetches that share a member's record locks."""
UNCONFIRMED_MAX: Final = 50_000
"""Most unanswered acknowledgements; with more, no fetch is asked for."""
FEW: Final = 32
"""Records of a fetch that are handed to the handlers before the next fetch leaves."""
FETCH_BYTES_MAX: Final = 16 << 20
FETCH_BYTES_USUAL: Final = 1 << 20
"""Bytes that a fetch allows as long as its records need no more.

Kept small, because a broker looks at every batch that it may send.
"""
FETCH_WAIT_S: Final = 0.5
FETCH_WAITS_S: Final = (0.5, 600.0)
"""First and longest wait of a fetch, in seconds, where a wait that ends costs more than one that goes on (test kit)."""
FAILED_WAIT_S: Final = 1.0
"""Seconds of pause after a failed fetch."""


class Prefetch:
    """Measures the handlers' speed and gives the number of records to hold. Times are monotonic seconds."""

    __slots__ = ("_at_once", "_busy_s", "_careful", "_count", "_fixed", "_rate", "_running", "progress_at", "stuck")

    def __init__(self, at_once: int, *, fixed_buffer: int = 0, careful: bool = False, now: float = 0.0) -> None:
        """at_once: records that handlers work on at once. fixed_buffer: hold at least so many more (a whole batch).

        careful: a release costs an attempt, so no record is held that may have to be released.
        """
        self._careful = careful
        self._at_once = at_once
        self._fixed = fixed_buffer
        self._rate: float | None = None
        self._count = 0
        self._busy_s = 0.0
        self.progress_at = now
        self.stuck = False
        """True if no record has finished for so long that nothing more should be buffered."""
        self._running = 0
        """Number of records in hand when found stuck; free handlers beside them begin nothing (a blocked loop)."""

    def begun(self, now: float) -> None:
        """Start the clock: the pool gets work after it had none."""
        self.progress_at = now

    def finished(self, count: int, now: float) -> None:
        """Count finished records."""
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
        """Look at the time since a record finished; return True if the buffer should be released.

        busy: records that handlers hold. full: buffered records cannot be begun.
        """
        waited_s = now - self.progress_at
        if waited_s > 0.25 and self._rate is not None:
            self._rate = min(self._rate, max(busy, 1) / waited_s)
        if waited_s < STUCK_S or not full:
            return False
        self.stuck, self._running = True, busy
        return True

    def goes_on(self) -> None:
        """Note that free handlers begin new records, though nothing has finished yet."""
        self.stuck = False

    @property
    def at_once(self) -> int:
        """Most records that handlers work on at once."""
        return self._at_once

    @property
    def _stuck_target(self) -> int:
        return max(1, min(self._running, self._at_once))

    @property
    def target(self) -> int:
        """Number of records to hold in all."""
        if self.stuck:
            return self._stuck_target
        if self._careful:
            ahead = 0 if self._rate is None else int(self._rate * AHEAD_CAREFUL_S)
            return self._at_once + max(min(BUFFER_MAX, ahead), self._fixed)
        # Until the speed is known, as many wait as run; records that slow handlers do not reach are released.
        wanted = self._at_once if self._rate is None else int(self._rate * AHEAD_S)
        ahead = min(BUFFER_MAX, wanted)
        return self._at_once + max(1, ahead, self._fixed)


class KeyPrefetch(Prefetch):
    """Measures for an agent with an order: the number of keys to have begun, or ready to begin.

    Slow handlers have no key ready, and others fewer than without an order: a key that waits here is kept from all
    other members, however idle they are, while an idle handler waits for only one fetch.
    """

    __slots__ = ()

    @property
    def target(self) -> int:
        """Number of keys to hold in all."""
        if self.stuck:
            return self._stuck_target
        if self._rate is None or self._rate < SOON_RATE:
            return self._at_once
        ahead = int(self._rate * AHEAD_S) - FEWER_KEYS
        return self._at_once + max(1, min(BUFFER_KEYS_MAX, ahead))

    def chain(self, most: int, keys: int) -> int:
        """Return the number of records of a key to fetch in a row: as many as `keys` handlers reach in a second, at
        most `most`."""
        if self._rate is None:
            return most
        each = self._rate * CHAIN_S / max(1, min(keys, self._at_once))
        return max(1, min(most, int(each)))

    @property
    def low(self) -> int | None:
        """Number of keys left when more are asked for, after all others are run and acknowledged; None: do not wait for
        that."""
        if self.stuck or self._rate is None or self._rate * QUICK_S < self._at_once:
            return None
        return self._at_once + int(self._rate * LOW_S)


class Asked(NamedTuple):
    """Size of a fetch: records in all; with an order also the number of keys, and records of a key in a row."""

    records: int
    heads: int = 0
    chain: int = 1


class GroupSize:
    """A group's number of members, looked at now and then: no member may take all record locks that they share.

    Runs on the service loop.
    """

    def __init__(self, agent: ShareAgent, locks: int, *, clock: Clock, admin: ShareAdmin) -> None:
        """locks: most records of one partition in flight in the whole group."""
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
        """Stop looking."""
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
    """Number of records that the next fetch asks for beside the held ones; on the service loop."""

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
        """The members that share the record locks; None where servers count each member's records."""
        self.settler: Settler | None = None
        """Settles records with their outputs: these records are held, but no handler waits for them."""
        self.paused = False
        """True if no records are asked for. Set by any thread."""

    def wanted(self, unread: int = 0) -> int:
        """Return the number of records to ask for; 0 when asking is not worth it.

        unread: records that were fetched and are not held yet.
        """
        target, held = self._target()
        count = target - held - unread
        # A few records are worth asking for only when handlers are idle.
        least = 1 if held + unread < min(target, self._prefetch.at_once) else max(1, target // 4)
        if self.paused or count < least or self._acks.unconfirmed >= UNCONFIRMED_MAX:
            return 0
        if self.settler is not None and self.settler.full:
            return 0
        return count if self.group is None else min(count, self.group.fetch_locks)

    def asked(self, count: int, records_max: int | None) -> Asked:
        """Return the fetch for the `wanted` count. records_max: bound of a rate limit; None: no limit."""
        return Asked(count if records_max is None else min(count, records_max))

    def ahead(self, unread: int) -> int:
        """Return `wanted` before fetched records are read; 0 for few, which are read sooner than a fetch has left."""
        return self.wanted(unread) if unread > FEW else 0

    def whole(self, count: int) -> bool:
        """Tell if batches may come whole: no other member waits for a part, and they have at most `count` records."""
        return self.group is not None and self.group.members == 1 and 0 < self._reader.batch_records <= count

    def _target(self) -> tuple[int, int]:
        """Return the number of records to hold, and the number held that handlers wait for."""
        if self.group is None or self._delays is None:
            return self._prefetch.target, self._held.outstanding - self._settling
        self._delays.locks = self.group.locks
        return min(self._prefetch.target, self.group.locks), self._held.outstanding - self._delays.waiting

    @property
    def _settling(self) -> int:
        return 0 if self.settler is None else self.settler.records


class KeyFetchSize(FetchSize):
    """Size of a fetch for an agent with an order: it counts keys."""

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
        """chain: most records of one key to ask for in a row. by_speed: only as many as the handlers reach soon; False
        where one call takes many."""
        super().__init__(prefetch, held, acks, reader, None)
        self._prefetch: KeyPrefetch = prefetch
        self._chain = chain
        self._uncut = float(chain)
        self._by_speed = by_speed

    def wanted(self, unread: int = 0) -> int:
        """Return the number of keys to ask for."""
        low = self._prefetch.low
        if low is not None and (self._acks.leaves_soon or self._target()[1] + unread > low):
            return 0
        return super().wanted(unread)

    def asked(self, count: int, records_max: int | None) -> Asked:
        """Return a fetch of `count` keys, with room for chains behind them."""
        chain = max(1, int(self._uncut))
        if self._by_speed:
            chain = self._prefetch.chain(chain, self._target()[1])
        records = count if chain == 1 else max(2 * count, min(chain * count, CHAINED_MAX))
        if records_max is not None:
            count, records = min(count, records_max), min(records, records_max)
        return Asked(records, count, chain)

    def ended(self, plain: int, cut: int) -> None:
        """Adapt the chains' length. plain: accepts without outputs. cut: chains that ended, as outputs are confirmed
        before a key's next record may begin."""
        self._uncut = max(1.0, min(self._chain, (self._uncut + plain / GROWTH) / 2 ** min(cut, 10)))

    def _target(self) -> tuple[int, int]:
        return self._prefetch.target, self._held.outstanding - self._held.followers - self._settling


class Prefetcher:
    """Fetches of one agent, one after the other, each as soon as it is worth asking; on the service loop.

    No task waits: events call methods, so that a record that comes alone is with its handler in the turn of the loop
    that read it. Invariant: one fetch was asked for and has not ended (under way), or time must pass (resting), or
    neither (idle), and then asking is not worth it.

    | | idle | under way | resting |
    |---|---|---|---|
    | `look` | asks, or rests until the rate limit has room | – | – |
    | a fetch ends | its records are taken; looks | the same, idle first | is taken |
    | the fetch, or taking its records, fails | rests | rests | rests anew |
    | time has passed | – | – | idle; looks |

    Acknowledgements that wait ride on each fetch at a broker: without them the locks that they free are missing for it,
    and the broker gives nothing.

    A broker takes 1 to 2 ms for a fetch with acknowledgements, reading 1,000 records takes 0.5 ms: so at a broker the
    next fetch leaves before the records of the last one are read. Few records are handed to the handlers first: then
    these get the interpreter's lock at once, and not after the next request was written.
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
        waits_s: tuple[float, float] = (FETCH_WAIT_S, FETCH_WAIT_S),
    ) -> None:
        """take: takes the records of a fetch (or none); returns True if a call of `look` follows soon. ride: gives the
        member the acknowledgements that go with the next fetch. waits_s: seconds that the server may hold a fetch that
        finds nothing: first, and longest, as each next one may wait twice as long."""
        self._agent = agent
        self._size = size
        self._bucket = bucket
        self._stall = stall
        self._take = take
        self._clock = clock
        self._ride = ride
        self._waits_s = waits_s
        self._wait_s = waits_s[0]
        self._member: Member | None = None
        self._record_bytes = 0
        self._under_way = False
        self._rest: TimerHandle | None = None
        self.trouble: str | None = None

    @property
    def started(self) -> bool:
        """True from `start` to `stop`."""
        return self._member is not None

    def start(self, member: Member) -> None:
        """Begin to fetch over this member."""
        self._member = member
        member.on_fetched(self._go_on)
        self.look()

    def stop(self) -> None:
        """Stop asking; records of fetches under way are left to the member's `last_fetch`."""
        member, self._member = self._member, None
        if member is not None:
            member.on_fetched(None)
        if self._rest is not None:
            self._rest.cancel()

    def look(self) -> None:
        """Ask for records if it is worth it: fewer are held than before, or more are allowed."""
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
        """Ask for records. Whole record batches may exceed the number where that costs nobody: a part of a batch costs
        broker and member as many bytes as all of it."""
        count, heads, chain = asked
        mode = AcquireMode.BATCH_OPTIMIZED if self._size.whole(count) else AcquireMode.RECORD_LIMIT
        bytes_max = min(FETCH_BYTES_MAX, max(FETCH_BYTES_USUAL, 2 * count * self._record_bytes))
        self._under_way = True
        self._ride()
        try:
            beside = self._bucket is None
            member.ask(Plan(count, count, self._wait_s, bytes_max, mode, beside=beside, heads=heads, chain=chain))
        except Exception as error:  # noqa: BLE001 - each kind is told in its way
            self._failed(error)

    def _go_on(self) -> None:
        """Take the records of an ended fetch and ask for more. Must not raise: other callers wait for their answers."""
        member = self._member
        if member is None:
            return
        self._under_way = False
        try:
            fetched = member.take_fetched()
            number = number_of(fetched)
            self._wait_s = self._waits_s[0] if number else min(2 * self._wait_s, self._waits_s[1])
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
        else:  # a bug must not end the agent in silence
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
