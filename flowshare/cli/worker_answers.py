"""Parse the answers of workers about themselves. Each answer is a claim of whoever listens at the address.

Only values that pages show are kept, and only those of the right type, so that no answer breaks a page about others or
fills the memory: `ROWS_MAX` rows, `TEXT_MAX` characters of a text. Everything here raises ValueError for an answer that
no worker of flowshare gives.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from prometheus_client.parser import text_string_to_metric_families

from flowshare.agents.handler.texts import TRACE_MAX, clip
from flowshare.ops.in_hand import AgentReport

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Row = dict[str, Any]
Kind = Callable[[object], object]

ROWS_MAX: Final = 1_000
"""Handlers of a worker; of more those that run for longest."""
NEEDS_MAX: Final = 20_000
"""Groups and topics of a worker."""
PIPELINES_MAX: Final = 100
REASONS_MAX: Final = 20
LINES_MAX: Final = 20_000
"""Lines of metrics of agents that are read of a worker."""
TEXT_MAX: Final = 500
"""Characters of a name, a reason, an error."""
NUMBER_MAX: Final = 2**63
_METRICS: Final = ("flowshare_record", "flowshare_handler", "flowshare_dead_letter")
"""Prefixes of the names of agents' metrics."""


def handlers(body: bytes) -> list[Row]:
    """`/inflight`: what handlers work on. A row without a topic is ages only: names were kept from us."""
    found = [
        _typed(row, "/inflight", _HANDLER, needed=_OF_HANDLERS if "topic" in row else _ALWAYS_OF_HANDLERS)
        for row in _rows(body, "/inflight")
    ]
    return found if len(found) <= ROWS_MAX else heapq.nlargest(ROWS_MAX, found, key=lambda row: row["age_s"])


def agents(body: bytes) -> list[AgentReport]:
    """`/agents`: records that agents hold, and their last exceptions; none where names were kept from us."""
    rows = [_typed(row, "/agents", _AGENT) for row in islice(_rows(body, "/agents"), NEEDS_MAX)]
    return [
        AgentReport(**{name: value for name, value in row.items() if value is not None})
        for row in rows
        if row.get("group") is not None
    ]


def needs(body: bytes) -> list[Row]:
    """`/lag`: workers that groups need, a topic each."""
    return [_typed(row, "/lag", _NEED) for row in islice(_rows(body, "/lag"), NEEDS_MAX)]


def supervised(body: bytes) -> list[Row]:
    """`/workers`: of a supervisor."""
    return [_typed(row, "/workers", {"address": _or_none(_text)}) for row in islice(_rows(body, "/workers"), ROWS_MAX)]


def pipelines(body: bytes) -> list[Row]:
    """`/pipelines`: of a process with Spark. One without a name is numbers only: names were kept from us."""
    return [
        {"last_error": None, **_typed(row, "/pipelines", _PIPELINE, needed=_OF_PIPELINES if "name" in row else ())}
        for row in islice(_rows(body, "/pipelines"), PIPELINES_MAX)
    ]


def scale(body: bytes) -> Row:
    """`/scale`: how many workers an app needs."""
    kinds = dict.fromkeys(("workers", "members", "known"), _number)
    return _typed(_mapping(json.loads(body), "/scale"), "/scale", kinds, needed=tuple(kinds))


def readiness(body: bytes) -> Row:
    """`/ready`: whether it works, and why not."""
    found = _mapping(json.loads(body), "/ready")
    listed = _list(found.get("reasons", []), "/ready")
    reasons = [clip(str(one), TEXT_MAX) for one in listed[:REASONS_MAX]]
    more = [f"and {len(listed) - REASONS_MAX} more reasons"] if len(listed) > REASONS_MAX else []
    return {"ok": bool(found.get("ok")), "reasons": [*reasons, *more]}


def families(body: bytes) -> dict[str, Metric]:
    """`/metrics`: those of agents, by name."""
    lines = (line for line in body.decode().splitlines() if line.removeprefix("# TYPE ").startswith(_METRICS))
    text = "\n".join([*islice(lines, LINES_MAX), ""])
    try:
        return {family.name: family for family in text_string_to_metric_families(text)}
    except (IndexError, KeyError, TypeError, AttributeError) as error:  # the parser's, by what it reads
        raise other("/metrics") from error


def ordered(body: bytes, figure: str) -> float:
    """Return the figure of this name from the answer to an order."""
    found = _typed(_mapping(json.loads(body), "an order"), "an order", {figure: _number}, needed=(figure,))
    return float(found[figure])


def other(page: str) -> ValueError:
    """That this is no answer of a worker."""
    return ValueError(f"what it answers at {page} is not what a worker of flowshare says: see who listens there")


# --- what can stand there; each raises ValueError ---------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")  # noqa: TRY004 - of what somebody sent
    return clip(value, TEXT_MAX)


def _stack(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")  # noqa: TRY004
    return clip(value, TRACE_MAX)


def _number(value: object) -> float:
    # Not math.isfinite, which raises for whole numbers that no float can be.
    if not isinstance(value, (int, float)) or not abs(value) <= NUMBER_MAX:
        raise ValueError("no number")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or not abs(value) < NUMBER_MAX:
        raise ValueError("no whole number")
    return value


def _or_none(kind: Kind) -> Kind:
    return lambda value: None if value is None else kind(value)


_HANDLER: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("agent", "topic"), _text),
    "stack": _stack,
    **dict.fromkeys(("worker", "partition", "offset", "attempt", "blocked"), _count),
    **dict.fromkeys(("age_s", "lock_left_s"), _number),
}
_ALWAYS_OF_HANDLERS: Final = ("age_s", "lock_left_s")
_OF_HANDLERS: Final = (*_ALWAYS_OF_HANDLERS, "agent", "topic", "partition", "offset")
_AGENT: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("group", "exception", "message"), lambda value: None if value is None else _text(value)),
    **dict.fromkeys(
        ("worker", "held", "oldest_s", "raised_s"), lambda value: None if value is None else _number(value)
    ),
}
_NEED: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("group", "topic"), _or_none(_text)),
    "needed_workers": _or_none(_number),
}
_PIPELINE: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("name", "group", "state"), _text),
    **dict.fromkeys(("batches", "records", "rate", "batch_s", "backlog", "failures"), _or_none(_number)),
    "last_error": _or_none(_text),
}
_OF_PIPELINES: Final = tuple(name for name in _PIPELINE if name != "last_error")


def _typed(row: Mapping[str, Any], page: str, kinds: Mapping[str, Kind], needed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the row's values of these kinds. needed: names that the row must have. Raises: ValueError."""
    if any(name not in row for name in needed):
        raise other(page)
    try:
        return {name: kind(row[name]) for name, kind in kinds.items() if name in row}
    except ValueError:
        raise other(page) from None


def _rows(body: bytes, page: str) -> list[Row]:
    return [_mapping(row, page) for row in _list(json.loads(body), page)]


def _mapping(found: object, page: str) -> Row:
    if not isinstance(found, dict):
        raise other(page)
    return cast("Row", found)


def _list(found: object, page: str) -> Sequence[object]:
    if not isinstance(found, list):
        raise other(page)
    return cast("list[object]", found)
