"""`SessionCore`: the protocol of one share-group member, without I/O: how it fetches, acknowledges and settles.

The core takes in each event, and gives the requests to send and the facts that are true now.
`client.session.shell` does the I/O; `client.session.custody` knows which records are held, and where.

    core.ask(plan, now_s)                        after each call (or some that belong together): carry out the commands
    core.answered(node_id, number, answer, now)  of `core.take()`, in order; call `tick` when `core.due_s()` has come

Invariants, even if messages are lost, late or refused:
1. Acknowledgements go to the partition's current leader. One without an answer is sent again only to a leader that has
   said since then that the records are still the member's (`Custody.unwritten`), and never twice to the same leadership
   (SG-17.1). The same holds for settles: a settle is an acknowledgement of one partition, written in one step with its
   outputs.
2. Every acknowledgement has one outcome, told once: with its call's answer, or late. Where it may be late, an answer
   waits for one node only: a node that hangs holds up no other.
3. Records that arrive are held, and told once, under a number that `holds` is asked with. If another leader was told
   what is held without them, they are dropped: the application was never told of them.
4. A session has epoch 0 when it opens, then one more with each request in the order they are made, −1 when it closes.
   The request that opens it carries no acknowledgements. An answer about an earlier session changes nothing in the next
   one (SG-17.3).
5. A serial node (Kafka's) has one request of a session under way. At other nodes a parked fetch holds up nothing.
6. At a node where a partition is not at home, no request about the partition is sent but ShareResume.
7. Bounded: two fetches a node in a fleet, else one; one resume a node; TRIES_MAX tries of an acknowledgement; every
   wait has an end time. The caller of `settle` bounds the number of settles under way.

One node, as its connection sees it, and as its fetch does:

    state         event                       next         command
    apart         fetch asked, bound there    apart        Connect
    apart         opened                      connected    ShareResume of partitions bound for it; then as below
    apart         not reached                 apart        Look; partitions at home there are adrift (a cluster)
    connected     lost, overdue               apart        requests under way have no answer; Look or Refresh
    idle          ask                         fetching     ShareFetch with waiting acks; no connection: Connect
    fetching      ask, a fleet, a trickle     fetching     a second ShareFetch (`Node.fetches_max`)
    idle          ask, no connection in time  idle         Arrived with nothing
    fetching      answered                    idle         Arrived; fetching as long as the other one is under way
    fetching      answered with trouble       resting      after a pause Arrived with nothing
    fetching      lost                        idle         Arrived with nothing
    session open  SESSION_GONE                session shut the next fetch opens one anew

One acknowledgement:

    waits to be sent   its node can take it                      under way
    waits to be sent   the node is lost                          waits for a leader (not kept: lost, GONE)
    under way          an outcome                                told
    under way          the node does not lead it (LEFT)          waits for a leader (no fleet: told)
    under way          no answer                                 waits for a leader, doubted (not kept: outcome unknown)
    waits for a leader the partition came home, still ours       waits to be sent
    waits for a leader … and it was written, or is lost          told: outcome unknown
    waits for a leader its time, or TRIES_MAX, is over           told: outcome unknown
    any                only renews, and would wait for a leader  told: LEADER_NOT_AVAILABLE, still held

One settle: the same, but it never waits to be sent. It is a request of its own, independent of all others, and belongs
to no session:

    asked              its node can take it                      under way
    under way          done                                      told; nothing of it is held
    under way          refused: records are not the member's     told which; those are not held, the others are
    under way          refused otherwise                         told why; all of it is held
    any                the servers are not flowshare's own       told: UNSUPPORTED_VERSION

Renewals cannot ride on a fetch that wants records (SG-17.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import SESSION_GONE, ClientError, Unsupported
from flowshare.client.net.topology import NOBODY
from flowshare.client.session.calls import Ack, Calls
from flowshare.client.session.commands import (
    INFO,
    Arrived,
    Broke,
    Command,
    Connect,
    Drop,
    Forget,
    Look,
    Note,
    Refresh,
    Rest,
    Stir,
)
from flowshare.client.session.custody import LOOK_IN_FLEET_S_MAX, Custody, LeaderSearch
from flowshare.client.session.share_session import LEFT, NEVER, REFUSED, RESUME_S, Node, Plan, Sent
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ShareResumeRequest, ShareResumeResponse, TopicPartition
from flowshare.share.types import AckRange

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flowshare.client.net.topology import Topology
    from flowshare.client.session.custody import Generations
    from flowshare.client.settings import LinkSettings
    from flowshare.protocol.messages import SettleOutput, ShareSettleResponse

    Acks = Mapping[TopicPartition, Sequence[AckRange]]
    Ranges = Mapping[TopicPartition, Sequence[tuple[int, int]]]

LOCAL: Final = -2
"""Id of the only node without a cluster: the server in this process."""
TRIES_MAX: Final = 6
"""The most leaders in a row to which an acknowledgement is sent while each leaves it unanswered or hands it on: in a
fleet that drains, each worker leads in turn."""
LOCK_S: Final = 30.0
"""The lock duration, in seconds, that is assumed until a server reports it."""
SILENT_S: Final = 2.0
"""A fleet's worker that owes an answer and is silent for so many seconds is doubted."""
WATCH_S: Final = 1.0

GONE: Final = "the connection over which the records were acquired ended; they are given to others"
ELSEWHERE: Final = "the partition is led by another broker by now; the records are given to others"
STOPPED: Final = "outcome unknown: the member was closed before there was an answer"
MOVING: Final = "the partition has no leader at the moment; what is held of it stays held: ask again"
UNANSWERED: Final = "outcome unknown: the connection ended before the answer"
CANNOT_SETTLE: Final = "only flowshare's own servers settle records together with outputs"
GIVEN_UP: Final = "the group gave this member up; it begins anew"


class SessionCore:
    """All share sessions of one member.

    topology: of the cluster, None with one server. keeps: True: the servers are flowshare's own, and the next leader
    knows which records members hold. `route` sets both before the first assignment.
    """

    def __init__(
        self,
        *,
        group_id: str,
        member_id: str,
        generations: Generations,
        name_of: Callable[[uuid.UUID], str],
        settings: LinkSettings,
        pause_s: Callable[[int], float],
        adopts: bool = False,
    ) -> None:
        """name_of: finds a topic's name by its id. pause_s: the pause in seconds after so many failures in a row.
        adopts: `adopt` will be called; until then the held records are reported to no node, which would give all others
        away."""
        self.group_id = group_id
        self.member_id = member_id
        self.custody = Custody(generations)
        self.nodes: dict[int, Node] = {}
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.refusal: ClientError | None = None
        """The reason why fetching is refused, until it was reported."""
        self.name_of = name_of
        self.settings = settings
        self.pause_s = pause_s
        self._adopts = adopts
        self._topology: Topology | None = None
        self._routed = False
        self.said: list[Command] = []
        """The commands that the next `take` returns."""
        self._numbers = 0
        self._waiting: list[Ack] = []
        """Acknowledgements that wait for a leader."""
        self.calls = Calls(self.say, name_of)
        self._plan: tuple[Plan, float] | None = None
        """The fetch plan that waits while there is no node to fetch from, with its deadline."""
        self._closed = False
        # the leaders that are to be looked up
        self._search = LeaderSearch(self.custody, settings.backoff.first)
        self._watch_due_s: float | None = None
        self._doubted: set[int] = set()

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        """True if held records stay the member's when a connection ends."""
        return self.custody.keeps

    @property
    def alone(self) -> bool:
        """True if there is one server and no cluster."""
        return self._topology is None

    @property
    def fleet(self) -> bool:
        """True if the servers are several of flowshare's own."""
        return self._topology is not None and self.custody.keeps

    @property
    def busy(self) -> bool:
        """True if some node has a fetch under way."""
        return any(node.busy for node in self.nodes.values())

    @property
    def all_told(self) -> bool:
        """True if every acknowledgement and settle has its outcome."""
        return self.calls.untold == 0

    @property
    def ended(self) -> bool:
        """True if no session is being closed."""
        return all(node.closing is None for node in self.nodes.values())

    @property
    def lock_timeout_ms(self) -> int:
        """The shortest lock duration in the nodes' last answers, in milliseconds; 0 before the first answer."""
        return min((node.lock_timeout_ms for node in self.nodes.values() if node.lock_timeout_ms > 0), default=0)

    @property
    def trouble(self) -> str | None:
        """The reason why no records arrive; None: no trouble is known."""
        adrift = self.custody.adrift
        if adrift and self.fleet:
            return f"{len(adrift)} partitions of {self._names(adrift)} wait for their next leader"
        for node in self.nodes.values():
            if node.trouble and node.needed:
                return node.trouble
        unknown = self._search.stale.union(adrift)
        if unknown and not self.alone:
            return f"the leaders of some partitions of {self._names(unknown)} are not known"
        return None

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Tell if records acquired under this number can still be the member's."""
        return self.custody.holds(tp, generation)

    def take(self) -> list[Command]:
        """Take the commands to carry out, in order; each command is returned once."""
        said, self.said = self.said, []
        return said

    def say(self, command: Command) -> None:
        """Add a command to those that `take` returns."""
        self.said.append(command)

    def next_number(self) -> int:
        """Return the number for the next request."""
        self._numbers += 1
        return self._numbers

    def due_s(self) -> float | None:
        """Return the time at which `tick` has something to do next, in monotonic seconds; None: never."""
        due_s = NEVER
        for at_s in (self._search.due_s, self._watch_due_s, None if self._plan is None else self._plan[1]):
            if at_s is not None and at_s < due_s:
                due_s = at_s
        for ack in self._waiting:
            due_s = min(due_s, ack.until_s)
        for node in self.nodes.values():
            due_s = min(due_s, node.due_s())
        return None if due_s == NEVER else due_s

    # --- what happens to nodes and leaders ----------------------------------------------------------------------

    def route(self, topology: Topology | None, *, keeps: bool, now_s: float) -> None:
        """Record the target of the member's connection: one server, or a cluster of them."""
        self._topology, self._routed = topology, True
        self.custody.keeps = keeps
        if self.fleet:
            self._watch_due_s = now_s + WATCH_S

    def assign(self, assigned: frozenset[TopicPartition], now_s: float) -> None:
        """Take in a new assignment, or a change of the topology."""
        self.assigned = assigned
        self._arrange(now_s)

    def opened(self, node_id: int, now_s: float, *, keeps_time: bool, serial: bool) -> None:
        """Take in that a node has a new connection."""
        node = self._node(node_id)
        node.connected, node.keeps_time, node.serial = True, keeps_time, serial
        node.give_up_s = node.resume_again_s = None
        self.resume(node, now_s)
        node.pump(now_s)

    def lost(self, node_id: int, now_s: float) -> None:
        """Take in that a node's connection has ended; calling it twice does no harm."""
        node = self.nodes.get(node_id)
        if node is None or not node.connected:
            return
        node.connected = False
        under_way, node.under_way = node.under_way, {}
        node.trickles = False
        node.resumed.clear()
        node.session.reset()
        self.custody.cut_off(node_id, now_s)
        for sent in under_way.values():
            self._unanswered(node, sent, now_s)
        if node.plan is not None:
            node.fetch_ended()  # it had not left yet
        pile, node.pile, node.ride_due_s = node.pile, [], None
        for ack in pile:
            self._undone(ack, ErrorCode.NETWORK_EXCEPTION, GONE, now_s)
        node.closing = None
        self._doubt(node)
        if self.alone:
            self.say(Refresh())  # a new leader waits for us for a short while only
        self._arrange(now_s)

    def unreachable(self, node_id: int, now_s: float) -> None:
        """Take in a failed try to connect to a node of a cluster. Right after a node's end the others still name it as
        leader."""
        node = self.nodes.get(node_id)
        if node is None or self.alone or self._closed:
            return
        if self.keeps:
            self.custody.cut_off(node_id, now_s)  # what is at home there never was there
        self._doubt(node)
        self._arrange(now_s)

    def refused(self, node_id: int, error: Exception, now_s: float) -> None:
        """Take in that a node cannot be connected to, and that a retry does not cure it."""
        node = self.nodes.get(node_id)
        if node is not None and not node.connected and node.plan is not None:
            node.plan, node.give_up_s = None, None
        self.say(Broke(error))

    def looked(self, partitions: Iterable[TopicPartition], now_s: float) -> None:
        """Take in that the leaders of these partitions were looked up, or could not be."""
        topology = self._topology
        self._search.looked(now_s)
        if topology is None or self._closed:
            return
        self.custody.looked({tp: topology.leader_of(tp) for tp in partitions}, now_s)
        self._arrange(now_s)
        doubted, self._doubted = self._doubted, set()
        self._drop_silent(doubted, now_s)

    def given_up(self, now_s: float) -> None:
        """Take in that the group no longer has this member: in a fleet its held records are lost, and so may be records
        on their way to it.

        Each worker is connected to anew, so that it first hears which records are held. Kafka's brokers leave a member
        its records until the locks lapse. A single server reports lost records with the next acknowledgement.
        """
        if not self.fleet:
            return
        self.custody.given_up()
        for node in list(self.nodes.values()):
            if node.connected:
                self.drop(node, GIVEN_UP, now_s)

    def adopt(self, held: Ranges, now_s: float) -> None:
        """Take the place of an earlier process of this member, which held these ranges.

        Flowshare's own servers keep them for the member, and give other records of that process to others, as if not
        delivered; also of partitions assigned later. Nothing is fetched before. Kafka's brokers are told nothing:
        records that their locks still hold are acknowledged as ever.
        """
        self._adopts = False
        if self.keeps:
            self.custody.adopt(held, now_s)
            self._arrange(now_s)

    # --- fetching -----------------------------------------------------------------------------------------------

    def ask(self, plan: Plan, now_s: float) -> bool:
        """Fetch from each node that has records to fetch and no fetch under way; each gets its part of the plan.

        Returns True if a fetch was begun.
        """
        begun, needed = False, [node for node in self.nodes.values() if node.needed]
        part = plan.records_max // max(1, len(needed))
        for node in needed:
            if node.plan is not None or node.rest_until_s is not None:
                continue
            most = node.fetches_max(plan, part)
            size = max(1, part // most) if plan.records_max > 0 else plan.records_max
            each = plan.part(size)
            for _ in range(most - node.sends("fetch")):
                if node.plan is not None or node.rest_until_s is not None:
                    break
                node.plan, node.asked_s = each, now_s
                begun = True
                if not node.connected:
                    node.give_up_s = now_s + plan.max_wait_s
                    self.say(Connect(node.node_id))
                node.pump(now_s)
        if not needed and self._plan is None and not self.busy:
            self._plan = plan, now_s + plan.max_wait_s
            begun = True
        return begun

    def end_fetches(self, now_s: float) -> None:
        """End all fetches: have the servers answer parked ones, where they can, and drop those not sent yet."""
        self._plan = None
        for node in self.nodes.values():
            if node.plan is not None or node.rest_until_s is not None:
                node.fetch_ended()
            if node.sends("fetch"):
                node.nudge(now_s)

    # --- acknowledging ------------------------------------------------------------------------------------------

    def acknowledge(self, acks: Acks, generation: int | None, now_s: float, *, asker: object, tells_late: bool) -> None:
        """Send acknowledgements. asker: gets the outcomes (`Answered`, `Late`)."""
        call = self.calls.begin(acks, asker, tells_late=tells_late)
        nodes: dict[int, Node] = {}
        for tp, batches in acks.items():
            ack = Ack(call, tp, tuple(batches), generation, self.custody.taken)
            node = self._where_to(ack, now_s)
            if node is not None:
                node.pile.append(ack)
                nodes[node.node_id] = node
        for node in nodes.values():
            node.pump(now_s)

    def settle(
        self,
        tp: TopicPartition,
        batches: Sequence[AckRange],
        outputs: tuple[SettleOutput, ...],
        generation: int | None,
        now_s: float,
        *,
        asker: object,
        tells_late: bool,
        ordered: bool = False,
    ) -> None:
        """Accept and reject records of one partition and write outputs, in one step or not at all.

        batches: ascending, ACCEPT and REJECT only. Other arguments: as of `acknowledge`.
        """
        call = self.calls.begin({tp: batches}, asker, tells_late=tells_late)
        ack = Ack(call, tp, tuple(batches), generation, self.custody.taken, outputs=outputs, ordered=ordered)
        if self._routed and not self.keeps and not self._closed:
            self.calls.told(ack, ErrorCode.UNSUPPORTED_VERSION, CANNOT_SETTLE)
            return
        node = self._where_to(ack, now_s)
        if node is not None:
            node.settle(ack, now_s)

    def _where_to(self, ack: Ack, now_s: float) -> Node | None:
        """Return the node to send an acknowledgement to now; None: its outcome was reported, or it waits for a
        leader."""
        node = self._home(ack)
        if self._closed:
            self.calls.told(ack, ErrorCode.NETWORK_EXCEPTION, STOPPED)
        elif ack.generation is not None and not self.custody.holds(ack.tp, ack.generation):
            moved = self.custody.moved_away(ack.tp)
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if moved else ErrorCode.NETWORK_EXCEPTION
            self.calls.told(ack, code, ELSEWHERE if moved else GONE)
        elif node is None:
            self._undone(ack, ErrorCode.NETWORK_EXCEPTION, GONE, now_s)
        else:
            return node
        return None

    def stop(self) -> None:
        """Send nothing any more: each call that waits for an outcome is told that the outcome is unknown."""
        self._closed = True
        acks = self._waiting
        for node in self.nodes.values():
            acks = acks + node.pile + [ack for sent in node.under_way.values() for ack in sent.acks]
            node.pile, node.under_way, node.plan, node.closing = [], {}, None, None
            node.give_up_s = node.rest_until_s = node.ride_due_s = node.resume_again_s = None
        self._waiting = []
        self._search.due_s = self._watch_due_s = self._plan = None
        for ack in acks:
            self.calls.told(ack, ErrorCode.NETWORK_EXCEPTION, STOPPED)

    def close_sessions(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int, int]]], now_s: float) -> None:
        """End all sessions, and give back `unrun` ranges (first, last, generation) to the partitions' current
        leaders."""
        at: dict[int, dict[TopicPartition, list[tuple[int, int]]]] = {}
        for tp, runs in unrun.items():
            held = [(first, last) for first, last, generation in runs if self.custody.holds(tp, generation)]
            if held and tp in self.custody.homes:
                at.setdefault(self.custody.homes[tp], {})[tp] = held
        for node in self.nodes.values():
            back = at.get(node.node_id, {})
            if node.connected and (node.session.open or (back and self.keeps)):
                node.closing = back
                node.pump(now_s)

    # --- answers ------------------------------------------------------------------------------------------------

    def answered(self, node_id: int, number: int, answer: Any, now_s: float) -> None:
        """Take in the answer to a request; ignored if the request is not under way any more."""
        node = self.nodes.get(node_id)
        sent = None if node is None else node.under_way.pop(number, None)
        if node is None or sent is None:
            return
        node.heard_s = now_s
        match sent.kind:
            case "fetch" | "open":
                node.fetch_answered(sent, answer, now_s)
            case "acknowledge":
                if answer.error in SESSION_GONE:
                    node.session.reset(sent.session)
                node.outcomes(sent, answer, now_s)
            case "settle":
                node.settled(sent, answer, now_s)
            case "resume":
                self._resume_answered(node, sent, answer, now_s)
            case "close":
                node.close_answered(answer)
        node.pump(now_s)

    def failed(self, node_id: int, number: int, error: Exception, now_s: float) -> None:
        """Take in that a request could not be sent, or that its answer could not be read; the connection goes on."""
        node = self.nodes.get(node_id)
        sent = None if node is None else node.under_way.pop(number, None)
        if node is None or sent is None:
            return
        for ack in sent.acks:
            if isinstance(error, Unsupported) and not ack.doubted:  # it was not sent
                self.calls.told(ack, ErrorCode.UNSUPPORTED_VERSION, str(error))
            else:
                self.calls.told(ack, ErrorCode.UNKNOWN_SERVER_ERROR, f"outcome unknown: {error!r}")
        if sent.kind in ("fetch", "resume"):
            self.say(Broke(error))
        if sent.kind == "close":
            node.closing = None
        node.pump(now_s)

    def tick(self, now_s: float) -> None:
        """Do all that is due by now."""
        self._ask_again(now_s)
        for node in list(self.nodes.values()):
            node.tick(now_s)
        for ack in [ack for ack in self._waiting if now_s >= ack.until_s]:
            self._waiting.remove(ack)
            self._in_vain(ack)
        if self._watch_due_s is not None and now_s >= self._watch_due_s:
            self._watch_due_s = now_s + WATCH_S
            self._watch(now_s)
        if self._search.due_s is not None and now_s >= self._search.due_s:
            self._look(now_s)

    # --- acknowledgements' outcomes -----------------------------------------------------------------------------

    def outcome(
        self,
        ack: Ack,
        code: ErrorCode,
        message: str | None,
        deadline_s: float,
        now_s: float,
        refused: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Take in a node's answer to an acknowledgement."""
        if code in LEFT and self.fleet:
            ack.doubted = False  # what was in doubt before is not written, or it would not have been sent again
            self._undone(ack, code, message, now_s)
        elif code is not ErrorCode.NONE and ack.doubted:
            self.calls.told(ack, ErrorCode.NETWORK_EXCEPTION, UNANSWERED)  # it may have been written the first time
        elif not refused:
            self.calls.told(ack, code, message, deadline_s)
        else:
            refusal = ErrorCode.NETWORK_EXCEPTION if ack.doubted else ErrorCode.INVALID_RECORD_STATE
            said = UNANSWERED if ack.doubted else message
            self.calls.told(ack, code, said, deadline_s, refused, refusal)

    def settle_outcome(
        self, ack: Ack, answer: ShareSettleResponse, refused: tuple[tuple[int, int], ...], now_s: float
    ) -> None:
        """Take in a node's answer to a settle. refused: ranges of its records that are not held."""
        code, message = answer.error, answer.message
        if code is ErrorCode.NONE or ack.doubted or (code in LEFT and self.fleet):
            self.outcome(ack, code, message, 0.0, now_s)
        else:
            self.calls.told(ack, code, message, 0.0, refused, outputs=answer.outputs)

    def _unanswered(self, node: Node, sent: Sent, now_s: float) -> None:
        """Treat a request's acknowledgements as doubted: the connection ended before the answer."""
        for ack in sent.acks:
            ack.doubted = True
            self._undone(ack, ErrorCode.NETWORK_EXCEPTION, UNANSWERED, now_s)
        if sent.kind == "fetch":
            self.say(Arrived([]))

    def _undone(self, ack: Ack, code: ErrorCode, message: str | None, now_s: float) -> None:
        """Pass on an acknowledgement that is not done, or in doubt, to the partition's next leader, if that knows the
        member's held records; else report its outcome."""
        drift = self.custody.adrift.get(ack.tp)
        if self.keeps and ack.only_renews and not self.alone:
            self.calls.told(ack, ErrorCode.LEADER_NOT_AVAILABLE, MOVING)
            return
        if not self.keeps or (drift is None and not ack.tries):
            self.calls.told(ack, code, message)
            return
        ack.result = self.calls.result(ack, code, message)
        if self._closed or ack.tries >= TRIES_MAX:
            self._in_vain(ack)
            return
        patience_s = RESUME_S if self.alone else self.lock_timeout_ms / 1000 or LOCK_S
        ack.until_s = (now_s if drift is None or self.alone else drift.since_s) + patience_s
        self._waiting.append(ack)
        self.calls.put_off(ack)
        if drift is None:
            self._go_on(now_s)

    def _go_on(self, now_s: float) -> None:
        """Send the waiting acknowledgements of partitions that came home; report those of lost records as without
        outcome."""
        ready = [ack for ack in self._waiting if ack.tp not in self.custody.adrift]
        if not ready:
            return
        self._waiting = [ack for ack in self._waiting if ack.tp in self.custody.adrift]
        nodes: dict[int, Node] = {}
        for ack in ready:
            node = self._home(ack)
            lost = ack.generation is not None and not self.custody.holds(ack.tp, ack.generation)
            written = ack.doubted and not self.custody.unwritten(ack.tp, ack.batches, ack.since)
            if node is None or lost or written or not node.connected:
                self._in_vain(ack)
            elif ack.outputs is not None:
                node.settle(ack, now_s)
            else:
                node.pile.append(ack)
                nodes[node.node_id] = node
        for node in nodes.values():
            node.pump(now_s)

    def _in_vain(self, ack: Ack) -> None:
        """Report an acknowledgement that waited for a leader in vain."""
        self.calls.told(ack, ErrorCode.NETWORK_EXCEPTION, UNANSWERED if ack.doubted else GONE)

    def _home(self, ack: Ack) -> Node | None:
        """Return the partition's home node if it is connected, else None."""
        node = self.nodes.get(self.custody.homes.get(ack.tp, NOBODY))
        return node if node is not None and node.connected else None

    # --- resuming -----------------------------------------------------------------------------------------------

    def resume(self, node: Node, now_s: float) -> None:
        """Report to a node the held ranges of all partitions bound for it."""
        if self._adopts or node.sends("resume") or node.resume_again_s is not None:
            return
        if not self.custody.bound_for(node.node_id):
            return
        if not node.connected:
            self.say(Connect(node.node_id))
            return
        told = self.custody.tell(node.node_id)
        request = ShareResumeRequest(group_id=self.group_id, member_id=self.member_id, partitions=told)
        node.send("resume", request, now_s, told=told)

    def _resume_answered(self, node: Node, sent: Sent, answer: ShareResumeResponse, now_s: float) -> None:
        if answer.error is not ErrorCode.NONE and answer.error not in REFUSED:
            text = f"node {node.node_id} cannot say what {self.member_id} holds: {answer.message}"
            self.say(Note(INFO, text))
            node.resume_strikes += 1
            node.resume_again_s = now_s + min(self.pause_s(node.resume_strikes), LOOK_IN_FLEET_S_MAX)
            return
        node.resume_strikes = 0
        kept = {TopicPartition(part.topic_id, part.partition): part.ranges for part in answer.partitions}
        fetching = node.sends("fetch")
        came = self.custody.resumed(node.node_id, sent.told, kept, frozenset(answer.elsewhere))
        node.resumed.update(dict.fromkeys(came, sent.number))
        if came and not self.alone:
            text = f"{len(came)} partitions of {self.member_id} are led by node {node.node_id}"
            self.say(Note(INFO, text))
        self._arrange(now_s)
        if fetching:
            node.nudge(now_s)  # so that the next fetch asks for what came
        elif came and not node.sends("fetch"):
            self.say(Stir())

    # --- leaders ------------------------------------------------------------------------------------------------

    def moved(
        self,
        node: Node,
        tp: TopicPartition,
        code: ErrorCode,
        leader: tuple[int, int],
        endpoints: Mapping[int, tuple[str, int]],
        now_s: float,
    ) -> None:
        """Take in that a node does not lead a partition, or cannot serve it now."""
        topology = self._topology
        if topology is None:
            return
        named = topology.hint(tp, leader, endpoints)
        if self.keeps and code in LEFT:
            self.custody.refused(tp, node.node_id, now_s)
            if named:
                self.custody.found(tp, topology.leader_of(tp), now_s)
        elif not named or self.keeps:
            self._search.stale.add(tp)
        self._arrange(now_s)

    def _doubt(self, node: Node) -> None:
        """Have the leaders looked up for the partitions of a node that cannot be reached."""
        if self._topology is not None and not self.keeps:
            self._search.stale |= node.wanted

    def _arrange(self, now_s: float) -> None:
        """Have each partition fetched at its home node, and resumed at the node it is bound for."""
        if self._closed or not self._routed:
            return
        custody, topology = self.custody, self._topology
        custody.forget(self.assigned.union(*(node.may_bring for node in self.nodes.values())))
        for tp in self.assigned | custody.partitions:
            custody.found(tp, LOCAL if topology is None else topology.leader_of(tp), now_s)
        at: dict[int, set[TopicPartition]] = {}
        for tp, home in custody.homes.items():
            at.setdefault(home, set()).add(tp)
        bound = {drift.bound for drift in custody.adrift.values()} - {NOBODY}
        for node_id in at.keys() | bound:
            self._node(node_id)
        for node_id, node in self.nodes.items():
            node.wanted = self.assigned.intersection(at.get(node_id, ()))
        for node_id in bound:
            self.resume(self.nodes[node_id], now_s)
        self._part()
        if self._search.urgent:
            self._look(now_s)
        self._go_on(now_s)
        self._ask_again(now_s)

    def _node(self, node_id: int) -> Node:
        node = self.nodes.get(node_id)
        if node is None:
            acknowledge_linger = 0.0 if self.keeps else self.settings.acknowledge_linger
            node = self.nodes[node_id] = Node(node_id, self, acknowledge_linger)
        return node

    def _ask_again(self, now_s: float) -> None:
        """Begin the waiting fetch plan if a node can be fetched from by now; end it without records if its time is
        over."""
        if self._plan is None:
            return
        plan, until_s = self._plan
        if any(node.needed for node in self.nodes.values()):
            self._plan = None
            self.ask(plan, now_s)
        elif now_s >= until_s:
            self._plan = None
            self.say(Arrived([]))

    def _part(self) -> None:
        """Let the nodes rest where no partition is at home, and forget those without a connection."""
        if self.alone:
            return
        custody = self.custody
        needed = {*custody.homes.values(), *(drift.bound for drift in custody.adrift.values())}
        for node_id, node in list(self.nodes.items()):
            if node_id in needed:
                continue
            self.say(Rest(node_id))
            if not node.connected and not node.busy and not node.pile:
                del self.nodes[node_id]
                self.say(Forget(node_id))

    def _look(self, now_s: float) -> None:
        """Have leaders looked up; the held records of partitions adrift for the lock time are lost."""
        if self.alone:
            return
        if self.custody.adrift and not self._search.looking:
            self._lose_overdue(now_s)
        asked = self._search.next(now_s, self.assigned | self.custody.partitions)
        if asked:
            self._search.begin()
            self.say(Look(asked))

    def _lose_overdue(self, now_s: float) -> None:
        if self.keeps:
            late = set(self.custody.overdue(now_s, self.lock_timeout_ms / 1000 or LOCK_S))
            for ack in [ack for ack in self._waiting if ack.tp in late]:
                self._waiting.remove(ack)
                self._in_vain(ack)

    def _watch(self, now_s: float) -> None:
        """Doubt workers that owe an answer and are silent."""
        self._part()
        if self._search.looking:
            return
        silent = {node.node_id for node in self.nodes.values() if node.silent(now_s, SILENT_S)}
        partitions = tuple(sorted(tp for tp, home in self.custody.homes.items() if home in silent))
        if partitions:
            self._doubted = silent
            self._search.begin()
            self.say(Look(partitions))
        else:
            self._drop_silent(silent, now_s)

    def _drop_silent(self, node_ids: Iterable[int], now_s: float) -> None:
        homes = set(self.custody.homes.values())
        for node_id in node_ids:
            node = self.nodes.get(node_id)
            if node is not None and node_id not in homes and node.silent(now_s, SILENT_S):
                self.drop(node, f"worker {node_id} does not answer", now_s)

    def drop(self, node: Node, reason: str, now_s: float) -> None:
        self.say(Drop(node.node_id, reason))
        self.lost(node.node_id, now_s)

    def _names(self, partitions: Iterable[TopicPartition]) -> str:
        return ", ".join(sorted({self.name_of(tp.topic_id) for tp in partitions}))
