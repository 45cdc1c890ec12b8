"""`Standstill` lets no handler begin in a process that stood still, until its remaining records are known.

A process that gets no processor time for seconds (SIGSTOP, a suspended machine, a library that never releases the
interpreter's lock) sends no heartbeats. Its group may give the process up meanwhile, others run its records, and the
process goes on without having heard of that.

Invariant: a handler begins a record only within `LIMIT_S` of a pulse of the service loop, and after a standstill not
before the group has answered a heartbeat that was sent since, and each lock that was held then was renewed since (with
`renew=False`: has not lapsed).

Time is taken from both clocks: the monotonic clock stands still while a machine is suspended, the wall clock may be
set.

    state    event                                                    next
    BEATING  a pulse in time                                          BEATING: handlers may begin for LIMIT_S more
    BEATING  no pulse for LIMIT_S                                     handlers begin nothing by themselves
    BEATING  a pulse so late: the process stood still                 ASKING: a heartbeat, then all locks are renewed
    ASKING   answered; all are renewed, the others known to be lost   BEATING
    ASKING   stood still again, no answer, a lock in doubt            ASKING, from the start, after a pause
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from flowshare.agents.feed.locks import HeldRecords, LockKeeper
from flowshare.agents.feed.members import Member
from flowshare.agents.run.pool import StartPermit
from flowshare.client.errors import ClientError
from flowshare.clock import Clock, TimerHandle
from flowshare.tasks import cancelled

PULSE_S: Final = 0.25
LIMIT_S: Final = 1.0
"""Longest time in seconds between two pulses; shorter than a group waits for a silent member."""
ANSWER_S: Final = 5.0
"""Seconds that one try waits for the group."""
PAUSE_S: Final = 0.2

logger = logging.getLogger("flowshare.agents")


class Standstill:
    """Watch over one agent's handlers; on the service loop."""

    def __init__(
        self,
        agent: str,
        *,
        permit: StartPermit,
        wake: Callable[[], object],
        held: HeldRecords,
        locks: LockKeeper,
        clock: Clock,
    ) -> None:
        """wake: lets the pool look at its queue."""
        self._agent = agent
        self._permit = permit
        self._wake = wake
        self._held = held
        self._locks = locks
        self._clock = clock
        self._member: Member | None = None
        self._pulsed_s = 0.0
        self._pulsed_ms = 0
        self._timer: TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self.count = 0
        """Number of times the process stood still."""

    @property
    def trouble(self) -> str | None:
        """Reason why no handler begins; None: handlers begin."""
        if self._asking is None:
            return None
        return "this process stood still, and its group has not said yet what is still its own"

    def start(self, member: Member) -> None:
        """Begin, for this member."""
        self._member = member
        self._pulsed_s, self._pulsed_ms = self._clock.monotonic(), self._clock.now_ms()
        self._pulse()

    async def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        asking, self._asking = self._asking, None
        await cancelled(asking)

    def _pulse(self) -> None:
        now = self._clock.monotonic()
        now_ms = self._clock.now_ms()
        still_s = max(now - self._pulsed_s, (now_ms - self._pulsed_ms) / 1000)
        self._pulsed_s, self._pulsed_ms = now, now_ms
        self._timer = self._clock.call_later(PULSE_S, self._pulse)
        if still_s > LIMIT_S:
            self.count += 1
            self._permit.until_s = float("-inf")
            if self._asking is None:
                logger.warning(
                    "agent=%s: this process stood still for %.1f s; handlers begin again when its group has answered",
                    self._agent,
                    still_s,
                )
                self._asking = asyncio.create_task(self._ask(now), name=f"standstill {self._agent}")
        elif self._asking is None:
            self._open(now)

    def _open(self, now: float) -> None:
        self._permit.until_s = now + LIMIT_S
        if self._permit.wanted:
            self._permit.wanted = False
            self._wake()

    async def _ask(self, since_s: float) -> None:
        while True:
            before = self.count
            if await self._known() and before == self.count:
                break
            await self._clock.sleep(PAUSE_S)
        self._asking = None
        now = self._clock.monotonic()
        logger.info("agent=%s: handlers begin again after %.2f s", self._agent, now - since_s)
        self._open(now)

    async def _known(self) -> bool:
        """Ask the group which records are still held; True if the answer is known for each of them."""
        member = self._member
        assert member is not None
        try:
            await self._clock.wait_for(member.confirm(), ANSWER_S)
            self._held.look(member)
            known = await self._locks.renew_all()
        except (TimeoutError, ClientError) as error:
            logger.debug("agent=%s: the group does not answer: %s", self._agent, error)
            return False
        except Exception:  # a fault of ours must not keep the handlers from beginning for ever
            logger.exception("agent=%s: asking what is still held failed, tried again", self._agent)
            return False
        self._held.look(member)  # locks may have been lost during the renewal
        return known
