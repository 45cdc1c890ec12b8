"""The lease counts from the question, ends by itself, and tells of each change once."""

from __future__ import annotations

from flowshare.fleet.slot_group import SlotLease
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run


def world(scenario):
    async def whole(clock):
        doubts = []
        await scenario(clock, SlotLease(clock, 5.0, doubts.append), doubts)

    run(whole(LoopTimeClock()))


def test_it_is_off_at_first_and_ending_it_then_is_no_news():
    async def scenario(clock, lease, doubts):
        lease.end()

        assert not lease.sure
        assert doubts == []

    world(scenario)


def test_it_counts_from_when_the_question_was_sent():
    async def scenario(clock, lease, doubts):
        sent_s = clock.monotonic()
        await clock.sleep(2)
        lease.proved(sent_s)
        await clock.sleep(2.9)
        before = lease.sure
        await clock.sleep(0.2)

        assert before
        assert not lease.sure
        assert doubts == [False, True]

    world(scenario)


def test_each_proof_makes_it_last_and_only_changes_are_told():
    async def scenario(clock, lease, doubts):
        for _ in range(10):
            lease.proved(clock.monotonic())
            await clock.sleep(4.9)
            assert lease.sure

        assert doubts == [False]
        lease.end()
        lease.end()
        assert doubts == [False, True]

    world(scenario)


def test_an_answer_that_comes_too_late_proves_nothing():
    async def scenario(clock, lease, doubts):
        sent_s = clock.monotonic()
        await clock.sleep(5)
        lease.proved(sent_s)

        assert not lease.sure
        assert doubts == []

    world(scenario)


def test_the_clock_ends_it_even_if_no_timer_ran():
    class Frozen:
        """A process that was stopped: time has passed, its timers have not run."""

        now_s = 0.0

        def monotonic(self):
            return self.now_s

        def call_later(self, delay_s, callback):
            return self

        def cancel(self):
            pass

    clock, doubts = Frozen(), []
    lease = SlotLease(clock, 5.0, doubts.append)
    lease.proved(0.0)
    before = lease.sure
    clock.now_s = 5.0

    assert before
    assert not lease.sure
    lease.proved(4.0)
    assert lease.sure
    assert doubts == [False, True, False], "who acts on changes hears of it, late as it is"
