"""Where a fleet of workers does not do what a scenario says of one server, and why.

An `Override` (as in `differences`) changes one line of one scenario.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.scenarios.differences import Override, Steps, replaced, without
from tests.scenarios.language import Scenario

OVERRIDES: Mapping[str, tuple[Override, ...]] = {
    # How large a batch may be, a broker says when it is written to, and that comes after the rest was looked into.
    "X24": (
        Override(
            "outputs-in-parts",
            "share_settle M1 0:accept size=1500 +nowhere.0:1 +out.0:1 +out.9:1 +small.0:2 => INVALID_REQUEST "
            "outputs=0:UNKNOWN_TOPIC_OR_PARTITION,2:UNKNOWN_TOPIC_OR_PARTITION,3:MESSAGE_TOO_LARGE",
            "share_settle M1 0:accept size=1500 +nowhere.0:1 +out.0:1 +out.9:1 +small.0:2 => INVALID_REQUEST "
            "outputs=0:UNKNOWN_TOPIC_OR_PARTITION,2:UNKNOWN_TOPIC_OR_PARTITION",
        ),
    ),
    # flowshare's own members, as these are, send heartbeats often while there are few of them.
    "G03": (
        Override(
            "heartbeats",
            "join M1 topics=foo => epoch=2 assigned=none interval=5000",
            "join M1 topics=foo => epoch=2 assigned=none interval=500",
        ),
    ),
    # A fetch that begins in what a worker has in memory ends there: the rest comes with the next one.
    "A09": (
        Override(
            "read-in-parts",
            "fetch M1 max=3 mode=record_limit => [3-4]c1 [5-5]c1",
            "fetch M1 max=3 mode=record_limit => [3-4]c1 [5-5]c1 or [3-4]c1",
        ),
    ),
    "K04": (
        Override(
            "read-in-parts",
            "fetch M1 ack=0-9:release => ack NONE [0-9]c2 [10-19]c1",
            "fetch M1 ack=0-9:release => ack NONE [0-9]c2 [10-19]c1 or ack NONE [0-9]c2",
        ),
    ),
}


def on_fleet(name: str, scenario: Scenario) -> Steps:
    """The scenario's steps with what a fleet does instead. Raises: ValueError for an override that fits no line."""
    return tuple(without(step, "waited") for step in replaced(name, scenario, OVERRIDES))
