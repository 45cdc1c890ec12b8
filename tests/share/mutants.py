"""Plants known bugs in the core, one at a time; each must be caught by the model, the simulation or the unit tests.

    python -m tests.share.mutants [NAME …]

A mutant that lives is a hole in the tests. One is added for every bug found. Exit code 1 if any lives or no longer fits
the source.
"""

from __future__ import annotations

import sys

from tests.sim.mutants import PYTEST, Hunt, Mutant, by

MUTANTS = (
    Mutant("the delivery limit is ignored", "state", "and delivery_count >= limits.delivery_count_max", "and False"),
    Mutant(
        "a lock lapses while its acknowledgement is written",
        "lapse",
        "list(_held_in(window, hold, ACQUIRED)), ACQUIRED)",
        "list(_held_in(window, hold, ACQUIRED)), ACQUIRED)\n"
        "        runs += take_back(window, limits, list(_held_in(window, hold, 7)), 7)",
    ),
    Mutant("a deadline is off by one", "holds", "self._heap[0][0] <= now_ms", "self._heap[0][0] < now_ms"),
    Mutant(
        "an abort leaves records pending",
        "acknowledge",
        "                window.put(first, last, PENDING, ACQUIRED)",
        "                pass",
    ),
    Mutant("any member may acknowledge", "acknowledge", ".member_id != member_id", ".member_id is False"),
    Mutant(
        "a pending record is acknowledged again",
        "acknowledge",
        "if states[at] != ACQUIRED or",
        "if states[at] not in (ACQUIRED, PENDING) or",
    ),
    Mutant(
        "a decision acts on what came in the place of lost records",
        "acknowledge",
        "if decision.fence is not window.fence:",
        "if False:",
    ),
    Mutant("a cut leaves the start offset behind the log's end", "window", "if end <= self.start:", "if False:"),
    Mutant("a cut keeps the holds of what was lost", "window", "self.let_go(end, self.end - 1)", "pass"),
    Mutant("a cut keeps the batches of what was lost", "window", "self.cached.cut(end)", "pass"),
    Mutant("a cut is off by one", "partition", "window.drop_behind(end_offset)", "window.drop_behind(end_offset + 1)"),
    Mutant(
        "lost records stay suspects", "quarantine", "del self._suspects[bisect_left(self._suspects, end) :]", "pass"
    ),
    Mutant(
        "the leader epoch of the log falls", "partition", "if log_epoch > self.log_epoch and", "if log_epoch >= 0 and"
    ),
    Mutant(
        "an acquire does not count",
        "acquire",
        "self.take_run(low, until, count + 1)",
        "self.take_run(low, until, count)",
    ),
    Mutant("a whole batch's acquire does not count", "acquire", "window.count(first) + 1", "window.count(first)"),
    Mutant(
        "the start offset stays when locks lapse",
        "lapse",
        "        return None\n    window.advance()\n    return window.update(runs)",
        "        return None\n    return window.update(runs)",
    ),
    Mutant(
        "a record that is not acquired is taken in an acknowledged range",
        "acknowledge",
        "elif state != HOLE or batch.joined:",
        "elif False:",
    ),
    Mutant("the lock limit is ignored", "acquire", "limits.record_locks_max - span", "limits.record_locks_max"),
    Mutant("the acquired count is not limited", "allotment", "self.limit - self.tally.total", "self.limit"),
    Mutant("who holds much gets as much as others", "allotment", "if not self._hungry:", "if True:"),
    Mutant("what is given back stays counted", "holds", "self.tally.add(hold.member_id, -count)", "pass"),
    Mutant(
        "a group's limit is kept to the batch only",
        "partition",
        "AcquireMode.RECORD_LIMIT if self.allowance.exact else mode",
        "mode",
    ),
    Mutant(
        "a rate takes in what leaders have still",
        "rate",
        "room = max(0.0, rate.burst - self._held())",
        "room = rate.burst",
    ),
    Mutant("what was spent is not counted", "rate", "self.free = max(0, self.free - count)", "pass"),
    Mutant("an open breaker lets all of them try", "breaker", " or self._waiting(rule, now_ms)", ""),
    Mutant("who gives a try back gets it again", "breaker", "served <= known.served", "True"),
    Mutant("what is tried is forgotten by the next coordinator", "breaker", "_Trying(_UNKNOWN, now_ms)", "None"),
    Mutant("late outcomes close a breaker", "breaker", "(new.tried_succeeded or new.tried_failed)", "any(new)"),
    Mutant("a breaker forgets its new coordinator", "breaker", "self._adopt(report.told, rule, now_ms)", "pass"),
    Mutant("a paused group hands out records", "partition", "if self._limits.paused or records_max", "if records_max"),
    Mutant("new records pass the holes of a reload", "partition", " or window.gap_start >= 0 or", " or"),
    Mutant(
        "new records wait as redeliveries do", "priority", "self.new = priority is Priority.NEW", "self.new = False"
    ),
    Mutant("the window is not limited", "acquire", "room = limits.window_max - span", "room = limits.window_max"),
    Mutant(
        "an unrun release costs its attempt",
        "acknowledge",
        "delivered - 1 if release and batch.unrun",
        "delivered if release",
    ),
    Mutant(
        "a delayed release is fetched at once",
        "acknowledge",
        "window.put(first, last, PENDING, DELAYED)",
        "window.put(first, last, PENDING, AVAILABLE)",
    ),
    Mutant(
        "a renewal does not extend the lock", "acknowledge", "_now_ms + self._limits.lock_duration_ms)", "_now_ms + 1)"
    ),
    Mutant("a renewal is taken though turned off", "acknowledge", "if not limits.renew_enabled:", "if False:"),
    Mutant("a restart forgets the delivery count", "reload", "first, last, run.delivery_count)", "first, last, 0)"),
    Mutant(
        "an acknowledgement is stored with a start offset too far",
        "acknowledge",
        "PartitionUpdate(start_offset=start, ",
        "PartitionUpdate(start_offset=start + 1, ",
    ),
    Mutant("a suspect does not come alone", "quarantine", "else Admission(alone=True)", "else Admission()"),
    Mutant("a moved log start is ignored", "lapse", "window.drop_below(log_start)", "pass"),
    Mutant(
        "only the first batch of a refused request is undone",
        "acknowledge",
        "for change in self._changes[since:]:",
        "for change in self._changes[since:][:1]:",
    ),
    Mutant(
        "an operator takes what is being acknowledged",
        "intervene",
        "    if state == PENDING or (",
        "    if (",
    ),
    Mutant(
        "an operator takes what is being read for its member",
        "intervene",
        "(state == ACQUIRED and window.holds.by_id[run.hold_id].unconfirmed)",
        "False",
    ),
    Mutant(
        "what is held behind a released record stays with its member",
        "intervene",
        "held and offset not in taken and any(",
        "False and any(",
    ),
    Mutant(
        "a dead letter is made of what is free by a write under way",
        "intervene",
        "yield from _sure(heads, low, high)",
        "yield low, high, Outcome.DONE",
    ),
    Mutant(
        "within a chain a record is ended before its turn",
        "intervene",
        "if waits and act is not Act.RELEASE:",
        "if False:",
    ),
    Mutant(
        "that an operator gave it up is not stored",
        "partition",
        "return merged(self._with_operators(runs) if self._operated else runs, window.start)",
        "return merged(runs, window.start)",
    ),
    Mutant(
        "what a cut took away was given up for ever",
        "partition",
        "        self._operated = {offset for offset in self._operated if offset < end_offset}\n",
        "",
    ),
    Mutant("a dry run is a real one", "intervene", "if dry_run or not pieces:", "if not pieces:"),
    Mutant("of two of a chain the second is named", "browse", "self.known.setdefault,", "self.known.__setitem__,"),
    Mutant("delays are told by the leader's own clock", "browse", "hold.due_ms + self._ahead_ms", "hold.due_ms"),
)


UNIT = ("tests/share", "--ignore=tests/share/test_simulation.py", "--ignore=tests/share/test_model.py")
KILLED_BY = by(
    (
        ("simulation", (*PYTEST, "tests/share/test_simulation.py")),
        ("unit tests", (*PYTEST, *UNIT)),
        ("model", (*PYTEST, "tests/share/test_model.py")),
    ),
    {"SEEDS": "60", "MODEL_EXAMPLES": "300"},
)


if __name__ == "__main__":
    sys.exit(bool(Hunt(MUTANTS, "share", ("share", "sim"), KILLED_BY).run(sys.argv[1:])))
