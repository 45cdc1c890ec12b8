"""`python -O` takes out the checks that keep a fault from becoming a wrong record: it is refused."""

from __future__ import annotations

from typing import Final

REFUSAL: Final = (
    "flowshare does not run under python -O (or PYTHONOPTIMIZE): it takes out the checks that protect records; "
    "start python without it"
)


def refusal() -> str | None:
    """Return the reason why this interpreter is refused; None: not refused."""
    return None if __debug__ else REFUSAL
