"""What can become of a delivery: what a handler returns or raises, turned into one `Outcome`.

The README's table ("What happens to a record") is here and in `feed.completion`: here what the handler's result means,
there what is produced and acknowledged for it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.agents.handler.errors import Overtaken, UndecodableValue
from flowshare.agents.handler.retry import Seconds, seconds
from flowshare.agents.handler.send import ProducerRecord, SendGroup
from flowshare.agents.handler.texts import named, said

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent


class Release(Exception):
    """Returned or raised by a handler: put the record back, not an error; available again after `delay` seconds.

    The delivery counts as an attempt.
    """

    def __init__(self, delay: Seconds = 0) -> None:
        super().__init__(f"released, again after {delay}")
        self.delay_s = seconds(delay, "Release(delay=…)")


class Reject(Exception):
    """Returned or raised by a handler: this record can never be handled; to the dead letter with `reason`."""

    def __init__(self, reason: str = "rejected by the handler") -> None:
        super().__init__(reason)
        self.reason = reason if type(reason) is str else said(reason)


class OutcomeKind(enum.Enum):
    """What is to be acknowledged."""

    ACCEPT = "accept"
    RELEASE = "release"
    RETRY = "retry"
    DEAD = "dead"


class Outcome(NamedTuple):
    """One delivery's outcome, other than a plain accept. Made on the handler's side, settled on the service loop.

    told: the log has it already, of another record of its batch. unrun: it was never begun. outputs: what was returned,
    and sent by this record's delivery. shared: what a batch returned, for all its records together. failed: the handler
    raised or took too long, and nobody said what that means (a breaker counts it).
    """

    kind: OutcomeKind
    error: BaseException | None = None
    reason: str = ""
    delay_s: float = 0.0
    outputs: tuple[ProducerRecord, ...] = ()
    told: bool = False
    unrun: bool = False
    shared: SendGroup | None = None
    failed: bool = False

    @property
    def has_outputs(self) -> bool:
        """Whether something is to be produced before, or with, its acknowledgement."""
        return bool(self.outputs) or self.shared is not None


_VALUES: Final = frozenset({bytes, str, dict, list, tuple})
"""What handlers return most, and is never an outcome."""


def given_up(result: Any) -> Release | Reject | None:
    """What a handler returned instead of a value; the bare class is what `raise` would make of it."""
    if isinstance(result, type) and issubclass(result, (Release, Reject)):
        return result()
    return result if isinstance(result, (Release, Reject)) else None


CANCELLED = "the handler was cancelled"
OVERTAKEN_DELAY_S = 1.0
"""Should the record be this member's all the same, it comes again until the server's delivery limit; not at once."""


def of_exception(agent: ShareAgent, error: BaseException, attempt: int, *, ending: bool = False) -> Outcome:
    """The outcome of an exception out of user code (or of `timeout`); ending: handlers are being cancelled."""
    try:
        return _of_kind(agent, error, attempt, ending)
    except BaseException as broken:  # noqa: BLE001 - an exception of the application may be anything: a half-made Release
        return _of_failure(agent, broken, attempt)


def _of_kind(agent: ShareAgent, error: BaseException, attempt: int, ending: bool) -> Outcome:
    if isinstance(error, Release):
        if attempt >= agent.options.retry.max_attempts:  # each release is an attempt: no record goes round for ever
            return Outcome(OutcomeKind.DEAD, None, f"attempts used up ({attempt}): given back by fs.Release")
        return Outcome(OutcomeKind.RELEASE, None, "Release", error.delay_s)
    if isinstance(error, Reject):
        return Outcome(OutcomeKind.DEAD, None, said(error.reason))
    if isinstance(error, Overtaken):  # never a dead letter: the record is another handler's by now
        return Outcome(OutcomeKind.RELEASE, None, named(error), OVERTAKEN_DELAY_S)
    if isinstance(error, UndecodableValue):
        return Outcome(OutcomeKind.DEAD, error, f"undecodable: {said(error)}")
    if isinstance(error, agent.options.reject):
        return Outcome(OutcomeKind.DEAD, error, f"rejected because of {named(error)}")
    if ending and not isinstance(error, Exception):
        return Outcome(OutcomeKind.RELEASE, error, f"{CANCELLED} ({type(error).__name__})")
    return _of_failure(agent, error, attempt)


def _of_failure(agent: ShareAgent, error: BaseException, attempt: int) -> Outcome:
    """sys.exit() and the like are tried again as any failure: `Retry(on=…)` names kinds of Exception."""
    retry = agent.options.retry
    text = named(error)
    if isinstance(error, Exception) and not retry.retries(error):
        return Outcome(OutcomeKind.DEAD, error, f"not to be retried: {text}", failed=True)
    if attempt >= retry.max_attempts:
        return Outcome(OutcomeKind.DEAD, error, f"attempts used up ({attempt}): {text}", failed=True)
    return Outcome(OutcomeKind.RETRY, error, text, failed=True)


def of_result(agent: ShareAgent, result: Any, attempt: int, headers: tuple[tuple[str, bytes], ...]) -> Outcome:
    """The outcome of what a handler returned, None included (a plain accept).

    headers: trace context to put into produced records.
    """
    try:
        instead = None if type(result) in _VALUES else given_up(result)
        if instead is not None:
            return of_exception(agent, instead, attempt)
        sends = agent.outputs(result, headers)
    except BaseException as error:  # noqa: BLE001 - an output that cannot be encoded is the handler's fault
        return of_exception(agent, error, attempt)
    return Outcome(OutcomeKind.ACCEPT, None, "", 0.0, sends)
