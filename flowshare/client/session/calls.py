"""Acknowledgements and settles under way, and the calls of the application that wait for their outcomes. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.session.commands import Answered, Command, Late
from flowshare.client.session.ranges import AckResult
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping, Sequence

    from flowshare.protocol.messages import RefusedOutput, SettleOutput, TopicPartition
    from flowshare.share.types import AckRange

RENEW: Final = int(AcknowledgeType.RENEW)
ONLY_RENEW: Final = frozenset({RENEW})


@dataclass(slots=True, eq=False)
class Call:
    """One `acknowledge` or `settle` call of the application; its outcomes are reported to `asker`.

    outcomes: by partition, in the call's order; None: no outcome yet. tells_late: outcomes that wait for another
    leader, or for another node than the first to answer, are reported later. renewal: the request counts as a renewal.
    left: number of outcomes that the answer waits for. answered: the call was answered.
    """

    asker: Any
    outcomes: dict[TopicPartition, AckResult | None]
    tells_late: bool
    renewal: bool
    left: int
    answered: bool = False


@dataclass(slots=True, eq=False)
class Ack:
    """The acknowledgements or the settle of one partition in a call.

    `since`: the number of acquires when the call was made (`Custody.taken`). `result`: of the last try, None before the
    first. `doubted`: True: some try had no answer. `late`: True: its call was answered without this result. `until_s`:
    the end of its wait for a leader. `outputs`: of a settle, the outputs written with it, possibly none; None: not a
    settle. `ordered`: of a settle, True: it waits for the records before its own.
    """

    call: Call
    tp: TopicPartition
    batches: tuple[AckRange, ...]
    generation: int | None
    since: int
    tries: int = 0
    result: AckResult | None = None
    doubted: bool = False
    late: bool = False
    until_s: float = 0.0
    outputs: tuple[SettleOutput, ...] | None = None
    ordered: bool = False

    @property
    def only_renews(self) -> bool:
        """True if the acknowledgement only renews locks."""
        return self.call.renewal and all(ONLY_RENEW.issuperset(batch.types) for batch in self.batches)


def is_renewal(acks: Mapping[TopicPartition, Sequence[AckRange]]) -> bool:
    """Tell if some of the acknowledgements are RENEW: then the whole request counts as a renewal."""
    return any(RENEW in batch.types for batches in acks.values() for batch in batches)


class Calls:
    """Reports each outcome once: with the answer to its call, or late."""

    def __init__(self, say: Callable[[Command], object], name_of: Callable[[uuid.UUID], str]) -> None:
        self._say = say
        self._name_of = name_of
        self.untold = 0
        """The number of acknowledgements without an outcome."""

    def begin(self, acks: Mapping[TopicPartition, Sequence[AckRange]], asker: object, *, tells_late: bool) -> Call:
        """Begin a call; a call without acknowledgements is answered at once."""
        self.untold += len(acks)
        if not acks:
            self._say(Answered(asker, []))
        return Call(asker, dict.fromkeys(acks), tells_late, is_renewal(acks), len(acks))

    def told(
        self,
        ack: Ack,
        code: ErrorCode,
        message: str | None,
        deadline_s: float = 0.0,
        refused: tuple[tuple[int, int], ...] = (),
        refusal: ErrorCode = ErrorCode.NONE,
        outputs: tuple[RefusedOutput, ...] = (),
    ) -> None:
        """Report the outcome of an acknowledgement, once. refused, refusal, outputs: as in `AckResult`."""
        result = self.result(ack, code, message, deadline_s)
        if refused or outputs:
            result = result._replace(refused=refused, refusal=refusal, outputs=outputs)
        self.untold -= 1
        if ack.late or ack.call.answered:
            self._say(Late(ack.call.asker, result))
            return
        ack.call.outcomes[ack.tp] = result
        self._counted(ack.call)

    def put_off(self, ack: Ack) -> None:
        """Report the outcome late, if its call can be answered without it."""
        if ack.call.tells_late and not ack.late:
            ack.late = True
            self._counted(ack.call)

    def go_on(self, call: Call) -> None:
        """Answer a call after a node's answer, if late outcomes are possible: outcomes of other nodes are reported
        late."""
        if call.tells_late and not call.answered:
            self._answer(call)

    def _counted(self, call: Call) -> None:
        call.left -= 1
        if call.left == 0 and not call.answered:
            self._answer(call)

    def _answer(self, call: Call) -> None:
        call.answered = True
        results = [result for result in call.outcomes.values() if result is not None]
        self._say(Answered(call.asker, results))

    def result(self, ack: Ack, code: ErrorCode, message: str | None, deadline_s: float = 0.0) -> AckResult:
        return AckResult(self._name_of(ack.tp.topic_id), *ack.tp, ack.batches, code, message, deadline_s)
