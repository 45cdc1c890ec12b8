"""Every name that is told stands in one module, and on the page about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowshare.agents.telemetry import conventions as names

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()


def test_the_page_says_what_each_attribute_and_metric_is():
    for name, text in names.ATTRIBUTES.items():
        assert f"| `{name}` | {text} |" in PAGE
    for name, (kind, text) in names.METRICS.items():
        assert f"| `{name}` | {kind} | {text} |" in PAGE
    assert f"version\n{names.VERSION}," in PAGE


def test_the_page_says_nothing_that_is_not_there():
    table = set(re.findall(r"^\| `((?:messaging|flowshare|error)\.[a-z_.]+)` \|", PAGE, re.MULTILINE))

    assert table == names.ATTRIBUTES.keys() | names.METRICS.keys()


@pytest.mark.parametrize("room", ["telemetry", "run", "feed", "host", "kmq"])
def test_names_of_the_conventions_are_written_once(room):
    for file in (ROOT / "flowshare" / "agents" / room).rglob("*.py"):
        if file.name != "conventions.py":
            assert not re.search(r'"(messaging|error|exception|flowshare\.settle)\.[a-z]', file.read_text()), file
