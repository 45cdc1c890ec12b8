"""`CooperativeAgent`: a decorated function in a cooperative group, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypedDict

from flowshare.agents.handler.agent import Application, ShareAgent
from flowshare.agents.handler.errors import OptionError
from flowshare.agents.handler.options import READ_COMMITTED, common_options
from flowshare.agents.handler.order import BY_KEY
from flowshare.agents.handler.retry import Seconds, seconds
from flowshare.client.settings import CooperativeSettings, session_s
from flowshare.cooperative.types import LEASE_MS, LEASE_MS_MAX, LEASE_MS_MIN

OWN: Final = ("lease", "overlap_after", "output_order", "shares")
KEY: Final = "key"
PARTITION: Final = "partition"
REFUSED: Final = {
    "order": "records of one key always run one after the other there; leave it out",
    "lock_duration": "members hold keys, not records: lease=… says how long after a worker's death others get its keys",
    "renew": "a worker renews its keys as long as it lives, whatever its handlers do",
    "max_in_flight": "nobody counts what all members hold together: lower concurrency",
    "max_rate": "its members read by themselves, so that nobody counts what all of them read: rate_limit=… is for each",
    "breaker": "its members read by themselves, so that nobody could hold them back",
    "priority": "each key goes on in the order of the log, so that a retry comes before what is behind it",
    "after_dead_letter": "keys cannot be parked in a cooperative group: a key goes on after a dead letter",
}
"""Options of share agents without effect in a cooperative group -> the reason."""


class CooperativeArguments(TypedDict, total=False):
    """The options of `@app.cooperative_agent` besides topics and a name, for type checkers."""

    lease: Seconds
    overlap_after: Seconds | None
    shares: bool
    group: str | None
    start: str
    isolation: str
    concurrency: int
    retry: Any
    timeout: Seconds | None
    dead_letter: Any
    drain_timeout: Seconds
    exactly_once: bool
    output_order: str
    reject: Any
    sink: Any
    batch: Any
    rate_limit: Any
    middleware: Any
    at_most_once: bool
    value_codec: Any
    key_codec: Any


class CooperativeAgent(ShareAgent):
    """An agent of an app in a cooperative group, made by `@app.cooperative_agent`; calling the object calls the
    function.

    lease: seconds after a worker's death until others get its keys (1 to 600). overlap_after: seconds after which a key
    that was assigned to another worker may leave a handler that does not end, so that two handlers may overlap; None:
    the other worker waits. shares: True: this member takes parts of partitions.

    exactly_once: outputs (what the handler returns or sends by its delivery, its dead letter) are written in one step
    with the record's commit. output_order, with exactly_once: order in which outputs become visible: those of each key
    in the order of its records (`key`), or all of a partition's in the order of its offsets (`partition`): each waits
    until all offsets before its own are committed.

    The other options are those of `AgentOptions`; `group` is a consumer group here.
    """

    group_type = "cooperative"

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
        what = f"cooperative agent {name}:"
        common = common_options(what, options, own=OWN, refused=REFUSED, where="in a cooperative group")
        self.lease_s = _lease(what, options.get("lease", LEASE_MS / 1000))
        self.overlap_after_s = _overlap_after(what, options.get("overlap_after"))
        self.shares = _flag(what, options.get("shares", True))
        if options.get("start", "earliest") not in ("earliest", "latest"):
            raise OptionError(f"{what} start takes 'earliest' or 'latest'")
        # The member keeps records in order that are accepted before they run: it hands out one of a key at a time.
        order = None if common.get("at_most_once") is True else BY_KEY
        super().__init__(app, fun, topics, {**common, "order": order}, name, scope=scope)
        self.ordered_outputs = self._ordered_outputs(what, options.get("output_order", KEY))

    def __repr__(self) -> str:
        return f"<CooperativeAgent {self.name} of {', '.join(self.topics)}, group {self.group}>"

    def describe(self) -> dict[str, Any]:
        """Return the agent's settings by name."""
        left = ("lock_duration",)
        facts = {key: value for key, value in super().describe().items() if key not in left}
        own = {"lease": self.lease_s, "overlap_after": self.overlap_after_s, "shares": self.shares}
        return {**facts, **own, "output_order": PARTITION if self.ordered_outputs else KEY}

    def _ordered_outputs(self, what: str, value: Any) -> bool:
        """Check output_order. Raises: OptionError."""
        if value not in (KEY, PARTITION):
            raise OptionError(f"{what} output_order takes 'key' or 'partition', not {value!r}")
        if value == KEY:
            return False
        if not self.options.exactly_once:
            raise OptionError(
                f"{what} output_order='partition' is kept when outputs are written in one step with commits: say "
                "exactly_once=True, or leave output_order out"
            )
        if self.options.batch is not None:
            raise OptionError(
                f"{what} output_order='partition' writes outputs offset by offset, and a batch's are written at once: "
                "two batches would wait for each other; leave batch out, or leave output_order out"
            )
        return True

    @property
    def unshared(self) -> bool:  # type: ignore[override]
        """As `ShareAgent.unshared`."""
        return not self.shares

    @property
    def member_settings(self) -> CooperativeSettings:
        """Settings of its member."""
        overlap_s = self.overlap_after_s
        return CooperativeSettings(
            auto_offset_reset="latest" if self.options.start == "latest" else "earliest",
            isolation_level="read_committed" if self.options.isolation == READ_COMMITTED else "read_uncommitted",
            lease=self.lease_s,
            session_timeout=session_s(self.lease_s),
            drain_mode="strict" if overlap_s is None else "available",
            drain_timeout=0.0 if overlap_s is None else overlap_s,
            shares=self.shares,
            # With one attempt, a record that counts as begun and was not would become a dead letter unrun.
            exact_starts=self.options.retry.max_attempts == 1 and not self.options.at_most_once,
        )


def _lease(what: str, value: Any) -> float:
    found = _seconds(what, value, "lease")
    if not LEASE_MS_MIN / 1000 <= found <= LEASE_MS_MAX / 1000:
        raise OptionError(
            f"{what} lease takes {LEASE_MS_MIN / 1000:g} to {LEASE_MS_MAX / 1000:g} seconds, not {found:g}"
        )
    return found


def _overlap_after(what: str, value: Any) -> float | None:
    return None if value is None else _seconds(what, value, "overlap_after")


def _flag(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{what} shares takes True or False, not {value!r}")
    return value


def _seconds(what: str, value: Any, name: str) -> float:
    try:
        return seconds(value, name)
    except OptionError as error:
        raise OptionError(f"{what} {error}") from None
