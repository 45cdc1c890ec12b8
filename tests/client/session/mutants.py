"""Plants known bugs in the members' session core, one at a time; the seeded world (`world`) must catch each.

    python -m tests.client.session.mutants [NAME …]

A mutant that lives is a hole in the world. Exit code 1 if any lives or no longer fits the source.
"""

from __future__ import annotations

import sys

from tests.sim.mutants import Hunt, Mutant, by

SEEDS = 150
RARE = (379, 481)
"""Seeds that meet what the others do not."""
RUN = f"""
from tests.client.session.world import KINDS, World
for seed in (*{RARE}, *range(1, {SEEDS})):
    for kind in KINDS:
        World(seed, kind).live()
"""

MUTANTS = (
    Mutant(
        "what was written is sent again", "core", "written = ack.doubted and not", "written = ack.tries < 0 and not"
    ),
    Mutant(
        "a new connection goes on with the old epoch",
        "core",
        "        node.session.reset()\n        self.custody.cut_off",
        "        self.custody.cut_off",
    ),
    Mutant("a session that is gone is not opened anew", "share_session", "self.session.reset(number)", "pass"),
    Mutant("a broker is sent two requests at a time", "share_session", "(self.serial and self.under_way)", "False"),
    Mutant("an outcome that comes late is told to nobody", "calls", "if ack.late or ack.call.answered:", "if False:"),
    Mutant(
        "what was acknowledged stays in hand",
        "custody",
        "        self.holding.ended(tp, first, last)\n        for low",
        "        for low",
    ),
    Mutant("what was acquired again is let go of", "custody", "for low, high in kept:", "for low, high in ():"),
    Mutant("a fetch waits for a lost connection", "core", "node.fetch_ended()  # it had not left yet", "pass"),
    Mutant("renewals ride on fetches", "share_session", "fits = ack.call.renewal is renewal and", "fits ="),
    Mutant(
        "what a fetch may still bring is forgotten",
        "core",
        "self.assigned.union(*(node.may_bring for node in self.nodes.values()))",
        "self.assigned",
    ),
    Mutant(
        "what is lost is acknowledged",
        "core",
        "elif ack.generation is not None and not self.custody.holds",
        "elif self.keeps is None and not self.custody.holds",
    ),
    Mutant("a release is not told to be of its own call", "calls", "self.untold -= 1", "self.untold -= 0"),
    Mutant("nobody connects", "core", "                    self.say(Connect(node.node_id))\n", ""),
    Mutant(
        "a session is left open",
        "core",
        "if node.connected and (node.session.open or",
        "if node.connected and (False or",
    ),
    Mutant(
        "a frozen node is waited for", "core", 'self.drop(node, f"worker {node_id} does not answer", now_s)', "pass"
    ),
    Mutant("leaders are looked up once", "custody", "            custody.doubt()\n", ""),
    Mutant(
        "what moved counts as held", "custody", "            self.holding.drop(tp)\n            self._lose(tp)\n", ""
    ),
    Mutant(
        "nobody tells the next leader",
        "core",
        "        self.resume(node, now_s)\n        node.pump(now_s)",
        "        node.pump(now_s)",
    ),
    Mutant(
        "what has no known leader is not adopted",
        "core",
        "self.custody.adopt(held, now_s)",
        "topology = self._topology\n"
        "            known = {tp for tp in held if topology is None or topology.leader_of(tp) != NOBODY}\n"
        "            self.custody.adopt({tp: held[tp] for tp in known}, now_s)",
    ),
    Mutant("what is held is told before it is adopted", "core", "if self._adopts or node.sends(", "if node.sends("),
    Mutant(
        "what is assigned after the adoption is not told",
        "custody",
        "self._inherits and tp not in",
        "False and tp not in",
    ),
    Mutant(
        "what was adopted is not known when it comes again",
        "custody",
        "                self._highest[tp] = max(last, self._highest.get(tp, -1))\n",
        "",
    ),
    Mutant(
        "of a settle that is refused nothing is held",
        "share_session",
        "custody.not_held(ack.tp, ack.batches, ack.since, refused)",
        "custody.ended(ack.tp, ack.batches, ack.since, renewed=False)",
    ),
    Mutant(
        "what is settled stays in hand",
        "share_session",
        "custody.ended(ack.tp, ack.batches, ack.since, renewed=False)\n        elif code is",
        "pass\n        elif code is",
    ),
    Mutant(
        "a settle that waited for a leader goes without its outputs",
        "core",
        "elif ack.outputs is not None:",
        "elif ack.tries < 0:",
    ),
    Mutant(
        "a settle is sent where the partition is not at home",
        "core",
        "node = self._where_to(ack, now_s)\n        if node is not None:\n            node.settle(ack, now_s)",
        "node = self._where_to(ack, now_s) or next(iter(self.nodes.values()))\n"
        "        if node.connected:\n            node.settle(ack, now_s)",
    ),
)


if __name__ == "__main__":
    killed_by = by((("world", ("-c", RUN)),))
    sys.exit(bool(Hunt(MUTANTS, "client/session", ("sim", "client/session/world.py"), killed_by).run(sys.argv[1:])))
