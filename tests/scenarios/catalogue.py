"""The catalogue of scenarios (`scenarios.csv`) and what stands for each of its ids here."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from tests.scenarios.data import (
    acknowledge,
    acquire,
    delivery,
    end_to_end,
    group,
    locks,
    offsets,
    persistence,
    sessions,
    validation,
)
from tests.scenarios.language import Left, Scenario

SECTIONS: tuple[ModuleType, ...] = (
    validation,
    sessions,
    acquire,
    acknowledge,
    delivery,
    locks,
    offsets,
    group,
    persistence,
    end_to_end,
)


def _expanded(text: str) -> Iterator[str]:
    """`P11–P20` is ten ids."""
    span = re.fullmatch(r"([A-Z])(\d\d)–[A-Z](\d\d)", text)
    if span is None:
        yield text
        return
    yield from (f"{span[1]}{number:02}" for number in range(int(span[2]), int(span[3]) + 1))


@cache
def catalogue() -> Mapping[str, Mapping[str, str]]:
    """Every id of the catalogue with its row."""
    with Path(__file__).with_name("scenarios.csv").open(encoding="utf-8", newline="") as file:
        return {name: row for row in csv.DictReader(file) for name in _expanded(row["id"])}


@cache
def scenarios() -> tuple[Scenario, ...]:
    """All scenarios, in the catalogue's order."""
    order = list(catalogue())
    found = [scenario for section in SECTIONS for scenario in section.SCENARIOS]
    return tuple(sorted(found, key=lambda scenario: order.index(scenario.id)))


@cache
def left() -> tuple[Left, ...]:
    """What nothing here shows, with reasons."""
    return tuple(item for section in SECTIONS for item in section.LEFT)


def cases() -> list[tuple[str, Scenario, str]]:
    """(case id, scenario, subject) for everything that runs; the id: scenario, number of the variant, subject."""
    numbered: dict[str, int] = {}
    found = []
    for scenario in scenarios():
        numbered[scenario.id] = number = numbered.get(scenario.id, 0) + 1
        name = scenario.id if number == 1 else f"{scenario.id}.{number}"
        found.extend((f"{name}-{subject}", scenario, subject) for subject in scenario.subjects)
    return found
