"""The demo's second half: a Spark pipeline sums the agent's results up, and its table is held against the raw one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from flowshare.dev.flights_data import LATE_AFTER_MIN, rows

PIPELINE: Final = ["pipeline", "flowshare.dev.flights_app:app", "by_hour", "--once", "--master", "local[2,4]"]
LIMIT_S: Final = 240
TOP: Final = 10
PICTURE: Final = "carriers.png"
COLUMNS: Final = ("carrier", "hour", "flights", "total_delay", "mean_delay", "p90_delay", "late_share")


class PipelineFailed(Exception):
    """The pipeline did not run; the text says what to look at."""


class Hour(NamedTuple):
    """A carrier's hour. Delays are minutes."""

    carrier: str
    hour: str
    flights: int
    total_delay: int
    mean_delay: float
    p90_delay: int
    late_share: float


@dataclass(slots=True)
class Carrier:
    """A carrier's year, from its hours."""

    name: str
    flights: int = 0
    total_delay: int = 0
    late: int = 0

    @property
    def mean_delay(self) -> float:
        """Minutes."""
        return self.total_delay / self.flights

    @property
    def late_share(self) -> float:
        """Of its flights."""
        return self.late / self.flights


def run_pipeline(broker: Path, out: Path, log: Path) -> float:
    """Run the pipeline over the broker at a path; how many seconds it took. Raises: PipelineFailed."""
    began = time.monotonic()
    env = {**os.environ, "FLOWSHARE_BROKER": f"embedded://{broker}", "FLOWSHARE_FLIGHTS_OUT": str(out)}
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "flowshare.cli", *PIPELINE],
                env=env,
                stdout=file,
                stderr=file,
                check=False,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise PipelineFailed(f"the pipeline did not end within {LIMIT_S} s; its log is {log}") from None
    if done.returncode:
        raise PipelineFailed(f"the pipeline ended with exit code {done.returncode}; its log is {log}")
    return time.monotonic() - began


def hours(folder: Path) -> list[Hour]:
    """The pipeline's table, by carrier and hour."""
    import pyarrow.parquet as parquet

    table = parquet.ParquetDataset(sorted(folder.glob("*.parquet"))).read()
    found = [Hour(*(_plain(row[name]) for name in COLUMNS)) for row in table.to_pylist()]
    return sorted(found)


def wanted(limit: int) -> list[Hour]:
    """The same table straight from the raw one."""
    delays: dict[tuple[str, str], list[int]] = {}
    for row in rows(limit):
        delay = row["dep_delay"]
        if isinstance(delay, int) and row["dep_time"] is not None:
            delays.setdefault((str(row["carrier"]), str(row["time_hour"])), []).append(delay)
    return sorted(_hour(carrier, hour, sorted(minutes)) for (carrier, hour), minutes in delays.items())


def _hour(carrier: str, hour: str, minutes: Sequence[int]) -> Hour:
    size, total = len(minutes), sum(minutes)
    return Hour(
        carrier=carrier,
        hour=hour,
        flights=size,
        total_delay=total,
        mean_delay=total / size,
        p90_delay=minutes[-(-9 * size // 10) - 1],
        late_share=sum(one > LATE_AFTER_MIN for one in minutes) / size,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return value


# --- what is shown ------------------------------------------------------------------------------------------------


def carriers(table: Iterable[Hour]) -> list[Carrier]:
    """Carriers, the one with the most flights first."""
    found: dict[str, Carrier] = {}
    for row in table:
        carrier = found.setdefault(row.carrier, Carrier(row.carrier))
        carrier.flights += row.flights
        carrier.total_delay += row.total_delay
        carrier.late += round(row.late_share * row.flights)
    return sorted(found.values(), key=lambda one: -one.flights)


def lines(got: Sequence[Hour], raw: Sequence[Hour]) -> tuple[list[str], bool]:
    """The table of carriers and the checks, and whether every hour of every carrier agrees with the raw table."""
    text = [f"{'carrier':<10}{'flights':>10}{'mean delay, min':>18}{'late':>9}"]
    text += [
        f"{one.name:<10}{one.flights:>10,}{one.mean_delay:>18.1f}{one.late_share:>9.1%}" for one in carriers(got)[:TOP]
    ]
    differ = len(set(got) ^ set(raw))
    checks = [
        ("carriers × hours", len(raw), len(got)),
        ("flights that left", sum(one.flights for one in raw), sum(one.flights for one in got)),
        ("minutes of delay", sum(one.total_delay for one in raw), sum(one.total_delay for one in got)),
        ("hours that differ in any figure", 0, differ),
    ]
    text += ["", f"{'':<36}{'raw table':>12}{'pipeline':>12}"]
    text += [f"{name:<36}{a:>12,}{b:>12,}   {'ok' if a == b else 'DIFFERS'}" for name, a, b in checks]
    return text, all(a == b for _, a, b in checks)


def plot(table: Iterable[Hour], path: Path) -> None:
    """Mean delay and share of late departures of the ten largest carriers, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    top = carriers(table)[:TOP]
    names = [one.name for one in top]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    left.barh(names, [one.mean_delay for one in top], color="#3465a4")
    left.set_title("mean departure delay, minutes")
    right.barh(names, [100 * one.late_share for one in top], color="#cc7722")
    right.set_title(f"departures more than {LATE_AFTER_MIN} minutes late, %")
    for axes in (left, right):
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("flights from New York in 2013, ten largest carriers")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def report(broker: Path, folder: Path, limit: int, say: Callable[[str], None]) -> bool:
    """Run the pipeline, print its table, write the plot; whether all agrees with the raw table.

    Raises: PipelineFailed, DataMissing.
    """
    out = folder / "out"
    say("\nsumming the results up with Spark: per carrier and hour, fed by a share group …")
    seconds = run_pipeline(broker, out, folder / "pipeline.log")
    got = hours(out / "by_hour")
    text, good = lines(got, wanted(limit))
    plot(got, folder / PICTURE)
    say("\n".join(["", *text]))
    say(f"{'seconds, start of Spark included':<36}{'':>12}{seconds:>12,.0f}")
    return good
