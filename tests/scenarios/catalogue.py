"""The catalogue of scenarios (`scenarios.csv`) and what stands for each of its ids here.

The rules that they show are in docs/share-groups.md. Column `source`: where a row was seen, shortened: Kafka's classes
and their tests (SP SharePartition, SPM SharePartitionManager, SSC and SSX share sessions, KA KafkaApis, SCS and PBC the
share coordinator, GMM and SA groups and the assignor, HB and PROTO the requests' tests, INT the consumer's, CLI the
tools'), or other clients (LRK librdkafka, FGO and kfake franz-go). FS: flowshare's own, Kafka has no order by
key and no settling with outputs.
"""

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
    order,
    order_chains,
    order_log,
    order_settings,
    order_settling,
    persistence,
    sessions,
    settling,
    validation,
)
from tests.scenarios.language import Left, Scenario
from tests.scenarios.reach import NOT_ON_FLEET, NOT_ON_KAFKA

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
    order,
    order_settling,
    order_chains,
    order_log,
    order_settings,
    settling,
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
    """Return the parts that no scenario shows, with reasons."""
    return tuple(item for section in SECTIONS for item in section.LEFT)


def named() -> list[tuple[str, Scenario]]:
    """All scenarios with a name each: the id and, from the second variant on, its number."""
    numbered: dict[str, int] = {}
    found = []
    for scenario in scenarios():
        numbered[scenario.id] = number = numbered.get(scenario.id, 0) + 1
        found.append((scenario.id if number == 1 else f"{scenario.id}.{number}", scenario))
    return found


def cases() -> list[tuple[str, Scenario, str]]:
    """(case id, scenario, subject) for everything that runs on flowshare; the id: name and subject.

    What runs on the server runs over TCP too.
    """
    found = []
    for name, scenario in named():
        for subject in scenario.subjects:
            also = ("server", "tcp") if subject == "server" else (subject,) if subject != "kafka" else ()
            found.extend((f"{name}-{one}", scenario, one) for one in also)
    return found


def kafka_cases() -> list[tuple[str, Scenario]]:
    """(name, scenario) for everything that runs on a real Kafka."""
    return [(name, scenario) for name, scenario in named() if _meant_for_kafka(scenario) and name not in NOT_ON_KAFKA]


def fleet_cases() -> list[tuple[str, Scenario]]:
    """(name, scenario) for everything that runs on a fleet of workers."""
    return [
        (name, scenario) for name, scenario in named() if "server" in scenario.subjects and name not in NOT_ON_FLEET
    ]


def not_on_kafka() -> list[str]:
    """Names of what runs on the server and not on a real Kafka."""
    return [name for name, scenario in named() if "server" in scenario.subjects and name in NOT_ON_KAFKA]


def _meant_for_kafka(scenario: Scenario) -> bool:
    return bool({"server", "kafka"} & set(scenario.subjects))
