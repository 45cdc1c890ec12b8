"""The arms that are compared: each one's mode, its place, its promise. One line each in ARMS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

AT_LEAST, AT_MOST, EXACTLY = "at least once", "at most once", "exactly once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """name: in tables. kind: what runs it (`members`). embedded: on a path of its own, else on the Kafka of all.
    delivery: its promise. ordered: whether records of a key run in the log's order. sharing: whether members beyond the
    partitions get something. concurrent: whether a member handles several records at once. sends: whether its handler
    returns the record to a sink. options: of its agent. query: of the broker URL. records: for a no-op run.
    """

    name: str
    kind: str
    embedded: bool = False
    delivery: str = AT_LEAST
    ordered: bool = False
    sharing: bool = True
    concurrent: bool = True
    sends: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    query: str = ""
    records: int = 100_000

    @property
    def ours(self) -> bool:
        """True if the arm is one of flowshare's."""
        return self.kind not in ("plain", "parallel", "kmq-jvm")

    @property
    def java(self) -> bool:
        """True if the arm's members are JVMs."""
        return self.kind in ("parallel", "kmq-jvm")

    @property
    def queue(self) -> bool:
        """True if the arm is one of KMQ's, with markers and a tracker."""
        return self.kind in ("kmq", "kmq-jvm")


NATIVE = "share=native"
WORKERS = "share=workers"
BY_KEY = {"order": "key"}
ONCE = {"exactly_once": True}

ARMS = (
    Arm(
        name="consumer group, at least once",
        kind="plain",
        ordered=True,
        sharing=False,
        concurrent=False,
        records=200_000,
    ),
    Arm(
        name="consumer group, at most once",
        kind="plain",
        ordered=True,
        sharing=False,
        concurrent=False,
        delivery=AT_MOST,
        records=200_000,
    ),
    Arm(name="share group, native", kind="share", query=NATIVE),
    Arm(name="share group, workers", kind="share", query=WORKERS),
    Arm(name="share group, embedded", kind="share", embedded=True),
    Arm(name="share by key, workers", kind="share", query=WORKERS, ordered=True, options=BY_KEY, records=50_000),
    Arm(name="share by key, embedded", kind="share", embedded=True, ordered=True, options=BY_KEY),
    Arm(
        name="share exactly once, workers",
        kind="share",
        query=WORKERS,
        delivery=EXACTLY,
        sends=True,
        options=ONCE,
        records=30_000,
    ),
    Arm(
        name="share exactly once, embedded",
        kind="share",
        embedded=True,
        delivery=EXACTLY,
        sends=True,
        options=ONCE,
        records=50_000,
    ),
    Arm(name="cooperative by ranges, workers", kind="cooperative", query=WORKERS, ordered=True, records=30_000),
    Arm(name="cooperative by ranges, embedded", kind="cooperative", embedded=True, ordered=True, records=50_000),
    Arm(
        name="cooperative exactly once, embedded",
        kind="cooperative",
        embedded=True,
        ordered=True,
        delivery=EXACTLY,
        sends=True,
        options=ONCE,
        records=30_000,
    ),
    Arm(name="KMQ, flowshare", kind="kmq", sharing=False, records=30_000),
    Arm(name="KMQ, JVM", kind="kmq-jvm", sharing=False, records=10_000),
    Arm(
        name="parallel-consumer, unordered",
        kind="parallel",
        sharing=False,
        options={"order": "UNORDERED"},
        records=50_000,
    ),
    Arm(
        name="parallel-consumer, by key",
        kind="parallel",
        sharing=False,
        ordered=True,
        options={"order": "KEY"},
        records=50_000,
    ),
)


def refusal(arm: Arm) -> str | None:
    """Why the arm cannot be had in this version of flowshare, or None."""
    if arm.kind != "cooperative" or arm.delivery != EXACTLY:
        return None
    import flowshare as fs

    app = fs.App("asked", broker="memory://")
    try:

        @app.cooperative_agent("asked", **arm.options)
        async def asked(value: bytes) -> None:
            del value

    except fs.FlowshareError as error:
        return str(error).splitlines()[0]
    return None
