"""The options of `@app.share_agent`, checked when the module is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypedDict

from flowshare.agents.handler.batch import Batch
from flowshare.agents.handler.breaker import Breaker
from flowshare.agents.handler.errors import OptionError, refuse_unknown
from flowshare.agents.handler.order import CHAIN, PARK, Order, order_setting, parse_order
from flowshare.agents.handler.rate_limit import RateLimit, group_rate, parse_rate
from flowshare.agents.handler.retry import Retry, Seconds, count, exception_types, seconds
from flowshare.agents.handler.sinks import agent_sinks, several

LIMIT_MARGIN: Final = 5
"""Deliveries that the group allows beyond `max_attempts`, for deliveries that end in a crash or a lapsed lock."""
LOCKS_MIN: Final = 40_000
LOCKS_MAX: Final = 100_000
DEFAULT_LOCK_S: Final = 30.0
READ_COMMITTED: Final = "read_committed"
ISOLATIONS: Final = (READ_COMMITTED, "read_uncommitted")
PRIORITIES: Final = ("redeliveries", "new", "mixed")


class AgentArguments(TypedDict, total=False):
    """The options of `@app.share_agent` besides topics and a name, for type checkers; see `AgentOptions`."""

    group: str | None
    start: str | Seconds
    isolation: str
    concurrency: int
    retry: Any
    timeout: Seconds | None
    dead_letter: Any
    drain_timeout: Seconds
    reject: Any
    sink: Any
    batch: Any
    rate_limit: Any
    lock_duration: Seconds | None
    renew: bool
    middleware: Any
    max_in_flight: int | None
    max_rate: Any
    breaker: Any
    priority: str | None
    order: Any
    after_dead_letter: str
    at_most_once: bool
    exactly_once: bool
    value_codec: Any
    key_codec: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Settings of one share agent. Times are seconds.

    group: share group; None: `<app id>.<function>`.
    start: where a new group begins: `earliest`, `latest`, or how far back as seconds or a timedelta. Set on the group
        before the first fetch; a group that has state keeps its position.
    isolation: `read_committed`: no record of a transaction that is open or was aborted, so that outputs of an agent
        with `exactly_once` are read once; or `read_uncommitted`: every record, at once. Set on the group before the
        first fetch, for all of its members.
    concurrency: records (with `batch`: batches) that are handled at once in this process.
    retry: which failures are tried again, how often, how late.
    timeout: longest time a handler may take; None: none, its lock is renewed as long as it runs.
    dead_letter: True: topic `<group>.dlq`; a name or topic; None: reject without dead letter, with an error log.
    drain_timeout: how long handlers may finish when the worker stops.
    reject: exceptions that go to the dead letter at once.
    sink: topics that a returned value is produced to before the record is accepted.
    batch: hand over lists of records (`fs.Batch`), None: one by one.
    rate_limit: records a second in this process, as a number or text such as `"100/s"`, `"10/m"`.
    lock_duration: the group's acquisition lock; None: the server's default, 30 s.
    renew: renew locks while handlers run. False needs a `timeout` shorter than the lock.
    middleware: functions around the handler, the first outermost, inside those of the app.
    max_in_flight: records that all members of the group together may hold at once, those included that they fetched
        ahead; None: as the group is set (no limit).
    max_rate: records that all members of the group together are handed, redeliveries included, as a number a second or
        text such as `"100/s"`, `"10/m"`; None: as the group is set (no limit).
    breaker: while most outcomes of the whole group fail, nothing is handed out (`fs.Breaker`); None: as the group is
        set (no breaker).
    priority: what comes first when there is both, `redeliveries`, `new` records, or `mixed`: both by turns. None: as
        the group is set (redeliveries).
    order: `"key"`: records of one key run one after the other, in the log's order, each when the one before is
        settled; `fs.Header(name)`: the same by a header's value. Records without it run in any order. None: as the
        group is set (all in any order).
    after_dead_letter: with `order`, what becomes of a key of which a record became a dead letter. `continue`: it goes
        on. `park`: its later records follow into the dead letters unrun, in order, until `flowshare dlq replay` sends
        them all again.
    at_most_once: each record is accepted before its handler begins, so that none runs twice: a record whose handler
        fails is not tried again (its dead letter is written), and a worker that dies loses what its handlers had. For
        effects that must not be repeated, and may be missed.
    exactly_once: outputs (what the handler returns or sends by its delivery, its dead letter) are written in one step
        with the record's accept or reject, so that each is there once whoever is killed. Without it they are confirmed
        before, and a crash in between repeats them.
    value_codec, key_codec: a codec (or a registered one's name) that decodes the values and keys of its topics, for
        those that have none of their own (`app.topic(…, value_codec=…)`).
    """

    group: str | None = None
    start: str | Seconds = "earliest"
    isolation: str = READ_COMMITTED
    concurrency: int = 16
    retry: Retry = field(default_factory=Retry)
    timeout: float | None = None
    dead_letter: Any = True
    drain_timeout: float = 25.0
    reject: tuple[type[BaseException], ...] = ()
    sink: tuple[Any, ...] = ()
    batch: Batch | None = None
    rate_limit: RateLimit | None = None
    lock_duration: float | None = None
    renew: bool = True
    middleware: tuple[Callable[..., Any], ...] = ()
    max_in_flight: int | None = None
    max_rate: str | None = None
    breaker: Breaker | None = None
    priority: str | None = None
    order: Order = None
    after_dead_letter: str = "continue"
    at_most_once: bool = False
    exactly_once: bool = False
    value_codec: Any = None
    key_codec: Any = None

    @classmethod
    def parse(cls, agent: str, given: Mapping[str, Any]) -> AgentOptions:
        """Check and complete the options that a user gave. Raises: OptionError, naming the agent."""
        refuse_unknown(f"share agent {agent}:", given, [one.name for one in fields(cls)])
        checked = {name: _CHECKS[name](value) if name in _CHECKS else value for name, value in given.items()}
        if checked.get("at_most_once"):
            checked.setdefault("retry", Retry(max_attempts=1))
        try:
            options = cls(**checked)
            options._check_together()
        except OptionError as error:
            raise OptionError(f"share agent {agent}: {error}") from None
        return options

    def _check_together(self) -> None:
        self._check_at_most_once()
        if self.after_dead_letter == PARK and (self.order is None or self.dead_letter is None):
            missing = "order" if self.order is None else "dead_letter"
            raise OptionError(
                f"after_dead_letter='park' keeps the order of keys over dead letters, and there is no {missing}: give "
                f"{missing}=…, or leave after_dead_letter out"
            )
        lock_s = self.lock_duration or DEFAULT_LOCK_S
        waits_s = 0.0 if self.batch is None or self.order is None else self.batch.within_s
        if not self.renew and self.timeout is not None and waits_s + self.timeout >= lock_s > self.timeout:
            raise OptionError(
                f"renew=False with an order: records wait for {waits_s:g} s in a batch (within), and their handler may "
                f"take {self.timeout:g} s (timeout), which is more than the lock of {lock_s:g} s: lower within=… or "
                "timeout=…, raise lock_duration=…, or leave renew on"
            )
        if not self.renew and (self.timeout is None or self.timeout >= lock_s):
            raise OptionError(
                f"renew=False needs a timeout shorter than the lock of {lock_s:g} s, else the record is handed to "
                f"another worker while its handler runs (timeout is {self.timeout}). Set timeout=…, raise "
                "lock_duration=…, or leave renew on."
            )

    def _check_at_most_once(self) -> None:
        """Check `at_most_once`. Raises: OptionError for options that need a record to run again."""
        if not self.at_most_once:
            return
        if self.exactly_once:
            raise OptionError("at_most_once and exactly_once contradict each other: leave one of them out")
        if self.retry.max_attempts > 1:
            raise OptionError(
                f"at_most_once=True runs no record twice, and retry allows {self.retry.max_attempts} attempts: leave "
                "retry out, or leave at_most_once out"
            )
        if self.order is not None:
            raise OptionError(
                "at_most_once=True accepts a record before it runs, and order hands out the next of its key once it is "
                "accepted, so that both would run at once: leave order out, or leave at_most_once out"
            )

    @property
    def delivery_count_limit(self) -> int:
        """share.delivery.count.limit of the group."""
        return self.retry.max_attempts + LIMIT_MARGIN

    @property
    def records_at_once(self) -> int:
        """Most records that handlers of this process hold at once."""
        return self.concurrency * (self.batch.size if self.batch else 1)

    @property
    def record_locks(self) -> int:
        """share.partition.max.record.locks of the group, for all processes together.

        The number is above Kafka's 2,000: fast handlers finish 2,000 records before an acknowledgement is answered.
        """
        return min(LOCKS_MAX, max(LOCKS_MIN, 4 * self.records_at_once))

    @property
    def key_order(self) -> str | None:
        """share.key.order of the group; None: no order, and the setting stays as it is."""
        return order_setting(self.order)

    @property
    def chain(self) -> int:
        """Records of one key to fetch in a row. Outputs need 1, as they are confirmed first; so does `renew=False`:
        later records would begin when their locks are nearly over."""
        return CHAIN if self.renew and not self.sink and not self.exactly_once else 1

    @property
    def begins_before_s(self) -> float:
        """Seconds before its lock lapses by which a handler has to begin, to end in time without renewals."""
        return 0.0 if self.renew or self.timeout is None else self.timeout

    @property
    def auto_offset_reset(self) -> str:
        """share.auto.offset.reset of the group."""
        if isinstance(self.start, str):
            return self.start
        back_ms = round(seconds(self.start, "start") * 1000)
        whole_s, rest_ms = divmod(back_ms, 1000)  # with :g a million seconds would be 1e+06, which groups refuse
        return f"by_duration:PT{whole_s}.{rest_ms:03d}S" if rest_ms else f"by_duration:PT{whole_s}S"


def common_options(
    what: str, given: Mapping[str, Any], *, own: Sequence[str], refused: Mapping[str, str], where: str
) -> dict[str, Any]:
    """Return the given options that are fields of `AgentOptions`, for an agent of another kind.

    own: options that only this kind has. refused: options without effect here, and why. where: the kind's place, for
    the message. Raises: OptionError.
    """
    for option in given:
        if option in refused:
            raise OptionError(f"{what} {option} says nothing {where}: {refused[option]}")
    refuse_unknown(what, given, [*own, *(one.name for one in fields(AgentOptions) if one.name not in refused)])
    return {key: value for key, value in given.items() if key not in own}


def _fits(fits: Callable[[Any], object], takes: str) -> Callable[[Any], Any]:
    """Return a check that takes a value unchanged if it fits, and raises OptionError if not."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise OptionError(f"{takes}, not {value!r}")
        return value

    return check


def _start(value: Any) -> Any:
    if isinstance(value, str):
        if value not in ("earliest", "latest"):
            raise OptionError(f"start takes 'earliest', 'latest', seconds or a timedelta, not {value!r}")
        return value
    return seconds(value, "start")


def _retry(value: Any) -> Retry:
    if value is None:
        return Retry(max_attempts=1)
    if isinstance(value, Retry):
        return value
    raise OptionError(f"retry takes fs.Retry(…), or None for a single attempt, not {value!r}")


def _positive(name: str) -> Callable[[Any], float | None]:
    def check(value: Any) -> float | None:
        if value is None:
            return None
        checked = seconds(value, name)
        if checked <= 0:
            raise OptionError(f"{name} must be more than 0 seconds, or None")
        return checked

    return check


def _dead_letter(value: Any) -> Any:
    if value is False:
        raise OptionError("dead_letter=False is not clear: say dead_letter=None to reject without a dead letter")
    return value


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "group": _fits(lambda value: value is None or (isinstance(value, str) and value), "group takes a name"),
    "start": _start,
    "isolation": _fits(lambda value: value in ISOLATIONS, "isolation takes 'read_committed' or 'read_uncommitted'"),
    "concurrency": lambda value: count(value, "concurrency", 10_000),
    "retry": _retry,
    "timeout": _positive("timeout"),
    "dead_letter": _dead_letter,
    "drain_timeout": lambda value: seconds(value, "drain_timeout"),
    "reject": lambda value: exception_types(value, "reject"),
    "sink": agent_sinks,
    "batch": _fits(lambda value: isinstance(value, Batch | None), "batch takes fs.Batch(size, within=seconds)"),
    "rate_limit": parse_rate,
    "lock_duration": _positive("lock_duration"),
    "renew": _fits(lambda value: isinstance(value, bool), "renew takes True or False"),
    "middleware": several,
    "max_in_flight": lambda value: None if value is None else count(value, "max_in_flight"),
    "max_rate": group_rate,
    "breaker": _fits(
        lambda value: isinstance(value, Breaker | None), "breaker takes fs.Breaker(failures, of=…, pause=seconds)"
    ),
    "priority": _fits(lambda value: value in (None, *PRIORITIES), "priority takes 'redeliveries', 'new' or 'mixed'"),
    "order": parse_order,
    "at_most_once": _fits(lambda value: isinstance(value, bool), "at_most_once takes True or False"),
    "exactly_once": _fits(lambda value: isinstance(value, bool), "exactly_once takes True or False"),
    "after_dead_letter": _fits(
        lambda value: value in ("continue", PARK), "after_dead_letter takes 'continue' or 'park'"
    ),
}
