"""Outcomes of a delivery: each result or exception of a handler becomes one `Outcome`.

The README's table ("What happens to a record") is implemented in two modules: the meaning of a handler's result here,
the records produced and acknowledged for it in `feed.completion`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.agents.handler.errors import Overtaken, UndecodableValue
from flowshare.agents.handler.retry import Seconds, exception_types, seconds
from flowshare.agents.handler.send import ProducerRecord, SendGroup
from flowshare.agents.handler.texts import leaves, named, said

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent


class Release(Exception):
    """Returned or raised by a handler: release the record, not as an error; available again after `delay` seconds.

    The delivery counts as an attempt.
    """

    def __init__(self, delay: Seconds = 0) -> None:
        super().__init__(f"released, again after {delay}")
        self.delay_s = seconds(delay, "Release(delay=…)")


class Reject(Exception):
    """Returned or raised by a handler: reject the record for good, to the dead letter with `reason`."""

    def __init__(self, reason: str = "rejected by the handler") -> None:
        super().__init__(reason)
        self.reason = reason if type(reason) is str else said(reason)


class OutcomeKind(enum.Enum):
    """The kinds of acknowledgement that an outcome asks for."""

    ACCEPT = "accept"
    RELEASE = "release"
    RETRY = "retry"
    DEAD = "dead"


class Outcome(NamedTuple):
    """One delivery's outcome, other than a plain accept. Made on the handler's side, settled on the service loop.

    told: the outcome is logged already, with another record of the batch. unrun: the record was never begun. outputs:
    records returned, and sent by this record's delivery. shared: output of a batch for all its records together.
    failed: the handler raised or took too long, and neither `reject=` nor the exception's class gives that a meaning
    (a breaker counts it).
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
        """True if records must be produced before, or with, the acknowledgement."""
        return bool(self.outputs) or self.shared is not None


_VALUES: Final = frozenset({bytes, str, dict, list, tuple})
"""The most frequent types of results; none of them is an outcome."""


def given_up(result: Any) -> Release | Reject | None:
    """Return the `Release` or `Reject` that a handler returned in place of a value; None: it returned neither.

    The bare class counts as an instance, as with `raise`.
    """
    if isinstance(result, type) and issubclass(result, (Release, Reject)):
        return result()
    return result if isinstance(result, (Release, Reject)) else None


CANCELLED = "the handler was cancelled"
OVERTAKEN_DELAY_S = 1.0
"""Seconds of delay: if this member still holds the record, it comes again, not at once, until the server's delivery
limit."""


def of_exception(agent: ShareAgent, error: BaseException, attempt: int, *, ending: bool = False) -> Outcome:
    """Return the outcome of an exception from user code (or of `timeout`). ending: handlers are being cancelled."""
    try:
        return _of_kind(agent, error, attempt, ending)
    except BaseException as broken:  # noqa: BLE001 - an exception of the application may be anything: a half-made Release
        return _of_failure(agent, broken, attempt)


def _of_kind(agent: ShareAgent, error: BaseException, attempt: int, ending: bool) -> Outcome:
    if isinstance(error, BaseExceptionGroup) and not _is_named(agent, error):
        return _of_group(agent, error, attempt, ending)
    return _of_one(agent, error, attempt, ending)


def _of_one(agent: ShareAgent, error: BaseException, attempt: int, ending: bool) -> Outcome:
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


def _is_named(agent: ShareAgent, group: BaseException) -> bool:
    """Tell if `reject=` or `Retry(on=…)` names this group's exception group class: the group then counts as one
    error."""
    named_classes = (*agent.options.reject, *exception_types(agent.options.retry.on, "Retry(on=…)"))
    return any(issubclass(one, BaseExceptionGroup) and isinstance(group, one) for one in named_classes)


def _of_group(agent: ShareAgent, group: BaseException, attempt: int, ending: bool) -> Outcome:
    """Return the outcome of several errors together (of a TaskGroup): the first by `_rank` of each error's own outcome.

    An error that no attempt can change comes before one that may be tried again, and a failure before a release.
    """
    each = [(one, _of_one(agent, one, attempt, ending)) for one in leaves(group)]
    error, outcome = min(each, key=lambda pair: (_rank(*pair), -pair[1].delay_s))
    if not outcome.failed:
        beside = [one for one, its in each if its.failed]
        if outcome.kind is not OutcomeKind.DEAD or not beside:
            return outcome
        more = f" and {len(beside) - 1} more" if len(beside) > 1 else ""
        return outcome._replace(reason=f"{outcome.reason} (beside {named(beside[0])}{more})")
    return _of_failure(agent, group, attempt, retried=outcome.kind is OutcomeKind.RETRY or _retried(agent, error))


def _rank(error: BaseException, outcome: Outcome) -> int:
    """Rank one error of a group; the lowest rank counts."""
    if isinstance(error, Overtaken):
        return 0
    if isinstance(error, Release):
        return 5
    if not outcome.failed:
        return 1 if outcome.kind is OutcomeKind.DEAD else 2
    return 3 if outcome.kind is OutcomeKind.DEAD else 4


def _of_failure(agent: ShareAgent, error: BaseException, attempt: int, *, retried: bool | None = None) -> Outcome:
    """Return the outcome of a failure. retried: True if it is tried again; None: `retry` decides by its class."""
    retry = agent.options.retry
    text = named(error)
    if not (_retried(agent, error) if retried is None else retried):
        return Outcome(OutcomeKind.DEAD, error, f"not to be retried: {text}", failed=True)
    if attempt >= retry.max_attempts:
        return Outcome(OutcomeKind.DEAD, error, f"attempts used up ({attempt}): {text}", failed=True)
    return Outcome(OutcomeKind.RETRY, error, text, failed=True)


def _retried(agent: ShareAgent, error: BaseException) -> bool:
    """Tell if an error is tried again, as sys.exit() and the like always are: `Retry(on=…)` names kinds of
    Exception."""
    return not isinstance(error, Exception) or agent.options.retry.retries(error)


def of_result(agent: ShareAgent, result: Any, attempt: int, headers: tuple[tuple[str, bytes], ...]) -> Outcome:
    """Return the outcome of a handler's result; None is a plain accept.

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
