"""Plants known bugs in the order by key, one at a time; steps on the core, scenarios or servers' tests must catch each.

    python -m tests.share.order_mutants [NAME …]

A mutant that lives is a hole in the tests. Exit code 1 if any lives or no longer fits the source.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.share.mutants import PYTEST, ROOT, UNCOMPILED, Hunt, Mutant, by, scenarios

HEADS, BY_KEY, OWNER = "share/heads", "share/acquire_by_key", "server/share/owner"
ORDERED = "server/share/ordered_fetch"
PARKING, PARKED_KEYS = "share/parking", "server/share/parked_keys"

MUTANTS = (
    Mutant("what stands behind another of its key is free", HEADS, "if tail is not None:", "if False:"),
    Mutant(
        "records without a key wait for each other",
        HEADS,
        "            if key:\n                tail = tails.get(key)",
        "            if True:\n                tail = tails.get(key)",
    ),
    Mutant("a head that is settled frees nothing", HEADS, "            if following[at]:\n", "            if False:\n"),
    Mutant(
        "the next of a key is blocked for ever",
        HEADS,
        "                if states[at] == BLOCKED:\n",
        "                if False:\n",
    ),
    Mutant(
        "who walks a key stops at what is settled",
        HEADS,
        "            if states[at] not in SETTLED:\n                if states",
        "            if True:\n                if states",
    ),
    Mutant("a new head is not offered", HEADS, "        window.offer(offset)\n", ""),
    Mutant("a chain is settled in any order", HEADS, "return before is None or before in self.ending", "return True"),
    Mutant(
        "a range may begin within a chain",
        HEADS,
        "if before is not None and before < first and before not in self.ending:",
        "if False:",
    ),
    Mutant(
        "only the record just before counts in a chain",
        HEADS,
        "            before = self.chained.get(before)\n",
        "            before = None\n",
    ),
    Mutant(
        "what comes back within a chain is free",
        HEADS,
        "                    self._window.put(offset, offset, new, BLOCKED)\n",
        "                    pass\n",
    ),
    Mutant(
        "what comes back stays in its chain",
        HEADS,
        "                del self.chained[offset]\n\n    def _skip",
        "\n    def _skip",
    ),
    Mutant(
        "what is given back counts as settled",
        HEADS,
        "        self.ending.difference_update(range(first, last + 1))\n        window, following",
        "        window, following",
    ),
    Mutant(
        "what ends within a chain frees the next",
        HEADS,
        "                if before is not None:\n                    if before in self.ending:\n",
        "                if False:\n                    if before in self.ending:\n",
    ),
    Mutant(
        "what is released frees the next before it is written",
        "share/acknowledge",
        "            if window.heads is not None and state.terminal:\n                window.heads.ends(low, high)",
        "            if window.heads is not None:\n                window.heads.ends(low, high)",
    ),
    Mutant(
        "a single accept frees nothing before it is written",
        "share/acknowledge",
        "        window.heads.ends(offset, offset)\n",
        "        pass\n",
    ),
    Mutant(
        "the next of a parked key is free before the write",
        HEADS,
        "if self.hashes[offset - base] not in self.single]",
        "if True]",
    ),
    Mutant("what comes behind an accept under way is blocked", HEADS, "if tail not in ending:", "if True:"),
    Mutant(
        "an accept that was not written leaves the next one free",
        HEADS,
        "            if state in (AVAILABLE, DELAYED):\n                window.let_go",
        "            if False:\n                window.let_go",
    ),
    Mutant(
        "what was acquired behind an accept that was not written may be settled",
        HEADS,
        "                self.chain(offset, at)\n",
        "                pass\n",
    ),
    Mutant(
        "what was picked behind an accept that was not written leaves",
        "share/acquire_by_key",
        "if window.heads is not None and window.heads.aborts != picked.aborts:",
        "if False:",
    ),
    Mutant(
        "what vanishes behind an accept under way ends its key",
        HEADS,
        "            if ending is not None and ending in self.ending:\n",
        "            if False:\n",
    ),
    Mutant(
        "who renews the rest of a chain loses its head",
        "share/acknowledge",
        "    if window.heads is not None and window.heads.chained:\n        pieces",
        "    if False:\n        pieces",
    ),
    Mutant(
        "who waits is not woken before the accept is written",
        "server/share/owner",
        "            self.waiting.look()  # the next of its keys are free, to leave with the same write\n",
        "            pass\n",
    ),
    Mutant(
        "a cut keeps who waited last",
        HEADS,
        "        self.tails.clear()\n        for offset in [",
        "        for offset in [",
    ),
    Mutant("a cut keeps the keys of what was lost", HEADS, "        self.known_end = min(self.known_end, end)\n", ""),
    Mutant("a cut keeps its chains", HEADS, "[offset for offset in self.chained if offset >= end]", "[]"),
    Mutant("a cut keeps what nothing may pass", HEADS, "        self.barrier = min(self.barrier, end - 1)\n", ""),
    Mutant(
        "a cut of all keeps what nothing may pass",
        "share/window",
        "                self.heads.barrier = min(self.heads.barrier, end - 1)\n",
        "",
    ),
    Mutant("a cut of all keeps its keys", "share/window", "                self.heads.known_end = end\n", ""),
    Mutant(
        "a cut in a gap that was passed is not seen",
        "share/partition",
        "window.heads.known_end = min(window.heads.known_end, end_offset)",
        "pass",
    ),
    Mutant(
        "what a reload finds free counts as known",
        "share/partition",
        "        if known_end >= window.end:\n            return window.tally[AVAILABLE]\n",
        "        if True:\n            return window.tally[AVAILABLE]\n",
    ),
    Mutant("the window is not bounded", BY_KEY, "or window.end - window.start < span_max", "or True"),
    Mutant(
        "nothing holds all keys up",
        BY_KEY,
        "if window.start <= heads.barrier and window.start < window.end:",
        "if False:",
    ),
    Mutant(
        "what is held and gone holds nothing up",
        BY_KEY,
        "        if run.state in _HELD:\n            heads.barrier",
        "        if False:\n            heads.barrier",
    ),
    Mutant(
        "what is free and gone stays",
        BY_KEY,
        "        if run.state in _FREE:\n            stored",
        "        if False:\n            stored",
    ),
    Mutant(
        "a closed batch passes what is open before it",
        BY_KEY,
        "    if window.start < min(first, window.end):\n",
        "    if False:\n",
    ),
    Mutant(
        "a closed batch is passed",
        BY_KEY,
        "heads.known_end, heads.barrier = last + 1, last",
        "heads.known_end = last + 1",
    ),
    Mutant("a reload hands out what stands behind", BY_KEY, "    if state in _FREE:\n", "    if False:\n"),
    Mutant(
        "a reload leaves a delay to what waits",
        BY_KEY,
        "        window.let_go(offset, offset)\n        window.put(offset, offset, state",
        "        window.put(offset, offset, state",
    ),
    Mutant(
        "a reload forgets chains",
        BY_KEY,
        "        assert before is not None\n        heads.chain(before, offset)\n",
        "        pass\n",
    ),
    Mutant(
        "what is not known is handed out",
        BY_KEY,
        "heads.known_end - 1\n    last_delivery",
        "window.end - 1\n    last_delivery",
    ),
    Mutant(
        "a pick counts no delivery",
        BY_KEY,
        "        count = before_this + 1\n",
        "        count = before_this\n",
    ),
    Mutant(
        "as many keys are begun as there is room for",
        BY_KEY,
        "left, end = min(ask.records, ask.heads or ask.records),",
        "left, end = ask.records,",
    ),
    Mutant("a last delivery comes with others", BY_KEY, "if count == last_delivery:", "if False:"),
    Mutant("redeliveries are new", BY_KEY, "if ask.only_new and count:", "if False:"),
    Mutant("suspects come with others", BY_KEY, "in _without(first, last, without):", "in _without(first, last, ()):"),
    Mutant(
        "a redelivered head is followed",
        BY_KEY,
        "        if not count:\n            chains.lead",
        "        if True:\n            chains.lead",
    ),
    Mutant("what was delivered before follows a head", BY_KEY, " or window.counts[at]:", ":"),
    Mutant("a chain is one too long", BY_KEY, "if place >= self._most or", "if place > self._most or"),
    Mutant(
        "chains do not count as records",
        BY_KEY,
        "chains.take_next(room - begun - chains.size, taken)",
        "chains.take_next(room, taken)",
    ),
    Mutant(
        "what follows far ahead comes in pieces",
        BY_KEY,
        "room = ask.records if begun < heads_max else min(ask.records, FAR_MAX)",
        "room = ask.records",
    ),
    Mutant(
        "what follows takes the room of heads",
        BY_KEY,
        "spare, begun, at = ask.records - heads_max, 0, 0",
        "spare, begun, at = ask.records, 0, 0",
    ),
    Mutant("what was not found is handed out", BY_KEY, "if missing else ()", "if False else ()"),
    Mutant(
        "what could not be read costs a delivery",
        "share/lapse",
        "            window.set_count(first, last, count - 1)\n",
        "",
    ),
    Mutant(
        "what is being read when its lock lapses costs a delivery", "share/lapse", "if hold.unconfirmed:", "if False:"
    ),
    Mutant(
        "what is being read is stored as delivered",
        "share/window",
        "if hold is not None and hold.unconfirmed:",
        "if False:",
    ),
    Mutant("what is confirmed is none of the member's", BY_KEY, "        hold.unconfirmed = False\n", "        pass\n"),
    Mutant("a suspect is handed out before its key is known", "share/quarantine", " and one < heads.known_end", ""),
    Mutant(
        "who knows no parked keys gets their suspects",
        "share/quarantine",
        "if singles or heads.hashes[one - window.base] not in heads.single",
        "if True",
    ),
    Mutant("a suspect that is put back is none any more", "share/quarantine", "        self._take_back(window)\n", ""),
    Mutant(
        "who holds a key overtakes who waits and holds none",
        ORDERED,
        "return min(heads, max(left, 0 if want.member_id in partition.holders else 1))",
        "return heads",
    ),
    Mutant(
        "who is first by the group's limit leaves the key to others",
        ORDERED,
        "if partition.choosy or partition.first_served(now_ms) is not None:",
        "if partition.choosy:",
    ),
    Mutant(
        "members that wait are woken as they came",
        "server/runtime/waiting",
        "poor = (one for one, (member_id, _) in itertools.chain((first,), line) if member_id not in held)",
        "poor = iter(())",
    ),
    Mutant(
        "one that may not take a parked key's record is woken for it",
        "server/share/waiters",
        "apart=bool(self._parked))",
        "apart=False)",
    ),
    Mutant(
        "a fetch that waits for a write stays in line",
        "server/share/fetch",
        "                self._step_aside()\n",
        "                pass\n",
    ),
    Mutant(
        "what nobody can get any more stays locked",
        "server/share/fetch",
        "if self._waiter.abandoned:\n                self",
        "if False:\n                self",
    ),
    Mutant(
        "an unparking holds before it is written",
        PARKED_KEYS,
        "beside=self.writes([(key, changed)])",
        "beside=self.apply([(key, changed)])",
    ),
    Mutant(
        "a parked key's read error is for ever",
        "server/share/dead_letters",
        "return list(range(first, last + 1))",
        "raise",
    ),
    Mutant(
        "the order of parked keys is forgotten",
        "server/records/configs",
        "parked := await self._service.coordinator.parked_keys(group_id)",
        "parked := 0",
    ),
    Mutant("what another one holds is confirmed", BY_KEY, "if hold_id == picked.hold_id:", "if True:"),
    Mutant(
        "retention takes what is held",
        "share/lapse",
        "        if state in (ACQUIRED, PENDING):\n            if until",
        "        if False:\n            if until",
    ),
    Mutant(
        "a lost connection frees its heads", "share/partition", "if died and not gone and self.ordered:", "if False:"
    ),
    Mutant("a new leader frees what is held", "share/reload", "    may_live = lives or ", "    may_live = lives and "),
    Mutant("what is held by a process that ended is waited for", "share/reload", " and member_id not in gone)", ")"),
    Mutant(
        "a single record of a chain is settled in any order",
        "share/acknowledge",
        "    if window.heads is not None and window.heads.chained:\n        return None\n",
        "",
    ),
    Mutant(
        "a single commit frees nothing",
        "share/acknowledge",
        "    if window.heads is not None:\n        return False\n",
        "",
    ),
    Mutant(
        "what will be given back counts as settled",
        "share/acknowledge",
        "if window.heads is not None and state.terminal:",
        "if window.heads is not None:",
    ),
    Mutant(
        "what waits for another one waits for its time too",
        "share/acknowledge",
        "    if window.heads is None:\n        return [(change.first, change.last)]",
        "    if True:\n        return [(change.first, change.last)]",
    ),
    Mutant(
        "a suspect waits for nobody to be done",
        "share/quarantine",
        "            return Admission(nothing=True)\n        return Admission(head=",
        "            pass\n        return Admission(head=",
    ),
    Mutant("what retention took comes back", ORDERED, "        self._drop_gone()\n        try:", "        try:"),
    Mutant(
        "what was archived before is not waited for",
        OWNER,
        "(durable or self._durable_acquire",
        "(self._durable_acquire",
    ),
    Mutant("what has no room stays held", ORDERED, "            partition.put_back(rest)\n", ""),
    Mutant(
        "what could not be read stays held",
        ORDERED,
        "        except BaseException:\n            partition.put_back(picked)\n",
        "        except BaseException:\n",
    ),
    Mutant(
        "what nobody waits for any more stays held",
        ORDERED,
        "        if want.waiter.abandoned:\n            partition.put_back(picked)\n",
        "        if want.waiter.abandoned:\n",
    ),
    Mutant(
        "ranges come without their records",
        ORDERED,
        "        if not want.with_records:\n            raise",
        "        if False:\n            raise",
    ),
    Mutant("a head's member asks for no chain", ORDERED, "            chain=want.chain,\n", "            chain=1,\n"),
    Mutant(
        "a fetch brings the first batch's heads only",
        ORDERED,
        "if free >= enough or (rounds >= PLACE_ROUNDS and free) or",
        "if free or",
    ),
    Mutant(
        "a reload's free records of a key are all heads",
        HEADS,
        "                    states[offset - base] = BLOCKED\n                    blocked += 1\n",
        "                    blocked += 0\n",
    ),
    Mutant(
        "a reload's keys have no next",
        HEADS,
        "                    following[tail - base] = offset - tail\n                    if tail in self.ending:",
        "                    if tail in self.ending:",
    ),
    Mutant(
        "what a reload left open is not placed",
        BY_KEY,
        "            heads.append(range(at, until + 1), keys)\n",
        "            pass\n",
    ),
    Mutant(
        "keys that come one at a time begin chains",
        BY_KEY,
        "if far and (not single or hashes[offset - window.base] not in single):",
        "if far:",
    ),
    Mutant(
        "keys that come one at a time go to anybody",
        BY_KEY,
        "without = ask.without if ask.singles else",
        "without = ask.without if True else",
    ),
    Mutant(
        "an acknowledgement of an earlier delivery counts",
        "share/acknowledge",
        "        if count != attempt:",
        "        if False:",
    ),
    Mutant(
        "what is finished is renewed",
        "share/acknowledge",
        "    if batch.attempt and _RENEW in batch.types:\n",
        "    if False:\n",
    ),
    Mutant(
        "one delivery that is no more has all refused",
        "share/acknowledge",
        "        if any(batch.attempt for batch in batches):\n",
        "        if False:\n",
    ),
    Mutant(
        "what is refused beside others is not told",
        "share/acknowledge",
        "                _append(refused, one.first, one.last)\n",
        "                pass\n",
    ),
    Mutant(
        "what is refused beside others stays pending",
        "share/acknowledge",
        "            self.undo(changes)\n",
        "            pass\n",
    ),
    Mutant("no key is parked", PARKING, "return [(key, ParkedKey(first, first - 1, first))]", "return []"),
    Mutant("what follows is no letter", PARKING, "last=max(parked.last, offset)", "last=parked.last"),
    Mutant("a replay that failed goes on", PARKING, "_replace(version=OVER, flying", "_replace(flying"),
    Mutant("a record of a replay before the last counts", PARKING, "or mark.version < parked.version:", "or False:"),
    Mutant("a record of a replay that is over counts", PARKING, "if mark.version > parked.version:", "if False:"),
    Mutant("what was settled runs again", PARKING, "mark.original <= parked.done or", "False or"),
    Mutant("a key goes on before its last letter", PARKING, "rest if done < parked.last else None", "None"),
    Mutant("a settled key stays parked", PARKING, "rest if done < parked.last else None", "rest"),
    Mutant("a replay settles nothing", PARKING, "done = max(parked.done, parked.up_to)", "done = parked.done"),
    Mutant(
        "who knows no parked keys gets their records",
        ORDERED,
        "            singles=want.heads > 0,\n",
        "            singles=True,\n",
    ),
    Mutant("a replayed record is not remembered", ORDERED, "parked.apply(changes) if changes else ()", "()"),
    Mutant("what a replay settles is not stored", OWNER, "                beside=self.parked.writes(changes),\n", ""),
    Mutant("a fence is used twice", ORDERED, "        self._serial += ranges[-1].last - ranges[0].first + 1\n", ""),
    Mutant(
        "a generation is used twice",
        "server/share/loader",
        "max(last + 1, self._clock.now_ms())",
        "self._clock.now_ms()",
    ),
    Mutant(
        "a reset forgets the generation",
        "server/share/leaders",
        "                    writes.pop(key.prefix + GENERATION, None)\n",
        "",
    ),
    Mutant(
        "a lapse wakes nobody",
        OWNER,
        "            self._stats.lock_timeouts += lapsed\n        self._keep(update)",
        "            self._stats.lock_timeouts += lapsed\n        self._writer.keep(update) if update else None",
    ),
    Mutant("what is behind a failed write is kept", "server/share/writing", "if self._partition.ordered:", "if False:"),
    Mutant("markers are records", "server/share/opened_log", "if kept.header.is_control or (", "if ("),
    Mutant(
        "whole batches leave",
        "server/share/opened_log",
        "return kept.batch.keep(indexes) if indexes else",
        "return kept.raw if indexes else",
    ),
    Mutant(
        "a change of order is not followed",
        "server/share/partitions",
        "if owner.config.key_order != config.key_order or owner",
        "if owner",
    ),
    Mutant(
        "who has not seen a record ends it",
        "share/acknowledge",
        "hold.member_id != member_id or hold.unconfirmed or (",
        "hold.member_id != member_id or (",
    ),
    Mutant(
        "who has not seen records ends some",
        "share/acknowledge",
        "        if hold.unconfirmed:\n            raise",
        "        if False:\n            raise",
    ),
    Mutant(
        "what is being read is kept for who comes back",
        "share/partition",
        "                if lock.unconfirmed:\n",
        "                if False:\n",
    ),
    Mutant(
        "what was not kept open is gone",
        "server/share/opened_log",
        "        found = next((one for one in opened if one.header.last_offset >= offset), None)\n",
        "        found = self._batches.find(self._owner, offset)\n        if found is None:\n            return None\n",
    ),
    Mutant(
        "all that was read is opened at once",
        "server/share/opened_log",
        "                if size > OPENED_BYTES:\n",
        "                if False:\n",
    ),
    Mutant(
        "marks are looked for in keys that are parked only",
        "server/share/opened_log",
        "                marked += wanted[at:until]\n",
        "                pass\n",
    ),
    Mutant(
        "what was written of a key is what is known",
        PARKED_KEYS,
        "if known(key) != was]",
        "if False]",
    ),
    Mutant(
        "who parks no more parks as long as one is parked",
        PARKED_KEYS,
        "(follows or not parks)",
        "follows",
    ),
    Mutant(
        "what followed parks its key again",
        PARKED_KEYS,
        "(follows or not parks)",
        "not parks",
    ),
    Mutant(
        "a key is parked for the place of its replay",
        PARKING,
        "first = offset if mark is None else mark.original",
        "first = offset",
    ),
    Mutant(
        "a replay goes on over what was lost",
        PARKING,
        "            if offset >= end\n",
        "            if False\n",
    ),
    Mutant(
        "what cannot be read now is gone",
        "server/share/opened_log",
        "            raise NotReadYet(f",
        "            return None\n            raise NotReadYet(f",
    ),
    Mutant(
        "keys that were learnt of what does not count are kept",
        OWNER,
        "return self.partition.ordered and config.isolation_level != self.config.isolation_level",
        "return False",
    ),
    Mutant(
        "what is free waits for what cannot be read",
        ORDERED,
        "            if not self._partition.available_count:\n                raise",
        "            if True:\n                raise",
    ),
    Mutant(
        "what was read is lost with what cannot be",
        "server/share/opened_log",
        "                if at or isinstance(error, NotReadYet):\n",
        "                if isinstance(error, NotReadYet):\n",
    ),
    Mutant(
        "a load knows nothing of parked keys",
        "server/share/loader",
        "config.limits(has_parked=bool(stored.parked))",
        "config.limits()",
    ),
    Mutant(
        "the last delivery of some holds up all others",
        BY_KEY,
        "alone = next((low for low, _ in _without(first, last, without)), -1)",
        "alone = first if first not in without else -1",
    ),
    Mutant(
        "what left the log parks nothing",
        PARKED_KEYS,
        "key, mark, follows = self._held.get(offset, NOT_KNOWN)",
        "(_, mark, follows), key = self._held.get(offset, NOT_KNOWN), None",
    ),
    Mutant(
        "what retention took before its rejection is waited for",
        PARKED_KEYS,
        "            if offset >= self._opened.log_start:\n",
        "            if True:\n",
    ),
    Mutant(
        "nobody listens to what says that nobody ran it",
        OWNER,
        "            self.parked.came_back_unrun(batches, decision)\n",
        "            pass\n",
    ),
    Mutant(
        "all that is handed out follows",
        PARKED_KEYS,
        "Held(key_name(key), mark, offset in following)",
        "Held(key_name(key), mark, True)",
    ),
    Mutant(
        "what was handed out is remembered for ever",
        PARKED_KEYS,
        "for at, one in self._held.items() if at >= start and hash_at(at)}",
        "for at, one in self._held.items() if at >= start}",
    ),
    Mutant(
        "what is settled is looked for in the window",
        PARKED_KEYS,
        "if at >= start and hash_at(at)}",
        "if hash_at(at)}",
    ),
    Mutant("a hole in a replay is passed over", PARKING, "if mark.after <= parked.done else", "if True else"),
    Mutant("what waits in a chain is not counted", HEADS, "if before not in self.ending:", "if False:"),
    Mutant("long keys have one name", "protocol/key_hash", "hashlib.sha256(key).digest()", "bytes(32)"),
    Mutant(
        "a long key's name has the hash of a name",
        "protocol/key_hash",
        "return key_hash(name) if len(name) <= NAME_MAX else int.from_bytes(name[-4:])",
        "return key_hash(name)",
    ),
    Mutant("the order changes at any time", "server/records/configs", "        if members:\n", "        if False:\n"),
)


def copy_tests(folder: Path) -> None:
    """Copy what is mutated, and the tests."""
    shutil.copytree(ROOT / "flowshare", folder / "flowshare", ignore=UNCOMPILED)
    for name in ("share", "scenarios"):
        shutil.copytree(ROOT / "tests" / name, folder / "tests" / name, ignore=UNCOMPILED)
    for folder_name in ("server", "protocol"):
        (folder / "tests" / folder_name).mkdir()
    servers = ("__init__", "world", "test_key_order", "test_parking")
    for name in ("__init__", "waiting", "protocol/test_key_hash", *(f"server/{name}" for name in servers)):
        shutil.copy(ROOT / "tests" / f"{name}.py", folder / "tests" / f"{name}.py")
    shutil.copy(ROOT / "pyproject.toml", folder)


KILLED_BY = by(
    (
        ("steps", (*PYTEST, "tests/share/test_order.py")),
        ("scenarios", scenarios("HTCRN", slow=True)),
        ("parked keys' steps", (*PYTEST, "tests/share/test_parking.py", "tests/protocol/test_key_hash.py")),
        ("server's tests", (*PYTEST, "tests/server/test_key_order.py", "tests/server/test_parking.py")),
    )
)


if __name__ == "__main__":
    sys.exit(bool(Hunt(MUTANTS, ".", copy_tests, KILLED_BY).run(sys.argv[1:])))
