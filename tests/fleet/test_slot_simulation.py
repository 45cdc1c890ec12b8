"""Drawn histories of processes that lead one slot in turn, on a Kafka that breaks, waits, refuses and forgets.

What is confirmed counts: whoever leads later has it, whoever reads the log has it. A failing seed is printed; run it
alone with SEED=n SEEDS=1.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

import pytest

from flowshare.fleet.state.slot import SlotState
from flowshare.log.base import LogError, NotLed
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.slots.pruning import PruneLimits
from flowshare.slots.records import CHUNK_BYTES
from flowshare.transactions.coordinator import TransactionConfig
from tests.fleet.slots import content, on_virtual_time, quick
from tests.sim.seeds import play, seeds

SEEDS = seeds(60)
LENGTH_S = 40.0
HELD = (m.ProduceRequest, m.FetchRequest, m.InitProducerIdRequest)
PASSING = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)
FORGETS = TransactionConfig(id_expiration_ms=3_000, producer_expiration_ms=3_000)


class History:
    """One drawn history."""

    def __init__(self, seed):
        self.source = random.Random(seed)
        self.confirmed = {}
        self.met = Counter()
        self.written = 0

    async def live(self, fleet):
        source = self.source
        settings = quick(
            deadline_s=source.choice([3.0, 8.0]),
            idle_s=source.choice([2.0, 600.0]),
            renew_s=source.choice([5.0, 600.0]),
            prune=PruneLimits(log_bytes=source.choice([4_000, 1 << 20]), growth=2, step_bytes=300),
        )
        lives = []
        for name in "abc":
            process = fleet.process(name)
            lives.append(self._process(fleet, process, await process.slot(lead=False, settings=settings)))
        faults = asyncio.create_task(self._faults(fleet))
        await asyncio.gather(*lives)
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        await self._judge(fleet)

    async def _process(self, fleet, process, slot):
        source, end_s = self.source, fleet.clock.monotonic() + LENGTH_S
        writes = set()
        while fleet.clock.monotonic() < end_s:
            if slot.state is SlotState.LED:
                if source.random() < 0.02:
                    await self._hand_over(slot)
                for _ in range(source.randrange(4)):
                    writes.add(asyncio.create_task(self._write(slot)))
                await fleet.clock.sleep(source.uniform(0, 0.3) if source.random() < 0.95 else 4.0)
            else:
                await fleet.clock.sleep(source.uniform(0.5, 8))
                await self._lead(process, slot)
        await slot.close()
        await asyncio.gather(*writes)

    async def _write(self, slot):
        self.written += 1
        key, value = b"g/%d" % self.written, b"%d" % self.written
        if self.source.random() < 0.02:
            value += bytes(CHUNK_BYTES)
        try:
            await slot.write([(b"g/once", value), (key, value), (b"g/once", None)])
        except LogError as error:
            self.met[type(error).__name__] += 1
        else:
            self.confirmed[key] = value

    async def _lead(self, process, slot):
        before = dict(self.confirmed)
        try:
            await slot.lead(process.owner)
        except LogError:
            self.met["claims that failed"] += 1
            return
        self.met["claims"] += 1
        found = content(slot)
        assert {key: found.get(key) for key in before} == before, "an owner lacks what was confirmed before"

    async def _hand_over(self, slot):
        try:
            await slot.hand_over("another")
        except NotLed:
            return
        self.met["handed over"] += 1

    async def _faults(self, fleet):
        source, kafka = self.source, fleet.kafka
        while True:
            await fleet.clock.sleep(source.uniform(0.1, 4))
            kind = source.choice(HELD)
            match source.choice(["cut", "drop", "refuse", "hold", "late"]):
                case "cut":
                    await kafka.cut()
                case "drop":
                    kafka.drop_answers(kind)
                case "refuse":
                    kafka.refuse(m.ProduceRequest, source.choice(PASSING), source.randrange(1, 4))
                case "hold":
                    kafka.hold(kind)
                    await fleet.clock.sleep(source.choice([0.1, 5, 10]))
                    kafka.release(kind)
                case "late":
                    kafka.hold(m.ProduceRequest, late=True)
                    await fleet.clock.sleep(source.uniform(0, 5))
                    await kafka.cut()
                    kafka.release(m.ProduceRequest) if source.random() < 0.5 else None
                    await fleet.clock.sleep(source.uniform(0, 5))
                    if m.ProduceRequest in kafka._held:
                        kafka.release(m.ProduceRequest)

    async def _judge(self, fleet):
        kafka = fleet.kafka
        for kind in HELD:
            if kind in kafka._held:
                kafka.release(kind)
        kafka.refuse_no_more(m.ProduceRequest)
        process = fleet.process("d")
        slot = await process.slot(lead=False)
        await self._lead(process, slot)
        found = content(slot)
        assert {key: found.get(key) for key in self.confirmed} == self.confirmed, "what was confirmed does not count"
        await slot.write([(b"g/end", b"1")])
        self.met["confirmed"] += len(self.confirmed)
        self.met["epochs"] += slot.epoch


def drive(seed):
    history = History(seed)
    on_virtual_time(history.live, transactions=FORGETS if seed % 2 else None)
    return history.met


@pytest.fixture
def unlogged():
    """Kept log records would keep all worlds."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_confirmed_counts_whatever_happens(unlogged):
    met = sum(play(SEEDS, drive), Counter())
    print(dict(met))
    assert met["confirmed"] > 20 * len(SEEDS)
    assert met["NotLed"] > len(SEEDS)
    assert met["claims"] > 3 * len(SEEDS)
