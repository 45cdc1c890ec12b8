"""Plants known bugs in the core of cooperative groups, one at a time; its fast tests must catch each.

    python -m tests.cooperative.mutants [NAME …]

A mutant that lives is a hole in the tests. Exit code 1 if any lives or no longer fits the source.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from tests.sim.mutants import PYTEST, Hunt, Mutant, by, hunted

OFFSETS = (
    Mutant("a commit swallows what lies beside it", "offsets", "behind = bisect_left(ends, first, at)", "behind = at"),
    Mutant(
        "neighbours are not joined",
        "offsets",
        "last = bisect_right(firsts, end, at)",
        "last = bisect_left(firsts, end, at)",
    ),
    Mutant("the stable offset stands still", "offsets", "            self.stable = end\n", "            pass\n"),
    Mutant(
        "ranges that were joined stay in the store",
        "offsets",
        "self.drops += [key for key in self._old_firsts[opened:at] if key != first]",
        "pass",
    ),
    Mutant(
        "ranges below the stable offset stay in the store",
        "offsets",
        "            self.drops += self._old_firsts[opened:at]\n",
        "",
    ),
    Mutant("more ranges than the bound", "offsets", "if count > self.ranges_max and count > self.count:", "if False:"),
    Mutant(
        "what fills a gap is refused at the bound",
        "offsets",
        "if count > self.ranges_max and count > self.count:",
        "if count > self.ranges_max:",
    ),
    Mutant(
        "further ahead than the bound",
        "offsets",
        "self.span_max and furthest > self.furthest:",
        "self.span_max and False:",
    ),
    Mutant(
        "an undo forgets the stable offset",
        "offsets",
        "self.stable, self.reset_epoch, window, length = change.before",
        "_, self.reset_epoch, window, length = change.before",
    ),
    Mutant("a reset keeps its epoch", "offsets", "        self.reset_epoch += 1\n", ""),
    Mutant(
        "a reset is written before its ranges are gone",
        "offsets",
        "return (*stable, *puts, *drops) if self.reset else",
        "return (*puts, *stable) if self.reset else",
    ),
    Mutant(
        "a commit beyond the log's end",
        "offsets",
        "if log_end is not None and end > log_end:\n                raise",
        "if False:\n                raise",
    ),
    Mutant(
        "a cut keeps what lies behind it",
        "offsets",
        "[OffsetRange(first, min(stop, end)) for first, stop",
        "[OffsetRange(first, stop) for first, stop",
    ),
    Mutant("what was lost with the log's start is not counted", "offsets", "._replace(lost=lost)", ""),
    Mutant(
        "what is ahead counts by its ends alone",
        "offsets",
        "return sum(self._ends) - sum(self._firsts)",
        "return sum(self._ends)",
    ),
    Mutant(
        "an uncommitted offset at a range's end is passed over",
        "offsets",
        "        if first < end:\n            found.append(OffsetRange(first, end))\n        return found",
        "        return found",
    ),
)
CLAIMS = (
    Mutant("anybody's claim lets a commit through", "claims", "or claim.member != member or", "or"),
    Mutant("an older tenure commits under a newer claim", "claims", "or claim.epoch > epoch:", "or False:"),
    Mutant(
        "a hole between claims is passed over",
        "claims",
        "if not claim.first <= at < claim.end or",
        "if not at < claim.end or",
    ),
    Mutant(
        "what is held is granted again",
        "claims",
        "free = minus(minus(missing, blocked), [one.keys for one in reserved])",
        "free = minus(missing, [one.keys for one in reserved])",
    ),
    Mutant("nobody is told which transaction holds keys up", "claims", "    if reserved:\n", "    if False:\n"),
    Mutant("an older generation gains", "claims", "granted = [] if superseded or", "granted = [] if"),
    Mutant("an older generation takes", "claims", "overdue = [] if superseded else", "overdue ="),
    Mutant(
        "a tenure goes on after a release",
        "claims",
        "tenure = before.tenure if total(_pairs(kept)) == total(_pairs(mine)) else 0",
        "tenure = before.tenure",
    ),
    Mutant("a tenure begins with each grant", "claims", "if granted and not tenure:", "if granted:"),
    Mutant(
        "who lost keys goes on with the tenure",
        "claims",
        "left[claim.member] = left[claim.member]._replace(tenure=0)",
        "pass",
    ),
    Mutant("an older call counts", "claims", "if known is not None and sequence <= known.sequence:", "if False:"),
    Mutant(
        "a hold does not renew",
        "claims",
        "generation, sequence, terms.lease_ms, now_ms + terms.lease_ms, tenure",
        "generation, sequence, terms.lease_ms, before.deadline_ms or now_ms + terms.lease_ms, tenure",
    ),
    Mutant(
        "a lease ends one moment late",
        "claims",
        "if standing.deadline_ms <= now_ms}",
        "if standing.deadline_ms < now_ms}",
    ),
    Mutant("strict members take", "claims", "if terms.mode is DrainMode.STRICT:", "if False:"),
    Mutant(
        "a wait begins anew with each hold",
        "claims",
        "    if not before:\n        return found\n",
        "    return found\n",
    ),
    Mutant(
        "a wait for one holder counts for the next",
        "claims",
        "        if found[left].holder == before[right].holder\n",
        "",
    ),
    Mutant(
        "a member that leaves keeps what it holds",
        "claims",
        "left = tuple(claim for claim in claims if claim.member != member)",
        "left = claims",
    ),
    Mutant(
        "claims that are renewed are written each time",
        "claims",
        "        if self.state.claims == before.claims and {",
        "        if False and {",
    ),
    Mutant(
        "a changed lease is not written",
        "claims",
        "and {one[::2] for one in holders} == {\n            one[::2] for one in _holders(before)\n        }:",
        "and True:",
    ),
    Mutant("overlaps are not counted", "claims", "taken=counts.taken + len(taken)", "taken=counts.taken"),
)
PENDING = (
    Mutant(
        "a zombie ends a transaction",
        "pending",
        "if pending is not None and producer_epoch < pending.producer_epoch:",
        "if False:",
    ),
    Mutant(
        "what waits is released too soon",
        "pending",
        "self._parked[0].first <= stable:",
        "self._parked[0].first <= stable + 1:",
    ),
    Mutant(
        "what waits is released in the order it came",
        "pending",
        "heappush(self._parked, Parked(first, self._order,",
        "heappush(self._parked, Parked(0 * first, self._order,",
    ),
    Mutant(
        "who waits too long goes on waiting",
        "pending",
        "if one.deadline_ms <= now_ms])",
        "if one.deadline_ms < now_ms])",
    ),
    Mutant(
        "an older generation goes on waiting",
        "pending",
        "if one.generation < generation])",
        "if one.generation < generation - 1])",
    ),
    Mutant(
        "a cut keeps what is pending behind it",
        "pending",
        "OffsetRange(first, min(stop, end)) for first, stop in pending.ranges if first < end",
        "OffsetRange(first, stop) for first, stop in pending.ranges",
    ),
)
PARTITION = (
    Mutant(
        "commits of before a reset count",
        "partition",
        "            self._check_epoch(reset_epoch)\n            passed",
        "            passed",
    ),
    Mutant("what is fenced is committed", "partition", "if through]", "]"),
    Mutant(
        "a roll-back keeps the committed set",
        "partition",
        "            self.offsets.undo(decision.change)\n",
        "            pass\n",
    ),
    Mutant("a roll-back keeps claims", "partition", "        self._back_to(decision.before)\n", ""),
    Mutant(
        "a refusal keeps what lapsed with it",
        "partition",
        "        except CoreError:\n            self._back_to(before)\n",
        "        except CoreError:\n",
    ),
    Mutant("a reset while members hold something", "partition", "            self.check_unused()\n", ""),
    Mutant(
        "a transaction that is aborted commits", "partition", "            if committed:\n", "            if True:\n"
    ),
    Mutant("R is left out of a grant", "partition", "if ranges or held.granted:", "if ranges:"),
)
STORED = (
    Mutant("ranges of before a reset are loaded", "stored", "if reset_epoch == stable[1]}", "}"),
    Mutant("a damaged entry is taken", "../sealing", "if zlib.crc32(body) != checksum:", "if False:"),
    Mutant(
        "a crash leaves ranges behind for ever",
        "stored",
        "*(DropRange(first) for first in sorted(keys) if first not in there)",
        "",
    ),
    Mutant("a stored claim is its neighbour's", "stored", "holders[int(at)].member", "holders[0].member"),
    Mutant(
        "a lease that was loaded is over", "stored", "holders, claims, now_ms=now_ms)", "holders, claims, now_ms=0)"
    ),
    Mutant(
        "starts are not loaded",
        "stored",
        "{at: n for at, n in starts.items() if not offsets.is_committed(at)}, horizons)",
        "{}, horizons)",
    ),
    Mutant(
        "horizons are not loaded",
        "stored",
        "if not offsets.is_committed(at)}, horizons)",
        "if not offsets.is_committed(at)}, ())",
    ),
    Mutant(
        "what free mode left is begun by nobody", "stored", "        attempts.reach(*WHOLE[0], end)\n", "        pass\n"
    ),
    Mutant("exact starts of free mode count twice", "stored", "in rows if not exact_starts]", "in rows]"),
    Mutant("what free mode left stays in the store", "stored", "(*gone, DropSpans())", "gone"),
)
ASSIGNOR = (
    Mutant(
        "keys are left out",
        "assignor",
        "HASHES * (place + 1) // count",
        "HASHES * (place + 1) // count - (place + 1 == count)",
    ),
    Mutant("unwilling members share", "assignor", "return subscriber.shares and topic", "return topic"),
    Mutant("topics that are not to be shared are", "assignor", "and topic not in subscriber.unshared", ""),
    Mutant("everybody moves with each round", "assignor", "home[: seat.room]", "home[:0]"),
    Mutant(
        "the order of the hashes is not kept",
        "assignor",
        "for _, member in sorted(home)]",
        "for _, member in sorted(home, reverse=True)]",
    ),
    Mutant(
        "the fullest partitions have no more room",
        "assignor",
        "key=lambda partition: (-len(homes[partition]), partition)",
        "key=lambda partition: (len(homes[partition]), partition)",
    ),
)
ATTEMPTS = (
    Mutant(
        "the dead have begun nothing",
        "attempts",
        "self.reach(claim.first, claim.end, self.horizon(claim.member))",
        "pass",
    ),
    Mutant(
        "members whose keys are taken have begun nothing",
        "partition",
        "            self.attempts.ended(held.taken)\n",
        "",
    ),
    Mutant(
        "who lapses has begun nothing",
        "partition",
        "self.attempts.ended(self.claims.lapse(now_ms))",
        "self.claims.lapse(now_ms)",
    ),
    Mutant(
        "a nearer horizon takes the place of a farther one",
        "attempts",
        "if horizon > self.horizon(member):",
        "if horizon:",
    ),
    Mutant("a nearer reach takes the place of a farther one", "attempts", "max(before, reaches[at].before)", "before"),
    Mutant("what lies at a reach counts", "attempts", "offset < reaches[at].before)", "offset <= reaches[at].before)"),
    Mutant(
        "a reach counts for the keys behind it", "attempts", "at >= 0 and hash_ < reaches[at].end and", "at >= 0 and"
    ),
    Mutant("starts are kept of what is committed", "attempts", "if not committed.is_committed(offset)}", "}"),
    Mutant(
        "starts are dropped of what is not",
        "attempts",
        "left = {at: count for at, count in starts.items() if not committed.is_committed(at)}",
        "left = {}",
    ),
    Mutant("horizons stay of who is gone", "attempts", "        if len(left) < len(known):", "        if False:"),
    Mutant(
        "starts are not bounded", "attempts", "if len(known) > max(STARTS_MAX, len(self.state.starts)):", "if False:"
    ),
    Mutant(
        "a step writes all starts",
        "attempts",
        "for at, count in starts if old.get(at) != count]",
        "for at, count in starts]",
    ),
    Mutant(
        "starts that are dropped stay in the store",
        "attempts",
        "[DropStarts(at) for at in old if at not in state.starts] if",
        "[] if",
    ),
    Mutant(
        "claims are gone before they count",
        "partition",
        "mutations = (*counted, *offsets, *pending, *(() if claims is None else (claims,)), *dropped)",
        "mutations = (*offsets, *pending, *(() if claims is None else (claims,)), *dropped, *counted)",
    ),
    Mutant(
        "what the dead left is forgotten with what is added",
        "partition",
        "if not attempts.grew_since(before.attempts):",
        "if True:",
    ),
    Mutant(
        "reaches that are joined count too few",
        "attempts",
        "max(one.before for one in pair)",
        "min(one.before for one in pair)",
    ),
)
MUTANTS = (*OFFSETS, *CLAIMS, *PENDING, *PARTITION, *STORED, *ASSIGNOR, *ATTEMPTS)
ALL: Final = (*PYTEST, "-n", "0", "tests/cooperative")


def hunt(mutants: Sequence[Mutant], tests: str) -> Hunt:
    """tests: of the module that the mutants are in, which are asked first."""
    own = (*PYTEST, "-n", "0", f"tests/cooperative/{tests}.py")
    killed_by = by(((f"tests of {tests}", own), ("core's tests", ALL)))
    return Hunt(mutants, "cooperative", ("cooperative", "scenarios", "sim"), killed_by)


HUNTS = (
    hunt(OFFSETS, "test_offsets"),
    hunt(CLAIMS, "test_claims"),
    hunt(PENDING, "test_pending"),
    hunt(PARTITION, "test_partition"),
    hunt(STORED, "test_stored"),
    hunt(ASSIGNOR, "test_assignor"),
    hunt(ATTEMPTS, "test_attempts"),
)


if __name__ == "__main__":
    sys.exit(bool(hunted(HUNTS, sys.argv[1:])))
