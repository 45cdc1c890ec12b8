"""A page of the console: an address, a template, and a function that collects the data to show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flowshare.backend import parse_broker
from flowshare.console.source import NotAnswering
from flowshare.core_errors import FlowshareError

if TYPE_CHECKING:
    from flowshare.cli.worker_pages import Workers
    from flowshare.clock import Clock
    from flowshare.console.agents import AgentWatch
    from flowshare.console.collector import Collector
    from flowshare.console.slots import Slots
    from flowshare.console.source import Source
    from flowshare.console.store import Store
    from flowshare.console.values import Values
    from flowshare.ops.figures import GroupFigures

Query = Mapping[str, str]
Context = dict[str, Any]
PARTITION_MAX: Final = 2**31 - 1
BYTES_MAX: Final = 8 * 1024 * 1024
"""The most bytes of the log that one page reads: of large records it shows fewer."""
ROWS_MAX: Final = 500
"""The most rows that a table shows."""


class Missing(FlowshareError, LookupError):
    """The subject of a page does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Sources that pages get their data from. values: the display of values."""

    source: Source
    workers: Workers
    collector: Collector
    store: Store
    agents: AgentWatch
    slots: Slots
    clock: Clock
    values: Values

    @property
    def broker(self) -> str:
        """The log's address, without its secrets."""
        return str(parse_broker(self.source.url))

    def line(self, group: str) -> GroupFigures:
        """Return a group as the last look saw it. Raises: Missing, NotAnswering (nothing was looked at yet)."""
        look = self.collector.look
        found = look.groups.get(group)
        if found is None and not look.at_ms:
            raise NotAnswering("the groups have not been looked at yet")
        if found is None:
            raise Missing(f"there is no group {group!r}")
        return found


Load = Callable[[View, Query], Awaitable[Context]]


@dataclass(frozen=True, slots=True)
class Page:
    """One page. path: its address. title: shown on the page and, unless `listed` is false, in the list of pages."""

    path: str
    title: str
    load: Load
    listed: bool = True

    @property
    def template(self) -> str:
        """The file of its markup."""
        return f"{self.path}.html"


def whole(query: Query, name: str, default: int | None = None, *, most: int = 10**18) -> int:
    """Return a whole number of the address. Raises ValueError."""
    text = query.get(name, "").strip()
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
        raise ValueError(f"{name} has to be a whole number from 0 on, not {text[:40]!r}")
    return int(text)


def named(query: Query, name: str) -> str:
    """Return a text of the address. Raises ValueError."""
    text = query.get(name, "")
    if not text:
        raise ValueError(f"the address has to say which {name}")
    return text


def place(query: Query) -> tuple[str, str, int]:
    """Return group, topic and partition of the address. Raises ValueError."""
    return named(query, "group"), named(query, "topic"), whole(query, "partition", most=PARTITION_MAX)
