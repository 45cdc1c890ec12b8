"""`KmqAgent`: a decorated function on a KMQ queue, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypedDict

from flowshare.agents.handler.agent import Application, ShareAgent
from flowshare.agents.handler.errors import OptionError, UsageError
from flowshare.agents.handler.options import common_options
from flowshare.agents.handler.retry import Retry, Seconds, seconds
from flowshare.agents.handler.send import is_topic, topic_name
from flowshare.kmq.markers import COUNT_HEADER
from flowshare.kmq.redelivery import QueueRules

REDELIVER_AFTER_S: Final = 30.0
ATTEMPTS_MAX: Final = 1_000_000
"""Attempts of the agent, without effect: the tracker counts deliveries, so to the pool no failure is the last one."""
OWN: Final = ("markers", "redeliver_after", "tracker")
REFUSED: Final = {
    "retry": "a record whose handler fails comes again when redeliver_after is over, and the tracker says how often "
    "(flowshare kmq tracker --redeliveries)",
    "dead_letter": "the tracker decides, and writes to <queue>__undelivered (flowshare kmq tracker --undelivered)",
    "reject": "a consumer of KMQ cannot reject: what it does not end is redelivered until the tracker gives it up",
    "lock_duration": "it is redeliver_after here, which each record's start marker says",
    "renew": "KMQ cannot extend the time of a record that is handled: give it a redeliver_after that is long enough",
    "max_in_flight": "nobody counts what all consumers of a KMQ queue hold together: lower concurrency",
    "max_rate": "nobody counts what all consumers of a KMQ queue read together: rate_limit=… is for each",
    "breaker": "nobody hands out the records of a KMQ queue, so that nobody could hold them back",
    "priority": "redeliveries are new records at the end of the queue's topic, and come in that order",
    "order": "a redelivered record stands behind later ones of its key, so KMQ keeps no order",
    "after_dead_letter": "KMQ keeps no order of keys",
    "at_most_once": "a record without an end marker is sent again, which is what KMQ is for: use a share agent",
    "exactly_once": "outputs and end marker are two writes in KMQ, and a crash in between repeats the outputs",
}
"""Options of share agents without effect on a KMQ queue -> the reason."""


class KmqArguments(TypedDict, total=False):
    """The options of `@app.kmq_agent` besides a topic and a name, for type checkers."""

    markers: Any
    redeliver_after: Seconds
    tracker: bool
    group: str | None
    start: str | Seconds
    isolation: str
    concurrency: int
    timeout: Seconds | None
    drain_timeout: Seconds
    sink: Any
    batch: Any
    rate_limit: Any
    middleware: Any
    value_codec: Any
    key_codec: Any


class KmqAgent(ShareAgent):
    """An agent of an app that reads a KMQ queue, made by `@app.kmq_agent`; calling the object calls the function.

    markers: topic of the markers, with as many partitions as the queue's topic. redeliver_after: seconds after which a
    record that was begun and not ended is due (msgTimeoutMs). tracker: run a tracker of the queue in each worker, too.
    The other options are those of `AgentOptions`; `group` is a consumer group here.
    """

    group_type = "consumer"

    def __init__(
        self,
        app: Application,
        fun: Callable[..., Any],
        topics: Sequence[Any],
        options: Mapping[str, Any],
        name: str,
        *,
        scope: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises: OptionError, AnnotationError, UsageError with what to change."""
        what = f"KMQ agent {name}:"
        common = common_options(what, options, own=OWN, refused=REFUSED, where="on a KMQ queue")
        if len(topics) != 1:
            raise UsageError(f"{what} it reads one topic, which has its own markers; write an agent for each queue")
        self.markers_channel = _markers(what, options.get("markers"))
        self.markers = topic_name(self.markers_channel)
        self.redeliver_after_s = _positive(what, options.get("redeliver_after", REDELIVER_AFTER_S))
        self.with_tracker = _flag(what, options.get("tracker", False))
        given = {"retry": Retry(max_attempts=ATTEMPTS_MAX, delay=self.redeliver_after_s), "dead_letter": None, **common}
        super().__init__(app, fun, topics, given, name, scope=scope)
        if self.markers == self.queue:
            raise OptionError(f"{what} markers={self.markers!r} is the topic that it reads: give markers their own")
        if self.options.timeout is not None and self.options.timeout >= self.redeliver_after_s:
            raise OptionError(
                f"{what} a handler may take {self.options.timeout:g} s (timeout), and after "
                f"{self.redeliver_after_s:g} s (redeliver_after) its record is handed out again: lower the one, or "
                "raise the other"
            )

    def __repr__(self) -> str:
        return f"<KmqAgent {self.name} of {self.queue}, group {self.group}>"

    @property
    def queue(self) -> str:
        """Name of the queue's topic."""
        return self.topics[0]

    @property
    def rules(self) -> QueueRules:
        """Rules of the agent's queue, as its own tracker has them."""
        return QueueRules(self.queue, self.markers)

    @property
    def count_header(self) -> str:
        """Name of the header that counts redeliveries."""
        return COUNT_HEADER

    @property
    def tracker_group(self) -> str:
        """Default group of the queue's trackers."""
        return tracker_group(self.queue)

    def describe(self) -> dict[str, Any]:
        """Return the agent's settings by name."""
        left = ("max_attempts", "lock_duration", "dead_letter", "exactly_once", "at_most_once")
        facts = {key: value for key, value in super().describe().items() if key not in left}
        return {
            **facts,
            "markers": self.markers,
            "redeliver_after": self.redeliver_after_s,
            "tracker": self.with_tracker,
        }


def tracker_group(queue: str) -> str:
    """Return the default consumer group of a queue's trackers."""
    return f"kmq-tracker.{queue}"


def _markers(what: str, markers: Any) -> Any:
    if not ((isinstance(markers, str) and markers) or is_topic(markers)):
        raise OptionError(f"{what} markers takes the topic of the queue's markers, or its name, not {markers!r}")
    return markers


def _positive(what: str, value: Any) -> float:
    try:
        found = seconds(value, "redeliver_after")
    except OptionError as error:
        raise OptionError(f"{what} {error}") from None
    if found < 0.001:
        raise OptionError(f"{what} redeliver_after must be a millisecond or more")
    return found


def _flag(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{what} tracker takes True or False, not {value!r}")
    return value
