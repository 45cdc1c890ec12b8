"""`--on MASTER`, `--workers N`: where a fleet is to run, and how large.

A worker keeps one slot (a core, as Spark counts) for as long as it lives, so where the master says how many there are,
more workers are refused: the last ones would never start. On a cluster they wait for a core, and that is logged.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final, Self

SUBMITTED: Final = "submit"
FORMS: Final = (
    "local[N], local-cluster[executors,cores,MiB], spark://host:7077, yarn, k8s://https://host:443, "
    f"or {SUBMITTED} for what spark-submit was told"
)
WORKERS_MAX: Final = 999
_LOCAL: Final = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")


class BadMaster(ValueError):
    """`--on` or `--workers` cannot be used; the text says what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """Where a fleet runs.

    spark: what Spark is told; None: what spark-submit told it. local: the executors are on this machine and share its
    files. slots: how many tasks run at a time; None: the cluster says. shown: as it was written.
    """

    shown: str
    spark: str | None
    local: bool
    slots: int | None

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises: BadMaster."""
        if found := _LOCAL.fullmatch(text):
            cores = os.cpu_count() or 1
            slots = cores if found[1] == "*" else int(found[1] or 1)
            # One attempt: a worker that ends is started again by the fleet, which waits between its tries.
            return cls(shown=text, spark=f"local[{slots}]", local=True, slots=slots)
        if found := _LOCAL_CLUSTER.fullmatch(text):
            return cls(shown=text, spark=text, local=True, slots=int(found[1]) * int(found[2]))
        if text == SUBMITTED:
            return cls(shown=text, spark=None, local=False, slots=None)
        if text == "yarn" or text.startswith(("spark://", "k8s://")):
            return cls(shown=text, spark=text, local=False, slots=None)
        raise BadMaster(f"--on {text!r} is no Spark master; write {FORMS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`--workers`: N, or MIN:MAX to follow what the groups need."""

    fewest: int
    most: int

    @property
    def follows(self) -> bool:
        """Whether the number changes by itself."""
        return self.fewest != self.most

    @classmethod
    def read(cls, text: str | None, master: Master) -> Self:
        """Raises: BadMaster."""
        if text is None:
            if master.slots is None:
                raise BadMaster("say how many workers: --workers 8, or --workers 1:8 for as many as are needed")
            return cls(fewest=master.slots, most=master.slots)
        found = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
        size = cls(fewest=int(found[1]), most=int(found[2] or found[1])) if found else None
        if size is None or not 1 <= size.fewest <= size.most <= WORKERS_MAX:
            raise BadMaster(f"--workers takes a number up to {WORKERS_MAX}, or MIN:MAX, not {text!r}")
        if master.slots is not None and size.most > master.slots:
            raise BadMaster(
                f"--workers {text}: each worker keeps one core, and {master.shown} has {master.slots}; write "
                f"--workers {master.slots}, or --on {_larger(master, size.most)}"
            )
        return size


def _larger(master: Master, workers: int) -> str:
    if found := _LOCAL_CLUSTER.fullmatch(master.shown):
        executors = -(-workers // int(found[2]))
        return f"local-cluster[{executors},{found[2]},{found[3]}]"
    return f"local[{workers}]"
