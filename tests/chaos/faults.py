"""Faults of a fleet. Each fault is a method that causes the fault, waits until it is over, and returns a description.

Other workers may give up a worker that is apart from the broker, or frozen, for longer than `APART_S`: session 6 s and
rebalance 3 s. Shorter faults, broken connections, a broker that comes again and all orderly acts must make no record
run again.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from tests.chaos.cluster import MortalKafka
from tests.chaos.judge import Fault
from tests.chaos.workers import Process, Processes, Worker, Workers

APART_S = 11.0
LOCKS_S = 20.0
"""The lock is 30 s, renewed when a third of it is over."""
WORKERS_MIN = 2


def _death(kind: str, at: float, *pids: int) -> Fault:
    return Fault(kind, at, time.monotonic(), pids, pids, killed=pids)


class ProcessFaults:
    """Faults of the processes of any run. dice: decides everything that is left open here.

    apart_s: how long a process stands still, so that the others give it up. locks_s: how long locks last without
    renewal.
    """

    def __init__(
        self, workers: Processes, dice: random.Random, *, apart_s: float = APART_S, locks_s: float = LOCKS_S
    ) -> None:
        self._workers, self._dice, self._apart_s, self._locks_s = workers, dice, apart_s, locks_s
        self.kinds: dict[str, Callable[[], Fault]] = {"kill": self.kill}

    # --- whom -----------------------------------------------------------------------------------------------------

    def _ready(self) -> list[Process]:
        return [worker for worker in self._workers.alive.values() if worker.ready]

    def _victim(self) -> Process:
        self._workers.wait_ready(*list(self._workers.alive.values())[:WORKERS_MIN])
        return self._dice.choice(self._ready())

    def _rest(self, most_s: float) -> None:
        time.sleep(self._dice.uniform(0.0, most_s))

    # --- deaths ---------------------------------------------------------------------------------------------------

    def kill(self) -> Fault:
        """kill -9; another one comes to its place after a while."""
        return self._killed("kill", self._victim())

    def _killed(self, kind: str, victim: Process) -> Fault:
        at = self._workers.kill(victim)
        self._rest(3.0)
        self._workers.start(victim.place)
        return _death(kind, at, victim.pid)

    def kill_two(self) -> Fault:
        """Two at once, if one is left."""
        self._workers.wait_ready(*self._workers.alive.values())
        found = self._ready()
        victims = self._dice.sample(found, min(2, len(found) - 1))
        at = time.monotonic()
        for victim in victims:
            self._workers.kill(victim)
        for victim in victims:
            self._workers.start(victim.place)
        pids = tuple(victim.pid for victim in victims)
        return _death("kill of two", at, *pids)

    def freeze(self) -> Fault:
        """SIGSTOP for longer than the others wait."""
        length_s = self._apart_s + self._dice.uniform(0.0, 3.0)
        return self._frozen("frozen past the session", self._victim(), length_s, given_up=True)

    def freeze_locks(self) -> Fault:
        """SIGSTOP for longer than its locks last."""
        return self._frozen("frozen past the locks", self._victim(), self._past_locks_s(), given_up=True)

    def _past_locks_s(self) -> float:
        return self._locks_s * 1.3 + self._dice.uniform(0.0, 3.0)

    def pause(self) -> Fault:
        """SIGSTOP for less."""
        return self._frozen("frozen for a moment", self._victim(), self._dice.uniform(0.5, 2.5), given_up=False)

    def _frozen(self, kind: str, victim: Process, length_s: float, *, given_up: bool) -> Fault:
        at = victim.send(signal.SIGSTOP)
        time.sleep(length_s)
        until = victim.send(signal.SIGCONT)
        pids = (victim.pid,)
        return Fault(kind, at, until, pids, pids if given_up else (), still=pids)

    # --- in order -------------------------------------------------------------------------------------------------

    def roll(self) -> Fault:
        """Each worker is stopped, and one started at its place, one after the other."""
        at = time.monotonic()
        before = list(self._workers.alive.values())
        for worker in before:
            code = self._workers.stop(worker)
            assert code == 0, f"worker {worker.pid} ended with {code}:\n{worker.log.read_text()[-8000:]}"
            self._workers.wait_ready(self._workers.start(worker.place))
        return Fault("rolling restart", at, time.monotonic(), tuple(worker.pid for worker in before))

    def join_and_leave(self) -> Fault:
        """One more worker, then one less."""
        at = time.monotonic()
        places = set(range(self._workers.places)) - set(self._workers.alive)
        if places:
            self._workers.wait_ready(self._workers.start(min(places)))
            self._rest(2.0)
        leaver = self._victim()
        code = self._workers.stop(leaver)
        assert code == 0, f"worker {leaver.pid} ended with {code}:\n{leaver.log.read_text()[-8000:]}"
        if not places:
            self._workers.start(leaver.place)
        return Fault("join and leave", at, time.monotonic(), (leaver.pid,))


class PathFaults(ProcessFaults):
    """Faults of workers that share an embedded path, which one of them leads. leader: its process."""

    def __init__(
        self, workers: Processes, dice: random.Random, leader: Callable[[], int | None], *, locks_s: float
    ) -> None:
        super().__init__(workers, dice, locks_s=locks_s)
        self._leader = leader
        self.kinds |= {
            "kill of the leader": self.kill_leader,
            "kill of two": self.kill_two,
            "leader frozen past the locks": self.freeze_leader,
            "frozen for a moment": self.pause,
            "rolling restart": self.roll,
            "join and leave": self.join_and_leave,
        }

    def _leading(self) -> Process:
        self._workers.wait_ready(*self._workers.alive.values())
        pid = self._leader()
        return next((one for one in self._workers.alive.values() if one.pid == pid), None) or self._victim()

    def kill_leader(self) -> Fault:
        """kill -9 of the process that leads the path."""
        return self._killed("kill of the leader", self._leading())

    def freeze_leader(self) -> Fault:
        """SIGSTOP of it, for longer than the locks last: nobody can take the path over, and nobody renew."""
        return self._frozen("leader frozen past the locks", self._leading(), self._past_locks_s(), given_up=True)


class Faults(ProcessFaults):
    """Faults of a fleet."""

    def __init__(
        self,
        workers: Workers,
        kafka: MortalKafka,
        dice: random.Random,
        *,
        apart_s: float = APART_S,
        locks_s: float = LOCKS_S,
    ) -> None:
        super().__init__(workers, dice, apart_s=apart_s, locks_s=locks_s)
        self._kafka = kafka
        self._away: list[tuple[float, float]] = []
        """From when to when there was no broker."""
        self.kinds |= {
            "kill with accepts on their way": self.kill_slow,
            "kill of two": self.kill_two,
            "frozen past the session": self.freeze,
            "frozen for a moment": self.pause,
            "apart past the session": self.isolate,
            "apart for a moment": self.part,
            "stalled for a moment": self.stall,
            "cut from the broker": self.cut,
            "cut from each other": self.cut_peers,
            "slow wires": self.delay,
            "broker restart": self.restart,
            "broker kill": self.restart_hard,
            "rolling restart": self.roll,
            "join and leave": self.join_and_leave,
        }

    def kill_slow(self) -> Fault:
        """kill -9 while all its words to the broker, and others' words to it, take long."""
        victim = self._victim()
        victim.broker.delay_s = victim.peers.delay_s = self._dice.uniform(0.05, 0.2)
        time.sleep(1.0)
        at = self._workers.kill(victim)
        victim.broker.mend()
        victim.peers.mend()
        self._workers.start(victim.place)
        return _death("kill with accepts on their way", at, victim.pid)

    # --- wires ----------------------------------------------------------------------------------------------------

    def isolate(self) -> Fault:
        """One worker reaches no broker for longer than a session, but the other workers."""
        victim = self._victim()
        return self._apart("apart past the session", victim, APART_S, given_up=True)

    def part(self) -> Fault:
        """The same for less."""
        return self._apart("apart for a moment", self._victim(), self._dice.uniform(0.2, 2.0), given_up=False)

    def _apart(self, kind: str, victim: Worker, length_s: float, *, given_up: bool) -> Fault:
        at = time.monotonic()
        victim.broker.refuse()
        time.sleep(length_s)
        victim.broker.mend()
        return Fault(kind, at, time.monotonic(), (victim.pid,), (victim.pid,) if given_up else ())

    def stall(self) -> Fault:
        """Bytes to and from the broker stay on their way."""
        victim = self._victim()
        at = time.monotonic()
        victim.broker.stall()
        self._rest(2.5)
        if self._dice.random() < 0.5:
            victim.broker.cut()
        victim.broker.mend()
        return Fault("stalled for a moment", at, time.monotonic(), (victim.pid,))

    def cut(self) -> Fault:
        """All connections to the broker break, of all workers."""
        at = time.monotonic()
        pids = []
        for worker in self._ready():
            worker.broker.cut()
            pids.append(worker.pid)
        return Fault("cut from the broker", at, time.monotonic(), tuple(pids))

    def cut_peers(self) -> Fault:
        """All connections among workers break, some times over."""
        at = time.monotonic()
        pids = set()
        for _ in range(self._dice.randint(1, 3)):
            for worker in self._ready():
                worker.peers.cut()
                pids.add(worker.pid)
            self._rest(0.3)
        return Fault("cut from each other", at, time.monotonic(), tuple(pids))

    def delay(self) -> Fault:
        """Everything takes up to a fifth of a second longer, for some seconds."""
        at = time.monotonic()
        found = self._ready()
        for worker in found:
            worker.broker.delay_s = self._dice.uniform(0.0, 0.2)
            worker.peers.delay_s = self._dice.uniform(0.0, 0.1)
        time.sleep(3.0)
        for worker in found:
            worker.broker.mend()
            worker.peers.mend()
        return Fault("slow wires", at, time.monotonic(), tuple(worker.pid for worker in found))

    # --- the broker -----------------------------------------------------------------------------------------------

    def restart(self) -> Fault:
        """The broker ends in order and comes again."""
        return self._broker("broker restart", kill=False)

    def restart_hard(self) -> Fault:
        """The broker dies and comes again."""
        return self._broker("broker kill", kill=True)

    def _broker(self, kind: str, *, kill: bool) -> Fault:
        # Who starts without a broker, or loses it while it starts, gives up: whoever runs workers starts them again.
        self._workers.wait_ready(*self._workers.alive.values())
        at = time.monotonic()
        self._kafka.stop(kill=kill)
        self._kafka.start()
        until = time.monotonic()
        self._away.append((at, until))
        # Nobody can renew a lock without the broker: on a slow machine it may be away for longer than one lasts, or
        # come for a moment only between two faults.
        away_s = sum(end - start for start, end in self._away if end > at - self._locks_s)
        pids = tuple(worker.pid for worker in self._workers.alive.values())
        return Fault(kind, at, until, pids, pids if away_s > self._locks_s else ())
