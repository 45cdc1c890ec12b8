"""The table of docs/backends.md says of each backend what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowshare.backend.base import EMBEDDED, MEMORY, NATIVE, WORKERS, Capabilities, Feature

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
ROWS = {
    "durable": "what was confirmed is there after a restart",
    "durable_acquires": "a delivery counts though the server that made it is killed",
    "delayed_release": "a release carries its delay to the server",
    "unrun_release": "a record that was given back before its handler began has not cost an attempt",
    "server_dead_letters": "what the delivery limit archives is dead-lettered by the server",
    "letters_by_choice": "of which records the server writes letters of its own is the agent's choice",
    "ranges_only": "acquiring without record bytes",
    "cheap_acknowledge": "acknowledgements are sent at once; where each request is a write of a broker's, they are "
    "gathered for 5 ms",
    "own_limits": "any `max_attempts` and `lock_duration` can be had",
    "window_by_count": "finished records behind a slow one do not count against the record locks",
    "pausing": "`flowshare groups pause` and `resume`",
    "group_limit": "`max_in_flight`, `max_rate`, `breaker`: limits of a whole group, and its pause while it fails",
    "priority": "`priority`: new records before redeliveries, or both by turns",
    "key_order": "`order`: records of one key one after the other, on as many workers as there are",
    "settling": "`exactly_once`: outputs in one step with the accept of their record",
}


FEATURES = [name for name, one in vars(Capabilities).items() if isinstance(one, Feature)]


def test_the_page_has_a_row_for_each_feature() -> None:
    assert ROWS.keys() == {*FEATURES, "durable", "durable_acquires", "settling"}


@pytest.mark.parametrize("field", ROWS)
def test_the_page_says_what_each_backend_can_do(field: str) -> None:
    row = re.search(
        rf"^\| {re.escape(ROWS[field])} \| (.*) \| (.*) \| (.*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert row is not None

    said = [not cell.startswith("no") for cell in row.groups()]

    assert said == [getattr(backend, field) for backend in (EMBEDDED, MEMORY, WORKERS, NATIVE)]
