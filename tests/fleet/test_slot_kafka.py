"""Slots on real Kafkas; the one that forgets producers within seconds cannot be fenced by their epochs alone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flowshare.dev.broker import Wanted, running
from flowshare.fleet.state.slot import SlotState
from flowshare.log.base import NotLed
from flowshare.protocol import messages as m
from flowshare.slots.pruning import PruneLimits
from tests.fleet.slots import content, quick, real_fleet
from tests.kafka.fixtures import require_java
from tests.waiting import pause, until

pytestmark = [pytest.mark.asyncio, pytest.mark.java, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
FORGETS_S = 2.0
FORGETFUL = {
    "transactional.id.expiration.ms": str(int(1000 * FORGETS_S)),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "producer.id.expiration.ms": str(int(1000 * FORGETS_S)),
    "producer.id.expiration.check.interval.ms": "200",
}


@pytest.fixture(scope="module")
def forgetful():
    """A Kafka that forgets idle producers and transactional ids soon."""
    require_java()
    with running(Wanted(heap="512m", settings=FORGETFUL)) as broker:
        yield broker


async def start_of(fleet):
    answer = await fleet.kafka.send(m.ListOffsetsRequest(topic=fleet.topic, partition=0, timestamp_ms=m.EARLIEST))
    return answer.offset


async def end_of(fleet):
    answer = await fleet.kafka.send(m.ListOffsetsRequest(topic=fleet.topic, partition=0, timestamp_ms=m.LATEST))
    return answer.offset


def producer_of(slot):
    return slot._log._sender._producer


# --- every version ------------------------------------------------------------------------------------------------


async def test_a_slot_is_led_given_away_and_pruned(each_kafka, unique):
    async with real_fleet(each_kafka, unique("__flowshare_state.a")) as fleet:
        first = await fleet.process("a").slot(settings=quick(prune=PruneLimits(log_bytes=100_000)))
        big = [(b"g/big%d" % n, bytes(100_000)) for n in range(20)]
        await first.write(big)
        await asyncio.gather(*(first.write([(b"g/%d" % (n % 9), b"%d" % n)]) for n in range(1000)))
        await first.write([(key, None) for key, _ in big])
        for n in range(500):
            await first.write([(b"g/hot", b"%d" % n + bytes(1000))])

        async def pruned():
            return await start_of(fleet) > 0

        await until(pruned)
        await first.hand_over("b")
        epoch = first.epoch
        second = await fleet.process("b").slot()
        await second.write([(b"g/last", b"1")])

        assert content(second) == {**content(first), b"g/last": b"1"}
        assert len(content(second)) == 11
        assert second.epoch == epoch + 1


async def test_an_owner_whose_producer_epoch_is_old_is_refused(each_kafka, unique):
    async with real_fleet(each_kafka, unique("__flowshare_state.a")) as fleet:
        process = fleet.process("a")
        first = await process.slot()
        await first.write([(b"g/a", b"1")])
        await process.tails.close()  # it is frozen
        second = await fleet.process("b").slot()
        before = await end_of(fleet)

        with pytest.raises(NotLed):
            await first.write([(b"g/a", b"late")])

        assert await end_of(fleet) == before  # the broker did not take it
        assert len(process.lost) == 1
        assert content(second) == {b"g/a": b"1"}


# --- producers are forgotten --------------------------------------------------------------------------------------


async def test_an_owner_whose_transactional_id_expired_confirms_nothing_after_a_newer_claim(forgetful, unique):
    async with real_fleet(forgetful, unique("__flowshare_state.a")) as fleet:
        process = fleet.process("a")
        first = await process.slot()
        await first.write([(b"g/a", b"1")])
        await process.tails.close()  # it is frozen
        await pause(2 * FORGETS_S, "the broker forgets by its own clock")
        second = await fleet.process("b").slot()
        assert second.epoch == 2  # before the old owner thaws
        assert producer_of(second).producer_id != producer_of(first).producer_id
        before = await end_of(fleet)

        with pytest.raises(NotLed, match=r"b \(node 2\) claimed the slot in epoch 2"):
            await first.write([(b"g/a", b"late")])

        assert await end_of(fleet) == before + 1  # the broker took it
        await second.write([(b"g/b", b"2")])
        assert content(second) == {b"g/a": b"1", b"g/b": b"2"}


async def test_an_owner_whose_successor_was_forgotten_confirms_nothing_after_a_newer_claim(forgetful, unique):
    async with real_fleet(forgetful, unique("__flowshare_state.a")) as fleet:
        process, next_one = fleet.process("a"), fleet.process("b")
        first = await process.slot()
        await first.write([(b"g/a", b"1")])
        await process.tails.close()  # it is frozen
        second = await next_one.slot()
        assert producer_of(second).producer_id == producer_of(first).producer_id
        await pause(2 * FORGETS_S, "the broker forgets by its own clock")
        before = await end_of(fleet)

        with pytest.raises(NotLed, match=r"b \(node 2\) claimed the slot in epoch 2"):
            await first.write([(b"g/a", b"late")])

        assert await end_of(fleet) == before + 1  # the broker took it
        if second.state is not SlotState.LED:
            await second.lead(next_one.owner)
        try:
            await second.write([(b"g/b", b"2")])
        except NotLed:  # the broker knows the old owner's epoch only: the new one claims again
            await second.lead(next_one.owner)
            await second.write([(b"g/b", b"2")])
        assert content(second) == {b"g/a": b"1", b"g/b": b"2"}


class Child:
    """A process that leads the slot and writes; what it printed."""

    def __init__(self, bootstrap, topic):
        command = [sys.executable, "-m", "tests.fleet.slot_child", bootstrap, topic]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.split(maxsplit=1))

    def of(self, kind):
        return [text.strip() for word, text in tuple(self.lines) if word == kind]

    def said(self, kind, times=1):
        async def asked():
            return len(self.of(kind)) >= times

        return asked

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


@pytest.mark.parametrize("frozen_s", [0.5, 2 * FORGETS_S])
async def test_a_process_that_was_stopped_confirms_nothing_after_a_newer_claim(forgetful, unique, frozen_s):
    topic = unique("__flowshare_state.a")
    async with real_fleet(forgetful, topic) as fleet:
        slot = await fleet.process("b").slot(lead=False)
        child = Child(forgetful.bootstrap, topic)
        try:
            await until(child.said("confirmed", 200))
            child.process.send_signal(signal.SIGSTOP)
            await pause(frozen_s, "so long it is frozen")
            await slot.lead(fleet.processes[0].owner)
            counted = int(slot.scan(b"g/counter")[0][1])
            await slot.write([(b"g/claimed", b"%d" % counted)])
            assert child.of("lost") == []  # the claim came before it thawed
            child.process.send_signal(signal.SIGCONT)
            await until(child.said("lost"))

            confirmed = [int(number) for number in child.of("confirmed")]
            assert max(confirmed) <= counted
            assert content(slot) == {b"g/counter": b"%d" % counted, b"g/claimed": b"%d" % counted}
        finally:
            child.close()
