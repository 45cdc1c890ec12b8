"""Tests of a slot that is lost, asked for or doubted while it is taken up: one step after the other."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

from flowshare.fleet.directory import Directory, WorkerAddress
from flowshare.fleet.slot_manager import SlotManager
from flowshare.log.base import LogError
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run

ME = WorkerAddress(1, "here", 9001)


class Slot:
    """One that nobody leads."""

    claim = handed_over_to = None
    epoch = 1

    def __init__(self, lost):
        self.lost = lost
        self.given_to = []

    async def standby(self):
        pass

    async def hand_over(self, to):
        self.given_to.append(to)

    async def lead(self, owner):
        pass

    def scan(self, prefix):
        return []

    def recheck(self):
        pass

    async def close(self):
        pass


class SlotContents:
    """Takes a slot up when it may, and lets go of it as slowly; notes both."""

    def __init__(self, clock):
        self.clock = clock
        self.steps = []
        self.may = asyncio.Event()
        self.fails = 0

    async def take_up(self, slot, entries):
        self.steps.append("takes up")
        await self.may.wait()
        if self.fails:
            self.fails -= 1
            raise LogError("not now")
        self.steps.append("took up")

    async def lay_down(self, slot):
        self.steps.append("lays down")
        await self.clock.sleep(1)
        self.steps.append("laid down")


class World:
    """A worker that is chosen for slot 0 and sure of it."""

    def __init__(self, clock):
        self.sure = True
        self.chosen = (0,)
        self.clock = clock
        self.contents = SlotContents(clock)
        directory = Directory(1, ME)
        self.slot_manager = SlotManager(
            directory=directory,
            peers=SimpleNamespace(tell_all=lambda *_, **__: None),
            make_slot=self.make,
            take_up=self.contents.take_up,
            lay_down=self.contents.lay_down,
            sure=lambda: self.sure,
            instance="me",
            clock=clock,
        )
        directory.map = SimpleNamespace(mine=lambda node_id: self.chosen)
        self.slot_manager.choose()

    def make(self, number, lost):
        self.slot = Slot(lost)
        return self.slot

    def doubt(self, doubt):
        self.sure = not doubt
        self.slot_manager.doubted(doubt)

    def taken_up_anew(self):
        """True if the slot is served; asserts the order of the steps: begun, laid down whole, begun again, served."""
        assert self.contents.steps == ["takes up", "lays down", "laid down", "takes up", "took up"]
        return self.slot_manager.served == {0}


def virtually(scenario):
    async def whole():
        world = World(LoopTimeClock())
        await scenario(world)
        world.contents.may.set()
        await world.slot_manager.close()  # or whichever test runs next meets its last tasks
        assert len(asyncio.all_tasks()) == 1

    run(whole())


def test_what_was_half_taken_up_is_laid_down_before_it_is_taken_up_anew():
    async def scenario(world):
        await world.clock.sleep(0.1)
        world.doubt(True)
        await world.clock.sleep(0.1)
        world.doubt(False)
        world.contents.may.set()
        await world.clock.sleep(5)

        assert world.taken_up_anew()

    virtually(scenario)


def test_nothing_is_claimed_while_the_session_is_in_doubt():
    async def scenario(world):
        await world.clock.sleep(0.1)
        world.doubt(True)
        world.contents.may.set()
        await world.clock.sleep(60)

        assert world.contents.steps == ["takes up", "lays down", "laid down"]
        assert not world.slot_manager.led
        assert not world.slot_manager.served

    virtually(scenario)


def test_a_worker_that_is_not_sure_claims_nothing_though_nobody_told_it():
    async def scenario(world):
        world.sure = False
        await world.clock.sleep(60)

        assert world.contents.steps == []
        world.doubt(False)
        await world.clock.sleep(1)
        assert world.contents.steps == ["takes up"]

    virtually(scenario)


def test_a_slot_that_was_lost_while_it_was_taken_up_is_claimed_again():
    async def scenario(world):
        await world.clock.sleep(0.1)
        world.slot.lost()
        world.contents.may.set()
        await world.clock.sleep(5)

        assert world.taken_up_anew()

    virtually(scenario)


def test_a_slot_that_is_asked_for_while_it_is_taken_up_is_laid_down_and_given_away():
    async def scenario(world):
        await world.clock.sleep(0.1)
        slot, world.chosen = world.slot, ()

        await world.slot_manager.hand_over(0, "another")

        assert world.contents.steps == ["takes up", "lays down", "laid down"]
        assert slot.given_to == ["another"]
        assert not world.slot_manager.led

    virtually(scenario)


def test_letting_go_is_not_cut_off_by_a_doubt():
    async def scenario(world):
        world.contents.fails = 1
        world.contents.may.set()
        await world.clock.sleep(0.5)
        assert world.contents.steps[-1] == "lays down"
        world.doubt(True)
        world.doubt(False)
        await world.clock.sleep(5)

        assert world.taken_up_anew()

    virtually(scenario)


def test_the_end_waits_for_what_was_half_taken_up_and_for_no_longer(caplog):
    caplog.set_level(logging.INFO, logger="flowshare.fleet.slot_manager")

    async def scenario(world):
        await world.clock.sleep(0.1)
        at_s = world.clock.monotonic()

        await world.slot_manager.close(wait_s=3.0)

        assert world.contents.steps == ["takes up", "lays down", "laid down"]
        assert world.clock.monotonic() - at_s < 2
        assert "not asked for" not in caplog.text

    virtually(scenario)


def test_the_end_does_not_wait_for_a_slot_that_cannot_be_given_away():
    async def scenario(world):
        world.contents.may.set()
        await world.clock.sleep(1)
        closed = asyncio.Event()

        async def never(to):
            await closed.wait()
            raise LogError("it was closed")

        async def close():
            closed.set()

        world.slot.hand_over, world.slot.close = never, close
        at_s = world.clock.monotonic()

        await world.slot_manager.close()

        assert world.clock.monotonic() - at_s < 5
        assert not world.slot_manager.led

    virtually(scenario)
