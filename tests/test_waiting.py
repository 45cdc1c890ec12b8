"""Tests wait for conditions: who sleeps is named here with the reason, and what `until` says when it gives up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowshare.testing.virtual import run
from tests.waiting import blocking_until, until

TESTS = Path(__file__).parent
VIRTUAL = "on virtual time: handlers and brokers that play slow, and the time that passes beside them"
SLEEPERS = {
    "waiting.py": "the helpers",
    "agents/test_batches.py": VIRTUAL,
    "agents/test_breaker.py": VIRTUAL,
    "agents/test_in_order.py": VIRTUAL,
    "agents/test_isolation.py": VIRTUAL,
    "agents/test_order_end_to_end.py": VIRTUAL,
    "agents/test_order_with_options.py": VIRTUAL,
    "agents/test_outage.py": VIRTUAL,
    "agents/test_outcome_table.py": VIRTUAL,
    "agents/test_own_delays.py": VIRTUAL,
    "agents/test_pool.py": VIRTUAL,
    "agents/test_standstill.py": VIRTUAL,
    "console/test_collector.py": VIRTUAL,
    "agents/cooperative/once_worker.py": "a program: its handlers play slow",
    "agents/cooperative/test_agent.py": VIRTUAL,
    "agents/cooperative/test_at_most_once.py": VIRTUAL,
    "agents/cooperative/test_exactly_once.py": VIRTUAL,
    "agents/cooperative/test_poison.py": VIRTUAL,
    "agents/cooperative/test_workers.py": VIRTUAL,
    "agents/telemetry/test_spans.py": VIRTUAL,
    "client/cooperative/test_clocks.py": VIRTUAL,
    "client/cooperative/test_consumer.py": VIRTUAL,
    "client/cooperative/test_outages.py": VIRTUAL,
    "client/cooperative/test_settles.py": VIRTUAL,
    "client/cooperative/test_sharing.py": VIRTUAL,
    "client/cooperative/test_topics_anew.py": VIRTUAL,
    "client/cooperative/worlds.py": VIRTUAL,
    "client/test_consumer_sharing.py": VIRTUAL,
    "ops/test_autoscale.py": VIRTUAL,
    "ops/test_load.py": VIRTUAL,
    "testing/test_clocks.py": VIRTUAL,
    "testing/test_harness_order.py": VIRTUAL,
    "agents/test_odd_ends.py": "tasks that never end by themselves, for others to cancel",
    "sim/clock.py": "a clock on which no wait is long",
    "attack/": "programs: an attack lasts as long as it is told to",
    "chaos/": "programs: a fault comes at a moment that a seed draws, and lasts as long as it says",
}


def sleeps(source: str) -> Iterator[int]:
    """Lines that sleep in real time for longer than one turn of the loop."""
    if ".sleep(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio" | "anyio" | "time"), attr="sleep"), args=args):
                if not isinstance(args[0], ast.Constant) or args[0].value != 0:
                    yield node.lineno


def test_only_those_sleep_that_are_named_with_a_reason():
    found = set[str]()
    unnamed = list[str]()
    for file in sorted(TESTS.rglob("*.py")):
        path = file.relative_to(TESTS).as_posix()
        names = {path, f"{path.partition('/')[0]}/"} & SLEEPERS.keys()
        lines = list(sleeps(file.read_text()))
        found |= names if lines else set()
        unnamed += [] if names else [f"tests/{path}:{line}" for line in lines]

    assert unnamed == [], "wait for a condition (tests/waiting.py)"
    assert found == SLEEPERS.keys(), "these sleep no more"


def test_a_loop_waits_until_a_condition_holds():
    found: list[int] = []

    async def look() -> list[int]:
        found.append(len(found))
        return found

    assert run(until(look, good=lambda found: len(found) == 3)) == [0, 1, 2]


def test_a_loop_that_waits_in_vain_says_what_for_and_what_it_saw_last():
    with pytest.raises(AssertionError, match=r"not within 60 s: all of them; the last look: \[\]"):
        run(until(list, lambda: "all of them"))


def test_a_thread_that_waits_in_vain_says_what_for_and_what_it_saw_last():
    with pytest.raises(AssertionError, match=r"not within 0 s: all of them; the last look: 3"):
        blocking_until(lambda: 3, "all of them", good=lambda found: found == 4, limit_s=0)
