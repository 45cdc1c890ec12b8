"""Where a real Kafka 4.3 or 4.4 does not do what a scenario says, and which row of docs/differences.md tells why.

A `Rule` changes every step that it fits; a row of `OVERRIDES` changes one line of one scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tests.kafka.versions import is_from
from tests.scenarios.language import Expected, Scenario, Step, parse_expected, parse_steps

Steps = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One difference that shows in many scenarios."""

    difference: str
    change: Callable[[Steps], Steps]


@dataclass(frozen=True, slots=True)
class Override:
    """One line of one scenario and what Kafka is put to, or does, instead. until: the version of Kafka that does what
    the scenario says, and the later ones."""

    difference: str
    line: str
    instead: str
    until: str = ""


def without(step: Step, *names: str) -> Step:
    """The step without what it expects of these fields."""
    expected = tuple(
        Expected(one.main, tuple(pair for pair in one.fields if pair[0] not in names)) for one in step.expected
    )
    return step if expected == step.expected else replace(step, expected=expected)


def _lagging_start(steps: Steps) -> Steps:
    """The start offset is left out; the lag proves the same."""
    return tuple(without(step, "start") if step.operation == "describe" else step for step in steps)


def _unwritten(steps: Steps) -> Steps:
    """Nothing is told of a share-partition before the first write of its state."""
    found: list[Step] = []
    written, polls = False, 0
    for step in steps:
        refused = step.operation == "ack" and not any("NONE" in (one.main or "NONE") for one in step.expected)
        looks = step.operation == "describe" and not written and step.expected
        found.append(replace(step, expected=parse_expected("start=-1 lag=-1")) if looks else step)
        polls += step.operation == "poll"
        written = written or (step.operation not in QUIET and not refused) or "ack" in step.options or polls > 1
    return tuple(found)


QUIET = frozenset({"log", "topic", "config", "fetch", "describe", "logstart", "consumer", "poll"})
"""Steps that write no state of a share-partition; a fetch may acknowledge, and a second poll does."""


def _second_answer(steps: Steps) -> Steps:
    """A member is told of its partitions by a later heartbeat; the epoch goes up once more for it."""
    if not any(_assigned(step) for step in steps):
        return steps
    found: list[Step] = []
    told: set[str] = set()
    for step in steps:
        assigned, name = _assigned(step), step.words[0] if step.words else ""
        if step.operation == "join" and assigned and name not in told:
            found.append(_with_assigned(step, "none"))
            found.extend(parse_steps(f"beat {name} => assigned={assigned}"))
        elif step.operation in ("join", "beat"):
            found.append(without(step, "epoch"))
        else:
            found.append(step)
        told |= {name} if step.operation == "join" else set()
    return tuple(found)


def _assigned(step: Step) -> str | None:
    """The partitions that a heartbeat is expected to tell of."""
    if step.operation not in ("join", "beat") or not step.expected:
        return None
    value = dict(step.expected[0].fields).get("assigned")
    return None if value in (None, "none", "same") else value


def _with_assigned(step: Step, value: str) -> Step:
    (one,) = step.expected
    fields = tuple((name, value if name == "assigned" else right) for name, right in one.fields)
    return replace(step, expected=(Expected(one.main, fields),))


RULES = (
    Rule("describe-unwritten", _unwritten),
    Rule("describe-start", _lagging_start),
    Rule("first-assignment", _second_answer),
)

OVERRIDES: Mapping[str, tuple[Override, ...]] = {
    "V04": (
        Override(
            "unknown-topic-id",
            "fetch M1 epoch=0 add=unknown.0 => unknown.0:error UNKNOWN_TOPIC_ID",
            "fetch M1 epoch=0 add=unknown.0 => error UNKNOWN_SERVER_ERROR",
        ),
        Override(
            "unknown-topic-id",
            "fetch M1 epoch=1 add=0 => 0:[0-9]c1 unknown.0:error UNKNOWN_TOPIC_ID",
            "fetch M1 epoch=1 add=0 forget=unknown.0 => [0-9]c1",
        ),
        Override(
            "unknown-topic-id",
            "ack M1 epoch=2 unknown.0@0-9:accept 0-9:accept => 0:NONE unknown.0:UNKNOWN_TOPIC_ID",
            "ack M1 epoch=2 unknown.0@0-9:accept 0-9:accept "
            "=> 0:NONE unknown.0:UNKNOWN_TOPIC_ID or error UNKNOWN_SERVER_ERROR",
        ),
    ),
    "S22": tuple(
        Override("rotation", f"fetch M1 epoch={epoch} {here}", f"fetch M1 epoch={epoch} {there}")
        for epoch, here, there in (
            (2, "max=1 => 2:[0-0]c1", "max=1 => 3:[0-0]c1"),
            (3, "max=1 => 3:[0-0]c1", "max=1 => 5:[0-0]c1"),
            (4, "max=1 => 4:[0-0]c1", "max=1 => 1:[1-1]c1"),
            (5, "max=1 => 5:[0-0]c1", "max=1 => 5:[1-1]c1"),
            (6, "max=1 => 6:[0-0]c1", "max=0 => nothing"),
            (7, "max=1 => 0:[1-1]c1", "max=0 => nothing"),
            (12, "max=1 => 5:[1-1]c1", "max=0 => nothing"),
        )
    ),
    "K25": (
        Override(
            "unknown-topic-id",
            "ack M1 0-9:accept => UNKNOWN_TOPIC_ID",
            "ack M1 0-9:accept => UNKNOWN_TOPIC_ID or error UNKNOWN_SERVER_ERROR",
        ),
    ),
    "S20": (
        Override(
            "listed-after-error",
            "fetch M1 epoch=1 => nothing listed=1",
            "fetch M1 epoch=1 => nothing listed=none",
        ),
    ),
    "S25": (
        Override(
            "rollover-count",
            "fetch M2 => [0-9]c2 or [0-4]c2 [5-9]c2",
            "fetch M2 => [0-9]c2 or [0-4]c2 [5-9]c2 or [0-4]c2 [5-9]c1 or [0-4]c2",
        ),
    ),
    "A38.2": (
        Override(
            "release-wakes",
            "await f => [0-9]c2 waited=0",
            "await f => pending\nawait f => [0-9]c2",
        ),
    ),
    "K04": (
        Override(
            "release-in-fetch",
            "fetch M1 ack=0-9:release => ack NONE [0-9]c2 [10-19]c1",
            "fetch M1 ack=0-9:release => ack NONE [10-19]c1\nfetch M1 => [0-9]c2",
        ),
    ),
    "L15": (Override("describe-log-start", "describe => start=5 lag=5", "describe => lag=10"),),
    "O07": (Override("describe-log-start", "describe => start=20 lag=15", "describe => lag=35"),),
    "O08": (Override("log-start-in-batch", "fetch M2 => [14-19]c1", "fetch M2 => [10-19]c1"),),
    "O10.2": (Override("describe-log-start", "describe => start=12 lag=3", "describe => lag=10"),),
    "O11": (Override("describe-log-start", "describe => start=12 lag=8", "describe => lag=15"),),
    "O20": (Override("deleted-offsets", "close M1", "close M1\ndisconnect M1"),),
    "O21": (Override("new-partition", "fetch M1 => 1:[0-4]c1", "fetch M1 => nothing", until="4.4"),),
    "G16": (
        Override(
            "unknown-group",
            "describe_group nobody => error GROUP_ID_NOT_FOUND state=Dead",
            "describe_group nobody => error GROUP_ID_NOT_FOUND state=",
        ),
    ),
    "G23": (
        Override(
            "unknown-group",
            "describe_group g => error GROUP_ID_NOT_FOUND state=Dead",
            "describe_group g => error GROUP_ID_NOT_FOUND state=",
        ),
    ),
}


def replaced(name: str, scenario: Scenario, overrides: Mapping[str, tuple[Override, ...]]) -> Steps:
    """The scenario's steps with its overrides in place. Raises: ValueError for an override that fits no line."""
    steps = list(scenario.steps())
    for override in overrides.get(name, ()):
        if override.until and is_from(override.until):
            continue
        places = [index for index, step in enumerate(steps) if step.text == override.line]
        if len(places) != 1:
            raise ValueError(f"{name} has the line {override.line!r} {len(places)} times")
        steps[places[0] : places[0] + 1] = parse_steps(override.instead)
    return tuple(steps)


def on_kafka(name: str, scenario: Scenario) -> Steps:
    """The scenario's steps with what Kafka does instead. Raises: ValueError for an override that fits no line."""
    changed = replaced(name, scenario, OVERRIDES)
    for rule in RULES:
        changed = rule.change(changed)
    return tuple(without(step, "waited") for step in changed)


def overridden() -> dict[str, set[str]]:
    """Difference -> names of the scenarios that have a line of it; `every` for a rule."""
    found = {rule.difference: {"every"} for rule in RULES}
    for name, overrides in OVERRIDES.items():
        for override in overrides:
            found.setdefault(override.difference, set()).add(name)
    return found
