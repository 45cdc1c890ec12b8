"""Plants known bugs in settling with outputs, one at a time; the tests of what they are in must catch each.

    python -m tests.share.settle_mutants [NAME …]

Three hunts: what a server decides and writes, what a slot's log and its lanes say of outputs on a Kafka, and what an
agent does with the answers. A mutant that lives is a hole in the tests. Exit code 1 if any lives or no longer fits the
source.
"""

from __future__ import annotations

import sys

from tests.sim.mutants import PYTEST, Hunt, Mutant, by, hunted, scenarios

DECIDED, ANSWERED, APART = "share/acknowledge", "server/share/settle", "server/share/settle_apart"
OWNER, WRITING, FOLLOWS = "server/share/owner", "server/share/writing", "server/runtime/settled"
PREPARED = "slots/prepared"
OUTPUTS, LANES, LANE = "fleet/state/outputs", "fleet/state/lanes", "fleet/state/lane"
SETTLER, UNITS = "agents/feed/settler", "agents/feed/settle_units"

SERVER_MUTANTS = (
    Mutant("a settle may release", DECIDED, "        if batch.types.strip(_SETTLING):\n", "        if False:\n"),
    Mutant(
        "what is finished is settled again",
        DECIDED,
        "        if batch.first < self._window.start:\n            return Inv",
        "        if batch.first < self._window.start:\n            return None\n            return Inv",
    ),
    Mutant(
        "a hole is settled",
        DECIDED,
        "        if decided != batch.last - batch.first + 1:\n",
        "        if False:\n",
    ),
    Mutant(
        "what is refused beside a hole stays pending",
        DECIDED,
        "            self.undo(changes)\n            return InvalidRecordState(f",
        "            return InvalidRecordState(f",
    ),
    Mutant(
        "what holds of a refused settle stays pending",
        DECIDED,
        "        plan.undo(0)\n        raise InvalidRecordState(f",
        "        raise InvalidRecordState(f",
    ),
    Mutant(
        "what holds of a refused settle is settled",
        DECIDED,
        "    if refusal is not None:\n        plan.undo(0)\n        raise Inv",
        "    if refusal is not None and not plan._changes:\n        plan.undo(0)\n        raise Inv",
    ),
    Mutant(
        "what a settle waits for stays pending",
        DECIDED,
        "    plan.undo(0)\n    return refusal is None\n",
        "    return refusal is None\n",
    ),
    Mutant(
        "a settle in order does not wait",
        ANSWERED,
        "        if request.ordered:\n            await owner.turn",
        "        if False:\n            await owner.turn",
    ),
    Mutant(
        "a settle in order is not called",
        OWNER,
        "                    self._turns.release(self.partition.start_offset)\n",
        "                    pass\n",
    ),
    Mutant(
        "a settle whose records are gone goes on waiting",
        OWNER,
        "            self._writer.keep(update, beside)\n            self._turns.look()\n",
        "            self._writer.keep(update, beside)\n",
    ),
    Mutant(
        "outputs in order may have gaps",
        ANSWERED,
        "    if request.ordered and len(",
        "    if False and len(",
    ),
    Mutant(
        "a refused range is named whole",
        DECIDED,
        "        if size == 1 or size > room:\n",
        "        if True:\n",
    ),
    Mutant(
        "all of a refused range is named one by one",
        DECIDED,
        "            if tried(one) is None:\n",
        "            if False:\n",
    ),
    Mutant(
        "the attempt that is meant does not count",
        DECIDED,
        "        if batch.attempt:\n            _check_attempt(window, first, last, batch.attempt)\n        if kind",
        "        if kind",
    ),
    Mutant("a settle is of any size", ANSWERED, "    if offsets > OFFSETS_MAX or len(", "    if len("),
    Mutant("a settle of no records is taken", ANSWERED, "    if not request.acks:\n", "    if False:\n"),
    Mutant(
        "what an output is refused for is not told",
        ANSWERED,
        "message=message, outputs=outputs)",
        "message=message)",
    ),
    Mutant(
        "which records are refused is not told", ANSWERED, "message=message, refused=error.ranges)", "message=message)"
    ),
    Mutant(
        "the lock's time is not told", ANSWERED, "ShareSettleResponse(lock_timeout_ms=lock_ms)", "ShareSettleResponse()"
    ),
    Mutant(
        "a settle is answered before it is written",
        ANSWERED,
        "        await owner.settle(",
        "        owner.settle(",
    ),
    Mutant(
        "a settle is written without its outputs",
        OWNER,
        "return self._decided(decision, batches, outputs)",
        "return self._decided(decision, batches)",
    ),
    Mutant(
        "settles are taken without end",
        OWNER,
        '        if self._writer.full:\n            raise StorageError(f"{QUEUE_MAX} steps wait to be written for '
        'share-partition {self.key}; try again later")\n        decision = self.partition.settle(',
        "        decision = self.partition.settle(",
    ),
    Mutant(
        "who resumes is told what is not known yet",
        "server/share/resume",
        "        await owner.all_known()",
        "        pass",
    ),
    Mutant(
        "a refused output fails all that are written with it",
        WRITING,
        "            if not places:\n                left.append(step)\n                continue\n",
        "",
    ),
    Mutant(
        "an output is refused by its place among all",
        WRITING,
        "places = {index - begin: why for",
        "places = {index: why for",
    ),
    Mutant(
        "the next of a key leaves behind a refused settle",
        WRITING,
        "        if len(left) < len(steps) and self._partition.ordered:\n",
        "        if False:\n",
    ),
    Mutant(
        "what could not be written stays pending",
        WRITING,
        "if step.decision is not None and self._partition.abort(",
        "if False and self._partition.abort(",
    ),
    Mutant("what follows is made of what is not acquired", FOLLOWS, " if run.state is RecordState.ACQUIRED]", "]"),
    Mutant(
        "what follows is made of any delivery",
        FOLLOWS,
        "            if run.delivery_count == change.delivery_count:\n",
        "            if True:\n",
    ),
    Mutant("what goes with a settle that is made already is written", FOLLOWS, "beside if made else ()", "beside"),
    Mutant("what follows covers more than was settled", FOLLOWS, "last=min(run.last, change.last)", "last=run.last"),
    Mutant(
        "only the first run of a settle follows",
        FOLLOWS,
        "        for run in acquired[at:]:\n",
        "        for run in acquired[at : at + 1]:\n",
    ),
)

FLEET_MUTANTS = (
    Mutant(
        "a row at the ledger's number is undone",
        PREPARED,
        "kept.row.number <= ledger else",
        "kept.row.number < ledger else",
    ),
    Mutant(
        "a row that is marked decided is looked up",
        PREPARED,
        "        if kept.decided:\n            return Fate.COMMITTED\n        ledger",
        "        ledger",
    ),
    Mutant(
        "what is not known is undone",
        PREPARED,
        "        if ledger is None:\n            return Fate.UNDECIDED\n",
        "        if ledger is None:\n            return Fate.UNDONE\n",
    ),
    Mutant(
        "a ledger that somebody moved is one's own",
        PREPARED,
        "    if ledger == number:\n        return Fate.COMMITTED\n",
        "    if ledger >= number:\n        return Fate.COMMITTED\n",
    ),
    Mutant("numbers begin anew with each leader", PREPARED, "self.last = epoch << EPOCH_BITS", "self.last = 0"),
    Mutant(
        "numbers of rows are used again",
        PREPARED,
        "self.last = max(self.last, last_number(self.lane, rows, ledger))",
        "self.last = max(self.last, ledger)",
    ),
    Mutant(
        "rows of what was not done stay",
        PREPARED,
        "gone: list[Entry] = [(row.key, None) for row in self._undone]",
        "gone: list[Entry] = []",
    ),
    Mutant(
        "what others left undone is committed by the next transaction",
        PREPARED,
        "        self._undone = list(dict.fromkeys([*self._undone, *undone]))\n",
        "",
    ),
    Mutant("what was undone here stays", PREPARED, "        self._undone += self._open.rows\n", ""),
    Mutant(
        "rows are forgotten before their end is confirmed",
        PREPARED,
        "        self._open = Begun(self.last, rows, (*gone, *made))\n",
        "        self._open, self._undone = Begun(self.last, rows, (*gone, *made)), []\n",
    ),
    Mutant(
        "what is under way is decided",
        PREPARED,
        "if self._open is not None and kept.row.number == self._open.number:",
        "if False:",
    ),
    Mutant(
        "outputs are committed beside their row",
        OUTPUTS,
        "        row = self._slot.write([*noted, *begun.entries])\n        await self._clock.wait_for(together(row, "
        "lane.send(begun.number, pieces)), self._settings.answer_s)\n",
        "        self._slot.write([*noted, *begun.entries])\n        await self._clock.wait_for("
        "lane.send(begun.number, pieces), self._settings.answer_s)\n",
    ),
    Mutant(
        "a share-partition is loaded while a settle is under way",
        OUTPUTS,
        "if not self._flying[share] and Fate.UNDECIDED not in",
        "if Fate.UNDECIDED not in",
    ),
    Mutant(
        "a share-partition is loaded before its settles are decided",
        OUTPUTS,
        "if not self._flying[share] and Fate.UNDECIDED not in fates.values():",
        "if not self._flying[share]:",
    ),
    Mutant(
        "what was undone follows, too",
        OUTPUTS,
        "for kept in rows if fates[kept.row] is Fate.COMMITTED]",
        "for kept in rows]",
    ),
    Mutant("rows stay when what follows is written", OUTPUTS, "committed), *gone])", "committed)])"),
    Mutant(
        "a lane is used that the log does not know",
        LANES,
        "        if used.noted is None:\n            await self._note(used)\n",
        "        if False:\n            await self._note(used)\n",
    ),
    Mutant(
        "a commit without an answer is taken for done",
        OUTPUTS,
        "        return await self._lanes.take(used)\n\n    def _failed",
        "        used.lane.book.committed()\n        return Fate.COMMITTED\n\n    def _failed",
    ),
    Mutant(
        "a lost commit is undone",
        OUTPUTS,
        "        if found is not Fate.COMMITTED:\n            self._counts.aborted += 1\n            return",
        "        if True:\n            self._counts.aborted += 1\n            return",
    ),
    Mutant(
        "a slot that is given away says that what is being ended was not done",
        OUTPUTS,
        "            error = Undecided if used.state is LaneState.ENDING else NotLed\n",
        "            error = NotLed\n",
    ),
    Mutant(
        "who is not to blame fails with who is",
        OUTPUTS,
        "return self._again([one for at, one in enumerate(settles) if at not in by_settle], StorageError(str(blamed)))",
        "return [one.fail(blamed) for one in settles] and []",
    ),
    Mutant(
        "rows lie on when their settle is written",
        OUTPUTS,
        "                settle.done.set_result([(row.key, None)])\n",
        "                settle.done.set_result([])\n",
    ),
    Mutant(
        "the ledger is read before the lane is taken over",
        LANE,
        "                self._producer = await self._fence()\n",
        "                self._producer = (await self._ask(self._init())).producer\n",
    ),
    Mutant(
        "who lost the slot ends what its successor has open",
        LANE,
        "                await self._keep(self.note)  # a failure",
        "                pass  # a failure",
    ),
    Mutant("whoever has an older ledger is believed", LANE, "            await self._write_ledger()\n", ""),
    Mutant(
        "a reader of the ledger sees what is open",
        LANE,
        "require_stable=stable)",
        "require_stable=False)",
    ),
    Mutant("transactions count nothing", LANE, "self._count(number))", "self._add_ledger())"),
    Mutant(
        "a batch that is there already fails",
        LANE,
        "            if answer.error is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:\n                check(",
        "            if True:\n                check(",
    ),
    Mutant(
        "sequence numbers of a lane begin anew",
        LANE,
        "            self._sequences[place] = (sequence + piece.records) & SEQUENCE_MASK\n",
        "",
    ),
    Mutant(
        "a lane forgets where it wrote to",
        PREPARED,
        "        return LaneNote(self.last, (*sorted",
        "        return LaneNote((), (*sorted",
    ),
    Mutant(
        "an abort goes to all that the note names",
        PREPARED,
        "ends = [((*before, *self.last), True)] if self.committed else [(before, True), (self.last, False)]",
        "ends = [((*before, *self.last), bool(self.committed))]",
    ),
    Mutant(
        "an end is not noted before the fence",
        LANE,
        "        if self.note != EMPTY:\n            await self._keep(self.note)\n        producer",
        "        producer",
    ),
    Mutant(
        "what a predecessor was telling is aborted",
        LANE,
        "                await self._end(committed=self.note.being_ended",
        "                await self._end(committed=False and self.note.being_ended",
    ),
    Mutant(
        "a commit beside the fence is not seen",
        LANE,
        "        if self._open_at is not None and await self._read_ledger(stable=False) != self._open_at:\n",
        "        if False:\n",
    ),
    Mutant(
        "what a lane told is told again for ever",
        LANE,
        "        await self._keep(EMPTY)\n        self.note = EMPTY\n",
        "        self.note = EMPTY\n",
    ),
    Mutant(
        "a broker that is lost while a lane begins is not seen",
        LANE,
        "        if self.shaken or self",
        "        if self",
    ),
    Mutant(
        "partitions without a leader are told",
        LANE,
        "        if not_led := {place for place, (leader, _) in leaders.items() if leader == NOT_LED}:\n",
        "        if not_led := set[Place]():\n",
    ),
    Mutant(
        "a new leader while partitions are told is not seen",
        LANE,
        "        if leaders != await self._leaders():\n",
        "        if False:\n",
    ),
    Mutant(
        "a lane whose broker was lost in use is used on",
        LANES,
        "        if used.lane.shaken:\n            self._take_again(used)\n",
        "",
    ),
    Mutant("partitions rest no longer than for a while", OUTPUTS, " or piece.place in waited_for\n", "\n"),
    Mutant(
        "all lanes are used that recovered",
        OUTPUTS,
        " and self._busy < self._settings.lanes_max:\n",
        ":\n",
    ),
    Mutant(
        "what is refused for good is tried again",
        LANE,
        "raise Blamed(refused or passing)",
        "raise StorageError(str(found))",
    ),
)

AGENT_MUTANTS = (
    Mutant(
        "two settles of a partition are under way",
        SETTLER,
        "if waiting.under_way and not (self._ordered and waiting.units):",
        "if False:",
    ),
    Mutant(
        "what is lost is settled",
        SETTLER,
        "            if unit.has_lost():\n                self._lost(unit, ())\n                continue\n",
        "",
    ),
    Mutant(
        "what has no known outcome is sent again",
        SETTLER,
        "code is ErrorCode.NETWORK_EXCEPTION or code is ErrorCode.UNKNOWN_SERVER_ERROR or code in LOST:",
        "code in LOST:",
    ),
    Mutant(
        "what is not held is settled again",
        SETTLER,
        "left = [unit for unit in units if gone.isdisjoint(unit.offsets())]",
        "left = list(units)",
    ),
    Mutant(
        "who was settled with a lost record is lost",
        SETTLER,
        "            if not gone.isdisjoint(unit.offsets()):\n                self._lost(",
        "            if True:\n                self._lost(",
    ),
    Mutant(
        "what a void batch held is not given back",
        SETTLER,
        "        if kept:\n            ending.given_back(kept)\n",
        "",
    ),
    Mutant(
        "what is under way is renewed",
        SETTLER,
        "                chunk.settling.add(record.offset)\n",
        "                pass\n",
    ),
    Mutant(
        "what has ended is not renewed",
        SETTLER,
        "                chunk.settling.discard(record.offset)\n",
        "                pass\n",
    ),
    Mutant(
        "a refused output fails its neighbours",
        SETTLER,
        "        again = [unit for unit in units if unit not in first]\n",
        "        again: list[Unit] = []\n",
    ),
    Mutant("what goes again loses its place", SETTLER, "key=order.__getitem__, reverse=True", "key=order.__getitem__"),
    Mutant(
        "who is to blame is never settled alone",
        SETTLER,
        "again, trouble.alone = not trouble.alone and len(output.owners) > 1, True",
        "again = False",
    ),
    Mutant(
        "who is to be settled alone has company",
        SETTLER,
        "if units and (unit.alone or units[0].alone or full or",
        "if units and (full or",
    ),
    Mutant(
        "a topic is looked up for ever",
        SETTLER,
        "            again, trouble.looked_up = not trouble.looked_up, True\n",
        "            again = True\n",
    ),
    Mutant("a gone topic is not forgotten", SETTLER, "            self._producer.forget_topic(topic)\n", ""),
    Mutant(
        "a batch that is too large stays as it is",
        SETTLER,
        "self._batch_bytes[topic] = min(smaller, self._batch_bytes.get(topic, BATCH_BYTES))",
        "pass",
    ),
    Mutant(
        "a server that cannot now is asked at once",
        SETTLER,
        "trouble.due_s = now_s + USUAL",
        "trouble.due_s = now_s + 0 * USUAL",
    ),
    Mutant(
        "what cannot be written is tried for ever",
        SETTLER,
        "        if now_s >= unit.until_s:\n",
        "        if False:\n",
    ),
    Mutant(
        "a settle has any number of records",
        SETTLER,
        "full = records + len(unit.records) > SETTLE_RECORDS_MAX or",
        "full =",
    ),
    Mutant("a settle has any size", SETTLER, " or full or batches.bytes >= SETTLE_BYTES_MAX):", " or full):"),
    Mutant(
        "a record is settled twice in one step",
        SETTLER,
        "        if len(set(offsets)) < len(offsets):\n",
        "        if False:\n",
    ),
    Mutant(
        "what is settled is not counted off",
        SETTLER,
        "        for unit in units:\n            self._count(unit, -1)\n",
        "        for unit in units:\n",
    ),
    Mutant(
        "outputs of rejected records count as sent",
        SETTLER,
        "            if unit.ending.types == ACCEPT:\n",
        "            if True:\n",
    ),
    Mutant("acks say of no delivery", UNITS, "unrun, attempt_of(chunk, record.offset), counter", "unrun, 0, counter"),
    Mutant(
        "neighbours with other outcomes are one range",
        UNITS,
        "            said.setdefault(says, []).append",
        "            said.setdefault(next(iter(said), says), []).append",
    ),
    Mutant(
        "a settle that could not be sent stays under way",
        SETTLER,
        "            self._over(waiting, units)\n            self._blame",
        "            self._blame",
    ),
    Mutant(
        "what could not be looked up waits for ever",
        SETTLER,
        "                        self._failed(unit, error)\n                    else:\n",
        "                        waiting.units.append(unit)\n                    else:\n",
    ),
)


HUNTS = (
    Hunt(
        SERVER_MUTANTS,
        ".",
        (),
        by(
            (
                ("steps", (*PYTEST, "tests/share/test_settle.py", "tests/server/test_settled.py")),
                ("server's tests", (*PYTEST, "tests/server/test_settle.py")),
                ("scenarios", scenarios("X", slow=False)),
            )
        ),
    ),
    Hunt(
        FLEET_MUTANTS,
        ".",
        (),
        by(
            (
                ("log's steps", (*PYTEST, "tests/slots/test_prepared.py")),
                (
                    "leaders' tests",
                    (
                        *PYTEST,
                        "tests/fleet/test_outputs.py",
                        "tests/fleet/test_markers.py",
                        "tests/fleet/test_lanes.py",
                    ),
                ),
            )
        ),
    ),
    Hunt(AGENT_MUTANTS, ".", (), by((("settler's tests", (*PYTEST, "tests/agents/test_settler.py")),))),
)


if __name__ == "__main__":
    sys.exit(bool(hunted(HUNTS, sys.argv[1:])))
