"""The console's pages, a module each: its questions, and its data. Their markup is in `templates`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flowshare.console.pages import (
    audit,
    browse,
    delayed,
    fleet,
    group,
    groups,
    handlers,
    in_flight,
    keys,
    letters,
    partition,
    stuck,
)
from flowshare.console.pages.page import Page

_ALL: Final = (
    groups.PAGE,
    group.PAGE,
    partition.PAGE,
    in_flight.PAGE,
    stuck.PAGE,
    delayed.PAGE,
    letters.PAGE,
    browse.PAGE,
    keys.PAGE,
    handlers.PAGE,
    fleet.PAGE,
    audit.PAGE,
)
PAGES: Final[Mapping[str, Page]] = {page.path: page for page in _ALL}
"""Pages by path, as they are listed."""
