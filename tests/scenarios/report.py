"""Report on the catalogue: rows that are shown, rows that are left and why, and the proof that the runner can fail.

Run `python -m tests.scenarios.report` (or this file); `--quick` leaves the proof out, ids given choose scenarios. For
every scenario each expectation is made wrong, one at a time and in every way that `language.flips` knows, and the run
must fail at exactly that step; over TCP, where the same steps run, the last expectation in one way. Exits with 1 if a
scenario fails or a flipped expectation is not noticed.

`--kafka host:port` runs the scenarios on that broker too (it needs the settings in tests/kafka/keeper.py; takes two
minutes).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.scenarios import runner  # noqa: E402
from tests.scenarios.catalogue import cases, catalogue, kafka_cases, left, scenarios  # noqa: E402
from tests.scenarios.language import Scenario  # noqa: E402
from tests.scenarios.reach import NOT_ON_KAFKA, NOT_ON_TCP  # noqa: E402

ROWS = len({row["id"] for row in catalogue().values()})

Case = tuple[str, Scenario, str]


def covered(chosen: Sequence[Case], factories: runner.Factories) -> int:
    """Run every case and print it; how many failed."""
    failures = 0
    titles = catalogue()
    for name, scenario, subject in chosen:
        failure = runner.attempt(scenario, factories[subject])
        row = titles[scenario.id]
        title = " | ".join(filter(None, (row["given"], row["when"]))) or row["then"]
        print(f"{'FAIL' if failure else 'ok  '} {name:14} {title[:100]}")
        if scenario.note and not failure:
            print(f"                    note: {scenario.note}")
        if failure:
            failures += 1
            print(f"                    step {failure.step}: {failure.message}")
    return failures


def covered_on_kafka(address: str, ids: Sequence[str]) -> int:
    """Run everything that runs there and print what failed; how many did."""
    from tests.scenarios.kafka_run import run_all

    chosen = [case for case in kafka_cases() if not ids or case[1].id in ids]
    failed = asyncio.run(run_all(address, chosen))
    print(*(f"FAIL {message}" for message in failed), sep="\n")
    print(f"{len(chosen)} runs on Kafka: {len(chosen) - len(failed)} passed, {len(failed)} failed")
    return len(failed)


def prove(chosen: Sequence[Case], factories: runner.Factories) -> tuple[int, int]:
    """Flip every expectation of every case; how many flips there were and how many were not noticed."""
    flips = missed = 0
    for name, scenario, subject in chosen:
        flipping = runner.flip_all if subject != "tcp" else runner.flip_last
        for flip in flipping(scenario, subject, factories[subject]):
            flips += 1
            if not flip.caught:
                missed += 1
                print(f"NOT NOTICED {name}: {flip.text}")
    return flips, missed


def print_subjects() -> None:
    """How many rows of the catalogue are shown on each subject, and why the others are not."""
    on: dict[str, set[str]] = {"core": set(), "server": set(), "tcp": set(), "kafka": set()}
    for _, scenario, subject in cases():
        on[subject].add(scenario.id)
    on["kafka"] = {scenario.id for _, scenario in kafka_cases()}
    for name, reason in NOT_ON_TCP.items():
        print(f"not over TCP  {name:8} {reason}")
    for name, reason in NOT_ON_KAFKA.items():
        print(f"not on Kafka  {name:8} {reason}")
    print("shown: " + ", ".join(f"{len(ids)} ids on {subject}" for subject, ids in on.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="scenarios to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="without the proof")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a real Kafka to run them on too")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    factories = runner.subject_factories()
    chosen = [case for case in cases() if not options.ids or case[1].id in options.ids]

    failures = covered(chosen, factories)
    if options.kafka:
        failures += covered_on_kafka(options.kafka, options.ids)
    print_subjects()
    shown = {scenario.id for scenario in scenarios()}
    reasons = {item.id: item.reason for item in left()}
    for name, reason in reasons.items():
        print(f"left {name:14} {reason}")
    missing = [name for name in catalogue() if name not in shown and name not in reasons]
    for name in missing:
        print(f"MISSING {name}")
    expectations = sum(1 if subject == "tcp" else runner.expectations(scenario) for _, scenario, subject in chosen)
    print(
        f"\n{len(catalogue())} ids in the catalogue's {ROWS} rows (P11–P20 is one row): {len(shown)} covered, "
        f"{len(reasons)} left, {len(missing)} missing\n"
        f"{len(chosen)} runs on {', '.join(factories)}: {len(chosen) - failures} passed, {failures} failed"
    )
    if options.quick:
        return 1 if failures or missing else 0
    flips, missed = prove(chosen, factories)
    print(f"{expectations} expectations flipped in {flips} ways: {flips - missed} turned red, {missed} not noticed")
    return 1 if failures or missing or missed else 0


if __name__ == "__main__":
    sys.exit(main())
